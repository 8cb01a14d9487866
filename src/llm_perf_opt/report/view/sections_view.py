"""Sections that stages add to the report, every text and number ready to be shown."""

import base64
from dataclasses import dataclass
from pathlib import PurePosixPath

from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.core.records import Metric, StageRecord
from llm_perf_opt.core.sections import PICTURES, Link, Picture, Section, SectionTable, table_texts
from llm_perf_opt.core.units import format_quantity
from llm_perf_opt.diagnosis.facts import Unknown
from llm_perf_opt.report.run_files import RunFiles
from llm_perf_opt.report.view.shown import Cell, Shown

# Longer words of a table are broken rather than scrolled to.
WRAPPED = 24


@dataclass(frozen=True, kw_only=True)
class TableView:
    """Cells as text; `numeric` are the columns of numbers (or of nothing), `long` those whose text has to wrap."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[int, ...]
    long: tuple[int, ...]
    source: str | None


@dataclass(frozen=True, kw_only=True)
class PictureView:
    """A picture as a data URI, so that the page stays one file, or why there is none."""

    path: str
    shows: str
    data_uri: str
    label: str = ""
    missing: Unknown | None = None


@dataclass(frozen=True, kw_only=True)
class SectionView:
    """`key` is unique on the page; `stage` is empty where the diagnosis says it."""

    key: str
    stage: str
    title: str
    paragraphs: tuple[str, ...]
    metrics: tuple[tuple[str, Cell], ...]
    tables: tuple[TableView, ...]
    pictures: tuple[PictureView, ...]
    links: tuple[Link, ...]

    @property
    def is_picture(self) -> bool:
        """Whether a picture is all there is, so that two fit alongside each other."""
        return bool(self.pictures) and not (self.paragraphs or self.metrics or self.tables or self.links)


def sections_view(files: RunFiles) -> tuple[SectionView, ...]:
    """In the order of the stages, and of the sections of each."""
    return tuple(
        _section(f"{stage.name}-{number}", stage, section, files)
        for stage in files.manifest.stages
        for number, section in enumerate(stage.sections, start=1)
    )


def diagnosis_section(section: Section) -> SectionView:
    """A section made of the diagnosis, by no stage."""
    return SectionView(
        key="ledger",
        stage="",
        title=section.title,
        paragraphs=section.paragraphs,
        metrics=(),
        tables=tuple(table_view(table) for table in section.tables),
        pictures=(),
        links=(),
    )


def _section(key: str, stage: StageRecord, section: Section, files: RunFiles) -> SectionView:
    return SectionView(
        key=key,
        stage=stage.name,
        title=section.title,
        paragraphs=section.paragraphs,
        metrics=tuple((name, _metric(name, stage)) for name in section.metrics),
        tables=tuple(table_view(table) for table in section.tables),
        pictures=tuple(_picture(picture, files) for picture in section.pictures),
        links=section.links,
    )


def _metric(name: str, stage: StageRecord) -> Cell:
    metric = stage.metrics.get(name)
    if metric is None:
        return Unknown(reason=f"stage {stage.name} has no number of this name")
    if metric.value is None:
        return Unknown(reason=metric.reason or "not measured")
    how = f"{metric.how}, per {metric.per}" if metric.per else metric.how
    return Shown(text=_value(metric), how=how, source=metric.source or MANIFEST_FILE)


def _value(metric: Metric) -> str:
    if isinstance(metric.value, int | float):
        return format_quantity(metric.value, metric.unit)
    return f"{metric.value} {metric.unit}".strip()


def table_view(table: SectionTable) -> TableView:
    """A table with its cells as text."""
    columns = [[row[index] for row in table.rows] for index in range(len(table.columns))]
    numeric = [
        index for index, cells in enumerate(columns) if all(isinstance(cell, int | float | None) for cell in cells)
    ]
    rows = tuple(map(tuple, table_texts(table.rows)))
    return TableView(
        title=table.title,
        columns=table.columns,
        rows=rows,
        numeric=tuple(numeric),
        long=tuple(i for i in range(len(table.columns)) if any(len(row[i]) > WRAPPED for row in rows)),
        source=table.source,
    )


def _picture(picture: Picture, files: RunFiles) -> PictureView:
    path, shows = picture.path, picture.shows
    found = files.pictures[path]
    if isinstance(found, Unknown):
        return PictureView(path=path, shows=shows, data_uri="", label=picture.label, missing=found)
    kind = PICTURES[PurePosixPath(path).suffix.lower()]
    data_uri = f"data:{kind};base64,{base64.b64encode(found.content).decode()}"
    return PictureView(path=path, shows=shows, data_uri=data_uri, label=picture.label)

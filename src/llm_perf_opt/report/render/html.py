"""report.html: one file that opens offline, styles, script and data inside it."""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import PurePath
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.core.units import digits, format_count, format_ms, format_ms_in_column, format_percent
from llm_perf_opt.diagnosis.facts import Unknown
from llm_perf_opt.report.kernel_columns import (
    COLUMNS,
    Detail,
    KernelColumn,
    Value,
    column_texts,
    kernel_details,
    script_values,
)
from llm_perf_opt.report.render.glossary import heading, terms, upper_first, words
from llm_perf_opt.report.render.roofline_layout import layout_roofline
from llm_perf_opt.report.view.kernels_view import VIEWS, KernelsView
from llm_perf_opt.report.view.report_view import ReportView
from llm_perf_opt.report.view.timeline_view import Jump, TimelineView, Track
from llm_perf_opt.report.view.what_if_view import Times, WhatIfView
from llm_perf_opt.system.terminal import printable

PACKAGE = "llm_perf_opt.report"
ROWS_WITHOUT_SCRIPT = 40
# In this order: each uses what is before it.
SCRIPTS = ("inflate", "base", "tables", "kernels", "what_if", "roofline", "timeline", "flame", "start")
FINDINGS_OPEN = 3
# Of zlib: without its header, which says nothing to the script.
RAW_DEFLATE = -15


def render_html(view: ReportView) -> str:
    """The page. Texts are escaped by the template; only our own style, script and packed data go in as they are."""
    environment = Environment(
        loader=PackageLoader(PACKAGE, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"ms": format_ms, "percent": format_percent, "digits": digits, "count": format_count}
    environment.filters |= {"words": words, "terms": terms, "upper_first": upper_first}
    environment.filters |= {"whole_percent": lambda share: f"{100 * share:.0f} %", "heading": heading}
    environment.filters |= {"file_names": file_names, "ms_in_column": format_ms_in_column}
    environment.tests["missing"] = lambda value: isinstance(value, Unknown)
    columns = [column for column in COLUMNS if any(column.value(row) is not None for row in view.kernels.rows)]
    return environment.get_template("report.html.j2").render(
        view=view,
        layout=layout_roofline(view.roofline),
        style=Markup(_text("report.css")),
        script=Markup(page_script()),
        data=pack(msgspec.to_builtins(page_data(view))),
        columns=columns,
        measured=[column for column in columns if column.is_first],
        has_modules=any(row.module for row in view.kernels.rows),
        rows_without_script=ROWS_WITHOUT_SCRIPT,
        kernel_texts=_kernel_texts(view.kernels, [column for column in columns if column.is_first]),
        findings_open=FINDINGS_OPEN,
        can_scale=any((view.steps.get(phase) or 1.0) > 1.0 for phase in shown_phases(view)),
        phases=shown_phases(view),
        has_trace=view.has_trace,
    )


def shown_phases(view: ReportView) -> list[str]:
    """The phases with a waterfall or with kernels of their own: a switch offers no other."""
    falls = {fall.phase for fall in view.waterfalls if fall.is_known}
    totals = dict(zip(VIEWS, view.kernels.totals_ms, strict=True))
    return [phase for phase in (PREFILL, DECODE) if phase in falls or totals.get(phase)]


def file_names(text: str) -> str:
    """Files outside the run by their names; the page says on hover where they were."""
    return ", ".join(PurePath(path).name if path.startswith("/") else path for path in text.split(", "))


def _kernel_texts(kernels: KernelsView, columns: Sequence[KernelColumn]) -> list[tuple[str, ...]]:
    """By row, time, share and the measured columns of the whole capture, for a page without its script."""
    total = kernels.totals_ms[0]
    times = [row.time_ms[0] for row in kernels.rows]
    shares = [None if time is None or not total else time / total for time in times]
    texts = [column_texts(times, "ms"), column_texts(shares, "share"), *(c.texts(kernels.rows) for c in columns)]
    return list(zip(*texts, strict=True))


def _text(name: str) -> str:
    return (files(PACKAGE) / "templates" / name).read_text(encoding="utf-8")


def page_script() -> str:
    """All parts of the script in one scope, so that none of their names is global."""
    parts = "\n".join(_text(f"js/{name}.js") for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\n}})();\n'


@dataclass(frozen=True, kw_only=True)
class PackedData:
    """Data for the script: `text` is JSON of `size_bytes`, compressed, in letters that end no element of the page."""

    text: str
    size_bytes: int


def pack(data: Any) -> PackedData:
    """Names and digits repeat: a page of thousands of kernels halves. What no page may hold is marked before."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    plain = printable(text).encode("utf-8", "backslashreplace")
    packed = zlib.compress(plain, wbits=RAW_DEFLATE)
    return PackedData(text=base64.b64encode(packed).decode("ascii"), size_bytes=len(plain))


def unpack(page: bytes) -> bytes:
    """The JSON in a page."""
    text = page.split(b'id="data"', 1)[1].split(b">", 1)[1].split(b"<", 1)[0]
    return zlib.decompress(base64.b64decode(text), wbits=RAW_DEFLATE)


@dataclass(frozen=True, kw_only=True)
class KernelData:
    """Kernels as the script reads them: `fields` names the values of a row, `units` says how a number is written.

    `details` are what is known of a kernel besides, by its row; `steps` how often a phase's step is in a request.
    """

    totals: Mapping[str, float | None]
    units: Mapping[str, str]
    fields: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    details: Mapping[int, tuple[Detail, ...]]
    steps: Mapping[str, float | None]


@dataclass(frozen=True, kw_only=True)
class TimelineData:
    """The timeline as the script reads it."""

    length: int
    names: tuple[str, ...]
    classes: tuple[str, ...]
    shapes: tuple[str, ...]
    links: tuple[tuple[int, int, int, int], ...]
    jumps: tuple[Jump, ...]
    tracks: tuple[Track, ...]


@dataclass(frozen=True, kw_only=True)
class WhatIfData:
    """Predicted times as the script reads them: `rows` of what fits, then four numbers for each phase."""

    phases: tuple[str, ...]
    batches: tuple[int, ...]
    rows: tuple[tuple[bool | None, tuple[Times, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class PageData:
    """What the script draws from."""

    kernels: KernelData
    timeline: TimelineData | None
    what_if: WhatIfData | None


def page_data(view: ReportView) -> PageData:
    return PageData(
        kernels=_kernels(view.kernels, view.steps),
        timeline=_timeline(view.timeline),
        what_if=_what_if(view.what_if) if view.can_ask_what_if else None,
    )


def _what_if(view: WhatIfView | None) -> WhatIfData | None:
    if view is None:
        return None
    return WhatIfData(phases=view.phases, batches=view.batches, rows=tuple((row.fits, row.times) for row in view.rows))


def _kernels(view: KernelsView, steps: Mapping[str, float | None]) -> KernelData:
    rows = [script_values(row) for row in view.rows]
    return KernelData(
        totals=dict(zip(VIEWS, view.totals_ms, strict=True)),
        units={column.key: column.unit for column in COLUMNS if column.unit is not None},
        fields=tuple(rows[0]) if rows else (),
        rows=tuple(tuple(_short(value) for value in row.values()) for row in rows),
        details={i: details for i, row in enumerate(view.rows) if (details := kernel_details(row))},
        steps=steps,
    )


def _short(value: Value) -> Value:
    """Six digits are more than a reader needs."""
    if value is None or isinstance(value, str):
        return value
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def _timeline(view: TimelineView) -> TimelineData | None:
    if view.missing is not None:
        return None
    return TimelineData(
        length=view.length_ns,
        names=view.names,
        classes=view.classes,
        shapes=view.shapes,
        links=view.links,
        jumps=view.jumps,
        tracks=view.tracks,
    )

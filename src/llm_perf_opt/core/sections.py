"""A section a stage adds to the report: text, its own numbers, tables, a picture and links, as plain data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from urllib.parse import urlsplit

from llm_perf_opt.system.terminal import number_columns, terminal_table

PICTURES = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
}


Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True)
class SectionTable:
    """Rows under columns; None is shown as a dash. `source` is the file inside the run that holds the numbers."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    source: str | None = None

    def __post_init__(self) -> None:
        wrong = next((row for row in self.rows if len(row) != len(self.columns)), None)
        if wrong is not None:
            raise ValueError(f"a table of {len(self.columns)} columns has a row of {len(wrong)}: {wrong}")


def filled(title: str, columns: Mapping[str, Sequence[Cell]], source: str | None) -> SectionTable:
    """A table without the columns that no row fills."""
    kept = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    return SectionTable(title=title, columns=tuple(kept), rows=tuple(zip(*kept.values(), strict=True)), source=source)


# Significant digits of the largest number of a column; the others have as many decimal places.
DIGITS = 4
MOST_PLACES = 9


def table_texts(rows: Sequence[Sequence[Cell]]) -> list[list[str]]:
    """Cells as they are shown: the numbers of a column with the same decimal places, a dash for what is not known."""
    columns = [_column_texts(column) for column in zip(*rows, strict=True)]
    return [list(row) for row in zip(*columns, strict=True)]


def titled_table(table: SectionTable) -> str:
    """A table for a terminal, below its title."""
    rows = table_texts(table.rows)
    return f"{table.title}\n{terminal_table(table.columns, rows, right=number_columns(rows))}"


def _column_texts(column: Sequence[Cell]) -> list[str]:
    numbers = [abs(cell) for cell in column if isinstance(cell, float) and math.isfinite(cell)]
    largest = max(numbers, default=0.0)
    whole_digits = math.floor(math.log10(largest)) + 1 if largest else 1
    return [_cell_text(cell, min(max(DIGITS - whole_digits, 0), MOST_PLACES)) for cell in column]


def _cell_text(value: Cell, places: int) -> str:
    if isinstance(value, str):
        return value
    if value is None or not math.isfinite(value):
        return "—"
    if isinstance(value, int) or value == 0:
        return f"{value:,.0f}"
    if round(abs(value), places) == 0:
        return f"< {10.0**-places:.{places}f}" if value > 0 else f"> −{10.0**-places:.{places}f}"
    return f"{value:,.{places}f}"


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A file inside the run directory, by its path from there, and what it shows for those who cannot see it.

    `label` names it where it is one of several.
    """

    path: str
    shows: str
    label: str = ""

    def __post_init__(self) -> None:
        _require_inside(self.path)
        if PurePosixPath(self.path).suffix.lower() not in PICTURES:
            raise ValueError(f"{self.path}: not a picture, allowed: {', '.join(PICTURES)}")


@dataclass(frozen=True, kw_only=True)
class Link:
    """Text that leads to a file inside the run directory or to a page on the web."""

    text: str
    target: str

    def __post_init__(self) -> None:
        if urlsplit(self.target).scheme not in ("http", "https"):
            _require_inside(self.target)


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of the report. `metrics` names numbers of the same stage, shown with unit, how and source.

    `others` are pictures instead of `picture`, of which the page shows one at a time, chosen by its label.
    """

    title: str
    paragraphs: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    tables: tuple[SectionTable, ...] = ()
    picture: Picture | None = None
    others: tuple[Picture, ...] = ()
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        if not self.title.strip():
            raise ValueError("a section needs a title")
        if self.others and self.picture is None:
            raise ValueError("other pictures need a first one")

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The first picture and the others."""
        return () if self.picture is None else (self.picture, *self.others)


def _require_inside(path: str) -> None:
    """A page may be moved with its run, and must not show what lies outside it."""
    if not path or urlsplit(path).scheme or path.startswith(("/", "\\")) or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r}: not a path inside the run directory, such as my_stage/picture.svg")

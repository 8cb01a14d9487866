"""Text for a terminal and for the log files it is piped into: without control characters, and tables of it.

Names come from captures, manifests and logs of other people. What they hold must not move the cursor, ring, set the
title or turn the writing direction around, so everything printed passes `printable`.
"""

import re
from collections.abc import Collection, Sequence
from io import StringIO, TextIOBase
from typing import TextIO

DASHES = frozenset("–—-")


# Control characters but tab and line feed, C1, and those that turn the direction of writing or hide.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")


def printable(text: str) -> str:
    """The text with a visible mark, such as `\\x1b`, for every character that would steer a terminal."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class PrintableStream(TextIOBase):
    """A stream that passes on what is printable; for the standard output and error of the whole program."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._stream.write(printable(text))
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return self._stream.isatty()

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding


def terminal_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Collection[int], rule: bool = True
) -> str:
    """Lines without colours, wrapping or trailing spaces.

    `right` are the columns set right, `rule` is a line below the header. Widths are those on the screen, where a
    character may take two places.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    header, rows = [printable(cell) for cell in header], [[printable(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for index, width in enumerate(widths):
        table.add_column(justify="right" if index in right else "left", no_wrap=True, min_width=width)
    for row in (header, *([["-" * width for width in widths]] if rule else []), *rows):
        # As Text a bracket in a name is a bracket, not markup.
        table.add_row(*(Text(printable(cell)) for cell in row))
    out = StringIO()
    Console(file=out, width=sum(widths) + 2 * len(widths), color_system=None).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def number_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns in which every cell is a number or a dash."""
    return [index for index in range(len(rows[0])) if all(_is_number(row[index]) for row in rows)]


def _is_number(text: str) -> bool:
    digits = "".join(c for c in text if c not in DASHES and c not in ",.")
    return digits.isdecimal() or text in DASHES

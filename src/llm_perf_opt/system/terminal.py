"""Text for a terminal and for the log files it is piped into: without control characters, in the width there is.

Names come from captures, manifests and logs of other people. What they hold must not move the cursor, ring, set the
title or turn the writing direction around, so everything printed passes `printable`. On a terminal, lines end at a
space, tables fit, and colours are rich's, which keeps to NO_COLOR; elsewhere nothing is wrapped, cut or coloured.
"""

import os
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from io import TextIOBase
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

DASHES = frozenset("–—-")
GAP = "  "
# With these set, rich may take what is not a terminal for one.
_FORCED = frozenset({"FORCE_COLOR", "TTY_COMPATIBLE"})
# Columns of names are not made narrower than this; a table that is too wide even so is printed in parts.
NARROWEST = 16

# Control characters but tab and line feed, C1, and those that turn the direction of writing or hide.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
# What a continued line is below: the text behind a mark of a list, or the last column of an aligned line.
_LEAD = re.compile(r"\s*(?:[*•→-] |\d+\. )?")
_LAST_COLUMN = re.compile(r"^.*\S {2,}(?=\S)")


def printable(text: str) -> str:
    """The text with a visible mark, such as `\\x1b`, for every character that would steer a terminal."""
    return HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def screen_width(stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> int | None:
    """The columns of the terminal a stream (default: the standard output) leads to; None where it is none."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        return None
    width_text = environ.get("COLUMNS", "")
    if width_text.isdecimal() and int(width_text) > 0:
        return int(width_text)
    try:
        # An emulator that does not know its size says 0.
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def wrap_line(line: str, width: int | None) -> list[str]:
    """One line as lines that end at a space; a word longer than the width stays whole, so that it can be copied."""
    if width is None or len(line) <= width:
        return [line]
    from textwrap import wrap

    column = _LAST_COLUMN.match(line)
    lead = _LEAD.match(line)
    indent = column.end() if column and column.end() <= width // 2 else lead.end() if lead else 0
    head, rest = line[:indent], line[indent:]
    lines = wrap(
        rest,
        max(width - indent, 10),
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return [head + lines[0], *(" " * indent + more for more in lines[1:])]


class PrintableStream(TextIOBase):
    """A stream that passes on what is printable; for the standard output and error of the whole program.

    On a terminal lines are wrapped at spaces, and one that reports an error is red.
    """

    def __init__(self, stream: TextIO) -> None:
        self.raw = stream
        self._is_terminal = stream.isatty()
        self._begun = ""

    def write(self, text: str) -> int:
        if not self._is_terminal:
            self.raw.write(printable(text))
            return len(text)
        *lines, self._begun = (self._begun + printable(text)).split("\n")
        for line in lines:
            self.raw.write("\n".join(wrap_line(line, screen_width(self.raw))).join(_colours(line)) + "\n")
        return len(text)

    def flush(self) -> None:
        # Writing nothing to an unbuffered stream of a full disk is an error all the same.
        if self._begun:
            self.raw.write(self._begun)
            self._begun = ""
        self.raw.flush()

    def fileno(self) -> int:
        return self.raw.fileno()

    def isatty(self) -> bool:
        return self._is_terminal

    def writable(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.raw.encoding


def _colours(line: str) -> tuple[str, str]:
    is_error = line.startswith("error: ") and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return ("\x1b[31m", "\x1b[0m") if is_error else ("", "")


def rich_console(stream: TextIO | None = None) -> "Console":
    """Rich on one of our streams: its colours would not pass the filter, so the text given to it must be printable."""
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    raw = stream.raw if isinstance(stream, PrintableStream) else stream
    return Console(file=raw, width=screen_width(stream) or 10_000, highlight=False, markup=False, emoji=False)


def show(*parts: "Text | str", stream: TextIO | None = None) -> None:
    """Print lines with their colours; each ends at a space where the terminal does, but for texts with `no_wrap`."""
    from rich.text import Text

    out = sys.stdout if stream is None else stream
    out.flush()
    width = screen_width(out)
    console = None if width is None and not _FORCED & os.environ.keys() else rich_console(out)
    for part in parts:
        text = Text(printable(part)) if isinstance(part, str) else part
        if console is None or (width is None and not console.is_terminal):
            # Rich takes its time for each line, and would change none of them.
            out.write(f"{text.plain}\n")
            continue
        for line in text.split("\n", allow_blank=True):
            console.print(line if line.no_wrap else _wrap_text(line, width), soft_wrap=True)


def _wrap_text(line: "Text", width: int | None) -> "Text":
    """A line of text wrapped as `wrap_line` does it, with its colours."""
    from rich.text import Text

    pieces = wrap_line(line.plain, width)
    if len(pieces) == 1:
        return line
    found, place = Text(), 0
    for number, piece in enumerate(pieces):
        content = piece if number == 0 else piece.lstrip(" ")
        place = line.plain.index(content, place)
        found.append("\n" + piece[: len(piece) - len(content)] if number else "")
        found.append_text(line[place : place + len(content)])
        place += len(content)
    return found


def terminal_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int],
    rule: bool = True,
    width: int | None = None,
) -> str:
    """`table_text` without its colours."""
    return table_text(header, rows, right=right, rule=rule, width=width).plain


def table_text(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int],
    rule: bool = True,
    width: int | None = None,
) -> "Text":
    """Aligned lines without trailing spaces, which fit `width` (default: the terminal's, where there is one).

    `right` are the columns set right, `rule` is a line below the header. Widths are those on the screen, where a
    character may take two places. What does not fit is folded at spaces; names without one lose their middle; and if
    that is not enough the table is printed in parts, each with the first column.
    """
    from rich.text import Text

    width = screen_width() if width is None else width
    header, rows = [printable(cell) for cell in header], [[printable(cell) for cell in row] for row in rows]
    columns = [[head, *(row[index] for row in rows)] for index, head in enumerate(header)]
    # Where room is short, a column without a value takes none.
    shown = [i for i, (_, *cells) in enumerate(columns) if width is None or i == 0 or any(cells) or not cells]
    header, rows = [header[i] for i in shown], [[row[i] for i in shown] for row in rows]
    right = [place for place, i in enumerate(shown) if i in right]
    widths = _widths([columns[i] for i in shown], right, width)
    pieces = [list(range(len(header)))] if width is None else _pieces(widths, width)
    texts = []
    for piece in pieces:
        lines = _lines(header, piece, widths, right, style="bold")
        lines += [Text(GAP.join("-" * widths[index] for index in piece), style="dim")] if rule else []
        for row in rows:
            lines += _lines(row, piece, widths, right)
        texts.append(Text("\n").join(lines))
    return Text("\n\n").join(texts)


def _widths(columns: Sequence[Sequence[str]], right: Collection[int], width: int | None) -> list[int]:
    """A width for each column: all it takes, or less where there is less: first headers fold, then names shrink."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in columns]
    if width is None or _total(widths) <= width:
        return widths
    for index, (head, *cells) in enumerate(columns):
        widths[index] = max(map(cell_len, [*cells, *head.split()]), default=0)
    names = [index for index in range(len(columns)) if index not in right]
    while _total(widths) > width and (wide := [index for index in names if widths[index] > NARROWEST]):
        index = max(wide, key=lambda i: widths[i])
        widths[index] = max(NARROWEST, widths[index] - (_total(widths) - width), _second(widths, wide, index))
    if _total(widths) > width:
        for index in names:
            # It is printed in parts anyway, so names need not be short.
            widths[index] = min(max(map(cell_len, columns[index])), width // 2)
    return widths


def _second(widths: Sequence[int], wide: Sequence[int], widest: int) -> int:
    """One less than the next widest, so that names of two columns shrink alternately."""
    return max((widths[index] - 1 for index in wide if index != widest), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _pieces(widths: Sequence[int], width: int) -> list[list[int]]:
    pieces = [[0]]
    for index in range(1, len(widths)):
        if len(pieces[-1]) > 1 and _total([widths[i] for i in (*pieces[-1], index)]) > width:
            pieces.append([0])
        pieces[-1].append(index)
    return pieces


def _lines(
    cells: Sequence[str], piece: Sequence[int], widths: Sequence[int], right: Collection[int], style: str = ""
) -> "list[Text]":
    """One row as the lines it takes."""
    from itertools import zip_longest

    from rich.cells import cell_len
    from rich.text import Text

    folded = [_fold(cells[index], widths[index]) for index in piece]
    found = []
    for parts in zip_longest(*folded, fillvalue=""):
        padded = [
            " " * (widths[index] - cell_len(part)) + part
            if index in right
            else part + " " * (widths[index] - cell_len(part))
            for index, part in zip(piece, parts, strict=True)
        ]
        found.append(Text(GAP.join(padded).rstrip(), style=style))
    return found


def _fold(text: str, width: int) -> list[str]:
    """A cell in lines of at most this width: folded at spaces, and a longer word without its middle."""
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return [text]
    lines: list[str] = [""]
    for word in (_without_middle(word, width) for word in text.split(" ")):
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if cell_len(joined) <= width:
            lines[-1] = joined
        else:
            lines.append(word)
    return [line for line in lines if line] or [""]


def _without_middle(word: str, width: int) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(word) <= width:
        return word
    tail = word[len(word) - (width - 1) // 2 :]
    return set_cell_size(word, width - 1 - cell_len(tail)) + "…" + tail if cell_len(tail) < width - 1 else word[:width]


def cut_text(text: str, most: int) -> str:
    """A text of at most this many characters; an ellipsis for what is left out."""
    return text if len(text) <= most else text[: most - 1] + "…"


def number_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns in which every cell is a number or a dash; of no rows none."""
    return [index for index, cells in enumerate(zip(*rows, strict=True)) if all(map(_is_number, cells))]


def _is_number(text: str) -> bool:
    digits = "".join(c for c in text.removeprefix("< ") if c not in DASHES and c not in ",.")
    return digits.isdecimal() or text in DASHES

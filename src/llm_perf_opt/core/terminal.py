"""Tables for a terminal and for the log files it is piped into: plain text, columns as wide as their content."""

from collections.abc import Collection, Sequence
from io import StringIO

DASHES = frozenset("–—-")


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

    widths = [max(cell_len(row[index]) for row in (header, *rows)) for index in range(len(header))]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for index, width in enumerate(widths):
        table.add_column(justify="right" if index in right else "left", no_wrap=True, min_width=width)
    for row in (header, *([["-" * width for width in widths]] if rule else []), *rows):
        # As Text a bracket in a name is a bracket, not markup.
        table.add_row(*(Text(cell) for cell in row))
    out = StringIO()
    Console(file=out, width=sum(widths) + 2 * len(widths), color_system=None).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def number_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """The columns in which every cell is a number or a dash."""
    return [index for index in range(len(rows[0])) if all(_is_number(row[index]) for row in rows)]


def _is_number(text: str) -> bool:
    digits = "".join(c for c in text if c not in DASHES and c not in ",.")
    return digits.isdecimal() or text in DASHES

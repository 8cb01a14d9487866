"""Pieces of every markdown file we write: safe text, code, links and tables."""

import re
from collections.abc import Collection, Iterable, Sequence


def escape(text: str) -> str:
    """Text safe inside a markdown table cell, in which neither a tag nor a link nor a picture begins."""
    safe = text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
    return safe.replace("](", "]\\(").replace("][", "]\\[")


def heading(text: str) -> str:
    """Text of others in a heading or a sentence: no link, no picture and no tag can begin in it."""
    return re.sub(r"([\\`<>\[\]])", r"\\\1", " ".join(text.split()))


def plain(text: str) -> str:
    """Text of others, such as a kernel's name or advice of a tool, in which no character may start markup."""
    return re.sub(r"([|\\`*_<>\[\]])", r"\\\1", " ".join(text.split()))


def code(text: str) -> str:
    """Text as code, safe in a table: inside backticks only the bar and the backtick itself need care."""
    return "`" + " ".join(text.replace("`", "'").replace("|", "\\|").split()) + "`"


def link(text: str, target: str) -> str:
    """Text that leads somewhere."""
    return f"[{plain(text)}](<{target.replace('<', '%3C').replace('>', '%3E')}>)"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, right: Collection[str] = ()) -> list[str]:
    """A table; the columns named in `right` are aligned right. Cells must be safe already."""
    marks = ["---:" if name in right else "---" for name in header]
    return [_line(header), _line(marks), *(_line(row) for row in rows)]


def table_block(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as one text."""
    return "\n".join(table(header, rows))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"

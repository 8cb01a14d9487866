"""Bounds of what a tool answers: strings of captures as data, answers of at most 8 kB, rows in pages.

A kernel or a range is named by whoever wrote the program that was recorded. Such a name is shown between `OPENING` and
`CLOSING`, without characters that steer a terminal or hide text, and cut at a length.
"""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from llm_perf_opt.mcp_server.mcp_answers import Page, Pointer, ToolAnswer

LARGEST_ANSWER_BYTES = 8_000
# No answer holds more, however short they are.
MOST_ROWS = 1_000
LONGEST_NAME = 160
LONGEST_TEXT = 500
# Nanoseconds of a capture of a second survive; digits that say nothing do not.
DIGITS = 10
OPENING, CLOSING = "⟪", "⟫"
# Control, format (zero width, direction), surrogate, private use and unassigned characters, and separators of lines.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def cleaned(text: str, limit: int = LONGEST_TEXT) -> str:
    """A text in one line, without what is invisible or steers its display, and cut."""
    # What is cut is counted before the slow part, or a name of many megabytes would take seconds.
    head = text[: 4 * limit]
    spaced = " ".join("".join(_shown(character) for character in head).split())
    if len(text) <= len(head) and len(spaced) <= limit:
        return spaced
    left = len(text) - min(limit, len(spaced))
    return f"{spaced[:limit]}… ({left:,} more characters)"


def _shown(character: str) -> str:
    if character in (OPENING, CLOSING):
        return ""
    if character in "\t\n\r":
        return " "
    return "" if unicodedata.category(character) in _HIDDEN else character


def as_data(text: str, limit: int = LONGEST_NAME) -> str:
    """A string of a capture, delimited: it is never an instruction."""
    return f"{OPENING}{cleaned(text, limit)}{CLOSING}"


def without_delimiters(text: str) -> str:
    """What a client read from an answer and gives back as an argument."""
    return text.removeprefix(OPENING).removesuffix(CLOSING)


def rendered(answer: ToolAnswer) -> str:
    """Compact JSON without keys that hold nothing."""
    return msgspec.json.encode(_filled(msgspec.to_builtins(answer))).decode()


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items() if item not in (None, (), [], {})}
    if isinstance(value, list | tuple):
        return [_filled(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def size_of(text: str) -> int:
    """What an answer weighs on the wire, without the envelope of the protocol."""
    return len(text.encode())


def paged(answer: ToolAnswer, rows: Sequence[Any], *, offset: int, tool: str, arguments: Mapping[str, Any]) -> str:
    """An answer with as many rows from `offset` on as fit, and how to ask for the rest.

    `arguments` are those of this call; the next one has another `offset`.
    """
    first = min(max(0, offset), len(rows))
    kept: list[Any] = []
    best = ""
    size = 0
    for row in rows[first : first + MOST_ROWS]:
        size += size_of(rendered(ToolAnswer(status="ok", result=row)))
        if kept and size > LARGEST_ANSWER_BYTES:
            break
        following = first + len(kept) + 1
        rest = following < len(rows)
        pointer = Pointer(tool=tool, arguments={**arguments, "offset": following}) if rest else None
        page = Page(offset=first, returned=len(kept) + 1, total=len(rows), next=pointer)
        text = rendered(replace(answer, rows=(*kept, row), page=page))
        if size_of(text) > LARGEST_ANSWER_BYTES:
            break
        kept.append(row)
        best = text
    if best:
        return best
    page = Page(offset=first, returned=0, total=len(rows), next=None)
    if first < len(rows):
        reason = f"row {first} alone is longer than an answer may be ({LARGEST_ANSWER_BYTES:,} bytes); select less"
        return rendered(replace(answer, status="abstained", reason=reason, page=page))
    return rendered(replace(answer, page=page))

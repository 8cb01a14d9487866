"""Which name of one capture is which of the other: the same text, the same kernel printed by another tool, the same but
for numbers and ids, or one that took another's place.

Each step looks only at what the steps before it left over, so a name that is there on both sides is never joined with
another one. Names that become equal are one row together.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.capture.kernels.match import normalise

MatchedBy = Literal["name", "demangling", "numbers", "place", "none"]

# A hash or an address: at least eight hexadecimal digits with one digit among them, or 0x in front.
_ID = re.compile(r"0x[0-9a-fA-F]+|\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b|(?<=_)(?=[0-9a-f]*\d)[0-9a-f]{8,}(?=_|\b)")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class NameMatch:
    """Names that mean the same; one side is empty where a name appeared or vanished."""

    base: tuple[str, ...]
    candidate: tuple[str, ...]
    by: MatchedBy


def without_numbers(name: str) -> str:
    """A name with every id and number replaced: tiles, template values, counters of generated names."""
    return _NUMBER.sub("#", _ID.sub("#", normalise(name)))


def match_names(
    base: Iterable[str],
    candidate: Iterable[str],
    *,
    place: Callable[[str, bool], object | None] | None = None,
) -> list[NameMatch]:
    """Every name of both sides, each in one match; matched ones first, in the order of `base`.

    `place` says what a name does where (`True`: in the base): two leftovers of which no other has the same place are
    treated as a rename. None means that it cannot be reported.
    """
    left, right = list(dict.fromkeys(base)), list(dict.fromkeys(candidate))
    steps: Sequence[tuple[MatchedBy, Callable[[str], str]]] = (
        ("name", lambda name: name),
        ("demangling", normalise),
        ("numbers", without_numbers),
    )
    found: list[NameMatch] = []
    for by, key in steps:
        matched, left, right = _step(left, right, by, key)
        found += matched
    if place is not None and left and right:
        matched, left, right = _renames(left, right, place)
        found += matched
    found += [NameMatch(base=(name,), candidate=(), by="none") for name in left]
    return found + [NameMatch(base=(), candidate=(name,), by="none") for name in right]


def _step(
    left: Sequence[str], right: Sequence[str], by: MatchedBy, key: Callable[[str], str]
) -> tuple[list[NameMatch], list[str], list[str]]:
    if not left or not right:
        return [], list(left), list(right)
    groups = _grouped(left, key), _grouped(right, key)
    both = [word for word in groups[0] if word in groups[1]]
    matched = [NameMatch(base=tuple(groups[0][w]), candidate=tuple(groups[1][w]), by=by) for w in both]
    taken = {name for match in matched for name in match.base}, {name for match in matched for name in match.candidate}
    return matched, [n for n in left if n not in taken[0]], [n for n in right if n not in taken[1]]


def _renames(
    left: Sequence[str], right: Sequence[str], place: Callable[[str, bool], object | None]
) -> tuple[list[NameMatch], list[str], list[str]]:
    groups = _placed(left, place, True), _placed(right, place, False)
    matched = [
        NameMatch(base=(names[0],), candidate=(groups[1][where][0],), by="place")
        for where, names in groups[0].items()
        if len(names) == 1 and len(groups[1].get(where, ())) == 1
    ]
    taken = {m.base[0] for m in matched}, {m.candidate[0] for m in matched}
    return matched, [n for n in left if n not in taken[0]], [n for n in right if n not in taken[1]]


def _grouped(names: Iterable[str], key: Callable[[str], str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(key(name), []).append(name)
    return groups


def _placed(
    names: Iterable[str], place: Callable[[str, bool], object | None], is_base: bool
) -> Mapping[object, list[str]]:
    groups: dict[object, list[str]] = {}
    for name in names:
        where = place(name, is_base)
        if where is not None:
            groups.setdefault(where, []).append(name)
    return groups

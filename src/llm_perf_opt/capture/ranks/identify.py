"""Whether several captures are ranks of one job or repetitions of one run, and which rank each is."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from llm_perf_opt.capture.timeline import Timeline

Kind = Literal["ranks", "repeats"]
RANKS: Kind = "ranks"
REPEATS: Kind = "repeats"
_RANK = re.compile(r"(?<![a-z])rank[-_.=]?(\d+)", re.IGNORECASE)
# As servers write the place of a process in each dimension of parallelism: `…-TP-0-DP-1.trace.json.gz`.
_PLACE = re.compile(r"(?<![A-Za-z])(?:DP|PP|TP|EP)-?(\d+)")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Understood:
    """`ranks` has one entry per capture, None where it has none; `how` says what decided."""

    kind: Kind
    ranks: tuple[int | None, ...]
    how: str


def identify(timelines: Sequence[Timeline], said: Kind | None = None) -> Understood:
    """What was reported decides; then what the captures say of themselves, their file names, and their hosts."""
    found = _look(timelines)
    if said is None or said == found.kind:
        return found
    how = f"given as --as {said}"
    if said == REPEATS:
        return Understood(kind=REPEATS, ranks=found.ranks, how=how)
    return Understood(kind=RANKS, ranks=_numbers(timelines), how=how)


def _look(timelines: Sequence[Timeline]) -> Understood:
    stated = tuple(t.origin.rank for t in timelines)
    known = [rank for rank in stated if rank is not None]
    if len(timelines) == 1:
        return Understood(kind=RANKS, ranks=stated, how="distributedInfo" if known else "one capture")
    if len(known) == len(stated):
        if len(set(known)) == len(known):
            return Understood(kind=RANKS, ranks=stated, how="distributedInfo of each trace")
        same = f"all say rank {known[0]}" if len(set(known)) == 1 else "a rank appears more than once"
        return Understood(kind=REPEATS, ranks=stated, how=f"distributedInfo: {same}")
    named = tuple(_named(t.source) for t in timelines)
    if None not in named and len(set(named)) == len(named):
        return Understood(kind=RANKS, ranks=named, how="file names")
    placed = _placed(timelines)
    if placed is not None:
        return Understood(kind=RANKS, ranks=placed, how="file names")
    hosts = [t.origin.host for t in timelines]
    if None not in hosts and len(set(hosts)) == len(hosts):
        return Understood(kind=RANKS, ranks=tuple(range(len(hosts))), how="each was recorded on another host")
    return Understood(kind=REPEATS, ranks=stated, how="nothing in them says that they are ranks")


def _named(source: str) -> int | None:
    """The rank that a file name states explicitly; a bare number may be that of a repetition."""
    matches = _RANK.findall(PurePath(source).name)
    return int(matches[-1]) if matches else None


def _placed(timelines: Sequence[Timeline]) -> tuple[int, ...] | None:
    """Ranks in the order of the places their file names say; None where not all say one, or two say the same."""
    places = [tuple(int(n) for n in _PLACE.findall(PurePath(t.source).name)) for t in timelines]
    if not all(places) or len(set(places)) < len(places):
        return None
    return tuple(sorted(places).index(place) for place in places)


def _numbers(timelines: Sequence[Timeline]) -> tuple[int, ...]:
    """Ranks where it is only known that they are: stated, named, the one number that differs, or their order."""
    for ranks in ([t.origin.rank for t in timelines], [_named(t.source) for t in timelines]):
        known = [rank for rank in ranks if rank is not None]
        if len(set(known)) == len(timelines):
            return tuple(known)
    numbers = [[int(n) for n in _NUMBER.findall(PurePath(t.source).name)] for t in timelines]
    if len({len(found) for found in numbers}) == 1:
        for column in zip(*numbers, strict=True):
            if len(set(column)) == len(timelines):
                return tuple(column)
    return tuple(range(len(timelines)))

"""Limit on the distinct kernel names of a capture: generated code can have one for each launch.

Tables, pages and documents have a row for each name. The names with the most time are kept; those of the rest that
differ only in numbers are counted as one kernel, and no nanosecond is lost.
"""

from collections import Counter
from dataclasses import replace

import numpy as np

from llm_perf_opt.capture.ranges import DIGITS, VARIABLE
from llm_perf_opt.capture.timeline import Timeline, distinct

# Captures of real models have tens to hundreds of names.
MOST_NAMES, MOST_FAMILIES = 2000, 500
REST = "(other kernels)"


def limit_kernel_names(timeline: Timeline) -> Timeline:
    """The timeline with at most this many kernel names; unchanged where it has no more."""
    kernels = timeline.kernels
    codes, place = np.unique(kernels.name, return_inverse=True)
    if len(codes) <= MOST_NAMES:
        return timeline
    total = np.bincount(place, weights=kernels.end_ns - kernels.start_ns)
    by_time = np.argsort(-total, kind="stable")
    rare = by_time[MOST_NAMES:]
    families = [DIGITS.sub(VARIABLE, timeline.names[code]) for code in codes[rare].tolist()]
    kept = _largest(families, total[rare].tolist())
    families = [family if family in kept else REST for family in families]
    names = list(timeline.names)
    frequent = {names[code]: code for code in codes[by_time[:MOST_NAMES]].tolist()}
    known = {**{family: len(names) + number for number, family in enumerate(dict.fromkeys(families))}, **frequent}
    names += dict.fromkeys(families)
    recoded = codes.copy()
    recoded[rare] = [known[family] for family in families]
    # What no event is called any more is not inspected again.
    for code in np.setdiff1d(codes[rare], _names_of_others(timeline)).tolist():
        names[code] = REST
    note = (
        f"{len(codes):,} distinct kernel names: the {MOST_NAMES:,} with the most time are listed, "
        "the others are counted together where they differ only in numbers"
    )
    return replace(
        timeline,
        names=tuple(names),
        kernels=replace(kernels, name=recoded[place].astype(kernels.name.dtype)),
        notes=(*timeline.notes, note),
    )


def _largest(families: list[str], total_ns: list[float]) -> set[str]:
    """The families with the most time."""
    found: Counter[str] = Counter()
    for family, time_ns in zip(families, total_ns, strict=True):
        found[family] += int(time_ns)
    return {family for family, _ in found.most_common(MOST_FAMILIES)}


def _names_of_others(timeline: Timeline) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """The codes of names that events besides kernels have."""
    tables = (
        *(timeline.copies, timeline.graphs, timeline.calls, timeline.ranges),
        *(timeline.operators, timeline.frames, timeline.system, timeline.pauses),
    )
    return np.unique(np.concatenate([distinct(table.name).astype(np.int64) for table in tables]))

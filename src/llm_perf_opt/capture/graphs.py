"""Kernels that CUDA or HIP graphs replay, given to the operators and modules that put them there.

A replay is one call on the host, so its kernels belong to no operator. Another trace of the same program says to which
they would: one recorded while the graph was captured, whose launches become the graph's nodes in the same order, or one
of a run without graphs, in which the same kernels follow each other.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Ints, innermost, nest
from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.timeline import HostEvents, Timeline

_REPLAY = re.compile("GraphLaunch")
_BEGIN, _END = re.compile("StreamBeginCapture"), re.compile("StreamEndCapture")
_LAUNCH = re.compile("Launch(Cooperative)?Kernel")
# Sequences that differ from all others are matched one by one; a program has few graphs.
MOST_SEQUENCES = 64
KERNELS_NAMED = 3
NO_OPERATOR = "(outside operators)"
MODULE_RANGE = "nn.Module: "


@dataclass(frozen=True, kw_only=True)
class GraphRow:
    """Kernels of all replays that one operator in one module put into a graph; `module` is None where none is known."""

    operator: str
    module: str | None
    kernel_count: int
    time_ns: int
    kernels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class GraphReplays:
    """Of one capture. `graphs` counts different sequences of kernels; `how` says what named them in `reference`."""

    source: str
    reference: str
    how: str
    replays: int
    graphs: int
    kernel_count: int
    kernel_ns: int
    matched_count: int
    matched_ns: int
    rows: tuple[GraphRow, ...]


@dataclass(frozen=True, kw_only=True)
class GraphReference:
    """Launches of a trace in order. A place is an operator and a module; of captured launches only places are known."""

    source: str
    eager: tuple[str, ...]
    eager_places: tuple[tuple[str, str | None], ...]
    captures: tuple[tuple[tuple[str, str | None], ...], ...]


def graph_reference(timeline: Timeline, modules: HostEvents) -> GraphReference:
    """What a trace knows of launches outside replays: those of kernels, and those of each capture."""
    calls, kernels = timeline.calls, timeline.kernels
    known = np.flatnonzero(kernels.call >= 0)
    known = known[~np.isin(calls.name[kernels.call[known]], _codes(timeline, _REPLAY))]
    known = known[np.lexsort((kernels.start_ns[known], calls.start_ns[kernels.call[known]]))]
    regions = list(_capture_launches(timeline))
    every = np.concatenate([kernels.call[known], *regions]).astype(np.int64)
    places = _places(timeline, modules, every)
    count, captures = len(known), []
    for region in regions:
        captures.append(tuple(places[count : count + len(region)]))
        count += len(region)
    return GraphReference(
        source=timeline.source,
        eager=tuple(timeline.names[int(n)] for n in kernels.name[known]),
        eager_places=tuple(places[: len(known)]),
        captures=tuple(captures),
    )


def attribute_replays(timeline: Timeline, reference: GraphReference) -> GraphReplays | None:
    """The kernels of a capture's replays by operator and module; None where it replays no graph."""
    groups, replays = _sequences(timeline)
    if not groups:
        return None
    kernels = timeline.kernels
    length = kernels.end_ns - kernels.start_ns
    found: dict[tuple[str, str | None], list[int]] = {}
    names: dict[tuple[str, str | None], Counter[int]] = {}
    ways: Counter[str] = Counter()
    total = matched = total_ns = matched_ns = 0
    for number, rows in enumerate(groups):
        sequence = [timeline.names[int(n)] for n in kernels.name[rows[0]]]
        times = length[rows].sum(axis=0)
        total, total_ns = total + rows.size, total_ns + int(times.sum())
        how, places = _match(sequence, reference) if number < MOST_SEQUENCES else ("", [None] * len(sequence))
        for at, place in enumerate(places):
            if place is None:
                continue
            entry = found.setdefault(place, [0, 0])
            entry[0] += len(rows)
            entry[1] += int(times[at])
            names.setdefault(place, Counter())[int(kernels.name[rows[0][at]])] += int(times[at])
            matched, matched_ns = matched + len(rows), matched_ns + int(times[at])
        ways[how] += sum(place is not None for place in places)
    table = [
        GraphRow(
            operator=operator,
            module=module,
            kernel_count=count,
            time_ns=time_ns,
            kernels=tuple(
                dict.fromkeys(
                    short_kernel_name(timeline.names[n]) for n, _ in names[operator, module].most_common(KERNELS_NAMED)
                )
            ),
        )
        for (operator, module), (count, time_ns) in found.items()
    ]
    return GraphReplays(
        source=timeline.source,
        reference=reference.source,
        how=ways.most_common(1)[0][0] if matched else "nothing in it fits the replays",
        replays=replays,
        graphs=len(groups),
        kernel_count=total,
        kernel_ns=total_ns,
        matched_count=matched,
        matched_ns=matched_ns,
        rows=tuple(sorted(table, key=lambda row: (-row.time_ns, row.operator, row.module or ""))),
    )


def _codes(timeline: Timeline, pattern: re.Pattern[str]) -> Ints:
    return np.array([code for code, name in enumerate(timeline.names) if pattern.search(name)], np.int64)


def _sequences(timeline: Timeline) -> tuple[list[Ints], int]:
    """Replays with the same kernels in the same order as rows of kernel indices, most time first; and all replays."""
    calls, kernels = timeline.calls, timeline.kernels
    known = np.flatnonzero(kernels.call >= 0)
    known = known[np.isin(calls.name[kernels.call[known]], _codes(timeline, _REPLAY))]
    if not len(known):
        return [], 0
    known = known[np.lexsort((kernels.start_ns[known], kernels.call[known]))]
    replays = np.split(known, np.flatnonzero(np.diff(kernels.call[known])) + 1)
    groups: dict[bytes, list[Ints]] = {}
    for one in replays:
        groups.setdefault(kernels.name[one].astype(np.int64).tobytes(), []).append(one)
    length = kernels.end_ns - kernels.start_ns
    rows = [np.stack(group) for group in groups.values()]
    return sorted(rows, key=lambda group: -int(length[group].sum())), len(replays)


def _capture_launches(timeline: Timeline) -> Iterator[Ints]:
    """The launch calls between the beginning and the end of each capture, on its thread."""
    calls = timeline.calls
    begins = np.flatnonzero(np.isin(calls.name, _codes(timeline, _BEGIN)))
    ends = np.flatnonzero(np.isin(calls.name, _codes(timeline, _END)))
    launches = np.flatnonzero(np.isin(calls.name, _codes(timeline, _LAUNCH)))
    for begin in begins[np.argsort(calls.start_ns[begins], kind="stable")].tolist():
        start, thread = calls.start_ns[begin], calls.thread[begin]
        later = ends[(calls.thread[ends] == thread) & (calls.start_ns[ends] > start)]
        if len(later):
            inside = (calls.start_ns[launches] > start) & (calls.start_ns[launches] < calls.start_ns[later].min())
            mine = launches[inside & (calls.thread[launches] == thread)]
            yield mine[np.argsort(calls.start_ns[mine], kind="stable")]


def _places(timeline: Timeline, modules: HostEvents, call: Ints) -> list[tuple[str, str | None]]:
    """The innermost operator and module around each call."""
    found = []
    for events in (timeline.operators, modules):
        columns = (events.thread, events.start_ns, events.end_ns)
        at = innermost(nest(*columns), *columns, timeline.calls.thread[call], timeline.calls.start_ns[call])
        found.append([timeline.names[int(events.name[i])] if i >= 0 else None for i in at.tolist()])
    return [
        (operator or NO_OPERATOR, None if module is None else module.removeprefix(MODULE_RANGE))
        for operator, module in zip(*found, strict=True)
    ]


def _match(sequence: Sequence[str], reference: GraphReference) -> tuple[str, Sequence[tuple[str, str | None] | None]]:
    """By the capture with as many launches, else by the kernels that follow each other without a graph."""
    fitting = [capture for capture in reference.captures if len(capture) == len(sequence)]
    if fitting and len(set(fitting)) == 1:
        return "the order of launches while the graph was captured", fitting[0]
    partners = _align(sequence, reference.eager)
    places = [None if i < 0 else reference.eager_places[i] for i in partners]
    if fitting and 2 * sum(place is not None for place in places) < len(sequence):
        return "the order of launches of the first of several captures as long", fitting[0]
    return "kernels of the same names in the same order, run without a graph", places


def _align(sequence: Sequence[str], eager: Sequence[str]) -> list[int]:
    """For each kernel of a replay its partner among those run without a graph, or -1."""
    size = len(sequence)
    if not eager:
        return [-1] * size
    for start in range(len(eager) - size, -1, -1):
        # The last occurrence: one-time work is over by then.
        if eager[start] == sequence[0] and tuple(eager[start : start + size]) == tuple(sequence):
            return list(range(start, start + size))
    # Here, for few captures come with another of what their graphs replay.
    from difflib import SequenceMatcher

    start, stop = _likeliest(sequence, eager)
    partners = [-1] * size
    matcher = SequenceMatcher(None, eager[start:stop], sequence, autojunk=False)
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            partners[block.b + offset] = start + block.a + offset
    return partners


def _likeliest(sequence: Sequence[str], eager: Sequence[str]) -> tuple[int, int]:
    """The window, twice as long as the sequence, that shares most kernels with it."""
    wanted, step = Counter(sequence), max(len(sequence) // 2, 1)
    best, place = -1, (0, len(eager))
    for start in range(0, max(len(eager) - len(sequence), 0) + 1, step):
        stop = min(start + 2 * len(sequence), len(eager))
        shared = sum((Counter(eager[start:stop]) & wanted).values())
        if shared >= best:
            best, place = shared, (start, stop)
    return place

"""What the host does before a process's first GPU work and after its last: busy and idle times begin and end there.

Much happens before a program's first kernel that no step pays again: imports, loading, the start of the profiler. So a
range counts that holds the kernel itself, a request or a step that began long before it, and no other. A torch trace
without such a range has operators and Python frames of the thread that launches; only they are counted then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from llm_perf_opt.capture.idle import LONG_GAP_NS, IdleMap
from llm_perf_opt.capture.intervals import Flags, nest, union
from llm_perf_opt.capture.ranges import warmup_ranges
from llm_perf_opt.capture.timeline import Activities, HostEvents, Timeline, distinct, grouped, join, take
from llm_perf_opt.diagnosis.gaps.gap_verdict import HostCost, Verdict, means, readable
from llm_perf_opt.diagnosis.gaps.host_gaps import FRAME, OPERATOR, RANGE, HostRecord
from llm_perf_opt.diagnosis.gaps.startup_gaps import StartUp, find_start_up

When = Literal["before", "after"]
WHEN: tuple[When, ...] = ("before", "after")
# Less than this of a capture and its edges is the way into a step and out of it.
MIN_EDGES = 0.1
# One-time costs lie before the first kernel in every program, and are reported only where they exceed all the
# rest.
MIN_SETUP = 0.5
# Operators before fewer kernels than these say nothing of a program.
FEW_KERNELS = 10
# What covers this much of an edge says what the host did there.
TELLS = 0.5
SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class HostPart:
    """Ranges, operators or Python frames of one name, and their time."""

    kind: str
    name: str
    time_ns: int


@dataclass(frozen=True, kw_only=True)
class HostEdge:
    """Time of the host before the first GPU work of a process or after its last.

    `range_name` is the range that holds it and the kernel next to it, None where only operators and frames name it;
    `is_whole`: that one instance holds all GPU work, and takes `range_ns`. `parts` are what takes most of the time.
    `startup_ns` of it are start-up by what the runtime does (CUDA and its libraries begin, modules are loaded), and
    `startup_cost` is most of that.
    """

    when: When
    length_ns: int
    range_name: str | None
    is_whole: bool
    range_ns: int
    verdict: Verdict
    parts: tuple[HostPart, ...]
    startup_ns: int = 0
    startup_cost: HostCost | None = None

    @property
    def sets_up(self) -> bool:
        """Whether a longer run would not pay it again, by what is known of it."""
        set_up_ns = sum(part.time_ns for part in self.parts if means(part.name, "sets_up"))
        return (
            self.verdict in ("compilation", "new_shapes") or max(set_up_ns, self.startup_ns) >= TELLS * self.length_ns
        )

    @property
    def waits(self) -> bool:
        """Whether the host itself waits there: what for may be a request that no client sent."""
        return self.verdict in ("host_wait", "rank_wait")


def find_edges(
    captures: Sequence[tuple[Timeline, Mapping[int, IdleMap]]],
    *,
    span_ns: int,
    long_gaps_ns: int,
    run_on: frozenset[str] = frozenset(),
    startups: Sequence[StartUp] | None = None,
) -> tuple[HostEdge, ...]:
    """The edges of captures, where they are much of them; those of repetitions are added up.

    `run_on` are ranges after which the GPU works on: of several consecutive ones, the host's time is hidden in all but
    the first. `startups` are those of the captures, where they are known already.

    Where as much passes between the first work and the last in which the host does other things, that speaks for the
    program, and nothing is found here. Neither is it in a capture of several processes with GPU work: one of them may
    work while another does not.
    """
    found = []
    for index, (timeline, maps) in enumerate(captures):
        work = join([timeline.kernels, timeline.graphs])
        owners = distinct(work.process)
        if bool((work.call < 0).any()):
            work = take(work, np.flatnonzero(work.call >= 0))
        if len(owners) == 1 and len(work):
            ranges = timeline.ranges
            runs_on = [code for code in distinct(ranges.name).tolist() if timeline.names[code] in run_on]
            counts = ~warmup_ranges(timeline) & ~np.isin(ranges.name, runs_on)
            startup = find_start_up(timeline, maps) if startups is None else startups[index]
            threads = np.zeros(len(timeline.thread_process), np.bool_)
            threads[timeline.calls.thread[work.call]] = True
            edges = [_edge(timeline, maps[int(owners[0])], work, when, threads, counts, startup) for when in WHEN]
            # What the profiler does, a run without it does not.
            found += [edge for edge in edges if edge is not None and edge.verdict != "profiler"]
    setup_ns = sum(edge.length_ns for edge in found if edge.sets_up)
    if setup_ns < MIN_SETUP * (span_ns + setup_ns):
        found = [edge for edge in found if not edge.sets_up]
    total = sum(edge.length_ns for edge in found)
    if total <= long_gaps_ns or total < MIN_EDGES * (span_ns + total):
        return ()
    return tuple(_merged(same, len(captures)) for when in WHEN if (same := [e for e in found if e.when == when]))


def _merged(edges: Sequence[HostEdge], captures: int) -> HostEdge:
    """The edges of several captures on one side as one."""
    longest = max(edges, key=lambda edge: edge.length_ns)
    if captures == 1:
        return longest
    parts: dict[tuple[str, str], int] = {}
    for part in (part for edge in edges for part in edge.parts):
        parts[part.kind, part.name] = parts.get((part.kind, part.name), 0) + part.time_ns
    ordered = sorted(parts.items(), key=lambda item: -item[1])[:SHOWN]
    is_one = len(edges) == captures and len({edge.range_name for edge in edges}) == 1
    return replace(
        longest,
        length_ns=sum(edge.length_ns for edge in edges),
        is_whole=is_one and all(edge.is_whole for edge in edges),
        range_ns=sum(edge.range_ns for edge in edges),
        startup_ns=sum(edge.startup_ns for edge in edges),
        parts=tuple(HostPart(kind=kind, name=name, time_ns=time_ns) for (kind, name), time_ns in ordered),
    )


def _edge(
    timeline: Timeline, one: IdleMap, work: Activities, when: When, threads: Flags, counts: Flags, startup: StartUp
) -> HostEdge | None:
    """One side of a capture; `threads` launched the work, `counts` are the ranges that may hold it."""
    calls, ranges, is_first = timeline.calls, timeline.ranges, when == "before"
    call = int(work.call[np.argmin(work.start_ns) if is_first else np.argmax(work.end_ns)])
    at_ns = int(calls.start_ns[call])
    process = timeline.thread_process[calls.thread[call]]
    launches = threads[ranges.thread]
    launches |= ranges.process_wide & (timeline.thread_process[ranges.thread] == process)
    around = np.flatnonzero(counts & launches & (ranges.start_ns <= at_ns) & (ranges.end_ns > at_ns))
    outer = None
    if len(around):
        outer = around[np.argmin(ranges.start_ns[around]) if is_first else np.argmax(ranges.end_ns[around])]
        reach_ns = int(ranges.start_ns[outer] if is_first else ranges.end_ns[outer])
    elif len(work) < FEW_KERNELS:
        return None
    else:
        reach_ns = _reach(timeline, threads, is_first=is_first)
    start_ns, end_ns = (reach_ns, one.span[0]) if is_first else (one.span[1], reach_ns)
    if end_ns - start_ns < LONG_GAP_NS:
        return None
    inner = ranges.as_events
    recorded = {
        kind: _outermost(timeline, events, (start_ns, end_ns), threads, None if kind == OPERATOR else at_ns)
        for kind, events in ((RANGE, inner), (OPERATOR, timeline.operators), (FRAME, timeline.frames))
    }
    host_events = [recorded[kind] for kind in (OPERATOR, FRAME)]
    known_ns = union(
        np.concatenate([e.start_ns for e in host_events]), np.concatenate([e.end_ns for e in host_events])
    ).total
    length_ns = end_ns - start_ns if outer is not None else known_ns
    if length_ns < LONG_GAP_NS:
        return None
    record = HostRecord(timeline, (end_ns - start_ns) // 2)
    spent = startup.once(threads).covered_before(np.array([start_ns, end_ns]))
    started = startup.costliest(start_ns, end_ns, threads)
    is_whole = outer is not None and ranges.start_ns[outer] <= one.span[0] and ranges.end_ns[outer] >= one.span[1]
    return HostEdge(
        when=when,
        length_ns=length_ns,
        range_name=None if outer is None else timeline.names[ranges.name[outer]],
        is_whole=bool(is_whole),
        range_ns=0 if outer is None else int(ranges.end_ns[outer] - ranges.start_ns[outer]),
        verdict=record.during(start_ns, end_ns, int(calls.thread[call])).verdict,
        parts=_parts(timeline.names, recorded, length_ns),
        startup_ns=int(spent[1] - spent[0]),
        startup_cost=None if started is None else started[0],
    )


def _reach(timeline: Timeline, threads: Flags, *, is_first: bool) -> int:
    """The start of the first, or the end of the last, operator or frame of some threads; 0 where there is none."""
    found = []
    for events in (timeline.operators, timeline.frames):
        mine = threads[events.thread]
        if mine.any():
            found.append(int(events.start_ns[mine].min() if is_first else events.end_ns[mine].max()))
    return 0 if not found else min(found) if is_first else max(found)


def _outermost(
    timeline: Timeline, events: HostEvents, window: tuple[int, int], threads: Flags, around_ns: int | None
) -> HostEvents:
    """Events of some threads inside a window, cut to it, that lie in no other; without the profiler's own.

    Those around a moment are left out: a frame that also launches the work does not explain the time before.
    """
    start_ns, end_ns = window
    keeps = (events.start_ns < end_ns) & (events.end_ns > start_ns) & (events.name >= 0)
    keeps &= threads[events.thread]
    if around_ns is not None:
        keeps &= (events.start_ns > around_ns) | (events.end_ns <= around_ns)
    picked = np.flatnonzero(keeps)
    tree = nest(events.thread[picked], events.start_ns[picked], events.end_ns[picked])
    picked = picked[tree.parent < 0]
    own = np.zeros(len(timeline.names), np.bool_)
    own[[code for code in distinct(events.name[picked]).tolist() if means(timeline.names[code], "profiles")]] = True
    picked = picked[~own[events.name[picked]]]
    return HostEvents(
        start_ns=np.maximum(events.start_ns[picked], start_ns),
        end_ns=np.minimum(events.end_ns[picked], end_ns),
        name=events.name[picked],
        thread=events.thread[picked],
    )


def _parts(names: Sequence[str], recorded: Mapping[str, HostEvents], length_ns: int) -> tuple[HostPart, ...]:
    """The names with most time, of ranges where these cover half of it, else of the kind that covers most."""
    covered = {kind: union(events.start_ns, events.end_ns).total for kind, events in recorded.items()}
    kind = RANGE if covered[RANGE] >= TELLS * length_ns else max(covered, key=covered.__getitem__)
    events = recorded[kind]
    codes, index = grouped(events.name)
    time_ns = np.bincount(index, weights=events.end_ns - events.start_ns, minlength=len(codes))
    order = np.argsort(-time_ns, kind="stable")[:SHOWN]
    return tuple(
        HostPart(kind=kind, name=readable(names[int(codes[i])]), time_ns=int(time_ns[i])) for i in order.tolist()
    )

"""Where the time of a program goes that did nothing on a GPU: operators, and what lies outside of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from llm_perf_opt.capture.intervals import Intervals, nest, union, without
from llm_perf_opt.capture.timeline import HostEvents, Timeline, grouped
from llm_perf_opt.diagnosis.gaps.gap_owners import owner_of
from llm_perf_opt.diagnosis.gaps.gap_verdict import Verdict, judge, readable

SHOWN = 5
LOADS: Verdict = "data_loading"
# Frames of the interpreter itself are less informative than their caller.
_BUILT_IN = "<built-in"


@dataclass(frozen=True, kw_only=True)
class OutsideRow:
    """Ranges or Python frames of one name: all their time, and the part neither in an operator nor in another of
    their kind inside of them.
    """

    name: str
    own_ns: int
    whole_ns: int


@dataclass(frozen=True, kw_only=True)
class HostAlone:
    """The thread with most time in operators, from the first event of its capture to the last.

    `loading_ns` is the time in which it reads and prepares data, with all operators in it, and `loading_owner` what it
    is mostly in then, the innermost first. `operators_ns` is that of other operators; `ranges` and `frames` are those
    with most time of their own outside of both.
    """

    span_ns: int
    operators_ns: int
    ranges: tuple[OutsideRow, ...]
    frames: tuple[OutsideRow, ...]
    loading_ns: int = 0
    loading_owner: tuple[str, ...] = ()


def sum_host_alone(timelines: Sequence[Timeline]) -> HostAlone | None:
    """Of all captures together, None where no operator was recorded."""
    parts = [_host_alone(timeline) for timeline in timelines if len(timeline.operators)]
    if not parts:
        return None
    return HostAlone(
        span_ns=sum(part.span_ns for part in parts),
        operators_ns=sum(part.operators_ns for part in parts),
        ranges=_together([row for part in parts for row in part.ranges]),
        frames=_together([row for part in parts for row in part.frames]),
        loading_ns=sum(part.loading_ns for part in parts),
        loading_owner=max(parts, key=lambda part: part.loading_ns).loading_owner,
    )


def _together(rows: Sequence[OutsideRow]) -> tuple[OutsideRow, ...]:
    """Those of one name as one, the most time first."""
    found: dict[str, OutsideRow] = {}
    for row in rows:
        same = found.get(row.name, OutsideRow(name=row.name, own_ns=0, whole_ns=0))
        found[row.name] = replace(same, own_ns=same.own_ns + row.own_ns, whole_ns=same.whole_ns + row.whole_ns)
    return tuple(sorted(found.values(), key=lambda row: -row.own_ns))


def _host_alone(timeline: Timeline) -> HostAlone:
    operators, ranges = timeline.operators, timeline.ranges
    named = ranges.as_events
    every = [events for events in (operators, named, timeline.frames) if len(events)]
    start_ns = min(int(events.start_ns.min()) for events in every)
    end_ns = max(int(events.end_ns.max()) for events in every)
    time_by_thread = np.bincount(operators.thread, weights=operators.end_ns - operators.start_ns)
    thread = int(np.argmax(time_by_thread))
    mine = operators.thread == thread
    loading, owner = _loading(timeline, thread)
    busy = without(union(operators.start_ns[mine], operators.end_ns[mine]), loading)
    outside = without(Intervals(start=np.array([start_ns]), end=np.array([end_ns])), loading)
    outside = without(outside, busy)
    built_in = [code for code, name in enumerate(timeline.names) if name.startswith(_BUILT_IN)]
    frames = timeline.frames
    own_frames = np.flatnonzero((frames.thread == thread) & ~np.isin(frames.name, built_in))
    opened = np.flatnonzero((ranges.thread == thread) & ~ranges.process_wide)
    return HostAlone(
        span_ns=end_ns - start_ns,
        operators_ns=busy.total,
        ranges=_rows(timeline.names, named.take(opened), outside),
        frames=_rows(timeline.names, frames.take(own_frames), outside),
        loading_ns=loading.total,
        loading_owner=owner,
    )


def _loading(timeline: Timeline, thread: int) -> tuple[Intervals, tuple[str, ...]]:
    """When a thread reads and prepares data, by its ranges and frames, and what owns the longest of these times."""
    loads = np.array([judge((name,)).verdict == LOADS for name in timeline.names], np.bool_)
    frames, ranges = timeline.frames, timeline.ranges.as_events
    found = [events.take((events.thread == thread) & loads[events.name]) for events in (frames, ranges)]
    start_ns, end_ns = (
        np.concatenate(columns) for columns in zip(*((e.start_ns, e.end_ns) for e in found), strict=True)
    )
    if not len(start_ns):
        return Intervals(start=start_ns, end=end_ns), ()
    longest = int(np.argmax(end_ns - start_ns))
    begun, ended = int(start_ns[longest]), int(end_ns[longest])
    inside = np.flatnonzero((frames.thread == thread) & (frames.start_ns >= begun) & (frames.end_ns <= ended))
    code = int(np.concatenate([events.name for events in found])[longest])
    owner = owner_of(timeline.names, frames, inside, begun, ended)
    names = dict.fromkeys(name for name in (*owner.chain[:1], owner.user_code) if name is not None)
    return union(start_ns, end_ns), tuple(names) or (readable(timeline.names[code]),)


def _rows(names: Sequence[str], events: HostEvents, outside: Intervals) -> tuple[OutsideRow, ...]:
    """By name, those with most of a time that none of the others inside of them has."""
    spent = outside.covered_before(events.end_ns) - outside.covered_before(events.start_ns)
    tree = nest(events.thread, events.start_ns, events.end_ns)
    inner = tree.parent >= 0
    own = spent - np.bincount(tree.parent[inner], weights=spent[inner], minlength=len(spent))
    codes, index = grouped(events.name)
    by_name = np.bincount(index, weights=own, minlength=len(codes))
    found = []
    for place in np.argsort(-by_name, kind="stable")[:SHOWN].tolist():
        same = index == place
        whole_ns = union(events.start_ns[same], events.end_ns[same]).total
        name = readable(names[int(codes[place])])
        found.append(OutsideRow(name=name, own_ns=int(by_name[place]), whole_ns=whole_ns))
    return tuple(found)

"""A small window of a capture for drawing: one prefill, a few decode steps, their launches and kernels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec import UNSET, UnsetType

from llm_perf_opt.analysis.kernels.names import CLASSES, classify_kernel, short_kernel_name
from llm_perf_opt.analysis.timeline.idle import capture_window
from llm_perf_opt.analysis.timeline.intervals import Flags, Ints
from llm_perf_opt.analysis.timeline.ranges import warmup_ranges
from llm_perf_opt.analysis.timeline.timeline import Codes, HostEvents, Timeline, join
from llm_perf_opt.core.names import DECODE_STEP, PREFILL

MAX_EVENTS = 20_000
DECODE_STEPS = 4
# A hair of context on both sides, so that the first launch and the last kernel are seen whole.
MARGIN = 0.01
LAUNCH, WAIT, CALL = "launch", "synchronise", "runtime call"

# Start and end in ns since the window began, the lane, the index of the name; of a kernel also that of its class.
Event = tuple[int, int, int, int]
KernelEvent = tuple[int, int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class TimelineWindow:
    """What `timeline.json` holds: the events of a few steps.

    Lanes of calls index `threads`, those of kernels `streams`. `memory` is by device `(time, bytes)`, of a torch trace
    alone.
    """

    schema_version: Literal[1] = 1
    clock: str = "ns"
    kind: str
    source: str
    window_ns: tuple[int, int]
    classes: tuple[str, ...]
    threads: tuple[str, ...]
    streams: tuple[str, ...]
    ranges: tuple[Event, ...]
    calls: tuple[Event, ...]
    kernels: tuple[KernelEvent, ...]
    names: tuple[str, ...]
    left_out: int = 0
    notes: tuple[str, ...] = ()
    memory: Mapping[str, tuple[tuple[int, int], ...]] | UnsetType = UNSET


def timeline_window(
    timeline: Timeline,
    operators: HostEvents | None = None,
    *,
    max_events: int = MAX_EVENTS,
    decode_steps: int = DECODE_STEPS,
) -> TimelineWindow:
    """The last measured prefill and the steps behind it."""
    tables = [timeline.kernels.start_ns, timeline.calls.start_ns]
    starts = np.sort(np.concatenate([*tables, *([operators.start_ns] if operators is not None else [])]))
    start, end, left_out = choose_window(timeline, starts, max_events=max_events, decode_steps=decode_steps)
    names: Codes[str] = Codes()
    kernels, streams = _kernels(timeline, start, end, names)
    calls, threads = _calls(timeline, operators, start, end, names)
    ranges = _ranges(timeline, start, end, names)
    return TimelineWindow(
        kind=timeline.kind,
        source=timeline.source,
        window_ns=(start, end),
        classes=tuple(CLASSES),
        threads=tuple(threads),
        streams=tuple(streams),
        ranges=tuple(ranges),
        calls=tuple(calls),
        kernels=tuple(kernels),
        names=tuple(names),
        left_out=left_out,
    )


def choose_window(timeline: Timeline, starts: Ints, *, max_events: int, decode_steps: int) -> tuple[int, int, int]:
    """Start and end, and the events after it: the last measured prefill with the decode steps behind it that fit."""
    prefill, steps = _spans(timeline, PREFILL), _spans(timeline, DECODE_STEP)
    first, last = capture_window(timeline)
    if not len(prefill) and not len(steps):
        return _without_ranges(starts, first, last, max_events)
    begin = int(prefill[-1][0]) if len(prefill) else int(steps[0][0])
    ends = [int(prefill[-1][1])] if len(prefill) else []
    ends += [int(e) for s, e in steps if s >= begin][:decode_steps]
    at = int(np.searchsorted(starts, begin))
    while len(ends) > 1 and int(np.searchsorted(starts, ends[-1])) - at > max_events:
        ends.pop()
    margin = int(MARGIN * (ends[-1] - begin))
    start, end = max(begin - margin, first), min(ends[-1] + margin, last)
    inside = int(np.searchsorted(starts, end)) - int(np.searchsorted(starts, start))
    if inside > max_events:
        end = int(starts[int(np.searchsorted(starts, start)) + max_events])
    return start, end, len(starts) - int(np.searchsorted(starts, end))


def _without_ranges(starts: Ints, first: int, last: int, max_events: int) -> tuple[int, int, int]:
    """The middle of the capture, where one-time costs are over."""
    if len(starts) <= max_events:
        return first, last, 0
    middle = (len(starts) - max_events) // 2
    return int(starts[middle]), int(starts[middle + max_events]), len(starts) - middle - max_events


def _spans(timeline: Timeline, name: str) -> Ints:
    """Start and end of the measured ranges of a name, in order; warm-up left out."""
    codes = [i for i, text in enumerate(timeline.names) if text == name]
    keep = np.isin(timeline.ranges.name, codes) & ~warmup_ranges(timeline)
    spans = np.stack([timeline.ranges.start_ns[keep], timeline.ranges.end_ns[keep]], axis=1)
    return spans[np.argsort(spans[:, 0], kind="stable")]


def _codes(names: Codes[str], texts: Sequence[str], index: Ints) -> list[int]:
    """The codes in `names` of texts that have others in the timeline."""
    found = {int(i): names[texts[int(i)]] for i in np.unique(index)}
    return [found[int(i)] for i in index]


def _inside(start_ns: Ints, end_ns: Ints, start: int, end: int) -> Flags:
    return (start_ns < end) & (end_ns > start)


def _cut(values: Ints, start: int, end: int) -> list[int]:
    """Times since the window began, those outside moved to its edge."""
    return [int(v) for v in np.clip(values, start, end) - start]


def _kernels(timeline: Timeline, start: int, end: int, names: Codes[str]) -> tuple[list[KernelEvent], list[str]]:
    work = join([timeline.kernels, timeline.graphs, timeline.copies])
    pick = np.flatnonzero(_inside(work.start_ns, work.end_ns, start, end))
    pick = pick[np.argsort(work.start_ns[pick], kind="stable")]
    short = {int(i): short_kernel_name(timeline.names[int(i)]) for i in np.unique(work.name[pick])}
    kinds = {i: CLASSES.index(classify_kernel(timeline.names[i])) for i in short}
    lanes, streams = _lanes(work.device[pick], work.start_ns[pick], work.end_ns[pick])
    rows = zip(
        _cut(work.start_ns[pick], start, end), _cut(work.end_ns[pick], start, end), lanes, work.name[pick], strict=True
    )
    return [(s, e, lane, names[short[int(n)]], kinds[int(n)]) for s, e, lane, n in rows], streams


def _lanes(device: Ints, start_ns: Ints, end_ns: Ints) -> tuple[list[int], list[str]]:
    """A row for every kernel of a device that runs while another does; most captures need one."""
    free: list[tuple[int, int]] = []
    labels: list[str] = []
    found = []
    for owner, start, end in zip(device.tolist(), start_ns.tolist(), end_ns.tolist(), strict=True):
        lane = next((i for i, (d, busy) in enumerate(free) if d == owner and busy <= start), None)
        if lane is None:
            lane = len(free)
            free.append((owner, end))
            labels.append(f"device {owner}" + (", overlapping" if any(d == owner for d, _ in free[:-1]) else ""))
        free[lane] = (owner, end)
        found.append(lane)
    return found, labels


def _calls(
    timeline: Timeline, operators: HostEvents | None, start: int, end: int, names: Codes[str]
) -> tuple[list[Event], list[str]]:
    """Runtime calls, and operators where the capture has them."""
    calls = timeline.calls
    pick = np.flatnonzero(_inside(calls.start_ns, calls.end_ns, start, end))
    pick = pick[np.argsort(calls.start_ns[pick], kind="stable")]
    seen = _operators_inside(operators, start, end)
    used = [calls.thread[pick]] + ([operators.thread[seen]] if operators is not None else [])
    threads = [int(t) for t in np.unique(np.concatenate(used))]
    kind = np.where(calls.waits[pick], 1, np.where(calls.launches[pick], 0, 2))
    codes = [names[LAUNCH], names[WAIT], names[CALL]]
    rows = zip(
        _cut(calls.start_ns[pick], start, end),
        _cut(calls.end_ns[pick], start, end),
        calls.thread[pick],
        kind,
        strict=True,
    )
    found = [(s, e, threads.index(int(t)), codes[int(k)]) for s, e, t, k in rows]
    if operators is not None:
        labels = _codes(names, timeline.names, operators.name[seen])
        begin, stop = _cut(operators.start_ns[seen], start, end), _cut(operators.end_ns[seen], start, end)
        own = zip(begin, stop, operators.thread[seen], labels, strict=True)
        found += [(s, e, threads.index(int(t)), n) for s, e, t, n in own]
    return found, [f"thread {t}" for t in threads]


def _operators_inside(operators: HostEvents | None, start: int, end: int) -> Ints:
    if operators is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(_inside(operators.start_ns, operators.end_ns, start, end))


def _ranges(timeline: Timeline, start: int, end: int, names: Codes[str]) -> list[Event]:
    ranges = timeline.ranges
    pick = np.flatnonzero(_inside(ranges.start_ns, ranges.end_ns, start, end))
    rows = zip(
        _cut(ranges.start_ns[pick], start, end),
        _cut(ranges.end_ns[pick], start, end),
        ranges.thread[pick],
        _codes(names, timeline.names, ranges.name[pick]),
        strict=True,
    )
    return [(s, e, int(t), n) for s, e, t, n in rows]

"""A small window of a capture for drawing: one prefill, a few decode steps, their launches and kernels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec import UNSET, UnsetType

from llm_perf_opt.capture.idle import capture_window
from llm_perf_opt.capture.intervals import Flags, Ints
from llm_perf_opt.capture.kernels.names import CLASSES, classify_kernel
from llm_perf_opt.capture.ranges import warmup_ranges
from llm_perf_opt.capture.timeline import (
    Activities,
    Codes,
    HostEvents,
    LaunchShape,
    Timeline,
    distinct,
    join,
    take,
)
from llm_perf_opt.core.names import DECODE_STEP, MODULE_PREFIX, PREFILL

MAX_EVENTS = 20_000
DECODE_STEPS = 4
# A hair of context on both sides, so that the first launch and the last kernel are seen whole.
MARGIN = 0.01
# What a host event is, by `call_kinds`.
LAUNCH, WAIT, CALL, OPERATOR = range(4)
CALL_NAMES = ("launch", "synchronise", "runtime call")

# Start and end in ns since the window began, the lane, the index of the name; of a kernel also that of its class.
Event = tuple[int, int, int, int]
KernelEvent = tuple[int, int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class TimelineWindow:
    """What `timeline.json` holds: the events of a few steps, names as the capture has them.

    Lanes of calls index `threads`, those of kernels `streams`. Columns alongside `kernels`, an entry for each:
    `launches` (the index in `calls` of the call that started it), `operators` and `modules` (the names around that
    call), `shapes` (an index of `launch_shapes`) and `sizes` (bytes, of copies); -1 where that is not known. Alongside
    `calls`: `call_kinds` (launch, wait, other call, operator), `inputs` (a name that is an operator's input shapes) and
    `correlations`. A file of an earlier version has none of them. `epoch_ns` is the time of day of the window's start,
    0 where the capture does not say. `memory` is by device `(time, bytes)`, of a torch trace alone.
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
    epoch_ns: int = 0
    launches: tuple[int, ...] = ()
    operators: tuple[int, ...] = ()
    modules: tuple[int, ...] = ()
    shapes: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    launch_shapes: tuple[LaunchShape, ...] = ()
    call_kinds: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    correlations: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """A file of another user may hold any number, and a wrong index would lead anywhere."""
        length = self.window_ns[1] - self.window_ns[0]
        for events, lanes in ((self.ranges, None), (self.calls, self.threads), (self.kernels, self.streams)):
            for start, end, lane, name, *_ in events:
                most = len(lanes) if lanes is not None else lane + 1
                if not (0 <= start <= end <= length and 0 <= lane < most and 0 <= name < len(self.names)):
                    raise ValueError(f"an event outside of the window, lanes or names: {(start, end, lane, name)}")
        _require_indices("kernels", (kernel[4] for kernel in self.kernels), len(self.classes), least=0)
        _require_indices("call_kinds", self.call_kinds, OPERATOR + 1, least=0)
        _require_indices("launches", self.launches, len(self.calls))
        _require_indices("shapes", self.shapes, len(self.launch_shapes))
        for column in (self.operators, self.modules, self.inputs):
            _require_indices("names", column, len(self.names))
        beside_kernels = (self.launches, self.operators, self.modules, self.shapes, self.sizes)
        if any(column and len(column) != len(self.kernels) for column in beside_kernels):
            raise ValueError(f"columns alongside {len(self.kernels)} kernels have another number of entries")
        if self.call_kinds and len(self.call_kinds) != len(self.calls):
            raise ValueError(f"{len(self.call_kinds)} call_kinds alongside {len(self.calls)} calls")


def _require_indices(name: str, values: Iterable[int], size: int, *, least: int = -1) -> None:
    wrong = next((value for value in values if not least <= value < size), None)
    if wrong is not None:
        raise ValueError(f"{name}: {wrong} is none of {size}")


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatorInputs:
    """The input shapes of operators: `texts[index[i]]` of operator i."""

    texts: tuple[str, ...]
    index: Ints


def timeline_window(
    timeline: Timeline,
    operators: HostEvents | None = None,
    *,
    inputs: OperatorInputs | None = None,
    max_events: int = MAX_EVENTS,
    decode_steps: int = DECODE_STEPS,
) -> TimelineWindow:
    """The last measured prefill and the steps behind it."""
    tables = [timeline.kernels.start_ns, timeline.calls.start_ns]
    starts = np.concatenate([*tables, *([operators.start_ns] if operators is not None else [])])
    starts.sort()
    whole = capture_window(timeline)
    if whole[0] == whole[1] and operators is not None and len(operators):
        # Operators alone, of a program on the CPU.
        whole = int(operators.start_ns.min()), int(operators.end_ns.max())
    start, end, left_out = choose_window(timeline, starts, whole, max_events=max_events, decode_steps=decode_steps)
    names: Codes[str] = Codes()
    calls = _calls(timeline, operators, inputs, start, end, names)
    del starts
    # Chosen before they are joined: of a long capture little is drawn.
    parts = [timeline.kernels, timeline.graphs, timeline.copies]
    work = join([take(part, np.flatnonzero(_inside(part.start_ns, part.end_ns, start, end))) for part in parts])
    work = take(work, np.argsort(work.start_ns, kind="stable"))
    kernels, streams = _kernels(timeline, work, start, end, names)
    around = _Around(timeline, operators if operators is not None else timeline.operators, start, end)
    at = np.maximum(work.call, 0)
    known = (work.call >= 0) & (len(timeline.calls) > 0)
    thread, when = (column[at] if len(column) else at for column in (timeline.calls.thread, timeline.calls.start_ns))
    return TimelineWindow(
        kind=timeline.kind,
        source=timeline.source,
        window_ns=(start, end),
        classes=tuple(CLASSES),
        threads=calls.threads,
        streams=tuple(streams),
        ranges=tuple(_ranges(timeline, start, end, names)),
        calls=calls.events,
        kernels=tuple(kernels),
        epoch_ns=timeline.origin.base_ns + start if timeline.origin.base_ns else 0,
        launches=tuple(calls.place.get(int(call), -1) for call in work.call),
        operators=tuple(_named(names, timeline.names, np.where(known, around.operator(thread, when), -1))),
        modules=tuple(_named(names, timeline.names, np.where(known, around.module(thread, when), -1), MODULE_PREFIX)),
        shapes=() if work.shape is None else tuple(work.shape.tolist()),
        sizes=() if work.size_bytes is None else tuple(work.size_bytes.tolist()),
        launch_shapes=timeline.launch_shapes,
        call_kinds=calls.kinds,
        inputs=calls.inputs,
        correlations=calls.correlations,
        names=tuple(names),
        left_out=left_out,
    )


class _Around:
    """The innermost operator and module around a moment on a thread, of those that touch the window."""

    def __init__(self, timeline: Timeline, operators: HostEvents, start: int, end: int) -> None:
        self._operators = operators.take(_inside(operators.start_ns, operators.end_ns, start, end))
        ranges = timeline.ranges
        codes = [i for i, name in enumerate(timeline.names) if name.startswith(MODULE_PREFIX)]
        keep = np.isin(ranges.name, codes) & _inside(ranges.start_ns, ranges.end_ns, start, end)
        self._modules = ranges.as_events.take(keep)

    def operator(self, thread: Ints, at: Ints) -> Ints:
        return self._operators.name_around(thread, at)

    def module(self, thread: Ints, at: Ints) -> Ints:
        return self._modules.name_around(thread, at)


def _named(names: Codes[str], texts: Sequence[str], codes: Ints, prefix: str = "") -> list[int]:
    """The codes in `names` of names without a prefix; -1 stays."""
    found = {int(i): names[texts[int(i)].removeprefix(prefix)] if i >= 0 else -1 for i in distinct(codes)}
    return [found[int(i)] for i in codes]


def choose_window(
    timeline: Timeline, starts: Ints, whole: tuple[int, int], *, max_events: int, decode_steps: int
) -> tuple[int, int, int]:
    """Start and end, and the events after it: the last measured prefill with the decode steps behind it that fit."""
    prefill, steps = _spans(timeline, PREFILL), _spans(timeline, DECODE_STEP)
    first, last = whole
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
    found = {int(i): names[texts[int(i)]] for i in distinct(index)}
    return [found[int(i)] for i in index]


def _inside(start_ns: Ints, end_ns: Ints, start: int, end: int) -> Flags:
    return (start_ns < end) & (end_ns > start)


def _clipped(values: Ints, start: int, end: int) -> list[int]:
    """Times since the window began, those outside moved to its edge."""
    return [int(v) for v in np.clip(values, start, end) - start]


def _kernels(
    timeline: Timeline, work: Activities, start: int, end: int, names: Codes[str]
) -> tuple[list[KernelEvent], list[str]]:
    codes = {int(i): names[timeline.names[int(i)]] for i in distinct(work.name)}
    kinds = {i: CLASSES.index(_class(timeline.names[i])) for i in codes}
    lanes, streams = _lanes(work)
    rows = zip(_clipped(work.start_ns, start, end), _clipped(work.end_ns, start, end), lanes, work.name, strict=True)
    return [(s, e, lane, codes[int(n)], kinds[int(n)]) for s, e, lane, n in rows], streams


def _class(name: str) -> str:
    """The class of a kernel; what the profilers call a copy or a set is not a kernel's name."""
    return "copy" if name.startswith(("Copy ", "Memcpy", "Memset")) else classify_kernel(name)


def _lanes(work: Activities) -> tuple[list[int], list[str]]:
    """A row for every stream of a device, and one more for work that runs while other work of its stream does."""
    free: list[tuple[tuple[int, int], int]] = []
    labels: list[str] = []
    found = []
    columns = (work.device.tolist(), work.stream.tolist(), work.start_ns.tolist(), work.end_ns.tolist())
    for device, stream, start, end in zip(*columns, strict=True):
        owner = (device, stream)
        lane = next((i for i, (o, busy) in enumerate(free) if o == owner and busy <= start), None)
        if lane is None:
            lane = len(free)
            more = ", overlapping" if any(o == owner for o, _ in free) else ""
            labels.append((f"device {device} stream {stream}" if stream >= 0 else f"device {device}") + more)
            free.append((owner, end))
        free[lane] = (owner, end)
        found.append(lane)
    order = sorted(range(len(labels)), key=lambda lane: (free[lane][0], lane))
    place = {lane: index for index, lane in enumerate(order)}
    return [place[lane] for lane in found], [labels[lane] for lane in order]


@dataclass(frozen=True, kw_only=True)
class _HostRows:
    """Runtime calls, then operators; `place` finds a call of the timeline among the events."""

    events: tuple[Event, ...]
    kinds: tuple[int, ...]
    inputs: tuple[int, ...]
    correlations: tuple[int, ...]
    threads: tuple[str, ...]
    place: Mapping[int, int]


def _calls(
    timeline: Timeline,
    operators: HostEvents | None,
    inputs: OperatorInputs | None,
    start: int,
    end: int,
    names: Codes[str],
) -> _HostRows:
    """Runtime calls, and operators where they are requested."""
    calls = timeline.calls
    pick = np.flatnonzero(_inside(calls.start_ns, calls.end_ns, start, end))
    pick = pick[np.argsort(calls.start_ns[pick], kind="stable")]
    seen = _operators_inside(operators, start, end)
    used = [calls.thread[pick]] + ([operators.thread[seen]] if operators is not None else [])
    threads = [int(t) for t in distinct(np.concatenate(used))]
    lane = {thread: index for index, thread in enumerate(threads)}
    kind = np.where(calls.waits[pick], WAIT, np.where(calls.launches[pick], LAUNCH, CALL)).tolist()
    named = {int(i): names[timeline.names[int(i)]] if i >= 0 else -1 for i in distinct(calls.name[pick])}
    columns = (
        _clipped(calls.start_ns[pick], start, end),
        _clipped(calls.end_ns[pick], start, end),
        calls.thread[pick].tolist(),
        calls.name[pick].tolist(),
        kind,
    )
    events: list[Event] = [
        (s, e, lane[t], named[n] if named[n] >= 0 else names[CALL_NAMES[k]])
        for s, e, t, n, k in zip(*columns, strict=True)
    ]
    shown: list[int] = [-1] * len(events)
    if operators is not None:
        labels = _codes(names, timeline.names, operators.name[seen])
        begin, stop = _clipped(operators.start_ns[seen], start, end), _clipped(operators.end_ns[seen], start, end)
        own = zip(begin, stop, operators.thread[seen].tolist(), labels, strict=True)
        events += [(s, e, lane[t], n) for s, e, t, n in own]
        if inputs is not None:
            texts = [inputs.texts[int(i)] for i in inputs.index[seen]]
            shown += [names[text] if text else -1 for text in texts]
    return _HostRows(
        events=tuple(events),
        kinds=(*kind, *([OPERATOR] * len(seen))),
        inputs=tuple(shown) if inputs is not None else (),
        correlations=() if calls.correlation is None else tuple(calls.correlation[pick].tolist()),
        threads=tuple(timeline.thread_names[t] if timeline.thread_names else f"thread {t}" for t in threads),
        place={int(call): index for index, call in enumerate(pick)},
    )


def _operators_inside(operators: HostEvents | None, start: int, end: int) -> Ints:
    if operators is None:
        return np.zeros(0, np.int64)
    return np.flatnonzero(_inside(operators.start_ns, operators.end_ns, start, end))


def _ranges(timeline: Timeline, start: int, end: int, names: Codes[str]) -> list[Event]:
    ranges = timeline.ranges
    pick = np.flatnonzero(_inside(ranges.start_ns, ranges.end_ns, start, end))
    rows = zip(
        _clipped(ranges.start_ns[pick], start, end),
        _clipped(ranges.end_ns[pick], start, end),
        ranges.thread[pick],
        _codes(names, timeline.names, ranges.name[pick]),
        strict=True,
    )
    return [(s, e, int(t), n) for s, e, t, n in rows]

"""trace.perfetto.json.gz: ranges, modules, operators, launches, kernels, memory, power and clocks of a run.

nsys and torch record different runs of the same work, so their windows are laid over each other at the mark both show,
the start of the prefill. Samples of the driver are on the time of day, as a torch trace is: they go where their capture
goes. What has neither a mark nor a time of day becomes its own group, and its name says so.

The format is Chrome's, with its rules: on a row, slices lie inside each other or alongside each other; a flow begins
and ends in a slice; no time is below zero.
"""

import gc
import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

import msgspec
from msgspec import UNSET

from llm_perf_opt.capture.timeline import LaunchShape
from llm_perf_opt.capture.window import CALL, LAUNCH, OPERATOR, WAIT, TimelineWindow
from llm_perf_opt.core.documents import ClockDocument, CounterDocument
from llm_perf_opt.core.names import MODULE_PREFIX, PREFILL
from llm_perf_opt.report.run_files import Found, RunFiles

CATEGORY = {LAUNCH: "launch", WAIT: "wait", CALL: "runtime call", OPERATOR: "operator"}
# Of samples on the same clock as a capture, those so far around it are kept.
AROUND_NS = 1_000_000_000
# Where the numbers of a process's rows begin, times its own: a row with its number would be called its main thread.
FIRST_ROW = 1000
ALIGNED = "captures are aligned at the start of the prefill they show; see the names of the groups"
NOT_ALIGNED = "own clock, not aligned with the others"
Value = str | int | float


# A trace has hundreds of thousands of these, none in a cycle: a dataclass would take several times as long to make.
class TraceSlice(msgspec.Struct, kw_only=True, gc=False):
    """Something that took time on a row; times in µs, as the format has them."""

    ph: Literal["X"] = "X"
    pid: int
    tid: int
    ts: float
    dur: float
    name: str
    cat: str
    args: Mapping[str, Value]


class TraceFlow(msgspec.Struct, kw_only=True, gc=False):
    """One end of an arrow: `s` where it begins, `f` where it ends; `bp` binds it to the slice around it."""

    ph: Literal["s", "f"]
    pid: int
    tid: int
    ts: float
    name: str
    cat: str
    id: int
    bp: Literal["e"] = "e"


class TraceCounter(msgspec.Struct, kw_only=True, gc=False):
    """The value of a quantity from one moment on."""

    ph: Literal["C"] = "C"
    pid: int
    tid: int = 0
    ts: float
    name: str
    args: Mapping[str, float | int]


class TraceLabel(msgspec.Struct, kw_only=True, gc=False):
    """The name or the place of a process or of a row."""

    ph: Literal["M"] = "M"
    pid: int
    tid: int
    name: str
    args: Mapping[str, str | int]


TraceEvent = TraceSlice | TraceFlow | TraceCounter | TraceLabel


@dataclass(frozen=True, kw_only=True)
class TraceDocument:
    """Chrome's trace format, in its own words."""

    displayTimeUnit: str = "ns"
    traceEvents: Sequence[TraceEvent]
    otherData: Mapping[str, str]


def render_perfetto(files: RunFiles) -> bytes | None:
    """The trace in Chrome's JSON format, which ui.perfetto.dev opens; None when nothing was recorded over time."""
    if not files.timelines and not files.counters:
        return None
    # To look for cycles among the lists of records would take as long as to make them.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _render(files)
    finally:
        if collects:
            gc.enable()


def render_ranks(windows: Sequence[tuple[str, TimelineWindow]]) -> bytes:
    """One trace of several captures, each a group of rows under its name: the ranks of a job next to each other.

    On the time of day where every capture has it, else each aligned at its own prefill.
    """
    numbers = iter(range(1, 1 << 40))
    on_one_clock = all(window.epoch_ns for _, window in windows)
    first_ns = min((window.epoch_ns for _, window in windows), default=0)
    events: list[TraceEvent] = []
    for pid, (name, window) in enumerate(windows, 1):
        zero, how = (first_ns - window.epoch_ns, "on the time of day") if on_one_clock else (None, None)
        events += _Capture(window, pid, numbers, zero=zero, how=how, name=name).events()
    return _written(events, "captures on the time of day" if on_one_clock else ALIGNED)


def _render(files: RunFiles) -> bytes:
    numbers = iter(range(1, 1 << 40))
    events: list[TraceEvent] = []
    pid = 0
    for found in files.timelines:
        pid += 1
        events += _Capture(found.content, pid, numbers).events()
    if isinstance(files.clocks, Found):
        pid += 1
        events += _clock_events(files.clocks.content, pid, _same_clock(files))
    for counters in files.counters:
        pid += 1
        events += _stage_counter_events(counters.content, pid)
    return _written(events, ALIGNED)


def _written(events: Sequence[TraceEvent], how: str) -> bytes:
    # The first time becomes zero.
    timed = [event for event in events if not isinstance(event, TraceLabel)]
    first = min((event.ts for event in timed), default=0.0)
    for event in timed:
        event.ts = round(event.ts - first, 3)
    document = TraceDocument(traceEvents=events, otherData={"clock": how})
    # A fixed time inside makes equal traces equal files; higher levels take four times as long for a tenth less.
    return gzip.compress(msgspec.json.encode(document), compresslevel=3, mtime=0)


class _Span(msgspec.Struct, frozen=True, gc=False):
    """A slice before it has a row; `key` finds it again for flows."""

    start: int
    end: int
    name: str
    cat: str
    args: Mapping[str, Value]
    key: tuple[str, int] | None = None


class _Capture:
    """The events of one window: rows that obey the format, arrows between them, counters."""

    def __init__(
        self,
        file: TimelineWindow,
        pid: int,
        numbers: Iterator[int],
        *,
        zero: int | None = None,
        how: str | None = None,
        name: str = "",
    ) -> None:
        self._file, self._pid, self._numbers = file, pid, numbers
        self._zero = origin_ns(file) if zero is None else zero
        self._how = how or ("aligned at its prefill" if has_mark(file) else NOT_ALIGNED)
        self._name = name or f"{file.kind}: {PurePath(file.source).name}"
        self._tid = FIRST_ROW * pid
        self._places: dict[tuple[str, int], tuple[int, int]] = {}
        # A capture has few launch shapes and many launches.
        self._shape_args = [_shape_args(shape) for shape in file.launch_shapes]

    def events(self) -> Iterator[TraceEvent]:
        file = self._file
        yield _label("process_name", self._pid, 0, f"{self._name} ({self._how})")
        yield TraceLabel(pid=self._pid, tid=0, name="process_sort_index", args={"sort_index": self._pid})
        yield from self._ranges()
        yield from self._calls()
        yield from self._kernels()
        yield from self._flows()
        yield from self._queue()
        for device, points in ({} if file.memory is UNSET else file.memory).items():
            for at, size in points:
                yield _counter(self._pid, f"{device} memory allocated", at - self._zero, {"bytes": size})

    def _ranges(self) -> Iterator[TraceEvent]:
        threads = sorted({r[2] for r in self._file.ranges})
        for is_module, label in ((False, "ranges"), (True, "modules")):
            for thread in threads:
                spans = []
                for start, end, owner, name in self._file.ranges:
                    text = self._file.names[name]
                    if owner == thread and text.startswith(MODULE_PREFIX) == is_module:
                        spans.append(
                            _Span(start=start, end=end, name=text.removeprefix(MODULE_PREFIX), cat=label[:-1], args={})
                        )
                yield from self._rows(label if len(threads) == 1 else f"{label} of thread {thread}", spans)

    def _calls(self) -> Iterator[TraceEvent]:
        file = self._file
        lanes: dict[int, list[_Span]] = {index: [] for index in range(len(file.threads))}
        for index, (start, end, thread, name) in enumerate(file.calls):
            args: dict[str, Value] = {}
            if index < len(file.correlations) and file.correlations[index] >= 0:
                args["correlation"] = file.correlations[index]
            if index < len(file.inputs) and file.inputs[index] >= 0:
                args["input shapes"] = file.names[file.inputs[index]]
            kind = CATEGORY[file.call_kinds[index]] if file.call_kinds else "host"
            lanes[thread].append(
                _Span(start=start, end=end, name=file.names[name], cat=kind, args=args, key=("call", index))
            )
        for thread, spans in lanes.items():
            yield from self._rows(f"CPU {file.threads[thread]}", spans)

    def _kernels(self) -> Iterator[TraceEvent]:
        file = self._file
        lanes: dict[int, list[_Span]] = {index: [] for index in range(len(file.streams))}
        for index, (start, end, stream, name, kind) in enumerate(file.kernels):
            lanes[stream].append(
                _Span(
                    start=start,
                    end=end,
                    name=file.names[name],
                    cat=file.classes[kind],
                    args=self._kernel_args(index),
                    key=("kernel", index),
                )
            )
        for stream, spans in lanes.items():
            yield from self._rows(f"GPU {file.streams[stream]}", spans)

    def _kernel_args(self, index: int) -> dict[str, Value]:
        file = self._file
        args: dict[str, Value] = {}
        for word, column in (("operator", file.operators), ("module", file.modules)):
            if index < len(column) and column[index] >= 0:
                args[word] = file.names[column[index]]
        if index < len(file.shapes) and file.shapes[index] >= 0:
            args |= self._shape_args[file.shapes[index]]
        if index < len(file.sizes) and file.sizes[index] >= 0:
            args["bytes"] = file.sizes[index]
        call = self._launch(index)
        if call is not None and call < len(file.correlations) and file.correlations[call] >= 0:
            args["correlation"] = file.correlations[call]
        return args

    def _launch(self, kernel: int) -> int | None:
        launches = self._file.launches
        return launches[kernel] if kernel < len(launches) and launches[kernel] >= 0 else None

    def _rows(self, label: str, spans: Sequence[_Span]) -> Iterator[TraceEvent]:
        """Slices of one track; what partly overlaps another goes to a row below, as the format wants it."""
        left = sorted(spans, key=lambda span: (span.start, -span.end))
        number = 0
        while left:
            self._tid += 1
            number += 1
            name = label if number == 1 else f"{label}, overlapping {number - 1}"
            yield _label("thread_name", self._pid, self._tid, name)
            yield TraceLabel(pid=self._pid, tid=self._tid, name="thread_sort_index", args={"sort_index": self._tid})
            stack: list[int] = []
            over = []
            for span in left:
                while stack and stack[-1] <= span.start:
                    stack.pop()
                if stack and span.end > stack[-1]:
                    over.append(span)
                    continue
                stack.append(span.end)
                if span.key is not None:
                    self._places[span.key] = (self._tid, span.start)
                yield TraceSlice(
                    pid=self._pid,
                    tid=self._tid,
                    ts=(span.start - self._zero) / 1e3,
                    dur=(span.end - span.start) / 1e3,
                    name=span.name,
                    cat=span.cat,
                    args=span.args,
                )
            left = over

    def _flows(self) -> Iterator[TraceEvent]:
        """From each launch to its kernel; not where the launch is cut off at the window's edge."""
        for index in range(len(self._file.kernels)):
            call = self._launch(index)
            if call is None:
                continue
            (from_tid, began), (to_tid, start) = self._places["call", call], self._places["kernel", index]
            if start < began:
                continue
            number = next(self._numbers)
            for phase, tid, at in (("s", from_tid, began), ("f", to_tid, start)):
                yield TraceFlow(
                    ph="s" if phase == "s" else "f",
                    pid=self._pid,
                    tid=tid,
                    ts=(at - self._zero) / 1e3,
                    name="launch",
                    cat="launch",
                    id=number,
                )

    def _queue(self) -> Iterator[TraceEvent]:
        """How much work was launched and not done, over time."""
        changes: list[tuple[int, int]] = []
        for index, kernel in enumerate(self._file.kernels):
            call = self._launch(index)
            if call is not None:
                changes += [(self._file.calls[call][0], 1), (kernel[1], -1)]
        depth, last = 0, None
        for at, change in sorted(changes):
            if last is not None and at != last:
                yield _counter(self._pid, "work launched, not done", last - self._zero, {"count": depth})
            depth, last = depth + change, at
        if last is not None:
            yield _counter(self._pid, "work launched, not done", last - self._zero, {"count": depth})


def _shape_args(shape: LaunchShape) -> dict[str, Value]:
    args: dict[str, Value] = {"grid": str(list(shape.grid)), "block": str(list(shape.block))}
    if shape.registers is not None:
        args["registers per thread"] = shape.registers
    if shape.shared_bytes is not None:
        args["shared memory, bytes"] = shape.shared_bytes
    return args


def has_mark(file: TimelineWindow) -> bool:
    return any(file.names[r[3]] == PREFILL and r[0] > 0 for r in file.ranges)


def origin_ns(file: TimelineWindow) -> int:
    """What becomes time zero: the first prefill that begins inside the window, else the window's start."""
    return min((r[0] for r in file.ranges if file.names[r[3]] == PREFILL and r[0] > 0), default=0)


def _same_clock(files: RunFiles) -> TimelineWindow | None:
    """The capture the driver's samples were taken alongside: that of their stage, on the time of day."""
    folder = files.clocks.source.partition("/")[0] if isinstance(files.clocks, Found) else ""
    beside = [f.content for f in files.timelines if f.source.startswith(f"{folder}/") and f.content.epoch_ns]
    return beside[0] if beside else None


def _clock_events(file: ClockDocument, pid: int, beside: TimelineWindow | None) -> Iterator[TraceEvent]:
    """Samples of the driver: on the clock of the capture alongside, or from their own first moment on."""
    samples, offset = file.samples, file.epoch_offset_ns
    zero = min((s.at_ns for s in samples), default=0)
    how = NOT_ALIGNED
    if beside is not None and offset is not None:
        zero = beside.epoch_ns + origin_ns(beside) - offset
        length = beside.window_ns[1] - beside.window_ns[0]
        start = beside.epoch_ns - offset
        near = [s for s in samples if start - AROUND_NS <= s.at_ns <= start + length + AROUND_NS]
        samples, how = tuple(near), f"on the clock of {beside.kind}: {PurePath(beside.source).name}"
    yield _label("process_name", pid, 0, f"{file.device}, sampled every {file.interval_ms:g} ms ({how})")
    yield TraceLabel(pid=pid, tid=0, name="process_sort_index", args={"sort_index": pid})
    for sample in samples:
        values = (
            ("power", "W", sample.power_w),
            ("SM clock", "MHz", sample.sm_clock_mhz),
            ("memory used", "bytes", sample.memory_used_bytes),
            ("temperature", "°C", sample.temperature_c),
            ("GPU utilisation", "%", sample.utilisation_pct),
        )
        for name, unit, value in values:
            if value is not None:
                yield _counter(pid, name, sample.at_ns - zero, {unit: value})


def _stage_counter_events(file: CounterDocument, pid: int) -> Iterator[TraceEvent]:
    """Counters of a stage with the spans it saw, from its first prefill on, as timelines are; else from its start."""
    moments = [at for track in file.tracks for at, _ in track.points] + [span.start_ns for span in file.spans]
    marks = [span.start_ns for span in file.spans if span.name == PREFILL]
    zero = min(marks, default=min(moments, default=0))
    yield _label("process_name", pid, 0, f"{file.title} ({'aligned at its prefill' if marks else NOT_ALIGNED})")
    names = dict.fromkeys(span.name for span in file.spans)
    rows = {name: number for number, name in enumerate(names, start=FIRST_ROW * pid + 1)}
    for name, row in rows.items():
        yield _label("thread_name", pid, row, name)
    for span in file.spans:
        yield TraceSlice(
            pid=pid,
            tid=rows[span.name],
            ts=(span.start_ns - zero) / 1e3,
            dur=(span.end_ns - span.start_ns) / 1e3,
            name=span.name,
            cat="range",
            args={},
        )
    for track in file.tracks:
        for at, value in track.points:
            yield _counter(pid, track.name, at - zero, {track.unit or "value": value})


# Perfetto writes the name of a series behind that of its counter: the unit is there.
def _counter(pid: int, name: str, at_ns: int, values: Mapping[str, float | int]) -> TraceCounter:
    return TraceCounter(pid=pid, ts=at_ns / 1e3, name=name, args=values)


def _label(kind: Literal["process_name", "thread_name"], pid: int, tid: int, name: str) -> TraceLabel:
    return TraceLabel(pid=pid, tid=tid, name=kind, args={"name": name})

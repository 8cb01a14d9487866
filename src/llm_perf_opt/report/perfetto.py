"""trace.perfetto.json.gz: ranges, operators, launches, kernels, memory and power of a run on one clock.

nsys and torch record different runs of the same work, so their windows are laid over each other at the start of the
prefill they both show (or at their beginning); each keeps a process row of its own.
"""

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET

from llm_perf_opt.analysis.timeline.window import TimelineWindow
from llm_perf_opt.core.documents import ClockDocument, CounterDocument
from llm_perf_opt.core.names import PREFILL
from llm_perf_opt.report.run_files import Found, RunFiles

RANGES_TID, CALLS_TID, KERNELS_TID = 1, 1000, 2000


@dataclass(frozen=True, kw_only=True)
class TraceSlice:
    """Something that took time on a row; times in µs, as the format has them."""

    ph: Literal["X"] = "X"
    pid: int
    tid: int
    ts: float
    dur: float
    name: str
    cat: str


@dataclass(frozen=True, kw_only=True)
class TraceCounter:
    """The value of a quantity from one moment on."""

    ph: Literal["C"] = "C"
    pid: int
    tid: int = 0
    ts: float
    name: str
    args: Mapping[str, float | int]


@dataclass(frozen=True, kw_only=True)
class TraceLabel:
    """The name of a process or of a row."""

    ph: Literal["M"] = "M"
    pid: int
    tid: int
    name: str
    args: Mapping[str, str]


TraceEvent = TraceSlice | TraceCounter | TraceLabel


@dataclass(frozen=True, kw_only=True)
class TraceDocument:
    """Chrome's trace format, in its own words."""

    displayTimeUnit: str = "ns"
    traceEvents: tuple[TraceEvent, ...]


def render_perfetto(files: RunFiles) -> bytes | None:
    """The trace in Chrome's JSON format, which ui.perfetto.dev opens; None when nothing was recorded over time."""
    if not files.timelines and not files.counters:
        return None
    events: list[TraceEvent] = []
    for pid, found in enumerate(files.timelines, start=1):
        events += _timeline_events(found.content, pid)
    if isinstance(files.clocks, Found):
        events += _clock_events(files.clocks.content, len(files.timelines) + 1)
    for pid, counters in enumerate(files.counters, start=len(files.timelines) + 2):
        events += _stage_counter_events(counters.content, pid)
    text = msgspec.json.encode(TraceDocument(traceEvents=tuple(events)))
    # A fixed time inside makes equal traces equal files; higher levels take four times as long for a tenth less.
    return gzip.compress(text, compresslevel=3, mtime=0)


def _timeline_events(file: TimelineWindow, pid: int) -> Iterator[TraceEvent]:
    zero = origin_ns(file)
    yield _label("process_name", pid, 0, f"{file.kind}: {file.source}")
    for thread in sorted({r[2] for r in file.ranges}):
        yield _label("thread_name", pid, RANGES_TID + thread, f"ranges of thread {thread}")
    for index, label in enumerate(file.threads):
        yield _label("thread_name", pid, CALLS_TID + index, f"CPU {label}")
    for index, label in enumerate(file.streams):
        yield _label("thread_name", pid, KERNELS_TID + index, f"GPU {label}")
    for start, end, thread, name in file.ranges:
        yield _slice(pid, RANGES_TID + thread, start - zero, end - start, file.names[name], "range")
    for start, end, thread, name in file.calls:
        yield _slice(pid, CALLS_TID + thread, start - zero, end - start, file.names[name], "host")
    for start, end, stream, name, kind in file.kernels:
        yield _slice(pid, KERNELS_TID + stream, start - zero, end - start, file.names[name], file.classes[kind])
    for device, points in ({} if file.memory is UNSET else file.memory).items():
        for at, size in points:
            yield _counter(pid, f"{device} memory allocated", at - zero, {"bytes": size})


def origin_ns(file: TimelineWindow) -> int:
    """What becomes time zero: the first prefill that begins inside the window, else the window's start."""
    return min((r[0] for r in file.ranges if file.names[r[3]] == "prefill" and r[0] > 0), default=0)


def _clock_events(file: ClockDocument, pid: int) -> Iterator[TraceEvent]:
    """Samples of the driver, from their own first moment on."""
    yield _label("process_name", pid, 0, f"{file.device}, sampled every {file.interval_ms:g} ms")
    first = min((s.at_ns for s in file.samples), default=0)
    for sample in file.samples:
        values = {
            "power, W": sample.power_w,
            "SM clock, MHz": sample.sm_clock_mhz,
            "memory used, bytes": sample.memory_used_bytes,
            "temperature, °C": sample.temperature_c,
        }
        for name, value in values.items():
            if value is not None:
                yield _counter(pid, name, sample.at_ns - first, {"value": value})


def _stage_counter_events(file: CounterDocument, pid: int) -> Iterator[TraceEvent]:
    """Counters of a stage with the spans it saw, from its first prefill on, as timelines are; else from its start."""
    yield _label("process_name", pid, 0, file.title)
    moments = [at for track in file.tracks for at, _ in track.points] + [span.start_ns for span in file.spans]
    first = min(moments, default=0)
    zero = min((span.start_ns for span in file.spans if span.name == PREFILL), default=first)
    rows = {name: number for number, name in enumerate(dict.fromkeys(span.name for span in file.spans), start=1)}
    for name, row in rows.items():
        yield _label("thread_name", pid, row, name)
    for span in file.spans:
        yield _slice(pid, rows[span.name], span.start_ns - zero, span.end_ns - span.start_ns, span.name, "range")
    for track in file.tracks:
        for at, value in track.points:
            yield _counter(pid, f"{track.name}, {track.unit}", at - zero, {"value": value})


def _slice(pid: int, tid: int, start_ns: int, length_ns: int, name: str, category: str) -> TraceSlice:
    return TraceSlice(pid=pid, tid=tid, ts=start_ns / 1e3, dur=length_ns / 1e3, name=name, cat=category)


def _counter(pid: int, name: str, at_ns: int, values: Mapping[str, float | int]) -> TraceCounter:
    return TraceCounter(pid=pid, ts=at_ns / 1e3, name=name, args=values)


def _label(kind: Literal["process_name", "thread_name"], pid: int, tid: int, name: str) -> TraceLabel:
    return TraceLabel(pid=pid, tid=tid, name=kind, args={"name": name})

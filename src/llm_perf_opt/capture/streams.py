"""Streams: how busy each was, and work that waited on an idle one alongside a busy one.

Streams let a GPU do several things at once. Where nothing overlaps although work was launched in time, something keeps
it in order: an event, the default stream, a kernel that fills the GPU, or too few connections to it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Ints, covered_ns, union
from llm_perf_opt.capture.kernels.names import classify_kernel
from llm_perf_opt.capture.timeline import Activities, Timeline, distinct, join, take

# A stream with less than this part of the kernel time is not a second line of work.
MIN_STREAM_SHARE = 0.1
# Streams that run side by side for more than this part of what could are no longer one after the other.
MAX_OVERLAP_SHARE = 0.1
SHOWN = 100
_COMMUNICATION = "communication"


@dataclass(frozen=True, kw_only=True)
class StreamRow:
    """One stream of one GPU of one process; `busy_ns` is when a kernel or a graph of it ran, copies are apart."""

    source: int
    process: int
    device: int
    stream: int
    kernel_count: int
    busy_ns: int
    copy_ns: int
    span_ns: int


@dataclass(frozen=True, kw_only=True)
class SerialStreams:
    """Streams of one GPU that ran one after the other.

    `held_ns` is the time in which work had been launched into an idle stream while another ran; `held_count` is how
    many kernels that happened to. `could_hide_ns` is all but the busiest stream's time, `overlap_ns` what did overlap.
    """

    source: int
    process: int
    device: int
    streams: tuple[int, ...]
    held_count: int
    held_ns: int
    could_hide_ns: int
    overlap_ns: int


@dataclass(frozen=True, kw_only=True)
class StreamReport:
    """The streams that worked, the busiest first, and those that could have worked side by side and did not."""

    count: int
    rows: tuple[StreamRow, ...]
    serial: tuple[SerialStreams, ...]


def report_streams(timelines: Sequence[Timeline]) -> StreamReport | None:
    """The streams of all captures; None where no GPU used more than one."""
    groups = [
        (source, timeline, compute, copies)
        for source, timeline in enumerate(timelines)
        for compute, copies in _by_gpu(timeline)
    ]
    if not any(_several(compute, copies) for _, _, compute, copies in groups):
        return None
    rows = [row for source, _, compute, copies in groups for row in _rows(source, compute, copies)]
    rows.sort(key=lambda row: (-row.busy_ns, -row.copy_ns, row.source, row.process, row.device, row.stream))
    serial = (_serial(source, timeline, compute) for source, timeline, compute, _ in groups)
    return StreamReport(
        count=len(rows), rows=tuple(rows[:SHOWN]), serial=tuple(found for found in serial if found is not None)
    )


def _by_gpu(timeline: Timeline) -> Iterator[tuple[Activities, Activities]]:
    """Kernels and graphs, and copies, of each GPU of each process."""
    compute, copies = join([timeline.kernels, timeline.graphs]), timeline.copies
    if not _several(compute, copies):
        return
    processes = sorted({*distinct(compute.process).tolist(), *distinct(copies.process).tolist()})
    devices = sorted({*distinct(compute.device).tolist(), *distinct(copies.device).tolist()})
    if len(processes) == 1 and len(devices) == 1:
        yield compute, copies
        return
    for process in processes:
        for device in devices:
            parts = [
                take(work, np.flatnonzero((work.process == process) & (work.device == device)))
                for work in (compute, copies)
            ]
            if len(parts[0]) or len(parts[1]):
                yield parts[0], parts[1]


def _several(compute: Activities, copies: Activities) -> bool:
    streams = [work.stream for work in (compute, copies) if len(work)]
    return bool(streams) and any(bool((stream != streams[0][0]).any()) for stream in streams)


def _rows(source: int, compute: Activities, copies: Activities) -> Iterator[StreamRow]:
    parts = [work for work in (compute, copies) if len(work)]
    span_ns = max(int(work.end_ns.max()) for work in parts) - min(int(work.start_ns.min()) for work in parts)
    own = dict(_groups(compute.stream))
    moved = dict(_groups(copies.stream))
    none = np.zeros(0, np.int64)
    for stream in sorted({*own, *moved}):
        kernels, copied = own.get(stream, none), moved.get(stream, none)
        yield StreamRow(
            source=source,
            process=int(parts[0].process[0]),
            device=int(parts[0].device[0]),
            stream=stream,
            kernel_count=len(kernels),
            busy_ns=_busy_ns(compute, kernels),
            copy_ns=_busy_ns(copies, copied),
            span_ns=span_ns,
        )


def _busy_ns(work: Activities, index: Ints) -> int:
    """When some of the work ran; nothing is copied where it is all of it."""
    if len(index) == len(work):
        return covered_ns(work.start_ns, work.end_ns)
    return covered_ns(work.start_ns[index], work.end_ns[index])


def _groups(stream: Ints) -> Iterator[tuple[int, Ints]]:
    """The rows of each stream, in order."""
    if len(stream) and not bool((stream != stream[0]).any()):
        yield int(stream[0]), np.arange(len(stream), dtype=np.int32)
        return
    values = distinct(stream)
    code = np.searchsorted(values, stream).astype(np.int16 if len(values) < 2**15 else np.int64)
    order = np.argsort(code, kind="stable")
    edges = np.searchsorted(code[order], np.arange(1, len(values)))
    yield from zip(values.tolist(), np.split(order, edges), strict=True) if len(values) else ()


def _serial(source: int, timeline: Timeline, compute: Activities) -> SerialStreams | None:
    """Streams with much work of their own that hardly overlap, and the part that could have begun earlier.

    Communication waits for others by nature, and the nodes of a graph run in the order the graph says.
    """
    if not _several(compute, compute):
        return None
    calls = timeline.calls
    talks = np.zeros(len(timeline.names), np.bool_)
    for code in compute.distinct_names.tolist():
        talks[code] = classify_kernel(timeline.names[code]) == _COMMUNICATION
    known = compute.call >= 0
    chosen = known & ~talks[compute.name] & (compute.stream >= 0) if len(compute) else known
    chosen &= ~timeline.names_of_replays[calls.name[np.where(known, compute.call, 0)]] if len(calls) else False
    work = take(compute, np.flatnonzero(chosen))
    if not len(work):
        return None
    groups = dict(_groups(work.stream))
    busy = {stream: union(work.start_ns[index], work.end_ns[index]) for stream, index in groups.items()}
    whole = covered_ns(work.start_ns, work.end_ns)
    major = [stream for stream, own in busy.items() if own.total >= MIN_STREAM_SHARE * whole]
    if len(major) < 2:
        return None
    times = sorted(busy[stream].total for stream in major)
    could_hide, overlap = sum(times[:-1]), sum(own.total for own in busy.values()) - whole
    if overlap > MAX_OVERLAP_SHARE * could_hide:
        return None
    held_ns = held_count = 0
    for stream in major:
        mine = groups[stream][np.argsort(work.start_ns[groups[stream]], kind="stable")]
        before = np.concatenate(([work.start_ns[mine[0]]], np.maximum.accumulate(work.end_ns[mine])[:-1]))
        ready = np.maximum(calls.end_ns[work.call[mine]], before)
        ready[0] = calls.end_ns[work.call[mine[0]]]
        others = np.flatnonzero(work.stream != stream)
        beside = union(work.start_ns[others], work.end_ns[others])
        start = work.start_ns[mine]
        late = beside.covered_before(start) - beside.covered_before(np.minimum(ready, start))
        held_ns += int(late.sum())
        held_count += int((late > 0).sum())
    return SerialStreams(
        source=source,
        process=int(work.process[0]),
        device=int(work.device[0]),
        streams=tuple(sorted(major)),
        held_count=held_count,
        held_ns=min(held_ns, could_hide),
        could_hide_ns=could_hide,
        overlap_ns=overlap,
    )

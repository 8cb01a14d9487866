"""A torch profiler trace (Chrome JSON, .json or .json.gz) as a Timeline, with its operators and modules."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llm_perf_opt.capture.allocator_memory import MemoryEvents
from llm_perf_opt.capture.intervals import Ints
from llm_perf_opt.capture.kernels.names import as_utf8, cut_name
from llm_perf_opt.capture.operators import TraceDetail
from llm_perf_opt.capture.readers.trace_decode import (
    ANNOTATION,
    CALL,
    CATEGORIES,
    COPY,
    COUNTED,
    FRAME,
    KERNEL,
    KINDS,
    LATEST_NS,
    MEMORY,
    MIN_FRAME_US,
    MODULE,
    NO_ROWS,
    OPERATOR,
    PAUSE,
    Piece,
)
from llm_perf_opt.capture.readers.trace_rare import categories_of, not_from_torch, read_counters
from llm_perf_opt.capture.readers.trace_text import TraceText, read_with_cuts
from llm_perf_opt.capture.readers.trace_workers import processes_for, read_pieces
from llm_perf_opt.capture.rows import CounterRow
from llm_perf_opt.capture.timeline import (
    Activities,
    Calls,
    CapturedGpu,
    HostEvents,
    LaunchShape,
    Origin,
    Ranges,
    Timeline,
    count_lost_launches,
    distinct,
    join_calls,
    lost_notes,
    no_activities,
    positive_or_none,
)
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import ParseError
from llm_perf_opt.system.arrays import keep_freed_memory, usable_cores

# The profiler numbers operators one after the other. A trace of so many that holds less than half was thinned out.
MIN_NUMBERED, THINNED = 100, 0.5
MIN_FRAME_NS = round(1000 * MIN_FRAME_US)
# How SGLang marks whose process an event was of when it merges traces.
_RANK_LABEL = re.compile(r"\[(TP|DP|PP|EP)\d+[^\]]*\]")
# Ranges that torch itself opens.
MARKED_BY_TORCH = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.step#", "Optimizer.zero_grad#")
# What torch writes at the top of a trace, and no other tool.
_MARKS = {"schemaVersion", "deviceProperties", "distributedInfo", "cuda_runtime_version", "hip_runtime_version"}
# Calls that return when the GPU is done: also the plain copies and the freeing of memory, of CUDA and of HIP.
_WAITS = re.compile(
    r"Synchronize|^(cuda|hip)(Memcpy|Memcpy2D|Memcpy3D|MemcpyToSymbol|MemcpyFromSymbol|Free|FreeHost|HostFree)(_ptsz)?$"
    r"|^(cu|hip)Memcpy(HtoD|DtoH|DtoD)(_v\d+)?$|^cuMemFree(_v\d+)?$|^hipMemcpyWithStream$"
    r"|^ur(EventWait|QueueFinish|EnqueueEventsWait)$"
)
_COLUMNS = (
    "start_ns", "end_ns", "name", "thread", "correlation", "device", "stream", "size_bytes", "shape",
    "allocated_bytes",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class TorchTrace:
    """`operators` and `modules` share the timeline's names and threads. `detail` is there where it was requested."""

    timeline: Timeline
    operators: HostEvents
    modules: HostEvents
    events: int
    detail: TraceDetail | None = None
    counters: tuple[CounterRow, ...] = ()


def read_torch_trace(path: Path, *, detailed: bool = False, processes: int | None = None) -> TorchTrace:
    """Read a trace; a long one is decoded by several processes. `detailed`: with input shapes, calls and memory."""
    count = processes_for(path, cores=usable_cores()) if processes is None else processes
    keep_freed_memory()

    def read(careful: bool) -> TorchTrace:
        found = _Collected()
        try:
            for piece in read_pieces(path, found.text, careful=careful, processes=count, detailed=detailed):
                found.add(piece)
        except msgspec.ValidationError as error:
            # Other tools write times as text.
            if not careful or _MARKS & set(found.text.head) or CATEGORIES & set(categories := categories_of(path)):
                raise
            raise not_from_torch(path, categories) from error
        # Nothing says who wrote it, so it must hold something known.
        if not found.used and not _MARKS & set(found.text.head):
            raise not_from_torch(path, categories_of(path))
        _refuse_merged(path, found)
        return _build(path, found, detailed=detailed)

    return read_with_cuts(path, read)


def _refuse_merged(path: Path, found: "_Collected") -> None:
    """A merge of several ranks: they use the same launch ids, so a kernel cannot be attributed to its rank."""
    pids = {pid for pid, _ in found.threads if isinstance(pid, str)}
    ranks = {match[0] for pid in pids if (match := _RANK_LABEL.match(pid))}
    if len(ranks) > 1:
        raise ParseError(
            f"{path}: the traces of {len(ranks)} ranks merged into one, in which launches and kernels cannot be "
            "matched; give the traces it was made from, all of them or their directory"
        )


class _Collected:
    """Pieces put together under shared codes."""

    def __init__(self) -> None:
        self.text = TraceText()
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[Any, Any], int] = {}
        self.shapes: dict[str, int] = {}
        self.extras: dict[tuple[bytes, ...], int] = {}
        self.extra: dict[int, list[Ints]] = {KERNEL: [], OPERATOR: []}
        self.events = self.used = self.without_time = self.backwards = 0
        self._parts: list[dict[str, list[Ints]]] = [{c: [] for c in _COLUMNS} for _ in KINDS]

    def add(self, piece: Piece) -> None:
        name = np.array([self.names.setdefault(cut_name(n), len(self.names)) for n in piece.names], np.int32)
        thread = np.array([self.threads.setdefault(t, len(self.threads)) for t in piece.threads], np.int32)
        shape = np.array([self.shapes.setdefault(_shape(s), len(self.shapes)) for s in piece.shapes], np.int32)
        recode = {"name": name, "thread": thread, "shape": shape}
        for part, table in zip(self._parts, piece.tables, strict=True):
            if not len(table.start_ns):
                continue
            for column in _COLUMNS:
                values = table.__dict__[column]
                part[column].append(recode[column][values] if column in recode and len(values) else values)
        # One more, so that what has none (-1) stays at it.
        extra = np.array([*(self.extras.setdefault(e, len(self.extras)) for e in piece.extras), -1], np.int32)
        for kind, columns in self.extra.items():
            if len(numbers := piece.tables[kind].extra):
                columns.append(extra[numbers])
        self.events += piece.events
        self.used += sum(len(table.start_ns) for table in piece.tables) + piece.without_time + piece.backwards
        self.without_time += piece.without_time
        self.backwards += piece.backwards

    def has(self, kind: int) -> bool:
        return any(len(starts) for starts in self._parts[kind]["start_ns"])

    def table(self, kind: int) -> dict[str, Ints]:
        """The columns of one kind; the pieces are given up as they are joined."""
        part = self._parts[kind]
        joined = {}
        for column in _COLUMNS:
            values = part.pop(column)
            joined[column] = np.concatenate(values) if values else NO_ROWS.__dict__[column]
            del values
        return joined


def _build(path: Path, found: _Collected, *, detailed: bool) -> TorchTrace:
    operators, calls, ranges = found.table(OPERATOR), found.table(CALL), found.table(ANNOTATION)
    if not len(ranges["start_ns"]):
        operators, ranges = _told_apart(found, operators)
    frames = _host_events(found.table(FRAME))
    timeline = _timeline(path, found, calls, ranges, _host_events(operators), frames)
    kept = _kept_share(operators["correlation"])
    if kept is not None and kept < THINNED:
        note = (
            f"the trace holds {100 * kept:.1f} % of the operators that ran (the profiler numbers them): events were "
            "taken out of it after the recording, and work that is missing looks like idle time"
        )
        timeline = replace(timeline, kept_share=kept, notes=(*timeline.notes, note))
    return TorchTrace(
        timeline=timeline,
        operators=timeline.operators,
        modules=_host_events(found.table(MODULE)),
        events=found.events,
        detail=_detail(found, operators, calls, frames) if detailed else None,
        counters=read_counters(path) if len(found.table(COUNTED)["start_ns"]) else (),
    )


def _told_apart(found: _Collected, operators: dict[str, Ints]) -> tuple[dict[str, Ints], dict[str, Ints]]:
    """Operators, and the ranges among them: before torch 1.10 both have one category, and only names differ."""
    codes = [code for name, code in found.names.items() if name.startswith(MARKED_BY_TORCH)]
    marked = np.isin(operators["name"], codes)
    ranges = {column: values[marked] if len(values) else values for column, values in operators.items()}
    if not bool(marked.any()):
        return operators, ranges
    if found.extra[OPERATOR]:
        extra = np.concatenate(found.extra[OPERATOR])
        found.extra[OPERATOR] = [extra[~marked] if len(extra) else extra]
    return {column: values[~marked] if len(values) else values for column, values in operators.items()}, ranges


def _kept_share(number: Ints) -> float | None:
    """The part of the operators that are still in the trace, by number; None where there are too few to decide."""
    known = number[number >= 0]
    if len(known) < MIN_NUMBERED:
        return None
    return len(distinct(known)) / (int(known.max()) - int(known.min()) + 1)


def _detail(found: _Collected, operators: dict[str, Ints], calls: dict[str, Ints], frames: HostEvents) -> TraceDetail:
    memory = found.table(MEMORY)
    extra = {kind: np.concatenate(columns) for kind, columns in found.extra.items() if columns}
    none = np.zeros(0, np.int32)
    return TraceDetail(
        shapes=tuple(found.shapes),
        shape=operators["shape"],
        call_name=calls["name"],
        memory=MemoryEvents(
            at_ns=memory["start_ns"],
            thread=memory["thread"],
            device_type=memory["device"],
            changed_bytes=memory["size_bytes"],
            allocated_bytes=memory["allocated_bytes"],
        ),
        extras=tuple(found.extras),
        operator_extra=extra.get(OPERATOR, none),
        kernel_extra=extra.get(KERNEL, none),
        frames=frames,
    )


def _timeline(
    path: Path,
    found: _Collected,
    calls: dict[str, Ints],
    ranges: dict[str, Ints],
    operators: HostEvents,
    frames: HostEvents,
) -> Timeline:
    kernels, copies = found.table(KERNEL), found.table(COPY)
    # One process wrote the trace, so correlation ids are unique in it.
    work = [(t["correlation"], np.zeros(len(t["start_ns"]), np.int32)) for t in (kernels, copies)]
    links = join_calls(calls["correlation"], np.zeros(len(calls["start_ns"]), np.int32), work)
    head = found.text.head
    kernels["launch"], shapes = _launch_shapes(found, kernels["shape"])
    host_calls = _calls(calls, links.calls, found)
    is_counted = found.has(COUNTED)
    lost = 0 if is_counted else count_lost_launches(tuple(found.names), host_calls)
    is_empty = not (is_counted or links.calls[0].size or links.calls[1].size) and bool(
        len(host_calls) or found.has(PAUSE)
    )
    return Timeline(
        source=path.name,
        kind="torch",
        producer=_producer(head),
        schema=_text(head, "schemaVersion"),
        names=tuple(found.names),
        kernels=_activities(kernels, links.calls[0]),
        copies=_activities(copies, links.calls[1]) if len(links.calls[1]) else no_activities(),
        graphs=no_activities(),
        calls=host_calls,
        ranges=Ranges(
            start_ns=ranges["start_ns"],
            end_ns=ranges["end_ns"],
            name=ranges["name"].astype(np.int64),
            thread=ranges["thread"],
            process_wide=np.zeros(len(ranges["name"]), np.bool_),
        ),
        thread_process=np.zeros(max(len(found.threads), 1), np.int64),
        devices=_devices(head),
        notes=(*_notes(found), *links.notes, *lost_notes(lost, host_calls, is_empty=is_empty)),
        operators=operators,
        frames=_long(frames),
        pauses=_pauses(found.table(PAUSE)),
        origin=_origin(head),
        launch_shapes=shapes,
        thread_names=tuple(f"thread {tid}" for _, tid in found.threads),
        lost_launches=lost,
    )


def _launch_shapes(found: _Collected, shape: Ints) -> tuple[Ints, tuple[LaunchShape, ...]]:
    """Each kernel's launch by number, and the launches; none where the reading was not detailed."""
    none = np.zeros(0, np.int64)
    if not len(shape):
        return none, ()
    texts = list(found.shapes)
    used, inverse = np.unique(shape, return_inverse=True)
    shapes = [_launch_shape(texts[int(code)]) for code in used]
    place = np.cumsum([s is not None for s in shapes]) - 1
    place = np.where([s is None for s in shapes], -1, place)
    return place[inverse], tuple(s for s in shapes if s is not None)


def _launch_shape(text: str) -> LaunchShape | None:
    try:
        grid, block, registers, shared = json.loads(text or "[]")
        return LaunchShape(
            grid=tuple(int(n) for n in grid),
            block=tuple(int(n) for n in block),
            registers=None if registers is None else int(registers),
            shared_bytes=None if shared is None else int(shared),
        )
    except (ValueError, TypeError):
        return None


def _calls(table: dict[str, Ints], links: Sequence[Ints], found: _Collected) -> Calls:
    launches = np.zeros(len(table["start_ns"]), np.bool_)
    for link in links:
        launches[link[link >= 0]] = True
    waits = np.array([code for name, code in found.names.items() if _WAITS.search(name)], np.int64)
    return Calls(
        start_ns=table["start_ns"],
        end_ns=table["end_ns"],
        thread=table["thread"],
        name=table["name"],
        launches=launches,
        waits=np.isin(table["name"], waits),
        correlation=table["correlation"],
    )


def _activities(table: dict[str, Ints], call: Ints) -> Activities:
    return Activities(
        start_ns=table["start_ns"],
        end_ns=table["end_ns"],
        name=table["name"],
        call=call,
        process=np.zeros(len(call), np.int32),
        device=np.maximum(table["device"], 0),
        stream=table["stream"],
        size_bytes=table["size_bytes"] if len(table["size_bytes"]) else None,
        shape=table["launch"] if len(table.get("launch", ())) else None,
    )


def _long(frames: HostEvents) -> HostEvents:
    """Those that can explain a gap; a detailed reading has them all."""
    keep = frames.end_ns - frames.start_ns >= MIN_FRAME_NS
    return frames if bool(keep.all()) else frames.take(keep)


def _host_events(table: dict[str, Ints]) -> HostEvents:
    return HostEvents(
        start_ns=table["start_ns"],
        end_ns=table["end_ns"],
        name=table["name"],
        thread=table["thread"],
    )


def _pauses(table: dict[str, Ints]) -> HostEvents:
    """They are of the whole process, regardless of the thread written there."""
    return _host_events({**table, "thread": np.zeros(len(table["start_ns"]), np.int32)})


def _notes(found: _Collected) -> list[str]:
    notes = []
    if found.without_time:
        notes.append(f"left out: {count_of(found.without_time, 'event')} without a usable start or duration")
    if found.backwards:
        notes.append(f"left out: {count_of(found.backwards, 'event')} with a negative duration")
    if not found.events:
        notes.append("the trace holds no events")
    hosts = {pid for pid, _ in found.threads}
    if len(hosts) > 1:
        notes.append(f"{len(hosts)} host processes are in one trace and were taken as one")
    return notes


def _devices(head: dict[str, Any]) -> tuple[CapturedGpu, ...]:
    """The GPUs as torch describes them."""
    listed = head.get("deviceProperties")
    found = [d for d in listed if isinstance(d, dict) and "name" in d] if isinstance(listed, list) else []
    return tuple(
        CapturedGpu(
            name=as_utf8(str(d["name"])),
            sm_count=positive_or_none(d.get("numSms")),
            memory_bytes=positive_or_none(d.get("totalGlobalMem")),
            compute_capability=_capability(d),
        )
        for d in found
    )


def _origin(head: dict[str, Any]) -> Origin:
    """The rank torch wrote the trace on."""
    job, base = head.get("distributedInfo"), head.get("baseTimeNanoseconds")
    base_ns = base if type(base) is int and 0 <= base < LATEST_NS else 0
    if not isinstance(job, dict):
        return Origin(base_ns=base_ns)
    rank, size = (job.get(key) for key in ("rank", "world_size"))
    return Origin(
        rank=rank if type(rank) is int and rank >= 0 else None,
        world_size=positive_or_none(size),
        base_ns=base_ns,
    )


def _capability(device: dict[str, Any]) -> str | None:
    parts = [device[key] for key in ("computeMajor", "computeMinor") if key in device and type(device[key]) is int]
    return f"{parts[0]}.{parts[1]}" if len(parts) == 2 else None


def _producer(head: dict[str, Any]) -> str:
    cuda = _text(head, "cuda_runtime_version")
    if cuda is not None and cuda.isdecimal() and len(cuda) <= 9:
        return f"torch profiler, CUDA {int(cuda) // 1000}.{int(cuda) % 1000 // 10}"
    hip = _text(head, "hip_runtime_version")
    if hip is not None and hip.isdecimal() and len(hip) <= 9:
        return f"torch profiler, HIP {int(hip) // 10_000_000}.{int(hip) // 100_000 % 100}"
    return "torch profiler"


def _text(head: dict[str, Any], key: str) -> str | None:
    return as_utf8(str(head[key])) if key in head else None


def _shape(text: bytes) -> str:
    """Input shapes without spaces; empty where an operator has none."""
    return "".join(text.decode().split())

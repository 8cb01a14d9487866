"""A trace of torch_npu's profiler (trace_view.json, Huawei Ascend) as a TorchTrace.

The format is Chrome's with times as text. Device tasks are events of the process "Ascend Hardware", a stream a thread;
their task type says which of them is work. Collectives are events of the process "HCCL": the tasks they are made
of lie on their own stream, take the same time once more, and are left out. An operator starts a task through the
flow `async_npu`, whose end has the task's stream and start; the host's side of it is a call without a length.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llm_perf_opt.capture.intervals import Ints
from llm_perf_opt.capture.kernels.names import cut_name
from llm_perf_opt.capture.readers.torch_trace import MARKED_BY_TORCH, MIN_FRAME_NS, TorchTrace
from llm_perf_opt.capture.readers.trace_decode import LATEST_NS, MODULE_PREFIX, digits_to_ns
from llm_perf_opt.capture.readers.trace_rare import categories_of, not_from_torch
from llm_perf_opt.capture.readers.trace_text import TraceText, read_chunks, read_with_cuts
from llm_perf_opt.capture.timeline import (
    Activities,
    Calls,
    CapturedGpu,
    Codes,
    HostEvents,
    Ranges,
    Timeline,
    no_activities,
)
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import ParseError
from llm_perf_opt.system.arrays import keep_freed_memory

HARDWARE, COLLECTIVES, CANN = "Ascend Hardware", ("HCCL", "Communication"), "CANN"
# Work of the cores, as far as it was seen or is described; the rest waits, marks or belongs to a collective.
_COMPUTES = ("AI_CORE", "AI_CPU", "AI_VECTOR", "AIV", "AIC", "MIX_", "DSA")
_COPIES = "MEMCPY"
_BETWEEN_HOST_AND_DEVICE = "PCIE"
_NO_WORK = ("EVENT_", "Notify", "NOTIFY", "Write Value", "WRITE_VALUE", "PLACE_HOLDER", "SDMA", "FFTS", "Capture")
# Threads of the collectives' process: whole collectives, and the planes their parts run on.
_PLANE = "Plane"
# Streams of collectives lie beyond those of the device.
_FIRST_GROUP = 1 << 20
_NONE = msgspec.Raw(b"")


class _Args(msgspec.Struct, gc=False):
    name: Any = None
    kind: Any = msgspec.field(name="Task Type", default=None)


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: Any = ""
    cat: Any = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = _NONE
    dur: Any = None
    id: Any = None
    args: _Args | None = None


@dataclass
class _Rows:
    """Intervals with names and threads, as they are met."""

    start_ns: list[int] = field(default_factory=list)
    end_ns: list[int] = field(default_factory=list)
    name: list[int] = field(default_factory=list)
    thread: list[Any] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)

    def add(self, start_ns: int, length_ns: int, name: int, thread: Any, kind: str = "") -> None:
        self.start_ns.append(start_ns)
        self.end_ns.append(start_ns + length_ns)
        self.name.append(name)
        self.thread.append(thread)
        self.kind.append(kind)

    def times(self) -> tuple[Ints, Ints]:
        return np.array(self.start_ns, np.int64), np.array(self.end_ns, np.int64)


# When and on which thread a task was requested.
_Asked = tuple[int, tuple[Any, Any]]
# The stream of a piece of work, and who asked for it.
_Place = tuple[int, _Asked | None]


class _Collected:
    """What the pieces of a trace hold, before it is known which process is which."""

    def __init__(self) -> None:
        self.names: Codes[str] = Codes()
        self.processes: dict[Any, str] = {}
        self.threads: dict[tuple[Any, Any], str] = {}
        self.operators, self.ranges, self.frames, self.others = _Rows(), _Rows(), _Rows(), _Rows()
        # Where an operator asked for a task, by the flow's id; and the flow of a task, by its stream and start.
        self.asked: dict[Any, _Asked] = {}
        self.flows: dict[tuple[Any, Any, int], Any] = {}
        self.events = self.without_time = 0

    def add(self, event: _Event) -> None:
        if event.ph == "X":
            self._complete(event)
        elif event.ph == "M":
            said = event.args.name if event.args is not None else None
            if event.name == "process_name":
                self.processes[event.pid] = str(said)
            elif event.name == "thread_name":
                self.threads[event.pid, event.tid] = str(said)
        elif event.cat == "async_npu" and (at_ns := _time_ns(event.ts)) is not None:
            if event.ph == "s":
                self.asked[str(event.id)] = (at_ns, (event.pid, event.tid))
            elif event.ph == "f":
                self.flows[event.pid, event.tid, at_ns] = str(event.id)

    def _complete(self, event: _Event) -> None:
        self.events += 1
        start_ns, length = _time_ns(event.ts), event.dur
        if start_ns is None or type(length) not in (int, float) or not 0 <= length < LATEST_NS / 1000:
            self.without_time += 1
            return
        rows = {"cpu_op": self.operators, "user_annotation": self.ranges, "python_function": self.frames}
        kind = "" if event.args is None or event.args.kind is None else str(event.args.kind)
        code = self.names[cut_name(str(event.name))]
        thread = (event.pid, event.tid)
        rows.get(str(event.cat or ""), self.others).add(start_ns, round(1000 * length), code, thread, kind)

    def pids(self, *names: str) -> set[Any]:
        return {pid for pid, name in self.processes.items() if name in names}


def _time_ns(text: msgspec.Raw) -> int | None:
    """A time in microseconds, written as text or as a number; None where it is none."""
    try:
        found = digits_to_ns(bytes(text).strip(b'" '))
    except msgspec.DecodeError:
        return None
    return found if abs(found) < LATEST_NS else None


def read_ascend_trace(path: Path) -> TorchTrace:
    """Read a trace, or raise ParseError with what is wrong with it."""
    keep_freed_memory()

    def read(careful: bool) -> _Collected:
        found = _Collected()
        decoder = msgspec.json.Decoder(list[_Event])
        for piece in read_chunks(path, TraceText(), careful=careful):
            for event in decoder.decode(piece):
                found.add(event)
        return found

    found = read_with_cuts(path, read)
    if not found.pids(HARDWARE):
        categories = categories_of(path)
        if "cpu_op" not in categories:
            raise not_from_torch(path, categories)
        raise ParseError(
            f"{path}: a trace of torch_npu without the process {HARDWARE!r}, so without device tasks; record with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.NPU] and let the profiler parse what it recorded"
        )
    return _build(path, found)


def _build(path: Path, found: _Collected) -> TorchTrace:
    ranges, operators = found.ranges, found.operators
    names = list(found.names)
    if not ranges.name:
        operators, ranges = _told_apart(operators, names)
    threads: Codes[tuple[Any, Any]] = Codes()
    host_operators, host_ranges, frames = (_host_events(rows, threads) for rows in (operators, ranges, found.frames))
    kernels, copies, waits, left_out = _sorted_out(found, names)
    asked: Codes[_Asked] = Codes()
    tables = [_activities(rows, asked) for rows in (kernels, copies)]
    calls = _calls(found.names["torch_to_npu"], list(asked), waits, threads)
    notes = [f"left out: {count_of(n, 'device task')} of type {kind!r}" for kind, n in sorted(left_out.items())]
    if found.without_time:
        notes.append(f"left out: {count_of(found.without_time, 'event')} without a usable start or duration")
    if not waits.name:
        notes.append("no call that waits for the device was recorded; record with profiler_level Level1 to see them")
    timeline = Timeline(
        source=path.name,
        kind="torch",
        producer="torch_npu profiler",
        schema=None,
        names=tuple(found.names),
        kernels=tables[0],
        copies=tables[1],
        graphs=no_activities(),
        calls=calls,
        ranges=Ranges(
            start_ns=host_ranges.start_ns,
            end_ns=host_ranges.end_ns,
            name=host_ranges.name,
            thread=host_ranges.thread,
            process_wide=np.zeros(len(host_ranges), np.bool_),
        ),
        thread_process=np.zeros(max(len(threads), 1), np.int64),
        devices=(CapturedGpu(name="Ascend NPU"),),
        notes=tuple(notes),
        operators=host_operators,
        frames=frames.take(frames.end_ns - frames.start_ns >= MIN_FRAME_NS),
        thread_names=tuple(f"thread {tid}" for _, tid in threads),
    )
    modules = [code for code, name in enumerate(names) if name.startswith(MODULE_PREFIX)]
    return TorchTrace(
        timeline=timeline,
        operators=host_operators,
        modules=frames.take(np.isin(frames.name, modules)),
        events=found.events,
    )


def _sorted_out(found: _Collected, names: Sequence[str]) -> tuple[_Rows, _Rows, _Rows, Counter[str]]:
    """Kernels with collectives, copies, waits, and how many tasks of unknown types there are. Work has its place."""
    hardware, groups, cann = found.pids(HARDWARE), found.pids(*COLLECTIVES), found.pids(CANN)
    kernels, copies, waits = _Rows(), _Rows(), _Rows()
    left_out: Counter[str] = Counter()
    rows = found.others
    for start_ns, end_ns, code, (pid, tid), kind in zip(
        rows.start_ns, rows.end_ns, rows.name, rows.thread, rows.kind, strict=True
    ):
        length_ns, stream = end_ns - start_ns, tid if type(tid) is int else -1
        place: _Place = (stream, found.asked.get(found.flows.get((pid, tid, start_ns))))
        if pid in hardware:
            if names[code].startswith(_COPIES):
                copies.add(start_ns, length_ns, found.names[_copy_kind(kind)], place)
            elif kind.startswith(_COMPUTES):
                kernels.add(start_ns, length_ns, code, place)
            elif not kind.startswith(_NO_WORK):
                left_out[kind] += 1
        elif pid in groups and not found.threads.get((pid, tid), "").startswith(_PLANE):
            kernels.add(start_ns, length_ns, code, (_FIRST_GROUP + max(stream, 0), place[1]))
        elif pid in cann and "Synchronize" in names[code]:
            waits.add(start_ns, length_ns, code, (pid, tid))
    return kernels, copies, waits, left_out


def _copy_kind(kind: str) -> str:
    """A task says between what it copies, not in which direction."""
    return "Copy between host and device" if kind.startswith(_BETWEEN_HOST_AND_DEVICE) else "Copy Device-to-Device"


def _told_apart(operators: _Rows, names: Sequence[str]) -> tuple[_Rows, _Rows]:
    """Operators, and the ranges among them: where both are of one category, only names distinguish them."""
    marked = {code for code, name in enumerate(names) if name.startswith(MARKED_BY_TORCH)}
    parts = (_Rows(), _Rows())
    for start_ns, end_ns, code, thread in zip(
        operators.start_ns, operators.end_ns, operators.name, operators.thread, strict=True
    ):
        parts[code in marked].add(start_ns, end_ns - start_ns, code, thread)
    return parts


def _host_events(rows: _Rows, threads: Codes[tuple[Any, Any]]) -> HostEvents:
    start, end = rows.times()
    thread = np.array([threads[key] for key in rows.thread], np.int64)
    return HostEvents(start_ns=start, end_ns=end, name=np.array(rows.name, np.int64), thread=thread)


def _activities(rows: _Rows, asked: Codes[_Asked]) -> Activities:
    start, end = rows.times()
    count = len(start)
    return Activities(
        start_ns=start,
        end_ns=end,
        name=np.array(rows.name, np.int64),
        call=np.array([-1 if call is None else asked[call] for _, call in rows.thread], np.int64),
        process=np.zeros(count, np.int64),
        device=np.zeros(count, np.int64),
        stream=np.array([stream for stream, _ in rows.thread], np.int64),
    )


def _calls(name: int, asked: Sequence[_Asked], waits: _Rows, threads: Codes[tuple[Any, Any]]) -> Calls:
    """Who asked for work, in the order of the codes, and then who waited for it."""
    at = np.array([at_ns for at_ns, _ in asked], np.int64)
    start, end = waits.times()
    launches = np.arange(len(at) + len(start)) < len(at)
    return Calls(
        start_ns=np.concatenate((at, start)),
        end_ns=np.concatenate((at, end)),
        thread=np.array([threads[key] for _, key in asked] + [threads[key] for key in waits.thread], np.int64),
        name=np.array([name] * len(at) + waits.name, np.int64),
        launches=launches,
        waits=~launches,
    )

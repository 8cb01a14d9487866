"""Keeps of a trace's events only numbers, in columns: what ran on CPU threads, and what ran on the device."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from llm_perf_opt.profiling.parsers.trace_chunks import read_with_cuts
from llm_perf_opt.workload.trace_events import TraceEvent, read_events

T = TypeVar("T")

OPERATOR = 0
RUNTIME = 1
ANNOTATION = 2
MEMORY = 3
NOTHING = -1
CPU_DEVICE_TYPE = 0
_KINDS = {"cpu_op": OPERATOR, "cuda_runtime": RUNTIME, "cuda_driver": RUNTIME, "user_annotation": ANNOTATION}
_DEVICE = frozenset(["kernel", "gpu_memcpy", "gpu_memset"])
_MEMORY_EVENT = "[memory]"


class Numbers(dict[T, int], Generic[T]):
    """A number for every different value, in the order they came."""

    def __missing__(self, value: T) -> int:
        number = self[value] = len(self)
        return number


@dataclass(kw_only=True)
class EventColumns:
    """Columns every timed event has; times in microseconds as the trace has them."""

    start_us: "array[float]" = field(default_factory=lambda: array("d"))
    duration_us: "array[float]" = field(default_factory=lambda: array("d"))
    name: "array[int]" = field(default_factory=lambda: array("i"))
    external_id: "array[int]" = field(default_factory=lambda: array("q"))
    correlation: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, events: Sequence[TraceEvent], names: Numbers[str]) -> None:
        args = [event.args for event in events]
        self.start_us.extend([event.ts for event in events])
        self.duration_us.extend([event.dur for event in events])
        self.name.extend([names[event.name] for event in events])
        self.external_id.extend([a.external_id for a in args])
        self.correlation.extend([a.correlation for a in args])


@dataclass(kw_only=True)
class CpuColumns(EventColumns):
    """Operators, runtime calls, annotations and changes of memory on CPU threads."""

    kind: "array[int]" = field(default_factory=lambda: array("b"))
    thread: "array[int]" = field(default_factory=lambda: array("i"))
    shape: "array[int]" = field(default_factory=lambda: array("i"))
    bytes_changed: "array[int]" = field(default_factory=lambda: array("q"))
    device_type: "array[int]" = field(default_factory=lambda: array("b"))


@dataclass(kw_only=True)
class TraceColumns:
    """A whole trace, about 60 bytes an event."""

    cpu: CpuColumns = field(default_factory=CpuColumns)
    device: EventColumns = field(default_factory=EventColumns)
    names: Numbers[str] = field(default_factory=Numbers)
    shapes: Numbers[bytes] = field(default_factory=Numbers)
    threads: Numbers[tuple[int | str, int | str]] = field(default_factory=Numbers)

    def shape_texts(self) -> list[str]:
        """The input shapes by number; the empty text where an event has none."""
        return ["".join(shape.decode().split()) for shape in self.shapes]


def read_columns(path: Path) -> TraceColumns:
    """Take what the tables need out of a trace; Python frames, flows and metadata are left out."""
    return read_with_cuts(path, lambda careful: _collect(read_events(path, careful=careful)))


def _collect(pieces: Iterable[list[TraceEvent]]) -> TraceColumns:
    columns = TraceColumns()
    for events in pieces:
        timed = [event for event in events if event.ph == "X"]
        _add_cpu(columns, [event for event in timed if event.cat in _KINDS])
        columns.device.add([event for event in timed if event.cat in _DEVICE], columns.names)
        _add_cpu(columns, [event for event in events if event.name == _MEMORY_EVENT and event.ph == "i"])
    return columns


def _add_cpu(columns: TraceColumns, events: Sequence[TraceEvent]) -> None:
    cpu, threads, shapes = columns.cpu, columns.threads, columns.shapes
    cpu.add(events, columns.names)
    # Memory events are the only ones here that are of no category in the table.
    cpu.kind.extend([_KINDS.get(event.cat, MEMORY) for event in events])
    cpu.thread.extend([threads[event.pid, event.tid] for event in events])
    cpu.shape.extend([shapes[bytes(event.args.input_dims)] for event in events])
    cpu.bytes_changed.extend([event.args.bytes_changed for event in events])
    cpu.device_type.extend([event.args.device_type for event in events])

"""Memory events of a torch trace: how many bytes were allocated when, by device: in a window, and over the capture."""

from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Ints

MAX_POINTS = 5_000
CURVE_POINTS = 600
CPU_TYPE = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryEvents:
    """What each event changed, and what was allocated in all after it (-1: not said)."""

    at_ns: Ints
    thread: Ints
    device_type: Ints
    changed_bytes: Ints
    allocated_bytes: Ints

    def __len__(self) -> int:
        return len(self.at_ns)


def memory_counters(memory: MemoryEvents, window_ns: tuple[int, int]) -> dict[str, tuple[tuple[int, int], ...]]:
    """`(time since the window began, bytes)` by device, thinned to a drawable number; empty without memory events."""
    start, end = window_ns
    inside = (memory.at_ns >= start) & (memory.at_ns <= end) & (memory.allocated_bytes >= 0)
    found: dict[str, list[tuple[int, int]]] = {}
    for at in np.flatnonzero(inside).tolist():
        device = "CPU" if memory.device_type[at] == CPU_TYPE else "GPU"
        found.setdefault(device, []).append((int(memory.at_ns[at]) - start, int(memory.allocated_bytes[at])))
    return {device: tuple(_thin(sorted(points))) for device, points in found.items()}


@dataclass(frozen=True, kw_only=True)
class MemoryCurve:
    """What torch's allocator held on one kind of device over a trace; times since the first memory event.

    `largest_bytes` is the largest single allocation. `points` are thinned, and keep every peak.
    """

    source: str
    device: str
    events: int
    length_ns: int
    first_bytes: int
    last_bytes: int
    peak_bytes: int
    peak_at_ns: int
    largest_bytes: int
    points: tuple[tuple[int, int], ...]


def memory_curves(memory: MemoryEvents, source: str) -> tuple[MemoryCurve, ...]:
    """GPU first; none where the trace has no memory events."""
    known = np.flatnonzero(memory.allocated_bytes >= 0)
    if not len(known):
        return ()
    known = known[np.argsort(memory.at_ns[known], kind="stable")]
    begin, length_ns = int(memory.at_ns[known[0]]), int(memory.at_ns[known[-1]] - memory.at_ns[known[0]])
    on_cpu = memory.device_type[known] == CPU_TYPE
    found = []
    for device, mine in (("GPU", known[~on_cpu]), ("CPU", known[on_cpu])):
        if not len(mine):
            continue
        at, held = memory.at_ns[mine] - begin, memory.allocated_bytes[mine]
        peak = int(np.argmax(held))
        points = _thin(list(zip(at.tolist(), held.tolist(), strict=True)), CURVE_POINTS)
        found.append(
            MemoryCurve(
                source=source,
                device=device,
                events=len(mine),
                length_ns=length_ns,
                first_bytes=int(held[0]),
                last_bytes=int(held[-1]),
                peak_bytes=int(held[peak]),
                peak_at_ns=int(at[peak]),
                largest_bytes=max(int(memory.changed_bytes[mine].max()), 0),
                points=tuple(points),
            )
        )
    return tuple(found)


def _thin(points: list[tuple[int, int]], most: int = MAX_POINTS) -> list[tuple[int, int]]:
    """Of too many points the highest of each stretch, so that no peak is lost."""
    if len(points) <= most:
        return points
    size = -(-len(points) // most)
    return [max(points[i : i + size], key=lambda p: p[1]) for i in range(0, len(points), size)]

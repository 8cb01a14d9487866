"""Memory events of a torch trace: how many bytes were allocated when, by device, inside one window of time."""

from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.timeline.intervals import Ints

MAX_POINTS = 5_000
CPU_TYPE = 0


@dataclass(frozen=True, kw_only=True)
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


def _thin(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of too many points the highest of each stretch, so that no peak is lost."""
    if len(points) <= MAX_POINTS:
        return points
    size = -(-len(points) // MAX_POINTS)
    return [max(points[i : i + size], key=lambda p: p[1]) for i in range(0, len(points), size)]

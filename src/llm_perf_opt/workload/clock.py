"""Clocks: synchronised host time at phase edges, and marks between them that never wait for the device."""

import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from llm_perf_opt.workload.nvtx import RangeEmitter

NS_PER_MS = 1e6


class Clock(Protocol):
    """`edge_ns` waits until the device has done all its work; `mark` does not wait, and is read only after an edge."""

    def edge_ns(self) -> int: ...

    def mark(self) -> Any: ...

    def between_ms(self, first: Any, second: Any) -> float: ...


class HostClock:
    """For work the calling thread does itself: nothing to wait for."""

    def edge_ns(self) -> int:
        return time.perf_counter_ns()

    def mark(self) -> Any:
        return time.perf_counter_ns()

    def between_ms(self, first: Any, second: Any) -> float:
        return float(second - first) / NS_PER_MS


class CudaClock:
    """Edges by torch.cuda.synchronize and the host's clock; marks are CUDA events on the current stream."""

    def __init__(self, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._synchronize = torch.cuda.synchronize
        self._event = torch.cuda.Event

    def edge_ns(self) -> int:
        self._synchronize(self._device)
        return time.perf_counter_ns()

    def mark(self) -> Any:
        event = self._event(enable_timing=True)
        event.record()
        return event

    def between_ms(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second))


def clock_for(device: str) -> Clock:
    """The clock that fits a torch device name."""
    return CudaClock(device) if device.startswith("cuda") else HostClock()


def gaps_ms(clock: Clock, marks: Sequence[Any]) -> tuple[float, ...]:
    """The times between successive marks."""
    return tuple(clock.between_ms(a, b) for a, b in itertools.pairwise(marks))


class PartClock:
    """Times named parts of prefill (a `RangeFactory`): opens the NVTX range and puts a mark at both ends."""

    def __init__(self, clock: Clock, ranges: RangeEmitter) -> None:
        self._clock = clock
        self._ranges = ranges
        self._marks: list[tuple[str, Any, Any]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._ranges.push(name)
        start = self._clock.mark()
        try:
            yield
        finally:
            self._marks.append((name, start, self._clock.mark()))
            self._ranges.pop()

    def totals_ms(self) -> dict[str, float]:
        """The time of each part, summed over the times it was opened. Read only after an edge."""
        totals: dict[str, float] = {}
        for name, start, end in self._marks:
            totals[name] = totals.get(name, 0.0) + self._clock.between_ms(start, end)
        return totals

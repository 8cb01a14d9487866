"""What the machine was like while something was measured: other programs on it, and how fast its cores ran."""

import os
import time

import psutil

# Time in which a core did nothing, or belonged to another virtual machine's guests already counted as user time.
_NOT_WORK = ("idle", "iowait", "guest", "guest_nice")
# About half a millisecond: long enough for the clock, short enough to fit between two samples.
PROBE_LOOPS = 20_000
PROBE_TRIES = 3


class OtherLoad:
    """Starts counting when made."""

    def __init__(self) -> None:
        self._start_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), _own_s()

    def cpus(self) -> float:
        """The cores that others kept busy since then, on average."""
        wall_s = max(time.monotonic() - self._start_s, 1e-9)
        return round(max(0.0, (_busy_s() - self._busy_s) - (_own_s() - self._own_s)) / wall_s, 3)


def host_probe_ms() -> float:
    """How long one core takes for a fixed piece of Python work, the best of a few tries.

    Launching kernels is such work. On a shared H200 host it took five times as long in one minute as in the next, with
    the launching thread on its core all the time and the GPU's clock unmoved: nothing else on the machine shows that.
    """
    best = float("inf")
    for _ in range(PROBE_TRIES):
        start = time.perf_counter_ns()
        for _ in range(PROBE_LOOPS):
            pass
        best = min(best, (time.perf_counter_ns() - start) / 1e6)
    return best


def cpu_count() -> int:
    return os.cpu_count() or 1


def _busy_s() -> float:
    times = psutil.cpu_times()._asdict()
    return float(sum(value for name, value in times.items() if name not in _NOT_WORK))


def _own_s() -> float:
    used = psutil.Process().cpu_times()
    return float(used.user + used.system)

"""How busy other programs kept the machine while something was measured."""

import os
import time

import psutil

# Time in which a core did nothing, or belonged to another virtual machine's guests already counted as user time.
_NOT_WORK = ("idle", "iowait", "guest", "guest_nice")


class OtherLoad:
    """Starts counting when made."""

    def __init__(self) -> None:
        self._start_s, self._busy_s, self._own_s = time.monotonic(), _busy_s(), _own_s()

    def cpus(self) -> float:
        """The cores that others kept busy since then, on average."""
        wall_s = max(time.monotonic() - self._start_s, 1e-9)
        return round(max(0.0, (_busy_s() - self._busy_s) - (_own_s() - self._own_s)) / wall_s, 3)


def cpu_count() -> int:
    return os.cpu_count() or 1


def _busy_s() -> float:
    times = psutil.cpu_times()._asdict()
    return float(sum(value for name, value in times.items() if name not in _NOT_WORK))


def _own_s() -> float:
    used = psutil.Process().cpu_times()
    return float(used.user + used.system)

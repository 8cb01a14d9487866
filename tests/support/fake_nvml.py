"""A GPU behind the functions of nvidia-ml-py: power, and an energy counter that is refreshed now and then."""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    """As nvidia-ml-py raises it: with the code of the library."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {3: "Not Supported", 6: "Not Found", 9: "Driver Not Loaded"}.get(self.value, f"code {self.value}")


class FakeNvml:
    """Stands in for the module `pynvml`. `power_w` gives the power at a moment of `time.monotonic_ns()`.

    The energy counter integrates that power exactly and shows its value as it was at the last multiple of `refresh_ns`.
    """

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    def __init__(
        self,
        *,
        gpus: int = 1,
        power_w: Callable[[int], float] = lambda at_ns: 312.5,
        energy_j: Callable[[int], float] | None = None,
        refresh_ns: int = 1,
        missing: frozenset[str] = frozenset(),
        init_code: int = 0,
        throttle_mask: int = 0x4 | 0x20,
        clock_mhz: Callable[[int], int] = lambda at_ns: 1725,
        utilisation_pct: int = 87,
    ) -> None:
        self._gpus, self._power_w, self._energy_j, self._refresh_ns = gpus, power_w, energy_j, refresh_ns
        self._missing, self._init_code = missing, init_code
        self._throttle_mask, self._clock_mhz = throttle_mask, clock_mhz
        self._utilisation_pct = utilisation_pct
        self.asked = 0

    def __getattribute__(self, name: str) -> Any:
        """A function in `missing` is not there at all, as in older bindings."""
        if name.startswith("nvml") and name in super().__getattribute__("_missing"):
            raise AttributeError(name)
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:
        if self._init_code:
            raise NVMLError(self._init_code)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index >= self._gpus:
            raise NVMLError(6)
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid != "GPU-8c1f":
            raise NVMLError(6)
        return 0

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        return 1980

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return 700_000

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return round(self._power_w(time.monotonic_ns()) * 1e3)

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[int]) -> list[Any]:
        assert fields == [186]
        value = SimpleNamespace(uiVal=round(self._power_w(time.monotonic_ns()) * 1e3))
        return [SimpleNamespace(nvmlReturn=0, value=value)]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        if self._energy_j is None:
            raise NVMLError(3)
        at_ns = time.monotonic_ns()
        return round(self._energy_j(at_ns - at_ns % self._refresh_ns) * 1e3)

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        self.asked += 1
        return self._clock_mhz(time.monotonic_ns())

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 61

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=150_000_000_000, free=145_000_000_000, used=5_000_000_000)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self._throttle_mask

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=self._utilisation_pct, memory=40)

"""Samples power, clocks, temperature and memory of a GPU through the driver's own library, from beside the workload.

The library (NVML) is part of every NVIDIA driver; asking it takes microseconds and needs neither CUDA nor a process.
"""

import ctypes
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.core.documents import ClockDocument, ClockSample
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import GPU_SAMPLES_FILE
from llm_perf_opt.core.records import StageFile

LIBRARY = "libnvidia-ml.so.1"
INTERVAL_S = 0.1
# Nine hours at this interval; after that every further sample would be one too many.
MAX_SAMPLES = 324_000
SM_CLOCK, ON_GPU = 1, 0
NOT_SUPPORTED = 3
NO_REASONS = "the driver does not say why it lowers clocks: whether the GPU was throttled is not known"
# nvmlClocksEventReasons of nvml.h.
REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


class _Utilisation(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@dataclass(kw_only=True)
class GpuSamples:
    """What was sampled; `reason` says why there is nothing, or what of it is missing."""

    device: str = ""
    max_sm_clock_mhz: int | None = None
    power_limit_w: float | None = None
    samples: list[ClockSample] = field(default_factory=list)
    reason: str | None = None


class NvmlDevice:
    """One GPU. A question the device does not answer gives None."""

    def __init__(self, library: Any, index: int) -> None:
        self._library = library
        self._handle = ctypes.c_void_p()
        if self._ask("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(self._handle)) != 0:
            raise OSError(f"the driver knows no GPU {index}")

    def name(self) -> str:
        text = ctypes.create_string_buffer(96)
        code = self._ask("nvmlDeviceGetName", self._handle, text, ctypes.c_uint(len(text)))
        return text.value.decode("utf-8", "replace") if code == 0 else "unknown GPU"

    def max_sm_clock_mhz(self) -> int | None:
        return self._number("nvmlDeviceGetMaxClockInfo", ctypes.c_int(SM_CLOCK))

    def power_limit_w(self) -> float | None:
        milliwatts = self._number("nvmlDeviceGetEnforcedPowerLimit")
        return None if milliwatts is None else milliwatts / 1e3

    def sample(self, at_ns: int) -> ClockSample:
        milliwatts = self._number("nvmlDeviceGetPowerUsage")
        return ClockSample(
            at_ns=at_ns,
            power_w=None if milliwatts is None else milliwatts / 1e3,
            sm_clock_mhz=self._number("nvmlDeviceGetClockInfo", ctypes.c_int(SM_CLOCK)),
            temperature_c=self._number("nvmlDeviceGetTemperature", ctypes.c_int(ON_GPU)),
            memory_used_bytes=self._memory_used(),
            utilisation_pct=self._utilisation(),
            throttle_reasons=self._reasons(),
        )

    def _number(self, question: str, *args: Any) -> int | None:
        answer = ctypes.c_uint()
        code = self._ask(question, self._handle, *args, ctypes.byref(answer))
        return answer.value if code == 0 else None

    def _ask(self, question: str, *args: Any) -> int:
        """The library's answer code; a function this driver does not have is an error like any other."""
        try:
            function = self._library[question]
        except AttributeError:
            return NOT_SUPPORTED
        return int(function(*args))

    def _memory_used(self) -> int | None:
        memory = _Memory()
        code = self._ask("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return int(memory.used) if code == 0 else None

    def _utilisation(self) -> int | None:
        """Percent of the driver's last sample period in which a kernel ran."""
        busy = _Utilisation()
        code = self._ask("nvmlDeviceGetUtilizationRates", self._handle, ctypes.byref(busy))
        return int(busy.gpu) if code == 0 else None

    def _reasons(self) -> tuple[str, ...] | None:
        """Why the clocks are lowered now; empty: for no reason, None: the driver does not say."""
        mask = ctypes.c_ulonglong()
        code = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", self._handle, ctypes.byref(mask))
        return tuple(name for bit, name in REASONS.items() if mask.value & bit) if code == 0 else None


@contextmanager
def sample_gpu(index: int | None, *, library: Any = None, interval_s: float = INTERVAL_S) -> Iterator[GpuSamples]:
    """Sample while the block runs; without a GPU or its library the block runs all the same."""
    found = GpuSamples()
    device = _open(index, library, found)
    if device is None:
        yield found
        return
    stop = threading.Event()
    thread = threading.Thread(target=_sample, args=(device, found, stop, interval_s), daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
        if found.samples and all(sample.throttle_reasons is None for sample in found.samples):
            found.reason = NO_REASONS


def _open(index: int | None, library: Any, found: GpuSamples) -> NvmlDevice | None:
    if index is None:
        found.reason = "no GPU to sample"
        return None
    try:
        loaded = ctypes.CDLL(LIBRARY) if library is None else library
        if loaded["nvmlInit_v2"]() != 0:
            raise OSError("the driver's library could not be initialised")
        device = NvmlDevice(loaded, index)
    except (OSError, AttributeError) as error:
        found.reason = f"power and clocks could not be sampled: {error}"
        return None
    found.device = device.name()
    found.max_sm_clock_mhz = device.max_sm_clock_mhz()
    found.power_limit_w = device.power_limit_w()
    return device


def _sample(device: NvmlDevice, found: GpuSamples, stop: threading.Event, interval_s: float) -> None:
    while len(found.samples) < MAX_SAMPLES:
        found.samples.append(device.sample(time.monotonic_ns()))
        if stop.wait(interval_s):
            return


def gpu_index(device: str, environ: Mapping[str, str]) -> int | None:
    """The driver's number of the GPU a run uses, or None for a CPU and for lists that name GPUs by id."""
    if device == "cpu":
        return None
    wanted = int(device.removeprefix("cuda:")) if device.startswith("cuda:") else 0
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return wanted
    numbers = [part.strip() for part in visible.split(",")]
    if wanted >= len(numbers) or not numbers[wanted].isdecimal():
        return None
    return int(numbers[wanted])


def samples_file(found: GpuSamples, out_dir: Path) -> list[StageFile]:
    """gpu_samples.json, when there are samples."""
    if not found.samples:
        return []
    content = ClockDocument(
        device=found.device,
        interval_ms=INTERVAL_S * 1e3,
        max_sm_clock_mhz=found.max_sm_clock_mhz,
        power_limit_w=found.power_limit_w,
        samples=tuple(found.samples),
    )
    return [StageFile(role="gpu_samples", path=write_json(out_dir / GPU_SAMPLES_FILE, content))]

"""Samples power, energy, clocks, temperature and memory of GPUs through NVIDIA's own bindings, alongside the workload.

nvidia-ml-py speaks to the driver's library (NVML), which is part of every driver; asking it takes microseconds and
needs neither CUDA nor a process. This is the only module that asks it, and it imports the bindings when it is used.
"""

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llm_perf_opt.core.documents import ClockDocument, ClockSample
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import GPU_SAMPLES_FILE
from llm_perf_opt.core.records import StageFile
from llm_perf_opt.core.stage import StageContext

INTERVAL_S = 0.1
# Nine hours at this interval; after that every further sample would be one too many.
MAX_SAMPLES = 324_000
NO_BINDINGS = "the package nvidia-ml-py is not installed: pip install nvidia-ml-py"
NO_REASONS = "the driver does not say why it lowers clocks: whether the GPU was throttled is not known"
# From Ampere on, nvmlDeviceGetPowerUsage is the mean of the last second; this field is the power of the moment.
INSTANT, AVERAGED = "power of the moment", "power as nvmlDeviceGetPowerUsage says it, averaged over up to a second"
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


@dataclass(kw_only=True)
class GpuSamples:
    """What was sampled of one GPU; `reason` says why there is nothing, or which part is missing."""

    device: str = ""
    max_sm_clock_mhz: float | None = None
    power_limit_w: float | None = None
    power_how: str = ""
    samples: list[ClockSample] = field(default_factory=list)
    reason: str | None = None


class NvmlDevice:
    """One GPU by the driver's number or its UUID. A question the device does not answer gives None."""

    def __init__(self, library: Any, which: int | str) -> None:
        self._library = library
        by = library.nvmlDeviceGetHandleByIndex if isinstance(which, int) else library.nvmlDeviceGetHandleByUUID
        try:
            self._handle = by(which)
        except library.NVMLError as error:
            raise OSError(f"the driver knows no GPU {which} ({error})") from error
        self._has_instant_power = self._power_of_the_moment() is not None
        self.power_how = INSTANT if self._has_instant_power else AVERAGED

    def name(self) -> str:
        return str(self._ask("nvmlDeviceGetName") or "unknown GPU")

    def max_sm_clock_mhz(self) -> float | None:
        clock: float | None = self._ask("nvmlDeviceGetMaxClockInfo", self._library.NVML_CLOCK_SM)
        return clock

    def power_limit_w(self) -> float | None:
        return _thousandth(self._ask("nvmlDeviceGetEnforcedPowerLimit"))

    def sample(self, at_ns: int) -> ClockSample:
        power = self._power_of_the_moment() if self._has_instant_power else self._ask("nvmlDeviceGetPowerUsage")
        memory = self._ask("nvmlDeviceGetMemoryInfo")
        busy = self._ask("nvmlDeviceGetUtilizationRates")
        return ClockSample(
            at_ns=at_ns,
            energy_j=_thousandth(self._ask("nvmlDeviceGetTotalEnergyConsumption")),
            power_w=_thousandth(power),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", self._library.NVML_CLOCK_SM),
            temperature_c=self._ask("nvmlDeviceGetTemperature", self._library.NVML_TEMPERATURE_GPU),
            memory_used_bytes=None if memory is None else int(memory.used),
            utilisation_pct=None if busy is None else int(busy.gpu),
            throttle_reasons=self._reasons(),
        )

    def _ask(self, question: str, *args: Any) -> Any:
        """The answer; None where the device, the driver or these bindings do not know the question."""
        try:
            return getattr(self._library, question)(self._handle, *args)
        except (AttributeError, self._library.NVMLError):
            return None

    def _power_of_the_moment(self) -> int | None:
        """In milliwatts; the field is queried by number, because older bindings do not name it."""
        answer = self._ask("nvmlDeviceGetFieldValues", [POWER_INSTANT_FIELD])
        return None if answer is None or answer[0].nvmlReturn != 0 else int(answer[0].value.uiVal)

    def _reasons(self) -> tuple[str, ...] | None:
        """Why the clocks are lowered now; empty: for no reason, None: the driver does not say."""
        mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons")
        return None if mask is None else tuple(name for bit, name in REASONS.items() if mask & bit)


# NVML_FI_DEV_POWER_INSTANT of nvml.h.
POWER_INSTANT_FIELD = 186


def _thousandth(value: float | None) -> float | None:
    """Milliwatts as watts, millijoules as joules."""
    return None if value is None else value / 1e3


@contextmanager
def sample_gpu(which: int | str | None, *, library: Any = None, interval_s: float = INTERVAL_S) -> Iterator[GpuSamples]:
    """Sample while the block runs; without a GPU or its library the block runs all the same."""
    found = GpuSamples()
    device = _open(which, library, found)
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


@contextmanager
def sample_gpus(ctx: StageContext, *, interval_s: float = INTERVAL_S) -> Iterator[tuple[GpuSamples, ...]]:
    """Sample the GPUs of the workload while the block runs: one for our own model, all visible for a program."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(sample_gpu(w, interval_s=interval_s)) for w in gpus_of_run(ctx, os.environ))


def _open(which: int | str | None, library: Any, found: GpuSamples) -> NvmlDevice | None:
    if which is None:
        found.reason = "no GPU to sample"
        return None
    try:
        loaded = _bindings() if library is None else library
    except ModuleNotFoundError:
        found.reason = f"power and clocks could not be sampled: {NO_BINDINGS}"
        return None
    try:
        loaded.nvmlInit()
        device = NvmlDevice(loaded, which)
    except (OSError, loaded.NVMLError) as error:
        found.reason = f"power and clocks could not be sampled: {error}"
        return None
    found.device = device.name()
    found.max_sm_clock_mhz = device.max_sm_clock_mhz()
    found.power_limit_w = device.power_limit_w()
    found.power_how = device.power_how
    return device


def _bindings() -> Any:
    import pynvml

    return pynvml


def _sample(device: NvmlDevice, found: GpuSamples, stop: threading.Event, interval_s: float) -> None:
    due = time.monotonic()
    while len(found.samples) < MAX_SAMPLES:
        found.samples.append(device.sample(time.monotonic_ns()))
        if stop.is_set():
            # Asked once more after the end: on a busy machine the last answers may be far from it.
            return
        # Measured from the last due time, so that the time of asking does not add up.
        due = max(due + interval_s, time.monotonic())
        stop.wait(due - time.monotonic())


def gpu_index(device: str, environ: Mapping[str, str]) -> int | str | None:
    """The driver's number or UUID of the GPU a run uses, or None for a CPU."""
    if device == "cpu":
        return None
    wanted = int(device.removeprefix("cuda:")) if device.startswith("cuda:") else 0
    listed = _visible(environ)
    if listed is None:
        return wanted
    return listed[wanted] if wanted < len(listed) else None


def gpus_of_run(ctx: StageContext, environ: Mapping[str, str]) -> tuple[int | str, ...]:
    """The GPUs to sample alongside a run's workload; none on a machine without."""
    if not ctx.host.gpus:
        return ()
    if ctx.config.workload.command is None:
        one = gpu_index(ctx.config.run.device, environ)
        return () if one is None else (one,)
    listed = _visible(environ)
    return tuple(gpu.index for gpu in ctx.host.gpus) if listed is None else listed


def _visible(environ: Mapping[str, str]) -> tuple[int | str, ...] | None:
    """What CUDA_VISIBLE_DEVICES names, up to the first entry CUDA itself would not take; None: it is not set."""
    text = environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return None
    found: list[int | str] = []
    for part in (one.strip() for one in text.split(",")):
        if part.isdecimal():
            found.append(int(part))
        elif part.startswith(("GPU-", "MIG-")):
            found.append(part)
        else:
            break
    return tuple(found)


def samples_file(found: GpuSamples, out_dir: Path, *, interval_s: float = INTERVAL_S) -> list[StageFile]:
    """gpu_samples.json, when there are samples."""
    if not found.samples:
        return []
    content = ClockDocument(
        device=found.device,
        interval_ms=interval_s * 1e3,
        max_sm_clock_mhz=found.max_sm_clock_mhz,
        power_limit_w=found.power_limit_w,
        power_how=found.power_how or None,
        epoch_offset_ns=time.time_ns() - time.monotonic_ns(),
        samples=tuple(found.samples),
    )
    return [StageFile(role="gpu_samples", path=write_json(out_dir / GPU_SAMPLES_FILE, content))]

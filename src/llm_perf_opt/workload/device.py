"""The device a run uses, and the facts about it and the model that metrics.json states.

Peak memory of a piece of work: the CUDA allocator's on a GPU, the process's resident set on a CPU.
"""

import platform
from pathlib import Path
from typing import Protocol

from llm_perf_opt.core.documents import RanModel
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.models.base import LoadedModel

CPUINFO = Path("/proc/cpuinfo")


def resolve_device(wanted: str) -> str:
    """`run.device` as a torch device name; `auto` is the first GPU or else the CPU. A GPU becomes the current one."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        wanted = "cuda:0" if count else "cpu"
    if wanted == "cpu":
        return wanted
    index = int(wanted.partition(":")[2])
    if index >= count:
        have = "no GPU that torch can use" if count == 0 else f"cuda:0 to cuda:{count - 1}"
        build = "a CPU build" if torch.version.cuda is None else f"built for CUDA {torch.version.cuda}"
        raise ConfigError(
            f"run.device: not there (got {wanted!r}), this machine has {have} (torch {torch.__version__}, {build}); "
            "allowed: auto, cpu or a device that exists"
        )
    # CUDA events are recorded on the current device.
    torch.cuda.set_device(index)
    return wanted


def start_cuda_profiler() -> None:
    """Open the capture of a profiler that waits for cudaProfilerStart (nsys, ncu)."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.profiler.start()


def stop_cuda_profiler() -> None:
    """Close it, after all that was started has run."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def describe_model(name: str, model: LoadedModel) -> RanModel:
    """What metrics.json says about the model and where it ran."""
    import torch

    on_gpu = model.device.startswith("cuda")
    return RanModel(
        name=name,
        parameters=sum(p.numel() for p in model.module.parameters()),
        dtype=model.dtype,
        device=model.device,
        device_name=torch.cuda.get_device_name(model.device) if on_gpu else cpu_name(CPUINFO),
        torch=str(torch.__version__),
        threads=torch.get_num_threads(),
        notes=tuple(model.notes),
    )


def cpu_name(cpuinfo: Path) -> str:
    """The processor's own name where Linux reports it, else the architecture."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.machine()


CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


class PeakMemory(Protocol):
    """`reset` before the work, `peak_bytes` after it; None when this machine cannot say, then `reason` says why."""

    @property
    def how(self) -> str: ...

    @property
    def reason(self) -> str | None: ...

    def reset(self) -> None: ...

    def peak_bytes(self) -> int | None: ...


class CudaPeak:
    """The most bytes of tensors alive at once, as torch's caching allocator counts them."""

    how = "torch.cuda.max_memory_allocated, reset before each sample; weights included"
    reason: str | None = None

    def __init__(self, device: str) -> None:
        import torch

        self._cuda = torch.cuda
        self._device = torch.device(device)

    def reset(self) -> None:
        self._cuda.reset_peak_memory_stats(self._device)

    def peak_bytes(self) -> int | None:
        return int(self._cuda.max_memory_allocated(self._device))


class ResidentPeak:
    """The kernel's high-water mark of the resident set (VmHWM), which Linux lets a process reset."""

    how = "peak resident set of the process (VmHWM), reset before each sample; weights and Python included"

    def __init__(self, clear_refs: Path = CLEAR_REFS, status: Path = STATUS) -> None:
        self._clear_refs = clear_refs
        self._status = status
        self.reason: str | None = None

    def reset(self) -> None:
        try:
            self._clear_refs.write_text("5")
        except OSError as error:
            self.reason = f"{self._clear_refs}: the peak cannot be reset here ({error.strerror})"

    def peak_bytes(self) -> int | None:
        if self.reason is not None:
            return None
        for line in self._status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        self.reason = f"{self._status}: has no VmHWM"
        return None


def peak_memory_for(device: str) -> PeakMemory:
    """The meter that fits a torch device name."""
    return CudaPeak(device) if device.startswith("cuda") else ResidentPeak()

"""Peak memory of a piece of work: the CUDA allocator's on a GPU, the process's resident set on a CPU."""

from pathlib import Path
from typing import Protocol

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


class PeakMemory(Protocol):
    """`reset` before the work, `peak_bytes` after it; None when this machine cannot say, then `reason` tells why."""

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

"""The device a run uses, and the facts about it and the model that metrics.json states."""

import platform
from pathlib import Path

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
    """The processor's own name where Linux tells it, else the architecture."""
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.machine()

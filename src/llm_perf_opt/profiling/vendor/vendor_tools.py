"""Looks at this machine: GPUs, drivers, vendor tools and what each of them is able to do."""

import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil

from llm_perf_opt.core.host import Gpu, Host, Tool
from llm_perf_opt.core.stage import Obstacle
from llm_perf_opt.system.process import run_quick

PACKAGES = ("llm-perf-opt", "torch", "transformers", "hydra-core", "nvtx", "duckdb", "numpy")
# Of NVIDIA's driver, of ROCm's, and of Windows' under WSL.
GPU_FILES = ("nvidia[0-9]*", "kfd", "dxg")
DRIVER_PARAMS = Path("/proc/driver/nvidia/params")
OWN_STATUS = Path("/proc/self/status")
# The limit of a container, in cgroups of version 2 and 1.
MEMORY_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
# The number of CAP_SYS_ADMIN among Linux' capabilities.
SYS_ADMIN = 21
BUSY_PCT = 20
LOAD_WINDOW_S = 1.0
USED_MIB = 100
_VERSION = re.compile(r"(?:version|Version)\s+(\d+(?:\.\d+)+)")
_INSTALL = {
    "nsys": "install Nsight Systems (Debian non-free: nsight-systems; NVIDIA: nsight-systems-cli) and put nsys on PATH",
    "ncu": "install Nsight Compute (Debian non-free: nsight-compute; NVIDIA: nsight-compute) and put ncu on PATH",
}


def probe_host(*, env: Mapping[str, str], disk: Path) -> Host:
    """Ask the machine; takes a fraction of a second and never imports torch."""
    gpus, cuda = probe_gpus(env)
    return Host(
        os=platform.platform(),
        cpu=_cpu_name(),
        cpu_cores=os.cpu_count() or 1,
        memory_bytes=usable_memory(),
        python=platform.python_version(),
        packages={name: _package_version(name) for name in PACKAGES},
        gpus=gpus,
        cuda_driver=cuda,
        tools={"nsys": probe_nsys(env), "ncu": probe_ncu(env)},
        counters_restricted=counters_restricted(),
        disk_free_bytes=shutil.disk_usage(next(p for p in (disk, *disk.parents) if p.exists())).free,
        has_gpu_files=any(any(Path("/dev").glob(name)) for name in GPU_FILES),
    )


def probe_gpus(env: Mapping[str, str]) -> tuple[tuple[Gpu, ...], str | None]:
    """The GPUs nvidia-smi lists and the CUDA version its driver speaks; empty where there is none."""
    smi = shutil.which("nvidia-smi", path=env.get("PATH"))
    if smi is None:
        return (), None
    fields = "index,name,memory.total,driver_version,compute_cap"
    code, text = run_quick([smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"], env=env)
    if code != 0:
        return (), None
    _, header = run_quick([smi], env=env)
    cuda = re.search(r"CUDA(?: UMD)? Version:\s*(\d+\.\d+)", header)
    return parse_gpus(text), cuda[1] if cuda else None


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """Rows of `nvidia-smi --query-gpu=index,name,memory.total,driver_version,compute_cap`."""
    gpus = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 5 and cells[0].isdigit():
            mib = int(cells[2]) if cells[2].isdigit() else 0
            gpus.append(
                Gpu(
                    index=int(cells[0]),
                    name=cells[1],
                    memory_bytes=mib * 1024**2,
                    driver=cells[3],
                    compute_capability=cells[4] if re.fullmatch(r"\d+\.\d+", cells[4]) else None,
                )
            )
    return tuple(gpus)


def busy_gpus(env: Mapping[str, str]) -> dict[str, int]:
    """How busy the GPUs are with other work, in percent of the time, by index and by UUID: before ours begins it is
    others'.

    The driver's figure is up to a second old, so a run that has just ended may still be seen: what is busy is queried
    twice. A driver that is loaded for the question may call an idle GPU busy; one that works holds memory.
    """
    first = _gpu_load(env)
    if not any(percent >= BUSY_PCT for percent in first.values()):
        return {}
    time.sleep(LOAD_WINDOW_S)
    second = _gpu_load(env)
    least = {index: min(percent, second.get(index, 0)) for index, percent in first.items()}
    return {index: percent for index, percent in least.items() if percent >= BUSY_PCT}


def _gpu_load(env: Mapping[str, str]) -> dict[str, int]:
    smi = shutil.which("nvidia-smi", path=env.get("PATH"))
    if smi is None:
        return {}
    fields = "index,uuid,utilization.gpu,memory.used"
    code, text = run_quick([smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits"], env=env)
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()] if code == 0 else []
    known = [row for row in rows if len(row) == 4 and row[2].isdecimal()]
    # A GPU that shares the host's memory does not report how much of it is in use.
    working = [row for row in known if not row[3].isdecimal() or int(row[3]) >= USED_MIB]
    return {name: int(row[2]) for row in working for name in row[:2]}


def probe_nsys(env: Mapping[str, str]) -> Tool:
    tool = _probe("nsys", env)
    if tool.path is None or tool.problem is not None:
        return tool
    trouble = importer_trouble(Path(tool.path).resolve())
    return tool if trouble is None else replace(tool, problem=trouble.what, remedy=trouble.remedy)


def probe_ncu(env: Mapping[str, str]) -> Tool:
    return _probe("ncu", env)


def importer_trouble(nsys: Path) -> Obstacle | None:
    """nsys needs QdstrmImporter next to its own folder; without it a capture stays a .qdstrm that nothing can read."""
    target = next((p for p in nsys.parents if p.name.startswith("target-linux")), None)
    if target is None:
        return None
    wanted = target.parent / target.name.replace("target", "host")
    if (wanted / "QdstrmImporter").exists():
        return None
    found = next((p for p in sorted(Path("/usr/lib/nsight-systems").glob("host-linux-*/QdstrmImporter"))), None)
    found = found or next(iter(sorted(target.parent.glob("*/QdstrmImporter"))), None)
    fix = f"ln -s {found.parent} {wanted}" if found else "install the host part of Nsight Systems"
    what = f"nsys finds no QdstrmImporter in {wanted}, so its captures cannot be read"
    return Obstacle(what=what, remedy=f"fix it with: {fix}")


def usable_memory() -> int:
    """What the machine has, or what its container may take where that is less."""
    limits = [path.read_text().strip() for path in MEMORY_LIMITS if path.exists()]
    return min([psutil.virtual_memory().total, *(int(text) for text in limits if text.isdecimal())])


def counters_restricted() -> bool | None:
    """Whether the driver refuses us performance counters (ERR_NVGPUCTRPERM); None where no driver says.

    Where it keeps them for the administrator it asks for CAP_SYS_ADMIN, which root of a container has not by itself.
    """
    if not DRIVER_PARAMS.exists():
        return None
    only_admin = re.search(r"RmProfilingAdminOnly:\s*(\d)", DRIVER_PARAMS.read_text())
    if only_admin is None:
        return None
    held = re.search(r"^CapEff:\s*([0-9a-f]+)$", OWN_STATUS.read_text(), re.MULTILINE)
    return only_admin[1] == "1" and (held is None or not int(held[1], 16) >> SYS_ADMIN & 1)


def _probe(name: str, env: Mapping[str, str]) -> Tool:
    path = shutil.which(name, path=env.get("PATH"))
    if path is None:
        return Tool(name=name, problem=f"{name} was not found", remedy=_INSTALL[name])
    code, text = run_quick([path, "--version"], env=env)
    found = _VERSION.search(text)
    if code != 0 or found is None:
        last = text.strip().splitlines()[-1] if text.strip() else "nothing"
        return Tool(name=name, path=path, problem=f"`{path} --version` failed ({last})", remedy=_INSTALL[name])
    return Tool(name=name, path=path, version=found[1])


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine() or sys.platform

"""The device of this machine, as `hardware=auto` sees it: NVIDIA's, AMD's, Apple's, else the processor."""

import json
import os
import platform
import shutil
from collections.abc import Mapping
from typing import Any

from llm_perf_opt.model.hardware.calibrate import cpu_driver
from llm_perf_opt.model.hardware.hardware import Device
from llm_perf_opt.profiling.vendor.vendor_tools import probe_gpus
from llm_perf_opt.system.process import run_quick
from llm_perf_opt.workload.device import CPUINFO, cpu_name

_UNITS = {"MB": 1024**2, "MIB": 1024**2, "GB": 1024**3, "GIB": 1024**3, "B": 1}


def this_device(env: Mapping[str, str]) -> Device:
    gpus, _ = probe_gpus(env)
    if gpus:
        return Device(name=gpus[0].name, is_cpu=False, driver=gpus[0].driver, memory_bytes=gpus[0].memory_bytes)
    return _amd_device(env) or _apple_device(env) or this_cpu()


def this_cpu() -> Device:
    import psutil

    memory = psutil.virtual_memory().total
    return Device(name=cpu_name(CPUINFO), is_cpu=True, driver=cpu_driver(os.environ), memory_bytes=memory)


def _amd_device(env: Mapping[str, str]) -> Device | None:
    """amd-smi where it is installed, else the older rocm-smi."""
    for tool, arguments, parse in (
        ("amd-smi", ["static", "--asic", "--vram", "--json"], parse_amd_smi),
        ("rocm-smi", ["--showproductname", "--showmeminfo", "vram", "--json"], parse_rocm_smi),
    ):
        path = shutil.which(tool, path=env.get("PATH"))
        if path is None:
            continue
        code, text = run_quick([path, *arguments], env=env)
        found = parse(text) if code == 0 else None
        if found is not None:
            return found
    return None


def parse_amd_smi(text: str) -> Device | None:
    """The first GPU of `amd-smi static --asic --vram --json`, a list or one under `gpu_data`."""
    data = _json(text)
    if isinstance(data, Mapping):
        data = data.get("gpu_data")
    first = data[0] if isinstance(data, list) and data else None
    asic = first.get("asic") if isinstance(first, Mapping) else None
    name = asic.get("market_name") if isinstance(asic, Mapping) else None
    if not isinstance(first, Mapping) or not isinstance(name, str):
        return None
    vram = first.get("vram")
    return Device(name=_plain_name(name), is_cpu=False, driver="amdgpu", memory_bytes=_amd_memory(vram))


def _amd_memory(vram: Any) -> int | None:
    size = vram.get("size") if isinstance(vram, Mapping) else None
    if not isinstance(size, Mapping) or not isinstance(size.get("value"), int | float):
        return None
    return int(size["value"] * _UNITS.get(str(size.get("unit", "MB")).upper(), 1024**2))


def parse_rocm_smi(text: str) -> Device | None:
    """The first card of `rocm-smi --showproductname --showmeminfo vram --json`."""
    data = _json(text)
    card = data.get("card0") if isinstance(data, Mapping) else None
    if not isinstance(card, Mapping):
        return None
    fields = {key.lower(): str(value) for key, value in card.items()}
    name = fields.get("card series") or fields.get("card model")
    if not name:
        return None
    memory = fields.get("vram total memory (b)", "")
    size = int(memory) if memory.isdecimal() else None
    return Device(name=_plain_name(name), is_cpu=False, driver="amdgpu", memory_bytes=size)


def _plain_name(name: str) -> str:
    """`AMD Instinct MI300X OAM` -> `AMD Instinct MI300X`."""
    return name.removesuffix(" OAM").strip()


def _apple_device(env: Mapping[str, str]) -> Device | None:
    """The chip of a Mac with Apple silicon; its GPU shares the processor's memory."""
    if platform.system() != "Darwin" or platform.machine() != "arm64":
        return None
    import psutil

    code, text = run_quick(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], env=env)
    name = text.strip()
    if code != 0 or not name.startswith("Apple "):
        return None
    return Device(name=name, is_cpu=False, driver=platform.release(), memory_bytes=psutil.virtual_memory().total)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None

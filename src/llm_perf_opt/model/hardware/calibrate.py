"""Measures what a device reaches in seconds: matrix products, memory traffic, the host's cost per operator.

Where calibrations are kept: one small JSON file per device, driver and number format in the user's cache.
"""

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from llm_perf_opt.core.manifest import strict_json
from llm_perf_opt.model.hardware.hardware import Calibration, Device

# Smaller products fit into the caches of a core and say nothing of the layers of a model.
MATMUL_SIDES = (1024, 2048, 4096, 8192)
LONG_ENOUGH_S = 0.02
BEST_OF = 5
BUDGET_S = 0.2
# Larger than the caches of server processors.
CPU_BUFFER_BYTES = 1 << 29
GPU_BUFFER_BYTES = 1 << 30
_TORCH_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def calibrate(
    device: Device, *, torch_device: str, dtype: str, operators_in: Callable[[Any, Callable[[], Any]], int]
) -> Calibration:
    """The best of several tries of each, because the question is what the device can reach, not what it did.

    `operators_in` counts the operators a piece of work on a module starts.
    """
    import torch

    kind = getattr(torch, _TORCH_NAMES[dtype])
    wait = torch.cuda.synchronize if torch_device.startswith("cuda") else _nothing
    with torch.no_grad():
        tflops, side = _matmul_tflops(torch_device, kind, wait)
        copy_gb_s, read_gb_s = _bandwidth_gb_s(torch_device, kind, wait)
        launch_us = _launch_us(torch_device, wait, operators_in)
        others = _other_tflops(torch_device, dtype, wait)
        link_gb_s = _link_gb_s(torch_device, wait)
    what = "copy" if copy_gb_s >= read_gb_s else "matrix-vector product"
    how = f"measured on {device.name} ({device.driver}), best of several:"
    return Calibration(
        device=device.name,
        driver=device.driver,
        dtype=dtype,
        tflops=tflops,
        bandwidth_gb_s=max(copy_gb_s, read_gb_s),
        launch_us=launch_us,
        tflops_how=f"{how} {side} x {side} products in {dtype}",
        bandwidth_how=f"{how} memory by {what} (copy {copy_gb_s:.1f}, read {read_gb_s:.1f} GB/s)",
        launch_how=f"{how} host cost of small operators in modules {launch_us:.2f} µs",
        other_tflops=others,
        link_gb_s=link_gb_s,
    )


def better(a: Calibration, b: Calibration) -> Calibration:
    """The best of two calibrations of one device, figure by figure, each with how it was measured.

    A busy machine reaches less, never more, than it can.
    """
    fastest = a if a.tflops >= b.tflops else b
    widest = a if a.bandwidth_gb_s >= b.bandwidth_gb_s else b
    quickest = a if a.launch_us <= b.launch_us else b
    return replace(
        fastest,
        bandwidth_gb_s=widest.bandwidth_gb_s,
        bandwidth_how=widest.bandwidth_how,
        launch_us=quickest.launch_us,
        launch_how=quickest.launch_how,
        other_tflops={
            name: max(a.other_tflops.get(name, 0.0), b.other_tflops.get(name, 0.0))
            for name in sorted({*a.other_tflops, *b.other_tflops})
        },
        link_gb_s=max((rate for rate in (a.link_gb_s, b.link_gb_s) if rate is not None), default=None),
    )


def _matmul_tflops(device: str, kind: Any, wait: Callable[[], None]) -> tuple[float, int]:
    """Square products, larger ones until one takes long enough to be timed."""
    import torch

    best, best_side = 0.0, 0
    for side in MATMUL_SIDES:
        a = torch.randn(side, side, device=device).to(kind)
        b = torch.randn(side, side, device=device).to(kind)
        seconds = _best_s(lambda a=a, b=b: torch.mm(a, b), wait)  # type: ignore[misc]
        rate = 2 * side**3 / seconds / 1e12
        if rate > best:
            best, best_side = rate, side
        if seconds > LONG_ENOUGH_S:
            break
    return best, best_side


def _other_tflops(device: str, dtype: str, wait: Callable[[], None]) -> dict[str, float]:
    """Rates of the formats a GPU has units for, besides the run's own; none on a processor."""
    import torch

    if not device.startswith("cuda"):
        return {}
    capability = torch.cuda.get_device_capability(device)
    found = {}
    for name, since in (("bf16", (8, 0)), ("fp16", (7, 0)), ("fp8", (8, 9)), ("int8", (8, 0))):
        if name != dtype and capability >= since:
            found[name] = max(_square_tflops(device, name, side, wait) for side in (4096, 8192))
    return found


def _square_tflops(device: str, name: str, side: int, wait: Callable[[], None]) -> float:
    """One square matmul; low-precision dtypes use the calls torch has for them."""
    import torch

    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    work: Callable[[], Any]
    if name == "fp8":
        left, right = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        one = torch.ones((), device=device)
        work = partial(torch._scaled_mm, left, right.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    elif name == "int8":
        work = partial(torch._int_mm, a.to(torch.int8), b.to(torch.int8).t())
    else:
        kind = getattr(torch, _TORCH_NAMES[name])
        work = partial(torch.mm, a.to(kind), b.to(kind))
    return float(2 * side**3 / _best_s(work, wait) / 1e12)


def _link_gb_s(device: str, wait: Callable[[], None]) -> float | None:
    """A copy to a second GPU, where there is one; the wait is for both."""
    import torch

    if not device.startswith("cuda") or torch.cuda.device_count() < 2:
        return None
    other = 1 if torch.device(device).index in (None, 0) else 0
    source = torch.ones(GPU_BUFFER_BYTES // 4, device=device, dtype=torch.uint8)
    target = torch.empty_like(source, device=f"cuda:{other}")

    def both() -> None:
        torch.cuda.synchronize(other)
        wait()

    return float(source.nbytes / _best_s(partial(target.copy_, source), both) / 1e9)


def _bandwidth_gb_s(device: str, kind: Any, wait: Callable[[], None]) -> tuple[float, float]:
    """A copy (bytes read and written), and a matrix-vector product, which only reads, like decoding does."""
    import psutil
    import torch

    available = psutil.virtual_memory().available
    size = min(CPU_BUFFER_BYTES, available // 8) if device == "cpu" else GPU_BUFFER_BYTES
    width = 4096
    rows = size // (width * torch.empty((), dtype=kind).element_size())
    source = torch.ones(rows, width, device=device, dtype=kind)
    target = torch.empty_like(source)
    vector = torch.ones(width, device=device, dtype=kind)
    copy_s = _best_s(lambda: target.copy_(source), wait)
    read_s = _best_s(lambda: torch.mv(source, vector), wait)
    moved = source.nbytes
    return 2 * moved / copy_s / 1e9, moved / read_s / 1e9


def _launch_us(device: str, wait: Callable[[], None], operators_in: Callable[[Any, Callable[[], Any]], int]) -> float:
    """Host time per operator of a stack of small modules, where the device has next to nothing to do.

    In float32, because a CPU prepares every half-precision product again, which is work and not the cost of starting
    it.
    """
    import torch

    stack = _small_stack().to(device=device)
    x = torch.ones(1, 64, device=device)
    return _best_s(lambda: stack(x), wait) / operators_in(stack, lambda: stack(x)) * 1e6


def _small_stack() -> Any:
    """Decoder-like blocks in plain modules: norms out of small operators, linear maps, gates, concatenations."""
    import torch
    from torch import nn

    class Norm(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(64))

        def forward(self, x: Any) -> Any:
            wide = x.float()
            scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return self.weight * scaled.to(x.dtype)

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm = Norm()
            self.gate, self.up, self.down = (nn.Linear(64, 64, bias=False) for _ in range(3))

        def forward(self, x: Any) -> Any:
            h = self.norm(x)
            turned = torch.cat((-h[..., 32:], h[..., :32]), dim=-1)
            h = h * 0.5 + turned * 0.5
            return x + self.down(nn.functional.silu(self.gate(h)) * self.up(h))

    return nn.Sequential(*(Block() for _ in range(16)))


def _best_s(work: Callable[[], Any], wait: Callable[[], None]) -> float:
    """The shortest of several runs after one to warm up: at least `BEST_OF`, more while the budget lasts."""
    work()
    wait()
    best, spent, runs = float("inf"), 0.0, 0
    while runs < BEST_OF or (spent < BUDGET_S and runs < 10 * BEST_OF):
        start = time.perf_counter()
        work()
        wait()
        took = time.perf_counter() - start
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best


def _nothing() -> None:
    """A CPU has finished when the call returns."""


# 2: each figure with how it was measured; products of at least 1024 x 1024. 3: the other formats, and the link.
SCHEMA_VERSION = 3
_LETTERS = re.compile(r"[^a-z0-9.]+")


def cache_dir(environ: Mapping[str, str], kind: str = "calibration") -> Path:
    """`$XDG_CACHE_HOME/llm-perf/calibration`, below the home directory by default."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(base) / "llm-perf" / kind


def cpu_driver(environ: Mapping[str, str]) -> str:
    """What a processor's calibration depends on besides its name: torch's version and the threads it may use."""
    threads = environ.get("OMP_NUM_THREADS") or str(_cores())
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        torch_version = "none"
    return f"torch {torch_version}, {threads} threads"


def _cores() -> int:
    """The cores this process may use; macOS knows no affinity."""
    return len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count() or 1


def read_calibration(folder: Path, device: Device, dtype: str) -> Calibration | None:
    """The calibration of exactly this device, driver and format, or None. An unreadable file counts as none."""
    path = _path(folder, device, dtype)
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        return None
    values = {key: value for key, value in data.items() if key != "schema_version"}
    try:
        found = Calibration(**values)
    except TypeError:
        return None
    is_same = (found.device, found.driver, found.dtype) == (device.name, device.driver, dtype)
    return found if is_same else None


def write_calibration(folder: Path, calibration: Calibration) -> Path:
    """Keep a calibration; a reader never sees half a file."""
    device = Device(name=calibration.device, is_cpu=False, driver=calibration.driver)
    path = _path(folder, device, calibration.dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(strict_json({"schema_version": SCHEMA_VERSION, **asdict(calibration)}, indent=2) + "\n")
    scratch.replace(path)
    return path


def _path(folder: Path, device: Device, dtype: str) -> Path:
    name = _LETTERS.sub("-", f"{device.name}--{device.driver}--{dtype}".lower())
    return folder / f"{name.strip('-')}.json"

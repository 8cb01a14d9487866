"""The generation of a GPU: what its matrix units multiply, and how much faster than its CUDA cores they are.

A capture names its GPU, or gives its compute capability, or holds kernels built for a generation. The table alongside
this file says what follows from each.
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # A capture without GPU names needs no catalogue.
    from llm_perf_opt.config.schema import HardwareSection

NVIDIA, AMD = "NVIDIA", "AMD"
_NUMBER = re.compile(r"(?<![a-z0-9])(?:sm_?|cutlass(?:3x)?_(?:sm)?|gfx|ISA)(\d{2,3})(?=\D|$)", re.IGNORECASE)
_WORD = re.compile(r"(?<![a-z0-9])([a-z]+)_(?=\w*(?:gemm|cudnn|fprop|dgrad|wgrad))")


@dataclass(frozen=True, kw_only=True)
class GpuGeneration:
    """What is known of a GPU's generation; `formats` are those its matrix units multiply.

    `ratio_16` and `ratio_tf32` are the peaks of a product of 16-bit numbers (with sums in fp32) and of one in TF32 over
    the fp32 peak of the CUDA cores: None where they are not known, 0 where there is no such unit. `ratio_how` says from
    where they are. `is_oldest`: kernels alone say so, and they may run on a newer GPU.
    """

    name: str
    vendor: str
    formats: frozenset[str]
    host_link_gb_s: float
    ratio_16: float | None
    ratio_tf32: float | None
    ratio_how: str | None
    is_oldest: bool
    how: str

    @property
    def has_tensor_cores(self) -> bool:
        return bool(self.formats)

    def supports(self, dtype: str) -> bool:
        """Whether the matrix units multiply this format, by its short name (`bf16`, `tf32`, `fp8`)."""
        return dtype in self.formats


@dataclass(frozen=True, kw_only=True)
class _Entry:
    name: str
    vendor: str
    names: re.Pattern[str]
    capability: tuple[str, ...]
    built_for: tuple[int, ...]
    formats: frozenset[str]
    host_link_gb_s: float


@dataclass(frozen=True, kw_only=True)
class _Ratio:
    names: re.Pattern[str]
    fp16: float
    tf32: float
    source: str


@dataclass(frozen=True, kw_only=True)
class _Table:
    entries: tuple[_Entry, ...]
    words: dict[str, int]
    host_links: tuple[tuple[re.Pattern[str], float], ...]
    ratios: tuple[_Ratio, ...]


@cache
def _generations() -> _Table:
    found = tomllib.loads(Path(__file__).with_name("gpu_generations.toml").read_text(encoding="utf-8"))
    return _Table(
        entries=tuple(
            _Entry(
                name=row["name"],
                vendor=row["vendor"],
                names=re.compile(row["names"], re.IGNORECASE),
                capability=tuple(row["capability"]),
                built_for=tuple(row["built_for"]),
                formats=frozenset(row["formats"]),
                host_link_gb_s=row["host_link_gb_s"],
            )
            for row in found["generation"]
        ),
        words=dict(found["words"]),
        host_links=tuple((re.compile(row["names"], re.IGNORECASE), row["gb_s"]) for row in found["host_link"]),
        ratios=tuple(
            _Ratio(
                names=re.compile(row["names"], re.IGNORECASE),
                fp16=row["fp16"],
                tf32=row["tf32"],
                source=row["source"],
            )
            for row in found["ratio"]
        ),
    )


def gpu_generation(
    gpu_name: str | None,
    compute_capability: str | None = None,
    kernel_names: Iterable[str] = (),
    hardware: "HardwareSection | None" = None,
) -> GpuGeneration | None:
    """The generation by the device's name, else its compute capability, else the newest its kernels are built for.

    `hardware` is the device's own entry of the catalogue. None where nothing says what the GPU is.
    """
    named = None if gpu_name is None else next((e for e in _generations().entries if e.names.search(gpu_name)), None)
    if named is not None:
        return _made(named, gpu_name, hardware, is_oldest=False, how=f"the device is named {gpu_name}")
    # AMD's GPUs give theirs in the same form, with other numbers behind it.
    if compute_capability is not None and not re.search(r"\bAMD\b|Radeon|Instinct", gpu_name or ""):
        found = next((e for e in _generations().entries if compute_capability.startswith(e.capability)), None)
        if found is not None:
            return _made(found, gpu_name, hardware, is_oldest=False, how=f"compute capability {compute_capability}")
    number, kernel = max(((built_for(name) or 0, name) for name in kernel_names), default=(0, ""))
    built = next((e for e in _generations().entries if number in e.built_for), None)
    if built is None:
        return None
    return _made(built, gpu_name, hardware, is_oldest=True, how=f"kernels are built for it or older ({kernel[:60]})")


def built_for(kernel: str) -> int | None:
    """The architecture a kernel's name says it is built for: 80 of `cutlass_80_…`, 70 of `volta_sgemm_…`, 942."""
    numbers = [int(number) for number in _NUMBER.findall(kernel)]
    numbers += [_generations().words[word] for word in _WORD.findall(kernel) if word in _generations().words]
    known = {number for entry in _generations().entries for number in entry.built_for}
    return max((number for number in numbers if number in known), default=None)


def _made(
    entry: _Entry, gpu_name: str | None, hardware: "HardwareSection | None", *, is_oldest: bool, how: str
) -> GpuGeneration:
    ratio_16, ratio_tf32, source = _ratios(entry, gpu_name, hardware)
    own = (gb_s for names, gb_s in _generations().host_links if gpu_name and names.search(gpu_name))
    return GpuGeneration(
        name=entry.name,
        vendor=entry.vendor,
        formats=entry.formats,
        host_link_gb_s=next(own, entry.host_link_gb_s),
        ratio_16=ratio_16,
        ratio_tf32=ratio_tf32,
        ratio_how=source,
        is_oldest=is_oldest,
        how=how,
    )


def _ratios(
    entry: _Entry, gpu_name: str | None, hardware: "HardwareSection | None"
) -> tuple[float | None, float | None, str | None]:
    """From the catalogue; else from what all boards of the family have; none where the matrix units are missing."""
    if not entry.formats:
        return 0.0, 0.0, f"{entry.name} has no tensor cores"
    peaks = {} if hardware is None else hardware.peak_tflops
    base, wide = peaks.get("fp32"), peaks.get("bf16", peaks.get("fp16"))
    if hardware is not None and base and wide:
        tf32 = peaks["tf32"] / base if "tf32" in peaks else None if "tf32" in entry.formats else 0.0
        return wide / base, tf32, f"data-sheet peaks of {hardware.name}"
    family = next((ratio for ratio in _generations().ratios if gpu_name and ratio.names.search(gpu_name)), None)
    if family is None:
        return None, None if "tf32" in entry.formats else 0.0, None
    return family.fp16, family.tf32, family.source

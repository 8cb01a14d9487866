"""How much of a device's ceilings operators reach, by kind and size.

A curve is two shares and a fixed time: an operator takes its fixed time and then runs at its share of the ceilings, so
small ones reach little and large ones almost all. Where compute and memory take about as long, neither hides the other
fully (`JOIN`). All figures were taken from one H200 with benchmarks/prediction_gpu.py (torch 2.11, transformers 5.17;
benchmarks/results/prediction_gpu.json). On other GPUs the shares and times are the same and the ceilings their own,
which is a transfer: it is called so, and its band is wider.
"""

from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.hardware.roofline import Ceilings, achievable_ceilings

# What the H200 reached of its data sheet in the longest read, and in the best product of each format it was measured
# in. Formats of 4 bits were not: they are taken to reach what fp8 did.
MEMORY_REACH = 0.94
COMPUTE_REACH = {"bf16": 0.828, "fp16": 0.799, "fp8": 0.732, "int8": 0.517, "nvfp4": 0.732, "mxfp4": 0.732}
OTHER_REACH = 0.828
# Of that, what devices of AMD reach in products, and what of their memory and of their links. Fitted to 40 published
# runs of vLLM on eight MI300X (Llama 70B and 405B): estimated rates are 0.89 to 1.49 times the measured ones.
AMD_COMPUTE, AMD_MEMORY_REACH, AMD_LINK_SHARE = 0.6, 0.8, 0.4
LINK_SHARE = 0.75
JOIN = 2.5
MEASURED, TRANSFERRED = "measured", "transferred"
Maker = Literal["NVIDIA", "AMD", "another"]


@dataclass(frozen=True, kw_only=True)
class Curve:
    """`compute` and `memory` are shares of the ceilings, `fixed_us` what an operator takes however small it is."""

    fixed_us: float
    compute: float = 1.0
    memory: float = 1.0

    def time_us(self, *, compute_us: float, memory_us: float) -> float:
        """Times at the full ceilings in, the time to expect out."""
        a, b = compute_us / self.compute, memory_us / self.memory
        return self.fixed_us + float((a**JOIN + b**JOIN) ** (1 / JOIN))


PRODUCT = Curve(fixed_us=6.0, compute=0.95)
GROUPED = Curve(fixed_us=11.0, compute=0.62, memory=0.65)
# The fused kernels of serving engines: not measured here, taken from what aiconfigurator expects of whole steps.
GROUPED_SERVED = Curve(fixed_us=6.0, compute=0.62, memory=0.85)
ATTENTION = Curve(fixed_us=5.5, compute=0.75)
# Narrow heads fill the units less; the share falls with this power of the head's width over 128.
NARROW_HEAD = 0.45
# One sequence's keys are worked off one block after the other: microseconds a key, for heads 128 wide.
PROMPT_KEY_US = 0.012
# Activations have to be brought into a narrow dtype before each GEMM: a small kernel, and the GEMM starts later.
# Taken from what fp8 products took beyond their curve here; serving engines fuse most of it (`Engine.quantise_us`).
# Many rows also cost a pass over the activations, at this share of the bandwidth.
QUANTISE_US = 6.0
QUANTISE_SHARE = 0.7
# Picking the next token from the logits, looking up the ids.
OUTSIDE_US = 45.0


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What a device reaches, and whether that was measured on it or transferred from another."""

    ceilings: Ceilings
    label: str


def maker_of(hardware: HardwareSection) -> Maker:
    """Who makes a device; one without a name counts as the device of the measured rates."""
    names = hardware.device_names
    if not names or any(name.startswith(("NVIDIA", "Tesla")) for name in names):
        return "NVIDIA"
    return "AMD" if any(name.startswith(("AMD", "Radeon")) for name in names) else "another"


def link_share(hardware: HardwareSection) -> float:
    """How much of a link's rate collectives reach."""
    return AMD_LINK_SHARE if maker_of(hardware) == "AMD" else LINK_SHARE


def rates_of(hardware: HardwareSection) -> Rates | None:
    """The measured ceilings where there are any, else the data sheet's at the H200's reach; None without either."""
    measured = achievable_ceilings(hardware)
    bandwidth = hardware.memory_bandwidth_gb_s
    if bandwidth is None or not hardware.peak_tflops:
        return None if measured is None else Rates(ceilings=measured, label=MEASURED)
    is_amd = maker_of(hardware) == "AMD"
    share, memory_reach = (AMD_COMPUTE, AMD_MEMORY_REACH) if is_amd else (1.0, MEMORY_REACH)
    moved = {
        name: rate * share * COMPUTE_REACH.get(name, OTHER_REACH) * 1e12 for name, rate in hardware.peak_tflops.items()
    }
    if measured is not None:
        # A format that was not measured is transferred alongside those that were.
        both = Ceilings(
            kind="achievable",
            flops_per_s={**moved, **measured.flops_per_s},
            bytes_per_s=measured.bytes_per_s,
        )
        return Rates(ceilings=both, label=MEASURED)
    ceilings = Ceilings(kind="achievable", flops_per_s=moved, bytes_per_s=bandwidth * memory_reach * 1e9)
    return Rates(ceilings=ceilings, label=TRANSFERRED)

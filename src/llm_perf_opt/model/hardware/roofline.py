"""Bounds, estimates and utilisation: how fast a phase could be on given hardware, and how near a measured time came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.hardware.work import Dtypes, Work

Limit = Literal["compute", "memory", "launch"]
# Host cost of one operator in eager PyTorch where it was not measured: a lean C++ path to a Python-heavy model.
LAUNCH_US_LOW, LAUNCH_US_HIGH = 5.0, 25.0
# Where it was measured, on bare modules: a model's own Python around its operators costs as much again, or more.
LAUNCH_MID, LAUNCH_HIGH = 2.0, 4.0
# Shapes of real layers reach less than the best square product and the longest copy.
SHARE_MID, SHARE_HIGH = 0.8, 0.6
_SAME_UNITS = {"fp16_acc16": "fp16", "fp8_acc16": "fp8"}


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """FLOP/s by number format and bytes/s, with what they are."""

    kind: Literal["datasheet", "achievable"]
    flops_per_s: Mapping[str, float]
    bytes_per_s: float

    def fastest(self, formats: Sequence[str]) -> float:
        """The highest rate among formats.

        Where none is known products are taken to cost nothing: what is left, memory traffic, is a bound all the same.
        """
        return max((self.flops_per_s[name] for name in formats if name in self.flops_per_s), default=float("inf"))


@dataclass(frozen=True, kw_only=True)
class Bound:
    """No implementation can be faster than `ms` at these ceilings: weights and KV cache once, needed FLOPs only."""

    compute_ms: float
    memory_ms: float

    @property
    def ms(self) -> float:
        return max(self.compute_ms, self.memory_ms)

    @property
    def limit(self) -> Limit:
        return "compute" if self.compute_ms > self.memory_ms else "memory"


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a run is expected to take: a middle and a band. `launch_ms` is the host's share.

    `gpu_ms` is the device's busy time where the estimate distinguishes it; `label`: from rates measured on this device,
    or transferred from another.
    """

    low_ms: float
    mid_ms: float
    high_ms: float
    launch_ms: float
    limit: Limit
    gpu_ms: float | None = None
    label: str = "measured"


def datasheet_ceilings(hardware: HardwareSection) -> Ceilings | None:
    return _ceilings("datasheet", hardware.peak_tflops, hardware.memory_bandwidth_gb_s)


def achievable_ceilings(hardware: HardwareSection) -> Ceilings | None:
    return _ceilings("achievable", hardware.achieved_tflops, hardware.achieved_bandwidth_gb_s)


def missing_ceiling(hardware: HardwareSection, ceilings: Ceilings | None, dtypes: Dtypes, kind: str) -> str | None:
    """Why there is no bound of this kind, or None. A data sheet without the formats still bounds by its bandwidth."""
    if ceilings is None and kind == "achievable":
        return f"{hardware.name} was not calibrated here: hardware.calibrate=true on that machine measures it"
    if ceilings is None:
        return f"{hardware.name} has no data-sheet peaks"
    if kind == "datasheet" or not ceilings.flops_per_s:
        return None
    for formats in _formats_used(hardware, dtypes):
        if not set(formats) & set(ceilings.flops_per_s):
            return f"{hardware.name} has no measured peak for {formats[0]}"
    return None


def uncounted_products(hardware: HardwareSection, dtypes: Dtypes) -> str | None:
    """Which products a bound by the data sheet leaves out because it gives no rate for them, or None."""
    if hardware.memory_bandwidth_gb_s is None:
        return None
    for formats in (dtypes.plain_products, dtypes.weight_products):
        if not set(formats) & set(hardware.peak_tflops):
            return (
                f"the data sheet of {hardware.name} gives no rate for {formats[0]}: bounds count memory traffic alone"
            )
    return None


def _formats_used(hardware: HardwareSection, dtypes: Dtypes) -> list[tuple[str, ...]]:
    """For each kind of matmul, the dtype it runs in: the fastest by the data sheet, which alone may be for it.

    Another format's rate is never put in its place: a device that multiplies fp8 and was measured in bf16 alone has no
    measured ceiling for weights in fp8. Without a data sheet the format asked for must have been measured.
    """
    found: list[tuple[str, ...]] = []
    for formats in (dtypes.plain_products, dtypes.weight_products, dtypes.score_products):
        listed = [name for name in formats if name in hardware.peak_tflops]
        fastest = max(listed, key=lambda name: hardware.peak_tflops[name], default=formats[0])
        # Sums in fp16 are an engine's choice on the same units: what was measured with sums in fp32 may be.
        found.append((_SAME_UNITS[fastest], fastest) if fastest in _SAME_UNITS else (fastest,))
    return found


def bound(work: Work, dtypes: Dtypes, ceilings: Ceilings) -> Bound:
    """The larger of compute and memory time; `missing_ceiling` must have been None."""
    return Bound(
        compute_ms=1e3 * compute_s(work, dtypes, ceilings),
        memory_ms=1e3 * work.bytes_needed / ceilings.bytes_per_s,
    )


def estimate(
    groups: Mapping[str, Work],
    dtypes: Dtypes,
    ceilings: Ceilings,
    *,
    operators: float,
    launch_us: float | None,
    other_bytes: float,
    is_synchronous: bool,
) -> Estimate:
    """Eager execution: each module group at its own roofline, and the host that has to start every operator.

    Low: all groups overlap perfectly at the full ceilings. Middle: group after group at 80 % of them. High: compute and
    memory of a group do not overlap, elementwise operators move `other_bytes` unfused, all at 60 %. On a GPU the host
    runs ahead, so the larger of device and host time counts; on a CPU (`is_synchronous`) they add up.
    """
    each = [(compute_s(w, dtypes, ceilings), w.bytes / ceilings.bytes_per_s) for w in groups.values()]
    total = sum(groups.values(), Work())
    low_s = bound(total, dtypes, ceilings).ms / 1e3
    mid_s = sum(max(pair) for pair in each) / SHARE_MID
    high_s = (sum(sum(pair) for pair in each) + other_bytes / ceilings.bytes_per_s) / SHARE_HIGH
    low_us, mid_us, high_us = launch_band(launch_us)
    join = _add if is_synchronous else max
    launch_ms = operators * mid_us / 1e3
    return Estimate(
        low_ms=join(1e3 * low_s, operators * low_us / 1e3),
        mid_ms=join(1e3 * mid_s, launch_ms),
        high_ms=join(1e3 * high_s, operators * high_us / 1e3),
        launch_ms=launch_ms,
        limit=limit_of(bound(total, dtypes, ceilings), launch_ms),
    )


def launch_band(launch_us: float | None) -> tuple[float, float, float]:
    """Low, middle and high host cost of one operator in microseconds."""
    if launch_us is None:
        return LAUNCH_US_LOW, (LAUNCH_US_LOW * LAUNCH_US_HIGH) ** 0.5, LAUNCH_US_HIGH
    return launch_us, launch_us * LAUNCH_MID, launch_us * LAUNCH_HIGH


def limit_of(found: Bound, launch_ms: float) -> Limit:
    """Which of compute, memory and the host's launches takes longest."""
    return "launch" if launch_ms > found.ms else found.limit


def mfu(flops_needed: float, time_ms: float, peak_flops_per_s: float) -> float:
    """Model FLOPs utilisation: needed FLOPs over what the peak would have done in the measured time."""
    return flops_needed / (time_ms / 1e3 * peak_flops_per_s)


def mbu(bytes_needed: float, time_ms: float, peak_bytes_per_s: float) -> float:
    """Model bandwidth utilisation: weights and KV cache once, over what the peak would have moved."""
    return bytes_needed / (time_ms / 1e3 * peak_bytes_per_s)


def compute_s(work: Work, dtypes: Dtypes, ceilings: Ceilings) -> float:
    """Each kind of matmul at the fastest rate for its dtypes.

    Matrices of layers run in the weights' format where the device has units for it, attention in the cache's, the rest
    in the compute one.
    """
    plain = work.flops_needed - work.flops_quantised - work.flops_scores_needed
    return (
        work.flops_quantised / ceilings.fastest(dtypes.weight_products)
        + work.flops_scores_needed / ceilings.fastest(dtypes.score_products)
        + plain / ceilings.fastest(dtypes.plain_products)
    )


def _ceilings(
    kind: Literal["datasheet", "achievable"], tflops: Mapping[str, float], bandwidth_gb_s: float | None
) -> Ceilings | None:
    if bandwidth_gb_s is None or (kind == "achievable" and not tflops):
        return None
    return Ceilings(
        kind=kind,
        flops_per_s={name: value * 1e12 for name, value in tflops.items()},
        bytes_per_s=bandwidth_gb_s * 1e9,
    )


def _add(a: float, b: float) -> float:
    return a + b

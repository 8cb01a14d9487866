"""Work, traffic and peaks of one profiled launch, from the metrics of any ncu version.

Operations are those executed, padding included; an FMA counts two. The peaks are the device's dense peaks at the clocks
the launch ran at, as ncu reports them, so a percentage of peak needs no datasheet.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from llm_perf_opt.capture.kernels.ncu_records import NcuLaunch

_SCALAR = {
    "fp64": (("dadd", 1), ("dmul", 1), ("dfma", 2)),
    "fp32": (("fadd", 1), ("fmul", 1), ("ffma", 2)),
    # One packed half instruction works on two values.
    "fp16": (("hadd", 2), ("hmul", 2), ("hfma", 4)),
}
_PEAK_OP = {"fp64": ("dfma", 2), "fp32": ("ffma", 2), "fp16": ("hfma", 4)}
_TENSOR = re.compile(r"sm__ops_path_tensor_src_([a-z0-9]+)\w*\.sum")
_TENSOR_BY_OP = re.compile(r"sm__ops_path_tensor_op_[a-z]+_src_([a-z0-9]+)\w*\.sum")
# Without `sparsity_off` the peak of a precision is the sparse one, twice what dense work can reach.
_TENSOR_PEAK = re.compile(
    r"sm__ops_path_tensor_(?:op_[a-z]+_)?src_([a-z0-9]+)\w*_sparsity_off\.sum\.peak_sustained_elapsed\.per_second"
)
_TENSOR_ACTIVITY = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.sum",
    "smsp__inst_executed_pipe_tensor.sum.per_cycle_elapsed",
)
_L2 = ("lts__t_bytes.sum", "derived__lts__lts2xbar_bytes.sum")
_L1 = ("l1tex__t_bytes.sum", "derived__l1tex__lsu_writeback_bytes_mem_lgds.sum")


DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg")


@dataclass(frozen=True, kw_only=True)
class LaunchFigures:
    """What one launch did. Rates are per second; every None has its reason in `missing`.

    `undefined`: metrics of it are NaN or infinite, and the figures that need them are None for that reason.
    """

    duration_ns: float | None
    flop_per_s: float | None
    flop_per_s_by_pipe: Mapping[str, float]
    dram_bytes: float | None
    dram_bytes_per_s: float | None
    l2_bytes_per_s: float | None
    l1_bytes_per_s: float | None
    peak_flop_per_s: Mapping[str, float]
    peak_dram_bytes_per_s: float | None
    missing: Mapping[str, str]
    undefined: bool = False

    @property
    def flop(self) -> float | None:
        if self.flop_per_s is None or self.duration_ns is None:
            return None
        return self.flop_per_s * self.duration_ns / 1e9


def figures(launch: NcuLaunch) -> LaunchFigures:
    """Derive the figures of one launch."""
    missing: dict[str, str] = {}
    duration = launch.first(*DURATION)
    if duration is None:
        why = "is not a number (NaN)" if launch.is_undefined(*DURATION) else "was not collected"
        missing["duration_ns"] = f"gpu__time_duration.sum {why}"
    pipes = _scalar_rates(launch, duration) | _tensor_rates(launch, duration)
    total, reason = _total(launch, pipes)
    if total is None:
        missing["flop_per_s"] = reason
    dram_bytes, dram_rate = _dram(launch, duration)
    if dram_rate is None:
        missing["dram_bytes_per_s"] = "neither dram__bytes nor dram__bytes_read and _write were collected"
    return LaunchFigures(
        duration_ns=duration,
        flop_per_s=total,
        flop_per_s_by_pipe=pipes,
        dram_bytes=dram_bytes,
        dram_bytes_per_s=dram_rate,
        l2_bytes_per_s=_rate(launch, _L2, duration),
        l1_bytes_per_s=_rate(launch, _L1, duration),
        peak_flop_per_s=_peaks(launch),
        peak_dram_bytes_per_s=_dram_peak(launch, dram_rate),
        missing=missing,
        undefined=any(value.is_undefined for value in launch.metrics.values()),
    )


def _scalar_rates(launch: NcuLaunch, duration_ns: float | None) -> dict[str, float]:
    """FLOP/s of the CUDA cores per precision, for the precisions whose three counters are all there."""
    rates: dict[str, float] = {}
    for precision, ops in _SCALAR.items():
        parts = [(_op_rate(launch, op, duration_ns), weight) for op, weight in ops]
        known = [rate * weight for rate, weight in parts if rate is not None]
        if len(known) == len(ops):
            rates[precision] = sum(known)
    return rates


def _op_rate(launch: NcuLaunch, op: str, duration_ns: float | None) -> float | None:
    """Thread instructions of one operation per second."""
    name = f"sass_thread_inst_executed_op_{op}_pred_on.sum"
    clock = launch.first("smsp__cycles_elapsed.avg.per_second", "sm__cycles_elapsed.avg.per_second")
    per_cycle = launch.first(f"smsp__{name}.per_cycle_elapsed", f"sm__{name}.per_cycle_elapsed")
    if per_cycle is not None and clock is not None:
        return per_cycle * clock
    per_second = launch.first(f"smsp__{name}.per_second", f"sm__{name}.per_second")
    if per_second is not None:
        return per_second
    count = launch.first(f"smsp__{name}", f"sm__{name}")
    return None if count is None or not duration_ns else count / duration_ns * 1e9


def _tensor_rates(launch: NcuLaunch, duration_ns: float | None) -> dict[str, float]:
    """Operations per second of the tensor cores per source precision. The sums over operations are preferred."""
    if not duration_ns:
        return {}
    totals: dict[str, float] = {}
    for pattern in (_TENSOR_BY_OP, _TENSOR):
        found: dict[str, float] = {}
        for name, value in launch.metrics.items():
            match = pattern.fullmatch(name)
            if match and value.value is not None:
                found[match[1]] = found.get(match[1], 0.0) + value.value
        totals |= found
    return {f"tensor_{precision}": count / duration_ns * 1e9 for precision, count in totals.items()}


def _total(launch: NcuLaunch, pipes: Mapping[str, float]) -> tuple[float | None, str]:
    """All operations per second, or None and why a sum would be wrong."""
    if not pipes:
        return None, "no operation counts were collected; the set roofline, read from the raw page, has them"
    has_tensor = any(name.startswith("tensor_") for name in pipes)
    activity = launch.first(*_TENSOR_ACTIVITY)
    if not has_tensor and activity is None:
        return None, "tensor operations were not collected, a sum without them could be far too low"
    if not has_tensor and activity:
        return None, "the tensor cores were busy, but this ncu version has no counts of their operations"
    return sum(pipes.values()), ""


def _dram(launch: NcuLaunch, duration_ns: float | None) -> tuple[float | None, float | None]:
    """Bytes moved to and from device memory, and bytes per second."""
    read, write = launch.number("dram__bytes_read.sum"), launch.number("dram__bytes_write.sum")
    total = launch.number("dram__bytes.sum")
    if total is None and read is not None and write is not None:
        total = read + write
    rate = launch.number("dram__bytes.sum.per_second")
    if rate is None and total is not None and duration_ns:
        rate = total / duration_ns * 1e9
    if total is None and rate is not None and duration_ns:
        total = rate * duration_ns / 1e9
    return total, rate


def _rate(launch: NcuLaunch, names: tuple[str, ...], duration_ns: float | None) -> float | None:
    for name in names:
        rate, count = launch.number(f"{name}.per_second"), launch.number(name)
        if rate is not None:
            return rate
        if count is not None and duration_ns:
            return count / duration_ns * 1e9
    return None


def _dram_peak(launch: NcuLaunch, rate: float | None) -> float | None:
    per_cycle, clock = (
        launch.number("dram__bytes.sum.peak_sustained"),
        launch.number("dram__cycles_elapsed.avg.per_second"),
    )
    if per_cycle is not None and clock is not None:
        return per_cycle * clock
    percent = launch.first(
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed"
    )
    # The percentage is printed with two decimals: below 1 % the quotient would say little.
    return rate / percent * 100.0 if rate and percent and percent >= 1.0 else None


def _peaks(launch: NcuLaunch) -> dict[str, float]:
    """Dense peak operations per second of each pipe."""
    peaks: dict[str, float] = {}
    clock = launch.first("sm__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.avg.per_second")
    for precision, (op, weight) in _PEAK_OP.items():
        per_cycle = launch.number(f"sm__sass_thread_inst_executed_op_{op}_pred_on.sum.peak_sustained")
        if per_cycle is not None and clock is not None:
            peaks[precision] = per_cycle * weight * clock
    return peaks | _largest(launch, _TENSOR_PEAK, lambda precision: f"tensor_{precision}")


def _largest(launch: NcuLaunch, pattern: re.Pattern[str], name_of: Callable[[str], str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in launch.metrics.items():
        match = pattern.fullmatch(name)
        if match and value.value is not None:
            key = name_of(match[1])
            found[key] = max(found.get(key, 0.0), value.value)
    return found

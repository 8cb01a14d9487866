"""Profiled launches to one row per kernel: what bounds it, how far it is from the roofline, and what ncu advises.

Why a kernel is as fast as it is: its bound, what limits its occupancy, where its warps stall, what ncu advises.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from llm_perf_opt.capture.kernels.match import match_kernels, normalise
from llm_perf_opt.capture.kernels.names import distinct_short_names, short_kernel_name
from llm_perf_opt.capture.kernels.ncu_figures import DURATION, LaunchFigures, figures
from llm_perf_opt.capture.kernels.ncu_records import (
    BALANCED_WITHIN_PCT,
    LATENCY_BELOW_PCT,
    Advice,
    Bound,
    NcuAnalysis,
    NcuKernel,
    NcuLaunch,
    NcuRule,
    NsysKernel,
)

BUSIEST = 14
THEORETICAL_OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"

_LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
_STALLS = (
    re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio"),
    re.compile(r"smsp__average_warp_latency_issue_stalled_(\w+)\.ratio"),
    re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+)"),
)
_OF_PEAK = re.compile(r"(\w+)\.avg\.pct_of_peak_sustained_(?:elapsed|active)")
_HIT_RATES = {"L1/TEX": "l1tex__t_sector_hit_rate.pct", "L2": "lts__t_sector_hit_rate.pct"}
_ADVICE_KINDS = ("OPT", "WRN")


def bound_class(compute_pct: float | None, memory_pct: float | None) -> Bound:
    """Which resource bounds a kernel, by `BOUND_RULE`."""
    if compute_pct is None or memory_pct is None:
        return "unknown"
    if max(compute_pct, memory_pct) < LATENCY_BELOW_PCT:
        return "latency"
    if abs(compute_pct - memory_pct) <= BALANCED_WITHIN_PCT:
        return "balanced"
    return "compute" if compute_pct > memory_pct else "memory"


def occupancy_limiter(launch: NcuLaunch) -> str | None:
    """What keeps more blocks from running on an SM: the smallest of the block limits."""
    limits = {name: launch.number(metric) for name, metric in _LIMITS.items()}
    known = {name: value for name, value in limits.items() if value is not None}
    theoretical = launch.number(THEORETICAL_OCCUPANCY)
    if not known or theoretical is None:
        return None
    if theoretical >= 100.0:
        return "none"
    return " and ".join(name for name, value in known.items() if value == min(known.values()))


def top_stalls(launch: NcuLaunch) -> dict[str, float]:
    """The stall reasons as percent of all warp states, the largest first; empty when the section was not collected."""
    for pattern in _STALLS:
        found = {
            m[1]: v.value for k, v in launch.metrics.items() if (m := pattern.fullmatch(k)) and v.value is not None
        }
        found = {name: value for name, value in found.items() if not name.endswith("not_issued")}
        total = sum(found.values())
        if total > 0:
            ranked = sorted(((n, v) for n, v in found.items() if n != "selected" and v > 0), key=lambda item: -item[1])
            return {name: value / total * 100.0 for name, value in ranked}
    return {}


def breakdown(launch: NcuLaunch) -> dict[str, float]:
    """The units that came nearest to their peak, by ncu's names."""
    found = {m[1]: v.value for k, v in launch.metrics.items() if (m := _OF_PEAK.fullmatch(k)) and v.value is not None}
    ranked = sorted(((name, value) for name, value in found.items() if value > 0), key=lambda item: -item[1])
    return dict(ranked[:BUSIEST])


def _shared_bytes(launch: NcuLaunch) -> float | None:
    parts = [launch.number(f"launch__shared_mem_per_block_{kind}") for kind in ("static", "dynamic", "driver")]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None


def advice(rules: Iterable[NcuRule]) -> tuple[Advice, ...]:
    """Each rule once with its largest estimate; estimates for the whole kernel before local ones."""
    best: dict[str, Advice] = {}
    for rule in rules:
        if rule.kind not in _ADVICE_KINDS:
            continue
        new = Advice(rule=rule.rule, text=rule.text, speedup_pct=rule.speedup_pct, scope=rule.scope)
        old = best.get(rule.rule)
        if old is None or (new.speedup_pct or 0.0) > (old.speedup_pct or 0.0):
            best[rule.rule] = new
    return tuple(sorted(best.values(), key=lambda a: (a.scope != "global", -(a.speedup_pct or 0.0))))


_COMPUTE_SOL = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
_MEMORY_SOL = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
_DRAM_SOL = (
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)
_L2_SOL = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
_L1_SOL = (
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
)
_ACHIEVED_OCCUPANCY = "sm__warps_active.avg.pct_of_peak_sustained_active"


def analyze_ncu(launches: Sequence[NcuLaunch]) -> NcuAnalysis:
    """One row per kernel name, by total profiled time."""
    groups: dict[str, list[NcuLaunch]] = {}
    for launch in launches:
        groups.setdefault(launch.kernel, []).append(launch)
    rows = [_kernel(name, group) for name, group in groups.items()]
    rows.sort(key=lambda row: -(row.duration_ns or 0.0) * row.launches)
    short = distinct_short_names([row.kernel for row in rows])
    rows = [replace(row, short=name) for row, name in zip(rows, short, strict=True)]
    device = next((launch.device for launch in launches if launch.device), None)
    return NcuAnalysis(kernels=tuple(rows), launches=len(launches), device=device, notes=tuple(_untimed_notes(groups)))


def join_nsys(analysis: NcuAnalysis, kernels: Sequence[NsysKernel], *, source: str | None = None) -> NcuAnalysis:
    """Add each kernel's share of GPU time on the timeline; rows then come by time times distance to the roofline.

    `source` says which time the shares are of.
    """
    names = [row.kernel for row in analysis.kernels]
    result = match_kernels(names, [k.name for k in kernels])
    total = sum(k.total_ns for k in kernels)
    by_name = {k.name: k for k in kernels}
    rows = [_joined(row, [by_name[n] for n in result.pairs.get(row.kernel, ())], total) for row in analysis.kernels]
    rows.sort(key=_weight)
    notes = tuple(
        f"{name}: fits {len(result.pairs[name])} kernels of the timeline, their times are added"
        for name in result.ambiguous
    )
    return replace(
        analysis,
        kernels=tuple(rows),
        match_rate=result.rate,
        matched=len(result.pairs),
        unmatched=result.unmatched,
        joined_with=source,
        notes=analysis.notes + notes,
    )


def _weight(row: NcuKernel) -> tuple[float, float]:
    return (-(row.headroom_ns or 0.0), -(row.nsys_total_ns or 0.0))


def _joined(row: NcuKernel, found: Sequence[NsysKernel], total_ns: float) -> NcuKernel:
    if not found:
        return row
    time_ns = sum(k.total_ns for k in found)
    return replace(
        row,
        nsys_names=tuple(k.name for k in found),
        nsys_instances=sum(k.instances for k in found),
        nsys_total_ns=time_ns,
        nsys_time_pct=time_ns / total_ns * 100.0 if total_ns else None,
        headroom_ns=None if row.roof_pct is None else time_ns * max(0.0, 1.0 - row.roof_pct / 100.0),
    )


def headroom_by_name(analysis: NcuAnalysis) -> dict[str, float]:
    """The distance to the roofline (0 to 1) of each kernel of an earlier analysis, by normal form of its name."""
    return {
        normalise(row.kernel): max(0.0, 1.0 - row.roof_pct / 100.0)
        for row in analysis.kernels
        if row.roof_pct is not None
    }


def _is_timed(launch: NcuLaunch) -> bool:
    """Whether ncu's time of a launch is a number; where it is not, its other metrics mean nothing either."""
    return not launch.is_undefined(*DURATION)


def _untimed_notes(groups: Mapping[str, Sequence[NcuLaunch]]) -> Iterable[str]:
    for name, group in groups.items():
        untimed = sum(not _is_timed(launch) for launch in group)
        if untimed == len(group):
            yield f"{short_kernel_name(name)}: ncu's time of it is not a number (NaN), so it is not classified"
        elif untimed:
            yield (
                f"{short_kernel_name(name)}: ncu's time of {untimed} of {len(group)} launches is not a number (NaN); "
                "these launches are left out"
            )


def _kernel(name: str, launches: Sequence[NcuLaunch]) -> NcuKernel:
    # What is known of a kernel does not depend on a launch ncu could not time.
    group = [launch for launch in launches if _is_timed(launch)] or launches
    derived = [figures(launch) for launch in group]
    mean = _Mean(group, derived)
    durations = [f.duration_ns for f in derived if f.duration_ns is not None]
    flop, flop_rate = mean.sum_and_rate(lambda f: f.flop)
    dram, _ = mean.sum_and_rate(lambda f: f.dram_bytes)
    pipes, peaks = _mean_pipes(derived), next((f.peak_flop_per_s for f in derived if f.peak_flop_per_s), {})
    dram_rate = mean.figure(lambda f: f.dram_bytes_per_s)
    dram_peak = mean.figure(lambda f: f.peak_dram_bytes_per_s)
    # How near the kernel came to what the device can do: by ncu's own throughputs, and by operations and bytes.
    compute, memory = mean.metric(_COMPUTE_SOL), mean.metric(_MEMORY_SOL)
    if memory is None:
        memory = _memory_sol(mean.metric(*_DRAM_SOL), mean.metric(_L2_SOL), mean.metric(*_L1_SOL))
    compute_roof = _compute_roof_pct(pipes, peaks)
    memory_roof = None if dram_rate is None or not dram_peak else dram_rate / dram_peak * 100.0
    stalls = top_stalls(group[0])
    missing = {
        key: reason
        for f in derived
        for key, reason in f.missing.items()
        if not f.undefined or all(key in other.missing for other in derived)
    }
    if compute_roof is None:
        missing["compute_roof_pct"] = "the operations or the dense peak of a pipe in use were not collected"
    if memory_roof is None:
        missing["memory_roof_pct"] = "the memory traffic or its peak was not collected"
    if not stalls:
        missing["stalls_pct"] = "the section WarpStateStats was not collected"
    return NcuKernel(
        kernel=name,
        short=short_kernel_name(name),
        launches=len(group),
        grids=tuple(dict.fromkeys(launch.grid for launch in launches if launch.grid)),
        ranges=tuple(dict.fromkeys("/".join(launch.nvtx) for launch in launches if launch.nvtx)),
        duration_ns=sum(durations) / len(durations) if durations else None,
        duration_min_ns=min(durations, default=None),
        duration_max_ns=max(durations, default=None),
        flop=flop,
        flop_per_s=flop_rate,
        flop_per_s_by_pipe=pipes,
        dram_bytes=dram,
        dram_bytes_per_s=dram_rate,
        l2_bytes_per_s=mean.figure(lambda f: f.l2_bytes_per_s),
        l1_bytes_per_s=mean.figure(lambda f: f.l1_bytes_per_s),
        intensity_flop_per_byte=None if flop is None or not dram else flop / dram,
        compute_sol_pct=compute,
        memory_sol_pct=memory,
        dram_sol_pct=mean.metric(*_DRAM_SOL),
        compute_roof_pct=compute_roof,
        memory_roof_pct=memory_roof,
        roof_pct=None if compute_roof is None or memory_roof is None else max(compute_roof, memory_roof),
        bound=bound_class(compute, memory),
        occupancy_pct=mean.metric(_ACHIEVED_OCCUPANCY),
        occupancy_theoretical_pct=mean.metric(THEORETICAL_OCCUPANCY),
        occupancy_limiter=occupancy_limiter(group[0]),
        waves_per_sm=mean.metric("launch__waves_per_multiprocessor"),
        registers_per_thread=group[0].number("launch__registers_per_thread"),
        stalls_pct=stalls,
        advice=advice(rule for launch in launches for rule in launch.rules),
        passes=mean.metric("profiler__replayer_passes"),
        peak_flop_per_s=peaks,
        peak_dram_bytes_per_s=dram_peak,
        missing=missing,
        blocks=tuple(dict.fromkeys(launch.block for launch in launches if launch.block)),
        shared_bytes_per_block=_shared_bytes(group[0]),
        breakdown_pct=breakdown(group[0]),
        hit_rates_pct={name: rate for name, key in _HIT_RATES.items() if (rate := mean.metric(key)) is not None},
    )


class _Mean:
    """Time-weighted means over the launches of one kernel.

    A launch of which a metric is not a number says nothing of it; where it was not collected, the mean is unknown too.
    """

    def __init__(self, group: Sequence[NcuLaunch], derived: Sequence[LaunchFigures]) -> None:
        self._group, self._derived = group, derived
        self._weights = [f.duration_ns or 0.0 for f in derived]

    def metric(self, *names: str) -> float | None:
        skipped = [launch.is_undefined(*names) for launch in self._group]
        return self._mean([launch.first(*names) for launch in self._group], skipped)

    def figure(self, of: Callable[[LaunchFigures], float | None]) -> float | None:
        return self._mean([of(f) for f in self._derived], [bool(f.undefined) for f in self._derived])

    def sum_and_rate(self, of: Callable[[LaunchFigures], float | None]) -> tuple[float | None, float | None]:
        """The mean of a count per launch, and the count per second over all launches it is known of."""
        values = [of(f) for f in self._derived]
        known = [(v, f.duration_ns) for v, f in zip(values, self._derived, strict=True) if v is not None]
        if not known or any(v is None and not f.undefined for v, f in zip(values, self._derived, strict=True)):
            return None, None
        total, time_ns = sum(value for value, _ in known), sum(ns or 0.0 for _, ns in known)
        return total / len(known), total / time_ns * 1e9 if time_ns else None

    def _mean(self, values: Sequence[float | None], may_lack: Sequence[bool]) -> float | None:
        known = [(value, weight) for value, weight in zip(values, self._weights, strict=True) if value is not None]
        if not known or any(value is None and not may for value, may in zip(values, may_lack, strict=True)):
            return None
        total = sum(weight for _, weight in known)
        if not total:
            return sum(value for value, _ in known) / len(known)
        return sum(value * weight for value, weight in known) / total


def _mean_pipes(derived: Sequence[LaunchFigures]) -> dict[str, float]:
    """Operations per second of each pipe over the launches it is known of, for the pipes that did any."""
    rates: dict[str, float] = {}
    for name in dict.fromkeys(name for f in derived for name in f.flop_per_s_by_pipe):
        known = [f for f in derived if name in f.flop_per_s_by_pipe or not f.undefined]
        time_ns = sum(f.duration_ns or 0.0 for f in known)
        if time_ns:
            done = sum(f.flop_per_s_by_pipe.get(name, 0.0) * (f.duration_ns or 0.0) for f in known)
            rates[name] = done / time_ns
    return rates


def _memory_sol(dram: float | None, l2: float | None, l1: float | None) -> float | None:
    """What ncu's throughput of memory is the largest of, where a report lacks it: of 2019, or of chosen metrics.

    With one of them missing the largest may be that one; it is known only if another is high enough already.
    """
    known = [part for part in (dram, l2, l1) if part is not None]
    if not known or ((dram is None or l2 is None) and max(known) < LATENCY_BELOW_PCT):
        return None
    return max(known)


def _compute_roof_pct(pipes: Mapping[str, float], peaks: Mapping[str, float]) -> float | None:
    """The busiest pipe's share of its own dense peak."""
    if not pipes:
        return None
    active = {name: rate for name, rate in pipes.items() if rate > 0}
    if any(name not in peaks for name in active):
        return None
    return max((rate / peaks[name] * 100.0 for name, rate in active.items()), default=0.0)

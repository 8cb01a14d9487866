"""The answer where kernels were recorded and no timeline: what ncu measured of them, or how long all of each took."""

from collections.abc import Mapping, Sequence

from llm_perf_opt.capture.kernels.ncu_records import Bound, NcuAnalysis
from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.core.units import count_of, format_ms, format_percent
from llm_perf_opt.diagnosis.diagnosis_document import Verdict

BOUNDS: Mapping[Bound, str] = {
    "compute": "compute-bound",
    "memory": "memory-bound",
    "latency": "latency-bound",
    "balanced": "balanced between compute and memory",
    "unknown": "not classified",
}
NO_TIMELINE = "There is no timeline: "


def verdict_of_ncu(found: NcuAnalysis) -> Verdict:
    times = times_under_ncu(found)
    text = f"ncu measured {count_of(found.launches, 'launch')} of {count_of(len(found.kernels), 'kernel')}"
    if not times:
        share = "their share of the GPU's time is not known"
        return Verdict(kind="kernels_only", text=f"{text}. {NO_TIMELINE}{share}.")
    total = sum(times.values())
    shares = [f"{format_percent(ns / total)} is {BOUNDS[bound]}" for bound, ns in time_by_bound(found).items()]
    top = max((kernel for kernel in found.kernels if kernel.kernel in times), key=lambda k: times[k.kernel])
    untimed = len(found.kernels) - len(times)
    without = f" without {count_of(untimed, 'kernel')} whose time is not known" if untimed else " in all"
    roof = "" if top.roof_pct is None else f", at {format_percent(top.roof_pct / 100)} of its nearer peak"
    return Verdict(
        kind="kernels_only",
        text=f"{text}, {format_ms(total / 1e6)}{without}: {', '.join(shares)}. Largest: {top.short} "
        f"({format_percent(times[top.kernel] / total)}){roof}. {NO_TIMELINE}how often they run is not known.",
        hottest_kernel=top.short,
    )


def times_under_ncu(found: NcuAnalysis) -> dict[str, float]:
    """Nanoseconds of the kernels that were timed."""
    return {k.kernel: k.duration_ns * k.launches for k in found.kernels if k.duration_ns is not None}


def time_by_bound(found: NcuAnalysis) -> dict[Bound, float]:
    """Nanoseconds under ncu by what limits a kernel, the largest first."""
    times = times_under_ncu(found)
    bounds: dict[Bound, float] = {}
    for kernel in found.kernels:
        if kernel.kernel in times:
            bounds[kernel.bound] = bounds.get(kernel.bound, 0.0) + times[kernel.kernel]
    return dict(sorted(bounds.items(), key=lambda item: -item[1]))


def verdict_of_kernels(rows: Sequence[KernelRow]) -> Verdict:
    """Of a summary of kernels, which has their number and time."""
    total = sum(row.total_ns for row in rows) or 1
    top = max(rows, key=lambda row: row.total_ns)
    classes: dict[str, int] = {}
    for row in rows:
        classes[row.kernel_class] = classes.get(row.kernel_class, 0) + row.total_ns
    name = max(classes, key=lambda key: classes[key])
    launches = count_of(sum(row.instances for row in rows), "launch")
    return Verdict(
        kind="kernels_only",
        text=f"{launches} of {count_of(len(rows), 'kernel')} take {format_ms(total / 1e6)}: {name} kernels "
        f"{format_percent(classes[name] / total)} of it, the hottest is {top.short_name} "
        f"({format_percent(top.total_ns / total)}). {NO_TIMELINE}how long the GPU was idle is not known.",
        hottest_kernel=top.short_name,
    )

"""The figures a capture of ncu puts into the manifest: its plan, what came of it, and what it cost."""

from llm_perf_opt.analysis.ncu_rows import NcuAnalysis
from llm_perf_opt.core.names import NCU
from llm_perf_opt.core.records import Metric
from llm_perf_opt.core.slowdown import no_slowdown
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.profiling.baseline import NO_CLEAN_PASS, clean_baseline
from llm_perf_opt.profiling.kernel_select import NcuPlan, Selection
from llm_perf_opt.profiling.ncu_capture import NcuCaptured
from llm_perf_opt.profiling.workload_results import read_metrics, slowdown_between


def plan_metrics(plan: NcuPlan, selection: Selection | None) -> dict[str, Metric]:
    how = "before the capture"
    reason = "no kernels were chosen from an nsys result of this run" if selection is None else None
    share = None if selection is None else selection.share
    seconds = Metric(value=round(plan.seconds, 1), unit="s", how=f"{how}, without the program's own time")
    return {
        "ncu_plan_kernels": Metric(value=plan.kernels, unit="kernels", how=how, reason=reason),
        "ncu_plan_launches": Metric(value=plan.launches, unit="launches", how=f"{how}, upper estimate"),
        "ncu_plan_passes": Metric(value=plan.passes, unit="passes", how=f"{how}, by section set", per="launch"),
        "ncu_plan_estimate_s": seconds,
        "ncu_plan_coverage": Metric(
            value=share,
            unit="ratio",
            how="GPU time of the chosen kernels on the nsys timeline",
            per=None if selection is None else f"GPU time of {selection.source}",
            reason=reason or (None if share is not None else "the timeline has no GPU time"),
        ),
    }


def result_metrics(
    analysis: NcuAnalysis, captured: NcuCaptured, window: NcuCaptured | None = None
) -> dict[str, Metric]:
    """What came of the capture, and of the second look where there was one."""
    how = "ncu, rerun without filters" if captured.rerun else "ncu"
    known = [k.nsys_time_pct for k in analysis.kernels if k.nsys_time_pct is not None]
    source = "ncu/kernels.json"
    seconds = captured.duration_s + (0.0 if window is None else window.duration_s)
    joined = analysis.match_rate is not None
    reason = None if joined else "no nsys timeline to match with"
    return {
        "ncu_kernels": Metric(value=len(analysis.kernels), unit="kernels", how=how, source=source),
        "ncu_launches": Metric(value=analysis.launches, unit="launches", how=how, source=source),
        "ncu_capture_s": Metric(value=round(seconds, 1), unit="s", how=f"{how}, wall time of the capture"),
        "ncu_match_rate": Metric(
            value=analysis.match_rate,
            unit="ratio",
            how="profiled kernels found on the nsys timeline",
            per="profiled kernels",
            source=source,
            reason=reason,
        ),
        "ncu_coverage": Metric(
            value=sum(known) / 100.0 if joined else None,
            unit="ratio",
            how="GPU time of the profiled kernels",
            per=f"GPU time of {analysis.joined_with}" if joined else None,
            source=source,
            reason=reason,
        ),
    }


def slowdown_metrics(ctx: StageContext, timeout_s: float) -> dict[str, Metric]:
    """Time per token and prefill time under ncu, replays included, against the clean pass."""
    where = "under ncu, replays included,"
    folder = ctx.workload_dir / NCU
    try:
        clean = clean_baseline(ctx, timeout_s)
        if clean is None:
            return no_slowdown(NO_CLEAN_PASS, where=where)
        profiled = read_metrics(folder)
    except ProfilingError as error:
        return no_slowdown(str(error), where=where)
    return slowdown_between(clean.metrics, profiled, folders=(clean.folder, folder), where=where, source=clean.source)

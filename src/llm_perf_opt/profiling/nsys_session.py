"""The nsys stage's work: captures, exports without the environment, analysis, files, slowdown."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.analysis.capture import CaptureAnalysis, analyze_timelines
from llm_perf_opt.core.records import Metric, StageFile, StageOutput
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.errors import ProfilingError, ToolError
from llm_perf_opt.profiling.baseline import clean_baseline, own_clean_pass
from llm_perf_opt.profiling.capture_files import capture_metrics, write_analysis
from llm_perf_opt.profiling.nsys_capture import WORK_DIR, Captured, CaptureOptions, export_report, run_capture
from llm_perf_opt.profiling.nsys_scrub import holds_any, overwrite_assignments, overwrite_secrets, scrub_export
from llm_perf_opt.profiling.parsers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.profiling.vendor.nsys import find_reports, find_unimported
from llm_perf_opt.profiling.workload_results import METRICS_FILE, read_metrics

if TYPE_CHECKING:
    from llm_perf_opt.profiling.stages.nsys import NsysConfig

# Which number of metrics.json says how long a phase took.
PHASE_METRICS = {"prefill": "prefill_ms", "decode": "tpot_ms"}


def run_nsys(cfg: "NsysConfig", ctx: StageContext) -> StageOutput:
    """Capture each range asked for, then analyse all reports together."""
    baseline = clean_baseline(ctx, cfg.timeout_s)
    captures: list[Captured] = []
    planned = plan_captures(cfg, ctx.host.tool("nsys").path or "nsys")
    for base, options in planned:
        try:
            captures.append(run_capture(ctx, options, base))
        except ProfilingError:
            _make_leftovers_safe(ctx, cfg, ctx.out_dir / base)
            raise
    if len(planned) > 1:
        _gather(ctx.out_dir, [base for base, _ in planned])
    reports = [report for capture in captures for report in capture.reports]
    notes = [note for capture in captures for note in capture.notes]
    exports = [_export(ctx, report, cfg, notes) for report in reports]
    analysis = analyze_timelines([read_nsys_sqlite(path) for path in exports])
    child = _child_metrics(ctx)
    _require_kernels(cfg, analysis, child)
    files = write_analysis(ctx.out_dir, analysis)
    metrics = capture_metrics(analysis, source="nsys/analysis.json", kind="nsys")
    metrics |= slowdown_metrics(baseline, child, complete=all(c.workload_exit_code == 0 for c in captures))
    clean, clean_files = own_clean_pass(ctx)
    kept = [report for report in reports if report.is_file()]
    return StageOutput(
        metrics={**clean, **metrics},
        files=(
            *(StageFile(role="nsys_report", path=p) for p in kept),
            *(StageFile(role="nsys_sqlite", path=p) for p in exports),
            *files,
            *clean_files,
        ),
        notes=(*notes, *_notes(ctx, analysis)),
    )


def plan_captures(cfg: "NsysConfig", nsys: str) -> list[tuple[str, CaptureOptions]]:
    """File base and options of each capture: one, or one per range."""
    capture = cfg.capture_in_force
    options = CaptureOptions(
        nsys=nsys,
        trace=cfg.trace,
        sample=cfg.sample,
        cpuctxsw=cfg.cpuctxsw,
        capture_range=capture,
        nvtx_capture=None,
        capture_range_end=cfg.capture_range_end if capture != "none" else None,
        nvtx_domain_include=cfg.nvtx_domain_include,
        nvtx_domain_exclude=cfg.nvtx_domain_exclude,
        cuda_graph_trace=cfg.cuda_graph_trace,
        extra_args=cfg.extra_args,
        timeout_s=cfg.timeout_s,
    )
    if capture != "nvtx":
        return [("run", options)]
    names = list(dict.fromkeys(cfg.capture_names))
    if len(names) == 1:
        return [("run", replace(options, nvtx_capture=names[0]))]
    bases = _unique([f"run-{re.sub(r'[^A-Za-z0-9_-]+', '_', name)}" for name in names])
    return [(base, replace(options, nvtx_capture=name)) for base, name in zip(bases, names, strict=True)]


def _gather(folder: Path, bases: Sequence[str]) -> None:
    """Several captures leave a command and a log each; under the usual names stand all of them, one after the other."""
    for kind in ("cmd", "log"):
        parts = [(folder / f"{kind}-{base}.txt").read_text(encoding="utf-8", errors="replace") for base in bases]
        (folder / f"{kind}.txt").write_text("\n".join(parts), encoding="utf-8")


def _unique(names: Sequence[str]) -> list[str]:
    return [name if names.index(name) == i else f"{name}-{i + 1}" for i, name in enumerate(names)]


def _export(ctx: StageContext, report: Path, cfg: "NsysConfig", notes: list[str]) -> Path:
    """The export without environments; the report goes with it when it is not wanted or cannot be made safe."""
    nsys = ctx.host.tool("nsys").path or "nsys"
    sqlite = export_report(ctx, nsys, report, report.with_suffix(".sqlite"), cfg.timeout_s)
    environments = scrub_export(sqlite)
    secrets = environments.secrets
    if not cfg.keep_report:
        report.unlink()
    elif secrets:
        overwrite_secrets(report, secrets)
        if not _is_clean(ctx, nsys, report, secrets, cfg.timeout_s):
            report.unlink()
            notes.append(
                f"{report.name} was deleted: nsys records the environment of every running process, here with "
                f"{', '.join(environments.secret_names)}, which could not be removed from the report; the export "
                f"{sqlite.name} is clean and complete. Unset them in the processes that hold them to keep the report"
            )
    return sqlite


def _make_leftovers_safe(ctx: StageContext, cfg: "NsysConfig", out_base: Path) -> None:
    """What a failed capture left stays for a look, but without anyone's secrets."""
    for raw in find_unimported(out_base):
        overwrite_assignments(raw)
    for report in find_reports(out_base):
        try:
            _export(ctx, report, replace(cfg, keep_report=True), [])
        except ProfilingError:
            report.unlink()


def _is_clean(ctx: StageContext, nsys: str, report: Path, secrets: Sequence[str], timeout_s: float) -> bool:
    """Whether an overwritten report can still be read and holds none of the secrets."""
    check = ctx.tmp_dir / "check.sqlite"
    try:
        export_report(ctx, nsys, report, check, timeout_s)
        return not holds_any(check, secrets) and not holds_any(report, secrets)
    except ToolError:
        return False
    finally:
        check.unlink(missing_ok=True)


def _child_metrics(ctx: StageContext) -> dict[str, Any] | None:
    """What our own workload measured of itself under nsys."""
    folder = ctx.workload_dir / WORK_DIR
    return read_metrics(folder) if ctx.config.workload.command is None and (folder / METRICS_FILE).is_file() else None


def _require_kernels(cfg: "NsysConfig", analysis: CaptureAnalysis, child: Mapping[str, Any] | None) -> None:
    """A workload that ran on the GPU and left no kernel was not traced: no empty success."""
    device = str(child["model"]["device"]) if child is not None and "model" in child else ""
    empty = not analysis.gpu["kernel_count"] and not analysis.graphs["launches_traced_as_a_whole"]
    if empty and device.startswith("cuda") and "cuda" in cfg.trace.split(",") and cfg.capture_in_force == "none":
        raise ProfilingError(
            f"nsys recorded no kernel although the workload ran on {device}; the driver may be too new for this nsys, "
            "or another profiler is attached. See nsys/log.txt; a newer Nsight Systems usually helps"
        )


def slowdown_metrics(
    baseline: Mapping[str, Any] | None, child: Mapping[str, Any] | None, *, complete: bool
) -> dict[str, Metric]:
    """Time under nsys divided by time in the clean pass, per phase, or the reason why there is none."""
    found = {}
    for phase, key in PHASE_METRICS.items():
        how = f"{key} (p50) under nsys divided by the clean pass's"
        reason = None
        if baseline is None:
            reason = "workload.command was not timed without a profiler"
        elif child is None or not complete:
            reason = "the workload did not run to its end under nsys"
        else:
            clean, slow = _p50(baseline, key), _p50(child, key)
            if clean and slow:
                source = str(baseline["source"])
                found[f"slowdown_{phase}"] = Metric(
                    value=round(slow / clean, 4), unit="x", how=how, per="clean pass", source=source
                )
                continue
            reason = f"no {key} was measured"
        found[f"slowdown_{phase}"] = Metric(value=None, unit="x", how=how, reason=reason)
    return found


def _p50(metrics: Mapping[str, Any], key: str) -> float | None:
    try:
        value = metrics["clean"]["metrics"][key]["p50"]
    except (KeyError, TypeError):
        return None
    return float(value) if isinstance(value, int | float) else None


def _notes(ctx: StageContext, analysis: CaptureAnalysis) -> list[str]:
    notes = list(analysis.notes)
    if not ctx.host.gpus and not analysis.gpu["kernel_count"]:
        notes.append("no kernels were recorded because this machine has no GPU")
    passed = ctx.config.run.env_passthrough
    if passed:
        notes.append(
            f"nsys records environments: run.env_passthrough ({', '.join(passed)}) may be readable in the report"
        )
    return notes + [f"finding: {finding.title}" for finding in analysis.findings]

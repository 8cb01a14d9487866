"""The nsys stage's work: captures, exports without the environment, analysis, files, slowdown."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from llm_perf_opt.capture.ranges import chosen_phases, with_phases
from llm_perf_opt.capture.ranks.identify import RANKS
from llm_perf_opt.capture.ranks.traffic import measure_traffic
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.config.schema import AUTO
from llm_perf_opt.core.documents import MetricsDocument
from llm_perf_opt.core.names import METRICS_FILE
from llm_perf_opt.core.records import Metric, StageFile, StageOutput
from llm_perf_opt.core.sections import Section
from llm_perf_opt.core.slowdown import no_slowdown
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.diagnosis.analyze import Analyzed, RecordedCapture, analyze_captures
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.profiling.baseline import (
    NOT_TIMED,
    CleanBaseline,
    clean_baseline,
    output_files,
    own_clean_pass,
    read_metrics,
    slowdown_between,
)
from llm_perf_opt.profiling.capture_files import capture_metrics, write_analysis
from llm_perf_opt.profiling.generated import collect_generated
from llm_perf_opt.profiling.nsys.isolation import isolation
from llm_perf_opt.profiling.nsys.nsys_capture import WORK_DIR, CaptureOptions, NsysCaptured, run_capture
from llm_perf_opt.profiling.nsys.scrub import RawFolder, publish_leftovers, publish_report, raw_folder
from llm_perf_opt.profiling.vendor.nsys import trace_of_window, traces_cuda
from llm_perf_opt.report.sections.idle_sections import idle_sections
from llm_perf_opt.report.sections.rank_sections import rank_sections, traffic_section

if TYPE_CHECKING:
    from llm_perf_opt.profiling.stages.nsys import NsysConfig


LONGEST_BASE = 100
# Of pipeline.nsys.timeout_s; the rest is for nsys to write and import the capture.
WINDOW_SHARE = 0.8
# nsys needs a second or two to end and write, however short the window.
WRITING_S = 5.0
# The file of a capture without ranges, made because ranges tore the first.
NO_RANGES = "run-no-ranges"


def run_nsys(cfg: "NsysConfig", ctx: StageContext) -> StageOutput:
    """Capture each range asked for, then analyse all reports together."""
    baseline = clean_baseline(ctx, cfg.timeout_s)
    wrapper = (
        isolation(ctx.config, (cfg.sample, cfg.cpuctxsw), ctx.run_command.environment) if cfg.isolate == "auto" else []
    )
    with raw_folder(ctx, ctx.host.tool("nsys"), wrapper=tuple(wrapper)) as raw:
        captures, exports, notes = _capture_all(cfg, ctx, raw)
    phases = chosen_phases(ctx.config.workload.phase_preset, ctx.config.workload.phases)
    analyzed = analyze_exports(exports, phases, are_ranks=(ctx.config.run.ranks or 1) > 1)
    analysis = analyzed.analysis
    child = _child_metrics(ctx)
    _require_kernels(cfg, analysis, child)
    files = write_analysis(ctx.out_dir, analysis, analyzed.measured)
    metrics = capture_metrics(analysis, source="nsys/analysis.json", kind="nsys")
    complete = all(c.workload_exit_code == 0 for c in captures)
    is_own = ctx.config.workload.command is None
    metrics |= nsys_slowdown(baseline if is_own else None, child, ctx.workload_dir / WORK_DIR, complete=complete)
    clean, clean_files = own_clean_pass(ctx)
    has_sources = any(record.file("generated_kernels") is not None for record in ctx.earlier.values())
    generated, sections = ((), ()) if has_sources else collect_generated(ctx.run_dir, ctx.out_dir)
    kept = [path for path in (export.with_suffix(".nsys-rep") for export in exports) if path.is_file()]
    return StageOutput(
        metrics={**clean, **metrics},
        files=(
            *(StageFile(role="nsys_report", path=p) for p in kept),
            *(StageFile(role="nsys_sqlite", path=p) for p in exports),
            *files,
            *clean_files,
            *generated,
            *(output_files(cfg.output, ctx.workload_dir / WORK_DIR) if ctx.config.workload.command is None else ()),
        ),
        notes=(*notes, *_notes(cfg, ctx, analysis)),
        sections=(*_rank_sections(ctx, analysis), *idle_sections(analysis, source="nsys/analysis.json"), *sections),
    )


def analyze_exports(
    exports: Sequence[Path], phases: Mapping[str, tuple[str, ...]], *, are_ranks: bool = False
) -> Analyzed:
    """The analysis of exports of one program; of several ranks that of rank 0, with what all ranks sent each other."""
    recorded = [read_nsys_sqlite(path) for path in exports]
    analyzed = analyze_captures(
        [
            RecordedCapture(timeline=with_phases(timeline, phases))
            for timeline in (recorded[:1] if are_ranks else recorded)
        ],
        files_are=RANKS if are_ranks else None,
        ranks_from=recorded if are_ranks else None,
    )
    traffic = measure_traffic(recorded, range(len(recorded))) if are_ranks else ()
    return replace(analyzed, analysis=replace(analyzed.analysis, traffic=traffic or UNSET))


def _rank_sections(ctx: StageContext, analysis: CaptureAnalysis) -> Iterator[Section]:
    source = "nsys/analysis.json"
    ranks = None if analysis.ranks is UNSET else analysis.ranks
    if ranks is not None:
        yield from rank_sections(ranks, source)
    if analysis.traffic is not UNSET:
        yield traffic_section(analysis.traffic, ranks, link_gb_s=ctx.config.hardware.link_gb_s, source=source)


def _capture_all(
    cfg: "NsysConfig", ctx: StageContext, raw: RawFolder
) -> tuple[list[NsysCaptured], list[Path], list[str]]:
    """The captures, their exports in the run directory, and notes; each is made safe before the next begins."""
    captures: list[NsysCaptured] = []
    exports: list[Path] = []
    notes: list[str] = []
    nsys = ctx.host.tool("nsys").path or "nsys"
    planned = plan_captures(
        cfg,
        nsys,
        version=ctx.host.tool("nsys").version,
        is_own=ctx.config.workload.command is None,
        ends_after_s=ctx.config.workload.duration_s,
    )
    try:
        for base, options in planned:
            try:
                captures.append(run_capture(ctx, options, raw, base))
            except ProfilingError:
                publish_leftovers(
                    ctx, nsys, raw.reports / base, keep=cfg.report_kept, timeout_s=cfg.timeout_s, isolated=raw.isolated
                )
                raise
            for report in captures[-1].reports:
                exports.append(_publish(cfg, ctx, raw, report, notes))
            notes += captures[-1].notes
            if captures[-1].torn_by_ranges and len(planned) == 1 and len(exports) == 1:
                exports, said = _without_ranges(cfg, ctx, raw, options, exports)
                notes += said
    finally:
        if len(planned) > 1:
            _gather(ctx.out_dir, [base for base, _ in planned])
    return captures, exports, notes


def _publish(cfg: "NsysConfig", ctx: StageContext, raw: RawFolder, report: Path, notes: list[str]) -> Path:
    return publish_report(
        ctx,
        ctx.host.tool("nsys").path or "nsys",
        report,
        keep=cfg.report_kept,
        timeout_s=cfg.timeout_s,
        notes=notes,
        isolated=raw.isolated,
    )


def _without_ranges(
    cfg: "NsysConfig", ctx: StageContext, raw: RawFolder, options: CaptureOptions, torn: list[Path]
) -> tuple[list[Path], list[str]]:
    """The export to go by after one that ranges tore: that of a second capture without ranges, where it has more.

    JAX programs do that to nsys 2025.3: what is left of the first can be a single kernel, or all of them.
    """
    trace = [kind for kind in options.trace.split(",") if kind != "nvtx"]
    has_lost = read_nsys_sqlite(torn[0]).may_lack_gpu_work and traces_cuda(options.trace)
    if not has_lost or options.capture_range != "none":
        return torn, []
    ctx.say("nsys: names of ranges kept it from importing all of the capture; once more without ranges")
    notes: list[str] = []
    try:
        second = run_capture(ctx, replace(options, trace=",".join(trace)), raw, NO_RANGES)
        (whole,) = (_publish(cfg, ctx, raw, report, notes) for report in second.reports)
    except ProfilingError as error:
        return torn, [f"a second capture, without ranges, failed: {error}"]
    before, after = (len(read_nsys_sqlite(path).kernels) for path in (*torn, whole))
    dropped = torn[0] if after > before else whole
    for path in (dropped, dropped.with_suffix(".nsys-rep")):
        path.unlink(missing_ok=True)
    if dropped == whole:
        return torn, [f"a second capture, without ranges, has no more kernels ({after:,} against {before:,})"]
    said = (
        f"{whole.name} is a second capture, without NVTX ranges: names of ranges kept nsys from importing all of the "
        f"first, which had {before:,} of {after:,} kernels left"
    )
    return [whole], [said, *second.notes, *notes]


def plan_captures(
    cfg: "NsysConfig",
    nsys: str,
    *,
    version: str | None = None,
    is_own: bool = True,
    ends_after_s: float | None = None,
) -> list[tuple[str, CaptureOptions]]:
    """File base and options of each capture: one, or one per range that nsys or our own workload gates by.

    A program of the user's own that was to be ended after a while (`workload.duration_s`) is so under nsys too.
    """
    capture = cfg.capture_in_force
    duration_s = cfg.duration_s if is_own else (cfg.duration_s or _longest_window(cfg, ends_after_s))
    is_window = capture != "none" or duration_s is not None
    options = CaptureOptions(
        nsys=nsys,
        trace=trace_of_window(cfg.traced, version) if is_window else cfg.traced,
        sample=cfg.sample,
        cpuctxsw=cfg.cpuctxsw,
        capture_range=capture,
        nvtx_capture=None,
        capture_range_end=cfg.capture_range_end if capture != "none" else None,
        nvtx_domain_include=cfg.nvtx_domain_include,
        nvtx_domain_exclude=cfg.nvtx_domain_exclude,
        cuda_graph_trace=cfg.cuda_graph_trace,
        extra_args=cfg.extra_args,
        output=cfg.output,
        timeout_s=cfg.timeout_s,
        delay_s=cfg.delay_s,
        duration_s=duration_s,
        stop_after_phases=cfg.stop_after_phases,
        repeats=cfg.repeats,
    )
    names = list(dict.fromkeys(cfg.capture_names)) if _gates_by_name(cfg, is_own=is_own) else []
    if not names:
        return [("run", options)]
    if len(names) == 1:
        return [("run", replace(options, nvtx_capture=names[0]))]
    bases = _unique([f"run-{re.sub(r'[^A-Za-z0-9_-]+', '_', name)[:LONGEST_BASE]}" for name in names])
    return [(base, replace(options, nvtx_capture=name)) for base, name in zip(bases, names, strict=True)]


def _longest_window(cfg: "NsysConfig", ends_after_s: float | None = None) -> int:
    """A program of the user's own may never end: its capture is closed while there is time to write it down."""
    longest = min(WINDOW_SHARE * cfg.timeout_s, cfg.timeout_s - WRITING_S)
    return max(1, int(longest if ends_after_s is None else min(longest, math.ceil(ends_after_s))) - cfg.delay_s)


def _gates_by_name(cfg: "NsysConfig", *, is_own: bool) -> bool:
    """Whether `nvtx_capture` has a say: nsys looks for it, or our workload calls cudaProfilerStart at it."""
    return cfg.capture_in_force == "nvtx" or (cfg.capture_in_force == "cudaProfilerApi" and is_own)


def _gather(folder: Path, bases: Sequence[str]) -> None:
    """Several captures leave a command and a log each; the usual names hold all of them, one after the other."""
    for kind in ("cmd", "log"):
        made = [path for path in (folder / f"{kind}-{base}.txt" for base in bases) if path.is_file()]
        parts = [path.read_text(encoding="utf-8", errors="replace") for path in made]
        (folder / f"{kind}.txt").write_text("\n".join(parts), encoding="utf-8")


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        taken = set(found)
        tries = (name, *(f"{name}-{i}" for i in range(2, len(names) + 2)))
        found.append(next(attempt for attempt in tries if attempt not in taken))
    return found


def _child_metrics(ctx: StageContext) -> MetricsDocument | None:
    """What our own workload measured of itself under nsys."""
    folder = ctx.workload_dir / WORK_DIR
    return read_metrics(folder) if ctx.config.workload.command is None and (folder / METRICS_FILE).is_file() else None


def _require_kernels(cfg: "NsysConfig", analysis: CaptureAnalysis, child: MetricsDocument | None) -> None:
    """A workload that ran on the GPU and left no kernel was not traced: no empty success."""
    device = (child.model.device if child is not None else None) or ""
    empty = not analysis.gpu.kernel_count and not analysis.graphs.launches_traced_as_a_whole
    if empty and device.startswith("cuda") and traces_cuda(cfg.traced) and cfg.capture_in_force == "none":
        raise ProfilingError(
            f"nsys recorded no kernel although the workload ran on {device}; the driver may be too new for this nsys, "
            "or another profiler is attached. See nsys/log.txt; a newer Nsight Systems usually helps, from 2025.6 on "
            "also cuda-sw in place of cuda in pipeline.nsys.trace"
        )


def nsys_slowdown(
    baseline: CleanBaseline | None, child: MetricsDocument | None, child_dir: Path, *, complete: bool
) -> dict[str, Metric]:
    """Time under nsys by time in the clean pass, per phase, or the reason why there is none."""
    where = "under nsys"
    if baseline is None:
        return no_slowdown(NOT_TIMED, where=where)
    if child is None or not complete:
        return no_slowdown("the workload did not run to its end under nsys", where=where)
    return slowdown_between(
        baseline.metrics, child, folders=(baseline.folder, child_dir), where=where, source=baseline.source
    )


def _notes(cfg: "NsysConfig", ctx: StageContext, analysis: CaptureAnalysis) -> list[str]:
    notes = list(analysis.notes)
    if (ctx.config.run.ranks or 1) > 1:
        notes.append("every rank has its own capture; figures are those of rank 0, sections on ranks have all")
    if cfg.capture_names and not _gates_by_name(cfg, is_own=ctx.config.workload.command is None):
        notes.append("pipeline.nsys.nvtx_capture is not used: pipeline.nsys.capture_range is not nvtx")
    asked = ctx.config.run.repeats
    if ctx.config.workload.command is None and cfg.repeats is not None and (asked == AUTO or cfg.repeats < asked):
        notes.append(
            f"repeats captured of every sample: {cfg.repeats}, in the clean pass: {asked} "
            "(pipeline.nsys.stop_after_repeats; null lifts the bound)"
        )
    if not ctx.host.gpus and not analysis.gpu.kernel_count:
        notes.append("no kernels were recorded because this machine has no GPU")
    passed = ctx.config.run.env_passthrough
    if passed and cfg.report_kept == "always":
        notes.append(
            f"nsys records environments: run.env_passthrough ({', '.join(passed)}) may be readable in the report"
        )
    return notes + [f"finding: {finding.title}" for finding in analysis.findings]

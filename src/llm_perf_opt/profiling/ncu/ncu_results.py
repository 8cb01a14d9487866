"""From a report to the files of the stage: CSV pages, sections, kernels, roofline plots, regions.

The figures a capture of ncu puts into the manifest: its plan, its result, and its cost.
"""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

import msgspec

from llm_perf_opt.capture.kernels.ncu_analysis import analyze_ncu
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis, NcuKernel, NcuLaunch
from llm_perf_opt.capture.readers.ncu_csv import csv_table, merge_launches, parse_ncu_csv, section_tables
from llm_perf_opt.capture.readers.ncu_report import IMPORT_TIMEOUT_S, build_ncu_import_cmd, load_ncu
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import NCU
from llm_perf_opt.core.records import Metric, StageFile
from llm_perf_opt.core.slowdown import no_slowdown
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.errors import ProfilingError, ToolError
from llm_perf_opt.profiling.baseline import NOT_TIMED, clean_baseline, read_metrics, slowdown_between
from llm_perf_opt.profiling.ncu.ncu_capture import NcuCaptured
from llm_perf_opt.profiling.ncu.select import NcuPlan, Selection
from llm_perf_opt.report.draw import roofline_svg
from llm_perf_opt.report.render.kernels_md import render_region_md
from llm_perf_opt.system.terminal import printable

_NOT_IN_CSV = (
    *("advice", "missing", "peak_flop_per_s", "flop_per_s_by_pipe", "stalls_pct"),
    *("breakdown_pct", "hit_rates_pct"),
)
STALLS_IN_CSV = 3


def read_capture(
    report: Path, ctx: StageContext, *, ncu: str, keep_csv: bool, suffix: str = ""
) -> tuple[list[NcuLaunch], list[StageFile]]:
    """The launches of a report. The CSV pages and one CSV per section stay in the stage's folder when asked for."""
    if not keep_csv:
        return load_ncu(report, ncu=ncu), []
    raw, details = (_export(report, page, ctx, ncu, suffix) for page in ("raw", "details"))
    for name, table in section_tables(details.read_text(encoding="utf-8")).items():
        path = ctx.out_dir / "sections" / f"{safe_name(name)}{suffix}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(table, encoding="utf-8")
    pages = [parse_ncu_csv(path.read_text(encoding="utf-8"), source=str(path)) for path in (raw, details)]
    files = [StageFile(role="ncu_raw", path=raw), StageFile(role="ncu_details", path=details)]
    return merge_launches(pages), files


def _export(report: Path, page: str, ctx: StageContext, ncu: str, suffix: str) -> Path:
    """One page as CSV. ncu prints it on its standard output, together with warnings, which are taken out again."""
    path = ctx.out_dir / f"{page}{suffix}.csv"
    argv = build_ncu_import_cmd(report, page="raw" if page == "raw" else "details", ncu=ncu)
    result = ctx.run_command(argv, timeout_s=IMPORT_TIMEOUT_S, log=path.name, cmd_file=None, label=f"ncu import {page}")
    text = path.read_text(encoding="utf-8", errors="replace")
    table = csv_table(text)
    if not result.ok or not table:
        raise ToolError(f"{report}: ncu could not print its {page} page ({text.strip()[-300:] or 'no message'})")
    path.write_text(table, encoding="utf-8")
    return path


def write_kernels(analysis: NcuAnalysis, out_dir: Path) -> list[StageFile]:
    """kernels.json (everything) and kernels.csv (one row per kernel, plain columns)."""
    json_path = write_json(out_dir / "kernels.json", msgspec.to_builtins(analysis))
    csv_path = out_dir / "kernels.csv"
    csv_path.write_text(printable(kernels_csv(analysis.kernels)), encoding="utf-8")
    return [StageFile(role="ncu_kernels_csv", path=csv_path), StageFile(role="ncu_kernels_json", path=json_path)]


def kernels_csv(kernels: Sequence[NcuKernel]) -> str:
    """One row per kernel; an unknown value is an empty cell, lists are joined by `;`."""
    columns = [f.name for f in fields(NcuKernel) if f.name not in _NOT_IN_CSV]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, "top_stalls", "advice"])
    for kernel in kernels:
        values = vars(kernel)
        stalls = ";".join(f"{name}={share:.1f}" for name, share in [*kernel.stalls_pct.items()][:STALLS_IN_CSV])
        writer.writerow([*(_csv_cell(values[c]) for c in columns), stalls, ";".join(a.rule for a in kernel.advice)])
    return out.getvalue()


def _csv_cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ";".join(map(str, value))
    return repr(value) if isinstance(value, float) else str(value)


def write_rooflines(analysis: NcuAnalysis, launches: Sequence[NcuLaunch], out_dir: Path) -> list[StageFile]:
    """roofline.svg for all kernels, and one per phase (the outermost NVTX range) where launches carry ranges."""
    files = [_svg(analysis.kernels, out_dir / "roofline.svg", "Roofline, all profiled kernels")]
    joined = {kernel.kernel: kernel for kernel in analysis.kernels}
    phases = list(dict.fromkeys(launch.nvtx[0] for launch in launches if launch.nvtx))
    for phase in phases:
        rows = analyze_ncu([launch for launch in launches if launch.nvtx[:1] == (phase,)]).kernels
        shared = [replace(row, nsys_time_pct=joined[row.kernel].nsys_time_pct) for row in rows]
        files.append(_svg(shared, out_dir / f"roofline-{safe_name(phase)}.svg", f"Roofline, {phase}"))
    return files


def _svg(kernels: Sequence[NcuKernel], path: Path, title: str) -> StageFile:
    path.write_text(roofline_svg(kernels, title=title), encoding="utf-8")
    return StageFile(role="roofline_svg", path=path)


def write_regions(launches: Sequence[NcuLaunch], out_dir: Path) -> list[StageFile]:
    """regions/<label>/report.md and report.json of range replay, one per range that was measured."""
    groups: dict[str, list[NcuLaunch]] = {}
    for launch in launches:
        label = launch.nvtx[-1] if launch.nvtx else f"range-{launch.launch_id}"
        groups.setdefault(label, []).append(launch)
    files = []
    for label, group in groups.items():
        folder = out_dir / "regions" / safe_name(label)
        folder.mkdir(parents=True, exist_ok=True)
        analysis = replace(analyze_ncu(group), label=label)
        text = "\n".join(render_region_md(label, row) for row in analysis.kernels)
        (folder / "report.md").write_text(printable(text), encoding="utf-8")
        write_json(folder / "report.json", msgspec.to_builtins(analysis))
        files += [StageFile(role="region", path=folder / name) for name in ("report.md", "report.json")]
    return files


def safe_name(text: str) -> str:
    """Text as part of a file name."""
    return re.sub(r"[^\w.-]+", "_", text).strip("._") or "unnamed"


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
    """The results of the capture, and of the second one where there was one."""
    how = "ncu, rerun without filters" if captured.rerun else "ncu"
    # Kernels that cannot be distinguished on the timeline share its time.
    known = {k.nsys_names: k.nsys_time_pct for k in analysis.kernels if k.nsys_time_pct is not None}
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
            value=sum(known.values()) / 100.0 if joined else None,
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
    if ctx.config.workload.command is not None:
        return no_slowdown(NOT_TIMED, where=where)
    try:
        clean = clean_baseline(ctx, timeout_s)
        profiled = read_metrics(folder)
    except ProfilingError as error:
        return no_slowdown(str(error), where=where)
    return slowdown_between(clean.metrics, profiled, folders=(clean.folder, folder), where=where, source=clean.source)

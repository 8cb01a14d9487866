"""The clean pass a profiler's slowdown is measured against: an earlier stage's, or a short one of its own."""

import json
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.documents import MetricsDocument
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import DECODE, DIRECT_INFERENCE, METRICS_FILE, NSYS, WALL_METRIC
from llm_perf_opt.core.records import Metric, StageFile
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.profiling.vendor.launch import (
    INFERENCE_RUNNER,
    build_work_argv,
    stage_overrides,
    workload_overrides,
)
from llm_perf_opt.profiling.workload_results import (
    clean_metrics,
    forget_results,
    read_metrics,
    require_success,
)

CLEAN_DIR = "clean"
NO_CLEAN_PASS = "workload.command was not timed without a profiler"


@dataclass(frozen=True, kw_only=True)
class CleanBaseline:
    """What a clean pass measured, its file's path inside the run, and the folder its samples lie in."""

    metrics: MetricsDocument
    source: str
    folder: Path


def clean_baseline(ctx: StageContext, timeout_s: float) -> CleanBaseline | None:
    """A clean pass over this workload.

    None when `workload.command` replaces our own inference, because then
    nobody has timed it without a profiler.
    """
    if ctx.config.workload.command is not None:
        return None
    for name in ctx.clean_stages:
        record = ctx.earlier.get(name)
        path = record.file("metrics") if record is not None and record.status == "ok" else None
        if path is not None and path.is_file():
            return CleanBaseline(metrics=read_metrics(path.parent), source=f"{name}/{path.name}", folder=path.parent)
    return _measure(ctx, timeout_s)


def own_clean_pass(ctx: StageContext) -> tuple[dict[str, Metric], tuple[StageFile, ...]]:
    """The clean pass a profiler made for itself, as metrics and file; nothing where a stage before it made one.

    So a run of nsys or ncu alone has its latencies in the manifest, and the report shows them.
    """
    path = ctx.workload_dir / CLEAN_DIR / METRICS_FILE
    # nsys may have made a clean pass for itself before ncu asks.
    names = (*ctx.clean_stages, NSYS)
    timed = any(name in ctx.earlier and WALL_METRIC[DECODE] in ctx.earlier[name].metrics for name in names)
    # A program of the user's own was not timed by us; what lies there is of another workload, before a resume.
    if timed or ctx.config.workload.command is not None or not path.is_file():
        return {}, ()
    source = path.relative_to(ctx.run_dir).as_posix()
    return clean_metrics(read_metrics(path.parent), source), (StageFile(role="metrics", path=path),)


def _measure(ctx: StageContext, timeout_s: float) -> CleanBaseline:
    """One clean repeat in the workload's scratch directory, measured once for all stages of a run that ask for it."""
    folder = ctx.workload_dir / CLEAN_DIR
    argv = build_work_argv(
        INFERENCE_RUNNER,
        [
            *workload_overrides(ctx.config),
            *quiet_inference(warmup_rounds=1),
            "run.repeats=1",
        ],
        hydra_run_dir=folder,
    )
    # A resumed run may have other settings, so a result counts only for the very command that made it.
    made_by = folder / "made_by.json"
    if not (made_by.is_file() and json.loads(made_by.read_bytes()) == argv):
        made_by.unlink(missing_ok=True)
        forget_results(folder)
        result = ctx.run_command(
            argv,
            timeout_s=timeout_s,
            log="clean_baseline.log",
            cmd_file="clean_baseline.cmd.txt",
            label="clean baseline",
        )
        require_success(result, "the clean pass", stage=ctx.out_dir.name)
        write_json(made_by, argv)
    source = (folder / METRICS_FILE).relative_to(ctx.run_dir).as_posix()
    return CleanBaseline(metrics=read_metrics(folder), source=source, folder=folder)


def quiet_inference(*, warmup_rounds: int) -> list[str]:
    """Overrides for a child that only has to run: neither predictions nor gallery."""
    section = {
        "enable": True,
        "warmup_rounds": warmup_rounds,
        "output": {"prediction": {"enable": False}, "visualization": {"enable": False}},
    }
    return stage_overrides(DIRECT_INFERENCE, section)

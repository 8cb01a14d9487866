"""The clean pass a profiler's slowdown is measured against: an earlier stage's, or its own short one.

Reads the files our own run workload left behind into what a stage reports.

Where `pipeline.<stage>.output` put predictions and gallery, as files of the stage.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.core.documents import MetricsDocument, Stats
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import (
    DECODE,
    DIRECT_INFERENCE,
    INPUTS_FILE,
    KERNELS_CSV,
    METRICS_FILE,
    NSYS,
    OPERATORS_CSV,
    OPERATORS_MD,
    RANK_PREFIX,
    SAMPLES_FILE,
    TRACE_FILE,
    WALL_METRIC,
    Role,
)
from llm_perf_opt.core.records import Metric, Spread, StageFile, StageOutput
from llm_perf_opt.core.slowdown import TimedSample, matched_ratios, slowdown
from llm_perf_opt.core.stage import Obstacle, StageContext
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import CommandFailed, ParseError
from llm_perf_opt.marks import MARKS_DIR, STOPPED
from llm_perf_opt.profiling.injection import found_phases_environment
from llm_perf_opt.profiling.user_program import (
    CLEAN_PASS,
    ProgramRun,
    describe_program,
    phase_limit,
    read_marks,
    sample_lines,
)
from llm_perf_opt.profiling.vendor.launch import (
    INFERENCE_RUNNER,
    build_work_argv,
    launch_ranks,
    stage_overrides,
    workload_overrides,
)
from llm_perf_opt.system.files import write_whole
from llm_perf_opt.system.nvml import gpu_index, sample_gpu
from llm_perf_opt.system.process import CommandResult, program_title
from llm_perf_opt.workload.outputs import GALLERY_FILE, PREDICTIONS_FILE, resolve_dirs

LINES_QUOTED = 6
# A line that names an error, and those that follow one without saying more: advice, and launchers' own errors.
_TELLING = re.compile(
    r"^[\w.]*(Error|Exception)\b"
    r"|\b(CUDA error|out of memory|[Ss]egmentation fault|panicked at|Killed)\b"
    r"|^(fatal|FATAL)\b"
)
_AFTERWORD = re.compile(
    r"ChildFailedError"
    r"|^(Compile with|For debugging|CUDA kernel errors|Search for|Device-side assertion|\[W\d|={5}|-{5})"
)
FILES: tuple[tuple[Role, str], ...] = (
    ("metrics", METRICS_FILE),
    ("samples", SAMPLES_FILE),
    ("operators_csv", OPERATORS_CSV),
    ("operators_md", OPERATORS_MD),
    ("trace", TRACE_FILE),
    ("kernels_csv", KERNELS_CSV),
)


def torch_obstacles(host: Host) -> tuple[Obstacle, ...]:
    """What every stage that runs the model needs of this machine."""
    if "torch" in host.packages and host.packages["torch"] is None:
        return (Obstacle(what="torch is not installed, so the model cannot run", remedy="pip install 'torch>=2.11'"),)
    return ()


def require_success(result: CommandResult, what: str, *, stage: str) -> None:
    """Raise with the words the child of a stage ended with; what it wrote until then stays where it is."""
    if result.ok:
        return
    if result.timed_out:
        ending = f"did not end within {result.duration_s:.0f} s (pipeline.{stage}.timeout_s)"
    elif result.exit_code is not None and result.exit_code < 0:
        hint = " (the system may have run out of memory)" if result.exit_code == -9 else ""
        ending = f"was ended by signal {-result.exit_code}{hint}"
    else:
        ending = f"failed with exit code {result.exit_code}"
    last = last_words(result.tail)
    raise CommandFailed(f"{what} {ending}: {last or 'it printed nothing'}", log=result.log)


def last_words(tail: str) -> str:
    """The lines that say why a program ended: from its last `error:` on, the last error it names, or its last line."""
    lines = [line.rstrip() for line in tail.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        quoted = lines[starts[-1] :][:LINES_QUOTED]
        return "; ".join([quoted[0].removeprefix("error: "), *quoted[1:]])
    plain = [line for line in lines if not line.startswith((" ", "Traceback "))]
    telling = [line for line in plain if _TELLING.search(line) and not _AFTERWORD.search(line)]
    others = [line for line in plain if not _AFTERWORD.search(line)]
    return next(iter([*telling[-1:], *others[-1:], *plain[-1:]]), "")


def read_metrics(folder: Path) -> MetricsDocument:
    """What the workload wrote into metrics.json."""
    path = folder / METRICS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=MetricsDocument)
    except FileNotFoundError as error:
        raise ParseError(f"{path}: the workload exited with 0 but did not write it") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"{path}: is invalid ({error})") from error


def read_inputs(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """The samples the workload used, with size and hash."""
    path = folder / INPUTS_FILE
    return tuple(json.loads(path.read_bytes())) if path.is_file() else ()


def used_samples(output: StageOutput, folder: Path) -> tuple[Mapping[str, Any], ...]:
    """The samples a profiled workload used, and those of the clean pass its stage made for itself."""
    clean = [file.path.parent for file in output.files if file.role == "metrics"]
    return tuple(sample for place in (*clean, folder) for sample in read_inputs(place))


def clean_metrics(data: MetricsDocument, source: str) -> dict[str, Metric]:
    """The headline numbers of the clean pass: the median of each, or the reason why there is none."""
    clean = data.clean
    metrics = {name: _median(name, stats, source) for name, stats in clean.metrics.items()}
    metrics["peak_memory_bytes"] = Metric(
        value=clean.peak_memory_bytes,
        unit="bytes",
        how=f"clean pass, highest of all samples: {clean.peak_memory_how}",
        source=source,
        reason=clean.peak_memory_reason,
    )
    metrics["device_name"] = Metric(value=data.model.device_name, unit="", how="as torch names it", source=source)
    return metrics


def profiled_slowdown(data: MetricsDocument, source: str) -> dict[str, Metric]:
    """What the profiler cost a run that made both passes itself and compared them."""
    return slowdown(
        data.slowdown or dict.fromkeys(WALL_METRIC),
        clean_ms=_medians(data.clean.metrics),
        profiled_ms=_medians({} if data.profiled is None else data.profiled.metrics),
        where="in the profiled pass",
        source=source,
    )


def slowdown_between(
    clean: MetricsDocument, profiled: MetricsDocument, *, folders: tuple[Path, Path], where: str, source: str
) -> dict[str, Metric]:
    """What a profiler cost: two metrics.json, and the folders they lie in, the clean one first."""
    return slowdown(
        matched_ratios(*(read_timed_samples(folder) for folder in folders)),
        clean_ms=_medians(clean.clean.metrics),
        profiled_ms=_medians(profiled.clean.metrics),
        where=where,
        source=source,
    )


def read_timed_samples(folder: Path) -> list[TimedSample]:
    """The samples of the pass our inference made, as it timed them itself; none if it wrote no samples."""
    path = folder / SAMPLES_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines]
    return [
        TimedSample(sample_id=row["sample_id"], prefill_ms=row["prefill_ms"], step_ms=tuple(row["itl_values_ms"]))
        for row in rows
        if row["pass"] == CLEAN_PASS
    ]


def _medians(metrics: Mapping[str, Stats]) -> dict[str, float | None]:
    return {phase: metrics[key].p50 if key in metrics else None for phase, key in WALL_METRIC.items()}


def forget_results(folder: Path) -> None:
    """Remove what an earlier attempt wrote, so that nothing of it is mistaken for the next one's."""
    for name in (INPUTS_FILE, *(name for _, name in FILES)):
        (folder / name).unlink(missing_ok=True)
    for ranks in folder.glob(f"{RANK_PREFIX}[0-9]*"):
        shutil.rmtree(ranks)


def existing_files(folder: Path) -> tuple[StageFile, ...]:
    """The files of the fixed names that were written."""
    return tuple(StageFile(role=role, path=folder / name) for role, name in FILES if (folder / name).is_file())


def notes_of(data: MetricsDocument) -> tuple[str, ...]:
    """The run's own notes, the model's stated fallbacks, and one line on bad samples."""
    bad = data.bad_samples
    names = ", ".join(sample.sample_id for sample in bad[:5])
    skipped = (f"skipped {count_of(len(bad), 'sample')} that could not be run: {names}",) if bad else ()
    return (*data.notes, *data.model.notes, *skipped)


def _median(name: str, stats: Stats, source: str) -> Metric:
    value = stats.p50
    return Metric(
        value=value,
        unit=_unit(name),
        how=f"clean pass, median of {stats.n}",
        per="second of the phase" if name.endswith("_per_s") else None,
        source=source,
        reason=stats.reason or None,
        spread=None if stats.p10 is None or stats.p90 is None else Spread(p10=stats.p10, p90=stats.p90, n=stats.n),
    )


def _unit(name: str) -> str:
    if name.endswith("_per_s"):
        return "tokens/s"
    if name == "batch":
        # Sequences at once.
        return ""
    return "ms" if name.endswith("_ms") else "tokens"


CLEAN_DIR = "clean"
NOT_TIMED = "your own program is not timed under a profiler"


@dataclass(frozen=True, kw_only=True)
class CleanBaseline:
    """What a clean pass measured, its file's path inside the run, and the folder its samples lie in."""

    metrics: MetricsDocument
    source: str
    folder: Path


def clean_baseline(ctx: StageContext, timeout_s: float) -> CleanBaseline:
    """A clean pass over this workload, made here if no stage before made one."""
    for name in ctx.clean_stages:
        record = ctx.earlier.get(name)
        path = record.file("metrics") if record is not None and record.status == "ok" else None
        if path is not None and path.is_file():
            return CleanBaseline(metrics=read_metrics(path.parent), source=f"{name}/{path.name}", folder=path.parent)
    return _measure(ctx, timeout_s) if ctx.config.workload.command is None else _measure_program(ctx, timeout_s)


def clean_pass_commands(ctx: StageContext) -> tuple[tuple[str, ...], ...]:
    """What `clean_baseline` would start, for a dry run; nothing where another stage makes the clean pass.

    A user's own program is run as it is, so its command says nothing new.
    """
    is_made = any(name in ctx.config.stages for name in ctx.clean_stages)
    return () if is_made or ctx.config.workload.command is not None else (tuple(_clean_argv(ctx)),)


def own_clean_pass(ctx: StageContext) -> tuple[dict[str, Metric], tuple[StageFile, ...]]:
    """The clean pass a profiler made for itself, as metrics and file; nothing where a stage before it made one.

    So a run of nsys or ncu alone has its latencies in the manifest, and the report shows them.
    """
    path = ctx.workload_dir / CLEAN_DIR / METRICS_FILE
    # nsys may have made a clean pass for itself before ncu asks.
    names = (*ctx.clean_stages, NSYS)
    timed = any(name in ctx.earlier and WALL_METRIC[DECODE] in ctx.earlier[name].metrics for name in names)
    # What lies there may be of another workload, before a resume.
    if timed or not path.is_file() or not _is_of_this_program(ctx, path.parent):
        return {}, ()
    source = path.relative_to(ctx.run_dir).as_posix()
    samples = path.parent / SAMPLES_FILE
    files = [StageFile(role="metrics", path=path), StageFile(role="samples", path=samples)]
    return clean_metrics(read_metrics(path.parent), source), tuple(f for f in files if f.path.is_file())


def _measure(ctx: StageContext, timeout_s: float) -> CleanBaseline:
    """One clean repeat in the workload's scratch directory, measured once for all stages of a run that ask for it."""
    folder = ctx.workload_dir / CLEAN_DIR
    argv = _clean_argv(ctx)
    # A resumed run may have other settings, so a result counts only for the very command that made it.
    made_by = folder / "made_by.json"
    written = _as_written(ctx, argv)
    if not (made_by.is_file() and json.loads(made_by.read_bytes()) == written):
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
        write_json(made_by, written)
    source = (folder / METRICS_FILE).relative_to(ctx.run_dir).as_posix()
    return CleanBaseline(metrics=read_metrics(folder), source=source, folder=folder)


def _clean_argv(ctx: StageContext) -> list[str]:
    """One repeat of our workload without a profiler."""
    work = build_work_argv(
        INFERENCE_RUNNER,
        [
            *workload_overrides(ctx.config),
            *quiet_inference(warmup_rounds=1),
            "run.repeats=1",
        ],
        hydra_run_dir=ctx.workload_dir / CLEAN_DIR,
    )
    return launch_ranks(work, ctx.config.run)


def _measure_program(ctx: StageContext, timeout_s: float) -> CleanBaseline:
    """The user's program without a profiler, `workload.repeats` times, measured once for all stages of a run."""
    folder = ctx.workload_dir / CLEAN_DIR
    made_by = folder / "made_by.json"
    if not _is_of_this_program(ctx, folder):
        made_by.unlink(missing_ok=True)
        forget_results(folder)
        folder.mkdir(parents=True, exist_ok=True)
        refuse_failed_program(ctx)
        data, samples = _run_program(ctx, folder, timeout_s)
        write_json(folder / METRICS_FILE, data)
        if samples:
            write_whole(folder / SAMPLES_FILE, samples)
        write_json(made_by, _program(ctx))
    source = (folder / METRICS_FILE).relative_to(ctx.run_dir).as_posix()
    return CleanBaseline(metrics=read_metrics(folder), source=source, folder=folder)


def _is_of_this_program(ctx: StageContext, folder: Path) -> bool:
    """Whether a clean pass is that of the very program asked for; of our own workload its command says so."""
    made_by = folder / "made_by.json"
    if ctx.config.workload.command is None:
        return True
    return made_by.is_file() and json.loads(made_by.read_bytes()) == _program(ctx)


def _program(ctx: StageContext) -> list[str]:
    workload = ctx.config.workload
    limits = [
        str(workload.repeats),
        str(workload.duration_s),
        str(workload.stop_after_phases),
        str(ctx.config.user_dir),
    ]
    return _as_written(ctx, [*(workload.command or ()), *limits])


def _as_written(ctx: StageContext, words: Sequence[str]) -> list[str]:
    """A command as it may be in a file: compared with what was there, not with what a stage's end left of it."""
    return [*ctx.run_command.redactor.words(words)]


def program_baseline(ctx: StageContext, timeout_s: float) -> MetricsDocument:
    """The clean pass of the user's program, as files of this stage too, where those of every other's clean pass are."""
    forget_results(ctx.out_dir)
    baseline = clean_baseline(ctx, timeout_s)
    write_json(ctx.out_dir / METRICS_FILE, baseline.metrics)
    samples = baseline.folder / SAMPLES_FILE
    if samples.is_file():
        shutil.copyfile(samples, ctx.out_dir / SAMPLES_FILE)
    return baseline.metrics


def _run_program(ctx: StageContext, folder: Path, timeout_s: float) -> tuple[MetricsDocument, bytes]:
    """Run it; its marks, its wall time and the GPU's memory become metrics.json and samples.jsonl of the clean pass."""
    workload = ctx.config.workload
    command = workload.command or ()
    runs: list[ProgramRun] = []
    index = gpu_index(ctx.config.run.device, os.environ) if ctx.host.gpus else None
    with sample_gpu(index) as sampled:
        for repeat in range(workload.repeats):
            marks = folder / f"marks-{repeat + 1}"
            shutil.rmtree(marks, ignore_errors=True)
            marks.mkdir(parents=True)
            suffix = "" if workload.repeats == 1 else f"-{repeat + 1}"
            result = ctx.run_command(
                command,
                timeout_s=workload.duration_s or timeout_s,
                log=f"clean{suffix}.log",
                cmd_file=f"clean{suffix}.cmd.txt",
                cwd=ctx.config.user_dir,
                env={
                    **found_phases_environment(ctx.run_command.environment),
                    MARKS_DIR: str(marks),
                    **phase_limit(workload.stop_after_phases),
                },
                label=f"clean pass {repeat + 1} of {workload.repeats}",
            )
            if not result.timed_out:
                require_program(ctx, result)
            was_ended = result.timed_out or (marks / STOPPED).is_file()
            wall_s = None if was_ended else result.duration_s
            runs.append(ProgramRun(wall_s=wall_s, marks=read_marks(marks, ctx.run_command.redactor)))
    peaks = [sample.memory_used_bytes for sample in sampled.samples if sample.memory_used_bytes is not None]
    reason = sampled.reason or "memory is measured on NVIDIA GPUs alone for your own program"
    data = describe_program(
        command,
        runs,
        device_name=ctx.host.gpus[0].name if ctx.host.gpus else ctx.host.cpu,
        is_cpu=not ctx.host.gpus,
        peak_memory_bytes=max(peaks, default=None),
        peak_memory_reason=None if peaks else reason,
    )
    return data, b"".join(msgspec.json.encode(line) + b"\n" for line in sample_lines(runs))


def refuse_failed_program(ctx: StageContext) -> None:
    """Not a second time what ended badly by itself in an earlier stage of this run."""
    first = ctx.program_failures.get(ctx.config.workload.command or ())
    if first is not None:
        raise CommandFailed(first.failure or str(first), log=first.log)


def require_program(ctx: StageContext, result: CommandResult) -> None:
    """Raise with the words the user's program ended with, and keep them for the stages to come."""
    command = ctx.config.workload.command or ()
    try:
        require_success(result, program_title(command), stage=ctx.out_dir.name)
    except CommandFailed as error:
        ctx.program_failures[command] = error
        raise


def quiet_inference(*, warmup_rounds: int) -> list[str]:
    """Overrides for a child that only has to run: neither predictions nor gallery."""
    section = {
        "enable": True,
        "warmup_rounds": warmup_rounds,
        "output": {"prediction": {"enable": False}, "visualization": {"enable": False}},
    }
    return stage_overrides(DIRECT_INFERENCE, section)


def output_files(output: OutputConfig, stage_dir: Path) -> tuple[StageFile, ...]:
    """Those of the two that were requested and written."""
    dirs = resolve_dirs(output, stage_dir)
    wanted = [
        ("predictions", None if dirs.prediction is None else dirs.prediction / PREDICTIONS_FILE),
        ("gallery", None if dirs.visualization is None else dirs.visualization / GALLERY_FILE),
    ]
    return tuple(StageFile(role=role, path=path) for role, path in wanted if path is not None and path.is_file())

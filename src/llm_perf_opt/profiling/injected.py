"""torch.profiler inside a program of the user's own: the window it opens, and the trace it leaves."""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Interval

from llm_perf_opt.config.schema import FORBID_UNKNOWN, MOST, PositiveInt, Seconds
from llm_perf_opt.core.documents import MetricsDocument
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import METRICS_FILE, TORCH_PROFILER, TRACE_FILE
from llm_perf_opt.core.records import StageFile, StageOutput
from llm_perf_opt.core.slowdown import no_slowdown
from llm_perf_opt.core.stage import StageContext, StageFailed
from llm_perf_opt.errors import CommandFailed
from llm_perf_opt.profiling.baseline import (
    NOT_TIMED,
    clean_metrics,
    existing_files,
    notes_of,
    program_baseline,
    require_success,
)
from llm_perf_opt.profiling.injection import found_phases_environment
from llm_perf_opt.profiling.user_program import is_python, phase_limit
from llm_perf_opt.system.process import program_title

if TYPE_CHECKING:
    from llm_perf_opt.profiling.stages.torch_profiler import TorchProfilerConfig

NO_OPERATOR = (
    "the trace of torch.profiler holds no operator: the program did no torch work in the window "
    "(pipeline.torch_profiler.window)"
)
WINDOW_VARIABLE = "LLM_PERF_TORCH_WINDOW"


@dataclass(frozen=True, kw_only=True)
class WindowConfig:
    """`pipeline.torch_profiler.window.*`: what of your own program is recorded.

    Of a program that marks phases, `steps` of them after its warm-up; of any other, `seconds` from `start_after_s`
    after it has imported torch.
    """

    __pydantic_config__ = FORBID_UNKNOWN
    start_after_s: Annotated[float, Interval(ge=0.0, le=MOST)] = 0.0
    seconds: Seconds = 30.0
    steps: PositiveInt = 32


def profile_program(cfg: "TorchProfilerConfig", ctx: StageContext) -> StageOutput:
    """The clean pass of the program, then one run with torch.profiler injected."""
    data = program_baseline(ctx, cfg.timeout_s)
    command = ctx.config.workload.command or ()
    if not is_python(command, ctx.config.user_dir):
        reason = f"torch.profiler was not used: {command[0]} cannot be seen to be a Python program"
        return _without_trace(ctx, data, reason)
    folder = ctx.tmp_dir / "traces"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    result = ctx.run_command(
        command,
        timeout_s=ctx.config.workload.duration_s or cfg.timeout_s,
        cwd=ctx.config.user_dir,
        env={
            **injected_environment(cfg, folder, has_phases=_has_phases(data), environ=os.environ),
            **phase_limit(ctx.config.workload.stop_after_phases),
        },
        label="under torch.profiler",
    )
    traces = sorted(folder.glob("trace-*.json"), key=lambda path: -path.stat().st_size)
    if not traces and not result.timed_out:
        try:
            require_success(result, f"{program_title(command)} under torch.profiler", stage=TORCH_PROFILER)
        except CommandFailed as error:
            # Without a profiler it ran to its end: what was measured then stays.
            raise StageFailed(str(error), output=_output(ctx, data, ())) from error
    if not traces:
        why = _why_no_trace(folder, ended_after_s=result.duration_s if result.timed_out else None)
        return _without_trace(ctx, data, why)
    return _with_trace(cfg, ctx, data, traces, folder)


def injected_environment(
    cfg: "TorchProfilerConfig", folder: Path, *, has_phases: bool, environ: Mapping[str, str]
) -> dict[str, str]:
    """What makes the program's Python start the profiler; for this one child alone."""
    window = asdict(cfg.window)
    settings = {
        "folder": str(folder),
        "start_after_s": window["start_after_s"],
        "seconds": window["seconds"],
        "steps": window["steps"] if has_phases else None,
        "activities": list(cfg.activities),
        "record_shapes": cfg.record_shapes,
        "profile_memory": cfg.profile_memory,
        "with_stack": cfg.with_stack,
    }
    return {**found_phases_environment(environ), WINDOW_VARIABLE: json.dumps(settings)}


def _has_phases(data: MetricsDocument) -> bool:
    return any(name.endswith("_ms") and name != "wall_ms" for name in data.clean.metrics)


def _why_no_trace(folder: Path, *, ended_after_s: float | None) -> str:
    """`ended_after_s`: of a program that did not end by itself."""
    refused = [path.read_text(encoding="utf-8") for path in sorted(folder.glob("refused-*.txt"))]
    if refused:
        return f"torch.profiler was not used: {refused[0].strip()}"
    if not any(folder.glob("imported-*.txt")) and ended_after_s is not None:
        return (
            "torch.profiler was not used: the program had not imported torch when it was ended after "
            f"{ended_after_s:.0f} s; workload.duration_s gives it longer"
        )
    if not any(folder.glob("imported-*.txt")):
        return (
            "torch.profiler was not used: the program never imported torch, or its Python was started without site "
            "(-S, -I or -E)"
        )
    return (
        "torch.profiler left no trace: its window never closed before the program was ended, or left by os._exit; see "
        "pipeline.torch_profiler.window"
    )


def _without_trace(ctx: StageContext, data: MetricsDocument, why: str) -> StageOutput:
    """The clean pass alone, and a word on the terminal: a stage that is ok is not inspected twice."""
    ctx.say(f"{TORCH_PROFILER}: {why}")
    return _output(ctx, replace(data, notes=(*data.notes, why)), ())


def _with_trace(
    cfg: "TorchProfilerConfig", ctx: StageContext, data: MetricsDocument, traces: list[Path], folder: Path
) -> StageOutput:
    from llm_perf_opt.capture.ranges import chosen_phases
    from llm_perf_opt.profiling.trace_tables import write_trace_files
    from llm_perf_opt.workload.profiled import pack_trace

    pack_trace(traces[0], ctx.out_dir / TRACE_FILE)
    notes = [line for path in sorted(folder.glob("note-*.txt")) for line in path.read_text("utf-8").splitlines()]
    if len(traces) > 1:
        notes.append(f"{len(traces)} processes of the program imported torch; the largest trace is shown")
    shutil.rmtree(folder, ignore_errors=True)
    by_shape = cfg.group_by_input_shape and cfg.record_shapes
    pass_note = "From one run of the program under torch.profiler, which slows it down: use these times for shares."
    phases = chosen_phases(ctx.config.workload.phase_preset, ctx.config.workload.phases)
    # Before any name of it is shortened: half a secret is not known as one.
    ctx.run_command.redactor.file(ctx.out_dir / TRACE_FILE)
    traced = write_trace_files(ctx.out_dir / TRACE_FILE, by_shape=by_shape, pass_note=pass_note, phases=phases)
    if not traced.has_operators:
        notes.insert(0, NO_OPERATOR)
        ctx.say(f"{TORCH_PROFILER}: {'; '.join(notes)}")
    data = replace(traced.add_modules(data), notes=(*data.notes, *notes))
    write_json(ctx.out_dir / METRICS_FILE, data)
    return _output(ctx, data, traced.files)


def _output(ctx: StageContext, data: MetricsDocument, files: tuple[StageFile, ...]) -> StageOutput:
    metrics = clean_metrics(data, f"{TORCH_PROFILER}/{METRICS_FILE}")
    return StageOutput(
        metrics={**metrics, **no_slowdown(NOT_TIMED, where="in the profiled pass")},
        files=(*existing_files(ctx.out_dir), *files),
        notes=notes_of(data),
    )

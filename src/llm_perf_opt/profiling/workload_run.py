"""Run the workload for a stage that observes it from outside or inside, and record when its phases ran.

Our own model or the program of `workload.command`, without a profiler of ours. The moments are on the clock of
`time.monotonic_ns()`, so that what a stage samples meanwhile can be laid over them.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.core.names import DECODE, DECODE_STEP, METRICS_FILE, PREFILL, SAMPLES_FILE
from llm_perf_opt.core.records import Metric, StageFile
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.errors import ParseError
from llm_perf_opt.marks import MARKS_DIR
from llm_perf_opt.profiling.baseline import (
    clean_metrics,
    existing_files,
    forget_results,
    notes_of,
    quiet_inference,
    read_inputs,
    read_metrics,
    refuse_failed_program,
    require_program,
    require_success,
)
from llm_perf_opt.profiling.user_program import Mark, phase_limit, read_marks
from llm_perf_opt.profiling.vendor.launch import INFERENCE_RUNNER, build_work_argv, workload_overrides
from llm_perf_opt.system.process import CommandResult, program_title
from llm_perf_opt.workload.watcher import WATCHER, WATCHER_DIR, WATCHER_SETTINGS

REQUEST = "request"
NS_PER_MS = 1e6


@dataclass(frozen=True, kw_only=True)
class WorkloadSpan:
    """A stretch of the workload: `request`, `prefill`, `decode`, or a phase a program named; warm-up is none.

    `tokens` are those of all sequences together: of the prompt in a prefill, generated ones elsewhere; None: not known.
    """

    name: str
    start_ns: int
    end_ns: int
    tokens: int | None = None
    sample_id: str = ""
    repeat: int = 0

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, kw_only=True)
class WorkloadRun:
    """How the workload ended, what it measured of itself, and when its phases were.

    `metrics`, `files`, `notes` and `samples` are as `StageOutput` takes them; all empty of one that failed.
    """

    result: CommandResult
    folder: Path
    spans: tuple[WorkloadSpan, ...]
    metrics: Mapping[str, Metric]
    files: tuple[StageFile, ...] = ()
    notes: tuple[str, ...] = ()
    samples: tuple[Mapping[str, Any], ...] = ()


def run_workload(
    ctx: StageContext,
    *,
    timeout_s: float,
    warmup_rounds: int = 1,
    repeats: int | None = None,
    prefix: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    watcher: str | None = None,
    settings: Mapping[str, Any] | None = None,
    check: bool = True,
    stop_after_tokens: int | None = None,
    part: str | None = None,
) -> WorkloadRun:
    """Run it once from its start to its end.

    `repeats` of the samples instead of `run.repeats`. `prefix` is before the command: a program that runs it.
    `watcher` names a `WorkloadWatcher` to be notified of what happens inside our own model's process, `settings` is
    what that one gets. A workload that fails raises; with `check=False` it is returned, and `result` says how it ended.
    `stop_after_tokens` ends each sample of our own model early: with 1, after its prefill. A stage that runs the
    workload more than once names the others, as a `part`: their files and logs carry it in their names.
    """
    folder = ctx.workload_dir / (ctx.out_dir.name if part is None else f"{ctx.out_dir.name}-{part}")
    folder.mkdir(parents=True, exist_ok=True)
    forget_results(folder)
    if ctx.config.workload.command is not None:
        return _run_program(ctx, folder, timeout_s=timeout_s, prefix=prefix, env=env, check=check)
    overrides = [*workload_overrides(ctx.config), *quiet_inference(warmup_rounds=warmup_rounds)]
    if repeats is not None:
        overrides.append(f"run.repeats={repeats}")
    if stop_after_tokens is not None:
        overrides.append(f"pipeline.direct_inference.stop_after_tokens={stop_after_tokens}")
    argv = [*prefix, *build_work_argv(INFERENCE_RUNNER, overrides, hydra_run_dir=folder)]
    watching = {}
    if watcher is not None:
        watching = {
            WATCHER: watcher,
            WATCHER_DIR: str(ctx.out_dir),
            WATCHER_SETTINGS: json.dumps(settings or {}),
        }
    suffix = "" if part is None else f"-{part}"
    result = ctx.run_command(
        argv,
        timeout_s=timeout_s,
        log=f"log{suffix}.txt",
        cmd_file=f"cmd{suffix}.txt",
        env={**(env or {}), **watching},
        label=ctx.out_dir.name,
    )
    if check:
        require_success(result, "the workload", stage=ctx.out_dir.name)
    spans = tuple(_own_spans(folder / SAMPLES_FILE))
    if not result.ok:
        return WorkloadRun(result=result, folder=folder, spans=spans, metrics={})
    data = read_metrics(folder)
    source = (folder / METRICS_FILE).relative_to(ctx.run_dir).as_posix()
    return WorkloadRun(
        result=result,
        folder=folder,
        spans=spans,
        metrics=clean_metrics(data, source),
        files=existing_files(folder),
        notes=notes_of(data),
        samples=read_inputs(folder),
    )


def _run_program(
    ctx: StageContext,
    folder: Path,
    *,
    timeout_s: float,
    prefix: Sequence[str],
    env: Mapping[str, str] | None,
    check: bool,
) -> WorkloadRun:
    """Run the user's program in the user's directory; to be ended after `workload.duration_s` counts as success."""
    workload = ctx.config.workload
    command = workload.command or ()
    refuse_failed_program(ctx)
    marks = folder / "marks"
    shutil.rmtree(marks, ignore_errors=True)
    marks.mkdir()
    result = ctx.run_command(
        [*prefix, *command],
        timeout_s=workload.duration_s or timeout_s,
        cwd=ctx.config.user_dir,
        env={MARKS_DIR: str(marks), **phase_limit(workload.stop_after_phases), **(env or {})},
        label=ctx.out_dir.name,
    )
    is_meant = result.timed_out and workload.duration_s is not None
    if check and not is_meant:
        if prefix:
            require_success(result, program_title(command), stage=ctx.out_dir.name)
        else:
            require_program(ctx, result)
    spans = _program_spans(read_marks(marks, ctx.run_command.redactor))
    return WorkloadRun(result=result, folder=folder, spans=tuple(spans), metrics={})


@dataclass(frozen=True, kw_only=True)
class _Line:
    """What of a line of samples.jsonl says when its phases were."""

    sample_id: str
    repeat: int
    start_ns: int
    prepare_ms: float
    prefill_ms: float
    ttft_ms: float
    decode_ms: float | None
    tokens: int
    prompt_tokens: int
    batch: int = 1
    all_tokens: int | None = None
    all_prompt_tokens: int | None = None


def _own_spans(path: Path) -> Iterator[WorkloadSpan]:
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    decoder = msgspec.json.Decoder(_Line)
    for text in lines[:-1]:
        try:
            line = decoder.decode(text)
        except msgspec.DecodeError as error:
            raise ParseError(f"{path}: is not what the workload writes ({error})") from error
        generated = line.tokens if line.all_tokens is None else line.all_tokens
        prompt = line.prompt_tokens if line.all_prompt_tokens is None else line.all_prompt_tokens
        prefill_end = line.start_ns + round(line.prefill_ms * NS_PER_MS)
        decode_start = line.start_ns + round(line.ttft_ms * NS_PER_MS)
        end = decode_start + round((line.decode_ms or 0.0) * NS_PER_MS)
        parts = [
            (REQUEST, line.start_ns - round(line.prepare_ms * NS_PER_MS), end, generated),
            (PREFILL, line.start_ns, prefill_end, prompt),
        ]
        if line.decode_ms is not None:
            parts.append((DECODE, decode_start, end, generated - line.batch))
        for name, start, stop, tokens in parts:
            yield WorkloadSpan(
                name=name, start_ns=start, end_ns=stop, tokens=tokens, sample_id=line.sample_id, repeat=line.repeat
            )


def _program_spans(marks: Sequence[Mark]) -> Iterator[WorkloadSpan]:
    """Phases as the program marked them; its decode steps are decode, unless it has marked that around them."""
    step = DECODE_STEP if any(mark.name == DECODE for mark in marks) else DECODE
    for mark in marks:
        if mark.warmup:
            continue
        name = REQUEST if mark.kind == REQUEST else step if mark.name == DECODE_STEP else mark.name
        end = mark.start_ns + round(mark.ms * NS_PER_MS)
        yield WorkloadSpan(name=name, start_ns=mark.start_ns, end_ns=end, tokens=mark.tokens)

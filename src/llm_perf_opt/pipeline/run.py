"""Executes a plan: one stage after the other, the manifest rewritten after each; the one broad except lives here.

Makes what a stage may touch while it runs: its directories, earlier results, and a recorder of its commands.
"""

import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

from rich.text import Text

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import LAST_START, RunManifest, RunWarning, write_manifest
from llm_perf_opt.core.names import BUILT_IN, CLEAN_PASS_ORDER, HOST_SAMPLES
from llm_perf_opt.core.records import CommandRecord, StageFile, StageOutput, StageRecord, StageStatus
from llm_perf_opt.core.stage import CommandRunner, StageContext, StageFailed
from llm_perf_opt.errors import ProfilingError, StageSkipped
from llm_perf_opt.model.hardware.calibrate import cache_dir
from llm_perf_opt.pipeline.console import Console, StageTurn
from llm_perf_opt.pipeline.plan import Plan, PlannedStage
from llm_perf_opt.pipeline.provenance import recorded_inputs, remove_strays, write_inputs
from llm_perf_opt.pipeline.resume import COULD_NOT_GO_ON, EarlierRecords, fingerprint, why_run
from llm_perf_opt.profiling.artifacts import Artifacts
from llm_perf_opt.profiling.vendor.launch import bytecode_environment
from llm_perf_opt.system.files import in_words, is_full_disk, write_whole
from llm_perf_opt.system.process import allowed_environment
from llm_perf_opt.system.redact import Redactor

T = TypeVar("T")


def stage_context(
    name: str,
    *,
    config: AppConfig,
    host: Host,
    artifacts: Artifacts,
    environ: Mapping[str, str],
    console: Console,
    earlier: Mapping[str, StageRecord],
    clean_stages: tuple[str, ...],
    records: list[CommandRecord],
    redactor: Redactor,
    program_failures: dict[tuple[str, ...], ProfilingError],
) -> StageContext:
    """All a stage may touch; makes its directories. Every command it runs is appended to `records`."""
    commands = CommandRunner(
        stage=name,
        out_dir=artifacts.made(name),
        tmp_dir=artifacts.made(f"tmp/{name}"),
        environment=allowed_environment(environ, config.run.env_passthrough) | _for_our_processes(config, environ),
        on_tick=console.tick,
        records=records,
        redactor=redactor,
    )
    return StageContext(
        config=config,
        host=host,
        run_dir=artifacts.root,
        out_dir=commands.out_dir,
        tmp_dir=commands.tmp_dir,
        workload_dir=artifacts.tmp_dir("workload"),
        run_command=commands,
        earlier=earlier,
        clean_stages=clean_stages,
        say=console.say,
        program_failures=program_failures,
    )


def _for_our_processes(config: AppConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """What a program of the user's own does not get."""
    return {} if config.workload.command else bytecode_environment(environ, cache_dir(environ, "bytecode"))


@dataclass(frozen=True, kw_only=True)
class RunInput:
    """All that `execute` needs, so that a test can fix every part of it."""

    plan: Plan
    config: AppConfig
    artifacts: Artifacts
    host: Host
    manifest: RunManifest
    previous: RunManifest | None
    console: Console
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    redactor: Redactor = field(default_factory=Redactor)
    free_room: Callable[[], None] = lambda: None
    so_far: Callable[[], Sequence[Text]] | None = None
    program_failures: dict[tuple[str, ...], ProfilingError] = field(default_factory=dict)
    begun: datetime = field(default_factory=lambda: datetime.now(UTC))


def execute(run: RunInput) -> RunManifest:
    """Run every planned stage; a failure is recorded and never loses what others wrote."""
    manifest = run.manifest
    # Records that stay are of the same workload, and so are the samples written down alongside them.
    samples: list[Mapping[str, Any]] = [*recorded_inputs(run.artifacts.root)] if manifest.stages else []
    save = partial(write_manifest, run.artifacts.root, redactor=run.redactor)
    try:
        write_inputs(run.artifacts.root, samples)
        save(manifest)
        for step in run.plan.stages:
            record, output = _reuse_or_run(step, run, manifest)
            manifest = _in_order(manifest.with_stage(record), run.plan)
            save(manifest)
            samples += output.samples
            write_inputs(run.artifacts.root, samples)
            # What is reused was reported when it was measured.
            is_new = run.previous is None or record is not run.previous.stage(step.name)
            answers = record.declared.gives_clean_pass or record.name == HOST_SAMPLES
            is_clean = is_new and record.status == "ok" and answers
            if is_clean and manifest.first_verdict_s is None and step is not run.plan.stages[-1]:
                manifest = replace(manifest, first_verdict_s=_tell_so_far(run))
            if record.status == "failed" and run.config.run.on_failure == "stop":
                manifest = _skip_rest(manifest, run.plan, f"{record.name} failed and run.on_failure is stop")
                break
    except KeyboardInterrupt:
        for step in run.plan.stages:
            _take_out_secrets(step.name, run)
        save(_skip_rest(replace(manifest, status="interrupted"), run.plan, "the run was interrupted"))
        raise
    except OSError as error:
        # A full disk, most likely: what is recorded so far stays, and the next start continues from there.
        run.free_room()
        reason = f"{COULD_NOT_GO_ON}: {in_words(error)}"
        broken = replace(manifest, status="failed").warn(RunWarning(text=reason, id=LAST_START))
        try:
            save(_skip_rest(broken, run.plan, reason))
        except OSError as again:
            remove_strays(run.artifacts.root)
            raise ProfilingError(
                f"{reason}, and the failure could not be recorded; free disk space, then start again"
            ) from again
        raise ProfilingError(
            f"{reason}; free disk space, then continue with run.resume={run.artifacts.root}"
        ) from error
    finally:
        run.console.close()
    planned = {step.name for step in run.plan.stages}
    failed = any(stage.status == "failed" for stage in manifest.stages if stage.name in planned)
    manifest = replace(manifest, status="failed" if failed else "ok")
    save(manifest)
    return manifest


def _reuse_or_run(step: PlannedStage, run: RunInput, manifest: RunManifest) -> tuple[StageRecord, StageOutput]:
    if run.previous is not None:
        old = run.previous.stage(step.name)
        reason = why_again(step, run, manifest)
        if old is not None and reason is None:
            run.console.stage_ended(old, reused=True)
            return old, StageOutput()
        run.console.say(f"{step.name}: runs because {reason}")
    return _run_stage(step, run, manifest, fingerprint(step.stage, step.config, run.config, run.host))


def why_again(step: PlannedStage, run: RunInput, manifest: RunManifest) -> str | None:
    """Why a stage of a resumed run is run, None where its result is reused; `manifest` holds the results before it."""
    if run.previous is None:
        return "nothing is resumed"
    return why_run(
        step.name,
        run.previous.stage(step.name),
        fingerprint(step.stage, step.config, run.config, run.host),
        earlier=_before(step, run.plan, manifest),
        old_config=run.previous.config,
        new_config=run.config.resolved,
    )


def _run_stage(
    step: PlannedStage, run: RunInput, manifest: RunManifest, marks: Mapping[str, str]
) -> tuple[StageRecord, StageOutput]:
    """Run one stage and record how it ended, whatever happens inside it."""
    commands: list[CommandRecord] = []
    earlier = EarlierRecords(_before(step, run.plan, manifest))
    started = datetime.now(UTC)
    clock = time.monotonic()
    steps = [planned.name for planned in run.plan.stages]
    took_s = _earlier_duration(run.previous, step.name)
    turn = StageTurn(name=step.name, number=1 + steps.index(step.name), of=len(steps), took_s=took_s)
    run.console.stage_started(turn)
    output = StageOutput()
    status: StageStatus = "ok"
    reason: str | None = None

    def work() -> StageOutput:
        if step.skip is not None:
            raise StageSkipped(step.skip)
        if step.blockers:
            raise ProfilingError("; ".join(str(finding) for finding in step.blockers))
        return step.stage.run(step.config, _context(step, run, manifest, earlier, commands))

    result = guarded(work)
    if isinstance(result, StageOutput):
        output = result
    elif isinstance(result, ProfilingError):
        status, reason = "skipped" if isinstance(result, StageSkipped) else "failed", str(result)
        output = result.output if isinstance(result, StageFailed) else output
    elif is_full_disk(result):
        status, reason = "failed", in_words(result)
    else:
        trace = _write_trace(step.name, run, "".join(traceback.format_exception(result)))
        status, reason = "failed", f"{type(result).__name__}: {result} ({trace})"
    _take_out_secrets(step.name, run)
    files = tuple(StageFile(role=f.role, path=f.path) for f in output.files if f.path.exists())
    record = StageRecord(
        name=step.name,
        status=status,
        reason=reason,
        failure=result.failure if isinstance(result, ProfilingError) else None,
        started_at=started.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - clock, 3),
        fingerprint={**marks, **earlier.marks()},
        commands=tuple(commands),
        files=files,
        metrics=output.metrics,
        notes=(*(str(o) for o in step.obstacles if not o.blocking), *output.notes),
        traits=step.traits,
        sections=output.sections,
    )
    run.console.stage_ended(record)
    return record, output


def guarded(work: Callable[[], T]) -> T | Exception:
    """The result, or whatever went wrong."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - a stage may be anyone's plug-in; its bug must not lose the run
        return error


def _tell_so_far(run: RunInput) -> float | None:
    """The first verdict, while later stages are still to come; returns the seconds the run took to it."""
    if run.so_far is None:
        return None
    verdict_lines = guarded(run.so_far)
    if isinstance(verdict_lines, Exception):
        run.console.say(f"no first verdict: {type(verdict_lines).__name__}: {verdict_lines}")
        return None
    after_s = round((datetime.now(UTC) - run.begun).total_seconds(), 1)
    run.console.show([Text(f"preliminary result after {after_s:.0f} s; remaining stages continue:"), *verdict_lines])
    return after_s


def _write_trace(name: str, run: RunInput, text: str) -> str:
    """Write the trace of a bug down; where it is, or why it is not there."""
    try:
        path = run.artifacts.made(name) / "error.txt"
        write_whole(path, run.redactor.text(text).encode("utf-8", "backslashreplace"))
    except OSError as error:
        return f"no traceback was written: {error.strerror or error}"
    return f"traceback in {name}/error.txt"


def _take_out_secrets(name: str, run: RunInput) -> None:
    """Programs print and write what they like; what we know to be secret is in no file when its stage has ended."""
    for folder in (name, f"tmp/{name}", "tmp/workload"):
        run.redactor.folder(run.artifacts.root / folder)


def _earlier_duration(previous: RunManifest | None, name: str) -> float | None:
    """How long this stage took when it last succeeded: the only estimate known before it starts."""
    old = None if previous is None else previous.stage(name)
    return old.duration_s if old is not None and old.status == "ok" else None


def _before(step: PlannedStage, plan: Plan, manifest: RunManifest) -> dict[str, StageRecord]:
    """The results a stage may read: not those an earlier run has of stages whose turn is still to come."""
    names = [planned.name for planned in plan.stages]
    to_come = set(names[names.index(step.name) :])
    return {stage.name: stage for stage in manifest.stages if stage.name not in to_come}


def _in_order(manifest: RunManifest, plan: Plan) -> RunManifest:
    """Records in the order of the pipeline, also when an earlier run left some of them."""
    names = list(dict.fromkeys((*BUILT_IN, *(step.name for step in plan.stages))))
    rank = {name: index for index, name in enumerate(names)}
    return replace(manifest, stages=tuple(sorted(manifest.stages, key=lambda s: rank.get(s.name, len(rank)))))


def _context(
    step: PlannedStage,
    run: RunInput,
    manifest: RunManifest,
    earlier: Mapping[str, StageRecord],
    records: list[CommandRecord],
) -> StageContext:
    given = [stage.name for stage in manifest.stages if stage.declared.gives_clean_pass]
    return stage_context(
        step.name,
        config=run.config,
        host=run.host,
        artifacts=run.artifacts,
        environ=run.environ,
        console=run.console,
        earlier=earlier,
        clean_stages=tuple(dict.fromkeys((*CLEAN_PASS_ORDER, *given))),
        records=records,
        redactor=run.redactor,
        program_failures=run.program_failures,
    )


def _skip_rest(manifest: RunManifest, plan: Plan, reason: str) -> RunManifest:
    """Record every planned stage that has no record yet as skipped."""
    done = {stage.name for stage in manifest.stages}
    for step in plan.stages:
        if step.name not in done:
            manifest = manifest.with_stage(
                StageRecord(name=step.name, status="skipped", reason=reason, traits=step.traits)
            )
    return manifest

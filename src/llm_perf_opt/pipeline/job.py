"""One run from its typed configuration to its reports."""

import json
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import (
    LAST_START,
    RunManifest,
    RunWarning,
    read_manifest,
    strict_json,
    write_json,
    write_manifest,
)
from llm_perf_opt.core.names import BUSY_GPUS, MANIFEST_FILE
from llm_perf_opt.core.stage import CommandRunner, StageContext, preview_of
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_OK, ConfigError, ProfilingError
from llm_perf_opt.pipeline.console import Console, answer, make_console, verdict_lines
from llm_perf_opt.pipeline.jobs.device_lock import CPU, devices_of, turn
from llm_perf_opt.pipeline.plan import Plan, PlannedStage, build_plan, find_entry_points, load_registry
from llm_perf_opt.pipeline.preflight import (
    MemoryCheck,
    check_memory,
    device_problem,
    fallback_note,
    package_problems,
    workload_problems,
)
from llm_perf_opt.pipeline.provenance import (
    describe_environment,
    effective_config,
    make_redactor,
    remove_strays,
    write_provenance,
)
from llm_perf_opt.pipeline.resume import NO_REPORTS, Carried, carry_over
from llm_perf_opt.pipeline.run import RunInput, execute, why_again
from llm_perf_opt.pipeline.stores import SyncDocument, check_url, claim, upload
from llm_perf_opt.profiling.artifacts import Artifacts
from llm_perf_opt.profiling.vendor.vendor_tools import busy_gpus, probe_host
from llm_perf_opt.report.view.headline import shared_gpus
from llm_perf_opt.report.view.report_view import ReportView
from llm_perf_opt.report.write import view_run, write_view
from llm_perf_opt.system.files import in_words
from llm_perf_opt.system.process import allowed_environment
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.trust import sign


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is ready to start."""

    config: AppConfig
    artifacts: Artifacts
    host: Host
    plan: Plan
    overrides: tuple[str, ...]
    created_at: datetime
    previous: RunManifest | None
    carried: Carried
    console: Console
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    on_cpu: str | None
    redactor: Redactor
    free_room: Callable[[], None]

    @classmethod
    def prepare(
        cls,
        config: AppConfig,
        run_dir: Path,
        overrides: tuple[str, ...],
        *,
        created_at: datetime,
        free_room: Callable[[], None] = lambda: None,
    ) -> "Job":
        """Look at the machine and plan; raises ConfigError before anything is run.

        `free_room` makes some room on a full disk, so that the manifest can still say that it was full.
        """
        previous = _previous(config, run_dir)
        if not config.stages:
            raise ConfigError("pipeline: no stage is enabled, allowed: at least one pipeline.<stage>.enable=true")
        redactor = make_redactor(config, os.environ)
        config = replace(config, resolved=effective_config(config))
        recorded = () if previous is None else previous.stages
        registry = load_registry(find_entry_points(), {*config.stages, *(stage.name for stage in recorded)})
        stages = [registry.stages[name] for name in config.stages]
        host = probe_host(env=allowed_environment(os.environ), disk=run_dir)
        missing = device_problem(config, host, os.environ)
        problems = package_problems(config, host, stages) or workload_problems(config, stages)
        problems += () if missing is None else (missing,)
        memory = MemoryCheck() if problems else check_memory(config, host, stages, os.environ)
        problems += () if memory.problem is None else (memory.problem,)
        if problems and not config.run.dry_run:
            raise ConfigError(problems)
        if config.artifacts.sync is not None:
            check_url(config.artifacts.sync, "artifacts.sync")
        return cls(
            config=config,
            artifacts=Artifacts.from_root(run_dir),
            host=host,
            plan=build_plan(config, registry.stages, host),
            overrides=overrides,
            created_at=created_at,
            previous=previous,
            carried=carry_over(previous, config, registry.stages, host),
            console=make_console(),
            problems=problems,
            notes=() if memory.note is None else (memory.note,),
            on_cpu=fallback_note(config, host, stages, os.environ),
            redactor=redactor,
            free_room=free_room,
        )

    def show(self, plan_file: Path | None) -> "ShownPlan":
        """Show what would be run, and write it to a file where one is requested.

        A plan that cannot be run as it is, is bad input.
        """
        self._show_plan()
        commands: dict[str, tuple[tuple[str, ...], ...]] = {}
        for step in self.plan.stages:
            if step.skip is not None:
                continue
            preview = preview_of(step.stage, step.config, self._planned_context(step))
            commands[step.name] = tuple(self.redactor.words(argv) for argv in preview.commands)
            self.console.say(f"{step.name}: {self._would_run(step)}{f': {preview.text}' if preview.text else ''}")
            for argv in commands[step.name]:
                folder = shlex.quote(str(self.artifacts.root / step.name))
                self.console.say_command(f"  mkdir -p {folder} && {shlex.join(argv)}")
        document = self.redactor.tree(json.loads(strict_json(self.plan.document(commands))))
        written = "" if plan_file is None else f"; the plan is in {write_json(plan_file, document)}"
        blocked = [step.name for step in self.plan.stages if step.will_fail]
        cannot = f"; it cannot run as it is ({', '.join(blocked) or 'see above'})" if blocked or self.problems else ""
        self.console.say(f"nothing was run{written}{cannot}")
        return ShownPlan(exit_code=EXIT_BAD_INPUT if cannot else EXIT_OK, document=document)

    def _would_run(self, step: PlannedStage) -> str:
        if self.previous is None:
            return "would run"
        reason = why_again(step, self._input({}), self.previous)
        return "would be reused" if reason is None else f"would run, because {reason}"

    def _planned_context(self, step: PlannedStage) -> StageContext:
        """What a stage would be given; its directories are not made."""
        root = self.artifacts.root
        commands = CommandRunner(
            stage=step.name,
            out_dir=root / step.name,
            tmp_dir=root / "tmp" / step.name,
            environment=allowed_environment(os.environ, self.config.run.env_passthrough),
            on_tick=self.console.tick,
            records=[],
            redactor=self.redactor,
        )
        return StageContext(
            config=self.config,
            host=self.host,
            run_dir=root,
            out_dir=commands.out_dir,
            tmp_dir=commands.tmp_dir,
            workload_dir=root / "tmp" / "workload",
            run_command=commands,
            earlier={} if self.previous is None else {stage.name: stage for stage in self.previous.stages},
            say=self.console.say,
        )

    def run(self) -> int:
        """Run it; returns the exit code."""
        self._show_plan()
        root = self.artifacts.root
        sync = self.config.artifacts.sync
        place = None if sync is None else claim(sync, root)
        environment = describe_environment(self.host, os.environ, self.config.user_dir)
        write_provenance(root, environment=environment, resolved=self.config.resolved, redactor=self.redactor)
        run = self.config.run
        gpus = tuple(str(gpu.index) for gpu in self.host.gpus)
        devices = devices_of(run.device, os.environ.get("CUDA_VISIBLE_DEVICES"), gpus)
        try:
            with turn(run.exclusive, devices, self.console.say):
                if shared := self._shared(gpus):
                    environment = {**environment, BUSY_GPUS: shared}
                    write_provenance(
                        root, environment=environment, resolved=self.config.resolved, redactor=self.redactor
                    )
                    for text in shared_gpus(environment):
                        self.console.say(f"note: {text}")
                manifest = execute(self._input(environment))
        except KeyboardInterrupt:
            self._tell_interrupted()
            raise
        finally:
            # Of a run that was ended while it waited for its turn.
            remove_strays(root)
        view, reports = self._reports(manifest)
        self.console.show(answer(manifest, view, reports))
        if place is not None:
            self._send(manifest, place)
        return EXIT_OK if manifest.status == "ok" else EXIT_FAILED

    def _shared(self, gpus: tuple[str, ...]) -> dict[str, int]:
        """The GPUs of this run that do others' work now, and those that did when stages were measured that are kept."""
        before = {} if self.previous is None else self.previous.environment.get(BUSY_GPUS)
        kept = dict(before) if isinstance(before, Mapping) and self.carried.stages else {}
        run, command = self.config.run, self.config.workload.command
        if not gpus or run.device == CPU or not self._runs_something():
            return kept
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = gpus if visible is None else tuple(part.strip() for part in visible.split(",") if part.strip())
        mine = devices_of(run.device, visible, gpus)
        if run.ranks not in (None, 1) or (command is not None and visible is not None):
            # Of a program's GPUs only those it was given are known.
            mine = seen if command is not None else seen[: run.ranks]
        busy = busy_gpus(allowed_environment(os.environ))
        # A UUID may be given by its beginning.
        return kept | {own: pct for own in mine for name, pct in busy.items() if name == own or _is_uuid(own, name)}

    def _runs_something(self) -> bool:
        """Whether any stage will run again."""
        if self.previous is None:
            return True
        steps = [step for step in self.plan.stages if step.skip is None]
        return any(why_again(step, self._input({}), self.previous) is not None for step in steps)

    def _reports(self, manifest: RunManifest) -> tuple[ReportView, list[Path]]:
        root = self.artifacts.root
        try:
            return write_view(root)
        except OSError as error:
            self.free_room()
            text = f"{NO_REPORTS} ({in_words(error)}); `llm-perf report {root}` writes them"
            failed = replace(manifest, status="failed").warn(RunWarning(text=text, id=LAST_START))
            write_manifest(root, failed, self.redactor)
            raise ProfilingError(text) from error

    def _tell_interrupted(self) -> None:
        """Where the report of what was measured is, and how to continue; nothing where the run had not begun."""
        root = self.artifacts.root
        if not (root / MANIFEST_FILE).exists():
            return
        try:
            _, reports = write_view(root)
        except (OSError, ProfilingError) as error:
            why = in_words(error) if isinstance(error, OSError) else str(error)
            self.console.say(f"{NO_REPORTS} ({why}); `llm-perf report {root}` writes them")
        else:
            self.console.say(f"report of what was measured: {reports[0]}")
        self.console.say(f"to continue: llm-perf profile {shlex.quote(f'run.resume={root}')}")

    def _send(self, manifest: RunManifest, place: SyncDocument) -> None:
        root = self.artifacts.root
        try:
            done = upload(root, place)
        except ProfilingError as error:
            # A sweep reads from the manifest whether a job is to be done again; its stages will be reused.
            failed = replace(manifest, status="failed").warn(RunWarning(text=str(error), id=LAST_START))
            write_manifest(root, failed, self.redactor)
            raise
        self.console.say(f"sent to {done.url}: {done.files} files, {format_bytes(done.size_bytes)}")

    def _input(self, environment: Mapping[str, Any]) -> RunInput:
        manifest = RunManifest(
            run_id=self.artifacts.root.name if self.previous is None else self.previous.run_id,
            created_at=self.created_at.isoformat(timespec="seconds"),
            status="running",
            config=self.config.resolved,
            environment=environment,
            overrides=self.overrides,
            user_dir=str(self.config.user_dir),
            stages=self.carried.stages,
        ).warn(*self._warnings())
        # The mark is of what is written, where secrets are redacted.
        recorded = replace(manifest, overrides=self.redactor.words(self.overrides))
        manifest = replace(manifest, signature=sign(recorded, os.environ))
        return RunInput(
            plan=self.plan,
            config=self.config,
            artifacts=self.artifacts,
            host=self.host,
            manifest=manifest,
            previous=self.previous,
            console=self.console,
            redactor=self.redactor,
            free_room=self.free_room,
            so_far=lambda: verdict_lines(view_run(self.artifacts.root), findings=0),
            begun=self.created_at,
        )

    def _warnings(self) -> Iterable[RunWarning]:
        """Those of this start, then those of the earlier ones, each once."""
        texts = (*(() if self.on_cpu is None else (self.on_cpu,)), *self.notes)
        return dict.fromkeys((*(RunWarning(text=text) for text in texts), *self.carried.warnings))

    def _show_plan(self) -> None:
        names = " → ".join(step.name for step in self.plan.stages)
        self.console.say(f"run {self.artifacts.root}: {names}{'' if self.on_cpu is None else f' ({self.on_cpu})'}")
        cannot = (f"cannot run: {problem}" for problem in self.problems)
        warned = (warning.text for warning in self.carried.warnings if warning.text != self.on_cpu)
        for text in (*warned, *cannot, *(f"note: {note}" for note in self.notes)):
            self.console.say(text)
        for step in self.plan.stages:
            if step.skip is not None:
                self.console.say(f"{step.name}: will be skipped: {step.skip}")
                continue
            for obstacle in step.obstacles:
                self.console.say(f"{step.name}: {'cannot run' if obstacle.blocking else 'note'}: {obstacle}")


@dataclass(frozen=True, kw_only=True)
class ShownPlan:
    """A dry run: its exit code, and its plan as plain data without secrets (docs/schemas/plan.schema.json)."""

    exit_code: int
    document: Any


def _is_uuid(given: str, uuid: str) -> bool:
    return given.startswith(("GPU-", "MIG-")) and uuid.startswith(given)


def _previous(config: AppConfig, run_dir: Path) -> RunManifest | None:
    """The manifest to resume from. A directory that already holds a run is never overwritten."""
    if config.run.resume is not None:
        return read_manifest(run_dir)
    if (run_dir / MANIFEST_FILE).exists():
        raise ConfigError(
            f"artifacts.runs_dir: already holds a run (got {str(run_dir)!r}), "
            f"allowed: another directory, or run.resume={run_dir} to continue it"
        )
    return None

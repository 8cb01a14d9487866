"""The contract every stage fulfils, and all it may touch while it runs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

from llm_perf_opt.config.schema import AppConfig, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.names import CLEAN_PASS_ORDER
from llm_perf_opt.core.records import (
    STEPS_FILE,
    CommandRecord,
    Progress,
    StageOutput,
    StageRecord,
    StageTraits,
    read_progress,
    read_steps,
)
from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.system.process import GRACE_S, CommandResult, run_command, write_cmd_file
from llm_perf_opt.system.redact import Redactor


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """What a preflight found in the way. A blocking one fails the stage before it starts; the others are warnings.

    With `expects_failure` the stage starts, since its tool may know more than we do, but a dry run says that it cannot.
    """

    what: str
    remedy: str
    blocking: bool = True
    expects_failure: bool = False

    def __str__(self) -> str:
        return f"{self.what} — {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a stage would do, for a dry run: in a few words, and the commands it would start."""

    text: str = ""
    commands: tuple[tuple[str, ...], ...] = ()


class StageFailed(ProfilingError):
    """A stage failed but has something to show all the same: `output` is recorded with the failure."""

    def __init__(self, text: str, *, output: StageOutput) -> None:
        super().__init__(text)
        self.output = output


@dataclass(frozen=True, kw_only=True)
class CommandRunner:
    """A stage's `run_command`: runs in the stage's directories, reports progress and records every command."""

    stage: str
    out_dir: Path
    tmp_dir: Path
    environment: Mapping[str, str]
    on_tick: Callable[[float, Progress | None], None]
    records: list[CommandRecord]
    redactor: Redactor = field(default_factory=Redactor)

    def __call__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        log: str = "log.txt",
        cmd_file: str | None = "cmd.txt",
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        label: str | None = None,
        reads: Callable[[str], Progress | None] = read_progress,
        remove: Sequence[Path] = (),
        is_over: Callable[[float], bool] | None = None,
        grace_s: float = GRACE_S,
    ) -> CommandResult:
        """Run a command; `label` says what it does, `reads` finds its progress in a line of its log.

        `is_over` ends it before its timeout, and `grace_s` is what it then has to write down what it has.
        """

        def tick(elapsed_s: float, latest: Progress | None) -> None:
            words = [text for text in (label, latest.text if latest else None) if text and text != self.stage]
            self.on_tick(elapsed_s, replace(latest or Progress(text=""), text=": ".join(words)))

        cwd, env = cwd or self.tmp_dir, {**self.environment, **(env or {})}
        if cmd_file is not None:
            write_cmd_file(self.out_dir / cmd_file, argv, cwd=cwd, env=env, redactor=self.redactor)
        steps = self.tmp_dir / "steps.jsonl"
        steps.unlink(missing_ok=True)
        start_ns = time.monotonic_ns()
        result = run_command(
            argv,
            # Nothing a person needs who runs the command again by hand.
            env={**env, STEPS_FILE: str(steps)},
            timeout_s=timeout_s,
            log=self.out_dir / log,
            cwd=cwd,
            on_tick=tick,
            reads=reads,
            redactor=self.redactor,
            remove=remove,
            is_over=is_over,
            grace_s=grace_s,
        )
        record = CommandRecord(
            argv=result.argv,
            exit_code=result.exit_code,
            duration_s=round(result.duration_s, 3),
            log=f"{self.stage}/{log}",
            timed_out=result.timed_out,
            label=label or self.stage,
            steps=read_steps(steps, start_ns=start_ns, end_ns=start_ns + round(result.duration_s * 1e9)),
        )
        self.records.append(record)
        return result


class CommandPlace(Protocol):
    """The part of a stage's context that runs commands and keeps their files."""

    @property
    def out_dir(self) -> Path: ...

    @property
    def tmp_dir(self) -> Path: ...

    @property
    def run_command(self) -> CommandRunner: ...

    @property
    def say(self) -> Callable[[str], None]: ...


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """All a stage may touch. Paths are absolute; `out_dir` is `<run>/<stage>`, `tmp_dir` is `<run>/tmp/<stage>`.

    `clean_stages` names the stages whose clean pass may be used, best first; reading a result that is not there is
    remembered too, so they may be names without a record in `earlier`. `program_failures` are shared by all stages of a
    run: by its command, how a program of the user's own ended without a profiler, so that it is not run once more.
    """

    config: AppConfig
    host: Host
    run_dir: Path
    out_dir: Path
    tmp_dir: Path
    workload_dir: Path
    run_command: CommandRunner
    earlier: Mapping[str, StageRecord]
    say: Callable[[str], None]
    clean_stages: tuple[str, ...] = CLEAN_PASS_ORDER
    program_failures: dict[tuple[str, ...], ProfilingError] = field(default_factory=dict)


class Stage(Protocol):
    """One step of the pipeline, found through the entry-point group `llm_perf_opt.stages`.

    The three traits (see `StageTraits`) are False for a stage that does not declare them. A stage may have a method
    `preview(cfg, ctx)` that gives a `Preview`; it makes no files.
    """

    @property
    def name(self) -> str: ...

    @property
    def config_cls(self) -> type[StageConfig]: ...

    @property
    def after(self) -> tuple[str, ...]:
        """Stages that run before this one when they are enabled: order only."""
        ...

    @property
    def tools(self) -> tuple[str, ...]:
        """Vendor tools whose versions decide whether an earlier result may be reused."""
        ...

    @property
    def runs_model(self) -> bool: ...

    @property
    def gives_clean_pass(self) -> bool: ...

    @property
    def needs_our_model(self) -> bool: ...

    def preflight(self, cfg: Any, host: Host) -> Sequence[Obstacle]: ...

    def run(self, cfg: Any, ctx: StageContext) -> StageOutput: ...


def preview_of(stage: Stage, cfg: StageConfig, ctx: StageContext) -> Preview:
    """What a stage says it would do; a plug-in need not say anything."""
    preview = getattr(stage, "preview", None)
    found = preview(cfg, ctx) if callable(preview) else None
    return found if isinstance(found, Preview) else Preview()


def traits_of(stage: Stage) -> StageTraits:
    """What a stage declares. A plug-in declares only what is true of it, so this asks instead of relying on types."""
    return StageTraits(**{trait.name: bool(getattr(stage, trait.name, False)) for trait in fields(StageTraits)})

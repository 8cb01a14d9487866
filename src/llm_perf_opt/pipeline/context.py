"""Makes what a stage may touch while it runs: its directories, earlier results, and a recorder of its commands."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.process import CommandResult, allowed_environment, run_command
from llm_perf_opt.core.records import CommandRecord, StageRecord
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.pipeline.console import Console
from llm_perf_opt.profiling.artifacts import Artifacts


@dataclass(frozen=True, kw_only=True)
class Commands:
    """A stage's `run_command`: runs in the stage's directories, shows progress and keeps a record of every command."""

    stage: str
    out_dir: Path
    tmp_dir: Path
    environment: Mapping[str, str]
    console: Console
    records: list[CommandRecord]

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
    ) -> CommandResult:
        prefix = f"{label}: " if label else ""
        result = run_command(
            argv,
            env={**self.environment, **(env or {})},
            timeout_s=timeout_s,
            log=self.out_dir / log,
            cmd_file=None if cmd_file is None else self.out_dir / cmd_file,
            cwd=cwd or self.tmp_dir,
            on_tick=lambda elapsed, line: self.console.tick(elapsed, prefix + line),
        )
        record = CommandRecord(
            argv=result.argv,
            exit_code=result.exit_code,
            duration_s=round(result.duration_s, 3),
            log=f"{self.stage}/{log}",
            timed_out=result.timed_out,
        )
        self.records.append(record)
        return result


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
) -> StageContext:
    """All a stage may touch; makes its directories. Every command it runs is appended to `records`."""
    commands = Commands(
        stage=name,
        out_dir=artifacts.out_dir(name),
        tmp_dir=artifacts.tmp_dir(name),
        environment=allowed_environment(environ, config.run.env_passthrough),
        console=console,
        records=records,
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
    )

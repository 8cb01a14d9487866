"""Makes what a stage may touch while it runs: its directories, earlier results, and a recorder of its commands."""

from collections.abc import Mapping

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.process import allowed_environment
from llm_perf_opt.core.records import CommandRecord, StageRecord
from llm_perf_opt.core.stage import CommandRunner, StageContext
from llm_perf_opt.pipeline.console import Console
from llm_perf_opt.profiling.artifacts import Artifacts


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
    commands = CommandRunner(
        stage=name,
        out_dir=artifacts.out_dir(name),
        tmp_dir=artifacts.tmp_dir(name),
        environment=allowed_environment(environ, config.run.env_passthrough),
        on_tick=console.tick,
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

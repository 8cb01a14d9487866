"""The contract every stage fulfils, and all it may touch while it runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from llm_perf_opt.config.schema import AppConfig, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.process import CommandResult
from llm_perf_opt.core.records import StageOutput, StageRecord


@dataclass(frozen=True, kw_only=True)
class Obstacle:
    """What a preflight found in the way. A blocking one fails the stage before it starts; the others are warnings."""

    what: str
    remedy: str
    blocking: bool = True

    def __str__(self) -> str:
        return f"{self.what} — {self.remedy}"


class CommandRunner(Protocol):
    """Runs one command under the stage's directory; its record reaches the manifest without further work."""

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
    ) -> CommandResult: ...


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """All a stage may touch. Paths are absolute; `out_dir` is `<run>/<stage>`, `tmp_dir` is `<run>/tmp/<stage>`."""

    config: AppConfig
    host: Host
    run_dir: Path
    out_dir: Path
    tmp_dir: Path
    workload_dir: Path
    run_command: CommandRunner
    earlier: Mapping[str, StageRecord]
    say: Callable[[str], None]


class Stage(Protocol):
    """One step of the pipeline, found through the entry-point group `llm_perf_opt.stages`."""

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

    def preflight(self, cfg: Any, host: Host) -> Sequence[Obstacle]: ...

    def run(self, cfg: Any, ctx: StageContext) -> StageOutput: ...

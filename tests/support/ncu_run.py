"""The stage ncu in a scratch directory, for a stand-in of ncu or the real one."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.host import Gpu, Host, Tool
from llm_perf_opt.core.records import StageOutput, StageRecord
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.profiling.stages.ncu import STAGE, NcuConfig
from llm_perf_opt.testing import plain_host, scratch_context
from tests.support.fake_ncu import calls

H200 = Gpu(index=0, name="NVIDIA H200", memory_bytes=150_000_000_000, driver="580", compute_capability="9.0")


def host(ncu: str | None, *gpus: Gpu) -> Host:
    tool = (
        Tool(name="ncu", path=ncu, version="2025.3.1")
        if ncu
        else Tool(name="ncu", problem="ncu was not found", remedy="install it")
    )
    return plain_host(gpus=gpus, tools={"ncu": tool})


@dataclass
class Run:
    """One run of the stage in a scratch directory."""

    folder: Path
    config: AppConfig
    host: Host
    env: Mapping[str, str] = field(default_factory=dict)
    earlier: Mapping[str, StageRecord] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        return self.folder / "ncu"

    def stage(self, **changes: object) -> StageOutput:
        return STAGE.run(replace(NcuConfig(enable=True, timeout_s=60.0), **changes), self.context())  # type: ignore[arg-type]

    def context(self) -> StageContext:
        return scratch_context(
            "ncu", self.folder, config=self.config, host=self.host, env=self.env, earlier=self.earlier, said=self.said
        )


def captures(run: Run) -> list[list[str]]:
    """The calls that profiled something, without questions and imports."""
    return [c for c in calls(run.folder.parent / "bin" / "calls.jsonl") if "--export" in c]

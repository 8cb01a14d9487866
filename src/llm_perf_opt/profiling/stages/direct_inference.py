"""Stage direct_inference: plain inference without a profiler; predictions, gallery and clean latencies."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Self

from annotated_types import Ge

from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.schema import StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.core.stage import Finding, StageContext


@dataclass(frozen=True, kw_only=True)
class DirectInferenceConfig(StageConfig):
    """`pipeline.direct_inference.*`"""

    warmup_rounds: Annotated[int, Ge(0)] = 1
    output: OutputConfig = field(default_factory=OutputConfig)

    def light(self) -> Self:
        return replace(self, warmup_rounds=min(self.warmup_rounds, 1))


class DirectInferenceStage:
    """See the module."""

    name = "direct_inference"
    config_cls = DirectInferenceConfig
    after: tuple[str, ...] = ("static_analysis",)
    tools: tuple[str, ...] = ()

    def preflight(self, cfg: DirectInferenceConfig, host: Host) -> Sequence[Finding]:
        return ()

    def run(self, cfg: DirectInferenceConfig, ctx: StageContext) -> StageOutput:
        raise NotImplementedError


STAGE = DirectInferenceStage()

"""Stage static_analysis: FLOPs, bytes and memory from the model's configuration, checked by counting operators."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.config.schema import StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.core.stage import Finding, StageContext


@dataclass(frozen=True, kw_only=True)
class StaticAnalysisConfig(StageConfig):
    """`pipeline.static_analysis.*`"""

    write_reports: bool = True
    use_analytic_fallback: bool = True
    use_synthetic_inputs: bool = True


class StaticAnalysisStage:
    """See the module."""

    name = "static_analysis"
    config_cls = StaticAnalysisConfig
    after: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    def preflight(self, cfg: StaticAnalysisConfig, host: Host) -> Sequence[Finding]:
        return ()

    def run(self, cfg: StaticAnalysisConfig, ctx: StageContext) -> StageOutput:
        raise NotImplementedError


STAGE = StaticAnalysisStage()

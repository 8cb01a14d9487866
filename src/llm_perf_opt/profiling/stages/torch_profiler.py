"""Stage torch_profiler: a clean pass for latencies, then a pass under torch.profiler for attribution."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Self

from annotated_types import Ge, MinLen

from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.schema import StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.core.stage import Finding, StageContext


@dataclass(frozen=True, kw_only=True)
class TorchProfilerConfig(StageConfig):
    """`pipeline.torch_profiler.*`"""

    activities: Annotated[tuple[Literal["cpu", "cuda"], ...], MinLen(1)] = ("cpu", "cuda")
    record_shapes: bool = True
    profile_memory: bool = True
    with_stack: bool = False
    group_by_input_shape: bool = True
    warmup_rounds: Annotated[int, Ge(0)] = 1
    warmup_synthetic: bool = True
    output: OutputConfig = field(default_factory=OutputConfig)

    def light(self) -> Self:
        return replace(self, warmup_rounds=min(self.warmup_rounds, 1))


class TorchProfilerStage:
    """See the module."""

    name = "torch_profiler"
    config_cls = TorchProfilerConfig
    after: tuple[str, ...] = ("static_analysis",)
    tools: tuple[str, ...] = ()

    def preflight(self, cfg: TorchProfilerConfig, host: Host) -> Sequence[Finding]:
        return ()

    def run(self, cfg: TorchProfilerConfig, ctx: StageContext) -> StageOutput:
        raise NotImplementedError


STAGE = TorchProfilerStage()

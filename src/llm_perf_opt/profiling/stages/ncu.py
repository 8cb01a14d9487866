"""Stage ncu: the kernels that matter under Nsight Compute."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from llm_perf_opt.config.schema import FORBID_UNKNOWN, PositiveInt, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.core.stage import Finding, StageContext


@dataclass(frozen=True, kw_only=True)
class NvtxFilter:
    """`ncu_cli.nvtx.*`"""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    include: str | tuple[str, ...] | None = "decode*"


@dataclass(frozen=True, kw_only=True)
class NcuExport:
    """`ncu_cli.export.*`"""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    csv: bool = True


@dataclass(frozen=True, kw_only=True)
class NcuCli:
    """`pipeline.ncu.ncu_cli.*`: one field per flag of ncu."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    target_processes: Literal["all", "application-only"] = "all"
    nvtx: NvtxFilter = field(default_factory=NvtxFilter)
    set: str | None = "roofline"
    sections: tuple[str, ...] | None = (
        "SpeedOfLight",
        "MemoryWorkloadAnalysis",
        "Occupancy",
        "SchedulerStats",
    )
    metrics: str | tuple[str, ...] | None = None
    replay_mode: Literal["kernel", "application", "range", "app-range"] = "kernel"
    kernel_name_base: Literal["function", "demangled", "mangled"] = "demangled"
    kernel_name: str | None = None
    launch_skip: Annotated[int, Ge(0)] | None = None
    launch_count: PositiveInt | None = None
    clock_control: Literal["none", "base"] = "none"
    export: NcuExport = field(default_factory=NcuExport)
    force_overwrite: bool = True
    extra_args: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NcuConfig(StageConfig):
    """`pipeline.ncu.*`"""

    description: str = ""
    gating_nvtx: bool = True
    max_kernels: PositiveInt = 30
    max_launches_per_kernel: PositiveInt = 1
    exclude: tuple[str, ...] = ("nccl.*", "ncclDevKernel.*")
    ncu_cli: NcuCli = field(default_factory=NcuCli)


class NcuStage:
    """See the module."""

    name = "ncu"
    config_cls = NcuConfig
    after: tuple[str, ...] = ("nsys",)
    tools: tuple[str, ...] = ("ncu",)

    def preflight(self, cfg: NcuConfig, host: Host) -> Sequence[Finding]:
        return ()

    def run(self, cfg: NcuConfig, ctx: StageContext) -> StageOutput:
        raise NotImplementedError


STAGE = NcuStage()

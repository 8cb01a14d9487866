"""Stage nsys: the workload under Nsight Systems."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.config.schema import Problem, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.core.stage import Finding, StageContext


@dataclass(frozen=True, kw_only=True)
class NsysConfig(StageConfig):
    """`pipeline.nsys.*`"""

    gating_nvtx: bool = True
    trace: str = "cuda,nvtx,osrt"
    sample: str = "none"
    cpuctxsw: str = "none"
    capture_range: Literal["none", "nvtx", "cudaProfilerApi", "hotkey"] = "none"
    nvtx_capture: str | tuple[str, ...] | None = None
    capture_range_end: str | None = None
    nvtx_domain_include: str | None = None
    nvtx_domain_exclude: str | None = None
    cuda_graph_trace: Literal["node", "graph"] = "node"
    extra_args: tuple[str, ...] = ()
    keep_report: bool = True

    def problems(self) -> tuple[Problem, ...]:
        found: list[Problem] = []
        names = (self.nvtx_capture,) if isinstance(self.nvtx_capture, str) else (self.nvtx_capture or ())
        if self.capture_range == "nvtx" and not (names and all(n.strip() for n in names)):
            found.append(
                Problem(
                    key="nvtx_capture",
                    text=f"needed because capture_range is nvtx (got {self.nvtx_capture!r}), "
                    "allowed: the name of an NVTX range, such as decode",
                )
            )
        return tuple(found)


class NsysStage:
    """See the module."""

    name = "nsys"
    config_cls = NsysConfig
    after: tuple[str, ...] = ("torch_profiler", "direct_inference")
    tools: tuple[str, ...] = ("nsys",)

    def preflight(self, cfg: NsysConfig, host: Host) -> Sequence[Finding]:
        return ()

    def run(self, cfg: NsysConfig, ctx: StageContext) -> StageOutput:
        raise NotImplementedError


STAGE = NsysStage()

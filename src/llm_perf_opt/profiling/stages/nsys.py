"""Stage nsys: the workload under Nsight Systems."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from annotated_types import Ge

from llm_perf_opt.config.output import OutputConfig, VisualizationOutput
from llm_perf_opt.config.schema import PositiveInt, Problem, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.names import NSYS
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.core.stage import Obstacle, Preview, StageContext
from llm_perf_opt.profiling.baseline import forget_results, used_samples
from llm_perf_opt.profiling.vendor.nsys import CAPTURE_ENDS, CAPTURE_ENDS_WORDS, KeepReport, traces_cuda
from llm_perf_opt.workload.outputs import output_problems

SCOPES = ("none", "process-tree", "system-wide")
# Flags this stage sets itself; nsys refuses a flag given twice.
OWN_FLAGS = (
    *("--output", "-o", "--force-overwrite", "-f", "--trace", "-t", "--sample", "-s", "--cpuctxsw"),
    *("--capture-range", "-c", "--capture-range-end", "--nvtx-capture", "-p", "--cuda-graph-trace"),
    *("--nvtx-domain-include", "--nvtx-domain-exclude", "--delay", "-y", "--duration", "-d"),
)


def _no_output() -> OutputConfig:
    """Only inference is captured unless more is requested."""
    return OutputConfig(visualization=VisualizationOutput(enable=False))


@dataclass(frozen=True, kw_only=True)
class NsysConfig(StageConfig):
    """`pipeline.nsys.*`"""

    gating_nvtx: bool = True
    trace: str | tuple[str, ...] = "cuda,nvtx,osrt"
    sample: str = "none"
    cpuctxsw: str = "none"
    capture_range: Literal["none", "nvtx", "cudaProfilerApi", "hotkey"] = "none"
    nvtx_capture: str | tuple[str, ...] | None = None
    capture_range_end: str | None = None
    nvtx_domain_include: str | None = None
    nvtx_domain_exclude: str | None = None
    cuda_graph_trace: Literal["node", "graph"] = "node"
    delay_s: Annotated[int, Ge(0)] = 0
    duration_s: PositiveInt | None = None
    stop_after_phases: PositiveInt | None = None
    stop_after_repeats: PositiveInt | None = 1
    extra_args: tuple[str, ...] = ()
    # true and false are what it was before 0.3: clean and never.
    keep_report: KeepReport | bool = "clean"
    isolate: Literal["auto", "never"] = "auto"
    output: OutputConfig = field(default_factory=_no_output)

    @property
    def traced(self) -> str:
        """The APIs to trace, as nsys takes them."""
        return self.trace if isinstance(self.trace, str) else ",".join(self.trace)

    @property
    def report_kept(self) -> KeepReport:
        if isinstance(self.keep_report, bool):
            return "clean" if self.keep_report else "never"
        return self.keep_report

    @property
    def capture_names(self) -> tuple[str, ...]:
        """The ranges to capture, one after the other."""
        names = (self.nvtx_capture,) if isinstance(self.nvtx_capture, str) else (self.nvtx_capture or ())
        return tuple(name.strip() for name in names)

    @property
    def capture_in_force(self) -> str:
        """`gating_nvtx: false` turns gating by NVTX off and nothing else."""
        return "none" if self.capture_range == "nvtx" and not self.gating_nvtx else self.capture_range

    @property
    def gate(self) -> str:
        """What starts and ends the capture, in words."""
        if self.capture_in_force == "nvtx":
            return f"captures the NVTX range {', '.join(self.capture_names)} (capture_range=nvtx, gating_nvtx=true)"
        if self.capture_range == "nvtx":
            return "captures the whole workload: gating_nvtx=false switches capture_range=nvtx off"
        if self.capture_range == "none":
            return "captures the whole workload: gating_nvtx has no effect without capture_range=nvtx"
        return f"captures what capture_range={self.capture_range} opens; gating_nvtx has no effect on it"

    @property
    def repeats(self) -> int | None:
        """How often each sample of our own workload is captured at most; who counts ranges or phases gets them all."""
        is_whole = self.capture_in_force == "none" and self.stop_after_phases is None
        return self.stop_after_repeats if is_whole else None

    def problems(self) -> tuple[Problem, ...]:
        return (
            *self._range_problems(),
            *self._window_problems(),
            *self._flag_problems(),
            *output_problems(self.output),
        )

    def _window_problems(self) -> list[Problem]:
        if not self.delay_s or self.capture_in_force == "none":
            return []
        text = f"a range already says when the capture starts (got {self.delay_s}), allowed: 0, or capture_range=none"
        return [Problem(key="delay_s", text=text)]

    def _range_problems(self) -> list[Problem]:
        found: list[Problem] = []
        if self.capture_in_force == "nvtx" and not (self.capture_names and all(self.capture_names)):
            found.append(
                Problem(
                    key="nvtx_capture",
                    text=f"needed because capture_range is nvtx (got {self.nvtx_capture!r}), "
                    "allowed: the name of an NVTX range, such as decode",
                )
            )
        for name in self.capture_names if self.capture_in_force == "nvtx" else ():
            text, _, domain = name.partition("@")
            if re.search(r"[*?\[\]]", text) or (domain != "*" and re.search(r"[*?\[\]]", domain)):
                plain = re.sub(r"[*?\[\]]", "", text) or "NAME"
                found.append(
                    Problem(
                        key="nvtx_capture",
                        text=f"nsys never matches a pattern in a range's name (got {name!r}), allowed: the exact name "
                        f"({plain}), the name in a domain ({plain}@DOMAIN) or in any domain ({plain}@*)",
                    )
                )
        end = self.capture_range_end
        if end and not CAPTURE_ENDS.fullmatch(end):
            found.append(
                Problem(key="capture_range_end", text=f"not known to nsys (got {end!r}), allowed: {CAPTURE_ENDS_WORDS}")
            )
        has = {"nvtx": "nvtx" in self.traced.split(","), "cuda": traces_cuda(self.traced)}
        wanted = {"nvtx": "nvtx", "cudaProfilerApi": "cuda"}.get(self.capture_in_force)
        if wanted is not None and not has[wanted]:
            found.append(
                Problem(
                    key="trace",
                    text=f"must contain {wanted} because capture_range is {self.capture_range} (got {self.traced!r}), "
                    f"allowed: {self.traced},{wanted}",
                )
            )
        return found

    def _flag_problems(self) -> list[Problem]:
        found: list[Problem] = []
        for key, value in (("sample", self.sample), ("cpuctxsw", self.cpuctxsw)):
            if value not in SCOPES:
                found.append(
                    Problem(key=key, text=f"not one of the choices (got {value!r}), allowed: {', '.join(SCOPES)}")
                )
        if not re.fullmatch(r"[A-Za-z0-9_-]+(,[A-Za-z0-9_-]+)*", self.traced):
            found.append(
                Problem(
                    key="trace", text=f"not a list of APIs (got {self.traced!r}), allowed: names with commas, no spaces"
                )
            )
        if self.nvtx_domain_include and self.nvtx_domain_exclude:
            found.append(
                Problem(
                    key="nvtx_domain_exclude",
                    text=f"nsys takes this or nvtx_domain_include, not both (got {self.nvtx_domain_exclude!r}), "
                    "allowed: null",
                )
            )
        return found + self._extra_problems()

    def _extra_problems(self) -> list[Problem]:
        found = []
        for index, word in enumerate(self.extra_args):
            flag, _, value = word.partition("=")
            if flag in OWN_FLAGS:
                found.append(Problem(key="extra_args", text=f"{flag} is set by the stage itself (got {word!r})"))
            elif flag == "--export" and value != "none":
                text = f"its file would hold environments and is not kept (got {word!r}); the stage exports to SQLite"
                found.append(Problem(key="extra_args", text=text))
            elif flag in ("--env-var", "-e") and self.capture_in_force == "nvtx":
                text = f"{flag} is set by the stage itself when it gates by NVTX; set the variable in the workload"
                found.append(Problem(key="extra_args", text=text))
            elif not word.startswith("-") and not _takes_value(self.extra_args[:index]):
                text = f"nsys would run {word!r} instead of the workload, allowed: flags and their values"
                found.append(Problem(key="extra_args", text=text))
        return found


def _takes_value(before: Sequence[str]) -> bool:
    """Whether the last of these words is a flag whose value follows."""
    return bool(before) and before[-1].startswith("-") and "=" not in before[-1]


class NsysStage:
    """See the module."""

    name = NSYS
    config_cls = NsysConfig
    after: tuple[str, ...] = ("torch_profiler", "direct_inference")
    tools: tuple[str, ...] = ("nsys",)
    runs_model = True
    gives_clean_pass = False
    needs_our_model = False

    def preflight(self, cfg: NsysConfig, host: Host) -> Sequence[Obstacle]:
        found = []
        tool = host.tool("nsys")
        if not tool.usable:
            found.append(
                Obstacle(
                    what=tool.trouble,
                    remedy="see `llm-perf doctor`, or leave the stage out with pipeline.nsys.enable=false; "
                    "existing captures can be read with `llm-perf analyze`",
                )
            )
        if not host.gpus:
            found.append(
                Obstacle(
                    what="this machine has no GPU: nsys will record NVTX ranges and OS calls, but no kernels",
                    remedy="run on a machine with an NVIDIA GPU to see kernels",
                    blocking=False,
                )
            )
        if not host.gpus and cfg.capture_in_force == "cudaProfilerApi":
            found.append(
                Obstacle(
                    what="without a GPU our workload cannot call cudaProfilerStart, so nothing would be captured",
                    remedy="pipeline.nsys.capture_range=nvtx gates anywhere",
                    blocking=False,
                )
            )
        if cfg.capture_range_end and cfg.capture_in_force == "none":
            found.append(
                Obstacle(
                    what=f"pipeline.nsys.capture_range_end={cfg.capture_range_end} does nothing without a range",
                    remedy="set pipeline.nsys.capture_range=nvtx and pipeline.nsys.nvtx_capture",
                    blocking=False,
                )
            )
        return tuple(found)

    def preview(self, cfg: NsysConfig, ctx: StageContext) -> Preview:
        from llm_perf_opt.profiling.baseline import clean_pass_commands
        from llm_perf_opt.profiling.nsys.nsys_capture import command_line
        from llm_perf_opt.profiling.nsys.nsys_session import plan_captures

        workload = ctx.config.workload
        nsys = ctx.host.tool("nsys").path or "nsys"
        planned = plan_captures(
            cfg,
            nsys,
            version=ctx.host.tool("nsys").version,
            is_own=workload.command is None,
            ends_after_s=workload.duration_s,
        )
        commands = tuple(tuple(command_line(ctx, options, base)) for base, options in planned)
        return Preview(text=cfg.gate, commands=(*clean_pass_commands(ctx), *commands))

    def run(self, cfg: NsysConfig, ctx: StageContext) -> StageOutput:
        # numpy is imported only when the stage runs.
        from llm_perf_opt.profiling.nsys.nsys_capture import WORK_DIR
        from llm_perf_opt.profiling.nsys.nsys_session import run_nsys

        folder = ctx.workload_dir / WORK_DIR
        forget_results(folder)
        output = run_nsys(cfg, ctx)
        return replace(output, samples=used_samples(output, folder))


STAGE = NsysStage()

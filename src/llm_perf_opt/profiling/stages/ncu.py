"""Stage ncu: the kernels that matter under Nsight Compute."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

from annotated_types import Ge, Gt, Le

from llm_perf_opt.config.schema import FORBID_UNKNOWN, AppConfig, InferSection, PositiveInt, Problem, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.names import DECODE_RANGES, NCU, NSYS
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.core.stage import Obstacle, Preview, StageContext
from llm_perf_opt.errors import StageSkipped, ToolError
from llm_perf_opt.profiling.baseline import forget_results, used_samples
from llm_perf_opt.profiling.ncu.ncu_capture import check_metrics, check_sections, check_set
from llm_perf_opt.profiling.vendor.launch import INFERENCE_RUNNER, build_work_argv, capture_overrides, quote
from llm_perf_opt.profiling.vendor.ncu import check_nvtx_include
from llm_perf_opt.system.process import allowed_environment, run_quick

WORK_DIR = NCU
INSTALL = "install Nsight Compute and put ncu on PATH"
_ASK_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class NvtxFilter:
    """`ncu_cli.nvtx.*`"""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    include: str | tuple[str, ...] | None = DECODE_RANGES


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


def without_graphs(infer: InferSection) -> InferSection:
    """The same kernels without a CUDA graph."""
    found = replace(infer, cuda_graph=False)
    if infer.compile == "reduce-overhead":
        return replace(found, compile="default")
    return replace(found, compile="max-autotune-no-cudagraphs") if infer.compile == "max-autotune" else found


@dataclass(frozen=True, kw_only=True)
class NcuWorkload:
    """`pipeline.ncu.workload.*`: how much of our own workload runs under ncu; null: as much as everywhere else.

    ncu replays every profiled launch many times, and takes them from one sample as well as from many. A launch that is
    not profiled costs too (1.7 ms on an H200 with ncu 2025.3), so a sample ends as soon as its steps have shown every
    kernel often enough; its token budget, and what is allocated for it, stay those of the run. Kernels are measured one
    by one, so they are launched without the CUDA graph they belong to: a step that captured one crashed under ncu.
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    max_new_tokens: PositiveInt | None = None
    num_epochs: PositiveInt | None = 1
    num_samples_per_epoch: PositiveInt | None = 1
    repeats: PositiveInt | None = 1
    warmup_rounds: Annotated[int, Ge(0)] = 0
    stop_after_tokens: PositiveInt | None = 8

    def applied(self, config: AppConfig) -> AppConfig:
        """The configuration of the workload under ncu."""
        sampling = config.dataset.sampling
        sampling = replace(
            sampling,
            num_epochs=self.num_epochs or sampling.num_epochs,
            num_samples_per_epoch=self.num_samples_per_epoch or sampling.num_samples_per_epoch,
        )
        return replace(
            config,
            run=replace(config.run, repeats=self.repeats or config.run.repeats),
            dataset=replace(config.dataset, sampling=sampling),
            infer=replace(
                without_graphs(config.infer), max_new_tokens=self.max_new_tokens or config.infer.max_new_tokens
            ),
        )

    def sentence(self, config: AppConfig) -> str:
        """What the user is reported about it, on the console and in the manifest."""
        used = self.applied(config)
        sampling = used.dataset.sampling
        return (
            f"workload under ncu (pipeline.ncu.workload): max_new_tokens {used.infer.max_new_tokens}, num_epochs "
            f"{sampling.num_epochs}, num_samples_per_epoch {sampling.num_samples_per_epoch or 'all'}, repeats "
            f"{used.run.repeats}, warmup_rounds {self.warmup_rounds}"
            + (f"; a sample ends after {self.stop_after_tokens} of its tokens" if self.stops_early(config) else "")
            + (
                "; without the CUDA graph, its kernels one by one"
                if without_graphs(config.infer) != config.infer
                else ""
            )
        )

    def stops_early(self, config: AppConfig) -> bool:
        budget = self.applied(config).infer.max_new_tokens
        return self.stop_after_tokens is not None and self.stop_after_tokens < budget

    def ending_after(self, tokens: int) -> Self:
        """The same, with samples of at most this many tokens."""
        return replace(self, stop_after_tokens=min(tokens, self.stop_after_tokens or tokens))

    def tokens(self, config: AppConfig) -> int:
        """How many tokens a sample makes under ncu."""
        return min(self.applied(config).infer.max_new_tokens, self.stop_after_tokens or sys.maxsize)


@dataclass(frozen=True, kw_only=True)
class NcuConfig(StageConfig):
    """`pipeline.ncu.*`"""

    description: str = ""
    gating_nvtx: bool = True
    max_kernels: PositiveInt = 30
    max_launches_per_kernel: PositiveInt = 1
    coverage: Annotated[float, Gt(0.0), Le(1.0)] = 0.9
    exclude: tuple[str, ...] = ("nccl.*", "ncclDevKernel.*")
    workload: NcuWorkload = field(default_factory=NcuWorkload)
    ncu_cli: NcuCli = field(default_factory=NcuCli)

    def problems(self) -> tuple[Problem, ...]:
        found = []
        trouble = check_nvtx_include(self.ncu_cli.nvtx.include) if self.gating_nvtx else None
        if trouble is not None:
            found.append(Problem(key="ncu_cli.nvtx.include", text=trouble))
        patterns = {f"exclude.{i}": pattern for i, pattern in enumerate(self.exclude)}
        if self.ncu_cli.kernel_name is not None and self.ncu_cli.kernel_name.startswith("regex:"):
            patterns["ncu_cli.kernel_name"] = self.ncu_cli.kernel_name.removeprefix("regex:")
        for key, pattern in patterns.items():
            try:
                re.compile(pattern)
            except re.error as error:
                text = f"not a regular expression ({error}; got {pattern!r}), allowed: such as nccl.*"
                found.append(Problem(key=key, text=text))
        return tuple(found)

    def light(self) -> Self:
        # Fewer kernels would leave half of a mixture of experts' decode time unexplained.
        return replace(self, max_launches_per_kernel=1)


class NcuStage:
    """See the module."""

    name = NCU
    config_cls = NcuConfig
    after: tuple[str, ...] = ("nsys",)
    tools: tuple[str, ...] = ("ncu",)
    runs_model = True
    gives_clean_pass = False
    needs_our_model = False

    def preflight(self, cfg: NcuConfig, host: Host) -> Sequence[Obstacle]:
        tool = host.tool("ncu")
        found = []
        if not tool.usable:
            what, remedy = tool.problem or "ncu was not found", tool.remedy or INSTALL
            found.append(Obstacle(what=what, remedy=remedy))
        if not host.gpus:
            remedy = "run the stage where an NVIDIA GPU is; without one ncu profiles nothing and the stage fails"
            found.append(
                Obstacle(
                    what="no CUDA device on this machine",
                    remedy=remedy,
                    blocking=False,
                    # With a GPU's files there may be one that nvidia-smi does not list.
                    expects_failure=not host.has_gpu_files,
                )
            )
        if host.counters_restricted:
            what = "the driver keeps GPU performance counters for the administrator (ERR_NVGPUCTRPERM)"
            remedy = "run as root, in a container with CAP_SYS_ADMIN, or set NVreg_RestrictProfilingToAdminUsers=0"
            found.append(Obstacle(what=what, remedy=remedy, blocking=False))
        return tuple(found)

    def preview(self, cfg: NcuConfig, ctx: StageContext) -> Preview:
        from llm_perf_opt.profiling.ncu.ncu_session import prepare

        tool = ctx.host.tool("ncu")
        cfg = to_the_end(cfg)
        if tool.path is not None and tool.usable:
            cfg, _ = supported(cfg, tool.path, ctx.config.run.env_passthrough)
        prepared = prepare(cfg, ctx, tool.path or "ncu")
        chosen = prepared.window or prepared.capture
        workload = cfg.workload if prepared.window is None else prepared.workload
        is_later = NSYS in ctx.config.stages and prepared.source is None
        text = "the kernels are chosen when nsys/run.sqlite is there, and added to this command" if is_later else ""
        return Preview(text=text, commands=(tuple(chosen.argv(ctx.out_dir, work_argv(ctx, workload))),))

    def run(self, cfg: NcuConfig, ctx: StageContext) -> StageOutput:
        # numpy is imported only when the stage runs.
        from llm_perf_opt.profiling.ncu.ncu_session import profile

        if ctx.config.infer.tp > 1:
            raise StageSkipped(
                f"ncu profiles one rank, and with infer.tp={ctx.config.infer.tp} none can run alone: ncu would replay "
                "collectives while the others wait; without infer.tp the kernels of one rank are profiled"
            )

        tool = ctx.host.tool("ncu")
        if tool.path is None or not tool.usable:
            raise ToolError(replace(tool, remedy=tool.remedy or INSTALL).trouble)
        folder = ctx.workload_dir / WORK_DIR
        forget_results(folder)
        cfg, notes = supported(to_the_end(cfg), tool.path, ctx.config.run.env_passthrough)
        output = profile(cfg, ctx, ncu=tool.path, work_argv=partial(work_argv, ctx), notes=notes)
        return replace(output, samples=used_samples(output, folder))


def to_the_end(cfg: NcuConfig) -> NcuConfig:
    """A capture whose launches the user counts, or of whole ranges, needs every step."""
    cli = cfg.ncu_cli
    counts = cli.launch_skip is not None or cli.launch_count is not None
    if not counts and cli.replay_mode not in ("range", "app-range"):
        return cfg
    return replace(cfg, workload=replace(cfg.workload, stop_after_tokens=None))


def supported(cfg: NcuConfig, ncu: str, passthrough: Sequence[str]) -> tuple[NcuConfig, tuple[str, ...]]:
    """The configuration in this ncu's words, and notes about it; raises ToolError for a set or section it has not."""
    environment = allowed_environment(os.environ, passthrough)

    def ask(args: Sequence[str]) -> str:
        code, text = run_quick([ncu, *args], env=environment, timeout_s=_ASK_TIMEOUT_S)
        return text if code == 0 else ""

    cli = cfg.ncu_cli
    set_name, note = check_set(cli.set, ask)
    check_sections(cli.sections, ask)
    metrics, left_out = check_metrics(cli.metrics, ask)
    cli = replace(cli, set=set_name, metrics=metrics if metrics is None or isinstance(metrics, str) else tuple(metrics))
    return replace(cfg, ncu_cli=cli), (*(() if note is None else (note,)), *left_out)


def work_argv(ctx: StageContext, workload: NcuWorkload) -> list[str]:
    """What ncu starts: the user's program, or as much of our own inference as it is to watch."""
    if ctx.config.workload.command is not None:
        return list(ctx.config.workload.command)
    return build_work_argv(
        INFERENCE_RUNNER,
        [
            *capture_overrides(workload.applied(ctx.config)),
            f"pipeline.direct_inference.warmup_rounds={workload.warmup_rounds}",
            f"pipeline.direct_inference.stop_after_tokens={quote(workload.stop_after_tokens)}",
        ],
        hydra_run_dir=ctx.workload_dir / WORK_DIR,
    )


STAGE = NcuStage()

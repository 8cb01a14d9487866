"""Stage torch_profiler: a clean pass for latencies, then a pass under torch.profiler for attribution."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, Self

from annotated_types import Ge, MinLen

from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.schema import AppConfig, PositiveInt, Problem, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.core.stage import Obstacle, StageContext
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.profiling.nvml import gpu_index, sample_gpu, samples_file
from llm_perf_opt.profiling.output_files import output_files
from llm_perf_opt.profiling.trace_files import trace_files
from llm_perf_opt.profiling.vendor.launch import PROFILE_RUNNER, build_work_argv, stage_overrides, workload_overrides
from llm_perf_opt.profiling.workload_results import (
    clean_metrics,
    existing_files,
    forget_results,
    notes_of,
    read_inputs,
    read_metrics,
    require_success,
    slowdown_metrics,
    torch_obstacles,
)
from llm_perf_opt.workload.output_options import output_problems


@dataclass(frozen=True, kw_only=True)
class TorchProfilerConfig(StageConfig):
    """`pipeline.torch_profiler.*`. The two `max_*` keys bound the profiled pass; None lifts the bound."""

    activities: Annotated[tuple[Literal["cpu", "cuda"], ...], MinLen(1)] = ("cpu", "cuda")
    record_shapes: bool = True
    profile_memory: bool = True
    with_stack: bool = False
    group_by_input_shape: bool = True
    warmup_rounds: Annotated[int, Ge(0)] = 1
    warmup_synthetic: bool = True
    max_samples: PositiveInt | None = 2
    max_decode_steps: Annotated[int, Ge(0)] | None = 16
    output: OutputConfig = field(default_factory=OutputConfig)

    def problems(self) -> tuple[Problem, ...]:
        return output_problems(self.output)

    def light(self) -> Self:
        return replace(self, warmup_rounds=min(1, self.warmup_rounds), max_samples=1)


class TorchProfilerStage:
    """See the module."""

    name = "torch_profiler"
    config_cls = TorchProfilerConfig
    after: tuple[str, ...] = ("static_analysis",)
    tools: tuple[str, ...] = ()

    def preflight(self, cfg: TorchProfilerConfig, host: Host) -> Sequence[Obstacle]:
        return torch_obstacles(host)

    def run(self, cfg: TorchProfilerConfig, ctx: StageContext) -> StageOutput:
        """Run both passes in a child and report what it wrote."""
        overrides = [*workload_overrides(ctx.config), *stage_overrides(self.name, asdict(cfg))]
        forget_results(ctx.out_dir)
        argv = build_work_argv(PROFILE_RUNNER, overrides, hydra_run_dir=ctx.out_dir)
        index = gpu_index(ctx.config.run.device, os.environ) if ctx.host.gpus else None
        with sample_gpu(index) as sampled:
            result = ctx.run_command(argv, timeout_s=cfg.timeout_s, label=self.name)
        require_success(result, "the profiled workload")
        data = read_metrics(ctx.out_dir)
        source = f"{self.name}/metrics.json"
        return StageOutput(
            metrics={**clean_metrics(data, source), **slowdown_metrics(data, source)},
            files=(
                *existing_files(ctx.out_dir),
                *trace_files(ctx.out_dir / "trace.json.gz"),
                *samples_file(sampled, ctx.out_dir),
                *output_files(cfg.output, ctx.out_dir),
            ),
            notes=(*notes_of(data), *((sampled.reason,) if sampled.reason and ctx.host.gpus else ())),
            samples=read_inputs(ctx.out_dir),
        )


def run_in_child(config: AppConfig, out_dir: Path) -> None:
    """The work of the stage, in the process that may import torch."""
    from llm_perf_opt.workload.profiled import run_profile

    stage = config.stages.get("torch_profiler")
    if not isinstance(stage, TorchProfilerConfig):
        raise ConfigError("pipeline.torch_profiler.enable: must be true in the child (got false)")
    run_profile(config, stage, out_dir)


STAGE = TorchProfilerStage()

"""Stage torch_profiler: a clean pass for latencies, then a pass under torch.profiler for attribution."""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, Self

from annotated_types import Ge, MinLen

from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.schema import AppConfig, PositiveInt, Problem, StageConfig
from llm_perf_opt.core.documents import MetricsDocument
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import HOST_SAMPLES, METRICS_FILE, TORCH_PROFILER, TRACE_FILE
from llm_perf_opt.core.records import StageFile, StageOutput
from llm_perf_opt.core.stage import Obstacle, Preview, StageContext
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.profiling.baseline import (
    clean_metrics,
    existing_files,
    forget_results,
    notes_of,
    output_files,
    profiled_slowdown,
    read_inputs,
    read_metrics,
    require_success,
    torch_obstacles,
)
from llm_perf_opt.profiling.clean_ranks import clean_ranks
from llm_perf_opt.profiling.generated import collect_generated
from llm_perf_opt.profiling.injected import WindowConfig, profile_program
from llm_perf_opt.profiling.vendor.launch import (
    PROFILE_RUNNER,
    build_work_argv,
    launch_ranks,
    stage_overrides,
    workload_overrides,
)
from llm_perf_opt.system.nvml import gpu_index, sample_gpu, samples_file
from llm_perf_opt.workload.outputs import output_problems


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
    window: WindowConfig = field(default_factory=WindowConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    def problems(self) -> tuple[Problem, ...]:
        return output_problems(self.output)

    def token_budget(self, max_new_tokens: int) -> int:
        """Tokens of each sample in the profiled pass: one comes from prefill, one from every decode step."""
        return max_new_tokens if self.max_decode_steps is None else min(max_new_tokens, self.max_decode_steps + 1)

    def light(self) -> Self:
        return replace(self, warmup_rounds=min(1, self.warmup_rounds), max_samples=1)


class TorchProfilerStage:
    """See the module."""

    name = TORCH_PROFILER
    config_cls = TorchProfilerConfig
    after: tuple[str, ...] = ("static_analysis", HOST_SAMPLES)
    tools: tuple[str, ...] = ()
    runs_model = True
    gives_clean_pass = True
    needs_our_model = False

    def preflight(self, cfg: TorchProfilerConfig, host: Host) -> Sequence[Obstacle]:
        return torch_obstacles(host)

    def preview(self, cfg: TorchProfilerConfig, ctx: StageContext) -> Preview:
        command = ctx.config.workload.command
        return Preview(commands=(tuple(_work_argv(cfg, ctx)) if command is None else tuple(command),))

    def run(self, cfg: TorchProfilerConfig, ctx: StageContext) -> StageOutput:
        """Run both passes in a child and report what it wrote."""
        if ctx.config.workload.command is not None:
            return profile_program(cfg, ctx)
        forget_results(ctx.out_dir)
        argv = _work_argv(cfg, ctx)
        index = gpu_index(ctx.config.run.device, os.environ) if ctx.host.gpus else None
        with sample_gpu(index) as sampled:
            result = ctx.run_command(argv, timeout_s=cfg.timeout_s, label=self.name)
        require_success(result, "the profiled workload", stage=self.name)
        # Before any name of it is shortened: half a secret is not known as one.
        ctx.run_command.redactor.file(ctx.out_dir / TRACE_FILE)
        data, traced = describe_trace(cfg, ctx.out_dir, tokens=cfg.token_budget(ctx.config.infer.max_new_tokens))
        source = f"{self.name}/{METRICS_FILE}"
        generated, sections = collect_generated(ctx.run_dir, ctx.out_dir)
        of_ranks, rank_tables = clean_ranks(ctx.out_dir, source)
        return StageOutput(
            metrics={**clean_metrics(data, source), **profiled_slowdown(data, source), **of_ranks},
            files=(
                *existing_files(ctx.out_dir),
                *traced,
                *samples_file(sampled, ctx.out_dir),
                *output_files(cfg.output, ctx.out_dir),
                *generated,
            ),
            notes=(*notes_of(data), *((sampled.reason,) if sampled.reason and ctx.host.gpus else ())),
            samples=read_inputs(ctx.out_dir),
            sections=(*rank_tables, *sections),
        )


def _work_argv(cfg: TorchProfilerConfig, ctx: StageContext) -> list[str]:
    overrides = [*workload_overrides(ctx.config), *stage_overrides(TORCH_PROFILER, asdict(cfg))]
    return launch_ranks(build_work_argv(PROFILE_RUNNER, overrides, hydra_run_dir=ctx.out_dir), ctx.config.run)


def describe_trace(
    cfg: TorchProfilerConfig, out_dir: Path, *, tokens: int
) -> tuple[MetricsDocument, tuple[StageFile, ...]]:
    """Read the trace the child left; metrics.json with the modules' shares in it, and the files a report reads."""
    # numpy is imported only when there is a trace to read.
    from llm_perf_opt.profiling.trace_tables import write_trace_files

    data = read_metrics(out_dir)
    by_shape = cfg.group_by_input_shape and cfg.record_shapes
    traced = write_trace_files(out_dir / TRACE_FILE, by_shape=by_shape, pass_note=_pass_note(data, tokens))
    data = traced.add_modules(data)
    if (data.model.device or "").startswith("cuda") and "cuda" in cfg.activities and not traced.has_device:
        note = "the trace holds no device activity; another profiler may hold CUPTI"
        data = replace(data, notes=(*data.notes, note))
    write_json(out_dir / METRICS_FILE, data)
    return data, traced.files


def _pass_note(data: MetricsDocument, tokens: int) -> str:
    samples = data.profiled.samples if data.profiled is not None else 0
    times = ", ".join(f"{phase} {value:.2f}x" for phase, value in (data.slowdown or {}).items() if value is not None)
    return (
        f"From the profiled pass: {count_of(samples, 'sample')}, at most {count_of(tokens, 'token')} each. The "
        f"profiler slows the work down ({times or 'not measured'}), so use these times for shares, and metrics.json "
        "for latencies."
    )


def run_in_child(config: AppConfig, out_dir: Path) -> None:
    """The work of the stage, in the process that may import torch."""
    from llm_perf_opt.workload.profiled import run_profile

    stage = config.stages.get(TORCH_PROFILER)
    if not isinstance(stage, TorchProfilerConfig):
        raise ConfigError("pipeline.torch_profiler.enable: must be true in the child (got false)")
    run_profile(config, stage, out_dir)


STAGE = TorchProfilerStage()

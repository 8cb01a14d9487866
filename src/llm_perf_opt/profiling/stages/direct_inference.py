"""Stage direct_inference: plain inference without a profiler; predictions, gallery and clean latencies."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Self

from annotated_types import Ge

from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.schema import PositiveInt, Problem, StageConfig
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.names import DIRECT_INFERENCE, METRICS_FILE
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.core.stage import Obstacle, Preview, StageContext
from llm_perf_opt.profiling.baseline import (
    clean_metrics,
    existing_files,
    forget_results,
    notes_of,
    output_files,
    program_baseline,
    read_inputs,
    read_metrics,
    require_success,
    torch_obstacles,
)
from llm_perf_opt.profiling.clean_ranks import clean_ranks
from llm_perf_opt.profiling.generated import collect_generated
from llm_perf_opt.profiling.vendor.launch import (
    INFERENCE_RUNNER,
    build_work_argv,
    launch_ranks,
    stage_overrides,
    workload_overrides,
)
from llm_perf_opt.workload.outputs import output_problems


@dataclass(frozen=True, kw_only=True)
class DirectInferenceConfig(StageConfig):
    """`pipeline.direct_inference.*`; `cuda_profiler_range` is for a profiler that waits for cudaProfilerStart.

    `stop_after_tokens` ends a sample before its token budget and `stop_after_repeats` the pass before its last repeat,
    for a profiler that has seen enough by then.
    """

    warmup_rounds: Annotated[int, Ge(0)] = 1
    cuda_profiler_range: str | None = None
    stop_after_tokens: PositiveInt | None = None
    stop_after_repeats: PositiveInt | None = None
    output: OutputConfig = field(default_factory=OutputConfig)

    def problems(self) -> tuple[Problem, ...]:
        return output_problems(self.output)

    def light(self) -> Self:
        return replace(self, warmup_rounds=min(1, self.warmup_rounds))


class DirectInferenceStage:
    """See the module."""

    name = DIRECT_INFERENCE
    config_cls = DirectInferenceConfig
    after: tuple[str, ...] = ("static_analysis",)
    tools: tuple[str, ...] = ()
    runs_model = True
    gives_clean_pass = True
    needs_our_model = False

    def preflight(self, cfg: DirectInferenceConfig, host: Host) -> Sequence[Obstacle]:
        return torch_obstacles(host)

    def preview(self, cfg: DirectInferenceConfig, ctx: StageContext) -> Preview:
        command = ctx.config.workload.command
        return Preview(commands=(tuple(_work_argv(cfg, ctx)) if command is None else tuple(command),))

    def run(self, cfg: DirectInferenceConfig, ctx: StageContext) -> StageOutput:
        """Run inference in a child and report what it wrote; a program of the user's own as it is."""
        if ctx.config.workload.command is not None:
            return self._run_program(cfg, ctx)
        forget_results(ctx.out_dir)
        argv = _work_argv(cfg, ctx)
        result = ctx.run_command(argv, timeout_s=cfg.timeout_s, label=self.name)
        require_success(result, "the workload", stage=self.name)
        data = read_metrics(ctx.out_dir)
        generated, sections = collect_generated(ctx.run_dir, ctx.out_dir)
        of_ranks, rank_tables = clean_ranks(ctx.out_dir, f"{self.name}/{METRICS_FILE}")
        return StageOutput(
            metrics={**clean_metrics(data, f"{self.name}/metrics.json"), **of_ranks},
            files=(*existing_files(ctx.out_dir), *output_files(cfg.output, ctx.out_dir), *generated),
            notes=notes_of(data),
            samples=read_inputs(ctx.out_dir),
            sections=(*rank_tables, *sections),
        )

    def _run_program(self, cfg: DirectInferenceConfig, ctx: StageContext) -> StageOutput:
        data = program_baseline(ctx, cfg.timeout_s)
        return StageOutput(
            metrics=clean_metrics(data, f"{self.name}/{METRICS_FILE}"),
            files=existing_files(ctx.out_dir),
            notes=notes_of(data),
        )


def _work_argv(cfg: DirectInferenceConfig, ctx: StageContext) -> list[str]:
    overrides = [*workload_overrides(ctx.config), *stage_overrides(DIRECT_INFERENCE, asdict(cfg))]
    return launch_ranks(build_work_argv(INFERENCE_RUNNER, overrides, hydra_run_dir=ctx.out_dir), ctx.config.run)


STAGE = DirectInferenceStage()

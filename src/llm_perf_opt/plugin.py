"""What plug-ins may rely on (docs/plugin-api.md); modules below the package may move.

Each name is imported when it is requested, so that importing this module costs nothing.
"""

from importlib import import_module

# As type checkers know it; the module `typing` itself takes longer to import than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from llm_perf_opt.config.schema import AppConfig, InferSection, ModelSection, Problem, StageConfig
    from llm_perf_opt.core.documents import ClockSample, CounterDocument, CounterSpan, CounterTrack
    from llm_perf_opt.core.host import Gpu, Host, Tool
    from llm_perf_opt.core.manifest import RunManifest, read_manifest
    from llm_perf_opt.core.records import CommandRecord, Metric, StageFile, StageOutput, StageRecord, StageTraits
    from llm_perf_opt.core.sections import Link, Picture, Section, SectionTable
    from llm_perf_opt.core.stage import CommandRunner, Obstacle, Preview, Stage, StageContext, StageFailed
    from llm_perf_opt.errors import CommandFailed, ConfigError, ParseError, ProfilingError, StageSkipped, ToolError
    from llm_perf_opt.marks import mark_warmup, phase, request
    from llm_perf_opt.pipeline.loaded_run import LoadedRun, RunTable, load_run
    from llm_perf_opt.profiling.workload_run import WorkloadRun, WorkloadSpan, run_workload
    from llm_perf_opt.report.charts import ChartBand, draw_chart
    from llm_perf_opt.system.nvml import GpuSamples, sample_gpus
    from llm_perf_opt.system.process import CommandResult
    from llm_perf_opt.workload.models.base import LoadedModel, ModelAdapter, Sample, StepOutput
    from llm_perf_opt.workload.watcher import WorkloadWatcher

__all__ = [
    "AppConfig",
    "ChartBand",
    "ClockSample",
    "CommandFailed",
    "CommandRecord",
    "CommandResult",
    "CommandRunner",
    "ConfigError",
    "CounterDocument",
    "CounterSpan",
    "CounterTrack",
    "Gpu",
    "GpuSamples",
    "Host",
    "InferSection",
    "Link",
    "LoadedModel",
    "LoadedRun",
    "Metric",
    "ModelAdapter",
    "ModelSection",
    "Obstacle",
    "ParseError",
    "Picture",
    "Preview",
    "Problem",
    "ProfilingError",
    "RunManifest",
    "RunTable",
    "Sample",
    "Section",
    "SectionTable",
    "Stage",
    "StageConfig",
    "StageContext",
    "StageFailed",
    "StageFile",
    "StageOutput",
    "StageRecord",
    "StageSkipped",
    "StageTraits",
    "StepOutput",
    "Tool",
    "ToolError",
    "WorkloadRun",
    "WorkloadSpan",
    "WorkloadWatcher",
    "draw_chart",
    "load_run",
    "mark_warmup",
    "phase",
    "read_manifest",
    "request",
    "run_workload",
    "sample_gpus",
]

_HOMES = {
    "config.schema": ("AppConfig", "InferSection", "ModelSection", "Problem", "StageConfig"),
    "core.documents": ("ClockSample", "CounterDocument", "CounterSpan", "CounterTrack"),
    "core.host": ("Gpu", "Host", "Tool"),
    "core.manifest": ("RunManifest", "read_manifest"),
    "system.process": ("CommandResult",),
    "core.records": ("CommandRecord", "Metric", "StageFile", "StageOutput", "StageRecord", "StageTraits"),
    "core.sections": ("Link", "Picture", "Section", "SectionTable"),
    "core.stage": ("CommandRunner", "Obstacle", "Preview", "Stage", "StageContext", "StageFailed"),
    "errors": ("CommandFailed", "ConfigError", "ParseError", "ProfilingError", "StageSkipped", "ToolError"),
    "marks": ("mark_warmup", "phase", "request"),
    "pipeline.loaded_run": ("LoadedRun", "RunTable", "load_run"),
    "system.nvml": ("GpuSamples", "sample_gpus"),
    "profiling.workload_run": ("WorkloadRun", "WorkloadSpan", "run_workload"),
    "report.charts": ("ChartBand", "draw_chart"),
    "workload.models.base": ("LoadedModel", "ModelAdapter", "Sample", "StepOutput"),
    "workload.watcher": ("WorkloadWatcher",),
}


def __getattr__(name: str) -> "Any":
    for module, names in _HOMES.items():
        if name in names:
            # Kept, so that a name used in a loop is looked for once.
            return globals().setdefault(name, getattr(import_module(f"llm_perf_opt.{module}"), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

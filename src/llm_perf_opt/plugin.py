"""What plug-ins may rely on (docs/plugin-api.md); modules below the package may move.

Each name is imported when it is requested, so that importing this module costs nothing.
"""

from importlib import import_module

# As type checkers know it; the module `typing` itself takes longer to import than all of this.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from llm_perf_opt.config.load import validate
    from llm_perf_opt.config.schema import AppConfig, InferSection, ModelSection, Problem, StageConfig
    from llm_perf_opt.core.documents import ClockSample, CounterDocument, CounterSpan, CounterTrack
    from llm_perf_opt.core.host import Gpu, Host, Tool
    from llm_perf_opt.core.manifest import RunManifest, read_manifest, write_json
    from llm_perf_opt.core.records import (
        CommandRecord,
        Metric,
        StageFile,
        StageOutput,
        StageRecord,
        StageTraits,
        begin_step,
    )
    from llm_perf_opt.core.sections import Link, Picture, Section, SectionTable
    from llm_perf_opt.core.stage import CommandRunner, Obstacle, Preview, Stage, StageContext, StageFailed
    from llm_perf_opt.errors import CommandFailed, ConfigError, ParseError, ProfilingError, StageSkipped, ToolError
    from llm_perf_opt.marks import mark_warmup, phase, request
    from llm_perf_opt.model.families.known import read_decoder
    from llm_perf_opt.model.hardware.work import Dtypes, PagePrompt, Shape, View, Work, linear, linear_params
    from llm_perf_opt.model.static.config_json import Fields, build_decoder, read_heads
    from llm_perf_opt.model.static.parts import DenseMlp, GroupedAttention, Layer, Model
    from llm_perf_opt.pipeline.loaded_run import LoadedRun, RunTable, load_run
    from llm_perf_opt.profiling.workload_run import WorkloadRun, WorkloadSpan, run_workload
    from llm_perf_opt.report.draw import ChartBand, draw_chart
    from llm_perf_opt.system.nvml import GpuSamples, sample_gpus
    from llm_perf_opt.system.process import CommandResult
    from llm_perf_opt.workload.models.base import LoadedModel, ModelAdapter, PageFiles, RangeFactory, Sample, StepOutput
    from llm_perf_opt.workload.models.causal_lm import CausalLMAdapter
    from llm_perf_opt.workload.models.meta_run import text_decode, text_prefill
    from llm_perf_opt.workload.models.module_groups import group_modules
    from llm_perf_opt.workload.models.random_weights import NoiseSource, fill_matrices, require_room
    from llm_perf_opt.workload.models.registry import Choice, choose_dtype
    from llm_perf_opt.workload.models.repeated_step import RepeatedStep, cache_length
    from llm_perf_opt.workload.models.snapshot import (
        find_config_problems,
        find_size_problems,
        find_weight_problems,
        load_tokenizer,
        read_config,
        show_text,
        stored_dtype,
    )
    from llm_perf_opt.workload.watcher import WorkloadWatcher

__all__ = [
    "AppConfig",
    "CausalLMAdapter",
    "ChartBand",
    "Choice",
    "ClockSample",
    "CommandFailed",
    "CommandRecord",
    "CommandResult",
    "CommandRunner",
    "ConfigError",
    "CounterDocument",
    "CounterSpan",
    "CounterTrack",
    "DenseMlp",
    "Dtypes",
    "Fields",
    "Gpu",
    "GpuSamples",
    "GroupedAttention",
    "Host",
    "InferSection",
    "Layer",
    "Link",
    "LoadedModel",
    "LoadedRun",
    "Metric",
    "Model",
    "ModelAdapter",
    "ModelSection",
    "NoiseSource",
    "Obstacle",
    "PageFiles",
    "PagePrompt",
    "ParseError",
    "Picture",
    "Preview",
    "Problem",
    "ProfilingError",
    "RangeFactory",
    "RepeatedStep",
    "RunManifest",
    "RunTable",
    "Sample",
    "Section",
    "SectionTable",
    "Shape",
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
    "View",
    "Work",
    "WorkloadRun",
    "WorkloadSpan",
    "WorkloadWatcher",
    "begin_step",
    "build_decoder",
    "cache_length",
    "choose_dtype",
    "draw_chart",
    "fill_matrices",
    "find_config_problems",
    "find_size_problems",
    "find_weight_problems",
    "group_modules",
    "linear",
    "linear_params",
    "load_run",
    "load_tokenizer",
    "mark_warmup",
    "phase",
    "read_config",
    "read_decoder",
    "read_heads",
    "read_manifest",
    "request",
    "require_room",
    "run_workload",
    "sample_gpus",
    "show_text",
    "stored_dtype",
    "text_decode",
    "text_prefill",
    "validate",
    "write_json",
]

_HOMES = {
    "config.load": ("validate",),
    "config.schema": (
        "AppConfig",
        "InferSection",
        "ModelSection",
        "Problem",
        "StageConfig",
    ),
    "core.documents": (
        "ClockSample",
        "CounterDocument",
        "CounterSpan",
        "CounterTrack",
    ),
    "core.host": (
        "Gpu",
        "Host",
        "Tool",
    ),
    "core.manifest": (
        "RunManifest",
        "read_manifest",
        "write_json",
    ),
    "core.records": (
        "CommandRecord",
        "Metric",
        "StageFile",
        "StageOutput",
        "StageRecord",
        "StageTraits",
        "begin_step",
    ),
    "core.sections": (
        "Link",
        "Picture",
        "Section",
        "SectionTable",
    ),
    "core.stage": (
        "CommandRunner",
        "Obstacle",
        "Preview",
        "Stage",
        "StageContext",
        "StageFailed",
    ),
    "errors": (
        "CommandFailed",
        "ConfigError",
        "ParseError",
        "ProfilingError",
        "StageSkipped",
        "ToolError",
    ),
    "marks": (
        "mark_warmup",
        "phase",
        "request",
    ),
    "model.families.known": ("read_decoder",),
    "model.hardware.work": (
        "Dtypes",
        "PagePrompt",
        "Shape",
        "View",
        "Work",
        "linear",
        "linear_params",
    ),
    "model.static.config_json": (
        "Fields",
        "build_decoder",
        "read_heads",
    ),
    "model.static.parts": (
        "DenseMlp",
        "GroupedAttention",
        "Layer",
        "Model",
    ),
    "pipeline.loaded_run": (
        "LoadedRun",
        "RunTable",
        "load_run",
    ),
    "profiling.workload_run": (
        "WorkloadRun",
        "WorkloadSpan",
        "run_workload",
    ),
    "report.draw": (
        "ChartBand",
        "draw_chart",
    ),
    "system.nvml": (
        "GpuSamples",
        "sample_gpus",
    ),
    "system.process": ("CommandResult",),
    "workload.models.base": (
        "LoadedModel",
        "ModelAdapter",
        "PageFiles",
        "RangeFactory",
        "Sample",
        "StepOutput",
    ),
    "workload.models.causal_lm": ("CausalLMAdapter",),
    "workload.models.meta_run": (
        "text_decode",
        "text_prefill",
    ),
    "workload.models.module_groups": ("group_modules",),
    "workload.models.random_weights": (
        "NoiseSource",
        "fill_matrices",
        "require_room",
    ),
    "workload.models.registry": (
        "Choice",
        "choose_dtype",
    ),
    "workload.models.repeated_step": (
        "RepeatedStep",
        "cache_length",
    ),
    "workload.models.snapshot": (
        "find_config_problems",
        "find_size_problems",
        "find_weight_problems",
        "load_tokenizer",
        "read_config",
        "show_text",
        "stored_dtype",
    ),
    "workload.watcher": ("WorkloadWatcher",),
}


def __getattr__(name: str) -> "Any":
    for module, names in _HOMES.items():
        if name in names:
            # Kept, so that a name used in a loop is searched once.
            return globals().setdefault(name, getattr(import_module(f"llm_perf_opt.{module}"), name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

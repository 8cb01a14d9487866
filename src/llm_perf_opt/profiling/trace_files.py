"""Writes what a report needs of a torch trace: kernels and ranges, the tree of modules, and a window to draw."""

from dataclasses import asdict
from pathlib import Path

from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.records import StageFile


def trace_files(trace: Path) -> list[StageFile]:
    """analysis.json and timeline.json beside the trace; nothing when there is none."""
    if not trace.is_file():
        return []
    # numpy is imported only when a stage has run.
    from llm_perf_opt.analysis.capture import analysis_object, analyze_timelines
    from llm_perf_opt.analysis.module_tree import module_tree
    from llm_perf_opt.analysis.timeline_window import timeline_window
    from llm_perf_opt.profiling.capture_files import write_timeline
    from llm_perf_opt.profiling.parsers.torch_trace import read_torch_trace
    from llm_perf_opt.profiling.parsers.trace_memory import memory_counters

    found = read_torch_trace(trace)
    tree = module_tree(found.timeline, found.operators)
    content = analysis_object(analyze_timelines([found.timeline])) | {"tree": asdict(tree)}
    window = timeline_window(found.timeline, found.operators)
    window["memory"] = memory_counters(trace, tuple(window["window_ns"]))
    return [
        StageFile(role="analysis_json", path=write_json(trace.parent / "analysis.json", content)),
        write_timeline(trace.parent, window),
    ]

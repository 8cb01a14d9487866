"""Decodes the trace of a profiled pass, once, and writes all that is made of it."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.core.documents import MetricsDocument
from llm_perf_opt.core.names import KERNELS_CSV, OPERATORS_CSV, OPERATORS_MD
from llm_perf_opt.core.records import StageFile

if TYPE_CHECKING:
    from llm_perf_opt.analysis.module_tree import ModuleShares

TRACE_FILE = "trace.json.gz"
NO_PHASE = "the trace holds no range of a phase (activities without cpu)"


@dataclass(frozen=True, kw_only=True)
class TraceFiles:
    """What a report reads of the trace; the modules' shares; whether anything ran on a device."""

    files: tuple[StageFile, ...]
    shares: "ModuleShares"
    has_device: bool

    def add_modules(self, metrics: MetricsDocument) -> MetricsDocument:
        """With the modules' shares: by device time where there is any, else by CPU time."""
        cpu, device = self.shares.cpu, self.shares.device
        best = device or cpu
        return replace(
            metrics,
            modules=best,
            modules_by=None if best is None else ("device_time" if device is not None else "cpu_time"),
            modules_cpu=cpu,
            modules_device=device,
            modules_reason=NO_PHASE if best is None else None,
        )


def write_trace_files(trace: Path, *, by_shape: bool, pass_note: str) -> TraceFiles:
    """Beside the trace: operators.csv and .md, kernels.csv, analysis.json with the tree of modules, timeline.json."""
    # numpy is imported only when a stage has run.
    from llm_perf_opt.analysis.capture import analyze_timelines
    from llm_perf_opt.analysis.module_tree import module_shares, module_tree
    from llm_perf_opt.analysis.operators import ProfiledOperators
    from llm_perf_opt.analysis.timeline_window import timeline_window
    from llm_perf_opt.analysis.trace_memory import memory_counters
    from llm_perf_opt.profiling import trace_tables
    from llm_perf_opt.profiling.capture_files import write_capture, write_timeline
    from llm_perf_opt.profiling.parsers.torch_trace import read_torch_trace

    found = read_torch_trace(trace, detailed=True)
    timeline, detail, folder = found.timeline, found.detail, trace.parent
    assert detail is not None
    has_device = len(timeline.kernels) + len(timeline.copies) > 0
    operators = ProfiledOperators(timeline, found.operators, detail)
    by_name = operators.rows(by_shape=False)
    rows = operators.rows(by_shape=True) if by_shape else by_name
    recorded = trace_tables.Recorded(device=has_device, memory=len(detail.memory) > 0, shapes=by_shape)
    trace_tables.write_operator_csv(folder / OPERATORS_CSV, rows, recorded)
    trace_tables.write_operator_md(folder / OPERATORS_MD, by_name, rows, recorded, pass_note=pass_note)
    if has_device:
        trace_tables.write_kernel_csv(folder / KERNELS_CSV, timeline)
    analysis = replace(analyze_timelines([timeline]), tree=module_tree(timeline, found.operators))
    window = timeline_window(timeline, found.operators)
    window = replace(window, memory=memory_counters(detail.memory, window.window_ns))
    return TraceFiles(
        files=(write_capture(folder, analysis), write_timeline(folder, window)),
        shares=module_shares(timeline, found.operators),
        has_device=has_device,
    )

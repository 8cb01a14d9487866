"""Operator and kernel tables of a profiled pass as CSV and Markdown files.

Decodes the trace of a profiled pass, once, and writes all that is made of it.
"""

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from llm_perf_opt.capture.operators import ProfiledRow
from llm_perf_opt.capture.tables import group_statistics
from llm_perf_opt.capture.timeline import Timeline
from llm_perf_opt.core.documents import MetricsDocument
from llm_perf_opt.core.markdown import code, table
from llm_perf_opt.core.names import KERNELS_CSV, OPERATORS_CSV, OPERATORS_MD
from llm_perf_opt.core.records import StageFile
from llm_perf_opt.system.terminal import cut_text, printable

if TYPE_CHECKING:
    from llm_perf_opt.capture.operators import ModuleShares


SHOWN = 40
SHAPES_SHOWN = 80
NAME_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """What the trace holds besides CPU times. Columns of what it does not hold stay empty; they are not zero."""

    device: bool
    memory: bool
    shapes: bool


def write_operator_csv(path: Path, rows: Sequence[ProfiledRow], recorded: Recorded) -> Path:
    """Every operator; the columns of `llm-perf analyze`, with shapes and memory."""
    header = ["name", *(["input_shapes"] if recorded.shapes else []), "calls", "self_cpu_ns", "total_cpu_ns"]
    header += ["self_device_ns", "total_device_ns", "self_cpu_memory_bytes", "self_device_memory_bytes"]
    return _write(path, header, (_operator_cells(row, recorded) for row in rows))


def write_kernel_csv(path: Path, timeline: Timeline) -> Path:
    """Every kernel, copy and fill by name, the most time first; shares are of the time of all of them."""
    work = (timeline.kernels, timeline.copies)
    found = group_statistics(
        np.concatenate([w.name for w in work]), np.concatenate([w.end_ns - w.start_ns for w in work])
    )
    names = [timeline.names[code] for code in found.group.tolist()]
    totals, counts = found.total.tolist(), found.instances.tolist()
    least, most, whole = found.least.tolist(), found.most.tolist(), sum(totals)
    rows = []
    for i in sorted(range(len(names)), key=lambda i: (-totals[i], names[i])):
        times = [_us(totals[i]), _us(totals[i] / counts[i]), _us(least[i]), _us(most[i])]
        rows.append([names[i], counts[i], *times, f"{totals[i] / whole if whole else 0.0:.6f}"])
    return _write(path, ["name", "launches", "total_us", "mean_us", "min_us", "max_us", "share"], rows)


def write_operator_md(
    path: Path, by_name: Sequence[ProfiledRow], rows: Sequence[ProfiledRow], recorded: Recorded, *, pass_note: str
) -> Path:
    """The operators that matter, by device time where there is any and by CPU time; by name, then by input shapes."""
    parts = ["# Operators", "", pass_note, ""]
    tables = [("", by_name)] + ([(", by input shapes", rows)] if recorded.shapes else [])
    for suffix, listed in tables:
        if recorded.device:
            parts += _section(
                f"By device time{suffix}", "of operators' device time", listed, lambda r: r.self_device_ns, recorded
            )
        parts += _section(f"By CPU time{suffix}", "of operator time", listed, lambda r: r.self_cpu_ns, recorded)
    path.write_text(printable("\n".join(parts)), encoding="utf-8")
    return path


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows([printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return path


def _operator_cells(row: ProfiledRow, recorded: Recorded) -> list[object]:
    cells: list[object] = [row.name, *([row.input_shapes] if recorded.shapes else []), row.calls]
    cells += [row.self_cpu_ns, row.total_cpu_ns]
    cells += [row.self_device_ns, row.total_device_ns] if recorded.device else ["", ""]
    cells += [row.self_cpu_memory_bytes if recorded.memory else ""]
    cells += [row.self_device_memory_bytes if recorded.memory and recorded.device else ""]
    return cells


def _section(
    title: str, share_of: str, rows: Sequence[ProfiledRow], amount: Callable[[ProfiledRow], int], recorded: Recorded
) -> list[str]:
    whole = sum(amount(row) for row in rows)
    top = sorted(rows, key=amount, reverse=True)[:SHOWN]
    by_shape = any(row.input_shapes is not None for row in rows)
    columns = ["operator", *(["input shapes"] if by_shape else []), "calls", share_of, "self CPU ms", "total CPU ms"]
    columns += ["self device ms", "total device ms"] if recorded.device else []
    numbers = [c for c in columns if c not in ("operator", "input shapes")]
    shown = []
    for row in top:
        cells = [_code(row.name, NAME_SHOWN), *([_code(row.input_shapes or "", SHAPES_SHOWN)] if by_shape else [])]
        cells += [f"{row.calls:,}", f"{100 * amount(row) / whole:.1f} %" if whole else "–"]
        cells += [_ms(row.self_cpu_ns), _ms(row.total_cpu_ns)]
        cells += [_ms(row.self_device_ns), _ms(row.total_device_ns)] if recorded.device else []
        shown.append(cells)
    lines = [f"## {title}", "", *table(columns, shown, right=numbers)]
    if len(rows) > SHOWN:
        lines += ["", f"{len(rows) - SHOWN} more rows are left out here; operators.csv has them all."]
    return [*lines, ""]


def _code(text: str, most: int) -> str:
    return code(cut_text(text, most)) if text else ""


def _us(ns: float) -> str:
    return f"{ns / 1e3:.3f}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f}"


TRACE_FILE = "trace.json.gz"
NO_PHASE = "the trace holds no range of a phase"


@dataclass(frozen=True, kw_only=True)
class TraceFiles:
    """What a report reads of the trace; the modules' shares; whether anything ran on a device, and any operator."""

    files: tuple[StageFile, ...]
    shares: "ModuleShares"
    has_device: bool
    has_operators: bool

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


def write_trace_files(
    trace: Path, *, by_shape: bool, pass_note: str, phases: Mapping[str, tuple[str, ...]] | None = None
) -> TraceFiles:
    """Write operators.csv and .md, kernels.csv, analysis.json (with modules) and timeline.json next to the trace."""
    # numpy is imported only when a stage has run.
    from llm_perf_opt.capture.allocator_memory import memory_counters
    from llm_perf_opt.capture.operators import ProfiledOperators, module_shares, module_tree
    from llm_perf_opt.capture.ranges import with_phases
    from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
    from llm_perf_opt.capture.window import OperatorInputs, timeline_window
    from llm_perf_opt.diagnosis.analyze import RecordedCapture, analyze_captures
    from llm_perf_opt.profiling import trace_tables
    from llm_perf_opt.profiling.capture_files import write_capture, write_timeline

    found = read_torch_trace(trace, detailed=True)
    timeline, detail, folder = with_phases(found.timeline, phases or {}), found.detail, trace.parent
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
    capture = RecordedCapture(
        timeline=timeline,
        operators=found.operators,
        modules=found.modules,
        counters=tuple(found.counters),
        detail=detail,
    )
    analysis = replace(analyze_captures([capture]).analysis, tree=module_tree(timeline, found.operators))
    inputs = OperatorInputs(texts=detail.shapes, index=detail.shape)
    window = timeline_window(timeline, found.operators, inputs=inputs)
    window = replace(window, memory=memory_counters(detail.memory, window.window_ns))
    return TraceFiles(
        files=(write_capture(folder, analysis), write_timeline(folder, window)),
        shares=module_shares(timeline, found.operators),
        has_device=has_device,
        has_operators=len(by_name) > 0,
    )

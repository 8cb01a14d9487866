"""Writes what was found in a capture: analysis.json and the tables alongside it."""

import csv
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llm_perf_opt.capture.operators import OperatorRow
from llm_perf_opt.capture.readers.nsys_summary import write_kernel_summary
from llm_perf_opt.capture.window import OperatorInputs, TimelineWindow, timeline_window
from llm_perf_opt.core.manifest import strict_json, write_json
from llm_perf_opt.core.names import ANALYSIS_FILE, DECODE_STEP, PHASES, TIMELINE_FILE
from llm_perf_opt.core.records import Metric, StageFile
from llm_perf_opt.core.units import count_of
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.diagnosis.evidence import Measured
from llm_perf_opt.system.terminal import printable

# One row per range instance is useful up to a point; beyond it the file would be larger than the capture.
MAX_IDLE_ROWS = 100_000
RANGE_COLUMNS = (
    "range", "style", "parent", "instances", "wall_ns", "kernel_count", "graph_launches", "gpu_busy_ns", "gpu_idle_ns",
    "launch_calls", "launch_ns", "waiting_for_host_ns", "between_kernels_ns", "waiting_for_copy_or_sync_ns",
    "unattributed_ns", "last_wall_ns", "last_kernel_count", "last_gpu_busy_ns", "last_gpu_idle_ns",
)  # fmt: skip
IDLE_COLUMNS = (
    "source", "range", "start_ns", "wall_ns", "gpu_idle_ns", "waiting_for_host_ns", "between_kernels_ns", "copy_ns",
    "sync_ns", "unattributed_ns",
)  # fmt: skip


def write_analysis(
    out_dir: Path, analysis: CaptureAnalysis, measured: Sequence[Measured], inputs: OperatorInputs | None = None
) -> list[StageFile]:
    """All files of an analysis, in the stage's directory. `inputs` are those of the last capture's operators."""
    out_dir.mkdir(parents=True, exist_ok=True)
    summary = write_kernel_summary(out_dir / "summary_cuda_gpu_kern_sum.csv", analysis.kernels)
    stable = Path(shutil.copyfile(summary, out_dir / "summary.csv"))
    last = [one.timeline for one in measured[-1:]]
    windows = [timeline_window(one, one.operators if len(one.operators) else None, inputs=inputs) for one in last]
    drawn = [write_timeline(out_dir, window) for window in windows]
    return [
        *drawn,
        write_capture(out_dir, analysis),
        StageFile(role="kernel_summary", path=summary),
        StageFile(role="kernel_summary", path=stable),
        StageFile(role="nvtx_ranges", path=_write(out_dir / "nvtx_ranges.csv", RANGE_COLUMNS, _range_rows(analysis))),
        StageFile(role="gpu_idle", path=_write(out_dir / "gpu_idle.csv", IDLE_COLUMNS, _idle_rows(measured))),
    ]


def write_capture(out_dir: Path, analysis: CaptureAnalysis) -> StageFile:
    """The analysis itself."""
    path = write_json(out_dir / ANALYSIS_FILE, msgspec.to_builtins(analysis))
    return StageFile(role="analysis_json", path=path)


def write_timeline(out_dir: Path, window: TimelineWindow) -> StageFile:
    """The few steps a report draws."""
    path = out_dir / TIMELINE_FILE
    text = strict_json(msgspec.to_builtins(window), separators=(",", ":"))
    path.write_text(text, encoding="utf-8")
    return StageFile(role="timeline_json", path=path)


def write_operators(path: Path, rows: Sequence[OperatorRow]) -> Path:
    """The operators of a torch trace."""
    columns = [field.name for field in fields(OperatorRow)]
    return _write(path, columns, (astuple(row) for row in rows))


def capture_metrics(analysis: CaptureAnalysis, *, source: str, kind: str) -> dict[str, Metric]:
    """The headline numbers for the manifest."""
    gpu = analysis.gpu
    how = f"{kind} capture, {count_of(len(analysis.sources), 'file')}"
    if not gpu.kernel_count and not analysis.graphs.launches_traced_as_a_whole:
        names = ("kernel_count", "kernel_ns", "gpu_busy_ns", "gpu_idle_ns")
        reason = "no GPU kernel was recorded"
        return {n: Metric(value=None, unit=_unit(n), how=how, source=source, reason=reason) for n in names}
    if gpu.busy_ns is None or gpu.idle_ns is None or gpu.idle is None:
        given = {"kernel_count": gpu.kernel_count, "kernel_ns": gpu.kernel_ns}
        return {n: Metric(value=v, unit=_unit(n), how=how, source=source) for n, v in given.items()}
    values = {
        "kernel_count": gpu.kernel_count,
        "kernel_ns": gpu.kernel_ns,
        "gpu_busy_ns": gpu.busy_ns,
        "gpu_idle_ns": gpu.idle_ns,
        "idle_waiting_for_host_ns": gpu.idle.waiting_for_host_ns,
        "idle_between_kernels_ns": gpu.idle.between_kernels_ns,
        "idle_waiting_for_copy_or_sync_ns": gpu.idle.waiting_for_copy_or_sync_ns,
    }
    found = {n: Metric(value=v, unit=_unit(n), how=how, per="whole capture", source=source) for n, v in values.items()}
    for row in analysis.ranges:
        if row.name in (*PHASES, DECODE_STEP):
            one = row.typical
            per = f"one {row.name}, the median of {row.instances} by wall time, under the profiler"
            for name, value in (
                ("wall_ns", one.wall_ns),
                ("kernel_count", one.kernel_count),
                ("gpu_busy_ns", one.gpu_busy_ns),
                ("gpu_idle_ns", one.gpu_idle_ns),
            ):
                found[f"{row.name}_{name}"] = Metric(value=value, unit=_unit(name), how=how, per=per, source=source)
    return found


def _unit(name: str) -> str:
    return "ns" if name.endswith("_ns") else "count"


def _range_rows(analysis: CaptureAnalysis) -> Iterable[Sequence[Any]]:
    """GPU times stay empty where no GPU work was recorded."""
    for r in analysis.ranges:
        causes: Sequence[int | None] = (None,) * 4
        if r.idle is not None:
            causes = (
                r.idle.waiting_for_host_ns,
                r.idle.between_kernels_ns,
                r.idle.waiting_for_copy_or_sync_ns,
                r.idle.unattributed_ns,
            )
        yield (
            *(r.name, r.style, r.parent, r.instances, r.wall_ns, r.kernel_count, r.graph_launches),
            *(r.gpu_busy_ns, r.gpu_idle_ns, r.launch_calls, r.launch_ns, *causes),
            *(r.last.wall_ns, r.last.kernel_count, r.last.gpu_busy_ns, r.last.gpu_idle_ns),
        )


def _idle_rows(measured: Sequence[Measured]) -> Iterable[Sequence[Any]]:
    """One row per range instance in order of time; of many only the last ones, without GPU work none."""
    if not any(one.timeline.has_gpu_work for one in measured):
        return
    for one in measured:
        timeline, found, split = one.timeline, one.ranges, one.ranges.idle
        for i in np.argsort(found.start_ns, kind="stable")[-MAX_IDLE_ROWS:]:
            yield (
                timeline.source, timeline.names[found.name[i]], found.start_ns[i], found.wall_ns[i], split.idle_ns[i],
                split.host_ns[i], split.between_ns[i], split.copy_ns[i], split.sync_ns[i], split.unattributed_ns[i],
            )  # fmt: skip


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows([printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows)
    return path

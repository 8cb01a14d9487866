"""Reads the files given to `llm-perf analyze` and analyses them together."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from llm_perf_opt.capture.graphs import attribute_replays, graph_reference
from llm_perf_opt.capture.ranks.identify import Kind
from llm_perf_opt.capture.readers.kinds import NCU, NSYS, ROCPD, SNAPSHOT, SUMMARY, TORCH, is_ascend
from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.core.units import count_of
from llm_perf_opt.diagnosis.analyze import RecordedCapture, analyze_captures
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.diagnosis.evidence import Measured
from llm_perf_opt.errors import ParseError, ToolError

if TYPE_CHECKING:
    from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis
    from llm_perf_opt.capture.readers.torch_trace import TorchTrace
    from llm_perf_opt.capture.window import OperatorInputs


EXPORT_TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True)
class AnalyzedCaptures:
    """The analysis, the captures it is of, and what was reported while reading. `ncu` is alongside the analysis too.

    `inputs` are the input shapes of the operators of the last trace, where they were recorded.
    """

    kind: str
    analysis: CaptureAnalysis
    measured: tuple[Measured, ...]
    notes: tuple[str, ...]
    ncu: "NcuAnalysis | None"
    inputs: "OperatorInputs | None" = None


@dataclass(frozen=True, kw_only=True)
class ReadFiles:
    """Captures as read, and the notes of reading. `summary` is a kernel summary, which is not a capture."""

    kind: str
    captures: tuple[RecordedCapture, ...]
    notes: tuple[str, ...]
    ncu: "NcuAnalysis | None" = None
    inputs: "OperatorInputs | None" = None
    summary: Path | None = None


def read_captures(
    files: Sequence[Path],
    kinds: Sequence[str],
    scratch: Path,
    *,
    files_are: Kind | None = None,
    detailed: bool = False,
    graphs_from: Path | None = None,
) -> AnalyzedCaptures:
    """Read and analyze all files of one run, as `read_files` and `analyze_files` do."""
    return analyze_files(
        read_files(files, kinds, scratch, detailed=detailed), files_are=files_are, graphs_from=graphs_from
    )


def read_files(files: Sequence[Path], kinds: Sequence[str], scratch: Path, *, detailed: bool = False) -> ReadFiles:
    """Read all files of one run. `scratch` takes exports of .nsys-rep files.

    `detailed` reads what is slow to read also from long traces.
    """
    if SNAPSHOT in kinds:
        snapshot = files[list(kinds).index(SNAPSHOT)]
        raise ParseError(f"{snapshot}: a memory snapshot, which holds no times of kernels; `llm-perf analyze` reads it")
    by_kind = {kind: [f for f, k in zip(files, kinds, strict=True) if k == kind] for kind in dict.fromkeys(kinds)}
    kind = next((k for k in kinds if k != NCU), NCU)
    captures: list[RecordedCapture] = []
    notes: list[str] = []
    inputs: OperatorInputs | None = None
    if kind == NSYS:
        captures, notes = _read_nsys(by_kind[NSYS], scratch)
    elif kind == ROCPD:
        captures = _read_rocpd(by_kind[ROCPD])
    elif kind == TORCH:
        captures, notes, inputs = _read_torch(by_kind[TORCH], detailed=detailed)
    return ReadFiles(
        kind=kind,
        captures=tuple(captures),
        notes=tuple(notes),
        ncu=_read_ncu(by_kind[NCU]) if NCU in by_kind else None,
        inputs=inputs,
        summary=by_kind[SUMMARY][0] if kind == SUMMARY else None,
    )


def analyze_files(
    read: ReadFiles, *, files_are: Kind | None = None, graphs_from: Path | None = None
) -> AnalyzedCaptures:
    """Analyze what was read. `files_are` decides what several are, `graphs_from` is a trace of what graphs replay."""
    summary = None if read.summary is None else _read_summary(read.summary)
    analyzed = analyze_captures(
        read.captures, files_are=files_are, ncu=read.ncu, summary=() if summary is None else summary.kernels
    )
    analysis, said = add_graph_replays(analyzed.analysis, analyzed.measured, graphs_from)
    notes = [*read.notes, *said, *analyzed.notes]
    if read.summary is not None and summary is not None:
        analysis = _from_summary(analysis, read.summary, summary)
    ncu = None if analysis.ncu is UNSET else analysis.ncu
    if ncu is not None:
        notes += [f"ncu: {note}" for note in ncu.notes]
    return AnalyzedCaptures(
        kind=read.kind,
        analysis=analysis,
        measured=analyzed.measured,
        notes=tuple(notes),
        ncu=ncu,
        inputs=read.inputs,
    )


def _read_nsys(files: Sequence[Path], scratch: Path) -> tuple[list[RecordedCapture], list[str]]:
    from llm_perf_opt.capture.ranges import with_phases
    from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite

    captures: list[RecordedCapture] = []
    notes: list[str] = []
    for index, path in enumerate(files):
        sqlite = path
        if path.suffix in (".nsys-rep", ".qdrep"):
            sqlite, said = _export(path, scratch / f"{index}")
            notes += said
        captures.append(RecordedCapture(timeline=with_phases(replace(read_nsys_sqlite(sqlite), source=str(path)), {})))
    return captures, notes


def _read_rocpd(files: Sequence[Path]) -> list[RecordedCapture]:
    from llm_perf_opt.capture.ranges import with_phases
    from llm_perf_opt.capture.readers.rocpd import read_rocpd

    return [RecordedCapture(timeline=with_phases(replace(read_rocpd(path), source=str(path)), {})) for path in files]


def _export(report: Path, folder: Path) -> tuple[Path, list[str]]:
    """Export a report with nsys; without nsys, an export alongside it that is not older is used and said."""
    from llm_perf_opt.capture.readers.nsys_log import import_notes
    from llm_perf_opt.profiling.nsys.scrub import export_problem
    from llm_perf_opt.profiling.vendor.nsys import build_nsys_export_cmd
    from llm_perf_opt.system.process import allowed_environment, run_command

    nsys = shutil.which("nsys")
    beside = report.with_suffix(".sqlite")
    if nsys is None:
        if beside.is_file() and beside.stat().st_mtime >= report.stat().st_mtime:
            return beside, [f"{report}: nsys is not installed, its export {beside.name} was read instead"]
        raise ToolError(
            f"{report}: reading a report needs nsys, which is not installed; where it is, run "
            f"`nsys export --type sqlite {report.name}` and analyse the .sqlite"
        )
    folder.mkdir(parents=True)
    sqlite, log = folder / beside.name, folder / "export.log"
    result = run_command(
        build_nsys_export_cmd(report.resolve(), sqlite, nsys=nsys),
        env=allowed_environment(os.environ),
        timeout_s=EXPORT_TIMEOUT_S,
        log=log,
    )
    if not result.ok or not sqlite.is_file():
        problem = export_problem(report, result.timed_out, result.exit_code, result.tail)
        # An nsys that ends by itself refuses the file; one that was ended (too slow, out of memory) says nothing of it.
        refused = result.exit_code is not None and result.exit_code >= 0
        raise ParseError(problem) if refused else ToolError(problem)
    return sqlite, [f"{report}: {note}" for note in import_notes(log.read_text(errors="replace"))]


def _read_torch(
    files: Sequence[Path], *, detailed: bool
) -> tuple[list[RecordedCapture], list[str], "OperatorInputs | None"]:
    from llm_perf_opt.capture.ranges import with_phases
    from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
    from llm_perf_opt.capture.readers.trace_workers import is_long
    from llm_perf_opt.capture.window import OperatorInputs

    captures: list[RecordedCapture] = []
    notes: list[str] = []
    for path in files:
        ascend = is_ascend(path)
        trace = _read_ascend(path) if ascend else read_torch_trace(path, detailed=detailed or not is_long(path))
        captures.append(
            RecordedCapture(
                timeline=with_phases(replace(trace.timeline, source=str(path)), {}),
                operators=trace.operators,
                modules=trace.modules,
                counters=tuple(trace.counters),
                detail=trace.detail,
            )
        )
        if trace.counters:
            counted = sum(row.instances for row in trace.counters)
            notes.append(
                f"{path}: {count_of(counted, 'kernel')} recorded with hardware counters and without their own times: "
                "the profiler runs each of them several times to count"
            )
        if trace.detail is None and not ascend:
            notes.append(f"{path}: a long trace; give --detail for shapes, sizes of collectives, memory and Python")
        if not len(trace.modules):
            notes.append(f"{path}: no module ranges (record with with_stack or with_modules to see them)")
    detail = captures[-1].detail
    inputs = None if detail is None else OperatorInputs(texts=detail.shapes, index=detail.shape)
    return captures, notes, inputs


def _read_ascend(path: Path) -> "TorchTrace":
    from llm_perf_opt.capture.readers.ascend import read_ascend_trace

    return read_ascend_trace(path)


@dataclass(frozen=True, kw_only=True)
class _Summary:
    kernels: tuple[KernelRow, ...]
    notes: tuple[str, ...]


def _read_summary(path: Path) -> _Summary:
    from llm_perf_opt.capture.readers.nsys_stats import read_stats
    from llm_perf_opt.capture.readers.nsys_summary import summary_notes, to_kernel_rows

    stats = read_stats(path)
    return _Summary(
        kernels=to_kernel_rows(stats.rows, source=str(path)), notes=(*summary_notes(stats.rows), *stats.notes)
    )


def _from_summary(found: CaptureAnalysis, path: Path, summary: _Summary) -> CaptureAnalysis:
    """A kernel summary has kernels and nothing else."""
    from llm_perf_opt.diagnosis.diagnosis_document import SourceRow

    kernels = summary.kernels
    count, time_ns = sum(k.instances for k in kernels), sum(k.total_ns for k in kernels)
    source = SourceRow(
        path=str(path),
        kind=SUMMARY,
        producer=None,
        schema=None,
        kernel_count=count,
        kernel_names=len({k.name for k in kernels}),
        kernel_ns=time_ns,
        gpu_busy_ns=None,
        gpu_span_ns=None,
        range_count=0,
        notes=(),
    )
    return replace(
        found,
        sources=(source,),
        gpu=replace(found.gpu, kernel_count=count, kernel_ns=time_ns),
        notes=(
            f"{path}: a kernel summary holds no times of day, so there is no busy or idle time and no range",
            *(f"{path}: {note}" for note in summary.notes),
        ),
    )


def _read_ncu(files: Sequence[Path]) -> "NcuAnalysis":
    from llm_perf_opt.capture.kernels.ncu_analysis import analyze_ncu
    from llm_perf_opt.capture.readers.ncu_csv import merge_launches
    from llm_perf_opt.capture.readers.ncu_report import load_ncu

    return analyze_ncu(merge_launches(load_ncu(path) for path in files))


def add_graph_replays(
    analysis: CaptureAnalysis, measured: Sequence[Measured], reference: Path | None
) -> tuple[CaptureAnalysis, list[str]]:
    """The analysis with what graphs replay, as another trace names it; and what to say where that did not help."""
    replayed = [(m.timeline, count) for m in measured if (count := m.timeline.replayed_count)]
    if reference is None:
        return analysis, [
            f"{timeline.source}: {count_of(count, 'kernel')} of graph replays without an operator; a trace of the "
            "graph's capture, or of a run without graphs, given as --graphs-from says to which"
            for timeline, count in replayed
        ]
    from llm_perf_opt.capture.readers.torch_trace import read_torch_trace

    trace = read_torch_trace(reference)
    known = graph_reference(replace(trace.timeline, source=str(reference)), trace.modules)
    found = [attribute_replays(timeline, known) for timeline, _ in replayed]
    if not replayed:
        return analysis, [f"{reference}: not used, no kernel of the captures was launched by a graph"]
    return replace(analysis, graph_replays=tuple(one for one in found if one is not None)), []

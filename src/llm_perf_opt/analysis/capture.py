"""Timelines in, everything `llm-perf analyze` says about them out."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from llm_perf_opt.analysis.findings.finding import Finding, FindingRecord
from llm_perf_opt.analysis.findings.rules import diagnose_ranges
from llm_perf_opt.analysis.idle import IdleMap, map_idle
from llm_perf_opt.analysis.kernel_table import CopyRow, KernelRow, copy_rows, kernel_rows
from llm_perf_opt.analysis.range_table import RangeRow, range_rows
from llm_perf_opt.analysis.ranges import RangeInstances, measure_ranges
from llm_perf_opt.analysis.timeline import Timeline, distinct

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class SourceRow:
    """One capture given, and its own totals; no busy time where the file holds no times of day."""

    path: str
    kind: str
    producer: str | None
    schema: str | None
    kernel_count: int
    kernel_names: int
    kernel_ns: int
    gpu_busy_ns: int | None
    gpu_span_ns: int | None
    range_count: int
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CaptureAnalysis:
    """The whole result. `instances` stays in columns; the rest is rows."""

    sources: tuple[SourceRow, ...]
    gpu: Mapping[str, Any]
    kernels: tuple[KernelRow, ...]
    copies: tuple[CopyRow, ...]
    graphs: Mapping[str, int]
    ranges: tuple[RangeRow, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    measured: tuple[tuple[Timeline, RangeInstances], ...]

    @property
    def gpu_seen(self) -> bool:
        """Whether any GPU work was recorded; without it busy and idle times would be made up."""
        return any(len(t.kernels) or len(t.copies) or len(t.graphs) for t, _ in self.measured)


def analyze_timelines(timelines: Sequence[Timeline]) -> CaptureAnalysis:
    """Analyse one capture, or several repetitions of one: each by itself, and in total."""
    maps = [map_idle(t) for t in timelines]
    measured = tuple((t, measure_ranges(t, m)) for t, m in zip(timelines, maps, strict=True))
    ranges = range_rows(measured)
    source = ", ".join(t.source for t in timelines)
    kernels, copies = _tables(timelines)
    sources = tuple(_source(t, len(m), idle) for (t, m), idle in zip(measured, maps, strict=True))
    return CaptureAnalysis(
        sources=sources,
        gpu=_gpu(timelines, maps, sources),
        kernels=kernels,
        copies=copies,
        graphs={
            "launches_traced_as_a_whole": sum(len(t.graphs) for t in timelines),
            "total_ns": sum(int((t.graphs.end_ns - t.graphs.start_ns).sum()) for t in timelines),
        },
        ranges=ranges,
        findings=diagnose_ranges(ranges, source=source),
        notes=tuple(note for t, m in measured for note in _notes(t, m)),
        measured=measured,
    )


def _tables(timelines: Sequence[Timeline]) -> tuple[tuple[KernelRow, ...], tuple[CopyRow, ...]]:
    """Kernels and copies of all captures together, under shared name codes."""
    if len(timelines) == 1:
        only = timelines[0]
        time_ns = only.kernels.end_ns - only.kernels.start_ns
        return kernel_rows(only.names, only.kernels.name, time_ns), copy_rows(only.names, only.copies)
    if not timelines:
        return (), ()
    names: dict[str, int] = {}
    recode = [np.array([names.setdefault(n, len(names)) for n in t.names], np.int64) for t in timelines]
    group = np.concatenate([r[t.kernels.name] for r, t in zip(recode, timelines, strict=True)])
    time_ns = np.concatenate([t.kernels.end_ns - t.kernels.start_ns for t in timelines])
    shared = tuple(names)
    by_kind: dict[str, list[CopyRow]] = {}
    for t in timelines:
        for row in copy_rows(t.names, t.copies):
            by_kind.setdefault(row.kind, []).append(row)
    copies = tuple(sorted((_merge_copies(rows) for rows in by_kind.values()), key=lambda r: (-r.total_ns, r.kind)))
    return kernel_rows(shared, group, time_ns), copies


def _merge_copies(rows: list[CopyRow]) -> CopyRow:
    count, total = sum(r.instances for r in rows), sum(r.total_ns for r in rows)
    sizes = [r.size_bytes for r in rows if r.size_bytes is not None]
    return CopyRow(
        kind=rows[0].kind,
        instances=count,
        total_ns=total,
        size_bytes=sum(sizes) if len(sizes) == len(rows) else None,
        avg_ns=total / count,
        min_ns=min(r.min_ns for r in rows),
        max_ns=max(r.max_ns for r in rows),
    )


def _source(timeline: Timeline, ranges: int, maps: Mapping[int, IdleMap]) -> SourceRow:
    kernels = timeline.kernels
    seen = any(len(table) for table in (kernels, timeline.copies, timeline.graphs))
    return SourceRow(
        path=timeline.source,
        kind=timeline.kind,
        producer=timeline.producer,
        schema=timeline.schema,
        kernel_count=len(kernels),
        kernel_names=len(distinct(kernels.name)),
        kernel_ns=int((kernels.end_ns - kernels.start_ns).sum()),
        gpu_busy_ns=sum(m.busy.total for m in maps.values()) if seen else None,
        gpu_span_ns=sum(m.span[1] - m.span[0] for m in maps.values()) if seen else None,
        range_count=ranges,
        notes=timeline.notes,
    )


def _gpu(
    timelines: Sequence[Timeline], maps: Sequence[Mapping[int, IdleMap]], sources: Sequence[SourceRow]
) -> dict[str, Any]:
    """The devices; busy and idle time of each process from its first GPU work to its last, added up.

    Captures do not say which of several GPUs a kernel's device number means, so all of them are named.
    """
    devices = list(dict.fromkeys(d for t in timelines for d in t.devices))
    idle = {"waiting_for_host_ns": 0, "between_kernels_ns": 0, "waiting_for_copy_or_sync_ns": 0, "unattributed_ns": 0}
    idle_ns = 0
    for one in (m for by_process in maps for m in by_process.values()):
        start, end = one.span
        split = one.split(np.array([start]), np.array([end]))
        idle_ns += int(split.idle_ns[0])
        idle["waiting_for_host_ns"] += int(split.host_ns[0])
        idle["between_kernels_ns"] += int(split.between_ns[0])
        idle["waiting_for_copy_or_sync_ns"] += int(split.copy_ns[0] + split.sync_ns[0])
        idle["unattributed_ns"] += int(split.unattributed_ns[0])
    tables = [table for t in timelines for table in (t.kernels, t.graphs, t.copies)]
    return {
        "name": ", ".join(dict.fromkeys(d.name for d in devices)) or None,
        "devices": [asdict(d) for d in devices],
        "devices_used": sorted({int(d) for table in tables for d in distinct(table.device) if d >= 0}),
        "kernel_count": sum(s.kernel_count for s in sources),
        "kernel_ns": sum(s.kernel_ns for s in sources),
        "busy_ns": sum(s.gpu_busy_ns or 0 for s in sources),
        "span_ns": sum(s.gpu_span_ns or 0 for s in sources),
        "idle_ns": idle_ns,
        "idle": idle,
    }


def _notes(timeline: Timeline, measured: RangeInstances) -> list[str]:
    """What a reader must know about one capture."""
    prefix = f"{timeline.source}: "
    notes = [prefix + note for note in timeline.notes]
    if not len(timeline.kernels) and not len(timeline.graphs):
        notes.append(prefix + "no GPU kernel was recorded, so there are no GPU times")
    unknown = int((timeline.kernels.call < 0).sum())
    if unknown:
        notes.append(prefix + f"{unknown} kernel(s) have no recorded launch and belong to no range")
    sizes = timeline.copies.size_bytes
    if sizes is not None and (unsized := int((sizes < 0).sum())):
        notes.append(prefix + f"{unsized} copies or sets do not say how many bytes; the sum of their kind is unknown")
    if len(timeline.graphs):
        notes.append(
            prefix
            + f"{len(timeline.graphs)} CUDA graph launch(es) were traced as a whole: their kernels are not listed; "
            "capture with pipeline.nsys.cuda_graph_trace=node to see them"
        )
    if measured.warmup_left_out:
        notes.append(prefix + f"{measured.warmup_left_out} warm-up range(s) are left out of the ranges")
    if measured.repeats_left_out:
        notes.append(
            prefix + f"{measured.repeats_left_out} range(s) inside a range of the same name are counted once, with it"
        )
    found = distinct(timeline.kernels.device)
    devices = int((found >= 0).sum())
    if devices < len(found):
        notes.append(prefix + "some kernels do not say which device ran them")
    if devices > 1:
        notes.append(prefix + f"{devices} devices were used: busy means that at least one of them ran a kernel")
    return notes


def analysis_object(analysis: CaptureAnalysis) -> dict[str, Any]:
    """The object `--json` prints and `analysis.json` holds. Where no GPU work was recorded, GPU times are null."""
    found = _rows_as_objects(analysis)
    if not analysis.gpu_seen:
        found["gpu"] |= dict.fromkeys(("busy_ns", "span_ns", "idle_ns", "idle"))
        for row in found["ranges"]:
            for part in (row, row["last"], row["typical"]):
                part |= dict.fromkeys(("gpu_busy_ns", "gpu_idle_ns", "idle"))
    return found


def _rows_as_objects(analysis: CaptureAnalysis) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "sources": [asdict(s) for s in analysis.sources],
        "gpu": dict(analysis.gpu),
        "kernels": [asdict(k) for k in analysis.kernels],
        "copies": [asdict(c) for c in analysis.copies],
        "graphs": dict(analysis.graphs),
        "ranges": [asdict(r) for r in analysis.ranges],
        "findings": [asdict(FindingRecord.of(f)) for f in analysis.findings],
        "notes": list(analysis.notes),
    }

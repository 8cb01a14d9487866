"""Kernels by name and copies by kind over all captures of a program."""

from collections.abc import Sequence

import numpy as np

from llm_perf_opt.capture.rows import CopyRow, KernelRow, rate
from llm_perf_opt.capture.tables import copy_rows, kernel_rows
from llm_perf_opt.capture.timeline import Timeline


def kernel_and_copy_rows(timelines: Sequence[Timeline]) -> tuple[tuple[KernelRow, ...], tuple[CopyRow, ...]]:
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
        bytes_per_s=rate(sum(sizes) if len(sizes) == len(rows) else None, total),
    )

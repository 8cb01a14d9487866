"""Kernels by name and copies by kind: instances, total, share, mean, median, least, most, standard deviation."""

from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.intervals import Flags, Ints
from llm_perf_opt.analysis.kernel_class import classify_kernel
from llm_perf_opt.analysis.kernel_names import short_kernel_name
from llm_perf_opt.analysis.kernel_rows import CopyRow, KernelRow
from llm_perf_opt.analysis.timeline import Activities

__all__ = ["CopyRow", "KernelRow", "copy_rows", "group_statistics", "kernel_rows"]


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Columns, one entry per group present."""

    group: Ints
    instances: Ints
    total: Ints
    median: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
    least: Ints
    most: Ints
    stddev: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"


def group_statistics(group: Ints, value: Ints) -> Statistics:
    """Exact statistics of whole, non-negative values by group. The deviation is the sample's (n - 1), as in nsys."""
    value, starts, group = _sort_groups(group, value)
    count = np.diff(np.append(starts, len(value)))
    total = np.add.reduceat(value, starts) if len(starts) else np.zeros(0, np.int64)
    middle, even = starts + count // 2, count % 2 == 0
    median = value[middle].astype(np.float64)
    median[even] = (value[middle[even] - 1] + value[middle[even]]) / 2
    off = value - np.repeat(total / np.maximum(count, 1), count)
    squares = np.add.reduceat(off * off, starts) if len(starts) else np.zeros(0)
    return Statistics(
        group=group,
        instances=count,
        total=total,
        median=median,
        least=value[starts],
        most=value[starts + count - 1],
        stddev=np.sqrt(squares / np.maximum(count - 1, 1)),
    )


def _sort_groups(group: Ints, value: Ints) -> tuple[Ints, Ints, Ints]:
    """Values sorted by group and size, where each group starts, and the groups."""
    bits = int(value.max()).bit_length() if len(value) else 0
    if len(value) and (int(group.max()) + 1).bit_length() + bits < 63:
        # One integer key sorts several times faster than two columns.
        key = (group.astype(np.int64) << bits) | value
        key.sort()
        group, value = key >> bits, key & ((1 << bits) - 1)
    else:
        order = np.lexsort((value, group))
        group, value = group[order], value[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(group)) + 1)) if len(group) else np.zeros(0, np.int64)
    return value, starts, group[starts]


def kernel_rows(names: tuple[str, ...], group: Ints, duration_ns: Ints) -> tuple[KernelRow, ...]:
    """Kernels by total time, then by name."""
    found = group_statistics(group, duration_ns)
    whole = int(found.total.sum())
    rows = []
    for i, code in enumerate(found.group):
        name, total, count = names[code], int(found.total[i]), int(found.instances[i])
        rows.append(
            KernelRow(
                name=name,
                short_name=short_kernel_name(name),
                kernel_class=classify_kernel(name),
                instances=count,
                total_ns=total,
                avg_ns=total / count,
                med_ns=float(found.median[i]),
                min_ns=int(found.least[i]),
                max_ns=int(found.most[i]),
                stddev_ns=float(found.stddev[i]),
                time_pct=100.0 * total / whole if whole else 0.0,
            )
        )
    return tuple(sorted(rows, key=lambda r: (-r.total_ns, r.name)))


def copy_rows(names: tuple[str, ...], copies: Activities) -> tuple[CopyRow, ...]:
    """Copies and sets by kind."""
    found = group_statistics(copies.name, copies.end_ns - copies.start_ns)
    rows = []
    for i, code in enumerate(found.group):
        size = _size(copies, copies.name == code)
        total, count = int(found.total[i]), int(found.instances[i])
        rows.append(
            CopyRow(
                kind=names[code],
                instances=count,
                total_ns=total,
                size_bytes=size,
                avg_ns=total / count,
                min_ns=int(found.least[i]),
                max_ns=int(found.most[i]),
            )
        )
    return tuple(sorted(rows, key=lambda r: (-r.total_ns, r.kind)))


def _size(copies: Activities, chosen: Flags) -> int | None:
    """The bytes of some copies together, or None where one does not say."""
    sizes = None if copies.size_bytes is None else copies.size_bytes[chosen]
    return None if sizes is None or bool((sizes < 0).any()) else int(sizes.sum())

"""Module ranges of a torch trace (`nn.Module: …`): calls, host time, and the kernels launched inside them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from llm_perf_opt.analysis.idle import map_idle
from llm_perf_opt.analysis.operators import HostEvents
from llm_perf_opt.analysis.range_table import range_rows
from llm_perf_opt.analysis.ranges import measure_ranges
from llm_perf_opt.analysis.timeline import Ranges, Timeline


@dataclass(frozen=True, kw_only=True)
class ModuleRow:
    """One module by the name the profiler gave it. Times of a module contain those of the modules inside it."""

    name: str
    calls: int
    wall_ns: int
    kernel_count: int
    kernel_ns: int
    gpu_busy_ns: int


def module_rows(timeline: Timeline, modules: HostEvents) -> tuple[ModuleRow, ...]:
    """Modules by host time; calls inside warm-up ranges are left out."""
    if not len(modules):
        return ()
    both = Ranges(
        start_ns=np.concatenate((modules.start_ns, timeline.ranges.start_ns)),
        end_ns=np.concatenate((modules.end_ns, timeline.ranges.end_ns)),
        name=np.concatenate((modules.name.astype(np.int64), timeline.ranges.name)),
        thread=np.concatenate((modules.thread, timeline.ranges.thread)),
        process_wide=np.zeros(len(modules) + len(timeline.ranges), np.bool_),
    )
    named = set(np.unique(modules.name).tolist())
    wanted = {timeline.names[code] for code in named}
    with_modules = replace(timeline, ranges=both)
    rows = range_rows([(with_modules, measure_ranges(with_modules, map_idle(with_modules), detailed_names=0))])
    return tuple(
        ModuleRow(
            name=row.name,
            calls=row.instances,
            wall_ns=row.wall_ns,
            kernel_count=row.kernel_count,
            kernel_ns=row.kernel_ns,
            gpu_busy_ns=row.gpu_busy_ns or 0,
        )
        for row in rows
        if row.name in wanted
    )


def merge_modules(tables: Sequence[Sequence[ModuleRow]]) -> tuple[ModuleRow, ...]:
    """The modules of several traces together, by host time."""
    found: dict[str, list[ModuleRow]] = {}
    for row in (row for table in tables for row in table):
        found.setdefault(row.name, []).append(row)
    merged = [
        ModuleRow(
            name=name,
            calls=sum(r.calls for r in rows),
            wall_ns=sum(r.wall_ns for r in rows),
            kernel_count=sum(r.kernel_count for r in rows),
            kernel_ns=sum(r.kernel_ns for r in rows),
            gpu_busy_ns=sum(r.gpu_busy_ns for r in rows),
        )
        for name, rows in found.items()
    ]
    return tuple(sorted(merged, key=lambda r: (-r.wall_ns, r.name)))

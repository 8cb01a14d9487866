"""Walks the CPU threads of a trace once: who called whom, and which module and phase a piece of time belongs to."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from llm_perf_opt.workload.nvtx import PHASES
from llm_perf_opt.workload.trace_columns import ANNOTATION, CPU_DEVICE_TYPE, MEMORY, NOTHING, RUNTIME, TraceColumns

MODULE_PREFIX = "module:"
OTHER = "other"
_NEVER_NS = 1 << 62


class Context(NamedTuple):
    """The innermost phase and module group around a moment."""

    phase: str | None
    group: str | None


class Place(NamedTuple):
    """Where something was launched from: the operator's row, and the phase and module around it."""

    operator: int
    context: Context


OUTSIDE = Context(None, None)
NOWHERE = Place(NOTHING, OUTSIDE)


@dataclass(kw_only=True)
class Sweep:
    """What the walk found. Lists are indexed by the event's row in the CPU columns; `order` is parents first."""

    order: list[int]
    duration_ns: list[int]
    parent: list[int]
    children_ns: list[int]
    children: list[int]
    cpu_memory_bytes: list[int]
    device_memory_bytes: list[int]
    device_duration_ns: list[int]
    launches: dict[int, Place] = field(default_factory=dict)
    by_external_id: dict[int, Place] = field(default_factory=dict)
    phase_ns: dict[str, int] = field(default_factory=dict)
    module_ns: dict[tuple[str, str], int] = field(default_factory=dict)


def sweep(columns: TraceColumns) -> Sweep:
    """One walk over all events in the order of their start, thread by thread."""
    cpu = columns.cpu
    start_ns, duration_ns = _to_ns(cpu.start_us), _to_ns(cpu.duration_us)
    thread = np.asarray(cpu.thread, dtype=np.int32)
    # The longer of two that start together encloses the other; a change of memory happens inside all of them.
    inside = np.where(np.asarray(cpu.kind, dtype=np.int8) == MEMORY, 1, -duration_ns)
    order = np.lexsort((inside, start_ns, thread))
    found = _empty(columns, order.tolist(), duration_ns.tolist())
    starts = start_ns.tolist()
    edges = np.flatnonzero(np.diff(thread[order])) + 1
    for rows in np.split(order, edges):
        _walk(columns, found, rows.tolist(), starts)
    return found


def _walk(columns: TraceColumns, found: Sweep, rows: Sequence[int], starts: Sequence[int]) -> None:
    """One thread. The three stacks hold the end, the operator and the context of what is open; plain for speed."""
    cpu, durations, names = columns.cpu, found.duration_ns, list(columns.names)
    has_device = len(columns.device.name) > 0
    ends, operators, contexts = [_NEVER_NS], [NOTHING], [OUTSIDE]
    for row in rows:
        start = starts[row]
        while ends[-1] <= start:
            ends.pop()
            operators.pop()
            contexts.pop()
        kind, operator, context = cpu.kind[row], operators[-1], contexts[-1]
        if kind == MEMORY:
            _note_memory(found, operator, cpu.device_type[row], cpu.bytes_changed[row])
            continue
        duration = durations[row]
        ends.append(start + duration)
        if kind == ANNOTATION:
            operators.append(operator)
            contexts.append(_annotate(found, names[cpu.name[row]], context, duration))
            continue
        if operator != NOTHING:
            found.parent[row] = operator
            found.children_ns[operator] += duration
            found.children[operator] += 1
        operators.append(row)
        contexts.append(context)
        if has_device:
            found.by_external_id.setdefault(cpu.external_id[row], Place(row, context))
            if kind == RUNTIME:
                found.launches[cpu.correlation[row]] = Place(operator, context)


def _annotate(found: Sweep, name: str, context: Context, duration: int) -> Context:
    """Enter a range of ours; time inside a module's range is taken away from the module around it."""
    if name in PHASES:
        found.phase_ns[name] = found.phase_ns.get(name, 0) + duration
        return Context(name, None)
    if not name.startswith(MODULE_PREFIX):
        return context
    phase, group = context.phase, name.removeprefix(MODULE_PREFIX)
    if phase is not None:
        found.module_ns[phase, group] = found.module_ns.get((phase, group), 0) + duration
        if context.group is not None:
            found.module_ns[phase, context.group] -= duration
    return Context(phase, group)


def _note_memory(found: Sweep, operator: int, device_type: int, changed: int) -> None:
    if operator != NOTHING:
        held = found.cpu_memory_bytes if device_type == CPU_DEVICE_TYPE else found.device_memory_bytes
        held[operator] += changed


def _empty(columns: TraceColumns, order: list[int], duration_ns: list[int]) -> Sweep:
    count = len(order)
    return Sweep(
        order=order,
        duration_ns=duration_ns,
        parent=[NOTHING] * count,
        children_ns=[0] * count,
        children=[0] * count,
        cpu_memory_bytes=[0] * count,
        device_memory_bytes=[0] * count,
        device_duration_ns=_to_ns(columns.device.duration_us).tolist(),
    )


def _to_ns(times_us: Sequence[float]) -> NDArray[np.int64]:
    """Whole nanoseconds: torch counts from the start of a quarter, so a double holds the three decimals."""
    return np.rint(np.asarray(times_us, dtype=np.float64) * 1000.0).astype(np.int64)

"""Operator and kernel tables of a profiled pass, built from its exported trace."""

from collections import defaultdict
from dataclasses import dataclass

from llm_perf_opt.workload.trace_columns import ANNOTATION, MEMORY, NOTHING, TraceColumns
from llm_perf_opt.workload.trace_sweep import NOWHERE, Place, Sweep


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """One operator (or CUDA runtime call), summed over its calls. `input_shapes` is None when not grouped by shape."""

    name: str
    input_shapes: str | None
    calls: int
    self_cpu_ns: int
    total_cpu_ns: int
    self_device_ns: int
    total_device_ns: int
    self_cpu_memory_bytes: int
    self_device_memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One kernel, copy or fill on the device, summed over its launches."""

    name: str
    launches: int
    total_ns: int
    mean_ns: float
    min_ns: int
    max_ns: int
    share: float


def place_of(columns: TraceColumns, found: Sweep, row: int) -> Place:
    """Where a piece of device work was launched, through the launching call or else the operator's own id."""
    device = columns.device
    place = found.launches.get(device.correlation[row], NOWHERE)
    if place.operator == NOTHING and device.external_id[row] != NOTHING:
        return found.by_external_id.get(device.external_id[row], place)
    return place


def operator_table(columns: TraceColumns, found: Sweep, *, by_shape: bool) -> list[OperatorRow]:
    """One row per operator name (and input shapes), the most self time first.

    An operator that does nothing but call itself counts as one call, and time of an operator nested in itself counts
    once in the total.
    """
    cpu = columns.cpu
    self_device, total_device = _device_times(columns, found)
    keys: list[tuple[int, int]] = [(NOTHING, NOTHING)] * len(cpu.kind)
    sums: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0] * 7)
    for row in found.order:
        if cpu.kind[row] in (ANNOTATION, MEMORY):
            continue
        parent = found.parent[row]
        key = (cpu.name[row], cpu.shape[row] if by_shape else NOTHING)
        is_repeat = parent != NOTHING and cpu.name[parent] == cpu.name[row] and found.children[parent] == 1
        if is_repeat:
            key = keys[parent]
        keys[row] = key
        total = sums[key]
        total[1] += found.duration_ns[row] - found.children_ns[row]
        total[3] += self_device[row]
        total[5] += found.cpu_memory_bytes[row]
        total[6] += found.device_memory_bytes[row]
        total[0] += not is_repeat
        if not _is_inside_itself(row, key, keys, found.parent):
            total[2] += found.duration_ns[row]
            total[4] += total_device[row]
    return _operator_rows(columns, sums, by_shape=by_shape)


def kernel_table(columns: TraceColumns, found: Sweep) -> list[KernelRow]:
    """One row per kernel name, the most time first."""
    durations: dict[int, list[int]] = defaultdict(list)
    for name, duration in zip(columns.device.name, found.device_duration_ns, strict=True):
        durations[name].append(duration)
    names = list(columns.names)
    whole = sum(found.device_duration_ns)
    rows = [
        KernelRow(
            name=names[name],
            launches=len(times),
            total_ns=sum(times),
            mean_ns=sum(times) / len(times),
            min_ns=min(times),
            max_ns=max(times),
            share=sum(times) / whole if whole else 0.0,
        )
        for name, times in durations.items()
    ]
    return sorted(rows, key=lambda r: (-r.total_ns, r.name))


def _device_times(columns: TraceColumns, found: Sweep) -> tuple[list[int], list[int]]:
    """Device time each operator launched itself, and with all it called."""
    own = [0] * len(columns.cpu.kind)
    for row, duration in enumerate(found.device_duration_ns):
        operator = place_of(columns, found, row).operator
        if operator != NOTHING:
            own[operator] += duration
    total = list(own)
    # Children start after their parents, so in reverse every child is whole before it is added.
    for row in reversed(found.order):
        parent = found.parent[row]
        if parent != NOTHING:
            total[parent] += total[row]
    return own, total


def _is_inside_itself(row: int, key: tuple[int, int], keys: list[tuple[int, int]], parents: list[int]) -> bool:
    above = parents[row]
    while above != NOTHING:
        if keys[above] == key:
            return True
        above = parents[above]
    return False


def _operator_rows(
    columns: TraceColumns, sums: dict[tuple[int, int], list[int]], *, by_shape: bool
) -> list[OperatorRow]:
    names, shapes = list(columns.names), columns.shape_texts()
    rows = [
        OperatorRow(
            name=names[name],
            input_shapes=shapes[shape] if by_shape else None,
            calls=total[0],
            self_cpu_ns=total[1],
            total_cpu_ns=total[2],
            self_device_ns=total[3],
            total_device_ns=total[4],
            self_cpu_memory_bytes=total[5],
            self_device_memory_bytes=total[6],
        )
        for (name, shape), total in sums.items()
    ]
    return sorted(rows, key=lambda r: (-r.self_device_ns, -r.self_cpu_ns, r.name, r.input_shapes or ""))

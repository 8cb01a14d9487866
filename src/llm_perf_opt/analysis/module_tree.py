"""Phase, module, operator and kernel of every piece of work in a torch trace, and each module's share of its phase."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.analysis.intervals import Ints
from llm_perf_opt.analysis.kernel_names import short_kernel_name
from llm_perf_opt.analysis.nesting import innermost, nest
from llm_perf_opt.analysis.operators import HostEvents
from llm_perf_opt.analysis.ranges import warmup_ranges
from llm_perf_opt.analysis.timeline import Timeline
from llm_perf_opt.core.names import MODULE_PREFIX, PHASES

OTHER = "other"
NO_OPERATOR = "(no operator)"
MAX_ROWS = 400

Shares = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, kw_only=True)
class TreeRow:
    """One leaf. `kernel` is None where the operator itself is the work: on a CPU."""

    phase: str
    module: str
    operator: str
    kernel: str | None
    count: int
    time_ns: int


@dataclass(frozen=True, kw_only=True)
class ModuleTree:
    """`by` says which time the rows hold. `phase_ns` and `operator_ns`: the phases' time, and the part in operators."""

    by: str
    rows: tuple[TreeRow, ...]
    left_out: int
    phase_ns: dict[str, int]
    operator_ns: dict[str, int]


def module_tree(timeline: Timeline, operators: HostEvents, *, max_rows: int = MAX_ROWS) -> ModuleTree:
    """Kernels by the operator that launched them; without kernels, the outermost operators themselves."""
    places = _Places(timeline, operators)
    tops = places.outermost_operators()
    top_phase = places.phase(operators.thread[tops], operators.start_ns[tops])
    length = (operators.end_ns - operators.start_ns)[tops]
    operator_ns = {
        phase: int(length[top_phase == index].sum()) for index, phase in enumerate(PHASES) if phase in places.phase_ns
    }
    if len(timeline.kernels):
        rows = _kernel_rows(timeline, places)
    else:
        module = places.module(operators.thread[tops], operators.start_ns[tops])
        rows = _rows(timeline, top_phase, module, operators.name[tops], None, length)
    kept = tuple(rows[:max_rows])
    return ModuleTree(
        by="device_time" if len(timeline.kernels) else "cpu_time",
        rows=kept,
        left_out=len(rows) - len(kept),
        phase_ns=places.phase_ns,
        operator_ns=operator_ns,
    )


@dataclass(frozen=True, kw_only=True)
class ModuleShares:
    """By phase and module. `cpu` is of the phase's wall time, `device` of the GPU time launched in the phase."""

    cpu: Shares | None
    device: Shares | None


def module_shares(timeline: Timeline, operators: HostEvents) -> ModuleShares:
    """Exclusive: time inside a nested module is the inner one's alone, and `other` is the rest of the phase."""
    places = _Places(timeline, operators)
    device: dict[str, dict[str, int]] = {}
    for work in (timeline.kernels, timeline.copies):
        known = np.flatnonzero(work.call >= 0)
        call = work.call[known]
        thread, at = timeline.calls.thread[call], timeline.calls.start_ns[call]
        length = (work.end_ns - work.start_ns)[known]
        for phase, group, time_ns in places.by_module(places.phase(thread, at), places.module(thread, at), length):
            groups = device.setdefault(phase, {OTHER: 0})
            groups[group] = groups.get(group, 0) + time_ns
    return ModuleShares(cpu=_parts(places.wall_by_module()), device=_parts(device))


def _parts(amounts: Mapping[str, Mapping[str, int]]) -> Shares | None:
    """Each module's part of its phase, phases in their order; None where there is nothing to share."""
    totals = {phase: sum(amounts[phase].values()) for phase in PHASES if phase in amounts}
    found = {
        phase: {group: time_ns / total for group, time_ns in amounts[phase].items()}
        for phase, total in totals.items()
        if total > 0
    }
    return found or None


class _Places:
    """Answers in which phase, module and operator a moment on a thread lies."""

    def __init__(self, timeline: Timeline, operators: HostEvents) -> None:
        ranges = timeline.ranges
        measured = ~warmup_ranges(timeline)
        codes = {name: i for i, name in enumerate(timeline.names)}
        self._names = timeline.names
        self._operators = operators
        phases = np.array([codes.get(name, -1) for name in PHASES])
        modules = np.array([i for i, name in enumerate(timeline.names) if name.startswith(MODULE_PREFIX)])
        self._phases = _pick(timeline, np.isin(ranges.name, phases) & measured)
        self._modules = _pick(timeline, np.isin(ranges.name, modules) & measured)
        self._phase_codes = phases
        self._tree = nest(operators.thread, operators.start_ns, operators.end_ns)
        lengths = self._phases.end_ns - self._phases.start_ns
        self.phase_ns = {
            phase: int(lengths[self._phases.name == code].sum())
            for phase, code in zip(PHASES, phases.tolist(), strict=True)
            if bool((self._phases.name == code).any())
        }

    def phase(self, thread: Ints, at: Ints) -> Ints:
        """The index of the phase around each moment, or -1."""
        name = _name_around(self._phases, thread, at)
        out = np.full(len(name), -1, np.int64)
        for index, code in enumerate(self._phase_codes):
            # A phase the trace does not name has no code, and neither has a moment outside all ranges.
            if code >= 0:
                out[name == code] = index
        return out

    def module(self, thread: Ints, at: Ints) -> Ints:
        """The name of the innermost module range, or -1."""
        return _name_around(self._modules, thread, at)

    def by_module(self, phase: Ints, module: Ints, length: Ints) -> list[tuple[str, str, int]]:
        """Phase, module and summed length of what lies inside a phase; modules in the order of their first names."""
        found = []
        for index, name in enumerate(PHASES):
            inside = phase == index
            for code in np.unique(module[inside]).tolist():
                group = self._names[code].removeprefix(MODULE_PREFIX) if code >= 0 else OTHER
                found.append((name, group, int(length[inside & (module == code)].sum())))
        return found

    def wall_by_module(self) -> dict[str, dict[str, int]]:
        """Each phase's time by module: that of a module's ranges without the module ranges inside them."""
        events = self._modules
        own = events.end_ns - events.start_ns
        parent = nest(events.thread, events.start_ns, events.end_ns).parent
        inner = np.flatnonzero(parent >= 0)
        np.subtract.at(own, parent[inner], (events.end_ns - events.start_ns)[inner])
        found: dict[str, dict[str, int]] = {phase: {} for phase in self.phase_ns}
        for phase, group, time_ns in self.by_module(self.phase(events.thread, events.start_ns), events.name, own):
            found[phase][group] = time_ns
        for phase, groups in found.items():
            rest = self.phase_ns[phase] - sum(groups.values())
            groups[OTHER] = groups.get(OTHER, 0) + max(0, rest)
        return found

    def outermost_operators(self) -> Ints:
        return np.flatnonzero(self._tree.parent < 0)

    def operator(self, thread: Ints, at: Ints) -> Ints:
        """The name of the outermost operator around each moment, or -1."""
        events = self._operators
        if not len(events):
            return np.full(len(at), -1, np.int64)
        root = np.arange(len(events))
        for level in self._tree.levels[1:]:
            root[level] = root[self._tree.parent[level]]
        found = innermost(self._tree, events.thread, events.start_ns, events.end_ns, thread, at)
        return np.where(found >= 0, events.name[root[np.maximum(found, 0)]], -1)


def _pick(timeline: Timeline, keep: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> HostEvents:
    ranges = timeline.ranges
    return HostEvents(
        start_ns=ranges.start_ns[keep], end_ns=ranges.end_ns[keep], name=ranges.name[keep], thread=ranges.thread[keep]
    )


def _name_around(events: HostEvents, thread: Ints, at: Ints) -> Ints:
    if not len(events):
        return np.full(len(at), -1, np.int64)
    tree = nest(events.thread, events.start_ns, events.end_ns)
    found = innermost(tree, events.thread, events.start_ns, events.end_ns, thread, at)
    return np.where(found >= 0, events.name[np.maximum(found, 0)], -1)


def _kernel_rows(timeline: Timeline, places: _Places) -> list[TreeRow]:
    kernels, calls = timeline.kernels, timeline.calls
    known = np.flatnonzero(kernels.call >= 0)
    call = kernels.call[known]
    thread, at = calls.thread[call], calls.start_ns[call]
    length = (kernels.end_ns - kernels.start_ns)[known]
    phase, module, operator = places.phase(thread, at), places.module(thread, at), places.operator(thread, at)
    return _rows(timeline, phase, module, operator, kernels.name[known], length)


def _rows(
    timeline: Timeline, phase: Ints, module: Ints, operator: Ints, kernel: Ints | None, length: Ints
) -> list[TreeRow]:
    """One row per different place inside a phase, the most time first."""
    inside = np.flatnonzero(phase >= 0)
    names = kernel if kernel is not None else np.full(len(phase), -1, np.int64)
    keys = np.stack([phase, module, operator, names], axis=1)[inside]
    if not len(keys):
        return []
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    index = index.reshape(-1)
    count = np.bincount(index, minlength=len(unique))
    time = np.zeros(len(unique), np.int64)
    np.add.at(time, index, length[inside])
    rows = [
        TreeRow(
            phase=PHASES[p],
            module=timeline.names[m].removeprefix(MODULE_PREFIX) if m >= 0 else OTHER,
            operator=timeline.names[o] if o >= 0 else NO_OPERATOR,
            kernel=short_kernel_name(timeline.names[k]) if k >= 0 else None,
            count=int(n),
            time_ns=int(t),
        )
        for (p, m, o, k), n, t in zip(unique.tolist(), count, time, strict=True)
    ]
    return sorted(rows, key=lambda r: (-r.time_ns, r.phase, r.module, r.operator, r.kernel or ""))

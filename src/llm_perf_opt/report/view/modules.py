"""Modules and operators: where the time of a phase goes by part of the model, and both counts of FLOPs."""

from dataclasses import dataclass

from msgspec import UNSET

from llm_perf_opt.core.names import PHASES
from llm_perf_opt.core.units import format_ms, format_percent
from llm_perf_opt.diagnosis.facts import Unknown
from llm_perf_opt.model.static.double_entry import Entry
from llm_perf_opt.model.static.static_document import StaticGroup
from llm_perf_opt.report.run_files import Found, OperatorRow, RunFiles
from llm_perf_opt.report.view.shown import TimePart, TimeSplit
from llm_perf_opt.report.view.subject_view import MODEL, PageSubject

OPERATORS_SHOWN = 25
# On the bar of the first screen.
OPERATORS_NAMED = 3
CPU_TIME, DEVICE_TIME = "CPU time", "device time"
NO_WORK = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class ModuleRow:
    """One module group in one phase; shares of the phase, None where unknown."""

    group: str
    time_share: float | None
    flops_share: float | None
    bytes_share: float | None
    flops: float | None
    bytes: float | None


@dataclass(frozen=True, kw_only=True)
class TreeNode:
    """A module, an operator inside it, or a kernel inside that; `share` is of what its tree says."""

    label: str
    share: float
    count: int
    children: tuple["TreeNode", ...]


@dataclass(frozen=True, kw_only=True)
class ModulePhase:
    """Shares of the rows are of the phase, those of the tree of `tree_of`."""

    phase: str
    rows: tuple[ModuleRow, ...]
    time_by: str | None
    tree: tuple[TreeNode, ...]
    tree_of: str


@dataclass(frozen=True, kw_only=True)
class OperatorView:
    """One operator's own times; `share` is of what the view says (`operators_of`)."""

    name: str
    calls: int
    self_cpu_ms: float | None
    self_device_ms: float | None
    share: float | None


@dataclass(frozen=True, kw_only=True)
class ModulesView:
    phases: tuple[ModulePhase, ...]
    operators: tuple[OperatorView, ...]
    operators_by: str
    operators_of: str
    operator_count: int
    double_entry: tuple[Entry, ...]
    static_source: str | None
    operators_source: str | None
    time_missing: Unknown | None
    operators_missing: Unknown | None
    double_entry_missing: Unknown | None

    @property
    def missing(self) -> Unknown | None:
        """Why there is nothing at all to show."""
        return None if self.phases or self.operators or self.double_entry else self.operators_missing


def operators_split(view: ModulesView, *, wall_ms: float | None = None) -> TimeSplit | None:
    """The operators' own time on one bar, where nothing was timed without a profiler: their shares still hold.

    `wall_ms` is that of a whole program, most of which may be something else.
    """
    is_cpu = view.operators_by == CPU_TIME
    known = [(op, op.self_cpu_ms if is_cpu else op.self_device_ms) for op in view.operators if op.share]
    if not known or not known[0][0].share or not known[0][1]:
        return None
    parts = [TimePart(label=op.name, kind="work", share=op.share or 0.0) for op, _ in known[:OPERATORS_NAMED]]
    rest = 1 - sum(part.share for part in parts)
    parts += [TimePart(label="other operators", kind="unexplained", share=rest)] if rest > 0 else []
    total = known[0][1] / known[0][0].share
    what = f"self {view.operators_by}, profiled pass"
    note = "" if wall_ms is None else _beside_wall(view, total, wall_ms)
    return TimeSplit(what=what, total=format_ms(total), parts=tuple(parts), note=note)


def _beside_wall(view: ModulesView, total_ms: float, wall_ms: float) -> str:
    """What part of a program these times are, as far as times of two passes can be put alongside each other."""
    if not wall_ms or total_ms > wall_ms:
        part = "more than the whole, because threads run in parallel and a profiler slows them down"
    else:
        part = f"about {format_percent(total_ms / wall_ms)} of it, by times that a profiler makes longer"
    return (
        f"Operators have {format_ms(total_ms)} of {view.operators_by}; the whole program took {format_ms(wall_ms)} "
        f"without a profiler, so they are {part}. Start-up, imports and code outside operators are not in it."
    )


def modules_view(files: RunFiles, subject: PageSubject = MODEL) -> ModulesView:
    """What only our own loop measures is missing of no other subject.

    Of a program a table of modules is shown where the trace names some, since `other` alone says nothing.
    """
    operators, by = _operators(files)
    phases = [phase for phase in (_phase(files, name) for name in PHASES) if phase.rows]
    if subject.kind == "program":
        phases = [phase for phase in phases if any(row.group != "other" for row in phase.rows)]
    is_asked = subject.kind != "capture"
    entries = files.static.content.double_entry if isinstance(files.static, Found) else ()
    return ModulesView(
        phases=tuple(phases),
        operators=operators[:OPERATORS_SHOWN],
        operators_by=by,
        operators_of="operators' device time" if by == DEVICE_TIME else "operator time",
        operator_count=len(operators),
        double_entry=entries,
        static_source=files.static.source if isinstance(files.static, Found) else None,
        operators_source=files.operators.source if isinstance(files.operators, Found) else None,
        time_missing=_time_missing(files) if is_asked else None,
        operators_missing=None if operators or not is_asked else _why(files.operators, "the trace holds no operator"),
        double_entry_missing=None
        if entries or subject.kind in ("capture", "program")
        else _why(files.static, _one_book(files)),
    )


def _one_book(files: RunFiles) -> str:
    reason = files.static.content.closed_form_reason if isinstance(files.static, Found) else None
    return reason or "operators were not counted in this run"


def _why(found: object, otherwise: str) -> Unknown:
    return found if isinstance(found, Unknown) else Unknown(reason=otherwise)


def _time_missing(files: RunFiles) -> Unknown | None:
    if not isinstance(files.metrics, Found):
        return files.metrics
    if files.metrics.content.modules is None:
        reason = files.metrics.content.modules_reason or "the profiled pass recorded no module ranges"
        return Unknown(reason=reason)
    return None


def _phase(files: RunFiles, name: str) -> ModulePhase:
    times = files.metrics.content.modules if isinstance(files.metrics, Found) else None
    shares = (times or {}).get(name, {})
    record = files.static.content.phases.get(name) if isinstance(files.static, Found) else None
    work = {group: _figures(found) for group, found in (record.groups if record else {}).items()}
    flops, moved = (sum(pair[i] for pair in work.values()) for i in (0, 1))
    names = sorted({*shares, *work}, key=lambda g: (-shares.get(g, 0.0), -work.get(g, NO_WORK)[1], g))
    rows = []
    for group in names:
        own = work.get(group)
        rows.append(
            ModuleRow(
                group=group,
                time_share=shares.get(group) if shares else None,
                flops_share=own[0] / flops if own and flops else None,
                bytes_share=own[1] / moved if own and moved else None,
                flops=own[0] if own else None,
                bytes=own[1] if own else None,
            )
        )
    by = files.metrics.content.modules_by if isinstance(files.metrics, Found) else None
    tree, tree_of = _tree(files, name)
    return ModulePhase(phase=name, rows=tuple(rows), time_by=by, tree=tree, tree_of=tree_of)


def _figures(group: StaticGroup) -> tuple[float, float]:
    """FLOPs and bytes of the closed form; of the count, for a model the closed form does not know."""
    flops = group.counted_flops if group.flops is None else group.flops
    moved = group.counted_bytes if group.bytes is None else group.bytes
    return flops or 0.0, moved or 0.0


def _tree(files: RunFiles, phase: str) -> tuple[tuple[TreeNode, ...], str]:
    """Module, operator, kernel, and what the shares are of; times of the profiled pass are not shown."""
    tree = files.trace.content.tree if isinstance(files.trace, Found) else UNSET
    if tree is UNSET:
        return (), ""
    rows = [row for row in tree.rows if row.phase == phase]
    leaves = [((r.module, r.operator, *((r.kernel,) if r.kernel else ())), r.time_ns, r.count) for r in rows]
    if tree.by == "cpu_time":
        return _nodes(leaves, tree.operator_ns.get(phase, 0)), "operator time"
    kept = f" (without the {tree.left_out} smallest rows)" if tree.left_out else ""
    return _nodes(leaves, sum(row.time_ns for row in rows)), f"kernel time{kept}"


def _nodes(leaves: list[tuple[tuple[str, ...], int, int]], total: int) -> tuple[TreeNode, ...]:
    """One level of the tree from paths with time and count."""
    groups: dict[str, list[tuple[tuple[str, ...], int, int]]] = {}
    for path, time, count in leaves:
        if path:
            groups.setdefault(path[0], []).append((path[1:], time, count))
    nodes = [
        TreeNode(
            label=label,
            share=sum(time for _, time, _ in found) / total if total else 0.0,
            count=sum(count for _, _, count in found),
            children=_nodes(found, total),
        )
        for label, found in groups.items()
    ]
    return tuple(sorted(nodes, key=lambda node: -node.share))


def _operators(files: RunFiles) -> tuple[tuple[OperatorView, ...], str]:
    if not isinstance(files.operators, Found):
        return (), ""
    rows = files.operators.content
    has_device = any(row.self_device_ns for row in rows)
    total = sum((row.self_device_ns if has_device else row.self_cpu_ns) or 0 for row in rows)
    merged = _by_name(rows)
    views = [
        OperatorView(
            name=name,
            calls=calls,
            self_cpu_ms=cpu / 1e6,
            self_device_ms=device / 1e6 if has_device else None,
            share=(device if has_device else cpu) / total if total else None,
        )
        for name, (calls, cpu, device) in merged.items()
    ]
    views.sort(key=lambda v: -(v.share or 0.0))
    return tuple(views), DEVICE_TIME if has_device else CPU_TIME


def _by_name(rows: tuple[OperatorRow, ...]) -> dict[str, tuple[int, int, int]]:
    """Calls, own CPU and own device time in ns of each operator, its shapes added up."""
    found: dict[str, tuple[int, int, int]] = {}
    for row in rows:
        calls, cpu, device = found.get(row.name, (0, 0, 0))
        found[row.name] = (calls + row.calls, cpu + (row.self_cpu_ns or 0), device + (row.self_device_ns or 0))
    return found

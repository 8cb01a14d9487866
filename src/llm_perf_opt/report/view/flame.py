"""Flame graphs, of modules, operators and kernels and of Python: where each bar lies, in shares of the width."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from msgspec import UNSET

from llm_perf_opt.capture.frames import FlameNode, PythonTree
from llm_perf_opt.core.names import PHASES
from llm_perf_opt.core.units import count_of, format_ms, format_percent
from llm_perf_opt.report.run_files import Found, RunFiles

MODULE = "nn.Module: "


@dataclass(frozen=True, kw_only=True)
class FlameBar:
    """`left` and `width` in percent of the whole, `depth` in rows from the top."""

    depth: int
    left: float
    width: float
    label: str
    text: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class FlameView:
    """One tree. `deepest` is the number of rows; `phase` is set where it is of one phase."""

    title: str
    bars: tuple[FlameBar, ...]
    deepest: int
    left_out: int
    source: str
    phase: str | None = None


def flame_view(files: RunFiles) -> tuple[FlameView, ...]:
    """Modules, operators and kernels of each phase, and a graph of Python per trace that has frames."""
    return (*_module_flames(files), *_python_flames(files))


def _module_flames(files: RunFiles) -> tuple[FlameView, ...]:
    """By kernel time where the trace has kernels, else by operator time, as its tree is."""
    if not isinstance(files.trace, Found) or files.trace.content.tree is UNSET:
        return ()
    tree = files.trace.content.tree
    by = "operator time" if tree.by == "cpu_time" else "kernel time"
    levels = "modules, operators" if tree.by == "cpu_time" else "modules, operators, kernels"
    graphs = []
    for phase in PHASES:
        leaves = [
            ((row.module, row.operator, *((row.kernel,) if row.kernel else ())), row.time_ns, row.count)
            for row in tree.rows
            if row.phase == phase and row.time_ns > 0
        ]
        total = sum(time for _, time, _ in leaves)
        if total:
            bars = tuple(_level(leaves, total, 0, 0.0))
            graphs.append(
                FlameView(
                    title=f"{phase.capitalize()}: {levels}, by {by}",
                    bars=bars,
                    deepest=max(bar.depth for bar in bars) + 1,
                    left_out=tree.left_out,
                    source=files.trace.source,
                    phase=phase,
                )
            )
    return tuple(graphs)


LEVELS = ("module", "torch", "built-in")
# Narrower bars cannot be seen or hit.
NARROWEST_PCT = 0.05
Leaf = tuple[tuple[str, ...], int, int]


def _level(leaves: Sequence[Leaf], total: int, depth: int, left: float) -> Iterator[FlameBar]:
    """The bars of one level and those below, the widest first."""
    groups: dict[str, list[Leaf]] = {}
    for path, time, count in leaves:
        if path:
            groups.setdefault(path[0], []).append((path[1:], time, count))
    sums = {name: (sum(t for _, t, _ in found), sum(c for _, _, c in found)) for name, found in groups.items()}
    for name in sorted(groups, key=lambda key: -sums[key][0]):
        time, count = sums[name]
        width = 100.0 * time / total
        if width >= NARROWEST_PCT:
            yield FlameBar(
                depth=depth,
                left=round(left, 4),
                width=round(width, 4),
                label=name,
                text=f"{name}\n{format_percent(time / total)}; {count:,}×, under the profiler",
                kind=LEVELS[min(depth, len(LEVELS) - 1)],
            )
            yield from _level(groups[name], total, depth + 1, left)
        left += width


def _python_flames(files: RunFiles) -> tuple[FlameView, ...]:
    """Of the steady state, where start-up is much of the capture."""
    if not isinstance(files.capture, Found):
        return ()
    shown = files.capture.content.shown
    return tuple(_view(tree, shown.of_scope, files.capture.source) for tree in shown.python if tree.total_ns > 0)


def _view(tree: PythonTree, of_scope: str | None, source: str) -> FlameView:
    children: dict[int, list[int]] = {}
    for index, node in enumerate(tree.nodes):
        children.setdefault(node.parent, []).append(index)
    bars: list[FlameBar] = []
    # Widest first, each alongside the one before; what is left of a caller's width is its own time.
    open_ = [(-1, -1, 0.0)]
    while open_:
        index, depth, left = open_.pop()
        if index >= 0:
            bars.append(_bar(tree.nodes[index], depth, left, tree.total_ns))
        for child in sorted(children.get(index, []), key=lambda node: -tree.nodes[node].total_ns):
            open_.append((child, depth + 1, left))
            left += 100.0 * tree.nodes[child].total_ns / tree.total_ns
    return FlameView(
        title=PurePath(tree.source).name + ("" if of_scope is None else f": {of_scope}"),
        bars=tuple(bars),
        deepest=max(bar.depth for bar in bars) + 1,
        left_out=tree.left_out,
        source=source,
    )


def _bar(node: FlameNode, depth: int, left: float, total_ns: int) -> FlameBar:
    share = format_percent(node.total_ns / total_ns)
    gpu = f", {format_ms(node.gpu_ns / 1e6)} of GPU work" if node.gpu_ns else ""
    return FlameBar(
        depth=depth,
        left=round(left, 4),
        width=round(100.0 * node.total_ns / total_ns, 4),
        label=_label(node.name),
        text=f"{node.name}\n{format_ms(node.total_ns / 1e6)}, {share}; own {format_ms(node.self_ns / 1e6)}; "
        f"{count_of(node.calls, 'call')}{gpu}",
        kind=_kind(node.name),
    )


def _label(name: str) -> str:
    """The function, with its file where it has one: `loader.py(708): __next__`."""
    place, colon, function = name.rpartition(": ")
    if name.startswith(MODULE) or not colon:
        return name.removeprefix(MODULE)
    return f"{function} {PurePath(place).name}"


def _kind(name: str) -> str:
    if name.startswith(MODULE):
        return "module"
    if name.startswith("<"):
        return "built-in"
    return "torch" if name.startswith(("torch/", "torch.")) or "/site-packages/torch/" in name else "code"

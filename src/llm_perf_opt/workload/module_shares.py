"""The share of each phase per module group, from the ranges that forward hooks open in the profiled pass."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from llm_perf_opt.workload.aggregate import shares
from llm_perf_opt.workload.models.base import LoadedModel
from llm_perf_opt.workload.nvtx import PHASES
from llm_perf_opt.workload.operators import place_of
from llm_perf_opt.workload.trace_columns import TraceColumns
from llm_perf_opt.workload.trace_sweep import MODULE_PREFIX, OTHER, Sweep

Shares = Mapping[str, Mapping[str, float]]


@contextmanager
def module_ranges(model: LoadedModel) -> Iterator[None]:
    """Open a range `module:<group>` around every forward of a module that belongs to a group."""
    from torch.profiler import record_function

    modules = dict(model.module.named_modules())
    open_ranges: list[Any] = []

    def enter(name: str) -> Any:
        def hook(module: Any, args: Any) -> None:
            opened = record_function(name)
            opened.__enter__()
            open_ranges.append(opened)

        return hook

    def leave(module: Any, args: Any, output: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        for path, group in model.module_groups().items():
            module = modules[path]
            hooks.callback(module.register_forward_pre_hook(enter(f"{MODULE_PREFIX}{group}")).remove)
            # Called even when the forward raises, so that the ranges stay balanced.
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


def cpu_shares(found: Sweep) -> Shares | None:
    """Exclusive wall time of the calling thread per group; `other` is the rest of the phase."""
    result: dict[str, Mapping[str, float]] = {}
    for phase in PHASES:
        amounts = {group: float(ns) for (name, group), ns in found.module_ns.items() if name == phase}
        rest = found.phase_ns.get(phase, 0) - sum(amounts.values())
        amounts[OTHER] = amounts.get(OTHER, 0.0) + max(0.0, rest)
        parts = shares(amounts)
        if parts is not None:
            result[phase] = parts
    return result or None


def device_shares(columns: TraceColumns, found: Sweep) -> Shares | None:
    """Device time per group, through the call that launched each kernel; None when nothing ran on a device."""
    amounts: dict[str, dict[str, float]] = {}
    for row, duration in enumerate(found.device_duration_ns):
        context = place_of(columns, found, row).context
        if context.phase is not None:
            groups = amounts.setdefault(context.phase, {OTHER: 0.0})
            group = context.group or OTHER
            groups[group] = groups.get(group, 0.0) + duration
    result = {phase: parts for phase, groups in amounts.items() if (parts := shares(groups)) is not None}
    return result or None

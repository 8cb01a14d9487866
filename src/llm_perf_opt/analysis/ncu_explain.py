"""Why a kernel is as fast as it is: its bound, what limits its occupancy, where its warps stall, what ncu advises."""

import re
from collections.abc import Iterable

from llm_perf_opt.analysis.ncu_records import NcuLaunch, NcuRule
from llm_perf_opt.analysis.ncu_rows import BALANCED_WITHIN_PCT, LATENCY_BELOW_PCT, Advice, Bound

TOP_STALLS = 3
THEORETICAL_OCCUPANCY = "sm__maximum_warps_per_active_cycle_pct"

_LIMITS = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}
_STALLS = (
    re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio"),
    re.compile(r"smsp__average_warp_latency_issue_stalled_(\w+)\.ratio"),
    re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+)"),
)
_ADVICE_KINDS = ("OPT", "WRN")


def bound_class(compute_pct: float | None, memory_pct: float | None) -> Bound:
    """Which resource bounds a kernel, by `BOUND_RULE`."""
    if compute_pct is None or memory_pct is None:
        return "unknown"
    if max(compute_pct, memory_pct) < LATENCY_BELOW_PCT:
        return "latency"
    if abs(compute_pct - memory_pct) <= BALANCED_WITHIN_PCT:
        return "balanced"
    return "compute" if compute_pct > memory_pct else "memory"


def occupancy_limiter(launch: NcuLaunch) -> str | None:
    """What keeps more blocks from running on an SM: the smallest of the block limits."""
    limits = {name: launch.number(metric) for name, metric in _LIMITS.items()}
    known = {name: value for name, value in limits.items() if value is not None}
    theoretical = launch.number(THEORETICAL_OCCUPANCY)
    if not known or theoretical is None:
        return None
    if theoretical >= 100.0:
        return "none"
    return " and ".join(name for name, value in known.items() if value == min(known.values()))


def top_stalls(launch: NcuLaunch) -> dict[str, float]:
    """The largest stall reasons as percent of all warp states; empty when the section was not collected."""
    for pattern in _STALLS:
        found = {
            m[1]: v.value for k, v in launch.metrics.items() if (m := pattern.fullmatch(k)) and v.value is not None
        }
        found = {name: value for name, value in found.items() if not name.endswith("not_issued")}
        total = sum(found.values())
        if total > 0:
            ranked = sorted(((n, v) for n, v in found.items() if n != "selected" and v > 0), key=lambda item: -item[1])
            return {name: value / total * 100.0 for name, value in ranked[:TOP_STALLS]}
    return {}


def advice(rules: Iterable[NcuRule]) -> tuple[Advice, ...]:
    """Each rule once with its largest estimate; estimates for the whole kernel before local ones."""
    best: dict[str, Advice] = {}
    for rule in rules:
        if rule.kind not in _ADVICE_KINDS:
            continue
        new = Advice(rule=rule.rule, text=rule.text, speedup_pct=rule.speedup_pct, scope=rule.scope)
        old = best.get(rule.rule)
        if old is None or (new.speedup_pct or 0.0) > (old.speedup_pct or 0.0):
            best[rule.rule] = new
    return tuple(sorted(best.values(), key=lambda a: (a.scope != "global", -(a.speedup_pct or 0.0))))

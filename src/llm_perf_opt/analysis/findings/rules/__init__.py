"""All rules, and how they are applied.

One module per rule: thresholds and remedy on top, the test from figures to findings below, and at the end the `RULE`
itself with its id, its words for everybody and what to try. A new one needs its line in `RULES` and its row in
docs/report.md; nothing else lists rules.
"""

from collections.abc import Iterable, Sequence

from llm_perf_opt.analysis.findings.facts import RunFacts
from llm_perf_opt.analysis.findings.finding import Finding, Rule, is_covered, rank
from llm_perf_opt.analysis.findings.rules import (
    above_bound,
    dtype_miss,
    framework_overhead,
    kernel_gaps,
    kv_growth,
    launch_bound,
    low_occupancy,
    memory_bound,
    needless_copies,
    profiler_overhead,
    small_gemm,
    throttling,
    unfused_elementwise,
    wait_bound,
)
from llm_perf_opt.analysis.timeline.tables import RangeRow

RULES: tuple[Rule, ...] = (
    launch_bound.RULE,
    wait_bound.RULE,
    kernel_gaps.RULE,
    framework_overhead.RULE,
    above_bound.RULE,
    memory_bound.NEAR,
    memory_bound.FAR,
    small_gemm.RULE,
    unfused_elementwise.RULE,
    needless_copies.RULE,
    needless_copies.TRANSFERS,
    low_occupancy.RULE,
    dtype_miss.RULE,
    kv_growth.RULE,
    throttling.RULE,
    profiler_overhead.RULE,
)
# A file of another version may name a rule that is not here.
RULE_BY_ID = {rule.id: rule for rule in RULES}


def diagnose(facts: RunFacts, of_capture: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """What every rule finds in a run, and what a capture says where no clean time does, in the order of the gain."""
    found = [finding for rule in RULES for finding in rule.find(facts)]
    return rank([*found, *(finding for finding in of_capture if not is_covered(finding, facts))], facts)


def diagnose_ranges(rows: Sequence[RangeRow], *, source: str) -> tuple[Finding, ...]:
    """What the rules find in the ranges of a capture alone."""
    asked = [rule.find_in_ranges for rule in RULES if rule.find_in_ranges is not None]
    return tuple(finding for find in asked for finding in find(rows, source))

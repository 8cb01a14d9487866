"""All rules, and how they are applied.

One module per rule: thresholds and remedy on top, the test from figures to findings below, and at the end the `RULE`
itself with its id, its words for everybody and what to try. A new one needs its line in `RULES` and its row in
docs/report.md; nothing else lists rules.
"""

from collections.abc import Iterable

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts
from llm_perf_opt.diagnosis.facts import RunFacts
from llm_perf_opt.analysis.findings.finding import (
    Finding,
    Rule,
    is_covered,
    merge_twins,
    of_capture_alone,
    of_thinned_capture,
    rank,
    rank_of_capture,
    worth_listing,
)
from llm_perf_opt.analysis.findings.rules import (
    above_bound,
    dtype_miss,
    kernel_gaps,
    kv_growth,
    launch_bound,
    long_gaps,
    low_occupancy,
    memory_bound,
    needless_copies,
    on_the_host,
    profiler_overhead,
    small_gemm,
    throttling,
    unfused_elementwise,
    wait_bound,
)

RULES: tuple[Rule, ...] = (
    on_the_host.PREPARATION,
    launch_bound.RULE,
    wait_bound.RULE,
    long_gaps.DATA_LOADING,
    long_gaps.COMPILATION,
    long_gaps.RANK_WAIT,
    long_gaps.HOST_WORK,
    on_the_host.EDGES,
    kernel_gaps.RULE,
    kernel_gaps.LATE_STARTS,
    kernel_gaps.SERIAL_STREAMS,
    kernel_gaps.DEVICES_IN_TURNS,
    on_the_host.RULE,
    on_the_host.ELSEWHERE,
    above_bound.RULE,
    above_bound.ROOF,
    memory_bound.NEAR,
    memory_bound.FAR,
    small_gemm.RULE,
    unfused_elementwise.RULE,
    unfused_elementwise.ATTENTION,
    unfused_elementwise.OPTIMIZER,
    needless_copies.RULE,
    needless_copies.TRANSFERS,
    needless_copies.COMMUNICATION,
    needless_copies.LATE_RANKS,
    low_occupancy.RULE,
    dtype_miss.RULE,
    dtype_miss.WIDE_FORMAT,
    kv_growth.RULE,
    kv_growth.WEIGHT_READS,
    kv_growth.FRAGMENTATION,
    throttling.RULE,
    profiler_overhead.RULE,
)
# A file of another version may name a rule that is not here.
RULE_BY_ID = {rule.id: rule for rule in RULES}


def diagnose(facts: RunFacts, of_capture: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """What every rule finds in a run, and what a capture says where no clean time does, in the order of the gain."""
    parts = (of_capture_alone(finding, facts) for rule in RULES for finding in rule.find(facts))
    found = [finding for finding in parts if finding is not None]
    # Which kernels follow each other only a capture says.
    alone = (f for f in of_capture if not is_covered(f, facts) or f.rule == unfused_elementwise.ATTENTION.id)
    return rank(worth_listing([*found, *alone], facts), facts)


def diagnose_capture(facts: CaptureFacts) -> tuple[Finding, ...]:
    """What the rules find in a capture alone, the most time first."""
    if facts.span_ns <= 0:
        return ()
    asked = [rule.find_in_capture for rule in RULES if rule.find_in_capture is not None]
    every = [finding for find in asked for finding in find(facts)]
    found = merge_twins(every, idle_share=facts.idle_ns / facts.span_ns)
    if facts.kept_share is not None:
        found = [of_thinned_capture(finding, facts.kept_share) for finding in found]
    return rank_of_capture(found)

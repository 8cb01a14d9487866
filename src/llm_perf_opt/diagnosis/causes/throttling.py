"""The driver names a throttle reason in a twentieth of the samples of a working GPU."""

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.facts import ClockFacts
from llm_perf_opt.diagnosis.ledger import Claim, Fact
from llm_perf_opt.diagnosis.scope import Scope

MIN_SHARE, LOW_CLOCK = 0.05, 0.85
# Idle and clocks set by an application are not fault.
HARMLESS = ("gpu_idle", "idle", "none", "applications_clocks_setting", "active")


def judge(scope: Scope, _: Program) -> Claim | None:
    clocks = scope.run.clocks if scope.run is not None else None
    if not isinstance(clocks, ClockFacts) or clocks.samples == 0 or clocks.throttle_reasons is None:
        return None
    reasons = {name: n for name, n in clocks.throttle_reasons.items() if name.lower() not in HARMLESS}
    often = {name: n for name, n in reasons.items() if n >= MIN_SHARE * clocks.samples}
    if not often:
        return None
    # Here, for captures alone say no clocks, and this loads fractions and decimals.
    from statistics import median

    values: dict[str, str | int | float] = {}
    facts = [
        Fact(key="reason", values={"reason": name, "count": n, "samples": clocks.samples}, source=clocks.source)
        for name, n in sorted(often.items(), key=lambda item: -item[1])
    ]
    is_slow = False
    if clocks.sm_clock_mhz and clocks.max_sm_clock_mhz is not None:
        middle = median(clocks.sm_clock_mhz)
        is_slow = middle < LOW_CLOCK * clocks.max_sm_clock_mhz
        values = {"clock": middle, "max_clock": clocks.max_sm_clock_mhz, "idle": clocks.idle_samples}
        facts.append(Fact(key="clock", values=values, source=clocks.source))
    return Claim(
        title="slow" if is_slow else "title",
        values=values,
        evidence=tuple(facts),
        confidence="high" if is_slow else "medium",
        is_timeless=True,
    )

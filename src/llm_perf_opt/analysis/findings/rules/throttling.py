"""Rule throttling: the GPU ran below its clock, because of heat, power or a limit somebody set."""

from llm_perf_opt.diagnosis.facts import ClockFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule

MIN_SHARE = 0.05
LOW_CLOCK = 0.85
# Idle and clocks set by an application are no fault.
HARMLESS = ("gpu_idle", "idle", "none", "applications_clocks_setting", "active")
REMEDY = (
    "look at `nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE`: fix cooling, raise the power limit if you may, "
    "and measure again; a comparison of runs at different clocks says nothing"
)


def find_throttling(facts: RunFacts) -> list[Finding]:
    """A finding when the driver names a reason in a twentieth of the samples of a working GPU.

    How far their median clock lies below the highest says what it cost. A low clock without a reason is no finding:
    neither is one where the driver never answered, which the stage's notes say.
    """
    clocks = facts.clocks
    if not isinstance(clocks, ClockFacts) or clocks.samples == 0 or clocks.throttle_reasons is None:
        return []
    reasons = {name: n for name, n in clocks.throttle_reasons.items() if name.lower() not in HARMLESS}
    often = {name: n for name, n in reasons.items() if n >= MIN_SHARE * clocks.samples}
    # Here, for captures alone say no clocks, and this loads fractions and decimals.
    from statistics import median

    middle = median(clocks.sm_clock_mhz) if clocks.sm_clock_mhz else None
    is_slow = (
        middle is not None and clocks.max_sm_clock_mhz is not None and middle < LOW_CLOCK * clocks.max_sm_clock_mhz
    )
    if not often:
        return []
    texts = [
        f"{name}: in {n} of {clocks.samples} samples of a working GPU"
        for name, n in sorted(often.items(), key=lambda i: -i[1])
    ]
    if middle is not None and clocks.max_sm_clock_mhz is not None:
        left_out = f" ({clocks.idle_samples} idle samples left out)" if clocks.idle_samples else ""
        texts.append(f"median SM clock {middle:.0f} MHz of {clocks.max_sm_clock_mhz:.0f} MHz{left_out}")
    return [
        RULE.finding(
            title="The GPU was throttled while it worked",
            phase=None,
            evidence=tuple(Evidence(text=text, source=clocks.source) for text in texts),
            saves_ms=None,
            gain=clocks.max_sm_clock_mhz / middle if is_slow and middle and clocks.max_sm_clock_mhz else None,
            confidence="high" if is_slow else "medium",
        )
    ]


RULE = Rule(
    id="throttling",
    find=find_throttling,
    plain_words="The GPU slowed itself down, because of heat or power.",
    remedy=REMEDY,
)

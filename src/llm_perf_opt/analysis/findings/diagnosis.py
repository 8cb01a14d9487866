"""What should change: a finding with its evidence, remedy and the most it could bring."""

from dataclasses import dataclass

from llm_perf_opt.analysis.findings.finding import Confidence

WHOLE_CAPTURE = "capture"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One observation with its numbers, and the file they come from."""

    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One thing to change.

    `saves_ms` is the most one step of `phase` could get shorter, None where no time is at stake or none is known;
    `gain` is the phase's speed-up if all of it were saved (Amdahl). `caveat` says when the promise does not hold.
    """

    rule: str
    title: str
    phase: str | None
    evidence: tuple[Evidence, ...]
    remedy: str
    saves_ms: float | None
    gain: float | None
    confidence: Confidence
    caveat: str | None = None


def amdahl(wall_ms: float | None, saved_ms: float) -> float | None:
    """The speed-up of a phase when a part of it vanishes; None when the whole is unknown or the part is all of it."""
    if wall_ms is None or saved_ms >= wall_ms:
        return None
    return wall_ms / (wall_ms - saved_ms)

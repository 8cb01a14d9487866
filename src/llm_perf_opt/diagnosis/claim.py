"""Claims of causes on cells of a ledger, and the findings made of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Confidence = Literal["low", "medium", "high"]
Value = str | int | float
# Instances of a range that differ little, and evidence for most of the time, make a claim certain.
CERTAIN_INSTANCES, CERTAIN_SPREAD, CERTAIN_SHARE = 3, 0.25, 0.7


@dataclass(frozen=True, kw_only=True)
class Fact:
    """One line of evidence: a template of the cause and what it is filled with. `source` is the file, if another."""

    key: str
    values: Mapping[str, Value] = field(default_factory=dict)
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a cause says of a scope: which cells and kernels it explains, and what must remain of them.

    `cells` and `kernels` map to the time claimed of each. `floor_ns` is the least of all that which must remain, None
    where it cannot be computed; `floor` names how it was. `traits` choose title and advice together with the
    program's. `at_stake_ns` is given where a cause changes time that is not its own cell, such as a clock.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    cells: Mapping[str, int] = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)
    floor_ns: int | None = None
    floor: str | None = None
    title: str = "title"
    evidence: tuple[Fact, ...] = ()
    traits: frozenset[str] = frozenset()
    confidence: Confidence = "medium"
    caveat: str | None = None
    range_name: str | None = None
    also_ranges: tuple[str, ...] = ()
    is_one_time: bool = False
    # Where a claim is about memory or the measurement itself, there is no time to save.
    is_timeless: bool = False


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """One line of what was seen, and the file it can be checked against."""

    text: str
    source: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Finding:
    """A claim as the answer shows it. Nothing changes it after it was made.

    `share` is the affected time on the critical path over the wall time of its scope, `capture_share` the same where
    the scope is a capture. `max_gain` is the speed-up of the scope if nothing but the lower bound remained; None where
    no lower bound is known, or the cost is a one-time cost. `saves_ms` is the time behind both, of one step where the
    scope is a phase. `cells` are those of the scope's ledger; `floor` says how the lower bound was computed.
    `refutes` is what would show that it is wrong; `experiments` are what `llm-perf optimize` can try.
    `source` is the file most of the evidence comes from, `sources` those of its lines.
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    remedy: str
    max_gain: float | None
    confidence: Confidence
    source: str
    range_name: str | None = None
    capture_share: float | None = None
    is_one_time: bool = False
    hint: str | None = None
    caveat: str | None = None
    also_ranges: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    scope: str = "capture"
    phase: str | None = None
    share: float | None = None
    saves_ms: float | None = None
    stake_ns: int | None = None
    floor_ns: int | None = None
    floor: str | None = None
    cells: Mapping[str, int] = field(default_factory=dict)
    plain_words: str = ""
    refutes: str = ""
    doc: str | None = None
    experiments: tuple[str, ...] = ()
    is_idle: bool = False

    def __repr__(self) -> str:
        gain = "" if self.max_gain is None else f", up to {self.max_gain:.3g}x"
        return f"Finding({self.rule} in {self.scope}: {self.title}{gain}, confidence {self.confidence})"

    @property
    def fix(self) -> str:
        """The fix; the document calls it `remedy`."""
        return self.remedy

    @property
    def cited(self) -> tuple[Evidence, ...]:
        return tuple(
            Evidence(text=text, source=source) for text, source in zip(self.evidence, self.sources, strict=True)
        )


def confidence_of(instances: int, *, share: float, spread: float = 0.0) -> Confidence:
    """From how often it was seen, how much that differs, and how much of the time the evidence explains."""
    if instances >= CERTAIN_INSTANCES and spread <= CERTAIN_SPREAD and share >= CERTAIN_SHARE:
        return "high"
    return "low" if instances < CERTAIN_INSTANCES and share < CERTAIN_SHARE else "medium"

"""What a capture says should change: findings with their evidence and the remedy."""

from dataclasses import dataclass
from typing import Literal

Confidence = Literal["high", "medium", "low"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to change. `max_gain` is the most it could speed the named part up (2.0: twice as fast), or None.

    `range_name` is the range it is about, None where it is about no single one.
    """

    rule: str
    title: str
    evidence: tuple[str, ...]
    remedy: str
    max_gain: float | None
    confidence: Confidence
    source: str
    range_name: str | None = None

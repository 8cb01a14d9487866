"""What a kernel that only moves data does: by its name, and by the operator that launched it where that is known.

A layout copy, a dtype cast, a gather, a `cat` and a scatter need different fixes, and torch runs several of them
through the same kernel template.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from llm_perf_opt.capture.kernels.names import classify_kernel

LAYOUT, CAST, GATHER, CAT, PLAIN = "layout", "dtype cast", "gather", "cat", "copy"
SCATTER, COLLIDING = "scatter", "scatter with colliding indices"
COPY_KINDS = (LAYOUT, CAST, GATHER, CAT, SCATTER, COLLIDING, PLAIN)
COPY = "copy"


@dataclass(frozen=True, kw_only=True)
class CopyRule:
    """One rule of the table alongside this file; a missing pattern fits everything."""

    kind: str
    pattern: re.Pattern[str] | None
    operator: re.Pattern[str] | None
    any_class: bool

    def fits(self, name: str, operator: str | None) -> bool:
        if self.operator is not None and (operator is None or not self.operator.search(operator)):
            return False
        return self.pattern is None or self.pattern.search(name) is not None


@cache
def copy_rules() -> tuple[CopyRule, ...]:
    """The rules in order."""
    text = Path(__file__).with_name("copy_kinds.toml").read_text(encoding="utf-8")

    def compiled(pattern: str | None) -> re.Pattern[str] | None:
        return None if pattern is None else re.compile(pattern, re.IGNORECASE | re.VERBOSE)

    return tuple(
        CopyRule(
            kind=rule["kind"],
            pattern=compiled(rule.get("pattern")),
            operator=compiled(rule.get("operator")),
            any_class=rule.get("any_class", False),
        )
        for rule in tomllib.loads(text)["rule"]
    )


@lru_cache(maxsize=1 << 16)
def copy_kind(name: str, operator: str | None = None) -> str | None:
    """What a kernel that only moves data does, one of `COPY_KINDS`; None where the kernel computes something."""
    is_copy = classify_kernel(name) == COPY
    for rule in copy_rules():
        if (is_copy or rule.any_class) and rule.fits(name, operator):
            return rule.kind
    return PLAIN if is_copy else None


@cache
def kind_of_operator(operator: str) -> str | None:
    """What the copies inside an operator of this name are, on a CPU too; None where the operator does not say."""
    rules = (rule for rule in copy_rules() if rule.operator is not None and rule.pattern is None)
    return next((rule.kind for rule in rules if rule.fits("", operator)), None)

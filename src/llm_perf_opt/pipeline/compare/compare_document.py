"""Two sides that were read, as one document: the same for the command and for Python."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llm_perf_opt.comparison.comparison import CompareDocument, compare_sides, refuse_unknown_metrics
from llm_perf_opt.comparison.gate import Condition
from llm_perf_opt.comparison.settings import incomparable
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.compare.sides import changes_between, device_notes, known_variation

if TYPE_CHECKING:
    from llm_perf_opt.pipeline.compare.sides import ReadSide

# Reasons of a refusal that are printed.
REASONS = 8


def compare_read_sides(
    base: "ReadSide",
    candidate: "ReadSide",
    *,
    threshold: float,
    conditions: Sequence[Condition] = (),
    paired: bool = False,
    force: bool = False,
    spent: float = 1.0,
    stated: float | None = None,
    meant: frozenset[str] = frozenset(),
) -> CompareDocument:
    """Compare two sides; an error where they did not do the same work, unless `force` overrules that.

    `stated` is the variation from start to start as the user states it, `meant` are settings that were to differ.
    """
    refuse_unknown_metrics(conditions, base.input, candidate.input)
    settings = changes_between(base, candidate, meant=meant)
    reasons = incomparable(settings)
    if reasons and not force:
        raise _different_work(reasons)
    return compare_sides(
        base.input,
        candidate.input,
        conditions=conditions,
        paired=paired,
        threshold=threshold,
        settings=settings,
        forced=reasons,
        spent=spent,
        variation=known_variation(base, candidate, stated),
        notes=device_notes(base, candidate),
    )


def _different_work(reasons: Sequence[str]) -> ConfigError:
    return ConfigError(
        [
            *(f"compare: {reason}" for reason in reasons[:REASONS]),
            *([f"compare: … and {len(reasons) - REASONS} more settings"] if len(reasons) > REASONS else []),
            "compare: these runs did not do the same work; --force compares them anyway and marks every output",
        ]
    )

"""Reads both sides, refuses those that did not do the same work, and compares them as asked."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.comparison.comparison import CompareDocument, compare_sides, is_settled
from llm_perf_opt.comparison.gate import Condition
from llm_perf_opt.comparison.statistics import shared_among
from llm_perf_opt.pipeline.compare.compare_document import compare_read_sides
from llm_perf_opt.pipeline.compare.sides import ReadSide, read_side, read_sides


@dataclass(frozen=True, kw_only=True)
class Question:
    """How two sides are compared. `looks`: after how many pairs; `meant`: settings that were changed on purpose."""

    conditions: Sequence[Condition]
    threshold: float
    looks: tuple[int, ...]
    is_paired: bool
    start_variation: float | None
    meant: frozenset[str]
    is_forced: bool


def is_answered(sides: Sequence[Path], question: Question, look: int) -> bool:
    """Whether every gate, or every metric, has its answer with the pairs there are."""
    inputs = [read_side(path).input for path in sides]
    found = compare_sides(
        *inputs,
        conditions=question.conditions,
        paired=True,
        threshold=question.threshold,
        spent=shared_among(question.looks)[look],
    )
    return is_settled(found)


def compare_paths(sides: Sequence[Path], question: Question) -> tuple[CompareDocument, ReadSide, ReadSide]:
    """The comparison, and both sides for the page."""
    base, candidate = read_sides(*sides, paired=question.is_paired, force=question.is_forced)
    spent = shared_among(question.looks)
    pairs = min(len(base.input.passes), len(candidate.input.passes))
    found = compare_read_sides(
        base,
        candidate,
        conditions=question.conditions,
        paired=question.is_paired,
        threshold=question.threshold,
        force=question.is_forced,
        spent=spent[question.looks.index(pairs)] if pairs in question.looks else spent[-1],
        stated=question.start_variation,
        meant=question.meant,
    )
    return found, base, candidate

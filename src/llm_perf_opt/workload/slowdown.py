"""Compares the profiled pass with the clean one of its run: how much slower, and whether the tokens are the same."""

from collections.abc import Sequence

from llm_perf_opt.core.slowdown import TimedSample, matched_ratios
from llm_perf_opt.workload.results import SampleResult


def compare_passes(clean: Sequence[SampleResult], profiled: Sequence[SampleResult]) -> dict[str, float | None]:
    """Profiled time by clean time, per phase, over the same samples and first steps."""
    return matched_ratios([_timed(c) for c in clean], [_timed(p) for p in profiled])


def tokens_differ(clean: Sequence[SampleResult], profiled: Sequence[SampleResult]) -> bool:
    """Whether a profiled sample's tokens are not the first ones of its clean pass."""
    first = {c.sample_id: c.generation.sequences for c in reversed(clean)}
    return any(
        full[: len(part)] != part
        for r in profiled
        if r.sample_id in first
        for full, part in zip(first[r.sample_id], r.generation.sequences, strict=True)
    )


def _timed(result: SampleResult) -> TimedSample:
    generation = result.generation
    return TimedSample(sample_id=result.sample_id, prefill_ms=generation.prefill_ms, step_ms=tuple(generation.itl_ms))

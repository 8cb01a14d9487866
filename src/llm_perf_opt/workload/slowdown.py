"""How much slower the profiled pass was: the same samples, and the same first steps of each."""

from collections.abc import Sequence
from statistics import fmean, median

from llm_perf_opt.workload.results import SampleResult


def compare_passes(clean: Sequence[SampleResult], profiled: Sequence[SampleResult]) -> dict[str, float | None]:
    """Profiled time by clean time, per phase; the clean time of a sample is the median of its repeats."""
    prefill: list[tuple[float, float]] = []
    decode: list[tuple[float, float]] = []
    for result in profiled:
        same = [c for c in clean if c.sample_id == result.sample_id]
        if not same:
            continue
        prefill.append((result.generation.prefill_ms, median(c.generation.prefill_ms for c in same)))
        steps = len(result.generation.itl_ms)
        # A later step reads a longer cache, so only as many steps as were profiled are compared.
        means = [fmean(c.generation.itl_ms[:steps]) for c in same if len(c.generation.itl_ms) >= steps > 0]
        if means:
            decode.append((fmean(result.generation.itl_ms), median(means)))
    return {"prefill": _ratio(prefill), "decode": _ratio(decode)}


def tokens_differ(clean: Sequence[SampleResult], profiled: Sequence[SampleResult]) -> bool:
    """Whether a profiled sample's tokens are not the first ones of its clean pass."""
    first = {c.sample_id: c.generation.token_ids for c in reversed(clean)}
    return any(first[r.sample_id][: r.tokens] != r.generation.token_ids for r in profiled if r.sample_id in first)


def _ratio(pairs: Sequence[tuple[float, float]]) -> float | None:
    below = sum(clean for _, clean in pairs)
    return sum(profiled for profiled, _ in pairs) / below if below > 0 else None

"""What one finished sample measured, and the metrics of a pass over many of them.

Statistics of measured values: mean, standard deviation and percentiles, or the reason why there are none.

Percentiles interpolate linearly between the two nearest ranks; the standard deviation is that of a sample (n - 1).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from llm_perf_opt.core.documents import PassTotals, Stats
from llm_perf_opt.core.percentiles import percentile
from llm_perf_opt.core.slowdown import TimedSample, matched_ratios
from llm_perf_opt.workload.generation import Generation

PERCENTILES = (10, 50, 90, 99)
PERCENTILE_METHOD = "linear interpolation between the nearest ranks, rank = (n - 1) * p / 100"
STD_METHOD = "sample standard deviation (n - 1); null when n < 2"


def summarise(values: Iterable[float], *, reason: str) -> Stats:
    """The statistics of these values; with none of them, nulls and the reason."""
    ordered = sorted(values)
    count = len(ordered)
    if count == 0:
        return Stats(mean=None, std=None, p10=None, p50=None, p90=None, p99=None, n=0, reason=reason)
    mean = math.fsum(ordered) / count
    std = math.sqrt(math.fsum((v - mean) ** 2 for v in ordered) / (count - 1)) if count > 1 else None
    p10, p50, p90, p99 = (percentile(ordered, p) for p in PERCENTILES)
    return Stats(mean=mean, std=std, p10=p10, p50=p50, p90=p90, p99=p99, n=count)


NO_SAMPLE = "no sample was finished"
ONE_TOKEN = "every sample ended after its first token, so no token was decoded after prefill"


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """One sample, or one batch of them, of one repeat of a pass.

    `prompt_tokens` are the positions prefill processed for each sequence, `own_prompt_tokens` those of all sequences
    without padding; `tokens` of a batch are those of its longest sequence. `host_probe_ms` is the time a fixed piece of
    host work took around the sample, the slower of before and after. `post_ms` is the time the tokens took to become
    text, None where it was not requested.
    """

    sample_id: str
    pass_name: str
    repeat: int
    epoch: int
    prompt_tokens: int
    prepare_ms: float
    generation: Generation
    peak_memory_bytes: int | None
    own_prompt_tokens: int | None = None
    host_probe_ms: float | None = None
    post_ms: float | None = None

    @property
    def batch(self) -> int:
        return len(self.generation.sequences)

    @property
    def tokens(self) -> int:
        return max(len(sequence) for sequence in self.generation.sequences)

    @property
    def all_tokens(self) -> int:
        return sum(len(sequence) for sequence in self.generation.sequences)

    @property
    def all_prompt_tokens(self) -> int:
        return self.prompt_tokens if self.own_prompt_tokens is None else self.own_prompt_tokens

    @property
    def e2e_ms(self) -> float:
        """Host preparation, prefill, the first token, and decode."""
        return self.prepare_ms + self.generation.ttft_ms + (self.generation.decode_ms or 0.0)

    @property
    def tpot_ms(self) -> float | None:
        decode_ms = self.generation.decode_ms
        return None if decode_ms is None else decode_ms / (self.tokens - 1)

    @property
    def prefill_tokens_per_s(self) -> float:
        """Of all sequences together."""
        return self.all_prompt_tokens / (self.generation.prefill_ms / 1e3)

    @property
    def decode_tokens_per_s(self) -> float | None:
        """Of all sequences together."""
        decode_ms = self.generation.decode_ms
        return None if decode_ms is None else (self.all_tokens - self.batch) / (decode_ms / 1e3)

    def line(self) -> dict[str, Any]:
        """The sample as a line of samples.jsonl."""
        generation = self.generation
        line: dict[str, Any] = {
            "sample_id": self.sample_id,
            "pass": self.pass_name,
            "repeat": self.repeat,
            "epoch": self.epoch,
            "prompt_tokens": self.prompt_tokens,
            "tokens": self.tokens,
            **(
                {"batch": self.batch, "all_tokens": self.all_tokens, "all_prompt_tokens": self.all_prompt_tokens}
                if self.batch > 1
                else {}
            ),
            "start_ns": generation.start_ns,
            "prepare_ms": self.prepare_ms,
            "prefill_ms": generation.prefill_ms,
            "ttft_ms": generation.ttft_ms,
            "decode_ms": generation.decode_ms,
            "tpot_ms": self.tpot_ms,
            "e2e_ms": self.e2e_ms,
            **({} if self.post_ms is None else {"post_ms": self.post_ms}),
            "prefill_tokens_per_s": self.prefill_tokens_per_s,
            "decode_tokens_per_s": self.decode_tokens_per_s,
            **{f"{name}_ms": value for name, value in generation.parts_ms.items()},
            "peak_memory_bytes": self.peak_memory_bytes,
            **({} if self.host_probe_ms is None else {"host_probe_ms": self.host_probe_ms}),
            "itl_ms": summarise(generation.itl_ms, reason="only one token was generated"),
            "itl_values_ms": [round(value, 6) for value in generation.itl_ms],
        }
        if generation.decode_ms is None:
            line["reason"] = "decode_ms, tpot_ms, decode_tokens_per_s: only one token was generated"
        return line


def pass_metrics(results: Sequence[SampleResult], parts: Sequence[str]) -> dict[str, Stats]:
    """Statistics over all finished samples of a pass; `itl_ms` pools the gaps of all of them."""
    decoded = ONE_TOKEN if results else NO_SAMPLE
    tpots = [(r.tpot_ms, r.generation.decode_ms) for r in results]
    metrics = {
        "prompt_tokens": summarise((r.prompt_tokens for r in results), reason=NO_SAMPLE),
        "tokens": summarise((r.tokens for r in results), reason=NO_SAMPLE),
        "prepare_ms": summarise((r.prepare_ms for r in results), reason=NO_SAMPLE),
        "prefill_ms": summarise((r.generation.prefill_ms for r in results), reason=NO_SAMPLE),
        "ttft_ms": summarise((r.generation.ttft_ms for r in results), reason=NO_SAMPLE),
        "decode_ms": summarise((d for _, d in tpots if d is not None), reason=decoded),
        "tpot_ms": summarise((t for t, _ in tpots if t is not None), reason=decoded),
        "itl_ms": summarise((gap for r in results for gap in r.generation.itl_ms), reason=decoded),
        "e2e_ms": summarise((r.e2e_ms for r in results), reason=NO_SAMPLE),
        "prefill_tokens_per_s": summarise((r.prefill_tokens_per_s for r in results), reason=NO_SAMPLE),
        "decode_tokens_per_s": summarise(
            (r.decode_tokens_per_s for r in results if r.decode_tokens_per_s is not None), reason=decoded
        ),
    }
    posts = [r.post_ms for r in results if r.post_ms is not None]
    if posts:
        metrics["post_ms"] = summarise(posts, reason=NO_SAMPLE)
    for part in parts:
        values = [r.generation.parts_ms[part] for r in results if part in r.generation.parts_ms]
        metrics[f"{part}_ms"] = summarise(values, reason=f"the range {part} was never opened")
    return metrics


def totals(results: Sequence[SampleResult]) -> PassTotals:
    """Sums over the pass, and the rates they give: all tokens by all the time."""
    prefill_s = sum(r.generation.prefill_ms for r in results) / 1e3
    decode_s = sum(r.generation.decode_ms or 0.0 for r in results) / 1e3
    prompt = sum(r.all_prompt_tokens for r in results)
    tokens = sum(r.all_tokens for r in results)
    decoded = sum(r.all_tokens - r.batch for r in results)
    return PassTotals(
        prompt_tokens=prompt,
        tokens=tokens,
        prefill_s=prefill_s,
        decode_s=decode_s,
        prefill_tokens_per_s=prompt / prefill_s if prefill_s > 0 else None,
        decode_tokens_per_s=decoded / decode_s if decode_s > 0 else None,
    )


def peak_memory(results: Sequence[SampleResult], *, reason: str | None) -> tuple[int | None, str | None]:
    """The highest peak of the pass, or None and why there is none."""
    peaks = [r.peak_memory_bytes for r in results if r.peak_memory_bytes is not None]
    return (max(peaks), None) if peaks else (None, reason or NO_SAMPLE)


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

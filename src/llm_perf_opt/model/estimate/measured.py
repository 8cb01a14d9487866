"""The pace of a server as it was measured: what other loads of the same requests take on it.

The time of a request among n in flight (n · output tokens / output tokens per second, by Little's law) is taken
straight between measured levels, and never beyond them. It is split into the prompt and the steps by the time to first
token of the least loaded level and by how much the gaps between tokens grow.
"""

import bisect
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.model.estimate.requests import PROMPT_TOKENS


@dataclass(frozen=True, kw_only=True)
class MeasuredLevel:
    """One load of a server: requests in flight, median milliseconds, tokens per second."""

    concurrency: int
    ttft_ms: float
    gap_ms: float
    output_tokens_per_s: float


@dataclass(frozen=True, kw_only=True)
class MeasuredPace:
    """A server at requests of one length. `levels` in rising order of requests in flight, at least two."""

    levels: tuple[MeasuredLevel, ...]
    prompt: int
    output: int

    @property
    def most(self) -> int:
        return self.levels[-1].concurrency

    @property
    def least(self) -> int:
        return self.levels[0].concurrency

    def cycle_ms(self, sequences: float) -> float:
        """The time of a request at this concurrency, interpolated linearly between measured levels."""
        places = [level.concurrency for level in self.levels]
        at = min(max(1, bisect.bisect_left(places, sequences)), len(places) - 1)
        low, high = self.levels[at - 1], self.levels[at]
        share = (sequences - low.concurrency) / (high.concurrency - low.concurrency)
        return self._cycle(low) + share * (self._cycle(high) - self._cycle(low))

    def _cycle(self, level: MeasuredLevel) -> float:
        return level.concurrency * self.output / level.output_tokens_per_s * 1e3

    @property
    def own_prompt_ms(self) -> float:
        return max(0.0, min(self._added_ms - self._step_growth_ms * (self.output - 1), self.levels[0].ttft_ms))

    @property
    def arrival_ms(self) -> float:
        return self.levels[0].ttft_ms - self.own_prompt_ms

    @property
    def _added_ms(self) -> float:
        """What one more request in flight adds to the time of each: its prompt, and its share of every step."""
        first, last = self.levels[0], self.levels[-1]
        return (self._cycle(last) - self._cycle(first)) / (last.concurrency - first.concurrency)

    @property
    def _step_growth_ms(self) -> float:
        first, last = self.levels[0], self.levels[-1]
        return max(0.0, (last.gap_ms - first.gap_ms) / (last.concurrency - first.concurrency))

    @property
    def most_together(self) -> int:
        return max(1, PROMPT_TOKENS // self.prompt)

    def together(self, sequences: int) -> int:
        return max(1, min(sequences, self.most_together))

    def others_prompt_ms(self, sequences: int) -> float:
        return self.own_prompt_ms

    def prompt_ms_each(self, together: int, sequences: int) -> float:
        return self.own_prompt_ms

    def step_ms(self, sequences: int) -> float:
        """What is left of the measured time of a request without the prompts."""
        left = self.cycle_ms(max(self.least, sequences)) - self.arrival_ms
        return max(1e-6, (left - sequences * self.own_prompt_ms) / max(1, self.output - 1))

    def tokens_per_s(self, sequences: int) -> float:
        return sequences * self.output / self.cycle_ms(sequences) * 1e3


def left_out_errors(pace: MeasuredPace) -> list[tuple[int, float]]:
    """Every level but the outermost, by the others: requests in flight, and throughput over the measured one less 1."""
    found = []
    for index in range(1, len(pace.levels) - 1):
        level = pace.levels[index]
        others = MeasuredPace(
            levels=(*pace.levels[:index], *pace.levels[index + 1 :]), prompt=pace.prompt, output=pace.output
        )
        error = others.tokens_per_s(level.concurrency) / level.output_tokens_per_s - 1
        found.append((level.concurrency, error))
    return found


def median_error(errors: Sequence[tuple[int, float]]) -> float | None:
    return statistics.median(abs(error) for _, error in errors) if errors else None

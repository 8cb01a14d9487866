"""The pace of a server as it was measured: what other loads of the same requests take on it.

The time of a request among n in flight (n · output tokens / output tokens per second, by Little's law) is taken between
measured levels and never beyond them: straight from one level to the next, or on a line through all of them where that
meets levels that are left out better, which it does where the levels scatter. Times to first token of requests in
flight are the measured ones. For requests that arrive by themselves, the time of a request is split into prompt and
steps: the median gap between tokens is a step, and what the steps leave of the time of a request are the prompts.
"""

import bisect
import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from llm_perf_opt.model.estimate.queueing import TAIL, LoadTimes
from llm_perf_opt.model.estimate.requests import PROMPT_TOKENS


@dataclass(frozen=True, kw_only=True)
class MeasuredLevel:
    """One load of a server: requests in flight, milliseconds to the first token and between tokens, tokens per second.

    `ttft_mean_ms`, `ttft_p90_ms` and `ttft_p99_ms` are the median where they were not reported.
    """

    concurrency: int
    ttft_ms: float
    gap_ms: float
    output_tokens_per_s: float
    ttft_mean_ms: float | None = None
    ttft_p90_ms: float | None = None
    ttft_p99_ms: float | None = None

    @property
    def ttft_p95_ms(self) -> float:
        """Between the 90th and the 99th percentile as in an exponential tail, in which log(1 - q) is the place."""
        low = self.ttft_ms if self.ttft_p90_ms is None else self.ttft_p90_ms
        high = low if self.ttft_p99_ms is None else self.ttft_p99_ms
        return low + (high - low) * math.log((1 - 0.9) / (1 - TAIL)) / math.log((1 - 0.9) / (1 - 0.99))


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
        """The time of a request at this concurrency."""
        return self._line(sequences) if self._is_line else self._between(sequences, self._cycle)

    def closed_times(self, sequences: int) -> LoadTimes:
        """Of requests in flight, each of which is followed by the next; first tokens as they were measured."""
        cycle = self.cycle_ms(sequences)
        mean = self._between(
            sequences, lambda level: level.ttft_ms if level.ttft_mean_ms is None else level.ttft_mean_ms
        )
        steps = max(0.0, cycle - mean)
        return LoadTimes(
            ttft_ms=self._between(sequences, lambda level: level.ttft_ms),
            ttft_p95_ms=self._between(sequences, lambda level: level.ttft_p95_ms),
            tpot_ms=steps / (self.output - 1) if self.output > 1 else cycle,
            request_ms=cycle,
        )

    def _between(self, sequences: float, value: Callable[[MeasuredLevel], float]) -> float:
        """A figure of the levels, straight from one to the next."""
        places = [level.concurrency for level in self.levels]
        at = min(max(1, bisect.bisect_left(places, sequences)), len(places) - 1)
        low, high = self.levels[at - 1], self.levels[at]
        share = (sequences - low.concurrency) / (high.concurrency - low.concurrency)
        return value(low) + share * (value(high) - value(low))

    def _line(self, sequences: float) -> float:
        start, slope = _relative_line([(level.concurrency, self._cycle(level)) for level in self.levels])
        return start + slope * sequences

    @cached_property
    def _is_line(self) -> bool:
        """Whether levels that are left out lie nearer to a line through the others than to their neighbours."""
        errors = [(self._left_out(level, is_line=True), self._left_out(level)) for level in self.levels[1:-1]]
        if len(errors) < 2:
            return False
        line, straight = (statistics.median(map(abs, found)) for found in zip(*errors, strict=True))
        return bool(line < straight)

    def _left_out(self, level: MeasuredLevel, *, is_line: bool = False) -> float:
        """The throughput that the other levels give for one of them, over the measured one less 1."""
        others = MeasuredPace(
            levels=tuple(other for other in self.levels if other != level), prompt=self.prompt, output=self.output
        )
        found = others._line(level.concurrency) if is_line else others._between(level.concurrency, self._cycle)
        return self._cycle(level) / found - 1

    def left_out_error(self, level: MeasuredLevel) -> float:
        return self._left_out(level, is_line=self._is_line)

    def left_out_ttft_error(self, level: MeasuredLevel) -> float | None:
        """The median time to first token that the other levels give over the measured one, less 1; None: outermost."""
        if level in (self.levels[0], self.levels[-1]):
            return None
        others = MeasuredPace(
            levels=tuple(other for other in self.levels if other != level), prompt=self.prompt, output=self.output
        )
        return others.closed_times(level.concurrency).ttft_ms / level.ttft_ms - 1

    def _cycle(self, level: MeasuredLevel) -> float:
        return level.concurrency * self.output / level.output_tokens_per_s * 1e3

    @cached_property
    def own_prompt_ms(self) -> float:
        """By how much each request in flight lengthens what the steps leave of the time of a request.

        The median of all pairs of levels; never more than a first token.
        """
        left = [(level.concurrency, self._cycle(level) - (self.output - 1) * level.gap_ms) for level in self.levels]
        slopes = [(b - a) / (more - fewer) for (fewer, a), (more, b) in itertools.combinations(left, 2)]
        return max(0.0, min(statistics.median(slopes), self.levels[0].ttft_ms))

    @property
    def arrival_ms(self) -> float:
        return self.levels[0].ttft_ms - self.own_prompt_ms

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


def _relative_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Start and slope of the line with the least sum of squared relative errors."""
    weights = [1 / value**2 for _, value in points]
    total = sum(weights)
    mean_x = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, points, strict=True)) / spread
    return mean_y - slope * mean_x, slope


def left_out_errors(pace: MeasuredPace) -> list[tuple[int, float]]:
    """Every level but the outermost, by the others: requests in flight, and throughput over the measured one less 1."""
    return [(level.concurrency, pace.left_out_error(level)) for level in pace.levels[1:-1]]


def left_out_ttft_errors(pace: MeasuredPace) -> list[tuple[int, float]]:
    """The same of median times to first token."""
    errors = ((level.concurrency, pace.left_out_ttft_error(level)) for level in pace.levels)
    return [(count, error) for count, error in errors if error is not None]


def median_error(errors: Sequence[tuple[int, float]]) -> float | None:
    return statistics.median(abs(error) for _, error in errors) if errors else None

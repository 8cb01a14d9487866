"""Where a server saturates, which of the measured levels to run it at, and which levels meet the SLO."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from llm_perf_opt.core.units import digits
from llm_perf_opt.serving.load_results import BenchDocument, CapacityResult, LevelResult

# A level that adds less than this share of what a linear server would add saturates it.
LEAST_GAIN = 0.1


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """The last level before saturation, and what the next one changes: throughput by a share, TTFT by a factor."""

    level: LevelResult
    beyond: LevelResult
    more_throughput: float
    ttft_factor: float | None

    @property
    def text(self) -> str:
        ttft = "" if self.ttft_factor is None else f" at {digits(self.ttft_factor, 2)}× TTFT"
        beyond = f"{self.beyond.rate:g}" if self.beyond.rate is not None else f"{self.beyond.concurrency}"
        gain = 100 * self.more_throughput
        change = f"adds {gain:.1f} % throughput" if gain >= 0 else f"has {-gain:.1f} % less throughput"
        return f"saturates at {self.level.label}; {beyond} {change}{ttft}"


def saturation(levels: Sequence[LevelResult]) -> Saturation | None:
    """The first level after which more load brings almost no more throughput; None where none was seen."""
    for level, beyond in pairwise(ordered(levels)):
        before, after = throughput(level), throughput(beyond)
        if not before or after is None:
            continue
        more_load = _load(beyond) / _load(level) - 1
        gain = after / before - 1
        if more_load > 0 and gain / more_load < LEAST_GAIN:
            ttft, later = (_median(one, "ttft") for one in (level, beyond))
            return Saturation(
                level=level,
                beyond=beyond,
                more_throughput=gain,
                ttft_factor=later / ttft if ttft and later is not None else None,
            )
    return None


def recommended(document: BenchDocument) -> LevelResult | None:
    """The level to run at: with an SLO the most load that meets it, else the last one before saturation.

    Of a search the one at the highest load that met the SLO; its first levels, closed loops at another load, are none.
    """
    if document.capacity is not None:
        return next((one for one in document.levels if is_sound(one) and _is_met(one, document.capacity)), None)
    levels = [level for level in ordered(document.levels) if is_sound(level)]
    if document.slo.is_set:
        met = [level for level in levels if level.meets_slo]
        return max(met, key=lambda level: level.goodput_per_s or 0.0, default=None)
    found = saturation(levels)
    if found is not None:
        return found.level
    return levels[-1] if levels else None


def _is_met(level: LevelResult, capacity: CapacityResult) -> bool:
    load = level.rate if capacity.by == "rate" else level.concurrency
    return load is not None and load == capacity.met


def verdict(document: BenchDocument) -> str | None:
    """Invalid levels, saturation and the recommended level in a few sentences; None where there is nothing to say."""
    if document.capacity is not None:
        return document.capacity.text
    levels = [level for level in ordered(document.levels) if is_sound(level)]
    late = [level.label for level in document.levels if level.invalid is not None]
    left_out = f"The client was late at {', '.join(late)}: not counted." if late and len(document.levels) > 1 else None
    if not levels or (len(document.levels) < 2 and not document.slo.is_set):
        return left_out
    found = saturation(levels)
    best = recommended(document)
    said = [] if left_out is None else [left_out]
    if found is not None:
        said.append(f"The server {found.text}.")
    elif len(levels) > 1:
        said.append(f"No saturation up to {levels[-1].label}.")
    if document.slo.is_set:
        share = f"{100 * document.slo.share:g} % of the requests"
        if best is None:
            which = "No other level" if late else "No level"
            said.append(f"{which} meets the SLO ({document.slo.text}, {share}).")
        else:
            said.append(f"Recommended: {best.label}, the most load that meets the SLO ({document.slo.text}, {share}).")
    elif best is not None:
        said.append(f"Recommended: {best.label}.")
    return " ".join(said)


def ordered(levels: Sequence[LevelResult]) -> list[LevelResult]:
    """Levels by their load; those of another kind than the first are left out."""
    kind = next((level.rate is not None for level in levels), False)
    same = [level for level in levels if (level.rate is not None) is kind and (level.rate or level.concurrency)]
    return sorted(same, key=_load)


def is_sound(level: LevelResult) -> bool:
    """Whether the figures are those of the server."""
    return level.completed > 0 and level.invalid is None


def throughput(level: LevelResult) -> float | None:
    """What saturates: tokens, or requests where tokens are not known."""
    return level.output_tokens_per_s or level.requests_per_s


def _load(level: LevelResult) -> float:
    return level.rate or float(level.concurrency or 0)


def _median(level: LevelResult, name: str) -> float | None:
    return level.latencies[name].median_ms if name in level.latencies else None

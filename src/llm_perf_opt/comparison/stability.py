"""Do the repeats of one measurement agree? Drift, two levels, a warm-up that is not over, and how many more it takes.

Samples differ by what they ask of the model, so every value is taken relative to the median of its own sample over the
repeats; what is left is what the machine did.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev

from llm_perf_opt.comparison.student import t_quantile

CONFIDENCE = 0.95
# A half-width of the interval below this share of the value counts as conclusive where no other limit was requested.
TARGET = 0.02
# Smaller disagreements than this are not worth a sentence.
NOTABLE = 0.03
FEWEST_FOR_SHAPE = 8
FEWEST_PROBES = 3
# Of the samples, how many each of two levels must hold; and how far apart they are, in spreads of the wider one.
SMALLER_LEVEL, APART = 0.2, 4.0
# Kendall's statistic in units of its own deviation: chance gives more than this about once in a thousand series.
DRIFT_SIGMA = 3.3
# Cores that other programs kept busy, as a part of all cores, from which it is reported.
OTHER_LOAD = 0.1
CLOCK_SPREAD = 0.05
# A fixed piece of host work whose slower tenth takes so much longer than its faster one.
HOST_SPREAD = 0.15
# Every pair of values is inspected.
MOST_FOR_DRIFT = 300
# More repeats than this are not worth suggesting.
MANY = 300


@dataclass(frozen=True, kw_only=True)
class RepeatedValue:
    """One value of one sample in one repeat; a series is in the order of measurement."""

    sample_id: str
    repeat: int
    value: float


@dataclass(frozen=True, kw_only=True)
class Stability:
    """How well repeats agree.

    `half_width` is that of the confidence interval of the level, as a share of it; None with one repeat. `more_repeats`
    would bring it below the target. `warnings` are sentences.
    """

    repeats: int
    half_width: float | None
    more_repeats: int
    warnings: tuple[str, ...]


def relative_values(series: Sequence[RepeatedValue]) -> list[RepeatedValue]:
    """Each value by the median of its sample."""
    of_sample: dict[str, list[float]] = {}
    for item in series:
        of_sample.setdefault(item.sample_id, []).append(item.value)
    middle = {name: median(values) for name, values in of_sample.items()}
    return [
        RepeatedValue(sample_id=item.sample_id, repeat=item.repeat, value=item.value / middle[item.sample_id])
        for item in series
        if middle[item.sample_id] > 0
    ]


def repeat_levels(series: Sequence[RepeatedValue]) -> list[float]:
    """The median of the relative values of each repeat, in order."""
    of_repeat: dict[int, list[float]] = {}
    for item in relative_values(series):
        of_repeat.setdefault(item.repeat, []).append(item.value)
    return [median(values) for _, values in sorted(of_repeat.items())]


def half_width(levels: Sequence[float]) -> float | None:
    """Half the confidence interval of the mean of these levels, as a share of it; None for fewer than two."""
    if len(levels) < 2:
        return None
    spread = stdev(levels) / fmean(levels)
    return t_quantile(0.5 + CONFIDENCE / 2, len(levels) - 1) * spread / math.sqrt(len(levels))


def repeats_for(levels: Sequence[float], target: float) -> int:
    """How many repeats as noisy as these bring the half-width to the target; as many as there are if they do."""
    width = half_width(levels)
    count = len(levels)
    if width is None or width <= target:
        return count
    spread = stdev(levels) / fmean(levels)
    while count < 10_000 and t_quantile(0.5 + CONFIDENCE / 2, count - 1) * spread / math.sqrt(count) > target:
        count += 1 + count // 20
    return count


def check_stability(name: str, series: Sequence[RepeatedValue], *, target: float = TARGET) -> Stability:
    """What is to be reported of the repeats of one metric."""
    levels = repeat_levels(series)
    relative = [item.value for item in relative_values(series)]
    found = [text for text in (_warmup(levels), _two_levels(relative) or _drift(relative)) if text is not None]
    width = half_width(levels)
    more = repeats_for(levels, target) - len(levels)
    if width is not None and width > target:
        known = f"uncertain by ±{100 * width:.1f} % (95 % interval of {len(levels)} repeats)"
        if more > MANY:
            found.append(
                f"{known}; no sensible number of repeats narrows it to ±{100 * target:g} %, a quiet machine may"
            )
        else:
            found.append(f"{known}; about {more} more repeats would narrow it to ±{100 * target:g} %")
    return Stability(
        repeats=len(levels),
        half_width=width,
        more_repeats=more,
        warnings=tuple(f"{name}: {text}" for text in found),
    )


def machine_warnings(
    *,
    other_cpus: float | None,
    cpu_count: int | None,
    clocks_mhz: Sequence[float] = (),
    throttled: Sequence[str] = (),
    host_probes_ms: Sequence[float] = (),
) -> tuple[str, ...]:
    """What else may have moved the times: other programs, cores that ran at several speeds, clocks that moved."""
    found = []
    if other_cpus is not None and cpu_count and other_cpus > OTHER_LOAD * cpu_count:
        found.append(
            f"other programs kept {other_cpus:.1f} of {cpu_count} CPU cores busy during the clean pass; measure on a "
            "quiet machine, or compare with --interleave"
        )
    if len(host_probes_ms) >= FEWEST_PROBES:
        low, high = _tenths(host_probes_ms)
        if low > 0 and high / low - 1 > HOST_SPREAD:
            found.append(
                f"the CPU cores did not run at one speed: a fixed piece of work took {low:.2f} to {high:.2f} ms "
                "between the samples (a shared or virtual machine, or a changing CPU clock); what waits for launches "
                "follows it"
            )
    if len(clocks_mhz) >= FEWEST_FOR_SHAPE:
        low, high = _tenths(clocks_mhz)
        if low > 0 and high / low - 1 > CLOCK_SPREAD:
            found.append(
                f"the GPU's clock varied between {low:.0f} and {high:.0f} MHz while work was running; lock it "
                "(nvidia-smi -lgc) for comparisons"
            )
    if throttled:
        found.append(f"the GPU's clock was held down during the run: {', '.join(sorted(set(throttled)))}")
    return tuple(found)


def _warmup(levels: Sequence[float]) -> str | None:
    """The first repeat is slower than all others by more than these differ among themselves."""
    if len(levels) < 3:
        return None
    rest = levels[1:]
    above = levels[0] / median(rest) - 1
    if above < NOTABLE or levels[0] - max(rest) <= max(rest) - min(rest):
        return None
    return (
        f"the first repeat was {100 * above:.0f} % above the others: the warm-up was not over; raise warmup_rounds of "
        "the stage"
    )


def _drift(values: Sequence[float]) -> str | None:
    """Kendall's test for a trend over the order of measurement; of long series, evenly spaced values."""
    values = values[:: 1 + len(values) // MOST_FOR_DRIFT]
    count = len(values)
    if count < FEWEST_FOR_SHAPE:
        return None
    score = sum(
        (later > values[first]) - (later < values[first]) for first in range(count) for later in values[first + 1 :]
    )
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    third = max(1, count // 3)
    change = median(values[-third:]) / median(values[:third]) - 1
    if abs(score) <= DRIFT_SIGMA * deviation or abs(change) < NOTABLE:
        return None
    return f"the values drift: the last third is {100 * change:+.0f} % against the first (clocks, temperature, memory?)"


def _two_levels(values: Sequence[float]) -> str | None:
    """The widest gap between sorted values parts them into two groups that are each much narrower than it."""
    ordered = sorted(values)
    count = len(ordered)
    if count < FEWEST_FOR_SHAPE:
        return None
    least = max(2, math.ceil(SMALLER_LEVEL * count))
    cut = max(range(least, count - least + 1), key=lambda index: ordered[index] - ordered[index - 1], default=0)
    if cut == 0:
        return None
    low, high = ordered[:cut], ordered[cut:]
    gap = high[0] - low[-1]
    if gap < NOTABLE * median(low) or gap < APART * max(_half_range(low), _half_range(high)):
        return None
    return (
        f"the values lie on two levels: {len(low)} of {count} near {100 * median(low):.0f} % and {len(high)} near "
        f"{100 * median(high):.0f} % of the median; something switches between them"
    )


def _tenths(values: Sequence[float]) -> tuple[float, float]:
    """The values below and above which a tenth lies; the ends of a short series."""
    ordered = sorted(values)
    return ordered[len(ordered) // 10], ordered[(9 * len(ordered)) // 10]


def _half_range(ordered: Sequence[float]) -> float:
    return (ordered[-1] - ordered[0]) / 2

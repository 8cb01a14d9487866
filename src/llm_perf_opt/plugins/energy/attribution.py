"""From readings of a meter and spans of the workload to joules. Pure.

A counter of joules is refreshed now and then (every few tens of milliseconds on GPUs), so what is known exactly is the
energy between two refreshes. A phase much longer than that gets what the counter grew by while it lasted, taken as even
between refreshes. Where a phase is shorter, powers are fitted: each stretch between two refreshes holds so much of each
phase, and the powers that explain all stretches best (least squares) are taken, with the error they may have. What a
counter shows may be old when it is refreshed; the fit tries how old, and takes what explains the stretches best.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from llm_perf_opt.plugin import WorkloadSpan
from llm_perf_opt.plugins.energy.meters import Reading

# A phase that lasts as many refreshes as this, or longer, is read off the counter.
LONG_PHASE = 5.0
# A fitted energy whose standard error is larger than this share of it is not reported.
WORST_ERROR = 0.25
# How old the counter may be when it is refreshed; below zero, because a refresh is seen by the next reading only.
LAGS_S = tuple(step * 0.005 for step in range(-4, 41))
# Counters resolve millijoules at best, and readings see them a little late.
COUNTER_STEP_J = 0.01
REST = "rest"
# Time outside every phase that is less than this share of all is not worth its own power.
LEAST_REST = 0.02


@dataclass(frozen=True, kw_only=True)
class EnergyCurve:
    """Joules over time at the moments where they are known; `period_s` is the median time between two of them."""

    at_ns: tuple[int, ...]
    joules: tuple[float, ...]
    period_s: float

    def between(self, start_ns: int, end_ns: int) -> float | None:
        """What was used from one moment to another; None outside of what was metered."""
        first, last = self._at(start_ns), self._at(end_ns)
        return None if first is None or last is None else last - first

    def _at(self, moment: int) -> float | None:
        i = bisect_right(self.at_ns, moment)
        if i == 0 or (i == len(self.at_ns) and moment > self.at_ns[-1]):
            return None
        if i == len(self.at_ns):
            return self.joules[-1]
        t0, t1 = self.at_ns[i - 1], self.at_ns[i]
        return self.joules[i - 1] + (self.joules[i] - self.joules[i - 1]) * (moment - t0) / (t1 - t0)


@dataclass(frozen=True, kw_only=True)
class PhaseEnergy:
    """The energy of all spans of one name. `joules` is None with a `reason`; `error_j` is there where it was fitted."""

    phase: str
    count: int
    seconds: float
    tokens: int | None
    joules: float | None = None
    how: str = ""
    error_j: float | None = None
    reason: str | None = None

    @property
    def per_token(self) -> float | None:
        return None if self.joules is None or not self.tokens else self.joules / self.tokens


def counter_curve(readings: Sequence[Reading]) -> EnergyCurve | None:
    """The counter where it was seen to have grown: half way between the reading that shows it and the one before."""
    known = [(r.at_ns, r.energy_j) for r in readings if r.energy_j is not None]
    points: list[tuple[int, float]] = []
    for (before_ns, before), (at_ns, value) in pairwise(known):
        if value > before:
            points.append(((before_ns + at_ns) // 2, value))
    return _curve(points)


def power_curve(readings: Sequence[Reading]) -> EnergyCurve | None:
    """The integral of the power, by trapezoids."""
    known = [(r.at_ns, r.power_w) for r in readings if r.power_w is not None]
    points = [(known[0][0], 0.0)] if known else []
    for (before_ns, before), (at_ns, value) in pairwise(known):
        points.append((at_ns, points[-1][1] + (before + value) / 2 * (at_ns - before_ns) / 1e9))
    return _curve(points)


def _curve(points: Sequence[tuple[int, float]]) -> EnergyCurve | None:
    if len(points) < 3:
        return None
    at_ns = tuple(at for at, _ in points)
    period_s = median(b - a for a, b in pairwise(at_ns)) / 1e9
    return EnergyCurve(at_ns=at_ns, joules=tuple(joules for _, joules in points), period_s=period_s)


def mean_power(curve: EnergyCurve) -> float:
    """Of all the time a curve covers."""
    return (curve.joules[-1] - curve.joules[0]) / ((curve.at_ns[-1] - curve.at_ns[0]) / 1e9)


def lowest_power(curve: EnergyCurve, window_s: float) -> float:
    """The lowest mean power over a window of this length; over all of a curve that is shorter."""
    window_ns = round(window_s * 1e9)
    starts = [at for at in curve.at_ns if at + window_ns <= curve.at_ns[-1]]
    means = [(curve.between(at, at + window_ns) or 0.0) / window_s for at in starts]
    return min(means, default=mean_power(curve))


def phase_energies(curve: EnergyCurve, spans: Sequence[WorkloadSpan], phases: Sequence[str]) -> tuple[PhaseEnergy, ...]:
    """The energy of each phase, in their order: read off the curve, or fitted where one is too short for that."""
    by_phase = {name: [span for span in spans if span.name == name] for name in phases}
    present = {name: found for name, found in by_phase.items() if found}
    # Steps that follow each other at once are one stretch to a meter.
    apart_ns = round(0.1 * curve.period_s * 1e9)
    lengths = {n: [(end - start) / 1e9 for start, end in merged(f, apart_ns)] for n, f in present.items()}
    short = [name for name, seconds in lengths.items() if median(seconds) < LONG_PHASE * curve.period_s]
    if not short:
        return tuple(_read_off(curve, name, found) for name, found in present.items())
    fit = fit_powers(curve, present)
    found = []
    for name, of_phase in present.items():
        energy = _fitted(curve, name, of_phase, fit)
        # The fit may say nothing of a phase that is long enough to be read off.
        found.append(energy if energy.joules is not None or name in short else _read_off(curve, name, of_phase))
    return tuple(found)


def _read_off(curve: EnergyCurve, phase: str, spans: Sequence[WorkloadSpan]) -> PhaseEnergy:
    inside = [span for span in spans if curve.between(span.start_ns, span.end_ns) is not None]
    energy = _energy(phase, inside)
    if not inside:
        return replace(energy, reason="the meter was not read while it ran")
    joules = sum(curve.between(start, end) or 0.0 for start, end in merged(inside))
    return replace(energy, joules=joules, how=f"meter at both ends, refreshed every {curve.period_s * 1e3:.0f} ms")


def _fitted(curve: EnergyCurve, phase: str, spans: Sequence[WorkloadSpan], fit: "PowerFit | None") -> PhaseEnergy:
    energy = _energy(phase, spans)
    lasts_ms = 1e3 * median(span.seconds for span in spans)
    short = f"it lasts {lasts_ms:.1f} ms, the meter is refreshed every {curve.period_s * 1e3:.0f} ms"
    if fit is None or phase not in fit.watts:
        return replace(energy, reason=f"{short}: too few refreshes to separate the phases; more repeats help")
    watts, error_w = fit.watts[phase]
    joules, error_j = watts * energy.seconds, error_w * energy.seconds
    if watts <= 0 or error_w > WORST_ERROR * watts:
        uncertainty = f"a fit gives {joules:.3g} ± {error_j:.2g} J, too uncertain to be reported; more repeats help"
        return replace(energy, reason=f"{short}: {uncertainty}")
    how = f"fitted over refreshes every {curve.period_s * 1e3:.0f} ms, ±{100 * error_w / watts:.1g} %"
    return replace(energy, joules=joules, error_j=error_j, how=how)


def _energy(phase: str, spans: Sequence[WorkloadSpan]) -> PhaseEnergy:
    """What is known of a phase before its joules are."""
    known = [span.tokens for span in spans if span.tokens is not None]
    return PhaseEnergy(
        phase=phase,
        count=len(spans),
        seconds=sum(end - start for start, end in merged(spans)) / 1e9,
        tokens=sum(known) if spans and len(known) == len(spans) else None,
    )


def merged(spans: Sequence[WorkloadSpan], apart_ns: int = 0) -> list[tuple[int, int]]:
    """The time the spans cover: those that overlap, or lie no further apart than this, become one."""
    found: list[tuple[int, int]] = []
    for span in sorted(spans, key=lambda span: span.start_ns):
        if found and span.start_ns <= found[-1][1] + apart_ns:
            found[-1] = (found[-1][0], max(found[-1][1], span.end_ns))
        else:
            found.append((span.start_ns, span.end_ns))
    return found


@dataclass(frozen=True, kw_only=True)
class PowerFit:
    """Watts and their standard error by phase, and how old the counter was when it was refreshed."""

    watts: Mapping[str, tuple[float, float]]
    lag_s: float


def fit_powers(curve: EnergyCurve, spans: Mapping[str, Sequence[WorkloadSpan]]) -> PowerFit | None:
    """The powers that explain what the counter grew by from refresh to refresh; None: they cannot be distinguished."""
    fits = [found for found in (_fit_at(curve, spans, lag_s) for lag_s in LAGS_S) if found is not None]
    if not fits:
        return None
    least, best = min(fits, key=lambda found: found[0])
    # Ages that explain the stretches about as well are as likely, so what they say differently is an error too.
    likely = [fit for variance, fit in fits if variance <= 2 * least + COUNTER_STEP_J**2]
    watts = {}
    for phase, (power, error) in best.watts.items():
        others = [fit.watts[phase][0] for fit in likely if phase in fit.watts]
        watts[phase] = (power, max(error, *(abs(other - power) for other in others)))
    return PowerFit(watts=watts, lag_s=best.lag_s)


def _fit_at(
    curve: EnergyCurve, spans: Mapping[str, Sequence[WorkloadSpan]], lag_s: float
) -> tuple[float, PowerFit] | None:
    """The fit at one age of the counter, and the variance it leaves."""
    import numpy as np

    edges = np.asarray(curve.at_ns, dtype=np.float64) - lag_s * 1e9
    times = {name: merged(found) for name, found in spans.items()}
    used = (edges[:-1] >= min(t[0][0] for t in times.values())) & (edges[1:] <= max(t[-1][1] for t in times.values()))
    inside = np.column_stack([_seconds_inside(edges, found) for found in times.values()])
    rest = np.maximum(np.diff(edges) / 1e9 - inside.sum(axis=1), 0.0)
    amounts = np.column_stack([inside, rest])[used]
    energies = np.diff(np.asarray(curve.joules))[used]
    names = [*spans, REST]
    shares = amounts.sum(axis=0) / max(amounts.sum(), 1e-12)
    present = [i for i, share in enumerate(shares) if share > (LEAST_REST if names[i] == REST else 0.0)]
    amounts = amounts[:, present]
    if len(energies) <= 2 * len(present) or np.linalg.matrix_rank(amounts) < len(present):
        return None
    powers = np.linalg.lstsq(amounts, energies, rcond=None)[0]
    left = energies - amounts @ powers
    variance = float(left @ left) / (len(energies) - len(present))
    errors = np.sqrt(np.diag(variance * np.linalg.inv(amounts.T @ amounts)))
    found = {names[i]: (float(p), float(e)) for i, p, e in zip(present, powers, errors, strict=True)}
    found.pop(REST, None)
    return variance, PowerFit(watts=found, lag_s=lag_s)


def _seconds_inside(edges: Any, times: Sequence[tuple[int, int]]) -> Any:
    """How much of each stretch between two edges lies inside times that do not overlap."""
    import numpy as np

    corners = np.asarray(times, dtype=np.float64)
    lengths = corners[:, 1] - corners[:, 0]
    so_far = np.concatenate([[0.0], np.cumsum(lengths)])
    heights = np.column_stack([so_far[:-1], so_far[1:]]).ravel()
    return np.diff(np.interp(edges, corners.ravel(), heights)) / 1e9

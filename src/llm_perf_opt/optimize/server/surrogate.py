"""What configurations that were not started would give: a Gaussian process over the settings of those that were.

Few starts are affordable, and options interact. The process takes each option as a coordinate, learns from the starts
how far each one reaches (its scale, by the largest marginal likelihood), and says of every combination what it expects
and how sure that is. The next start is the one whose expected improvement is largest.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from llm_perf_opt.optimize.server.space import Configuration, TunedOption, as_number

if TYPE_CHECKING:
    Array = np.ndarray[Any, np.dtype[np.float64]]

# Scales tried for each option, in units of its whole range: from one that changes with each value to one that matters
# little.
SCALES = (0.25, 0.5, 1.0, 3.0)
# What one start differs from the next, as a standard deviation of the logarithm.
NOISES = (0.01, 0.03, 0.08, 0.25)
# A start differs from the others by at least this, in the prior.
LEAST_SPREAD = 0.1
SWEEPS = 2


# What is worse than the best by more than this factor is only bad: how bad says nothing of what lies near the best.
MOST_FALL = 4.0
# Scales and noises that explain the starts less well than the best ones by so much (in nats) are left out.
LEAST_LIKELY = 3.0


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Of the logarithm of the objective, for each configuration asked: means and standard deviations.

    One row for each plausible setting of the process, and its weight: few starts do not show how far an option
    reaches, and one setting alone is surer than it may be.
    """

    weights: "Array"
    means: "Array"
    deviations: "Array"

    @property
    def mean(self) -> "Array":
        return np.asarray(self.weights @ self.means)

    @property
    def highest(self) -> "Array":
        """What each may reach at most, as far as the starts say: three standard deviations above its mean."""
        return np.asarray((self.means + 3.0 * self.deviations).max(axis=0))

    def improvement(self, best: float) -> "Array":
        """How much each is expected to exceed `best`."""
        deviations = np.maximum(self.deviations, 1e-12)
        z = (self.means - best) / deviations
        density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        below = 0.5 * np.vectorize(math.erfc)(-z / math.sqrt(2))
        return np.asarray(self.weights @ ((self.means - best) * below + deviations * density))


class Surrogate:
    """A process fitted to starts: configurations and logarithms of what they gave."""

    def __init__(self, tuned: Sequence[TunedOption], tried: Sequence[Configuration], logs: Sequence[float]) -> None:
        self._tuned = tuned
        self._x = [self._coordinates(one) for one in tried]
        self._y = np.maximum(logs, max(logs) - math.log(MOST_FALL))
        self._level = float(self._y.mean())
        self._variance = max(float(self._y.var()), LEAST_SPREAD**2)
        self._settings = self._plausible()

    def expect(self, asked: Sequence[Configuration]) -> Expectation:
        points = [self._coordinates(one) for one in asked]
        found = [self._expect(points, scales, noise) for _, scales, noise in self._settings]
        weights = np.exp([likelihood - self._settings[0][0] for likelihood, _, _ in self._settings])
        return Expectation(
            weights=weights / weights.sum(),
            means=np.stack([mean for mean, _ in found]),
            deviations=np.stack([deviation for _, deviation in found]),
        )

    def _expect(self, points: "Sequence[list[Array]]", scales: Sequence[float], noise: float) -> "tuple[Array, Array]":
        factor = np.linalg.cholesky(self._covariance(scales, noise))
        weights = np.linalg.solve(factor.T, np.linalg.solve(factor, self._y - self._level))
        cross = self._kernel(points, self._x, scales)
        inner = np.linalg.solve(factor, cross.T)
        variance = self._variance - np.sum(inner * inner, axis=0)
        return self._level + cross @ weights, np.sqrt(np.maximum(variance, 0.0))

    def _coordinates(self, configuration: Configuration) -> "list[Array]":
        values = {one.option: one.value for one in configuration}
        return [np.array(coordinates_of(option, values.get(option.id))) for option in self._tuned]

    def _plausible(self) -> list[tuple[float, tuple[float, ...], float]]:
        """Scales and noises by their marginal likelihood, the best first, changing one after the other."""
        scales, noise = (1.0,) * len(self._tuned), NOISES[1]
        seen = {(scales, noise): self._likelihood(scales, noise)}
        if len(self._y) >= 3:
            for _, at in product(range(SWEEPS), range(len(scales) + 1)):
                for value in NOISES if at == len(scales) else SCALES:
                    other = (scales, value) if at == len(scales) else ((*scales[:at], value, *scales[at + 1 :]), noise)
                    seen[other] = self._likelihood(*other)
                scales, noise = max(seen, key=seen.__getitem__)
        ranked = sorted(((value, *key) for key, value in seen.items()), reverse=True)
        return [one for one in ranked if one[0] >= ranked[0][0] - LEAST_LIKELY]

    def _likelihood(self, scales: Sequence[float], noise: float) -> float:
        factor = np.linalg.cholesky(self._covariance(scales, noise))
        white = np.linalg.solve(factor, self._y - self._level)
        return float(-0.5 * white @ white - np.log(np.diag(factor)).sum())

    def _covariance(self, scales: Sequence[float], noise: float) -> "Array":
        return self._kernel(self._x, self._x, scales) + noise**2 * np.eye(len(self._x))

    def _kernel(self, one: "Sequence[list[Array]]", other: "Sequence[list[Array]]", scales: Sequence[float]) -> "Array":
        """Matérn 5/2: smooth, but not so smooth that a few points decide everything."""
        squared = np.zeros((len(one), len(other)))
        for at, scale in enumerate(scales):
            first, second = np.stack([p[at] for p in one]), np.stack([p[at] for p in other])
            apart = first[:, None, :] - second[None, :, :]
            squared += np.sum(apart * apart, axis=2) / scale**2
        distance = np.sqrt(5 * squared)
        return np.asarray(self._variance * (1 + distance + distance**2 / 3) * np.exp(-distance))


def coordinates_of(option: TunedOption, value: str | None) -> list[float]:
    """A number as its rank among the values; a word, and a start whose value is unknown, as its own direction."""
    known = [*option.values, *([option.present] if option.present is not None else [])]
    value = option.present if value is None else value
    numbers = [as_number(one) for one in known]
    is_number = all(number is not None for number in numbers)
    if is_number:
        ordered = sorted({number for number in numbers if number is not None})
        own = None if value is None else as_number(value)
        top = max(1, len(ordered) - 1)
        return [0.5, 1.0] if own is None else [ordered.index(own) / top, 0.0]
    words = list(dict.fromkeys((*known, "")))
    return [math.sqrt(0.5) if one == (value or "") else 0.0 for one in words]

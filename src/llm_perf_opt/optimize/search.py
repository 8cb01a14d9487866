"""Which experiment comes next: single fixes, the cheapest first, then combinations of what helped.

A combination with the best that costs less than the next single fix comes before it: one compilation can use up what
is left of the budget.

An experiment whose bound is not above what the best already brings is not tried by itself; together with the best it
may be. Combinations are measured alongside the best, so that each step of the way is one that was seen. One that holds
a combination which did not help, or whose parts brought far less than the best, is not tried.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from llm_perf_opt.core.units import format_factor
from llm_perf_opt.diagnosis.experiments import Remedy
from llm_perf_opt.optimize.experiment_plan import ExperimentPlan, Situation, TrialSet, combine

# A bound must be this much above what is there already to be worth the time.
WORTH = 1.02
# Fixes may help one another; more than this beyond the product of their gains is not expected.
SYNERGY = 1.5


@dataclass(frozen=True, kw_only=True)
class Tried:
    """How an experiment ended; `total_gain` is over the start."""

    candidate: TrialSet
    helped: bool
    total_gain: float | None


@dataclass(frozen=True, kw_only=True)
class Passed:
    """An experiment that was not started, and why."""

    candidate: TrialSet
    why: str


@dataclass(kw_only=True)
class ExperimentSearch:
    """The state of a search. `refuse` says why a candidate is not valid; `most` limits those started."""

    plan: ExperimentPlan
    situation: Situation
    most: int | None = None
    refuse: Callable[[TrialSet], str | None] = lambda candidate: None
    tried: list[Tried] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)
    best: Tried | None = None

    def next(self, left_s: float) -> TrialSet | None:
        """The next one to try, None when nothing is left or may be started; those passed over are noted with why."""
        if self.most is not None and len(self.tried) >= self.most:
            return None
        while True:
            # What is passed over may be worth it alongside others, so look again each time.
            candidate = self._upcoming()
            if candidate is None:
                return None
            why = self._why_not(candidate, left_s)
            if why is None:
                return candidate
            self.passed.append(Passed(candidate=candidate, why=why))

    def record(self, candidate: TrialSet, *, helped: bool, total_gain: float | None) -> bool:
        """Keep an outcome; True if it is the best now."""
        self.tried.append(Tried(candidate=candidate, helped=helped, total_gain=total_gain))
        if not helped or total_gain is None or total_gain <= self.best_gain:
            return False
        self.best = self.tried[-1]
        return True

    @property
    def best_gain(self) -> float:
        return self.best.total_gain if self.best is not None and self.best.total_gain is not None else 1.0

    def unseen(self) -> list[TrialSet]:
        """Those of the plan that were neither tried nor passed over, because the search ended before them."""
        return self._singles()

    def _upcoming(self) -> TrialSet | None:
        single = next(iter(self._singles()), None)
        if single is None:
            return next(iter(self._with_best() or self._pairs()), None)
        if single.name in self.plan.given:
            return single
        return next((one for one in self._with_best() if one.cost_s < single.cost_s and one.rank < single.rank), single)

    def _singles(self) -> list[TrialSet]:
        return [candidate for candidate in self.plan.candidates if not self._seen(candidate)]

    def _with_best(self) -> list[TrialSet]:
        """The best with one more: what helped by itself, or was not tried because it could not beat the best alone."""
        if self.best is None:
            return []
        used = {remedy.id for remedy in self.best.candidate.remedies}
        more = [remedy for remedy in (*self._helped(), *self._not_worth_it_alone()) if remedy.id not in used]
        return self._combined([(*self.best.candidate.remedies, remedy) for remedy in more])

    def _pairs(self) -> list[TrialSet]:
        """Two that helped, or one that did and one that was not tried alone."""
        helped = self._helped()
        mixed = [(one, other) for one in helped for other in self._not_worth_it_alone()]
        return self._combined([*combinations(helped, 2), *mixed])

    def _helped(self) -> list[Remedy]:
        return [t.candidate.remedies[0] for t in self.tried if t.helped and len(t.candidate.remedies) == 1]

    def _not_worth_it_alone(self) -> list[Remedy]:
        return [p.candidate.remedies[0] for p in self.passed if len(p.candidate.remedies) == 1]

    def _combined(self, groups: Sequence[Sequence[Remedy]]) -> list[TrialSet]:
        found = []
        for group in groups:
            candidate = combine(group, self.plan.findings, self.plan.facts, self.situation, self.plan.costs)
            if candidate is not None and not self._seen(candidate):
                found.append(candidate)
        return sorted(found, key=lambda c: c.rank)

    def _seen(self, candidate: TrialSet) -> bool:
        seen = [t.candidate for t in self.tried] + [p.candidate for p in self.passed]
        return any(other.effect == candidate.effect for other in seen)

    def _why_not(self, candidate: TrialSet, left_s: float) -> str | None:
        refused = self.refuse(candidate)
        if refused is not None:
            return refused
        bound = candidate.bound
        if bound is not None and bound.gain is not None and bound.gain < WORTH * self.best_gain:
            if self.best is None:
                return f"it could bring {format_factor(bound.gain)} at most"
            return (
                f"it could bring {format_factor(bound.gain)} at most, and {self.best.candidate.name} brings "
                f"{format_factor(self.best_gain)} already"
            )
        return self._spoiled(candidate) or self._outdone(candidate) or self._too_long(candidate, left_s)

    def _spoiled(self, candidate: TrialSet) -> str | None:
        """Some of its fixes were tried together, and that did not help; what failed may have had another reason."""
        ids = {remedy.id for remedy in candidate.remedies}
        for tried in self.tried:
            parts = {remedy.id for remedy in tried.candidate.remedies}
            if 1 < len(parts) < len(ids) and parts < ids and not tried.helped and tried.total_gain is not None:
                return f"{tried.candidate.name} did not help, which is a part of it"
        return None

    def _outdone(self, candidate: TrialSet) -> str | None:
        """All of its fixes were measured alone, and together would be far from the best."""
        alone = {t.candidate.remedies[0].id: t.total_gain for t in self.tried if len(t.candidate.remedies) == 1}
        gains = [alone.get(remedy.id) for remedy in candidate.remedies]
        if self.best is None or len(gains) < 2 or any(gain is None for gain in gains):
            return None
        together = math.prod(gain for gain in gains if gain is not None)
        if together * SYNERGY >= self.best_gain:
            return None
        return (
            f"its parts brought {format_factor(together)} if they multiply, and {self.best.candidate.name} brings "
            f"{format_factor(self.best_gain)} already"
        )

    def _too_long(self, candidate: TrialSet, left_s: float) -> str | None:
        least_s = candidate.cost_s - self.plan.costs.spare_s
        if least_s > left_s:
            return f"needs at least {least_s:.0f} s, and {max(left_s, 0.0):.0f} s of the budget are left"
        return None

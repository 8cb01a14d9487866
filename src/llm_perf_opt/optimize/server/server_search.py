"""Which configuration a server is started with next, and which of them is verified.

First the start, then what promises something by itself, the cheapest first, then what a surrogate expects most of,
combinations too: one start each, of which nothing is claimed. The best of them, the start and the best without each of
its settings are then started interleaved, in rounds, until the verdicts are conclusive. Only what those rounds show is
called a gain; where they show none, the next best is verified. No start is used for both, so a start that was fast by
chance decides nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from llm_perf_opt.optimize.server.comparing import ROUND_LOOKS, RoundComparison, compare_rounds
from llm_perf_opt.optimize.server.server_document import (
    MORE_IS_BETTER,
    FlagGain,
    LoadObservation,
    OptionSetting,
    ServerObjective,
    StartOutcome,
    StartPurpose,
)
from llm_perf_opt.optimize.server.space import (
    LARGEST_GRID,
    START,
    Configuration,
    OptionChoice,
    ServerSpace,
    TunedOption,
    grid_of,
    is_allowed,
    name_of,
    neighbours_of,
    next_values_of,
)
from llm_perf_opt.optimize.server.surrogate import Surrogate

# An expected gain below this is not worth a start: differences of less are of no practical use.
WORTH = 0.01
# What is verified must promise more than `compare` calls the same.
LEAST_GAIN = 0.02
# Verification is planned with as many rounds as a gain of 10 % needs; it may take up to this share of all starts.
PLANNED_ROUNDS, MOST_RESERVED = 4, 0.5
# Tried one after the other where the rounds do not confirm the best.
MOST_VERIFIED = 3


@dataclass(frozen=True, kw_only=True)
class StartRequest:
    """The next start: what with and what for."""

    configuration: Configuration
    purpose: StartPurpose


@dataclass(frozen=True, kw_only=True)
class SelectedSpace:
    """A space with what the evidence selected of it. `present` are the values of the start, `order` the singles."""

    space: ServerSpace
    tuned: tuple[TunedOption, ...]
    present: Mapping[str, str]
    order: tuple[Configuration, ...]


@dataclass(kw_only=True)
class Verification:
    """Rounds of one candidate: every side once in each round."""

    candidate: Configuration
    sides: tuple[Configuration, ...]
    values: dict[Configuration, list[float]] = field(default_factory=dict)
    is_over: bool = False
    failed: str | None = None

    @property
    def rounds(self) -> int:
        return min((len(self.values.get(side, ())) for side in self.sides), default=0)

    def next_side(self) -> Configuration:
        """Interleaved; every other round the other way round, so that no side always comes first."""
        order = self.sides if self.rounds % 2 == 0 else self.sides[::-1]
        return next(side for side in order if len(self.values.get(side, ())) == self.rounds)


def select(
    space: ServerSpace,
    observed: Sequence[LoadObservation],
    present: Mapping[str, str],
    *,
    has_gpu: bool,
    lossless: bool = False,
) -> SelectedSpace:
    """The choices that the evidence names, those that start fastest first."""
    ids = {one.id for one in observed}
    place = "gpu" if has_gpu else "cpu"
    tuned: list[TunedOption] = []
    ranked: list[tuple[float, int, int, OptionChoice, OptionSetting]] = []
    for number, option in enumerate(space.options):
        if option.place not in (None, place):
            continue
        fitting = [
            choice
            for choice in option.choices
            if (not choice.when or ids & set(choice.when))
            and not (lossless and choice.lossy)
            and present.get(option.id) != choice.text
        ]
        if not fitting:
            continue
        tuned.append(TunedOption(id=option.id, values=tuple(c.text for c in fitting), present=present.get(option.id)))
        first = fitting[0]
        # Of equal costs what more of the evidence names, then the order of the data.
        named = -len(ids & set(first.when))
        ranked.append((first.extra_start_s, named, number, first, OptionSetting(option=option.id, value=first.text)))
    singles = [
        _with_needed(choice, setting, tuned, present) for *_, choice, setting in sorted(ranked, key=lambda one: one[:3])
    ]
    return SelectedSpace(
        space=space,
        tuned=tuple(tuned),
        present=dict(present),
        order=tuple(one for one in singles if is_allowed(space, one, present)),
    )


def _with_needed(
    choice: OptionChoice, setting: OptionSetting, tuned: Sequence[TunedOption], present: Mapping[str, str]
) -> Configuration:
    """A setting with those it means nothing without, in the order of the options."""
    wanted = {setting.option: setting.value}
    for need in choice.needs:
        option, _, value = need.partition("=")
        if present.get(option) != value:
            wanted[option] = value
    known = {option.id: option.values for option in tuned}
    return tuple(
        OptionSetting(option=name, value=wanted[name]) for name, values in known.items() if wanted.get(name) in values
    )


@dataclass(kw_only=True)
class ServerSearch:
    """The state of a search; the evaluator is whoever starts servers, or simulates them.

    `cost_s` of a start is what the starts until now took on average.
    """

    objective: ServerObjective
    most_starts: int | None = None
    selected: SelectedSpace | None = None
    outcomes: list[StartOutcome] = field(default_factory=list)
    verifications: list[Verification] = field(default_factory=list)
    screening_is_over: bool = False
    why_ended: str = ""
    _first_capacity: int | None = None
    _grid: list[Configuration] = field(default_factory=list)

    def choose(self, selected: SelectedSpace) -> None:
        """What is searched, once the start was measured."""
        self.selected = selected
        self._grid = grid_of(selected.space, selected.tuned, selected.present)

    @property
    def grid(self) -> int:
        """How many combinations the selected values have."""
        return 1 if self.selected is None else len(self._grid)

    def next(self, left_s: float) -> StartRequest | None:
        """The next start, or None when nothing is left to try, to verify, or to spend."""
        if not self.outcomes:
            return StartRequest(configuration=START, purpose="start")
        if self.selected is None or self.start_value is None:
            return None
        capacity = self._capacity(left_s)
        if self._first_capacity is None:
            self._first_capacity = capacity
        if not self.screening_is_over:
            wanted = None if capacity <= self._reserve() else self._to_screen()
            if wanted is not None:
                return StartRequest(configuration=wanted, purpose="screen")
            self.screening_is_over = True
        return self._to_verify(capacity)

    def record(self, outcome: StartOutcome) -> None:
        self.outcomes.append(outcome)
        if outcome.purpose != "verify":
            return
        current = self.verifications[-1]
        value = self.value_of(outcome)
        if value is None:
            current.failed = f"{name_of(outcome.configuration)}: {outcome.reason}"
            current.is_over = True
            return
        current.values.setdefault(outcome.configuration, []).append(value)

    def value_of(self, outcome: StartOutcome) -> float | None:
        return outcome.metrics.get(self.objective) if outcome.status == "ok" else None

    @property
    def start_value(self) -> float | None:
        return self.value_of(self.outcomes[0]) if self.outcomes else None

    @property
    def best(self) -> Configuration | None:
        """What the rounds confirmed; of the best and the best without a setting the one with fewer, where they are
        the same."""
        done = next((one for one in self.verifications if self.confirmed(one)), None)
        if done is None:
            return None
        return next((side for side in done.sides[2:] if self._is_enough(done, side)), done.candidate)

    def confirmed(self, one: Verification) -> bool:
        found = self.compared(one, START, one.candidate)
        return one.failed is None and found is not None and found.verdict == "better"

    def compared(self, one: Verification, before: Configuration, after: Configuration) -> RoundComparison | None:
        return compare_rounds(
            one.values.get(before, ()), one.values.get(after, ()), self.objective, is_last=one.is_over
        )

    def flag_gains(self) -> tuple[FlagGain, ...]:
        """What each setting of the best brings, by the rounds in which it was left out."""
        best = self.best
        done = next((one for one in self.verifications if best in one.sides and self.confirmed(one)), None)
        if best is None or done is None or self.selected is None:
            return ()
        found = []
        for setting in best:
            rest = tuple(one for one in best if one != setting)
            measured = self.compared(done, rest, best)
            why = "" if measured is not None else self._why_not_separate(rest)
            verdict = "not measured" if measured is None else measured.verdict
            assert verdict in ("better", "same", "worse", "inconclusive", "not measured")
            found.append(
                FlagGain(
                    option=setting.option,
                    value=setting.value,
                    words=self.words_of(setting),
                    gain=None if measured is None else measured.gain,
                    verdict=verdict,
                    why=why,
                )
            )
        return tuple(found)

    def words_of(self, setting: OptionSetting) -> tuple[str, ...]:
        """A setting as it is typed."""
        assert self.selected is not None
        option = self.selected.space.option(setting.option)
        if option.variable is not None:
            return (f"{option.variable}={setting.value}",)
        if setting.value == "false" and option.off is not None:
            return (option.off,)
        assert option.flag is not None
        return (option.flag,) if setting.value == "true" else (option.flag, setting.value)

    def _why_not_separate(self, rest: Configuration) -> str:
        assert self.selected is not None
        if not is_allowed(self.selected.space, rest, self.selected.present):
            return "another setting of the best needs it"
        return "the starts that were left did not allow to leave it out in every round"

    def _capacity(self, left_s: float) -> int:
        """How many more starts the budget and the limit of starts allow."""
        took = fmean(one.took_s for one in self.outcomes)
        by_time = math.floor(max(left_s, 0.0) / took) if took > 0 else math.inf
        by_count = math.inf if self.most_starts is None else self.most_starts - len(self.outcomes)
        return int(min(by_time, by_count, 10**6))

    def _reserve(self) -> int:
        """Starts that are kept for the rounds: the start, the best, and the best without one setting."""
        assert self._first_capacity is not None
        wanted = min(3 * PLANNED_ROUNDS, math.ceil(MOST_RESERVED * self._first_capacity))
        return max(2 * ROUND_LOOKS[0], wanted)

    def _to_screen(self) -> Configuration | None:
        """Singles in their order, then what the surrogate expects most of."""
        assert self.selected is not None
        seen = {one.configuration for one in self.outcomes}
        single = next((one for one in self.selected.order if one not in seen and not self._spoiled(one)), None)
        if single is not None:
            return single
        tried, logs = self._known()
        if len(tried) < 2:
            return None
        surrogate = Surrogate(self.selected.tuned, tried, logs)
        best = float(surrogate.expect(tried).mean.max())
        asked = [one for one in self._candidates(tried, logs) if one not in seen and not self._spoiled(one)]
        if not asked:
            return None
        hoped = surrogate.expect(asked).improvement(best)
        chosen = int(hoped.argmax())
        return asked[chosen] if hoped[chosen] >= WORTH else self._next_to_best(surrogate, tried, best)

    def _next_to_best(self, surrogate: Surrogate, tried: Sequence[Configuration], best: float) -> Configuration | None:
        """A step up or down from the best that was passed over: a maximum between two values is easily missed."""
        assert self.selected is not None
        top = tried[int(surrogate.expect(tried).mean.argmax())]
        near = next_values_of(self.selected.space, top, self.selected.tuned, self.selected.present)
        asked = [one for one in near if one not in tried and not self._spoiled(one)]
        if not asked:
            return None
        highest = surrogate.expect(asked).highest
        chosen = int(highest.argmax())
        return asked[chosen] if highest[chosen] >= best else None

    def _candidates(self, tried: Sequence[Configuration], logs: Sequence[float]) -> list[Configuration]:
        assert self.selected is not None
        size = math.prod(len(option.values) + 1 for option in self.selected.tuned)
        if size <= LARGEST_GRID:
            return self._grid
        best = tried[max(range(len(logs)), key=lambda at: logs[at])]
        near = neighbours_of(self.selected.space, best, self.selected.tuned, self.selected.present)
        return list(dict.fromkeys((*near, *self._grid)))

    def _known(self) -> tuple[list[Configuration], list[float]]:
        """Configurations and logarithms of what their starts gave; what failed as the worst, to keep away from it."""
        sign = 1.0 if self.objective in MORE_IS_BETTER else -1.0
        values: dict[Configuration, list[float]] = {}
        for one in self.outcomes:
            value = self.value_of(one)
            if value is not None and one.purpose != "verify":
                values.setdefault(one.configuration, []).append(sign * math.log(value))
        found = {configuration: median(logs) for configuration, logs in values.items()}
        worst = min(found.values(), default=0.0)
        for one in self.outcomes:
            if one.status in ("failed", "over a limit") and one.configuration not in found:
                found[one.configuration] = worst
        return list(found), list(found.values())

    def _spoiled(self, configuration: Configuration) -> bool:
        """Whether it holds all settings of one that failed or answered wrongly, or the one that made answers wrong."""
        bad = [set(one.configuration) for one in self.outcomes if one.status in ("failed", "wrong")]
        bad += [{setting} for setting in self._changes_answers()]
        return any(settings <= set(configuration) for settings in bad)

    def _changes_answers(self) -> set[OptionSetting]:
        """Settings with which answers were wrong, and without which the same configuration answered well."""
        good = {frozenset(one.configuration) for one in self.outcomes if one.status in ("ok", "over a limit")}
        wrong = [frozenset(one.configuration) for one in self.outcomes if one.status == "wrong"]
        innocent = frozenset().union(*good)
        return {setting for one in wrong for setting in one - innocent if one - {setting} in good}

    def _to_verify(self, capacity: int) -> StartRequest | None:
        current = self.verifications[-1] if self.verifications else None
        if current is not None and not current.is_over:
            self._look(current, capacity)
        if current is not None and not current.is_over:
            return StartRequest(configuration=current.next_side(), purpose="verify")
        if current is not None and self.confirmed(current):
            self.why_ended = "the best was verified"
            return None
        candidate = self._next_best() or self._unscreened(capacity)
        if candidate is None or len(self.verifications) >= MOST_VERIFIED:
            is_short = len(self.outcomes) == 1 and bool(self.selected and self.selected.order)
            short = f"{capacity} more starts were allowed, too few to try and to verify anything"
            self.why_ended = short if is_short else "nothing more promises a gain"
            return None
        if capacity < 2 * ROUND_LOOKS[0]:
            self.why_ended = f"{capacity} starts were left, too few to verify {name_of(candidate)}"
            return None
        sides = self._sides(candidate, capacity)
        self.verifications.append(Verification(candidate=candidate, sides=sides))
        return StartRequest(configuration=self.verifications[-1].next_side(), purpose="verify")

    def _look(self, current: Verification, capacity: int) -> None:
        """End the rounds where the verdict is conclusive, or where no whole round fits any more."""
        counts = {len(current.values.get(side, ())) for side in current.sides}
        is_whole = len(counts) == 1
        missing = len(current.sides) * (current.rounds + 1) - sum(len(v) for v in current.values.values())
        if not is_whole:
            # A round that cannot be finished says nothing of the sides it did not reach.
            current.is_over = capacity < 1
            return
        if current.rounds < ROUND_LOOKS[0]:
            current.is_over = capacity < missing
            return
        current.is_over = current.rounds >= ROUND_LOOKS[-1] or capacity < missing
        if current.is_over or current.rounds not in ROUND_LOOKS:
            return
        found = self.compared(current, START, current.candidate)
        if found is None or not found.is_settled:
            return
        flags = [self.compared(current, side, current.candidate) for side in current.sides[2:]]
        are_settled = all(one is not None and one.is_settled for one in flags)
        current.is_over = found.verdict != "better" or are_settled or current.rounds >= PLANNED_ROUNDS

    def _next_best(self) -> Configuration | None:
        """What the surrogate expects most of among what was started, ran, and was not verified yet."""
        assert self.selected is not None
        done = {one.candidate for one in self.verifications}
        done |= {one.configuration for one in self.outcomes if one.status == "over a limit"}
        tried, logs = self._known()
        if len(tried) < 2:
            return None
        mean = Surrogate(self.selected.tuned, tried, logs).expect(tried).mean
        base = float(mean[tried.index(START)])
        usable = [
            (float(value), one)
            for value, one in zip(mean, tried, strict=True)
            if one != START and one not in done and not self._spoiled(one) and value - base >= LEAST_GAIN
        ]
        return max(usable, key=lambda pair: pair[0])[1] if usable else None

    def _unscreened(self, capacity: int) -> Configuration | None:
        """Where starts suffice for two rounds and no more: the first single, which was not started yet."""
        assert self.selected is not None
        is_short = len(self.outcomes) == 1 and capacity >= 2 * ROUND_LOOKS[0]
        return self.selected.order[0] if is_short and self.selected.order else None

    def _sides(self, candidate: Configuration, capacity: int) -> tuple[Configuration, ...]:
        """Start and candidate, and the candidate without each setting where the starts that are left allow it."""
        assert self.selected is not None
        without = []
        if len(candidate) > 1:
            rests = [tuple(one for one in candidate if one != setting) for setting in candidate]
            without = [
                rest
                for rest in rests
                if is_allowed(self.selected.space, rest, self.selected.present) and not self._spoiled(rest)
            ]
        if (2 + len(without)) * ROUND_LOOKS[0] > capacity:
            without = []
        return (START, candidate, *without)

    def _is_enough(self, done: Verification, side: Configuration) -> bool:
        """Whether a setting less is better than the start, and not worse than with it."""
        over_start = self.compared(done, START, side)
        of_setting = self.compared(done, side, done.candidate)
        if over_start is None or of_setting is None or over_start.verdict != "better":
            return False
        return of_setting.verdict in ("same", "worse")

"""Carries a search out: measures the pairs it asks for, interleaved, and writes each down."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

from llm_perf_opt.comparison.bisect.bisect_search import FEWEST_PAIRS, BisectSearch, PairsRequest
from llm_perf_opt.comparison.comparison import lower_is_better
from llm_perf_opt.errors import CommandFailed
from llm_perf_opt.pipeline.bisect.bisect_journal import PairEntry, PairJournal
from llm_perf_opt.pipeline.bisect.line import Line, PointFails, RunPlace

# A smallest detectable change above this is worth a word before hours of runs.
NOISY = 0.05
# How far medians of the good end may lie apart from one comparison to the next: beyond the first factor a note says so,
# beyond the second a change smaller than LARGE is not certain, because the same work is a different share of each.
DRIFTED, UNSTEADY, LARGE = 2.0, 4.0, 0.5
Value = Callable[[RunPlace, str], float]


@dataclass(kw_only=True)
class BisectSession:
    """A search over a line. `value` measures one pass, `say` reports progress."""

    search: BisectSearch
    line: Line
    journal: PairJournal
    metric: str
    value: Value
    say: Callable[[str], None]
    _passes: int = 0
    _at: int | None = None
    _good: list[tuple[int, list[float]]] = field(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the good end's own values say of the machine."""
        least, most = self._levels()
        if most <= DRIFTED * least:
            return ()
        return (
            f"the good end itself measured {least:.4g} in one comparison and {most:.4g} in another ({self.metric}, "
            "medians): the machine changed during the search",
        )

    def _levels(self) -> tuple[float, float]:
        """The least and the largest median of the good end over the comparisons."""
        medians = [median(values) for _, values in self._good if len(values) >= FEWEST_PAIRS]
        return (min(medians), max(medians)) if medians else (1.0, 1.0)

    def run(self) -> None:
        """Until the search has its answer."""
        with self.line.opened():
            while (request := self.search.next_request()) is not None:
                self._announce(request)
                self._carry_out(request)
                if request.phase == "control":
                    self._report_control()
        self._doubt_small_changes()

    def _doubt_small_changes(self) -> None:
        """A small change on a machine that itself changed is not a certain regression."""
        answer, (least, most) = self.search.answer, self._levels()
        if answer is None or answer.outcome != "regression" or most <= UNSTEADY * least:
            return
        if answer.change is not None and answer.change < LARGE:
            self.search.answer = replace(
                answer,
                outcome="inconclusive",
                reason=f"{self.metric} of the good end itself changed {most / least:.1f}-fold during the search",
            )

    def _report_control(self) -> None:
        control = self.search.control
        if control is None:
            return
        noisy = " (a noisy machine)" if control.detectable > NOISY else ""
        self.say(
            f"control: equal runs differ by {100 * control.spread:.1f} %{noisy}; changes from "
            f"{100 * control.detectable:.1f} % on can be found"
        )

    def _announce(self, request: PairsRequest) -> None:
        if self._at != request.point:
            if self._at not in (None, 0):
                self.line.leave(self._at or 0)
            self._at = request.point
        name = self.line.names[request.point]
        what = {
            "control": f"control: {name.label} against itself",
            "ends": f"ends: {self.line.names[0].label} against {name.label}",
        }.get(request.phase, f"comparison {self.search.comparisons + 1}: {name.label} {name.title}")
        self.say(f"{what}, {request.pairs} pairs")

    def _carry_out(self, request: PairsRequest) -> None:
        """All pairs of a request, then the search gets them: it decides at the same moments after a resumption."""
        ratios = []
        for _ in range(request.pairs):
            self._passes += 1
            entry = self.journal.earlier()
            if entry is None:
                entry = self._pair(request.point)
                self.journal.add(entry)
            if entry.log_ratio is None:
                self.say(f"skipped {self.line.names[request.point].label}: {entry.reason}")
                self.search.skip(request.point)
                return
            ratios.append(entry.log_ratio)
            if entry.good is not None:
                self._note_level(request.point, entry.good)
        self.search.add(request.point, ratios)

    def _note_level(self, point: int, good: float) -> None:
        if not self._good or self._good[-1][0] != point:
            self._good.append((point, []))
        self._good[-1][1].append(good)

    def _pair(self, point: int) -> PairEntry:
        """One pass of the point and one of the good end; which comes first changes with every pair."""
        order = (0, point) if self._passes % 2 else (point, 0)
        values = []
        for number, one in enumerate(order):
            side = "good" if (one == 0 and number == order.index(0)) else "point"
            name = f"{self._passes:04d}-{'ab'[number]}-{side}"
            try:
                values.append(self.value(self.line.place(one), name))
            except PointFails as error:
                if one == 0 and point != 0:
                    raise CommandFailed(f"bisect: {self.line.names[0].label}, the good end, failed: {error}") from error
                return PairEntry(point=point, reason=str(error))
        good, value = values if order == (0, point) else reversed(values)
        ratio = math.log(value / good)
        return PairEntry(
            point=point, log_ratio=ratio if lower_is_better(self.metric) else -ratio, good=good, value=value
        )

"""What `llm-perf bisect` found: `bisect.json`."""

from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.comparison.bisect.bisect_search import BisectSearch, Outcome
from llm_perf_opt.core.units import format_quantity

Kind = Literal["commits", "versions", "flags"]
PointState = Literal["good", "bad", "measured", "skipped", "untested"]
# Functions and parts of captures that are listed.
LISTED = 8


@dataclass(frozen=True, kw_only=True)
class BisectPoint:
    """One commit, version or setting. `change` and its 95 % interval are shares, against the good end.

    `probability` is that of being the one that made it worse.
    """

    label: str
    title: str
    state: PointState
    probability: float | None
    pairs: int
    change: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class MovedPart:
    """A function, kernel, range or idle cause of the two neighbours of the answer, in milliseconds of one run."""

    label: str
    kind: Literal["function", "capture"]
    base_ms: float | None
    candidate_ms: float | None
    difference_ms: float


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """The culprit against the point before it. `files` are what a commit changed; `comparison` is its page."""

    base: str
    candidate: str
    moved: tuple[MovedPart, ...]
    files: tuple[str, ...] = ()
    comparison: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ControlRecord:
    """The good end against itself: the spread of one pair's ratio, and the smallest change the search can find."""

    pairs: int
    spread: float
    detectable: float
    bias: float | None


@dataclass(frozen=True, kw_only=True)
class BisectDocument:
    """`bisect.json`. `culprits` are places in `points`: several where those between could not be measured."""

    schema_version: Literal[1] = 1
    kind: Kind
    metric: str
    command: tuple[str, ...]
    outcome: Outcome
    sentence: str
    culprits: tuple[int, ...]
    probability: float | None
    change: float | None
    low: float | None
    high: float | None
    limit: float
    comparisons: int
    pairs: int
    control: ControlRecord | None
    points: tuple[BisectPoint, ...]
    neighbours: Neighbours | None
    notes: tuple[str, ...]


def bisect_document(
    search: BisectSearch,
    *,
    kind: Kind,
    metric: str,
    command: tuple[str, ...],
    names: tuple[tuple[str, str], ...],
    neighbours: Neighbours | None,
    notes: tuple[str, ...] = (),
) -> BisectDocument:
    """The document of a search that has ended; `names` are label and title of each point."""
    answer, control = search.answer, search.control
    assert answer is not None
    return BisectDocument(
        kind=kind,
        metric=metric,
        command=command,
        outcome=answer.outcome,
        sentence=_sentence(search, names, metric),
        culprits=answer.culprits,
        probability=answer.probability,
        change=answer.change,
        low=answer.low,
        high=answer.high,
        limit=search.limit,
        comparisons=search.comparisons,
        pairs=len(search.own) + sum(map(len, search.values.values())),
        control=None
        if control is None
        else ControlRecord(
            pairs=control.pairs, spread=control.spread, detectable=control.detectable, bias=control.bias
        ),
        points=_points(search, names),
        neighbours=neighbours,
        notes=(*_notes(search, names), *notes),
    )


def _points(search: BisectSearch, names: tuple[tuple[str, str], ...]) -> tuple[BisectPoint, ...]:
    found = search.means()
    # Before the search began no two points differ.
    shares = search.probabilities() if search.answer is not None and search.answer.culprits else None
    rows = []
    for number, (label, title) in enumerate(names):
        measured = found.get(number)
        state: PointState = "good" if number == 0 else "untested" if measured is None else "measured"
        state = "bad" if number == search.last else state
        change = None if measured is None else measured.change
        rows.append(
            BisectPoint(
                label=label,
                title=title,
                state="skipped" if number in search.skipped else state,
                probability=None if shares is None or number == 0 else shares[number - 1],
                pairs=0 if measured is None else measured.pairs,
                change=change,
                low=None if measured is None else measured.low,
                high=None if measured is None else measured.high,
            )
        )
    return tuple(rows)


def _sentence(search: BisectSearch, names: tuple[tuple[str, str], ...], metric: str) -> str:
    """What is behind the outcome."""
    answer = search.answer
    assert answer is not None
    change = "" if answer.change is None else f"{metric} {percent(answer.change)}"
    if answer.low is not None and answer.high is not None:
        change += f" (95 %: {percent(answer.low)} to {percent(answer.high)})"
    if answer.outcome == "no regression":
        ends = f"{names[0][0]} to {names[-1][0]}: {change}"
        if answer.excluded is None:
            return f"{ends}; {answer.reason}."
        # On a noisy machine the change that is excluded is larger than the gate.
        return f"{ends}; a change above {percent(answer.excluded)} is excluded (99.9 %)."
    named = [f"{names[one][0]} {names[one][1]}".strip() for one in answer.culprits]
    if not named:
        return f"{answer.reason}{f' ({change})' if change else ''}."
    shown = named[0] if len(named) == 1 else f"one of {', '.join(names[one][0] for one in answer.culprits)}"
    likely = "" if answer.probability is None else f" with a probability of {probability_text(answer.probability)}"
    if answer.outcome == "inconclusive":
        return f"{answer.reason}; the likeliest is {shown}{likely}: {change}."
    return f"{shown} made it worse{likely}: {change}."


def probability_text(value: float) -> str:
    """No search is certain of its answer."""
    return "over 99.9 %" if value > 0.999 else f"{100 * value:.1f} %"


def _notes(search: BisectSearch, names: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    notes = []
    control, answer = search.control, search.answer
    if control is not None and control.bias is not None:
        notes.append(
            f"the control differs from itself by {percent(control.bias)}: the order of runs matters on this machine"
        )
    if answer is not None and answer.misfits:
        labels = ", ".join(names[point][0] for point in answer.misfits)
        notes.append(f"more than one change: {labels} are neither like the good nor like the bad end")
    skipped = [names[point][0] for point in sorted(search.skipped)]
    if skipped:
        notes.append(f"skipped, because they did not run: {', '.join(skipped)}")
    return tuple(notes)


def percent(share: float) -> str:
    return f"{100 * share:+.1f} %"


def moved_words(part: MovedPart) -> str:
    sign = "+" if part.difference_ms > 0 else "−"
    return f"{part.label} {sign}{format_quantity(abs(part.difference_ms), 'ms')}"

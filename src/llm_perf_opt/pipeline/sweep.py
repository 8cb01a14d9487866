"""The runs of a sweep as one table: what was swept, what came out, and which runs no other beats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.comparison.comparison import lower_is_better
from llm_perf_opt.core.records import Spread
from llm_perf_opt.pipeline.index import IndexedRun, setting, swept_keys
from llm_perf_opt.pipeline.jobs.states import JobState, State

METRICS = ("ttft_ms", "tpot_ms", "decode_tokens_per_s", "peak_memory_bytes")
OBJECTIVES = ("tpot_ms", "decode_tokens_per_s")


@dataclass(frozen=True, kw_only=True)
class SweptNumber:
    value: float
    unit: str
    spread: Spread | None


@dataclass(frozen=True, kw_only=True)
class SweptRun:
    """One job: its settings of the swept keys, its numbers, and whether it is on the front.

    `problem`: why it is not `ok`. `where`: the machine it ran on; `job`: what its scheduler calls it.
    """

    run_id: str
    path: str
    state: State
    where: str | None
    job: str | None
    settings: Mapping[str, str | None]
    numbers: Mapping[str, SweptNumber]
    on_front: bool
    problem: str | None


@dataclass(frozen=True, kw_only=True)
class SweepDocument:
    """`sweep.json`. `objectives` span the front; a run is on it when no other is better in one and as good in all."""

    schema_version: Literal[1] = 1
    keys: tuple[str, ...]
    metrics: tuple[str, ...]
    objectives: tuple[str, ...]
    runs: tuple[SweptRun, ...]


def build_sweep(
    runs: Sequence[IndexedRun],
    *,
    objectives: Sequence[str] = OBJECTIVES,
    states: Mapping[str, JobState] | None = None,
    jobs: Mapping[str, str | None] | None = None,
) -> SweepDocument:
    """Put runs side by side; only runs that succeeded and have every objective can be on the front.

    `states` and `jobs` (their states, and the scheduler's ids) go by the path of the run.
    """
    keys = swept_keys(list(runs))
    named = dict.fromkeys((*METRICS, *objectives))
    numbers = [_numbers(run, tuple(named)) for run in runs]
    good = [
        index
        for index, run in enumerate(runs)
        if state_of(run, states).state == "ok" and all(o in numbers[index] for o in objectives)
    ]
    wanted = {name: lower_is_better(name) for name in objectives}
    front = {good[i] for i in pareto([{o: numbers[n][o].value for o in objectives} for n in good], wanted)}
    return SweepDocument(
        keys=keys,
        metrics=tuple(name for name in named if any(name in found for found in numbers)),
        objectives=tuple(objectives),
        runs=tuple(
            SweptRun(
                run_id=run.run_id,
                path=run.path,
                settings={key: setting(run, key) for key in keys},
                numbers=found,
                on_front=index in front,
                state=state_of(run, states).state,
                where=state_of(run, states).where,
                job=(jobs or {}).get(run.path),
                problem=state_of(run, states).text,
            )
            for index, (run, found) in enumerate(zip(runs, numbers, strict=True))
        ),
    )


def state_of(run: IndexedRun, states: Mapping[str, JobState] | None) -> JobState:
    """How a run is: as its sweep says, else as its manifest does."""
    known = (states or {}).get(run.path)
    if known is not None:
        return known
    if run.status == "ok":
        return JobState(number=0, state="ok")
    return JobState(number=0, state="running" if run.status == "running" else "failed")


def is_near_front(run: SweptRun, found: SweepDocument) -> bool:
    """Whether a run off the front overlaps one on it in every objective whose spread is known.

    Chance may then have put it there.
    """
    if run.on_front or run.state != "ok":
        return False
    return any(_overlaps(run, best, found.objectives) for best in found.runs if best.on_front)


def _overlaps(one: SweptRun, other: SweptRun, objectives: Sequence[str]) -> bool:
    pairs = [(one.numbers[name].spread, other.numbers[name].spread) for name in objectives if name in one.numbers]
    known = [(mine, its) for mine, its in pairs if mine is not None and its is not None]
    return bool(known) and all(mine.p10 <= its.p90 and its.p10 <= mine.p90 for mine, its in known)


def pareto(points: Sequence[Mapping[str, float]], objectives: Mapping[str, bool]) -> tuple[int, ...]:
    """The points that no other beats in one objective without losing in another; `True`: lower is better."""
    costs = [tuple(p[name] if lower else -p[name] for name, lower in objectives.items()) for p in points]
    return tuple(
        index
        for index, mine in enumerate(costs)
        if not any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for other in costs)
    )


def _numbers(run: IndexedRun, names: Sequence[str]) -> dict[str, SweptNumber]:
    found = {}
    for name in names:
        metric = run.numbers.get(name)
        if metric is not None and isinstance(metric.value, int | float):
            found[name] = SweptNumber(value=float(metric.value), unit=metric.unit, spread=metric.spread)
    return found

"""What `llm-perf optimize --dry-run --json` prints: the experiments in the order they would be tried."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.optimize.experiment_plan import ExperimentPlan


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One experiment. `max_gain` is None where no bound is known, `rules` are the causes that name it.

    `fits` says whether it is within the budget after those before it.
    """

    name: str
    max_gain: float | None
    cost_s: float
    fits: bool
    rules: tuple[str, ...]
    overrides: tuple[str, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class RefusedTrial:
    """An experiment that a finding names and that is not tried, and why."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class OptimizePlanDocument:
    """The plan of an optimization."""

    schema_version: Literal[1] = 1
    objective: str
    budget_s: float
    experiments: tuple[PlannedTrial, ...]
    refused: tuple[RefusedTrial, ...]


def optimize_plan_document(plan: ExperimentPlan, *, budget_s: float) -> OptimizePlanDocument:
    """The plan as data; `render_plan` has the same for people."""
    trials = []
    spent = 0.0
    for candidate in plan.candidates:
        spent += candidate.cost_s
        bound = candidate.bound
        trials.append(
            PlannedTrial(
                name=candidate.name,
                max_gain=None if bound is None else bound.gain,
                cost_s=candidate.cost_s,
                fits=spent <= budget_s,
                rules=() if bound is None else tuple(bound.rules),
                overrides=candidate.overrides,
                environment=candidate.environment,
            )
        )
    refused = tuple(RefusedTrial(name=one.remedy.id, reason=one.why) for one in plan.refused)
    return OptimizePlanDocument(objective=plan.objective, budget_s=budget_s, experiments=tuple(trials), refused=refused)

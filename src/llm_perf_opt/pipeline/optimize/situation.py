"""What the guards of fixes ask about this machine and this model, and the plan that follows."""

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from llm_perf_opt.config.schema import AUTO
from llm_perf_opt.core.names import PHASES
from llm_perf_opt.diagnosis.experiments import Remedy, load_experiments
from llm_perf_opt.diagnosis.facts import Known
from llm_perf_opt.optimize.experiment_plan import START_S, Costs, ExperimentPlan, Situation, build_plan
from llm_perf_opt.optimize.optimize_document import Objective
from llm_perf_opt.pipeline.optimize.setup import OptimizedModel, Profile
from llm_perf_opt.workload.dataset import PAGES
from llm_perf_opt.workload.models.registry import load_adapter

SECTIONS = ("model", "infer", "dataset")


def situation_of(subject: OptimizedModel, profile: Profile, objective: Objective, *, lossless: bool) -> Situation:
    """From the configuration, the profile, and what is installed."""
    needed = {remedy.guard.package for remedy in load_experiments().values()} - {None}
    packages = frozenset(name for name in needed if name is not None and find_spec(name) is not None)
    settings = dict(_settings(subject.config.resolved))
    if settings.get("model.attention") == AUTO:
        # What `auto` means (`choose_attention`).
        settings["model.attention"] = "sdpa"
    return Situation(
        objective=objective,
        is_cpu=bool(profile.facts.is_cpu),
        own_loop=True,
        reads_pages=load_adapter(subject.config.model.adapter).data_kind == PAGES,
        dtype=profile.facts.dtype,
        settings=settings,
        environment=dict(os.environ),
        packages=packages,
        lossless=lossless,
    )


def plan_for(
    subject: OptimizedModel, profile: Profile, situation: Situation, *, given: Sequence[Remedy] = ()
) -> ExperimentPlan:
    """The plan with costs guessed from the profile: a pass is every sample once."""
    times = []
    for name in PHASES:
        phase = profile.facts.phases[name]
        wall = phase.wall.value if isinstance(phase.wall, Known) else 0.0
        times.append(wall * (phase.steps_per_request or 1.0))
    dataset = subject.config.dataset
    samples = dataset.sampling.num_samples_per_epoch or dataset.num_samples
    pass_s = samples * dataset.sampling.num_epochs * sum(times) / 1e3
    costs = Costs(start_s=START_S["cpu" if situation.is_cpu else "gpu"], pass_s=pass_s)
    return build_plan(profile.findings, profile.facts, situation, costs, given=given)


def _settings(resolved: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Values by full key, as an override writes them."""
    found: list[tuple[str, str]] = []

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping):
            for key, item in value.items():
                walk(f"{prefix}.{key}", item)
        else:
            found.append((prefix, str(value).lower() if isinstance(value, bool) else str(value)))

    for section in SECTIONS:
        walk(section, resolved.get(section, {}))
    return found

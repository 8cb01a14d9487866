"""What to do with the result: an experiment file, the calls of torch, the way from start to best, and what is left."""

from collections.abc import Mapping, Sequence

from llm_perf_opt.core.units import count_of, digits, format_factor
from llm_perf_opt.diagnosis.facts import Known, RunFacts
from llm_perf_opt.optimize.experiment_plan import PHASE_OF, TrialSet
from llm_perf_opt.optimize.optimize_document import UNITS, Distance, ExperimentRow, PathStep, StartRow

EXPERIMENT = "optimized"


def experiment_yaml(candidate: TrialSet, *, sentence: str, parents: Sequence[str] = ()) -> str:
    """A file for `experiment=optimized`, on top of others; variables of the environment can only be reported."""
    lines = ["# @package _global_", f"# {sentence}"]
    if parents:
        lines += ["defaults:", *(f"  - {name}" for name in parents), "  - _self_"]
    if candidate.environment:
        words = " ".join(f"{key}={value}" for key, value in candidate.environment.items())
        lines.append(f"# Set in the environment as well: {words}")
    tree: dict[str, dict[str, str]] = {}
    for key, value in candidate.sets.items():
        section, _, name = key.partition(".")
        tree.setdefault(section, {})[name] = value
    for section, values in tree.items():
        lines += [f"{section}:", *_nested(values)]
    return "\n".join(lines) + "\n"


def _nested(values: Mapping[str, str]) -> list[str]:
    """Keys with dots in them become deeper levels."""
    lines: list[str] = []
    said: list[str] = []
    for name, value in sorted(values.items()):
        *parents, leaf = name.split(".")
        same = 0
        while same < min(len(parents), len(said)) and parents[same] == said[same]:
            same += 1
        lines += [f"{'  ' * (depth + 1)}{parents[depth]}:" for depth in range(same, len(parents))]
        lines.append(f"{'  ' * (len(parents) + 1)}{leaf}: {value}")
        said = parents
    return lines


def pasted_code(candidate: TrialSet) -> str:
    """The same by hand."""
    parts = [f"# {remedy.title}\n{remedy.code}" for remedy in candidate.remedies if remedy.code]
    return "\n\n".join(dict.fromkeys(parts)) + "\n" if parts else ""


def path_to_best(start: StartRow, rows: Sequence[ExperimentRow], best: str | None, objective: str) -> list[PathStep]:
    """From the start to the best; each step was measured alongside the one before it."""
    chain: list[ExperimentRow] = []
    name = best
    while name is not None:
        row = next((r for r in rows if r.name == name), None)
        if row is None:
            break
        chain.insert(0, row)
        name = None if row.against == "start" else row.against
    # As it was alongside the first step: a machine that grew slower later would flatter it.
    first = chain[0].change(objective) if chain else None
    value = start.metrics.get(objective) if first is None else first.before
    if value is None:
        return []
    steps = [PathStep(name="start", title="as it was", value=value, gain=None, low=None, high=None)]
    for row in chain:
        change = row.change(objective)
        if change is not None:
            steps.append(
                PathStep(
                    name=row.name,
                    title=row.title,
                    value=change.after,
                    gain=change.gain,
                    low=change.low,
                    high=change.high,
                )
            )
    return steps


def distance_to_bound(facts: RunFacts | None, value: float | None, objective: str) -> Distance | None:
    """Of objectives that are the time of a phase: against the bound of the hardware for the run as it was."""
    phase = facts.phases.get(PHASE_OF[objective]) if facts is not None and objective in PHASE_OF else None
    if phase is None or value is None:
        return None
    for floor in (phase.achievable, phase.datasheet):
        if isinstance(floor, Known) and floor.value > 0:
            return Distance(value=value, bound=floor.value, unit="ms", how=floor.how)
    return None


def in_words(
    *,
    objective: str,
    path: Sequence[PathStep],
    gain: float | None,
    low: float | None,
    high: float | None,
    check: str | None,
    tried: int,
    left_out: int,
    over_limit: Sequence[str] = (),
) -> str:
    """One sentence for the top of every page; `over_limit` names what was kept out by a limit alone."""
    unit = UNITS[objective]
    if len(path) < 2 or gain is None:
        if not tried:
            why = (
                f"the reason for each of {count_of(left_out, 'fix')} is below" if left_out else "no finding names a fix"
            )
            return f"Nothing was tried: {why}."
        if over_limit:
            kept_out = f"{', '.join(over_limit)} broke a limit"
            rest = ", and no other helped" if tried > len(over_limit) else ""
            return f"Nothing is recommended: of {count_of(tried, 'experiment')} for {objective}, {kept_out}{rest}."
        return f"No gain in {objective}: none of {count_of(tried, 'experiment')} was better and kept its outputs."
    interval = "" if low is None or high is None else f" (95 %: {low:.2f} to {high:.2f}×)"
    names = " → ".join(step.name for step in path[1:])
    outputs = "" if check is None else f"; outputs {check}"
    return (
        f"{objective} {digits(path[0].value, 4)} → {digits(path[-1].value, 4)} {unit}, {format_factor(gain)}{interval} "
        f"with {names}{outputs}."
    )

"""From findings to experiments: which fixes make sense here, the most each could bring, and what it costs to try.

The bound of an experiment is Amdahl's over the waterfall: the time its findings could save leaves the phase, and no
phase becomes shorter than the hardware's bound, unless the fix lowers that.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from llm_perf_opt.comparison.statistics import shared_among
from llm_perf_opt.core.names import DECODE, PHASES, PREFILL
from llm_perf_opt.core.units import format_factor, format_ms
from llm_perf_opt.diagnosis.experiments import THROUGHPUT, Remedy, load_experiments
from llm_perf_opt.diagnosis.facts import GpuFacts, Known, PhaseFacts, RunFacts
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.diagnosis.scope import LAUNCH_BOUND_IDLE
from llm_perf_opt.optimize.optimize_document import ExperimentRow, ExperimentStatus, Objective, PredictedBound

# What is not known before the first start: of the process with its imports and weights.
START_S = {"gpu": 20.0, "cpu": 12.0}
# What was tried and is not to be advised again.
FRUITLESS: tuple[ExperimentStatus, ...] = ("no gain", "slower", "wrong", "over a limit")
# Pairs of passes after which the verdict is requested: two decide a change of a factor, a few percent need all of them.
PAIR_LOOKS = (2, 4, 8)
# What most experiments take.
USUAL_PAIRS = 4
PHASE_OF: dict[str, str] = {"tpot_ms": DECODE, "ttft_ms": PREFILL}
BATCH_KEY = "infer.batch"
# A bound of less than a tenth above the start is not worth the first place, however cheap.
PROMISING = 1.1
# Bounds above this say that nothing limits the fix by itself, not that it brings more than another one.
TELLING = 10.0


def look_share(pairs: int, *, is_last: bool) -> float:
    """The part of the error probability that the interim analysis after this many pairs may spend.

    Where time is up, it is the last one regardless of the passes, and may take all that earlier ones left.
    """
    shares = dict(zip(PAIR_LOOKS, shared_among(PAIR_LOOKS), strict=True))
    earlier = sum(share for look, share in shares.items() if look < pairs)
    return 1.0 - earlier if is_last else shares[pairs]


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What the guards ask. `settings` are present values by key, `packages` what fixes need and is installed."""

    objective: Objective
    is_cpu: bool
    own_loop: bool
    reads_pages: bool
    dtype: str | None
    settings: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    packages: frozenset[str] = frozenset()
    lossless: bool = False


@dataclass(frozen=True, kw_only=True)
class TrialSet:
    """Fixes tried together. `order` is the most it could bring, by its bound; 1 where that is not known."""

    remedies: tuple[Remedy, ...]
    sets: Mapping[str, str]
    environment: Mapping[str, str]
    bound: PredictedBound | None
    order: float
    cost_s: float

    @property
    def name(self) -> str:
        return "+".join(remedy.id for remedy in self.remedies)

    @property
    def title(self) -> str:
        return "; ".join(remedy.title for remedy in self.remedies)

    @property
    def is_lossy(self) -> bool:
        return any(remedy.is_lossy for remedy in self.remedies)

    @property
    def overrides(self) -> tuple[str, ...]:
        """As they are written; a flag of a program has no value."""
        return tuple(f"{key}={value}" if value or key[:1] != "-" else key for key, value in self.sets.items())

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Smaller is tried sooner: the cheapest promising experiment, of those that cost the same the largest bound.

        Bounds of different fixes order little: on a launch-bound model most of them promise all idle time. What is
        cheap to try never keeps the budget from later ones; one compilation can use up all of it.
        """
        return self.order < PROMISING, self.cost_s, -min(self.order, TELLING)

    @property
    def effect(self) -> frozenset[tuple[str, str]]:
        """What it sets, to recognise two of the same effect."""
        return frozenset((*self.sets.items(), *self.environment.items()))


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A fix that a finding names and that is not tried, and why."""

    remedy: Remedy
    why: str


@dataclass(frozen=True, kw_only=True)
class ExperimentPlan:
    """What will be tried, in order, what will not, and the findings nothing here can be done about.

    `given` are the names of those the user gave.
    """

    objective: Objective
    candidates: tuple[TrialSet, ...]
    refused: tuple[Refused, ...]
    left: tuple[str, ...]
    facts: RunFacts | None
    findings: tuple[Finding, ...]
    costs: "Costs"
    given: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What an experiment takes: a start, preparing, passes on both sides. Estimates until the start was measured."""

    start_s: float
    pass_s: float

    @property
    def least_s(self) -> float:
        """The passes up to the first interim analysis."""
        return PAIR_LOOKS[0] * 2 * self.pass_s

    @property
    def spare_s(self) -> float:
        """What an experiment saves that is decided at the first interim analysis."""
        return (USUAL_PAIRS - PAIR_LOOKS[0]) * 2 * self.pass_s

    def of(self, remedies: Iterable[Remedy]) -> float:
        return self.start_s + sum(r.compile_s for r in remedies) + USUAL_PAIRS * 2 * self.pass_s


def build_plan(
    findings: Sequence[Finding],
    facts: RunFacts | None,
    situation: Situation,
    costs: Costs,
    *,
    given: Sequence[Remedy] = (),
) -> ExperimentPlan:
    """The fixes of all findings and those the user gave, the most promising first."""
    named: dict[str, Remedy] = {}
    left = []
    for finding in findings:
        experiments = _experiments(finding)
        named |= {remedy.id: remedy for remedy in experiments}
        if not experiments and (finding.max_gain or finding.saves_ms):
            left.append(f"{finding.title}: {finding.remedy}")
    candidates, refused = [], []
    for remedy in (*given, *named.values()):
        why = why_not(remedy, situation, facts)
        candidate = None if why else combine([remedy], findings, facts, situation, costs)
        if candidate is None:
            refused.append(Refused(remedy=remedy, why=why or "it conflicts with itself"))
        elif remedy in given or candidate.order > 1.0:
            candidates.append(candidate)
        else:
            refused.append(Refused(remedy=remedy, why=f"no finding says that it could change {situation.objective}"))
    ids = [remedy.id for remedy in given]
    return ExperimentPlan(
        objective=situation.objective,
        candidates=_sorted(candidates, ids),
        refused=tuple(refused),
        left=tuple(left),
        facts=facts,
        findings=tuple(findings),
        costs=costs,
        given=tuple(ids),
    )


def why_not(remedy: Remedy, situation: Situation, facts: RunFacts | None) -> str | None:
    """Why a fix makes no sense here; None if it does."""
    guard = remedy.guard
    place = "cpu" if situation.is_cpu else "gpu"
    if guard.place is not None and guard.place != place:
        return f"it is for a {guard.place.upper()}, and the model runs on a {place.upper()}"
    if guard.own_loop and not situation.own_loop:
        return "it is a setting of the built-in loop, and this is its own program"
    if guard.text_model and situation.reads_pages:
        return "of a model that reads pages, one page at a time, only the decode step can be changed"
    if guard.dtypes and situation.dtype not in guard.dtypes:
        return f"the model runs in {situation.dtype or 'an unknown format'}"
    if guard.package is not None and guard.package not in situation.packages:
        return f"{guard.package} is not installed"
    if guard.throughput and situation.objective not in THROUGHPUT:
        return f"{situation.objective} is the time of one sequence, which a larger batch never shortens"
    if guard.kernel_class is not None and facts is not None and not _takes(facts, guard.kernel_class, guard.min_share):
        return f"{guard.kernel_class} kernels take less than {100 * guard.min_share:.0f} % of the kernel time"
    if situation.lossless and remedy.is_lossy:
        return "only fixes without loss were requested"
    sets, environment = _settings(remedy, situation), remedy.environment
    same = all(situation.settings.get(key) == value for key, value in sets.items())
    if same and all(situation.environment.get(key) == value for key, value in environment.items()):
        return "it is set already"
    return None


def combine(
    remedies: Sequence[Remedy],
    findings: Sequence[Finding],
    facts: RunFacts | None,
    situation: Situation,
    costs: Costs,
) -> TrialSet | None:
    """Several fixes at once; None where two of them set one thing to different values."""
    sets: dict[str, str] = {}
    environment: dict[str, str] = {}
    for remedy in remedies:
        for into, values in ((sets, _settings(remedy, situation)), (environment, remedy.environment)):
            if any(into.get(key, value) != value for key, value in values.items()):
                return None
            into.update(values)
    bound = predict(remedies, findings, facts, situation.objective)
    in_time = bound if situation.objective != "joules_per_token" else None
    order = 1.0 if bound is None else bound.gain if bound.gain is not None else float("inf")
    return TrialSet(
        remedies=tuple(remedies),
        sets=sets,
        environment=environment,
        bound=in_time,
        order=order,
        cost_s=costs.of(remedies),
    )


def with_costs(plan: ExperimentPlan, costs: Costs) -> ExperimentPlan:
    """The same plan with costs that were measured."""
    known = [replace(c, cost_s=costs.of(c.remedies)) for c in plan.candidates]
    return replace(plan, candidates=_sorted(known, plan.given), costs=costs)


def _sorted(candidates: Sequence[TrialSet], given: Sequence[str]) -> tuple[TrialSet, ...]:
    """What the user gave comes first; of equal ranks the one a rule names first."""
    return tuple(sorted(candidates, key=lambda c: (c.remedies[0].id not in given, c.rank)))


def predict(
    remedies: Sequence[Remedy], findings: Sequence[Finding], facts: RunFacts | None, objective: Objective
) -> PredictedBound | None:
    """The most these fixes could bring together, None where no finding speaks of them."""
    if facts is None:
        return None
    phases = (PHASE_OF[objective],) if objective in PHASE_OF else PHASES
    before, least, named, words = 0.0, 0.0, [], []
    for name in phases:
        phase = facts.phases.get(name)
        steps = 1.0 if objective in PHASE_OF else None if phase is None else phase.steps_per_request
        if phase is None or not isinstance(phase.wall, Known) or steps is None:
            return None
        of_phase = [f for f in findings if f.phase == name and _names(f, remedies)]
        left, text = _left_ms(phase, of_phase, [r for r in remedies if name in r.phases])
        before += steps * phase.wall.value
        least += steps * left
        named += of_phase
        words += [text] if of_phase else []
    batch = 1
    for remedy in remedies:
        batch *= remedy.batch
    if not named and batch == 1:
        return None
    if batch > 1:
        words.append(f"{batch} times the sequences in the same time at best")
    gain = batch * before / least if least > 0 else None
    rules = dict.fromkeys(finding.rule for finding in named)
    if batch > 1:
        rules |= dict.fromkeys(f.rule for f in findings if any(r.batch > 1 and r in _experiments(f) for r in remedies))
    return PredictedBound(
        gain=gain,
        least=None if objective not in PHASE_OF or least <= 0 else least,
        rules=tuple(rules),
        parts=tuple(f"{finding.title} (up to {format_ms(finding.saves_ms or 0.0)})" for finding in named),
        how="; ".join(words),
    )


def scaled_bound(bound: PredictedBound, *, profiled: float | None, measured: float, is_cpu: bool) -> float | None:
    """The bound as a gain over the start as it was measured alongside the experiment.

    What is left of a GPU's step is device time, which a busier or quieter host does not change: there the value that
    cannot be beaten holds. On a CPU all of it scales with the machine, so the factor does.
    """
    if bound.least is None or profiled is None or is_cpu:
        return bound.gain
    return measured / bound.least


def _names(finding: Finding, remedies: Sequence[Remedy]) -> bool:
    named = _experiments(finding)
    return bool(finding.saves_ms) and any(
        remedy in named and remedy.batch == 1 and finding.phase in remedy.phases for remedy in remedies
    )


def left_words(findings: Sequence[Finding], rows: Sequence[ExperimentRow]) -> tuple[str, ...]:
    """What findings advise, with the results of the fixes that were tried; where that is all of them, only that."""
    results = {row.name: row.status for row in rows if row.status in FRUITLESS}
    words = []
    for finding in findings:
        named = _experiments(finding)
        tried = [remedy.id for remedy in named if remedy.id in results]
        results_text = f"tried: {', '.join(f'{name} ({results[name]})' for name in tried)}"
        if tried and len(tried) == len(named):
            words.append(f"{finding.title}; {results_text}")
        else:
            words.append(f"{finding.title}: {finding.remedy}{f' ({results_text})' if tried else ''}")
    return tuple(words)


def _experiments(finding: Finding) -> tuple[Remedy, ...]:
    return tuple(load_experiments()[name] for name in finding.experiments if name in load_experiments())


def _left_ms(phase: PhaseFacts, findings: Sequence[Finding], remedies: Sequence[Remedy]) -> tuple[float, str]:
    """What stays of one step of a phase, and the arithmetic in words."""
    assert isinstance(phase.wall, Known)
    wall = phase.wall.value
    saved = sum(finding.saves_ms or 0.0 for finding in findings)
    text = f"{phase.name} {format_ms(wall)} less {format_ms(saved)}"
    work = _work_ms(phase)
    if findings and work is not None and any(remedy.removes_idle for remedy in remedies):
        saved_work = sum(f.saves_ms or 0.0 for f in findings if not f.is_idle)
        saved = max(saved, wall - work + saved_work)
        text = f"{phase.name} {format_ms(wall)} less {format_ms(wall - work)} without work"
        text += f" and {format_ms(saved_work)} of work" if saved_work else ""
    if findings and _hides_kernels(phase) and any(remedy.changes_kernels for remedy in remedies):
        # No finding says how much shorter kernels could be that the launches hide.
        saved, text = wall, f"{phase.name} {format_ms(wall)}, its kernels replaced by others"
    left = max(wall - saved, 0.0)
    floor = next((q.value for q in (phase.achievable, phase.datasheet) if isinstance(q, Known)), None)
    if floor is not None and left < floor and not any(remedy.lowers_bound for remedy in remedies):
        return floor, f"{text}, and not below the hardware's {format_ms(floor)}"
    return left, f"{text} leaves {format_ms(left)}" + (f" ({format_factor(wall / left)})" if left > 0 else "")


def _work_ms(phase: PhaseFacts) -> float | None:
    """The time in which something is computed: kernels, on a CPU operators."""
    assert isinstance(phase.wall, Known)
    if isinstance(phase.gpu, GpuFacts):
        return min(phase.gpu.busy_ms, phase.wall.value)
    return phase.operators.value if phase.is_cpu and isinstance(phase.operators, Known) else None


def _hides_kernels(phase: PhaseFacts) -> bool:
    """Whether the host launches so slowly that the time of kernels decides nothing."""
    if not isinstance(phase.gpu, GpuFacts) or not isinstance(phase.wall, Known):
        return False
    return phase.wall.value - phase.gpu.busy_ms >= LAUNCH_BOUND_IDLE * phase.wall.value


def _settings(remedy: Remedy, situation: Situation) -> dict[str, str]:
    if remedy.batch == 1:
        return dict(remedy.sets)
    return {**remedy.sets, BATCH_KEY: str(remedy.batch * int(situation.settings.get(BATCH_KEY, "1")))}


def _takes(facts: RunFacts, kernel_class: str, share: float) -> bool:
    """Whether kernels of a class take this share of a phase's kernel time; on a CPU that is not known, and it may."""
    for phase in facts.phases.values():
        if not isinstance(phase.gpu, GpuFacts):
            if phase.is_cpu:
                return True
            continue
        spent = sum(k.ms_per_step for k in phase.gpu.kernels or () if k.kernel_class == kernel_class)
        if phase.gpu.kernel_sum_ms > 0 and spent >= share * phase.gpu.kernel_sum_ms:
            return True
    return False

"""From scopes to findings: causes claim cells, the more specific claim wins, promises and ranks are computed once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.core.units import format_ms
from llm_perf_opt.diagnosis.cause import Cause, load_causes
from llm_perf_opt.diagnosis.claim import Claim, Finding
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.scope import Scope
from llm_perf_opt.diagnosis.words import capitalized, fill

# What could save less than this part of its scope is not worth a line.
MIN_LISTED = 0.01
# A claim that is left with less than this part of what it wanted is another claim's.
MIN_LEFT = 0.3
# Where it is left with less than this, its evidence says so.
MOSTLY_GRANTED = 0.95
# A guess counts half, and so does work of the GPU whose necessary part is not known.
LOW_WEIGHT, WORK_WEIGHT = 0.5, 0.5
# A capture of so few kernels, of which start-up takes this part, has no steady state to judge.
FEW_KERNELS, MOSTLY = 50, 0.5
# So small a part of a program is not what its answer is about, where one-time costs are most of it.
LITTLE_WORK = 0.1
UNDER_PROFILER = "measured under a profiler, which slows the host: the split of host time is an upper bound"


@dataclass(frozen=True, kw_only=True)
class _Granted:
    """A claim with what it got: cells of the idle side, and kernels with the part that is on the critical path."""

    cause: Cause
    scope: Scope
    claim: Claim
    cells: Mapping[str, int]
    kernels: Mapping[str, int]
    wanted_ns: int

    @property
    def stake_ns(self) -> int:
        """Time that decides when the scope ends."""
        device = sum(ns * self.scope.critical(name) for name, ns in self.kernels.items())
        return round(device + sum(ns * self.scope.critical_of_cell(cell) for cell, ns in self.cells.items()))

    @property
    def granted_ns(self) -> int:
        return sum(self.cells.values()) + sum(self.kernels.values())

    @property
    def floor_ns(self) -> int | None:
        """The part of the claim's lower bound that belongs to what it got."""
        if self.claim.floor_ns is None:
            return None
        return round(self.claim.floor_ns * self.stake_ns / max(self.wanted_ns, 1))

    @property
    def weight(self) -> float:
        """What the order goes by: time that could be saved, or the affected time where no lower bound is known."""
        saved = self.stake_ns if self.floor_ns is None else self.stake_ns - self.floor_ns
        if self.floor_ns is None and not self.cause.is_idle:
            saved = round(saved * WORK_WEIGHT)
        return saved * (LOW_WEIGHT if self.claim.confidence == "low" else 1.0)


def judge(scopes: Iterable[Scope], program: Program) -> tuple[Finding, ...]:
    """All findings of some scopes: recurring costs by time before one-time costs by time.

    Of a capture that is little else than its start-up, with too few kernels after it for a steady state, start-up
    comes first.
    """
    granted = [one for scope in scopes for one in grant(_claims(scope, program), scope)]
    is_start = _is_start(granted)
    found = [
        ((finding.is_one_time is not is_start, -_order(one), finding.title), finding)
        for one in granted
        if (finding := _finding(one, program)) is not None
    ]
    return tuple(finding for _, finding in sorted(found, key=lambda item: item[0]))


def _is_start(granted: Sequence[_Granted]) -> bool:
    """Whether a capture of few kernels, or a program without much work of one kind, is mostly one-time costs."""
    program = [g for g in granted if g.scope.kind == "program"]
    if program:
        wall = program[0].scope.wall_ns
        once = sum(g.granted_ns for g in program if g.claim.is_one_time)
        recurs = max((g.granted_ns for g in program if not g.claim.is_one_time), default=0)
        return once >= MOSTLY * wall and recurs < LITTLE_WORK * wall
    few = [g for g in granted if g.scope.evidence is not None and 0 < g.scope.evidence.kernel_count < FEW_KERNELS]
    once = sum(g.granted_ns for g in few if g.claim.is_one_time)
    return bool(few) and once >= MOSTLY * few[0].scope.wall_ns


def _order(granted: _Granted) -> float:
    """Over scopes of different length: time of a request where that is known."""
    phase = granted.scope.phase
    steps = phase.steps_per_request if phase is not None and phase.steps_per_request is not None else 1.0
    return granted.weight * steps


def _claims(scope: Scope, program: Program) -> list[tuple[Cause, Claim]]:
    if not scope.wall_ns and scope.kind != "run":
        return []
    judged = ((cause, cause.judge(scope, program)) for cause in load_causes() if cause.applies_to(scope))
    return [(cause, claim) for cause, claim in judged if claim is not None]


def grant(claims: Sequence[tuple[Cause, Claim]], scope: Scope) -> list[_Granted]:
    """Give each claim what no more specific one has taken; two claims never promise the same time."""
    left = {cell: scope.ledger.ns(cell) for _, claim in claims for cell in claim.cells}
    left |= {cell: scope.ledger.ns(cell) for cell in scope.cell_of_kernel.values()}
    kernels = {kernel.name: kernel.own_ns for kernel in scope.kernels}
    found = []
    for cause, claim in sorted(claims, key=lambda pair: (-pair[0].specificity, -_wanted(pair[1]), pair[0].id)):
        cells = {cell: min(ns, left[cell]) for cell, ns in claim.cells.items()}
        taken = {}
        for name, ns in claim.kernels.items():
            cell = scope.cell_of_kernel[name]
            taken[name] = min(ns, kernels[name], left[cell])
            left[cell] -= taken[name]
        wanted = _wanted(claim)
        granted = sum(cells.values()) + sum(taken.values())
        if not claim.is_timeless and (granted < MIN_LEFT * wanted or not granted):
            for name, ns in taken.items():
                left[scope.cell_of_kernel[name]] += ns
            continue
        for cell, ns in cells.items():
            left[cell] -= ns
        for name, ns in taken.items():
            kernels[name] -= ns
        found.append(_Granted(cause=cause, scope=scope, claim=claim, cells=cells, kernels=taken, wanted_ns=wanted))
    return found


def _wanted(claim: Claim) -> int:
    return sum(claim.cells.values()) + sum(claim.kernels.values())


def _finding(granted: _Granted, program: Program) -> Finding | None:
    """None where there is next to nothing to save."""
    cause, scope, claim = granted.cause, granted.scope, granted.claim
    wall, stake, floor = scope.wall_ns, granted.stake_ns, granted.floor_ns
    saved = None if floor is None else max(0, stake - floor)
    if not claim.is_timeless and (stake if saved is None else saved) < MIN_LISTED * wall:
        return None
    traits = frozenset(program.traits) | claim.traits | scope.already | {scope.kind, scope.place}
    advice = cause.advise(traits)
    values = {"place": scope.place, "each": scope.each, "wall": wall, "stake": granted.granted_ns, **claim.values}
    values["share"] = granted.granted_ns / max(wall, 1)
    is_capture = scope.kind in ("capture", "steady")
    gain = _gain(granted, saved)
    caveat = cause.caveats[claim.caveat] if claim.caveat is not None else None
    evidence = [(fill(cause.evidence[fact.key], {**values, **fact.values}), fact.source) for fact in claim.evidence]
    if not claim.is_timeless and granted.granted_ns < MOSTLY_GRANTED * granted.wanted_ns:
        others = format_ms((granted.wanted_ns - granted.granted_ns) / 1e6)
        evidence.append((f"{others} of this time belong to findings that say more of it", None))
    if scope.evidence is not None and scope.evidence.processes > 1:
        evidence.append((f"times are sums over {scope.evidence.processes} processes, not time that went by", None))
    return Finding(
        rule=cause.id,
        title=capitalized(fill(cause.titles[claim.title], values)),
        evidence=tuple(text for text, _ in evidence),
        sources=tuple(source or scope.source for _, source in evidence),
        remedy=fill(advice.text, values),
        max_gain=gain,
        confidence=claim.confidence if scope.evidence is None or scope.evidence.kept_share is None else "low",
        source=scope.source,
        range_name=claim.range_name,
        capture_share=None if claim.is_timeless or not is_capture else stake / max(wall, 1),
        is_one_time=claim.is_one_time,
        hint=advice.hint,
        caveat=_caveat(granted, caveat),
        also_ranges=claim.also_ranges,
        scope=scope.id,
        phase=None if is_capture or scope.kind in ("run", "program") else scope.id,
        share=None if claim.is_timeless else stake / max(wall, 1),
        saves_ms=None if claim.is_timeless else (stake if saved is None else saved) / 1e6,
        stake_ns=None if claim.is_timeless else stake,
        floor_ns=floor,
        floor=None if claim.floor is None else fill(cause.floors[claim.floor], values),
        cells={**granted.cells, **_kernel_cells(granted)},
        plain_words=cause.plain_words,
        refutes=cause.refutes,
        doc=advice.doc,
        experiments=advice.experiments or cause.experiments,
        is_idle=cause.is_idle,
    )


def _gain(granted: _Granted, saved_ns: int | None) -> float | None:
    """The speed-up of the scope, where a lower bound is known and the cost recurs."""
    scope, evidence = granted.scope, granted.scope.evidence
    if saved_ns is None or granted.claim.is_one_time or granted.claim.is_timeless or saved_ns >= scope.wall_ns:
        return None
    if evidence is not None and evidence.kept_share is not None:
        return None
    return scope.wall_ns / (scope.wall_ns - saved_ns)


def _caveat(granted: _Granted, own: str | None) -> str | None:
    """What limits the promise: events taken out of the capture, or work of the host that hides that of the GPU."""
    evidence, scope = granted.scope.evidence, granted.scope
    if evidence is not None and evidence.kept_share is not None:
        return f"the capture holds {100 * evidence.kept_share:.1f} % of what ran; the rest may have run in these times"
    hidden = granted.granted_ns - granted.stake_ns
    if hidden and hidden >= MIN_LEFT * granted.granted_ns:
        part = 100 * hidden / max(granted.granted_ns, 1)
        return f"{part:.0f} % of this GPU time is hidden behind the host, which launches too late for it to matter"
    return own if own is not None else UNDER_PROFILER if not scope.clean else None


def _kernel_cells(granted: _Granted) -> dict[str, int]:
    """The cells that the claimed kernels are in."""
    found: dict[str, int] = {}
    for name, ns in granted.kernels.items():
        cell = granted.scope.cell_of_kernel[name]
        found[cell] = found.get(cell, 0) + ns
    return found

"""From scopes to the answer: causes claim cells, the more specific claim wins, promises and ranks are computed once.

Findings and ledgers, never text, make the one or two sentences of the verdict, and what was not recorded.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.capture.rows import KernelRow, RangeRow
from llm_perf_opt.core.units import format_factor, format_ms, format_percent
from llm_perf_opt.diagnosis.cause import Cause, capitalized, fill, load_causes
from llm_perf_opt.diagnosis.diagnosis_document import (
    Coverage,
    Diagnosis,
    Program,
    ScopeRecord,
    Verdict,
    VerdictKind,
)
from llm_perf_opt.diagnosis.evidence import CaptureEvidence, runs_on
from llm_perf_opt.diagnosis.ledger import COMMUNICATION, COMPUTE, NOT_RECORDED, Cell, Claim, Finding, cell_name
from llm_perf_opt.diagnosis.scope import Scope

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
# From this part of a scope on, time of which nothing is known is the answer, even if the GPU was busy in the rest.
MUCH_UNKNOWN = 0.25
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
        if self.claim.order_ns is not None:
            saved = round(saved * self.claim.order_ns / max(self.wanted_ns, 1))
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


# What is this part of its scope is what everybody should read first.
MIN_HEADLINE = 0.05
# A guess is for the list of findings, not for the one sentence everybody reads.
WEAK = ("low",)
# A GPU that is busy for this part of a time waits for nothing worth a finding.
BUSY = 0.9
# Communication with this part of the kernel time is worth a word, and so is this part of the launches without a record.
MUCH = 0.1
# A range so much longer than the time from the first GPU work to the last is what the program makes wait.
AROUND = 1.05
KERNELS_KEPT = 20
OTHER_CLASS = "other"
NOT_TRIED: Mapping[str, float] = {}
# The scopes of captures, and others that are not called by their own name in a sentence.
WHOLE = {"capture": "the capture", "steady": "the steady state"}
PLACES = {**WHOLE, "program": "the program", "request": "a request"}
ENABLE_CLEAN = "pipeline.torch_profiler.enable=true (or pipeline.direct_inference.enable=true)"
NOTHING_MEASURED = f"Nothing was timed, and no capture was recorded: enable {ENABLE_CLEAN}."
RECORD = {
    "torch_trace": "`activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`",
    "rocpd": "`rocprofv3 --sys-trace`",
    "nsys_trace": "`nsys profile --trace=cuda,nvtx,osrt`",
}


def diagnosis_of(
    findings: Sequence[Finding],
    scopes: Sequence[Scope],
    program: Program,
    coverage: Coverage,
    *,
    captured: Sequence[ScopeRecord] = (),
    kernels_alone: Verdict | None = None,
    measured_gains: Mapping[str, float] = NOT_TRIED,
) -> Diagnosis:
    """One document of findings, ledgers and what is known of the program; `captured` are scopes of its capture.

    `kernels_alone` is the answer where no time was judged and kernels are known without a timeline.
    """
    judged = any(scope.wall_ns for scope in scopes)
    found = None if judged or findings else kernels_alone
    return Diagnosis(
        verdict=found or verdict_of(findings, scopes, program, coverage),
        program=program,
        scopes=(*{scope.id: record_of(scope) for scope in scopes}.values(), *captured),
        claims=tuple(findings),
        coverage=coverage,
        measured_gains=measured_gains,
    )


def record_of(scope: Scope) -> ScopeRecord:
    """A scope as it is stored: the largest cells first, and of the kernels the first."""
    return ScopeRecord(
        id=scope.id,
        kind=scope.kind,
        place=scope.place,
        wall_ns=scope.wall_ns,
        clean=scope.clean,
        instances=scope.instances,
        processes=1 if scope.evidence is None else max(scope.evidence.processes, 1),
        source=scope.source,
        cells=tuple(sorted(scope.ledger.cells, key=lambda cell: (-cell.time_ns, cell.id))),
        kernels=scope.kernels[:KERNELS_KEPT],
    )


def verdict_of(findings: Sequence[Finding], scopes: Sequence[Scope], program: Program, coverage: Coverage) -> Verdict:
    """The first finding with what it promises; where there is none of weight, what the time goes into."""
    judged = [scope for scope in scopes if scope.wall_ns]
    first = next((f for f in findings if (f.share or 0.0) >= MIN_HEADLINE and _answers(f, judged)), None)
    if first is not None:
        first = _start_up_instead(first, findings) or first
    last = judged[-1] if judged else None
    if last is None and first is None:
        if not (coverage.recorded or coverage.missing):
            return Verdict(kind="nothing_measured", text=NOTHING_MEASURED)
        return Verdict(kind="no_gpu_work", text=_no_gpu_work(program, coverage))
    if first is None or (last is not None and _is_healthy(last, first)):
        assert last is not None
        rest: VerdictKind = "healthy" if _busy(last) else "largest_cell"
        return Verdict(
            kind=rest, text=_part_missing(coverage) + _rest(last), hottest_kernel=_hottest(last), scope=last.id
        )
    about = next((scope for scope in judged if scope.id == first.scope), None)
    return Verdict(
        kind="one_time" if first.is_one_time else "not_recorded" if first.rule == "not_recorded" else "finding",
        text=_part_missing(coverage) + promise(first),
        rule=first.rule,
        hottest_kernel=_hottest(about) or _hottest(last),
        scope=first.scope,
    )


def kernels_alone(ncu: NcuAnalysis | None, summary: Sequence[KernelRow] = ()) -> Verdict | None:
    """What is known of kernels without a timeline, None where nothing is."""
    if not summary and (ncu is None or not ncu.kernels):
        return None
    from llm_perf_opt.diagnosis.kernels_alone import verdict_of_kernels, verdict_of_ncu

    return verdict_of_kernels(summary) if summary or ncu is None else verdict_of_ncu(ncu)


def _answers(finding: Finding, scopes: Sequence[Scope]) -> bool:
    """Whether a finding may be the one sentence: what was not recorded is that where it is much, and no other time in
    which the GPU computes nothing is more."""
    scope = next((scope for scope in scopes if scope.id == finding.scope), None)
    if finding.rule != "not_recorded" or scope is None:
        return True
    others = (cell.time_ns for cell in _together(scope.ledger.cells) if cell.id not in (COMPUTE, *NOT_RECORDED))
    unknown_ns = scope.ledger.ns(*NOT_RECORDED)
    return unknown_ns >= max(MUCH_UNKNOWN * scope.wall_ns, max(others, default=0))


def _start_up_instead(first: Finding, findings: Sequence[Finding]) -> Finding | None:
    """The largest one-time cost of a scope that is mostly start-up, where the finding is a small part of the rest."""
    once = [f for f in findings if f.is_one_time and f.scope == first.scope and f.confidence not in WEAK]
    whole = sum(f.share or 0.0 for f in once)
    if first.is_one_time or whole < MOSTLY or (first.share or 0.0) >= MIN_LEFT * (1 - whole):
        return None
    return max(once, key=lambda f: f.share or 0.0)


def _part_missing(coverage: Coverage) -> str:
    """What to know first of a capture from which events were taken out, or in which much GPU work has no record."""
    if coverage.kept_share is not None:
        kept = format_percent(coverage.kept_share)
        return f"The capture holds {kept} of what ran: idle time may be work that was taken out of it. "
    if coverage.lost_launches >= MUCH * max(coverage.launches, 1):
        lost = f"{coverage.lost_launches:,} of {coverage.launches:,}"
        return f"The GPU work of {lost} launches has no record: what follows is about the rest. "
    return ""


def _hottest(scope: Scope | None) -> str | None:
    return scope.kernels[0].short_name if scope is not None and scope.kernels else None


def _no_gpu_work(program: Program, coverage: Coverage) -> str:
    """Why a capture has no GPU work, as far as it says, and what to record."""
    if coverage.counted_kernels:
        return f"No kernel has times: hardware counters of {coverage.counted_kernels:,} kernels were recorded instead."
    none = "No GPU work was recorded."
    if coverage.lost_launches:
        wait = "torch.cuda.synchronize()" if "torch" in program.traits else "cudaDeviceSynchronize()"
        return (
            f"{none} GPU activity was traced, but the records of {coverage.lost_launches:,} launches were lost: call "
            f"{wait} before the recording ends, and record a shorter window."
        )
    window = "the profiler's schedule and its step() calls" if "torch_trace" in program.traits else "its start and stop"
    if not coverage.recorded and not coverage.gpu_was_traced and "torch_trace" in program.traits:
        return f"The recorded window is empty: it has no operator, call, range or kernel. Check {window}."
    if coverage.gpu_was_traced:
        return (
            f"{none} GPU activity was traced, but nothing was launched in the recorded window: it is empty. Check "
            f"{window}, and whether another process does the GPU work."
        )
    record = next((text for trait, text in RECORD.items() if trait in program.traits), RECORD["nsys_trace"])
    return f"{none} If the program used a GPU, capture again with {record}."


def _is_one_kernel(scope: Scope) -> bool:
    """Whether a capture holds a single kernel: from its start to its end nothing can be idle."""
    return scope.evidence is not None and scope.evidence.kernel_count == 1


def _busy(scope: Scope) -> bool:
    """Whether the GPU hardly waits. One that only communicates may wait for other GPUs."""
    if _is_one_kernel(scope):
        return False
    is_full = scope.ledger.share(COMPUTE, COMMUNICATION) >= BUSY and scope.ledger.ns(COMPUTE) > 0
    return is_full and _range_around(scope) is None


def _range_around(scope: Scope) -> RangeRow | None:
    """A range with GPU work that lasts longer than all of the scope, and in which the GPU mostly waits."""
    rows = () if scope.evidence is None else scope.evidence.ranges
    return next(
        (
            row
            for row in rows
            if row.kernel_count and row.wall_ns > AROUND * scope.wall_ns and not runs_on(row)
            if (row.typical.gpu_busy_ns or 0) < BUSY * row.typical.wall_ns
        ),
        None,
    )


def _is_healthy(scope: Scope, first: Finding) -> bool:
    """A busy GPU of which only a one-time cost is known."""
    return first.is_one_time and scope.id == "steady" and _busy(scope)


def promise(finding: Finding) -> str:
    """A finding's title, and what could be gained where a lower bound of what remains is known."""
    if finding.is_one_time:
        return f"{finding.title}. This is a one-time cost, not part of the steady state."
    if finding.max_gain is None:
        return f"{finding.title}."
    what = PLACES.get(finding.scope, finding.scope)
    return (
        f"{finding.title}. {finding.hint or 'A fix'} could speed up {what} by up to {format_factor(finding.max_gain)}."
    )


def _rest(scope: Scope) -> str:
    """Where the time goes of a scope in which no cause explains much."""
    if scope.kind == "program":
        return _rest_of_program(scope)
    if _is_one_kernel(scope) and scope.kernels:
        (only,) = scope.kernels
        took = format_ms(only.time_ns / 1e6)
        return f"One kernel was recorded: {only.short_name}, {took}. That is too little to say how busy the GPU is."
    busy = scope.ledger.share(COMPUTE, COMMUNICATION)
    hottest = scope.kernels[0] if scope.kernels else None
    text = f"GPU busy {format_percent(busy)} of {scope.place} ({format_ms(scope.wall_ns / 1e6)})"
    if hottest is not None:
        # Each moment of the GPU once: what is overlapped decides nothing.
        classes: dict[str, int] = {}
        for kernel in scope.kernels:
            classes[kernel.kernel_class] = classes.get(kernel.kernel_class, 0) + kernel.own_ns
        name, own_ns = max(classes.items(), key=lambda item: item[1])
        total = sum(classes.values()) or 1
        # Kernels of no known class are the program's own.
        text += (
            "; the hottest kernel is "
            if name == OTHER_CLASS
            else (f"; {name} kernels take {format_percent(own_ns / total)} of it, the hottest is ")
        )
        text += f"{hottest.short_name} ({format_percent(hottest.own_ns / total)})"
    text += _overlapped(scope)
    reached = _of_peak(scope)
    if reached is not None:
        text += f", at {format_percent(reached)} of peak by the shapes of its operators"
    around = _range_around(scope)
    if around is not None:
        part = format_percent((around.typical.gpu_busy_ns or 0) / around.typical.wall_ns)
        return f"{text}. Of a typical {around.name} ({format_ms(around.typical.wall_ns / 1e6)}) it is busy {part}."
    if _busy(scope):
        return f"Healthy: {text}. No idle time to speak of: only faster or fewer kernels save time."
    largest, *others = sorted(_together(scope.ledger.cells), key=lambda cell: -cell.time_ns)
    what = "largest"
    if largest.id == COMPUTE and others:
        # The text already states that the GPU is busy.
        largest, what = others[0], "largest other"
    return f"{text}. The {what} part: {cell_name(largest.id)}, {format_percent(largest.time_ns / scope.wall_ns)}."


def _overlapped(scope: Scope) -> str:
    """How much of the communication there is costs nothing, where it is much."""
    time_ns = sum(kernel.time_ns for kernel in scope.kernels if kernel.kernel_class == "communication")
    if not time_ns or time_ns < MUCH * scope.kernel_ns or not scope.ledger.ns(COMPUTE):
        return ""
    hidden = 1 - scope.ledger.ns(COMMUNICATION) / time_ns
    return f"; {format_percent(hidden)} of {format_ms(time_ns / 1e6)} of communication is overlapped"


def _rest_of_program(scope: Scope) -> str:
    largest = max(scope.ledger.cells, key=lambda cell: cell.time_ns)
    where = f" ({largest.owner[0]})" if largest.owner else ""
    share = format_percent(largest.time_ns / scope.wall_ns)
    return (
        f"The program ran {format_ms(scope.wall_ns / 1e6)}. The largest part: {cell_name(largest.id)}{where}, {share}."
    )


def _of_peak(scope: Scope) -> float | None:
    """How near the work comes to the GPU's peaks, where shapes say it of most of the kernel time."""
    shapes = scope.evidence.shapes if scope.evidence is not None else None
    known = [(row.time_ns, row.roof_pct) for row in shapes.rows if row.roof_pct is not None] if shapes else []
    time_ns = sum(time for time, _ in known)
    if shapes is None or 2 * time_ns < shapes.kernel_ns:
        return None
    reached = sum(time * roof for time, roof in known) / time_ns / 100
    # More than the peak is another peak, or fewer operations than the shapes say: nothing to report.
    return reached if reached <= 1.0 else None


def _together(cells: Sequence[Cell]) -> list[Cell]:
    """Cells of one kind as one."""
    found: dict[str, int] = {}
    for cell in cells:
        key = ".".join(cell.id.split(".")[:2])
        found[key] = found.get(key, 0) + cell.time_ns
    return [Cell(id=key, time_ns=time_ns) for key, time_ns in found.items()]


def coverage_of(evidence: CaptureEvidence, scopes: Sequence[Scope], *, counted: int = 0) -> Coverage:
    """What the captures hold, and what they do not."""
    timelines = evidence.timelines
    has = {
        "kernels": any(len(t.kernels) for t in timelines),
        "launches": any(bool((t.kernels.call >= 0).any()) for t in timelines),
        "copies": any(len(t.copies) for t in timelines),
        "ranges": any(len(t.ranges) for t in timelines),
        "operators": any(len(t.operators) for t in timelines),
        "Python frames": any(len(t.frames) for t in timelines),
        "system calls": any(len(t.system) for t in timelines),
        "launch shapes": any(t.launch_shapes for t in timelines),
        "operator shapes": evidence.shapes is not None,
        "other ranks": len(timelines) > 1,
    }
    # A job of one rank has no others.
    alone = "other ranks" if evidence.world_size == 1 else None
    share = scopes[-1].ledger.share(*NOT_RECORDED) if scopes else 0.0
    return Coverage(
        lost_launches=sum(t.lost_launches for t in timelines),
        launches=sum(t.lost_launches + int(t.calls.launches.sum()) for t in timelines),
        counted_kernels=counted,
        gpu_was_traced=any(t.gpu_was_traced for t in timelines),
        recorded=tuple(name for name, is_there in has.items() if is_there),
        missing=tuple(name for name, is_there in has.items() if not is_there and name != alone),
        unrecorded_share=share,
        kept_share=evidence.kept_share,
    )

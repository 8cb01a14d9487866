"""The answer in one or two sentences, and what was not recorded; made from findings and ledgers, never from text."""

from collections.abc import Mapping, Sequence

from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.capture.rows import KernelRow, RangeRow
from llm_perf_opt.core.units import format_factor, format_ms, format_percent
from llm_perf_opt.diagnosis.claim import Finding
from llm_perf_opt.diagnosis.diagnosis_document import (
    Coverage,
    Diagnosis,
    Program,
    ScopeRecord,
    Verdict,
    VerdictKind,
)
from llm_perf_opt.diagnosis.evidence import CaptureEvidence, runs_on
from llm_perf_opt.diagnosis.ledger import COMMUNICATION, COMPUTE, NOT_RECORDED, Cell, cell_name
from llm_perf_opt.diagnosis.scope import Scope
from llm_perf_opt.diagnosis.waterfall import ENABLE_CLEAN

# What is this part of its scope is what everybody should read first.
MIN_HEADLINE = 0.05
# A guess is for the list of findings, not for the one sentence everybody reads.
WEAK = ("low",)
# A GPU that is busy for this part of a time waits for nothing worth a finding.
BUSY = 0.9
# Communication with this part of the kernel time is worth a word.
MUCH = 0.1
# A range so much longer than the time from the first GPU work to the last is what the program makes wait.
AROUND = 1.05
KERNELS_KEPT = 20
OTHER_CLASS = "other"
NOT_TRIED: Mapping[str, float] = {}
# The scopes of captures, and others that are not called by their own name in a sentence.
WHOLE = {"capture": "the capture", "steady": "the steady state"}
PLACES = {**WHOLE, "program": "the program", "request": "a request"}
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
        scopes=(*{scope.id: _record(scope) for scope in scopes}.values(), *captured),
        claims=tuple(findings),
        coverage=coverage,
        measured_gains=measured_gains,
    )


def _record(scope: Scope) -> ScopeRecord:
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
    last = judged[-1] if judged else None
    if last is None and first is None:
        if not (coverage.recorded or coverage.missing):
            return Verdict(kind="nothing_measured", text=NOTHING_MEASURED)
        return Verdict(kind="no_gpu_work", text=_no_gpu_work(program, coverage))
    if first is None or (last is not None and _is_healthy(last, first)):
        assert last is not None
        rest: VerdictKind = "healthy" if _busy(last) else "largest_cell"
        return Verdict(kind=rest, text=_rest(last), hottest_kernel=_hottest(last), scope=last.id)
    about = next((scope for scope in judged if scope.id == first.scope), None)
    return Verdict(
        kind="one_time" if first.is_one_time else "not_recorded" if first.rule == "not_recorded" else "finding",
        text=_thinned(coverage) + promise(first),
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
    """Whether a finding may be the one sentence: what was not recorded is that where it is the largest part."""
    scope = next((scope for scope in scopes if scope.id == finding.scope), None)
    if finding.rule != "not_recorded" or scope is None:
        return True
    others = (cell.time_ns for cell in _together(scope.ledger.cells) if cell.id not in NOT_RECORDED)
    return scope.ledger.ns(*NOT_RECORDED) >= max(others, default=0)


def _thinned(coverage: Coverage) -> str:
    """What to know first of a capture from which events were taken out."""
    if coverage.kept_share is None:
        return ""
    kept = format_percent(coverage.kept_share)
    return f"The capture holds {kept} of what ran: idle time may be work that was taken out of it. "


def _hottest(scope: Scope | None) -> str | None:
    return scope.kernels[0].short_name if scope is not None and scope.kernels else None


def _no_gpu_work(program: Program, coverage: Coverage) -> str:
    """Why a capture has no GPU work, as far as it says, and what to record."""
    if coverage.counted_kernels:
        return f"No kernel has times: hardware counters of {coverage.counted_kernels:,} kernels were recorded instead."
    none = "No GPU work was recorded."
    if coverage.lost_launches:
        wait = "torch.cuda.synchronize()" if program.has("torch") else "cudaDeviceSynchronize()"
        return (
            f"{none} GPU activity was traced, but the records of {coverage.lost_launches:,} launches were lost: call "
            f"{wait} before the recording ends, and record a shorter window."
        )
    if coverage.gpu_was_traced:
        window = "the profiler's schedule and its step() calls" if program.has("torch_trace") else "its start and stop"
        return (
            f"{none} GPU activity was traced, but nothing was launched in the recorded window: it is empty. Check "
            f"{window}, and whether another process does the GPU work."
        )
    record = next((text for trait, text in RECORD.items() if program.has(trait)), RECORD["nsys_trace"])
    return f"{none} If the program used a GPU, capture again with {record}."


def _busy(scope: Scope) -> bool:
    """Whether the GPU hardly waits. One that only communicates may wait for other GPUs."""
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
        "python frames": any(len(t.frames) for t in timelines),
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
        counted_kernels=counted,
        gpu_was_traced=any(t.gpu_was_traced for t in timelines),
        recorded=tuple(name for name, is_there in has.items() if is_there),
        missing=tuple(name for name, is_there in has.items() if not is_there and name != alone),
        unrecorded_share=share,
        kept_share=evidence.kept_share,
    )

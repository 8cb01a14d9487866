"""The diagnosis of a run: its clean phases, and what its capture says where no clean time does."""

from collections.abc import Mapping

from msgspec import UNSET

from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis, NcuKernel
from llm_perf_opt.core.names import DECODE, DECODE_STEP, MODULE_PREFIX, PHASES
from llm_perf_opt.diagnosis.diagnose import NOT_TRIED, diagnosis_of, judge, kernels_alone
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, Coverage, Diagnosis
from llm_perf_opt.diagnosis.facts import GpuFacts, Known, RunFacts
from llm_perf_opt.diagnosis.host_scope import program_scope
from llm_perf_opt.diagnosis.ledger import Cell, Finding, Ledger, balanced
from llm_perf_opt.diagnosis.program import program_of_run
from llm_perf_opt.diagnosis.scope import Scope, phase_scope

REQUEST = "request"
PHASE_RANGES = (*PHASES, DECODE_STEP)
# Which kernels follow each other only a capture says.
ONLY_IN_CAPTURES = ("unfused_attention",)
# Samples of the host say what it did where a capture recorded nothing, a capture of the GPU what its lines launched.
SAID_BY_SAMPLES, SAID_BY_CAPTURES = ("not_recorded",), ("host_gpu",)


def diagnose_run(
    facts: RunFacts,
    captured: CaptureAnalysis | None,
    otherwise: CaptureAnalysis | None = None,
    measured_gains: Mapping[str, float] = NOT_TRIED,
    ncu: NcuAnalysis | None = None,
) -> Diagnosis:
    """Findings of the clean phases first; of the capture those that no clean phase speaks for.

    `ncu` answers where nothing was timed and nothing else was captured.

    `otherwise` is another capture of the run, which speaks where the first saw nothing of a GPU: nsys on a machine
    without one records no operators, torch's profiler does.
    """
    if otherwise is not None and not _saw_gpu(captured):
        captured = otherwise
    known = None if captured is None or captured.diagnosis is UNSET else captured.diagnosis
    program = program_of_run(facts, None if known is None else known.program)
    scopes = run_scopes(facts)
    timed = any(scope.kind == "phase" for scope in scopes)
    sampled = any(scope.kind == "program" for scope in scopes)
    saw_gpu = _saw_gpu(captured)
    findings = tuple(f for f in judge(scopes, program) if not (saw_gpu and f.rule in SAID_BY_CAPTURES))
    more = () if captured is None else tuple(f for f in captured.findings if not is_covered(f, facts))
    claims = (*findings, *more)
    is_unexplained = known is not None and known.verdict.rule in SAID_BY_SAMPLES
    if sampled and saw_gpu:
        # What the capture cannot say of the host, the samples do.
        more = tuple(f for f in more if f.rule not in SAID_BY_SAMPLES)
        first = (*findings, *more) if timed or is_unexplained else (*more, *findings)
        claims = first if timed else tuple(sorted(first, key=lambda f: f.is_one_time))
    if known is not None and not timed and (not sampled or (saw_gpu and not is_unexplained)):
        # The capture is all there is to judge: its own answer is.
        claims = claims if sampled else (*more, *findings)
        return Diagnosis(
            verdict=known.verdict,
            program=known.program,
            scopes=known.scopes,
            claims=claims,
            coverage=known.coverage,
            measured_gains=measured_gains,
        )
    return diagnosis_of(
        claims,
        scopes,
        program,
        Coverage(recorded=(), missing=(), unrecorded_share=0.0) if known is None else known.coverage,
        captured=() if known is None else known.scopes,
        kernels_alone=kernels_alone(ncu) if captured is None else None,
        measured_gains=measured_gains,
    )


def _saw_gpu(captured: CaptureAnalysis | None) -> bool:
    return captured is not None and bool(captured.gpu.span_ns)


def run_scopes(facts: RunFacts) -> list[Scope]:
    """The request, its phases, and the run as a whole, of which no wall time is queried."""
    phases = [phase_scope(phase, facts, _ncu_of(facts, phase.name)) for phase in facts.phases.values()]
    program = None if facts.host is None else program_scope(facts.host)
    found = [program, _request(facts), *phases]
    run = Scope(
        id="run",
        kind="run",
        place="the run",
        each="the run",
        wall_ns=0,
        clean=True,
        ledger=Ledger(wall_ns=0, cells=()),
        source="manifest.json",
        run=facts,
    )
    return [*(scope for scope in found if scope is not None), run]


def _request(facts: RunFacts) -> Scope | None:
    if not isinstance(facts.prepare, Known) or not facts.request_ms:
        return None
    wall = round(facts.request_ms * 1e6)
    prepare = min(wall, round(facts.prepare.value * 1e6))
    cells = (Cell(id="host.prepare", time_ns=prepare), Cell(id="request.model", time_ns=wall - prepare))
    return Scope(
        id=REQUEST,
        kind="request",
        place="a request",
        each="a request",
        wall_ns=wall,
        clean=True,
        ledger=balanced(wall, cells),
        source=facts.prepare.source or "manifest.json",
        run=facts,
    )


def _ncu_of(facts: RunFacts, phase: str) -> Mapping[str, NcuKernel]:
    """What ncu measured in a phase: the same kernel on another phase's shapes is another matter."""
    return {
        kernel.name: kernel.ncu
        for kernel in facts.kernels
        if kernel.ncu is not None and (not kernel.ncu.ranges or any(phase in text for text in kernel.ncu.ranges))
    }


def is_covered(finding: Finding, facts: RunFacts) -> bool:
    """Whether a phase with a clean time speaks for this finding of a capture."""
    if finding.rule in ONLY_IN_CAPTURES:
        return False
    if finding.range_name is None:
        timed = (phase for phase in facts.phases.values() if isinstance(phase.wall, Known))
        return any(isinstance(p.gpu, GpuFacts) or (p.is_cpu and isinstance(p.operators, Known)) for p in timed)
    return all(_is_timed(name, facts) for name in (finding.range_name, *finding.also_ranges))


def _is_timed(name: str, facts: RunFacts) -> bool:
    if name.startswith(MODULE_PREFIX):
        # Modules of our own loop run inside its phases.
        return any(isinstance(phase.wall, Known) for phase in facts.phases.values())
    if name not in PHASE_RANGES:
        return False
    phase = facts.phases.get(DECODE if name == DECODE_STEP else name)
    return phase is not None and isinstance(phase.wall, Known)

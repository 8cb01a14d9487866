"""Rules preparation, host_edges, framework_overhead and outside_operators: time of the host's own.

A request may wait until its input is ready, and in a capture the host may work long before the first kernel of a
request and after the last: the GPU may work all the time between them. On a CPU, much of a phase may pass outside
operators: where little passes between one operator and the next it is Python and the framework; where much does, the
program does something else.
"""

from dataclasses import replace

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts
from llm_perf_opt.diagnosis.facts import COMPILED, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import (
    CERTAIN_INSTANCES,
    REQUEST,
    Confidence,
    Evidence,
    Finding,
    Rule,
    Suggestion,
    advise,
    amdahl,
)
from llm_perf_opt.diagnosis.experiments import COMPILE, JOINED_PROJECTIONS, LARGER_BATCH, ONE_THREAD
from llm_perf_opt.analysis.findings.rules.long_gaps import COMPILING_REMEDY, find_none
from llm_perf_opt.analysis.gaps.edges import TELLS, HostEdge

# Less than this of a request is the price of having an input at all.
MIN_PREPARING = 0.1
CHEAPER = (
    "make preparing cheaper: fewer copies and conversions, work on tensors in place of single images or strings, and "
    "what comes again prepared once"
)
AHEAD = "; or resize and normalise on the GPU, and prepare the next input while it works on this one"
HIDES = "preparing ahead raises throughput; one request alone gets shorter only if preparing itself does"
MIN_SHARE = 0.15
START = "start fewer operators from Python: "
FEWER = (
    Suggestion(text="torch.compile (on a CPU it fuses chains and drops dispatch)", done=COMPILED),
    "a larger batch",
    "or an exported model in a runtime without Python",
)
REMEDY = advise(START, FEWER)
# Starting an operator from Python takes some ten microseconds; under the profiler and on a slow machine ten times that.
MOST_DISPATCH_MS = 0.5
LOOK_REMEDY = (
    "find out what the program does there, for it is not torch: it may wait, sleep, read, tokenise or compute in "
    "Python or another library; a sampling profiler (py-spy record -- python …) or a trace with Python stacks names "
    "the lines"
)
NAME_WIDTH, SHOWN = 100, 4
# A range of one instance around so many of another is a run, which may hold what is paid once.
STEPS_OF_A_RUN = 3
EDGES_REMEDY = (
    "make this work shorter, or do it elsewhere: prepare the next request and finish the last one in another thread or "
    "process while the GPU works on this one, let the GPU do what is work on tensors (resizing, normalising, sorting "
    "out boxes), and prepare once what comes again"
)
EDGES_CAVEAT = (
    "one request alone gets shorter only if this work itself does; beside another request's it raises throughput"
)
WHEN = {"before": "before the first kernel", "after": "after the last kernel"}
# Less than this of a part's edge is not worth a line.
MIN_TOLD = 0.02


def find_preparation(facts: RunFacts) -> list[Finding]:
    """What passes before the model gets its input, where that is a tenth of a request."""
    prepare, whole_ms = facts.prepare, facts.request_ms
    if not isinstance(prepare, Known) or not whole_ms or prepare.value < MIN_PREPARING * whole_ms:
        return []
    repeats = prepare.spread.n if prepare.spread is not None else 1
    source = prepare.source or "manifest.json"
    told = f"{prepare.value:.1f} of {whole_ms:.1f} ms pass before the model has its input ({prepare.how})"
    ahead = whole_ms / max(prepare.value, whole_ms - prepare.value)
    beside = f"prepared ahead by one worker, requests one after the other would come at most {ahead:.2f}× as fast"
    return [
        PREPARATION.finding(
            title=f"Preparing the input on the host takes {100 * prepare.value / whole_ms:.0f} % of a request",
            phase=REQUEST,
            evidence=tuple(
                Evidence(text=text, source=source) for text in ((told,) if facts.is_cpu else (told, beside))
            ),
            saves_ms=prepare.value,
            gain=amdahl(whole_ms, prepare.value),
            confidence="high" if repeats >= CERTAIN_INSTANCES else "medium",
            # On a CPU the cores that would prepare ahead are those that compute.
            remedy=CHEAPER if facts.is_cpu else CHEAPER + AHEAD,
            caveat=None if facts.is_cpu else HIDES,
        )
    ]


def find_framework_overhead(facts: RunFacts) -> list[Finding]:
    """One finding per phase on a CPU that spends a seventh or more of its time in starting operators."""
    return [
        _finding(
            RULE,
            phase,
            advise(START, FEWER, facts.already(phase.name)),
            hint="A larger batch" if COMPILED in facts.already(phase.name) else None,
        )
        for phase in facts.phases.values()
        if _outside_ms(phase) and not _does_something_else(phase)
    ]


def find_outside_operators(facts: RunFacts) -> list[Finding]:
    """One finding per phase on a CPU that spends a seventh or more of its time outside of torch."""
    return [
        _finding(ELSEWHERE, phase, LOOK_REMEDY)
        for phase in facts.phases.values()
        if _outside_ms(phase) and _does_something_else(phase)
    ]


def _does_something_else(phase: PhaseFacts) -> bool:
    return phase.between_operators_ms is not None and phase.between_operators_ms > MOST_DISPATCH_MS


def _outside_ms(phase: PhaseFacts) -> float:
    """What passes outside operators on a CPU, where that is much."""
    if not phase.is_cpu or not isinstance(phase.wall, Known) or not isinstance(phase.operators, Known):
        return 0.0
    outside = phase.wall.value - phase.operators.value
    return outside if outside >= MIN_SHARE * phase.wall.value else 0.0


def _finding(rule: Rule, phase: PhaseFacts, remedy: str, *, hint: str | None = None) -> Finding:
    known = [quantity for quantity in (phase.operators, phase.wall) if isinstance(quantity, Known)]
    operators, wall = known
    outside = _outside_ms(phase)
    evidence = [
        Evidence(text=operators.how, source=operators.source or "manifest.json"),
        Evidence(text=f"clean wall time {wall.value:.4g} ms ({wall.how})", source=wall.source or "manifest.json"),
    ]
    if rule is ELSEWHERE:
        text = f"{phase.between_operators_ms:.3g} ms pass from one operator to the next, on average under the profiler"
        evidence.append(Evidence(text=text, source=operators.source or "manifest.json"))
    return rule.finding(
        title=f"{phase.name.capitalize()} spends {100 * outside / wall.value:.0f} % outside operators",
        phase=phase.name,
        evidence=tuple(evidence),
        saves_ms=outside,
        gain=amdahl(wall.value, outside),
        confidence="medium",
        remedy=remedy,
        hint=hint,
        caveat="the profiler costs time at every operator, so the split is approximate",
    )


def find_in_edges(facts: CaptureFacts) -> list[Finding]:
    """What is paid once and what is not, apart."""
    once = [edge for edge in facts.edges if edge.sets_up]
    every = [edge for edge in facts.edges if not edge.sets_up]
    does = "waits" if all(edge.waits for edge in every) else "works"
    return [
        *(replace(found, caveat=EDGES_CAVEAT) for found in _in_edges(facts, every, f"The host {does}", EDGES_REMEDY)),
        *(replace(found, is_one_time=True) for found in _in_edges(facts, once, "The host sets up", COMPILING_REMEDY)),
    ]


def _in_edges(facts: CaptureFacts, edges: list[HostEdge], what: str, remedy: str) -> list[Finding]:
    if not edges:
        return []
    spent = sum(edge.length_ns for edge in edges)
    where, whole_ns = "the capture", facts.span_ns
    if edges[0].is_whole and edges[0].range_name is not None:
        where, whole_ns = edges[0].range_name, edges[0].range_ns
    told = [(part, edge) for edge in edges for part in edge.parts if part.time_ns >= MIN_TOLD * edge.length_ns]
    parts = sorted(told, key=lambda pair: -pair[0].time_ns)[:SHOWN]
    most = f" (most: {_cut(parts[0][0].name)})" if parts else ""
    when = "before the first kernel and after the last" if len(edges) > 1 else WHEN[edges[0].when]
    return [
        EDGES.finding_of_capture(
            facts,
            title=f"{what} {when} for {spent / whole_ns:.0%} of {where}{most}",
            evidence=(
                f"{spent / 1e6:.2f} ms of {whole_ns / 1e6:.2f} ms, in which the GPU has nothing to do; it is busy for "
                f"{facts.busy_ns / 1e6:.2f} ms",
                *(
                    f"{part.kind} {_cut(part.name)}: {part.time_ns / 1e6:.2f} ms {WHEN[edge.when]}"
                    for part, edge in parts
                ),
            ),
            saved_ns=spent,
            confidence=_confidence(facts, edges),
            range_name=None if where == "the capture" else where,
            remedy=remedy,
        )
    ]


def _confidence(facts: CaptureFacts, edges: list[HostEdge]) -> Confidence:
    """The time itself is certain; what it is spent in may be a wait for others, or the start of a whole run."""
    told = sum(part.time_ns for edge in edges for part in edge.parts)
    is_told = told >= TELLS * sum(edge.length_ns for edge in edges)
    runs = {row.parent for row in facts.ranges if row.kernel_count and row.instances >= STEPS_OF_A_RUN}
    is_run = any(edge.range_name in runs for edge in edges)
    return "low" if all(edge.waits for edge in edges) or (is_run and not is_told) else "medium"


def _cut(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"


RULE = Rule(
    id="framework_overhead",
    find=find_framework_overhead,
    plain_words="Much of the time goes into directing the work, not into the work itself.",
    remedy=REMEDY,
    hint="torch.compile",
    experiments=(COMPILE, ONE_THREAD, JOINED_PROJECTIONS, LARGER_BATCH),
    is_idle=True,
)
ELSEWHERE = Rule(
    id="outside_operators",
    find=find_outside_operators,
    plain_words="Much of the time goes into something the program does beside the model.",
    remedy=LOOK_REMEDY,
    hint="Doing less beside the model",
    is_idle=True,
)
PREPARATION = Rule(
    id="preparation",
    find=find_preparation,
    plain_words="A part of every request passes before the model has its input: it is read and converted first.",
    remedy=CHEAPER + AHEAD,
    hint="Preparing inputs faster",
    is_idle=True,
)
EDGES = Rule(
    id="host_edges",
    find=find_none,
    find_in_capture=find_in_edges,
    plain_words="The GPU gets its work late and is done early: the program prepares or finishes without it.",
    remedy=EDGES_REMEDY,
    hint="Shortening this work",
)

"""Rules needless_copies, host_device_transfers, exposed_communication and late_ranks: time that goes into moving data.

Kernels that only copy, copies to and from the host, communication beside which nothing computes, and collectives that
wait for ranks that come late.
"""

from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts
from llm_perf_opt.analysis.findings.facts import STATIC_CACHE, CopyFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import (
    CERTAIN_INSTANCES,
    CERTAIN_SHARE,
    WHOLE_CAPTURE,
    Evidence,
    Finding,
    Rule,
    Suggestion,
    advise,
    amdahl,
)
from llm_perf_opt.analysis.findings.phase_kernels import (
    HIDDEN_IN_CAPTURE,
    LAUNCH_BOUND_IDLE,
    Slice,
    describe,
    slices,
    time_of,
)
from llm_perf_opt.analysis.findings.remedies import COMPILE, MAX_AUTOTUNE, REDUCE_OVERHEAD
from llm_perf_opt.analysis.findings.rules.unfused_elementwise import find_chains
from llm_perf_opt.analysis.findings.rules.wait_bound import DEVICE_COPY_REMEDY, DEVICE_COPY_REMEDY_OF_OTHERS
from llm_perf_opt.analysis.kernels.names import changes_layout
from llm_perf_opt.analysis.ranks.analysis import RankRow, RanksAnalysis
from llm_perf_opt.analysis.ranks.collectives import SEND_RECEIVE, kind_of_collective

MIN_SHARE = 0.05
MIN_TRANSFER_SHARE = 0.05
SHOWN = 3
RANKS_SHOWN = 8
START = "write results where they are needed: "
PLACES = (
    Suggestion(text="a preallocated (static) KV cache instead of torch.cat per token", done=STATIC_CACHE),
    "contiguous layouts instead of .contiguous() and .transpose() copies",
    "no .to(dtype) inside layers",
)
REMEDY = advise(START, PLACES)
LAYOUT_REMEDY = (
    "keep images in the layout the convolutions compute in, so that nothing turns them around and back: in torch the "
    "model and its input in channels_last (.to(memory_format=torch.channels_last)), elsewhere NHWC from the start"
)
MAY_BE_NEEDED = "an upper bound: a copy that changes the format or gathers rows may be needed"
TRANSFER_REMEDY = (
    "keep inputs and tokens on the device, pin host memory (pin_memory=True) and copy with non_blocking=True, and read "
    "results back in one piece after the loop"
)

MIN_EXPOSED_SHARE = 0.05
COMMUNICATION_REMEDY = (
    "compute while data travels: start collectives as soon as their input is ready and wait for them late (gradient "
    "buckets, asynchronous collectives, splitting a batch in two), send less (a lower precision, a smaller group), and "
    "balance the ranks: a kernel that communicates also waits for the slowest of them"
)
COMMUNICATION_REMEDY_OF_INFERENCE = (
    "compute while data travels: split a batch in two, so that one half computes while the other communicates; send "
    "less (a lower precision, a smaller group); use kernels made for small messages and fused with what follows "
    "(one-shot all-reduce with its norm); and balance the ranks: a kernel that communicates also waits for the "
    "slowest of them"
)
COMMUNICATION_REMEDY_OF_PAIRS = (
    "compute while data travels: send each piece as soon as it is done and ask for the next before it is needed (an "
    "all-to-all started early or in pieces beside the layers around it, more and smaller micro-batches in a pipeline), "
    "send less (a lower precision, the parts of the model placed so that less crosses nodes), and balance the ranks: a "
    "kernel that receives also waits for the one that sends"
)
# Where computation could hide less than this part of it, overlap is not the answer.
MOSTLY_HIDDEN = 0.5
LESS_COMMUNICATION = (
    "communicate less or faster, for there is too little computation to hide it behind: fewer or smaller messages (a "
    "lower precision, more work between two exchanges), another split of the model, so that most of it stays inside a "
    "node (tensor and expert parallelism there, data or pipeline parallelism between nodes), faster links (with "
    "NCCL_DEBUG=INFO NCCL says which it uses); and look for the slow rank: a kernel that communicates also waits for "
    "it (llm-perf analyze of all ranks' captures names it)"
)
RANKS_REMEDY = (
    "make the ranks arrive together: look at the one that comes last (its capture, its share of the work, the node it "
    "runs on, its host), give every rank the same amount to do, and start the collective before work that does not "
    "need its result"
)


def find_needless_copies(facts: RunFacts) -> list[Finding]:
    """One finding per phase in which kernels that only copy take a twentieth of the kernel time.

    None of a capture alone: `find_copies_in` looks at that.
    """
    if facts.capture_ms is not None:
        return []
    found = []
    for part in slices(facts):
        rows = [row for row in part.rows if row[0].kernel_class == "copy"]
        spent = time_of(rows)
        if rows and spent >= MIN_SHARE * part.busy_ms:
            found.append(_copies(part, spent, facts))
    return found


def find_copies_in(facts: CaptureFacts) -> list[Finding]:
    """One finding when such kernels take a twentieth of the kernel time, where chains of small kernels are none.

    A compiler that fuses the chains does away with their copies as well, but not with those a library makes.
    """
    total = sum(row.total_ns for row in facts.kernels)
    rows = [row for row in facts.kernels if row.kernel_class == "copy"]
    turned = [row for row in rows if changes_layout(row.name)]
    is_layout = 2 * sum(row.total_ns for row in turned) > sum(row.total_ns for row in rows)
    if is_layout or find_chains(facts):
        rows = turned
    spent = min(sum(row.total_ns for row in rows), facts.busy_ns)
    if not rows or spent < MIN_SHARE * total:
        return []
    what = "change the layout of images (NCHW, NHWC)" if rows == turned else "only copy"
    finding = RULE.finding_of_capture(
        facts,
        title=f"Kernels that {what} take {spent / total:.0%} of the capture's kernel time",
        evidence=tuple(
            f"`{row.short_name}`: {row.total_ns / 1e6:.3f} ms in {row.instances:,} launch(es)" for row in rows[:SHOWN]
        ),
        saved_ns=0,
        confidence="medium",
        remedy=LAYOUT_REMEDY if rows == turned else _remedy(facts),
    )
    idles = facts.busy_ns < (1 - LAUNCH_BOUND_IDLE) * facts.span_ns
    return [
        replace(
            finding,
            share=spent / facts.span_ns,
            gain=amdahl(facts.span_ns, spent),
            caveat=HIDDEN_IN_CAPTURE if idles else MAY_BE_NEEDED,
        )
    ]


def _remedy(facts: CaptureFacts) -> str:
    if facts.report.framework != "torch":
        return DEVICE_COPY_REMEDY_OF_OTHERS
    is_decoder = facts.has_attention and not facts.report.trains
    return REMEDY if is_decoder else DEVICE_COPY_REMEDY


def find_transfers(facts: RunFacts) -> list[Finding]:
    """One finding when copies between host and device take a twentieth of the time of all kernels of the capture.

    None of a capture alone: it says by itself for how long copies ran and no kernel did, and the others cost nothing.
    """
    if facts.capture_ms is not None:
        return []
    rows = [c for c in facts.copies if _crosses(c)]
    spent = sum(c.total_ns for c in rows)
    kernels = sum(k.total_ns for k in facts.kernels)
    if not rows or not kernels or spent < MIN_TRANSFER_SHARE * kernels:
        return []
    return [
        TRANSFERS.finding(
            title=f"Host-device copies{_size(rows)} take {_plain(spent / 1e6)} ms, "
            f"{_plain(spent / kernels)}× as long as all kernels of the capture",
            phase=WHOLE_CAPTURE,
            evidence=tuple(Evidence(text=_describe(c), source=facts.kernel_source) for c in rows[:SHOWN]),
            saves_ms=spent / 1e6,
            gain=None,
            confidence="low",
            caveat="over the whole capture, loading the model included when it was captured",
        )
    ]


def find_none(facts: RunFacts) -> list[Finding]:
    """A run's figures do not tell what runs beside communication; captures do."""
    del facts
    return []


def find_exposed_communication(facts: CaptureFacts) -> list[Finding]:
    """One finding when communication beside which nothing runs takes a twentieth of the capture.

    None of a program that only communicates: it measures its links, and has nothing to do meanwhile.
    """
    found = facts.exposed
    if found is None or not found.computation_ns or found.exposed_ns < MIN_EXPOSED_SHARE * facts.span_ns:
        return []
    # There is no more computation than this to hide it behind.
    hidden = min(found.exposed_ns, found.computation_ns)
    share, is_hidable = found.exposed_ns / facts.span_ns, hidden == found.exposed_ns
    beside = f"beside the {found.computation_ns / 1e6:.2f} ms of computation at most {hidden / 1e6:.2f} ms of it could "
    finding = COMMUNICATION.finding_of_capture(
        facts,
        title=f"Communication runs with nothing beside it for {share:.0%} of the capture"
        + ("" if is_hidable else f" ({hidden / facts.span_ns:.0%} could hide behind computation)"),
        evidence=(
            f"{found.exposed_ns / 1e6:.2f} ms of {facts.span_ns / 1e6:.2f} ms; kernels that communicate take "
            f"{found.total_ns / 1e6:.2f} ms in all",
            beside + ("hide" if is_hidable else "hide; the rest goes only with less or faster communication"),
        ),
        saved_ns=0,
        confidence="medium",
        remedy=_communicate_otherwise(facts, hidden / found.exposed_ns),
        hint=None if is_hidable else "Less or faster communication",
    )
    overlapped = amdahl(facts.span_ns, hidden) or 1.0
    caveat = f"what has to travel takes its time: computing beside it gives at most {overlapped:.2f}x"
    # What cannot be hidden has to travel: that it goes away is nothing to promise.
    gain = overlapped if hidden >= MOSTLY_HIDDEN * found.exposed_ns else None
    return [replace(finding, share=share, gain=gain, caveat=finding.caveat if is_hidable else caveat)]


def _communicate_otherwise(facts: CaptureFacts, hidable: float) -> str:
    """What to do about exposed communication of which computation could hide this part."""
    if hidable < MOSTLY_HIDDEN:
        return LESS_COMMUNICATION
    rows = [row for row in facts.kernels if row.kernel_class == "communication"]
    of_pairs = sum(row.total_ns for row in rows if kind_of_collective(row.name) == SEND_RECEIVE)
    if of_pairs > sum(row.total_ns for row in rows) / 2:
        return COMMUNICATION_REMEDY_OF_PAIRS
    return COMMUNICATION_REMEDY if facts.report.trains else COMMUNICATION_REMEDY_OF_INFERENCE


def find_late_ranks(ranks: RanksAnalysis, *, span_ns: int, source: str) -> list[Finding]:
    """One finding where ranks wait for each other: by how much longer each ran collectives that all ended together.

    Of one rank alone nothing: its collectives may be long because another came late, or by themselves.
    """
    exposed = sum(row.time.exposed_ns for row in ranks.rows)
    came = [row for row in ranks.rows if row.arrivals is not None]
    if len(came) < 2:
        return []
    waited = sum(row.arrivals.waited_ns for row in came if row.arrivals is not None)
    last = max(came, key=lambda row: row.arrivals.held_up_ns if row.arrivals is not None else 0)
    title = f"Ranks wait for each other inside collectives{_for(last, ranks)}"
    evidence = [_arrived(row) for row in came[:RANKS_SHOWN]]
    instances = min(row.arrivals.matched for row in came if row.arrivals is not None)
    saved = min(waited, exposed)
    return [_late(title, evidence, saved, instances, span_ns=span_ns, source=source)] if saved > 0 else []


def _late(title: str, evidence: Sequence[str], saved_ns: int, instances: int, *, span_ns: int, source: str) -> Finding:
    share = saved_ns / span_ns
    return Finding(
        rule=LATE_RANKS.id,
        title=f"{title}, {share:.0%} of the capture",
        phase=None,
        evidence=tuple(Evidence(text=text, source=source) for text in evidence),
        remedy=RANKS_REMEDY,
        saves_ms=None,
        gain=amdahl(span_ns, saved_ns),
        confidence="medium" if instances >= CERTAIN_INSTANCES or share >= CERTAIN_SHARE else "low",
        caveat="only waiting beside which nothing else ran is counted",
        share=share,
    )


def without_waiting(findings: Sequence[Finding], late: Sequence[Finding]) -> list[Finding]:
    """Findings of which exposed communication no longer counts what is waiting for late ranks: that is told apart."""
    waited = sum(finding.share or 0.0 for finding in late)
    kept = []
    for finding in findings:
        if finding.rule != COMMUNICATION.id or not waited:
            kept.append(finding)
            continue
        left = (finding.share or 0.0) - waited
        if left >= MIN_EXPOSED_SHARE:
            text = f"{waited:.0%} of the capture is waiting for ranks that come late, which another finding counts"
            apart = Evidence(text=text, source=finding.evidence[0].source)
            gain = None if finding.gain is None else amdahl(1.0, left)
            kept.append(replace(finding, share=left, gain=gain, evidence=(*finding.evidence, apart)))
    return kept


def _for(last: RankRow, ranks: RanksAnalysis) -> str:
    return "" if ranks.straggler is None else f", most of it for rank {last.rank}"


def _arrived(row: RankRow) -> str:
    came = row.arrivals
    who = f"rank {row.rank}" if row.rank is not None else row.process or row.source
    if came is None:
        return who
    return (
        f"{who}: waited {came.waited_ns / 1e6:.2f} ms in {came.matched:,} collective(s) that ended together on all "
        f"ranks given, came last to {came.came_last:,} of them, and others waited {came.held_up_ns / 1e6:.2f} ms for it"
    )


def _copies(part: Slice, spent: float, facts: RunFacts) -> Finding:
    rows = sorted((k for k, _ in part.rows if k.kernel_class == "copy"), key=lambda k: -k.ms_per_step)
    return RULE.finding(
        title=f"Kernels that only copy take {100 * spent / part.busy_ms:.0f} % of {part.where}",
        phase=part.phase,
        evidence=tuple(Evidence(text=describe(k, ""), source=facts.kernel_source) for k in rows[:SHOWN]),
        saves_ms=spent,
        gain=amdahl(part.wall_ms, spent),
        confidence="medium",
        remedy=advise(START, PLACES, facts.already(part.phase)),
        caveat=part.caveat or MAY_BE_NEEDED,
    )


def _crosses(copy: CopyFacts) -> bool:
    kind = copy.kind.lower()
    return "host" in kind or "htod" in kind or "dtoh" in kind


def _size(rows: list[CopyFacts]) -> str:
    """Their megabytes, where every one of them is known."""
    sizes = [c.size_bytes for c in rows if c.size_bytes is not None]
    return f" of {_plain(sum(sizes) / 1e6)} MB" if len(sizes) == len(rows) else ""


def _plain(value: float) -> str:
    """Three digits, never an exponent for something large."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _describe(copy: CopyFacts) -> str:
    size = "" if copy.size_bytes is None else f", {copy.size_bytes / 1e6:.4g} MB"
    return f"{copy.kind}: {copy.instances} copies, {copy.total_ns / 1e6:.4g} ms{size}"


RULE = Rule(
    id="needless_copies",
    find=find_needless_copies,
    find_in_capture=find_copies_in,
    plain_words="Time goes into copying data that could have been written to its place at once.",
    remedy=REMEDY,
    experiments=(REDUCE_OVERHEAD, COMPILE, MAX_AUTOTUNE),
)
TRANSFERS = Rule(
    id="host_device_transfers",
    find=find_transfers,
    plain_words="Data travels back and forth between the main memory and the GPU.",
    remedy=TRANSFER_REMEDY,
)
COMMUNICATION = Rule(
    id="exposed_communication",
    find=find_none,
    find_in_capture=find_exposed_communication,
    plain_words="The GPU waits for data to travel between GPUs instead of computing meanwhile.",
    remedy=COMMUNICATION_REMEDY,
    hint="Computing beside communication",
)
LATE_RANKS = Rule(
    id="late_ranks",
    find=find_none,
    plain_words="The parts of the machine that work together wait for the one that is late.",
    remedy=RANKS_REMEDY,
    hint="Balancing the ranks",
)

"""Rules needless_copies, host_device_transfers and exposed_communication: time that goes into moving data.

Kernels that only copy, copies to and from the host, and communication beside which nothing computes.
"""

from dataclasses import replace

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts
from llm_perf_opt.analysis.findings.facts import STATIC_CACHE, CopyFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import WHOLE_CAPTURE, Evidence, Finding, Rule, Suggestion, advise, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import Slice, describe, slices, time_of
from llm_perf_opt.analysis.findings.remedies import COMPILE, MAX_AUTOTUNE, REDUCE_OVERHEAD

MIN_SHARE = 0.05
MIN_TRANSFER_SHARE = 0.05
SHOWN = 3
START = "write results where they are needed: "
PLACES = (
    Suggestion(text="a preallocated (static) KV cache instead of torch.cat per token", done=STATIC_CACHE),
    "contiguous layouts instead of .contiguous() and .transpose() copies",
    "no .to(dtype) inside layers",
)
REMEDY = advise(START, PLACES)
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


def find_needless_copies(facts: RunFacts) -> list[Finding]:
    """One finding per phase in which kernels that only copy take a twentieth of the kernel time."""
    found = []
    for part in slices(facts):
        rows = [row for row in part.rows if row[0].kernel_class == "copy"]
        spent = time_of(rows)
        if rows and spent >= MIN_SHARE * part.busy_ms:
            found.append(_copies(part, spent, facts))
    return found


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
    """One finding when communication beside which nothing runs takes a twentieth of the capture."""
    found = facts.exposed
    if found is None or found.exposed_ns < MIN_EXPOSED_SHARE * facts.span_ns:
        return []
    # There is no more computation than this to hide it behind.
    hidden = min(found.exposed_ns, found.computation_ns)
    finding = COMMUNICATION.finding_of_capture(
        facts,
        title=f"Communication runs with nothing beside it for {found.exposed_ns / facts.span_ns:.0%} of the capture",
        evidence=(
            f"{found.exposed_ns / 1e6:.2f} ms of {facts.span_ns / 1e6:.2f} ms; kernels that communicate take "
            f"{found.total_ns / 1e6:.2f} ms in all",
            f"beside the {found.computation_ns / 1e6:.2f} ms of computation at most {hidden / 1e6:.2f} ms of it could "
            "hide",
        ),
        saved_ns=0,
        confidence="medium",
    )
    return [replace(finding, share=hidden / facts.span_ns, gain=amdahl(facts.span_ns, hidden))]


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
        caveat=part.caveat or "an upper bound: a copy that changes the format or gathers rows may be needed",
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

"""Rule wait_bound: the GPU stands idle while copies run or the host waits in a synchronisation call."""

import re
from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts, runs_on
from llm_perf_opt.diagnosis.facts import GpuFacts, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import (
    CERTAIN_INSTANCES,
    MIN_LISTED,
    Evidence,
    Finding,
    Rule,
    amdahl,
    confidence_of,
)
from llm_perf_opt.diagnosis.experiments import CUDA_GRAPH, MAX_AUTOTUNE, REDUCE_OVERHEAD
from llm_perf_opt.analysis.findings.rules.long_gaps import ALLOCATING_HINT, allocating_remedy
from llm_perf_opt.diagnosis.waterfall import split_idle
from llm_perf_opt.analysis.gaps.verdict import allocates
from llm_perf_opt.analysis.gaps.waits import WaitRow
from llm_perf_opt.analysis.timeline.rows import CopyRow, Idle, RangeRow
from llm_perf_opt.core.units import format_bytes

# Of a phase's clean time, and of a range's time under the profiler.
MIN_CLEAN_SHARE = 0.1
MIN_RANGE_SHARE = 0.2
REMEDY = (
    "keep results on the device between steps: avoid .item(), .cpu() and torch.cuda.synchronize() in the loop, copy "
    "with non_blocking=True from pinned memory, and read tokens or losses back one step late"
)
REMEDY_OF_OTHERS = (
    "wait less often: keep results on the device between steps, replace blocking copies, allocations and frees in the "
    "loop by asynchronous ones from pinned memory and a pool, and check results one step late"
)
BESIDE = "copy from pinned host memory on a stream of its own, and prefetch the next piece while kernels run"
COPY_REMEDY = f"move less and move it beside the work: keep weights, caches and results on the device, {BESIDE}"
COPY_REMEDY_OF_OTHERS = (
    "move less and move it beside the work: keep data on the device between kernels, copy back only what is needed, "
    f"{BESIDE}"
)
OFFLOAD_REMEDY = (
    "keep the parameters on the device: these copies bring them back before each layer (FSDP's CPU offload, "
    "ZeRO-Offload or the like); shard them over more GPUs, or hold them in a smaller format; where they must stay on "
    "the host, fetch the next layer's while this one computes"
)
COPY_REMEDY_OF_DIRECTIVES = (
    "keep the arrays on the device between kernels: a data region around the loop (`target data` in OpenMP, `acc data` "
    "in OpenACC), and `update` only for what the host needs; then pinned host memory for what is left"
)
LOADING_REMEDY = (
    "this is paid once and not in every step: begin the capture after the program has loaded; to start faster, load "
    "from pinned memory, in large pieces, and only what this GPU needs"
)
DEVICE_COPY_REMEDY = (
    "copy less on the device: write results where they are needed instead of copying them there (views, out= and "
    "preallocated buffers, no needless clone, contiguous or concatenation), and put what must be copied on a stream of "
    "its own beside the kernels"
)
DEVICE_COPY_REMEDY_OF_OTHERS = (
    "copy less on the device: let kernels write their results where they are needed, swap pointers instead of copying "
    "buffers, and put what must be copied on a stream of its own beside the kernels"
)
PEER_COPY_REMEDY = (
    "copy between the GPUs while they compute: compute what others need first, send it on a stream of its own while "
    "the rest is computed, and see that the GPUs reach each other directly (cudaDeviceEnablePeerAccess, NVLink)"
)
HELD_REMEDY = (
    "find out what the call waits for: work given to the GPU before the recording began (the previous step: record a "
    "few steps more and look at the later ones), another process on this GPU, another rank, or kernels that were not "
    "traced (graphs traced as a whole); then, if it is there in every step, wait for it later or not at all"
)
SHOWN = 3
# 16 lanes of 8 GT/s, 128 of 130 bits: what the bus of 2010 carries one way. Copies of this size should come near it.
PCIE3_BYTES_PER_S = 16 * 8e9 * 128 / 130 / 8
LARGE_COPY_BYTES, SLOW_SHARE = 1_000_000, 0.5
# Copies of less are counted, not weighed: each costs the same whatever it carries.
SMALL_COPY_BYTES = 64_000
# What brings parameters to the device layer by layer.
_OFFLOADS = re.compile(r"FSDP::\w*pre_forward|FullyShardedDataParallel.*pre_forward|offload|PartitionedParameter")
_NOT_LETTERS = re.compile(r"[^a-z]")
# A place that started this part of all copies is named.
MIN_PLACE_SHARE = 0.1
# Ranges that explain all but this part of the waiting speak for the whole capture.
MIN_LEFT_SHARE = 0.3
# Fewer calls that free or allocate are how a program begins.
MIN_FREES = 10
# A range that waits for copies for this part of its waiting waits for copies.
MOSTLY = 0.5


def find_wait_bound(facts: RunFacts) -> list[Finding]:
    """One finding per phase that spends a tenth of its clean time idle behind copies or synchronisation."""
    return [found for phase in facts.timed_gpu_phases() for found in _check(*phase)]


def find_wait_bound_in(facts: CaptureFacts) -> list[Finding]:
    """The ranges that idle behind copies or synchronisation for a fifth of their time, and what they leave unexplained.

    Copies and synchronisation of the whole capture are two findings: what helps against the one does not help against
    the other. Ranges that mostly wait for copies are part of the first, which knows what was copied.
    """
    bound = facts.outermost([row for row in facts.ranges if _is_bound(row)])
    # A range that is not listed explains nothing.
    listed = [row for row in bound if _saved_ns(row) >= MIN_LISTED * facts.span_ns]
    bound = [row for row in listed if row.idle is not None and row.idle.copy_ns < MOSTLY * _waited_ns(row.idle)]
    copied_in = [row for row in listed if row not in bound]
    findings = [_of_range(row, facts) for row in bound]
    copying = facts.idle.copy_ns - sum(row.idle.copy_ns for row in bound if row.idle is not None)
    every = facts.idle.sync_ns - facts.idle.held_ns
    waiting = every - sum(row.idle.sync_ns - row.idle.held_ns for row in bound if row.idle is not None)
    if copying >= max(MIN_LISTED * facts.span_ns, MIN_LEFT_SHARE * facts.idle.copy_ns):
        findings.append(_of_copies(facts, copying, copied_in))
    if waiting >= max(MIN_LISTED * facts.span_ns, MIN_LEFT_SHARE * every):
        findings.append(_of_waits(facts, waiting))
    if facts.idle.held_ns >= MIN_LISTED * facts.span_ns:
        findings.append(_of_held_waits(facts))
    return findings


def _check(phase: PhaseFacts, gpu: GpuFacts, wall: Known) -> list[Finding]:
    idle_ms = wall.value - gpu.busy_ms
    if idle_ms <= 0:
        return []
    causes = {key: ms for key, _, ms in split_idle(gpu.idle, idle_ms)}
    copy_ms, sync_ms = causes.get("copy", 0.0), causes.get("sync", 0.0)
    wait_ms = copy_ms + sync_ms
    share = wait_ms / wall.value
    if share < MIN_CLEAN_SHARE:
        return []
    return [
        RULE.finding(
            title=f"{phase.name.capitalize()} waits for copies or synchronisation, {100 * share:.0f} % of it",
            phase=phase.name,
            evidence=(
                Evidence(
                    text=f"{wait_ms:.2f} ms of {wall.value:.2f} ms: {copy_ms:.2f} ms while a copy or set runs, "
                    f"{sync_ms:.2f} ms while the launching thread sits in a synchronisation call",
                    source=gpu.source,
                ),
            ),
            saves_ms=wait_ms,
            gain=amdahl(wall.value, wait_ms),
            confidence="medium",
        )
    ]


def _is_bound(row: RangeRow) -> bool:
    one = row.typical
    if one.idle is None or not one.kernel_count or one.wall_ns <= 0 or runs_on(row):
        return False
    return _waited_ns(one.idle) >= MIN_RANGE_SHARE * one.wall_ns


def _waited_ns(idle: Idle) -> int:
    """Without the waiting for what did not start either: that is told of the whole capture."""
    return idle.waiting_for_copy_or_sync_ns - idle.held_ns


def _saved_ns(row: RangeRow) -> int:
    """Of all instances, as the typical one is: the first ones carry costs of their own."""
    if row.idle is None or row.typical.idle is None:
        return 0
    return min(row.instances * _waited_ns(row.typical.idle), _waited_ns(row.idle))


def _of_range(row: RangeRow, facts: CaptureFacts) -> Finding:
    one = row.typical
    idle = one.idle
    copy, sync = (idle.copy_ns, idle.sync_ns - idle.held_ns) if idle is not None else (0, 0)
    share = (copy + sync) / one.wall_ns
    remedy, hint = _remedy(facts)
    waits = "while memory is allocated or freed" if _waits_for_memory(facts) else "for copies or synchronisation"
    return RULE.finding_of_capture(
        facts,
        title=f"{row.name} waits {waits} for {share:.0%} of it",
        evidence=(
            f"{(copy + sync) / 1e6:.2f} ms of {one.wall_ns / 1e6:.2f} ms wall time "
            f"(median of {row.instances} instance(s), under the profiler)",
            f"of that {copy / 1e6:.2f} ms while a copy or set ran and {sync / 1e6:.2f} ms "
            "while the launching thread sat in a synchronisation call",
            *(f"over the capture {text}" for text in _calls(_costliest(facts)[:1])),
        ),
        saved_ns=_saved_ns(row),
        confidence=confidence_of(row.instances, share=share, spread=row.wall_spread),
        range_name=row.name,
        remedy=remedy,
        hint=hint,
    )


def _of_copies(facts: CaptureFacts, copying_ns: int, copied_in: Sequence[RangeRow]) -> Finding:
    every = sum(row.total_ns for row in facts.copies)
    rows = [row for row in facts.copies if row.total_ns >= MIN_LISTED * every]
    rows = sorted(rows, key=lambda row: -row.total_ns)[:SHOWN]
    lead = rows[0].kind if rows else "a copy"
    apart = "" if copying_ns == facts.idle.copy_ns else ", without what other findings count"
    crosses = not rows or _crosses(rows[0])
    loading_ns = min(copying_ns, sum(gap.copy_ns for gap in facts.report.gaps.longest if gap.is_first))
    loads = facts.kernel_count > 0 and loading_ns >= MOSTLY * copying_ns
    what = "No kernel runs while copies do, for" if facts.kernel_count else "Only copies run, no kernel at all:"
    found = RULE.finding_of_capture(
        facts,
        title=f"{what} {copying_ns / facts.span_ns:.0%} of the capture (most: {lead}{', loading' if loads else ''})",
        evidence=(
            f"{copying_ns / 1e6:.2f} ms of {facts.span_ns / 1e6:.2f} ms a copy or set runs and no kernel{apart}",
            *((f"{loading_ns / 1e6:.2f} ms of that before the first kernel: the program loads",) if loads else ()),
            *(_rate(row) for row in rows),
            *_slow(rows),
            *(_copied_in(row) for row in copied_in[:SHOWN]),
            *_started_in(facts, every),
            *(() if loads else _beside(facts, copying_ns)),
        ),
        saved_ns=copying_ns,
        confidence=confidence_of(sum(row.instances for row in rows), share=1.0),
        remedy=LOADING_REMEDY if loads else _copy_remedy(facts) if crosses else _device_copy_remedy(facts, rows[0]),
        hint="Keeping the data on the device" if crosses else "Copying less on the device",
        is_one_time=loads,
    )
    # Where copying is all that was done, nothing says that it could be left out.
    return found if facts.kernel_count else replace(found, gain=None)


def _copy_remedy(facts: CaptureFacts) -> str:
    if facts.report.framework == "directives":
        return COPY_REMEDY_OF_DIRECTIVES
    if facts.copy_places and _OFFLOADS.search(facts.copy_places[0].name):
        return OFFLOAD_REMEDY
    return COPY_REMEDY if facts.has_attention else COPY_REMEDY_OF_OTHERS


def _device_copy_remedy(facts: CaptureFacts, most: CopyRow) -> str:
    if "peer" in most.kind.lower() or "ptop" in most.kind.lower():
        return PEER_COPY_REMEDY
    return DEVICE_COPY_REMEDY if facts.report.framework == "torch" else DEVICE_COPY_REMEDY_OF_OTHERS


def _beside(facts: CaptureFacts, copying_ns: int) -> tuple[str, ...]:
    """There is no more kernel time than this to hide them behind."""
    if not facts.busy_ns:
        return ()
    return (
        f"beside the kernels they could hide for {min(copying_ns, facts.busy_ns) / 1e6:.2f} ms at most; the rest "
        "is saved only by copying less or faster",
    )


def _started_in(facts: CaptureFacts, every_ns: int) -> tuple[str, ...]:
    """Where the program started most of them."""
    places = [place for place in facts.copy_places if place.time_ns >= MIN_PLACE_SHARE * every_ns]
    return tuple(
        f"started in {place.name}: {place.count:,} of {place.time_ns / 1e6:.2f} ms" for place in places[:SHOWN]
    )


def _copied_in(row: RangeRow) -> str:
    one = row.typical
    copying = one.idle.copy_ns if one.idle is not None else 0
    return (
        f"range {row.name}: {copying / 1e6:.2f} ms of its {one.wall_ns / 1e6:.2f} ms (median of {row.instances} "
        "instance(s))"
    )


def _crosses(row: CopyRow) -> bool:
    """Whether a copy goes over the bus; CUDA, nsys and ROCm write it with and without blanks and dashes."""
    kind = _NOT_LETTERS.sub("", row.kind.lower())
    return any(word in kind for word in ("hosttodevice", "devicetohost", "htod", "dtoh"))


def _slow(rows: Sequence[CopyRow]) -> tuple[str, ...]:
    """Large copies over the bus that are slower than an old bus is."""
    for row in rows:
        if not _crosses(row) or row.bytes_per_s is None or row.size_bytes is None:
            continue
        if row.size_bytes >= LARGE_COPY_BYTES * row.instances and row.bytes_per_s < SLOW_SHARE * PCIE3_BYTES_PER_S:
            return (
                f"{row.kind}: {row.bytes_per_s / 1e9:.1f} GB/s is {row.bytes_per_s / PCIE3_BYTES_PER_S:.0%} of what "
                f"PCIe 3.0 x16 carries ({PCIE3_BYTES_PER_S / 1e9:.1f} GB/s): {_why_slow(row.kind)}",
            )
    return ()


def _why_slow(kind: str) -> str:
    """Captures mostly say what memory of the host was copied."""
    if "pinned" in kind.lower():
        return "the memory is pinned, so look at the link (fewer lanes, a switch that others share) or at small pieces"
    return "pageable host memory copies so slowly, pinned memory does not"


def _rate(row: CopyRow) -> str:
    text = f"{row.kind}: {row.instances:,} in {row.total_ns / 1e6:.2f} ms"
    if row.size_bytes is None or not row.total_ns:
        return text
    mean = row.size_bytes / max(row.instances, 1)
    if 0 < mean < SMALL_COPY_BYTES:
        return f"{text}, {format_bytes(mean)} each: their number costs the time, not their size"
    return f"{text}, {row.size_bytes / 1e6:,.1f} MB at {row.size_bytes / row.total_ns:.1f} GB/s"


def _of_waits(facts: CaptureFacts, waiting_ns: int) -> Finding:
    rows = _costliest(facts)[:SHOWN]
    named = f" (most: {rows[0].call})" if rows else ""
    share = waiting_ns / facts.span_ns
    remedy, hint = _remedy(facts)
    return RULE.finding_of_capture(
        facts,
        title=f"The host waits in synchronisation while the GPU idles, {share:.0%} of the capture{named}",
        evidence=(
            f"{waiting_ns / 1e6:.2f} ms of {facts.span_ns / 1e6:.2f} ms the thread that launches sits in a call that "
            "waits, and the GPU has nothing to do",
            *_calls(rows),
        ),
        saved_ns=waiting_ns,
        confidence=confidence_of(sum(row.count for row in rows), share=1.0),
        remedy=remedy,
        hint=hint,
    )


def _of_held_waits(facts: CaptureFacts) -> Finding:
    """The host waits, and what it launched before does not start: whatever both wait for is not in the capture."""
    held = facts.idle.held_ns
    rows = _costliest(facts)[:SHOWN]
    named = f" in {rows[0].call}" if rows else ""
    found = RULE.finding_of_capture(
        facts,
        title=f"The host waits{named} for work that does not run here, {held / facts.span_ns:.0%} of the capture",
        evidence=(
            f"{held / 1e6:.2f} ms of {facts.span_ns / 1e6:.2f} ms the thread that launches sits in a call that waits, "
            "no kernel runs, and work launched before the call has not started",
            *_calls(rows),
        ),
        saved_ns=held,
        confidence="low",
        remedy=HELD_REMEDY,
    )
    # A single one may be the end of work that began before the recording: it promises nothing.
    few = sum(row.count for row in rows) < CERTAIN_INSTANCES
    return replace(found, gain=None) if few else replace(found, confidence="medium")


def _calls(rows: Sequence[WaitRow]) -> tuple[str, ...]:
    return tuple(
        f"{row.call}: {row.count:,} call(s) of {row.total_ns / 1e6:.2f} ms, the GPU idle for "
        f"{row.gpu_idle_ns / 1e6:.2f} ms of it" + (f", in {', '.join(row.places)}" if row.places else "")
        for row in rows
    )


def _costliest(facts: CaptureFacts) -> list[WaitRow]:
    return sorted(facts.report.waits, key=lambda row: -row.gpu_idle_ns)


def _waits_for_memory(facts: CaptureFacts) -> bool:
    """Whether the calls that wait mostly allocate or free."""
    rows = [row for row in facts.report.waits if allocates(row.call)]
    waited_ns = sum(row.gpu_idle_ns for row in facts.report.waits)
    is_most = sum(row.gpu_idle_ns for row in rows) > MOSTLY * waited_ns
    return is_most and sum(row.count for row in rows) >= MIN_FREES


def _remedy(facts: CaptureFacts) -> tuple[str, str | None]:
    """What helps against the calls that wait: against frees and allocations that is another allocation."""
    if _waits_for_memory(facts):
        return allocating_remedy(facts, _costliest(facts)[0].call, goes_on=True), ALLOCATING_HINT
    return (REMEDY if facts.report.framework == "torch" else REMEDY_OF_OTHERS), None


RULE = Rule(
    id="wait_bound",
    find=find_wait_bound,
    find_in_capture=find_wait_bound_in,
    plain_words="The GPU waits while data is copied or while the program checks on it.",
    remedy=REMEDY,
    hint="Removing synchronisation and copies from the loop",
    experiments=(REDUCE_OVERHEAD, CUDA_GRAPH, MAX_AUTOTUNE),
    is_idle=True,
)

"""Rules kernel_gaps, late_starts and serial_streams: work that was launched in time and did not run at once.

Many short kernels follow each other and the device's own gaps between them add up; or single gaps after the launch are
long, and something else held the work back; or it waited in an idle stream while another stream worked.
"""

from dataclasses import replace

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts
from llm_perf_opt.diagnosis.facts import GpuFacts, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import CERTAIN_INSTANCES, Evidence, Finding, Rule, amdahl
from llm_perf_opt.diagnosis.experiments import COMPILE, CUDA_GRAPH, MAX_AUTOTUNE, REDUCE_OVERHEAD
from llm_perf_opt.diagnosis.waterfall import split_idle
from llm_perf_opt.analysis.gaps.longest import Gap
from llm_perf_opt.analysis.ranks.analysis import RanksAnalysis
from llm_perf_opt.analysis.timeline.streams import SerialStreams

MIN_SHARE = 0.1
REMEDY = (
    "run fewer, longer kernels: fuse with torch.compile, replay the step as a CUDA graph (gaps between graph nodes are "
    "shorter), or use programmatic dependent launch where a kernel library offers it"
)
REMEDY_OF_GRAPHS = (
    "run fewer, longer kernels: the step is replayed as a graph already, so fuse with torch.compile, use kernels that "
    "do more at once, or programmatic dependent launch where a kernel library offers it"
)
MIN_LATE_SHARE = 0.05
SHOWN = 3
LATE_REMEDY = (
    "find what holds the work back: a stream or an event it depends on, a collective that waits for another rank, "
    "work the capture does not show (graphs whose kernels were not traced, another process on the GPU); trace graphs "
    "by node, and look at the streams around the gaps named"
)
RANKS_REMEDY = (
    "compare with the captures of the other ranks (give them all to llm-perf analyze): the one that comes last to the "
    "collectives around these gaps is the one to make faster; if all of them wait, " + LATE_REMEDY
)

# Fewer kernels held back are an accident, and so is less time of the capture.
MIN_HELD, MIN_HELD_SHARE = 10, 0.05
STREAMS_NAMED = 6
# A GPU with less than this part of the busiest one's work is not one that the work was spread over.
MIN_DEVICE_SHARE, MIN_TURNS_SHARE = 0.1, 0.1
TURNS_REMEDY = (
    "let the GPUs work at the same time: layers placed one after the other over GPUs (device_map='auto', naive "
    "pipelines) compute on one of them at a time; split each layer over them (tensor parallelism), feed a pipeline "
    "with several micro-batches, or run one copy of the program on each, if it fits"
)
STREAM_REMEDY = (
    "find what keeps the streams in order: an event one waits for, work on the default stream (use streams made with "
    "cudaStreamNonBlocking, or per-thread default streams), allocations and frees between launches, or kernels that "
    "fill the GPU by themselves; where the last is the case, nothing is lost and one stream would do"
)


def find_kernel_gaps(facts: RunFacts) -> list[Finding]:
    """One finding per phase whose gaps between queued kernels take a tenth of its clean time."""
    return [found for phase in facts.timed_gpu_phases() for found in _check(*phase)]


def _check(phase: PhaseFacts, gpu: GpuFacts, wall: Known) -> list[Finding]:
    """Of the clean idle time: kernels that overlap, or a slower host, leave longer gaps under the profiler."""
    idle_ms = wall.value - gpu.busy_ms
    if idle_ms <= 0 or gpu.kernel_count <= 0:
        return []
    gap_ms = {key: ms for key, _, ms in split_idle(gpu.idle, idle_ms)}.get("between", 0.0)
    if gap_ms < MIN_SHARE * wall.value:
        return []
    return [
        RULE.finding(
            title=f"{phase.name.capitalize()} loses {100 * gap_ms / wall.value:.0f} % in gaps between queued kernels",
            phase=phase.name,
            evidence=(
                Evidence(
                    text=f"{gap_ms:.3f} ms of {idle_ms:.3f} ms idle time lie between kernels whose launch had already "
                    f"returned (split as in the capture), "
                    f"{1e3 * gap_ms / gpu.kernel_count:.2f} µs per kernel over {gpu.kernel_count:.0f} kernels",
                    source=gpu.source,
                ),
            ),
            saves_ms=gap_ms,
            gain=amdahl(wall.value, gap_ms),
            confidence="medium",
            remedy=REMEDY_OF_GRAPHS if gpu.is_graph else None,
        )
    ]


def find_none(facts: RunFacts) -> list[Finding]:
    """A run's figures do not tell late starts from short gaps; captures do."""
    del facts
    return []


def find_late_starts(facts: CaptureFacts) -> list[Finding]:
    """One finding when long gaps after the launch take a twentieth of the capture."""
    gaps = facts.report.gaps
    if gaps.held_ns < MIN_LATE_SHARE * facts.span_ns:
        return []
    share = gaps.held_ns / facts.span_ns
    found = LATE_STARTS.finding_of_capture(
        facts,
        title=f"Launched work does not start while the GPU idles, {share:.0%} of the capture{_of_job(facts)}",
        evidence=(
            f"{gaps.held_ns / 1e6:.2f} ms of {facts.span_ns / 1e6:.2f} ms in {gaps.held_count} gap(s) lie after "
            "the launch call had returned",
            *(_describe(gap) for gap in [gap for gap in gaps.longest if gap.is_held][:SHOWN]),
            *_of_ranks(facts),
        ),
        saved_ns=gaps.held_ns,
        confidence="medium",
        remedy=RANKS_REMEDY if _of_ranks(facts) else None,
    )
    # What holds it back is not in the capture, and may be work of its own: a single gap promises nothing.
    return [found if gaps.held_count >= CERTAIN_INSTANCES else replace(found, confidence="low", gain=None)]


def _of_job(facts: CaptureFacts) -> str:
    several = facts.world_size is not None and facts.world_size > 1
    return f" ({_given(facts)} of {facts.world_size} ranks: it may wait for the others)" if several else ""


def _given(facts: CaptureFacts) -> str:
    return "one" if facts.captures == 1 else str(facts.captures)


def _of_ranks(facts: CaptureFacts) -> tuple[str, ...]:
    """That other ranks may be what the work waits for, where there are any."""
    several = facts.world_size is not None and facts.world_size > 1
    if facts.exposed is None and not several:
        return ()
    was = "was" if facts.captures == 1 else "were"
    job = "kernels here communicate with other ranks"
    if several:
        job = f"{_given(facts)} of {facts.world_size} ranks {was} recorded here"
    talks = ""
    if facts.exposed is not None:
        talks = (
            f"; kernels that communicate take {facts.exposed.total_ns / 1e6:.2f} ms, waiting for late ranks included"
        )
    return (
        f"{job}: work that depends on a collective starts when the slowest rank has come, so other ranks may be what "
        f"it waits for{talks}",
    )


def _describe(gap: Gap) -> str:
    meanwhile = "" if gap.activity.name is None else f"; the host was in {gap.activity.name}"
    return (
        f"{gap.between_ns / 1e6:.2f} ms before {gap.after or 'the next work'}, {gap.start_ns / 1e6:.2f} ms after the "
        f"first GPU work{meanwhile}"
    )


def find_serial_streams(facts: CaptureFacts) -> list[Finding]:
    """One finding for all GPUs on which launched work waited for another stream in a twentieth of the capture."""
    found = [serial for serial in facts.serial_streams if serial.held_count >= MIN_HELD]
    held = sum(serial.held_ns for serial in found)
    if not found or held < MIN_HELD_SHARE * facts.span_ns:
        return []
    streams = max(len(serial.streams) for serial in found)
    finding = SERIAL_STREAMS.finding_of_capture(
        facts,
        title=f"Work on {streams} streams runs one after the other: launched work waits for another stream for "
        f"{held / facts.span_ns:.0%} of the capture",
        evidence=tuple(_streams(serial) for serial in found[:STREAMS_NAMED]),
        saved_ns=0,
        # Kernels that fill the GPU would gain nothing, and how much of it they fill is not known here.
        confidence="low",
    )
    return [replace(finding, share=held / facts.span_ns, gain=amdahl(facts.span_ns, held))]


def find_devices_in_turns(ranks: RanksAnalysis, *, span_ns: int, source: str) -> list[Finding]:
    """One finding where a process used several GPUs, and mostly one at a time."""
    saved, evidence, names = 0.0, [], []
    for row in ranks.rows:
        own = [d.time for d in ranks.devices if (d.source, d.process) == (row.source, row.process)]
        most = max((time.busy_ns for time in own), default=0)
        busy = [time.busy_ns for time in own if time.busy_ns >= MIN_DEVICE_SHARE * most]
        left = row.time.busy_ns - sum(busy) / max(len(busy), 1)
        if len(busy) < 2 or left < MIN_TURNS_SHARE * row.time.span_ns:
            continue
        saved += left
        names.append(len(busy))
        each = sum(busy) / len(busy)
        evidence.append(
            f"{len(busy)} GPUs: each busy for {each / 1e6:.2f} ms of {row.time.span_ns / 1e6:.2f} ms on average "
            f"({each / row.time.span_ns:.0%}), at least one of them for {row.time.busy_ns / 1e6:.2f} ms"
        )
    if saved < MIN_TURNS_SHARE * span_ns:
        return []
    return [
        Finding(
            rule=DEVICES_IN_TURNS.id,
            title=f"{max(names)} GPUs work in turns: spread evenly, their work would take {saved / span_ns:.0%} of the "
            "capture less",
            phase=None,
            evidence=tuple(Evidence(text=text, source=source) for text in evidence[:SHOWN]),
            remedy=TURNS_REMEDY,
            saves_ms=None,
            gain=amdahl(span_ns, saved),
            confidence="medium",
            caveat="an upper bound: work of one request that depends on itself cannot be spread without communication",
            share=saved / span_ns,
        )
    ]


def _streams(serial: SerialStreams) -> str:
    names = ", ".join(str(stream) for stream in serial.streams[:STREAMS_NAMED])
    more = f" and {len(serial.streams) - STREAMS_NAMED} more" if len(serial.streams) > STREAMS_NAMED else ""
    return (
        f"GPU {serial.device}, streams {names}{more}: {serial.held_count:,} kernels were launched into an idle stream "
        f"and waited {serial.held_ns / 1e6:.2f} ms while another ran; {serial.overlap_ns / 1e6:.2f} ms overlap of the "
        f"{serial.could_hide_ns / 1e6:.2f} ms beside the busiest stream"
    )


RULE = Rule(
    id="kernel_gaps",
    find=find_kernel_gaps,
    plain_words="Work is cut into so many small pieces that the pauses between them add up.",
    remedy=REMEDY,
    hint="Fewer, longer kernels",
    experiments=(REDUCE_OVERHEAD, CUDA_GRAPH, COMPILE, MAX_AUTOTUNE),
    is_idle=True,
)
LATE_STARTS = Rule(
    id="late_starts",
    find=find_none,
    find_in_capture=find_late_starts,
    plain_words="Orders reach the GPU in time, and something makes it wait before it carries them out.",
    remedy=LATE_REMEDY,
    hint="Finding what holds the work back",
)
DEVICES_IN_TURNS = Rule(
    id="devices_in_turns",
    find=find_none,
    plain_words="Several GPUs were given, and mostly one of them works while the others wait.",
    remedy=TURNS_REMEDY,
    hint="Letting the GPUs work at the same time",
)
SERIAL_STREAMS = Rule(
    id="serial_streams",
    find=find_none,
    find_in_capture=find_serial_streams,
    plain_words="Jobs that could run side by side on the GPU run one after the other.",
    remedy=STREAM_REMEDY,
    hint="Letting the streams overlap",
)

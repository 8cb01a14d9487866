"""Rules about gaps no launch takes: data_loading, compilation, rank_wait and host_work.

Each tells what the host did while the GPU had nothing to do, by the operator, frame, call or range that covers the gap.
"""

from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts
from llm_perf_opt.diagnosis.facts import GpuFacts, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import MIN_HEADLINE, Evidence, Finding, Rule, amdahl, confidence_of
from llm_perf_opt.diagnosis.waterfall import split_idle
from llm_perf_opt.analysis.gaps.host import OPERATOR, RANGE
from llm_perf_opt.analysis.gaps.longest import GOING_ON, Reason

# Of a phase's clean time.
MIN_CLEAN_SHARE = 0.1
# Of the capture.
MOSTLY = 0.5
SHOWN = 4
# What a longer run would not pay again: what is known to be set-up, and what only single instances of a range have.
ONE_TIME = ("compilation", "single_instances")
NEW_SHAPES_HINT = "Attention that takes new shapes as they come"
NAME_WIDTH = 100
FEW_GAPS = 10
REMEDY = (
    "do this work while the GPU computes: move it to another thread or process, prepare the next step before waiting "
    "for this one, or do it less often; the frames, operators or ranges named are where to look"
)
LOADING_REMEDY = (
    "prepare batches ahead and beside the GPU: more workers (DataLoader num_workers > 0, prefetch_factor, "
    "persistent_workers), pinned memory, decoding and augmentation done before or on the GPU"
)
LOADING_REMEDY_OF_OTHERS = (
    "prepare batches ahead and beside the GPU: read, decode and augment in other threads or processes, keep a few "
    "batches ready in pinned memory, or store the data in the form the GPU takes"
)
COMPILING_REMEDY = (
    "this is paid once and not in every step: warm up before measuring or serving, keep the cache of compiled kernels "
    "between runs, fix the shapes that make it compile again, and capture again after the warm-up"
)
COMPILING_REMEDY_OF_OTHERS = (
    "this is paid once and not in every step: launch each kernel once before measuring (code is loaded at its first "
    "use; CUDA_MODULE_LOADING=EAGER loads it all at the start), and capture again after the warm-up"
)
NEW_SHAPES_REMEDY = (
    "every length of the cache or of a prompt that was not met before costs this: let another backend compute "
    "attention (torch.backends.cuda.enable_cudnn_sdp(False), FlashAttention), pad to a few lengths, replay CUDA graphs "
    "of fixed lengths, or run the lengths that will come once before measuring or serving; "
    "TORCH_CUDNN_SDPA_AVOID_RECOMPILE=1 (torch 2.9 or newer) helps where queries, keys and values lie in memory "
    "as [batch, length, heads, size]"
)
RECOMPILING_REMEDY = (
    "find out why it compiles again (TORCH_LOGS=recompiles names the guard that failed): mark sizes that change "
    "(torch._dynamo.mark_dynamic) or compile with dynamic=True, pad inputs to a few shapes, and keep Python values "
    "that change in every step out of the compiled function"
)
RECOMPILING_REMEDY_OF_OTHERS = (
    "find out why code is compiled or loaded again (JAX_LOG_COMPILES=1 says it of jax): give functions the same "
    "shapes, types and static arguments in every step, make the compiled function once and keep it, load modules once"
)
RECOMPILING_HINT = "Compiled code that takes every step's shapes"
STALLS_REMEDY = (
    "find out what comes again every few steps: a checkpoint, an evaluation or a log the program writes (do it less "
    "often, or beside the GPU's work), Python's garbage collector (gc.freeze() after set-up, gc.collect() at times of "
    "your own), or another process on these cores; ranges around the parts of a step, or Python stacks, tell which"
)
COLLECTING_REMEDY = (
    "what stops now this operator and now that one is neither: most likely Python's garbage collector (gc.freeze() "
    "after set-up, gc.disable() and gc.collect() at times of your own), else another process or thread on these cores; "
    "a capture with Python stacks tells which"
)
ALLOCATING_REMEDY = (
    "allocate once and keep it: reuse buffers between steps, or take them from a pool (cudaMallocAsync, the "
    "framework's caching allocator with room to keep what it has); allocating and freeing in the loop stops the GPU"
)
# A caching allocator that calls the driver in the loop has thrown away what it kept.
ALLOCATING_REMEDY_OF_TORCH = (
    "torch's allocator gives memory back and asks for it again in the loop, as it does when the GPU's memory is full "
    "or in pieces: let it grow what it has (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), leave it room (a "
    "smaller batch, less kept for the backward pass, no other process on this GPU), keep buffers between steps, and do "
    "not call torch.cuda.empty_cache() in the loop"
)
ALLOCATING_HINT = "An allocator that keeps its memory"
RANKS_REMEDY = (
    "the host waits for other ranks: balance what they do, start collectives as soon as their input is ready and wait "
    "for them late, and look at the slowest rank's capture first"
)
RECORD_HOST = (
    "capture again with what the host does: Python stacks (with_stack=True), ranges (NVTX, record_function), or nsys "
    "with --trace=cuda,nvtx,osrt"
)
# System calls are there already, and tell only what takes long.
RECORD_MORE = (
    "capture again with what the host does: NVTX ranges around its parts (llm_perf_opt.phase, torch.cuda.nvtx), or its "
    "Python stacks (nsys --python-sampling=true, py-spy)"
)
RECORD_HOST_OF_OTHERS = (
    "capture again with what the host does: system calls and samples (nsys --trace=cuda,nvtx,osrt "
    "--sample=process-tree), or NVTX ranges in the program"
)
WAITING_REMEDY = (
    "find out what it waits for: requests that do not come (then the capture is of an idle server, and only its busy "
    "part tells something), a lock or another thread, another process, or a sleep in the program"
)


def find_host_work(facts: RunFacts) -> list[Finding]:
    """One finding per phase that spends a tenth of its clean time in gaps no launch takes."""
    return [found for phase in facts.timed_gpu_phases() for found in _check(*phase)]


def _check(phase: PhaseFacts, gpu: GpuFacts, wall: Known) -> list[Finding]:
    idle_ms = wall.value - gpu.busy_ms
    if idle_ms <= 0 or gpu.idle.waiting_for_host_ns <= 0:
        return []
    host_ms = {key: ms for key, _, ms in split_idle(gpu.idle, idle_ms)}.get("host", 0.0)
    long_ms = host_ms * gpu.idle.long_gaps_ns / gpu.idle.waiting_for_host_ns
    share = long_ms / wall.value
    if share < MIN_CLEAN_SHARE:
        return []
    return [
        HOST_WORK.finding(
            title=f"{phase.name.capitalize()} waits for other work of the host, {100 * share:.0f} % of it",
            phase=phase.name,
            evidence=(
                Evidence(
                    text=f"{long_ms:.2f} ms of {wall.value:.2f} ms lie in gaps longer than a launch takes (split as in "
                    "the capture)",
                    source=gpu.source,
                ),
            ),
            saves_ms=long_ms,
            gain=amdahl(wall.value, long_ms),
            confidence=confidence_of(gpu.instances, share=share),
        )
    ]


def find_none(facts: RunFacts) -> list[Finding]:
    """A run's figures do not say what the host did in its gaps; captures do."""
    del facts
    return []


def find_data_loading(facts: CaptureFacts) -> list[Finding]:
    reasons = [reason for reason in facts.report.gaps.reasons if reason.verdict == "data_loading"]
    remedy = LOADING_REMEDY if facts.report.framework == "torch" else LOADING_REMEDY_OF_OTHERS
    return _found(DATA_LOADING, facts, reasons, "Loading data keeps the GPU idle", remedy)


def find_compilation(facts: CaptureFacts) -> list[Finding]:
    """What is paid once, and what is compiled or built again and again, which is not."""
    found = facts.report.gaps.reasons
    recompiling = [reason for reason in found if reason.verdict == "recompilation"]
    recompiled = "Compiling or loading code again and again keeps the GPU idle"
    is_torch = facts.report.framework == "torch"
    shapes = [reason for reason in found if reason.verdict == "new_shapes"]
    recurs = sum(reason.gaps for reason in shapes) > FEW_GAPS
    once = (*ONE_TIME, *(() if recurs else ("new_shapes",)))
    remedy = COMPILING_REMEDY_OF_OTHERS if facts.report.framework in ("directives", "other") else None
    set_up = "Set-up (loading, compiling or tuning kernels) keeps the GPU idle"
    again = "Building attention kernels for new shapes keeps the GPU idle"
    return [
        *_found(COMPILATION, facts, [reason for reason in found if reason.verdict in once], set_up, remedy),
        *(
            replace(one, is_one_time=False, hint=NEW_SHAPES_HINT)
            for one in _found(COMPILATION, facts, shapes if recurs else [], again, NEW_SHAPES_REMEDY)
        ),
        *(
            replace(one, is_one_time=False, hint=RECOMPILING_HINT)
            for one in _found(
                COMPILATION,
                facts,
                recompiling,
                recompiled,
                RECOMPILING_REMEDY if is_torch else RECOMPILING_REMEDY_OF_OTHERS,
            )
        ),
    ]


def find_rank_wait(facts: CaptureFacts) -> list[Finding]:
    reasons = [reason for reason in facts.report.gaps.reasons if reason.verdict == "rank_wait"]
    return _found(RANK_WAIT, facts, reasons, "The host waits for other ranks while the GPU idles", None)


def find_host_work_in(facts: CaptureFacts) -> list[Finding]:
    """Work that is none of the others, and gaps in which nothing of the host is recorded, apart."""
    reasons = [reason for reason in facts.report.gaps.reasons if reason.verdict in ("host_work", "allocation")]
    unknown = [reason for reason in facts.report.gaps.reasons if reason.verdict == "unknown"]
    waiting = [reason for reason in facts.report.gaps.reasons if reason.verdict == "host_wait"]
    stalls = [reason for reason in facts.report.gaps.reasons if reason.verdict == "stalls"]
    is_anywhere = len({reason.name for reason in stalls if reason.kind == OPERATOR}) > 1
    allocates = len(reasons) > 0 and reasons[0].verdict == "allocation"
    return [
        *_found(
            HOST_WORK,
            facts,
            reasons,
            "Host work between launches keeps the GPU idle",
            allocating_remedy(facts, reasons[0].name or "", goes_on=reasons[0].recurs) if allocates else None,
        ),
        *_found(
            HOST_WORK,
            facts,
            stalls,
            f"Stalls of the host{' in different operators' if is_anywhere else ''} keep the GPU idle again and again",
            COLLECTING_REMEDY if is_anywhere else STALLS_REMEDY,
        ),
        # What the host waits for may be a request that nobody sent: nothing is promised.
        *(
            replace(found, gain=None, confidence="low")
            for found in _found(HOST_WORK, facts, waiting, "The host itself waits while the GPU idles", WAITING_REMEDY)
        ),
        # Nor is anything promised where most of a capture is a riddle: a server that nobody asks looks like this.
        *(
            found if (found.share or 0.0) < MOSTLY else replace(found, gain=None)
            for found in _found(
                HOST_WORK,
                facts,
                unknown,
                "The GPU idles in long gaps in which nothing of the host was recorded",
                _how_to_record(facts, has_system_calls=bool(waiting)),
            )
        ),
        *_unexplained(facts),
    ]


def allocating_remedy(facts: CaptureFacts, call: str, *, goes_on: bool) -> str:
    """What helps against a call that allocates or frees.

    Torch's allocator makes some such calls until it has what it needs, and none for memory of the host.
    """
    is_flushed = goes_on and facts.report.framework == "torch" and "Host" not in call
    return ALLOCATING_REMEDY_OF_TORCH if is_flushed else ALLOCATING_REMEDY


def _how_to_record(facts: CaptureFacts, *, has_system_calls: bool) -> str:
    if facts.report.framework != "torch":
        return RECORD_HOST_OF_OTHERS
    return RECORD_MORE if has_system_calls else RECORD_HOST


def _unexplained(facts: CaptureFacts) -> list[Finding]:
    """The GPU idles and its launches were not recorded: then nothing says why, and that is worth saying."""
    idle = facts.idle.unattributed_ns
    if idle < MIN_HEADLINE * facts.span_ns:
        return []
    return [
        HOST_WORK.finding_of_capture(
            facts,
            title=f"The GPU idles for {idle / facts.span_ns:.0%} of the capture, and the calls that launch its work "
            "were not recorded",
            evidence=(
                f"{idle / 1e6:.2f} ms of {facts.span_ns / 1e6:.2f} ms no kernel runs, and what runs next has no "
                "recorded launch: whether it was launched late or held back cannot be told",
            ),
            saved_ns=idle,
            confidence="low",
            remedy="capture again with the host's side: torch.profiler with ProfilerActivity.CPU and CUDA, nsys with "
            "--trace=cuda,nvtx,osrt",
        )
    ]


def _found(rule: Rule, facts: CaptureFacts, reasons: Sequence[Reason], what: str, remedy: str | None) -> list[Finding]:
    saved = sum(reason.host_ns for reason in reasons)
    if not saved:
        return []
    gaps = max(sum(reason.gaps - reason.shared for reason in reasons), max(reason.gaps for reason in reasons))
    goes_on = all(reason.verdict in GOING_ON for reason in reasons)
    to_the_end = "; they come to the end of the capture, before kernels that had run already" if goes_on else ""
    told = sum(reason.host_ns for reason in reasons if reason.name is not None)
    sure = sum(reason.host_ns for reason in reasons if reason.name and reason.verdict != "single_instances")
    return [
        rule.finding_of_capture(
            facts,
            title=f"{what}, {saved / facts.span_ns:.0%} of the capture{_most(reasons[0])}",
            evidence=(
                f"{saved / 1e6:.2f} ms of {facts.span_ns / 1e6:.2f} ms in {gaps} gap(s) of at least "
                f"{facts.report.gaps.long_from_ns / 1e6:.2g} ms, which no launch takes{to_the_end}",
                *(_describe(reason) for reason in reasons[:SHOWN] if reason.name is not None),
            ),
            saved_ns=saved,
            # Where nothing is recorded, the reason is anybody's guess; several reasons are no several instances.
            confidence=confidence_of(reasons[0].gaps, share=sure / saved) if told else "low",
            remedy=remedy,
            # Outside the ranges a program marks, it prepares or ends; often, it waits between them.
            is_one_time=rule is COMPILATION or (not told and gaps <= FEW_GAPS and len(facts.ranges) > 0),
        )
    ]


def _most(reason: Reason) -> str:
    # The title of new shapes says already which kernels they are of.
    is_told = reason.name is None or reason.verdict == "new_shapes"
    return "" if is_told else f" (most: {_cut(reason.name or '')})"


def _describe(reason: Reason) -> str:
    inside = f", inside {_cut(reason.where)}" if reason.where is not None else ""
    single = ""
    if reason.verdict in ("single_instances", "stalls"):
        single = "; a typical instance has no such gap" if reason.kind == RANGE else "; mostly it takes far less"
    time = f"{reason.host_ns / 1e6:.2f} ms in {reason.gaps} gap(s)"
    return f"{reason.kind} {_cut(reason.name or '')}: {time}{inside}{single}"


def _cut(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else name[: NAME_WIDTH - 1] + "…"


DATA_LOADING = Rule(
    id="data_loading",
    find=find_none,
    find_in_capture=find_data_loading,
    plain_words="The GPU waits for the next data to be read and prepared.",
    remedy=LOADING_REMEDY,
    hint="Loading data beside the GPU's work",
)
COMPILATION = Rule(
    id="compilation",
    find=find_none,
    find_in_capture=find_compilation,
    plain_words="The GPU waits while programs for it are loaded, compiled or tuned: once, or again and again.",
    remedy=COMPILING_REMEDY,
    hint="Warming up before the measurement",
)
RANK_WAIT = Rule(
    id="rank_wait",
    find=find_none,
    find_in_capture=find_rank_wait,
    plain_words="This part of the machine waits for the others to catch up.",
    remedy=RANKS_REMEDY,
    hint="Balancing the ranks",
)
HOST_WORK = Rule(
    id="host_work",
    find=find_host_work,
    find_in_capture=find_host_work_in,
    plain_words="The GPU waits while the program does other work before it gives the next order.",
    remedy=REMEDY,
    hint="Moving this work beside the GPU's",
)

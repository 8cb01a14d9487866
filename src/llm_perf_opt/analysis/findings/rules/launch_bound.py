"""Rule launch_bound: the GPU stands idle because the host does not launch fast enough."""

from collections.abc import Sequence

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts, replays_graphs, runs_on
from llm_perf_opt.diagnosis.facts import COMPILED, GRAPHS, GpuFacts, Known, PhaseFacts, RunFacts
from llm_perf_opt.analysis.findings.finding import (
    MIN_HEADLINE,
    Evidence,
    Finding,
    Rule,
    Suggestion,
    advise,
    amdahl,
    confidence_of,
)
from llm_perf_opt.diagnosis.experiments import (
    COMPILE,
    CUDA_GRAPH,
    LARGER_BATCH,
    LARGEST_BATCH,
    MAX_AUTOTUNE,
    REDUCE_OVERHEAD,
)
from llm_perf_opt.diagnosis.waterfall import split_idle
from llm_perf_opt.analysis.gaps.verdict import allocates
from llm_perf_opt.analysis.gaps.waits import WaitRow
from llm_perf_opt.analysis.timeline.rows import Idle, RangeRow
from llm_perf_opt.core.names import DECODE, PREFILL

MIN_IDLE_SHARE = 0.5
MIN_HOST_SHARE = 0.5
MIN_KERNELS = 20
# Ranges that explain all but this part of the waiting speak for the whole capture.
MIN_LEFT_SHARE = 0.3
STEP = {"prefill": "the prefill", "decode": "each step"}
START = "launch fewer kernels from the host: "
FEWER = (
    "capture the step in a CUDA graph (torch.compile(mode='reduce-overhead') with a static KV cache, or "
    "torch.cuda.graph)",
    Suggestion(text="fuse elementwise kernels with torch.compile", done=COMPILED),
    "or decode a larger batch so that each launch does more work",
)
REMEDY = advise(START, FEWER)
HINT = "CUDA graphs or torch.compile"
# Where the program is compiled already.
HINT_OF_COMPILED = "CUDA graphs"
# Where decode steps are replayed already and prompts, whose lengths differ, are not.
REMEDY_OF_PROMPTS = (
    "launch fewer kernels from the host: compile the prefill too (dynamic=True, or prompts padded to a few lengths, "
    "which CUDA graphs can then be captured for), fuse elementwise kernels, or run several prompts at once so that "
    "each launch does more work"
)
# A model without attention has no cache and decodes nothing.
FEWER_OF_ANY_MODEL = (
    "capture the step in a CUDA graph (torch.compile(mode='reduce-overhead') or torch.cuda.graph, with fixed shapes)",
    Suggestion(text="fuse elementwise kernels with torch.compile", done=COMPILED),
    "or run a larger batch so that each launch does more work",
)
FEWER_OF_TRAINING = (
    Suggestion(
        text="torch.compile the model (mode='reduce-overhead' replays CUDA graphs where shapes are fixed; "
        "torch.cuda.make_graphed_callables graphs parts of it)",
        done=COMPILED,
        instead="compile with mode='reduce-overhead', which replays CUDA graphs where shapes are fixed "
        "(torch.cuda.make_graphed_callables graphs parts of the model)",
    ),
    "use fused optimisers (fused=True or foreach=True)",
    "or a larger micro-batch so that each launch does more work",
)
FEWER_WITHOUT_GRAPHS = (
    Suggestion(text="fuse chains of small ones with torch.compile", done=COMPILED),
    "or run a larger batch so that each launch does more work",
)
REMEDY_OF_ENGINE = {
    "vLLM": (
        "let vLLM replay its steps as CUDA graphs: run without --enforce-eager and see that the batch sizes in use are "
        "among those captured; batch more requests or longer prefill chunks, so that each launch does more work; and "
        "profile without Python stacks, which slow every call of the host"
    ),
    "SGLang": (
        "let SGLang replay its steps as CUDA graphs: run without --disable-cuda-graph and see that the batch sizes in "
        "use are captured (--cuda-graph-max-bs); batch more requests or longer prefill chunks, so that each launch "
        "does more work; and profile without Python stacks, which slow every call of the host"
    ),
    "TensorRT-LLM": (
        "let TensorRT-LLM replay its steps as CUDA graphs (cuda_graph_config, with the batch sizes in use among those "
        "captured), batch more requests so that each launch does more work, and keep its overlap scheduler on"
    ),
    "llama.cpp": (
        "let llama.cpp replay each token as a CUDA graph (it does unless GGML_CUDA_DISABLE_GRAPHS is set; layers on "
        "the CPU and splits over GPUs switch it off), use flash attention (-fa), and decode several sequences at once "
        "(-np)"
    ),
    "transformers serve": (
        "let transformers replay its steps as CUDA graphs (--continuous-batching --cb-use-cuda-graph), compile the "
        "model (--compile), and send more requests at once so that each launch does more work; or serve the model "
        "with an engine made for it, such as vLLM or SGLang"
    ),
}
REMEDY_OF_GRAPHS = (
    "the program replays graphs already: put what is still launched by itself into them (sampling, copies, other "
    "shapes), launch the next step before the last one has ended, or run a larger batch so that each launch does "
    "more work"
)
REMEDY_OF_ANY_GRAPHS = (
    "the program replays graphs already: put what is still launched by itself into them, launch the next graph before "
    "the last one has ended, or give each graph more to do"
)
HINT_OF_GRAPHS = "Larger graphs or a larger batch"
# Waits after which the queue is refilled for this part of the waiting for launches are the reason of it.
MIN_REFILL_SHARE = 0.5
# So many, and one for so many launches: more than the one that reads a step's result.
MIN_WAITS, MIN_WAITS_EACH = 10, 1 / 20
WITHOUT_WAITS = "first do without the waits named: each lets the queue run empty, and no graph can be captured over one"
# What makes torch wait.
WITHOUT_WAITS_OF_TORCH = (
    f"{WITHOUT_WAITS} (keep .item(), .tolist() and .cpu() out of the loop, and what asks the GPU for a size: nonzero, "
    "masked indexing, unique); then "
)
HINT_OF_WAITS = "Removing synchronisation from the loop"
REMEDY_OF_JAX = (
    "put more of the step under one jax.jit, run several steps in one call (jax.lax.scan or fori_loop), let XLA replay "
    "them as CUDA graphs (command buffers), or use a larger batch so that each launch does more work"
)
REMEDY_OF_TENSORFLOW = (
    "put more of the step under one tf.function and let XLA fuse it (jit_compile=True), run several steps in one call "
    "(steps_per_execution), or use a larger batch so that each launch does more work"
)
REMEDY_OF_DIRECTIVES = (
    "give each parallel region more to do: join loops into one region (collapse, fused loops), launch without waiting "
    "for the last one (`nowait` and `depend` in OpenMP, `async` in OpenACC), and keep arrays on the device between them"
)
REMEDY_OF_CUDA = (
    "launch fewer, larger kernels: fuse small ones, record the sequence once as a CUDA graph and replay it, or give "
    "each launch more work; and launch ahead, without waiting for the previous kernel"
)


def find_launch_bound(facts: RunFacts) -> list[Finding]:
    """One finding per phase that idles for at least half its clean time, mostly for want of launches."""
    return [found for phase in facts.timed_gpu_phases() for found in _check(*phase, facts)]


def find_launch_bound_in(facts: CaptureFacts) -> list[Finding]:
    """The ranges that wait for launches for at least half their time; where none explains it, the whole capture.

    A range inside one that is already named is not named again.
    """
    bound = facts.outermost([row for row in facts.ranges if _is_bound(row)])
    found = [(row, _of_range(row, facts)) for row in bound]
    launching = _launching_ns(facts.idle)
    explained = sum(_saved_ns(row) for row, _ in found)
    findings = [finding for _, finding in found]
    if launching - explained < max(MIN_LEFT_SHARE * launching, MIN_HEADLINE * facts.span_ns):
        return findings
    # Less than that many gaps that a launch may take are no matter of launches.
    if min(facts.kernel_count, facts.report.gaps.short_count) < MIN_KERNELS:
        return findings
    return [*findings, _of_capture(facts, launching - explained)]


def _check(phase: PhaseFacts, gpu: GpuFacts, wall: Known, facts: RunFacts) -> list[Finding]:
    idle_ms = wall.value - gpu.busy_ms
    if gpu.kernel_count < MIN_KERNELS or idle_ms < MIN_IDLE_SHARE * wall.value:
        return []
    causes = {key: ms for key, _, ms in split_idle(gpu.idle, idle_ms)}
    # What is launched in time has started in time, too; a long gap is not a launch's.
    launching = launching_share(gpu.idle)
    host_ms = causes.get("host", 0.0) * launching + causes.get("starting", 0.0)
    if host_ms < MIN_HOST_SHARE * idle_ms:
        return []
    share = idle_ms / wall.value
    already = facts.already(phase.name)
    is_graph = gpu.is_graph or GRAPHS in already
    remedy = REMEDY_OF_GRAPHS if is_graph else advise(START, FEWER, already)
    if phase.name == PREFILL and not is_graph and GRAPHS in facts.already(DECODE):
        remedy = REMEDY_OF_PROMPTS
    hint = HINT_OF_GRAPHS if is_graph else HINT_OF_COMPILED if COMPILED in already else None
    return [
        RULE.finding(
            title=f"{phase.name.capitalize()} is launch-bound: the GPU idles {100 * share:.0f} % of {STEP[phase.name]}",
            phase=phase.name,
            evidence=_evidence(gpu, wall, idle_ms, host_ms),
            saves_ms=host_ms,
            gain=amdahl(wall.value, host_ms),
            confidence=confidence_of(gpu.instances, share=min(share, host_ms / idle_ms)),
            remedy=remedy,
            hint=hint,
        )
    ]


def _evidence(gpu: GpuFacts, wall: Known, idle_ms: float, host_ms: float) -> tuple[Evidence, ...]:
    each_us = 1e3 * gpu.busy_ms / gpu.kernel_count
    return (
        Evidence(text=f"clean wall time {wall.value:.2f} ms ({wall.how})", source=wall.source or "manifest.json"),
        Evidence(
            text=f"kernels run for {gpu.busy_ms:.3f} ms of it, so the GPU idles for {idle_ms:.2f} ms; "
            f"{host_ms:.2f} ms of that is waiting for launches and their start (split as in the capture)",
            source=gpu.source,
        ),
        Evidence(
            text=f"{gpu.kernel_count:.0f} kernels of {each_us:.1f} µs on average, one launched every "
            f"{1e3 * wall.value / gpu.kernel_count:.1f} µs",
            source=gpu.source,
        ),
    )


def launching_share(idle: Idle) -> float:
    """The part of the time waiting for the host that lies in gaps short enough to be a launch's."""
    host = idle.waiting_for_host_ns
    return (host - idle.long_gaps_ns) / host if host > 0 else 0.0


def _launching_ns(idle: Idle) -> int:
    return idle.waiting_for_host_ns - idle.long_gaps_ns + idle.starting_ns


def _is_bound(row: RangeRow) -> bool:
    one = row.typical
    if one.idle is None or one.gpu_idle_ns is None or one.wall_ns <= 0 or one.kernel_count < MIN_KERNELS:
        return False
    if runs_on(row):
        return False
    waits = one.gpu_idle_ns >= MIN_IDLE_SHARE * one.wall_ns
    return waits and _launching_ns(one.idle) >= MIN_HOST_SHARE * one.gpu_idle_ns


def _saved_ns(row: RangeRow) -> float:
    """Of all instances, as the typical one is: the first ones carry costs of their own."""
    if row.idle is None or row.typical.idle is None:
        return 0.0
    return min(row.instances * _launching_ns(row.typical.idle), _launching_ns(row.idle))


def _of_range(row: RangeRow, facts: CaptureFacts) -> Finding:
    one = row.typical
    busy_ns, idle_ns = one.gpu_busy_ns or 0, one.gpu_idle_ns or 0
    host = _launching_ns(one.idle) if one.idle is not None else 0
    share = idle_ns / one.wall_ns
    # A range in which the host never waits beside an idle GPU has none of the waits.
    waits = _waits_between(facts) if one.idle is not None and one.idle.sync_ns > 0 else ()
    remedy, hint = _remedy(facts, waits, is_graph=replays_graphs(row) or facts.has_graphs)
    return RULE.finding_of_capture(
        facts,
        title=f"{row.name} is launch-bound: the GPU idles for {share:.0%} of it{_with_waits(waits)}",
        evidence=(
            f"GPU busy {busy_ns / 1e6:.3f} ms of {one.wall_ns / 1e6:.2f} ms wall time "
            f"(median of {row.instances} instance(s), under the profiler)",
            f"{host / 1e6:.2f} ms of the {idle_ns / 1e6:.2f} ms idle time is waiting for launches, in gaps under "
            f"{facts.report.gaps.long_from_ns / 1e6:.2g} ms",
            f"{one.kernel_count} kernels of {busy_ns / one.kernel_count / 1e3:.1f} µs on average, "
            f"one launched every {one.wall_ns / one.kernel_count / 1e3:.1f} µs",
            f"launch calls take {one.launch_ns / 1e6:.2f} ms of CPU time "
            f"({one.launch_ns / one.wall_ns:.0%} of the wall time)",
            *_after_waits(waits),
            *_queue(facts),
        ),
        saved_ns=_saved_ns(row),
        confidence=confidence_of(row.instances, share=min(share, host / max(idle_ns, 1)), spread=row.wall_spread),
        range_name=row.name,
        remedy=remedy,
        hint=hint,
    )


def _of_capture(facts: CaptureFacts, launching_ns: float) -> Finding:
    share = launching_ns / facts.span_ns
    is_bound = facts.idle_ns >= MIN_IDLE_SHARE * facts.span_ns and launching_ns >= MIN_HOST_SHARE * facts.idle_ns
    title = f"The GPU waits for launches for {share:.0%} of the capture"
    if is_bound:
        title = f"The capture is launch-bound: the GPU waits for launches for {share:.0%} of it"
    gaps = facts.report.gaps
    waits = _waits_between(facts)
    remedy, hint = _remedy(facts, waits, is_graph=facts.has_graphs)
    return RULE.finding_of_capture(
        facts,
        title=f"{title}{_with_waits(waits)}",
        evidence=(
            f"{launching_ns / 1e6:.2f} ms of {facts.span_ns / 1e6:.2f} ms, in gaps under "
            f"{gaps.long_from_ns / 1e6:.2g} ms: {gaps.short_count:,} such gaps between {facts.kernel_count:,} "
            f"kernels{_or_graphs(facts)}",
            *_after_waits(waits),
            *_queue(facts),
        ),
        saved_ns=launching_ns,
        confidence=confidence_of(gaps.short_count, share=launching_ns / max(facts.idle_ns, 1)),
        remedy=remedy,
        hint=hint,
    )


def _or_graphs(facts: CaptureFacts) -> str:
    return " or graphs" if facts.has_graphs else ""


def _queue(facts: CaptureFacts) -> tuple[str, ...]:
    queue = facts.report.queue
    if queue is None:
        return ()
    # Threads may launch side by side, and what was launched before the first kernel ran lies outside of the span.
    calls = f", and launch calls took {queue.call_ns / facts.span_ns:.0%} of its time"
    return (
        f"over the capture {queue.empty_share:.0%} of the launches found the GPU's queue empty "
        f"(median depth {queue.depth_median:.0f}){calls if queue.call_ns <= facts.span_ns else ''}",
    )


def _waits_between(facts: CaptureFacts) -> tuple[WaitRow, ...]:
    """The waits after which the queue is empty, the costliest first, if they are many or cost most of the waiting.

    Those for memory have a remedy of their own.
    """
    rows = [row for row in facts.report.waits if row.refill_ns > 0 and not allocates(row.call)]
    count, queue = sum(row.count for row in rows), facts.report.queue
    is_often = queue is not None and count >= max(MIN_WAITS, MIN_WAITS_EACH * queue.launches)
    if not is_often and sum(row.refill_ns for row in rows) < max(MIN_REFILL_SHARE * _launching_ns(facts.idle), 1):
        return ()
    return tuple(sorted(rows, key=lambda row: -row.refill_ns))


def _with_waits(rows: Sequence[WaitRow]) -> str:
    return f", with {sum(row.count for row in rows):,} waits in between (most: {rows[0].call})" if rows else ""


def _after_waits(rows: Sequence[WaitRow]) -> tuple[str, ...]:
    if not rows:
        return ()
    place = f" in {rows[0].places[0]}" if rows[0].places else ""
    return (
        f"over the capture {sum(row.refill_ns for row in rows) / 1e6:.2f} ms of this follow directly on "
        f"{sum(row.count for row in rows):,} waits for the GPU, most in {rows[0].call}{place}: the queue is empty then",
    )


def _remedy(facts: CaptureFacts, waits: Sequence[WaitRow], *, is_graph: bool) -> tuple[str, str]:
    """What fits the program: its framework, whether it replays graphs already, and what its runtime calls them."""
    remedy, hint = _remedy_of_cuda(facts, is_graph=is_graph)
    # Servers have reasons of their own to wait.
    if waits and not is_graph and facts.report.engine is None:
        first = WITHOUT_WAITS_OF_TORCH if facts.report.framework == "torch" else f"{WITHOUT_WAITS}; then "
        remedy, hint = first + remedy, HINT_OF_WAITS
    if facts.report.is_hip:
        return remedy.replace("CUDA graph", "HIP graph"), hint.replace("CUDA graph", "HIP graph")
    return remedy, hint


def _remedy_of_cuda(facts: CaptureFacts, *, is_graph: bool) -> tuple[str, str]:
    if is_graph:
        return (REMEDY_OF_GRAPHS if facts.has_attention else REMEDY_OF_ANY_GRAPHS), HINT_OF_GRAPHS
    if facts.report.engine is not None:
        return REMEDY_OF_ENGINE[facts.report.engine], "CUDA graphs"
    if facts.report.framework == "torch":
        return _remedy_of_torch(facts)
    if facts.report.framework == "jax":
        return REMEDY_OF_JAX, "One jitted function per step"
    if facts.report.framework == "tensorflow":
        return REMEDY_OF_TENSORFLOW, "One compiled function per step"
    remedy = REMEDY_OF_DIRECTIVES if facts.report.framework == "directives" else REMEDY_OF_CUDA
    return remedy, "Fewer, larger launches"


def _remedy_of_torch(facts: CaptureFacts) -> tuple[str, str]:
    compiled = facts.report.compiled
    already = frozenset({COMPILED}) if compiled else frozenset()
    if facts.report.without_graphs:
        return advise(START, FEWER_WITHOUT_GRAPHS, already), "A larger batch" if compiled else "torch.compile"
    if facts.report.trains:
        hint = HINT_OF_COMPILED if compiled else "torch.compile or CUDA graphs"
        return advise(START, FEWER_OF_TRAINING, already), hint
    fewer = FEWER if facts.has_attention else FEWER_OF_ANY_MODEL
    return advise(START, fewer, already), HINT_OF_COMPILED if compiled else HINT


RULE = Rule(
    id="launch_bound",
    find=find_launch_bound,
    find_in_capture=find_launch_bound_in,
    plain_words="The processor that feeds the GPU is the bottleneck: the GPU mostly waits for its next order.",
    remedy=REMEDY,
    hint=HINT,
    experiments=(REDUCE_OVERHEAD, CUDA_GRAPH, COMPILE, MAX_AUTOTUNE, LARGER_BATCH, LARGEST_BATCH),
    is_idle=True,
)

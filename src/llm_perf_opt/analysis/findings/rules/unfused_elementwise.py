"""Rules unfused_elementwise, unfused_attention and unfused_optimizer: chains of kernels that one kernel would do.

Small elementwise, norm and copy kernels are fused by a compiler; a product, a softmax and a product by a kernel written
for attention, which never writes the scores to memory; the passes of an optimiser over all parameters by its fused
form.
"""

import re
from dataclasses import replace

from llm_perf_opt.analysis.findings.capture_facts import CaptureFacts, FusibleChains
from llm_perf_opt.analysis.findings.facts import COMPILED, KernelFacts, PhaseKernel, RunFacts
from llm_perf_opt.analysis.findings.finding import Evidence, Finding, Rule, Suggestion, advise, amdahl
from llm_perf_opt.analysis.findings.phase_kernels import (
    HIDDEN_IN_CAPTURE,
    LAUNCH_BOUND_IDLE,
    Slice,
    describe,
    slices,
    time_of,
)
from llm_perf_opt.analysis.findings.remedies import (
    COMPILE,
    FLASH_ATTENTION,
    FLEX_ATTENTION,
    MAX_AUTOTUNE,
    REDUCE_OVERHEAD,
    SDPA,
)
from llm_perf_opt.analysis.kernels.names import is_fusible
from llm_perf_opt.analysis.timeline.fusion import AttentionInPieces

MIN_SHARE = 0.15
MIN_LAUNCHES = 50
SHOWN = 4
FUSE = (
    Suggestion(
        text="torch.compile (inductor makes one kernel of a chain)",
        done=COMPILED,
        instead="some of the program is compiled already: compile the part that is not, and look for what breaks its "
        "chains (graph breaks, views, custom kernels)",
    ),
    "or fused kernels for RMSNorm, rotary embedding and SwiGLU (Liger, Apex, vLLM or flash-attn's layers)",
)
REMEDY = advise("fuse them: ", FUSE)
REMEDY_OF_ANY_MODEL = (
    "fuse them: torch.compile (inductor makes one kernel of a chain), or fused kernels of a library; where optimiser "
    "kernels are among them, fused optimisers (fused=True)"
)
REMEDY_OF_OTHERS = (
    "fuse them: let the framework's compiler make one kernel of a chain (jax.jit, cupy.fuse, numba, "
    "the builder of an inference engine), or write one kernel that does what the chain does"
)
MIN_PIECES = 3
ATTENTION_REMEDY = (
    "compute it with one kernel: torch.nn.functional.scaled_dot_product_attention, flash_attn or FlexAttention; in "
    "transformers attn_implementation='sdpa' or 'flash_attention_2' instead of 'eager' (weights of the attention can "
    "then not be returned)"
)
ATTENTION_REMEDY_OF_OTHERS = (
    "compute it with one kernel: jax.nn.dot_product_attention(implementation='cudnn'), cuDNN's or FlashAttention's "
    "kernels, or the attention plug-in of the engine"
)
# Torch's foreach functions take many tensors at once, and do one operation on them: an optimiser made of them goes over
# all parameters once for each. Fused ones, torch's and those of Apex and Megatron, are given by their own functor.
FOREACH = re.compile(r"multi_tensor_apply_kernel<.*\b(Unary|Binary|Pointwise|Ternary)Op\w*Functor<")
FUSED_OPTIMIZER = re.compile(r"multi_tensor_apply_kernel<.*\b(Fused\w+|(Adam|SGD|LAMB|Novograd)\w*)Functor", re.I)
OPTIMIZER_RANGE = re.compile(r"Optimizer\.step#(\w+)\.step")
# Clipping is one operation, averages of weights are a few more: without such a range only many are an optimiser.
SOME_PASSES, MANY_PASSES = 2, 4
MIN_OPTIMIZER_SHARE = 0.1
# Adam in one pass reads and writes 7 numbers for each parameter, where its eight passes move about 20.
LEAST_LEFT = 0.35
WITH_FUSED_FORM = ("Adam", "AdamW", "SGD", "Adagrad")
OPTIMIZER_REMEDY = (
    "update in one pass over memory: fused=True where torch's optimiser has it (Adam, AdamW, SGD, Adagrad), "
    "torch.compile of its step where not; and shard the optimiser's state over the ranks where several hold the same "
    "(FSDP, ZeRO)"
)
Row = tuple[PhaseKernel, KernelFacts | None]


def find_unfused_elementwise(facts: RunFacts) -> list[Finding]:
    """One finding per phase in which many small kernels without a product take a good part of the kernel time.

    None of a capture alone, which says by itself which of them follow each other.
    """
    if facts.capture_ms is not None:
        return []
    found = []
    for part in slices(facts):
        rows = [row for row in part.rows if is_fusible(row[0].name)]
        spent, launches = time_of(rows), sum(k.per_step for k, _ in rows)
        if launches >= MIN_LAUNCHES and spent >= MIN_SHARE * part.busy_ms:
            found.append(_finding(part, rows, spent, launches, facts))
    return found


def _finding(part: Slice, rows: list[Row], spent: float, launches: float, facts: RunFacts) -> Finding:
    source = facts.kernel_source
    every = sum(k.per_step for k, _ in part.rows)
    top = sorted(rows, key=lambda row: -row[0].ms_per_step)[:SHOWN]
    total = Evidence(
        text=f"{launches:.0f} of {every:.0f} launches, {spent:.4g} of {part.busy_ms:.4g} ms kernel time, are "
        "elementwise, norm, reduction or copy kernels",
        source=source,
    )
    return RULE.finding(
        title=f"Unfused elementwise work takes {100 * spent / part.busy_ms:.0f} % of {part.where}",
        phase=part.phase,
        evidence=(total, *(Evidence(text=describe(k, f" ({k.kernel_class})"), source=source) for k, _ in top)),
        saves_ms=spent,
        gain=amdahl(part.wall_ms, spent),
        confidence="medium",
        remedy=advise("fuse them: ", FUSE, facts.already(part.phase)),
        caveat=part.caveat or "an upper bound: some of these bytes have to be moved once even when fused",
    )


def find_chains(facts: CaptureFacts) -> list[Finding]:
    """One finding when chains of such kernels take a good part of the kernel time."""
    found = facts.fusible
    if found is None or found.kernel_count < MIN_LAUNCHES:
        return []
    total = sum(row.total_ns for row in facts.kernels)
    if facts.pieces is not None and find_attention_in_pieces(facts):
        found = _without_pieces(found, facts.pieces)
    if not total or found.time_ns < MIN_SHARE * total:
        return []
    top = [row for row in facts.kernels if is_fusible(row.name)][:SHOWN]
    idles = facts.busy_ns < (1 - LAUNCH_BOUND_IDLE) * facts.span_ns
    finding = RULE.finding_of_capture(
        facts,
        title=f"Unfused elementwise work takes {found.time_ns / total:.0%} of the capture's kernel time",
        evidence=(
            f"{found.chains:,} chain(s) of {found.kernel_count / found.chains:.1f} elementwise, norm, reduction or "
            f"copy kernels take {found.time_ns / 1e6:.3f} of {total / 1e6:.3f} ms kernel time",
            "fused, what two kernels pass on is neither written nor read, which saves at most the shorter of them: "
            f"{found.saved_ns / 1e6:.3f} ms in all",
            *(
                f"`{row.short_name}`: {row.total_ns / 1e6:.3f} ms in {row.instances:,} launch(es) ({row.kernel_class})"
                for row in top
            ),
        ),
        saved_ns=0,
        confidence="medium",
        remedy=_remedy(facts),
    )
    caveat = HIDDEN_IN_CAPTURE if idles else "an upper bound: not every such chain can be one kernel"
    gain = amdahl(facts.span_ns, found.saved_ns)
    return [replace(finding, share=found.saved_ns / facts.span_ns, gain=gain, caveat=caveat)]


def _without_pieces(found: FusibleChains, pieces: AttentionInPieces) -> FusibleChains:
    """Without what lies between the products of attention in pieces: that is told with them."""
    left = max(0, found.time_ns - pieces.softmax_ns - pieces.between_ns)
    return replace(found, time_ns=left, saved_ns=round(found.saved_ns * left / max(found.time_ns, 1)))


def _remedy(facts: CaptureFacts) -> str:
    if facts.report.framework != "torch":
        return REMEDY_OF_OTHERS
    is_transformer = facts.has_attention and not facts.report.trains
    if facts.report.compiled:
        return advise("fuse them: ", FUSE if is_transformer else FUSE[:1], frozenset({COMPILED}))
    return REMEDY if is_transformer else REMEDY_OF_ANY_MODEL


def find_attention_in_pieces(facts: CaptureFacts) -> list[Finding]:
    """One finding when products, softmax and what lies between them take a good part of the kernel time."""
    found, total = facts.pieces, sum(row.total_ns for row in facts.kernels)
    if found is None or found.count < MIN_PIECES or found.time_ns < MIN_SHARE * total:
        return []
    idles = facts.busy_ns < (1 - LAUNCH_BOUND_IDLE) * facts.span_ns
    saved = min(found.time_ns, facts.busy_ns)
    finding = ATTENTION.finding_of_capture(
        facts,
        title=f"Attention is computed in pieces, {found.time_ns / total:.0%} of the capture's kernel time",
        evidence=(
            f"{found.count:,} times a product, a softmax and a product follow each other: {found.time_ns / 1e6:.3f} of "
            f"{total / 1e6:.3f} ms kernel time",
            f"products {found.product_ns / 1e6:.3f} ms, softmax {found.softmax_ns / 1e6:.3f} ms, between them (scale, "
            f"mask, cast, copy) {found.between_ns / 1e6:.3f} ms; each piece writes all scores to memory and reads them "
            "again",
        ),
        saved_ns=0,
        confidence="medium",
        remedy=None if facts.report.framework == "torch" else ATTENTION_REMEDY_OF_OTHERS,
    )
    caveat = HIDDEN_IN_CAPTURE if idles else "an upper bound: the kernel that does all of it takes time as well"
    return [replace(finding, share=saved / facts.span_ns, gain=amdahl(facts.span_ns, saved), caveat=caveat)]


def find_foreach_optimizer(facts: CaptureFacts) -> list[Finding]:
    """One finding when an optimiser of several passes over all parameters takes a tenth of the kernel time."""
    total = sum(row.total_ns for row in facts.kernels)
    rows = [row for row in facts.kernels if FOREACH.search(row.name)]
    steps = [(row, named) for row in facts.ranges if (named := OPTIMIZER_RANGE.search(row.name)) is not None]
    step, named = max(steps, key=lambda pair: pair[0].gpu_busy_ns or 0, default=(None, None))
    spent = min(sum(row.total_ns for row in rows), facts.busy_ns)
    if step is not None and step.gpu_busy_ns is not None:
        spent = min(spent, step.gpu_busy_ns)
    least = MANY_PASSES if step is None else SOME_PASSES
    is_fused = any(FUSED_OPTIMIZER.search(row.name) for row in facts.kernels)
    if len(rows) < least or is_fused or spent < MIN_OPTIMIZER_SHARE * total:
        return []
    name = "an optimiser" if named is None else named[1]
    finding = OPTIMIZER.finding_of_capture(
        facts,
        title=f"The passes of {name} over all parameters take {spent / total:.0%} of the capture's kernel time",
        evidence=(
            f"{len(rows)} kinds of foreach kernels take {spent / 1e6:.3f} of {total / 1e6:.3f} ms kernel time; each "
            "reads and writes whole lists of tensors for one operation",
            *(
                f"`{row.short_name}`: {row.total_ns / 1e6:.3f} ms in {row.instances:,} launch(es)"
                for row in rows[:SHOWN]
            ),
        ),
        saved_ns=0,
        confidence="medium",
        remedy=f"update in one pass over memory: torch.optim.{name}(fused=True)" if name in WITH_FUSED_FORM else None,
    )
    saved = spent * (1 - LEAST_LEFT)
    idles = facts.busy_ns < (1 - LAUNCH_BOUND_IDLE) * facts.span_ns
    caveat = HIDDEN_IN_CAPTURE if idles else "an upper bound: what is read and written once is left"
    return [replace(finding, share=saved / facts.span_ns, gain=amdahl(facts.span_ns, saved), caveat=caveat)]


def find_none(facts: RunFacts) -> list[Finding]:
    """A run's figures do not say which kernels follow each other; captures do."""
    del facts
    return []


RULE = Rule(
    id="unfused_elementwise",
    find=find_unfused_elementwise,
    find_in_capture=find_chains,
    plain_words="Many small steps could be done in one.",
    remedy=REMEDY,
    hint="Fusing elementwise work",
    experiments=(REDUCE_OVERHEAD, COMPILE, MAX_AUTOTUNE),
)
ATTENTION = Rule(
    id="unfused_attention",
    find=find_none,
    find_in_capture=find_attention_in_pieces,
    plain_words="One step of the model is done in three, and the results in between go through memory.",
    remedy=ATTENTION_REMEDY,
    hint="A fused attention kernel",
    experiments=(SDPA, FLASH_ATTENTION, FLEX_ATTENTION),
)
OPTIMIZER = Rule(
    id="unfused_optimizer",
    find=find_none,
    find_in_capture=find_foreach_optimizer,
    plain_words="The model's numbers are updated in several passes through memory where one would do.",
    remedy=OPTIMIZER_REMEDY,
    hint="A fused optimiser",
)

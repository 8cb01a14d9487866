"""What can be tried against a finding, as data: the settings, where they make sense, and the code that does the same.

A cause names those that could save what it claims (`experiments` in its data); `llm-perf optimize` tries them. Several
causes may name one: then it could save what all of them claim.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from llm_perf_opt.core.names import DECODE, PHASES

Place = Literal["gpu", "cpu"]
# Objectives in which more sequences at once can count; the time of one token can only grow with them.
THROUGHPUT = ("tokens_per_s", "joules_per_token")


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Where a remedy makes sense. Empty values mean: anywhere.

    `own_loop`: the model must run in our own loop, which knows static caches and compiled steps. `text_model`: it must
    read text alone; of a model that reads pages only the decode step can be changed.
    `dtypes`: formats the model may run in now. `package`: a module that must be importable. `min_context`: tokens.
    `kernel_class`: kernels of this class take at least `min_share` of the kernel time.
    """

    place: Place | None = None
    own_loop: bool = False
    text_model: bool = False
    dtypes: tuple[str, ...] = ()
    package: str | None = None
    throughput: bool = False
    kernel_class: str | None = None
    min_share: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One thing to try. `sets` are keys of the configuration, `environment` variables of the process.

    `is_lossy`: outputs may differ by more than rounding. `phases` are those it can shorten at all. `batch` multiplies
    the batch: each step then serves so many times the sequences, at best in the same time. `lowers_bound`: fewer bytes
    have to be moved, so the bound of the run as it is does not limit it. `removes_idle`: all time without work may go
    with it, also what is too little for a finding of its own. `changes_kernels`: other kernels run with it, so the
    time of the recorded ones does not limit it. `compile_s` is what preparing takes, roughly.
    `code` does the same in a program of one's own.
    """

    id: str
    title: str
    sets: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    guard: Guard = Guard()
    is_lossy: bool = False
    phases: tuple[str, ...] = PHASES
    batch: int = 1
    lowers_bound: bool = False
    removes_idle: bool = False
    changes_kernels: bool = False
    compile_s: float = 0.0
    code: str = ""


_LOOP = Guard(own_loop=True)
_TEXT_LOOP = Guard(own_loop=True, text_model=True)
_GPU_LOOP = Guard(own_loop=True, place="gpu")
_STATIC = (
    "from transformers import StaticCache\ncache = StaticCache(config=model.config, max_cache_len=prompt + new_tokens)"
)

STATIC_CACHE = Remedy(
    id="static_cache",
    title="KV cache of a fixed size (static), each token written to its place",
    sets={"infer.cache": "static"},
    # On a CPU no class of operators is known: there it is tried wherever operators are above the bound.
    guard=Guard(own_loop=True, kernel_class="copy"),
    phases=(DECODE,),
    changes_kernels=True,
    code=_STATIC,
)
REDUCE_OVERHEAD = Remedy(
    id="reduce_overhead",
    title="static cache, decode step compiled with CUDA graphs (reduce-overhead)",
    sets={"infer.cache": "static", "infer.compile": "reduce-overhead"},
    guard=_GPU_LOOP,
    phases=(DECODE,),
    compile_s=25.0,
    removes_idle=True,
    changes_kernels=True,
    code=f"""\
{_STATIC}
step = torch.compile(model.forward, mode="reduce-overhead", dynamic=False)
# before each step: torch.compiler.cudagraph_mark_step_begin(); clone what must outlive the next one""",
)
CUDA_GRAPH = Remedy(
    id="cuda_graph",
    title="static cache, decode step replayed from a CUDA graph",
    sets={"infer.cache": "static", "infer.cuda_graph": "true"},
    guard=_GPU_LOOP,
    phases=(DECODE,),
    compile_s=1.0,
    removes_idle=True,
    code=f"""\
{_STATIC}
graph = torch.cuda.CUDAGraph()  # after two steps on a side stream, with inputs at fixed addresses
with torch.no_grad(), torch.cuda.graph(graph):
    logits = model(input_ids=token, past_key_values=cache, position_ids=positions).logits[:, -1]
    positions.add_(1)
# each step: token.copy_(next_token); graph.replay()""",
)
COMPILE = Remedy(
    id="compile",
    title="static cache, decode step compiled (torch.compile)",
    sets={"infer.cache": "static", "infer.compile": "default"},
    guard=_LOOP,
    phases=(DECODE,),
    compile_s=20.0,
    removes_idle=True,
    changes_kernels=True,
    code=f"{_STATIC}\nstep = torch.compile(model.forward, dynamic=False)",
)
MAX_AUTOTUNE = Remedy(
    id="max_autotune",
    title="static cache, decode step compiled and its products tuned (max-autotune)",
    sets={"infer.cache": "static", "infer.compile": "max-autotune"},
    guard=_GPU_LOOP,
    phases=(DECODE,),
    compile_s=150.0,
    removes_idle=True,
    changes_kernels=True,
    code=f'{_STATIC}\nstep = torch.compile(model.forward, mode="max-autotune", dynamic=False)',
)
JOINED_PROJECTIONS = Remedy(
    id="joined_projections",
    title="q, k and v, and gate and up projections as one product each",
    sets={"model.join_projections": "true"},
    guard=_TEXT_LOOP,
    # Fewer launches too.
    removes_idle=True,
    changes_kernels=True,
    code="""\
from llm_perf_opt.workload.models.joined import join_projections  # torch.cat of the weights, one linear, split
join_projections(model)""",
)
FP8_WEIGHTS = Remedy(
    id="fp8_weights",
    title="fp8 weights and activations (torchao)",
    sets={"model.quantization": "fp8"},
    guard=Guard(own_loop=True, text_model=True, place="gpu", package="torchao"),
    is_lossy=True,
    lowers_bound=True,
    code="""\
from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, quantize_
quantize_(model, Float8DynamicActivationFloat8WeightConfig())""",
)
INT8_WEIGHTS = Remedy(
    id="int8_weights",
    title="int8 weights (torchao)",
    sets={"model.quantization": "int8"},
    guard=Guard(own_loop=True, text_model=True, package="torchao"),
    is_lossy=True,
    lowers_bound=True,
    code="from torchao.quantization import Int8WeightOnlyConfig, quantize_\nquantize_(model, Int8WeightOnlyConfig())",
)
BFLOAT16 = Remedy(
    id="bfloat16",
    title="bfloat16 instead of float32",
    sets={"model.dtype": "bfloat16"},
    guard=Guard(dtypes=("float32", "fp32")),
    is_lossy=True,
    lowers_bound=True,
    code="model = model.to(torch.bfloat16)",
)
SDPA = Remedy(
    id="sdpa",
    title="attention by torch's scaled_dot_product_attention",
    sets={"model.attention": "sdpa"},
    guard=Guard(own_loop=True, text_model=True, kernel_class="attention"),
    changes_kernels=True,
    code='model.set_attn_implementation("sdpa")',
)
FLASH_ATTENTION = Remedy(
    id="flash_attention",
    title="attention by flash_attn",
    sets={"model.attention": "flash_attention_2"},
    guard=Guard(own_loop=True, text_model=True, place="gpu", package="flash_attn", kernel_class="attention"),
    changes_kernels=True,
    code='model.set_attn_implementation("flash_attention_2")',
)
FLEX_ATTENTION = Remedy(
    id="flex_attention",
    title="attention compiled for its mask (flex_attention)",
    sets={"model.attention": "flex_attention"},
    guard=Guard(own_loop=True, text_model=True, place="gpu", kernel_class="attention"),
    compile_s=20.0,
    changes_kernels=True,
    code='model.set_attn_implementation("flex_attention")',
)
LARGER_BATCH = Remedy(
    id="batch_x4",
    title="four times the sequences at once",
    batch=4,
    guard=Guard(own_loop=True, text_model=True, throughput=True),
    code="# pad the prompts of a batch on the left and mask the padding",
)
LARGEST_BATCH = Remedy(
    id="batch_x16",
    title="sixteen times the sequences at once",
    batch=16,
    guard=Guard(own_loop=True, text_model=True, throughput=True),
    code="# pad the prompts of a batch on the left and mask the padding",
)
ONE_THREAD = Remedy(
    id="one_thread",
    title="one thread for each operator (OMP_NUM_THREADS=1)",
    environment={"OMP_NUM_THREADS": "1"},
    guard=Guard(place="cpu"),
    removes_idle=True,
    code="torch.set_num_threads(1)",
)
EXPANDABLE_SEGMENTS = Remedy(
    id="expandable_segments",
    title="an allocator whose segments grow (expandable_segments)",
    environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    guard=Guard(place="gpu"),
    code='os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # before torch is imported',
)

# By id, as the causes name them.
EXPERIMENTS: Mapping[str, Remedy] = {
    remedy.id: remedy
    for remedy in (
        STATIC_CACHE,
        REDUCE_OVERHEAD,
        CUDA_GRAPH,
        COMPILE,
        MAX_AUTOTUNE,
        JOINED_PROJECTIONS,
        FP8_WEIGHTS,
        INT8_WEIGHTS,
        BFLOAT16,
        SDPA,
        FLASH_ATTENTION,
        FLEX_ATTENTION,
        LARGER_BATCH,
        LARGEST_BATCH,
        ONE_THREAD,
        EXPANDABLE_SEGMENTS,
    )
}

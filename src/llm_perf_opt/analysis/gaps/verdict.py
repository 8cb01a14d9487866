"""What kind of work a host thread did, told by the names of what it was in."""

import re
from collections.abc import Iterable
from typing import Literal

Verdict = Literal[
    "compilation",
    "new_shapes",
    "recompilation",
    "stalls",
    "data_loading",
    "allocation",
    "rank_wait",
    "profiler",
    "host_wait",
    "host_work",
    "single_instances",
    "unknown",
]

# Where code lies, and calls of a library: these say it of all that is inside them. A name that says "compiled" is about
# running, and every compiled function is entered by eval_frame.py: neither counts.
_COMPILING = re.compile(
    r"^(cu|hip)(Module|Library)Load|^nvrtc|^hiprtc|^cuLink(Create|Add|Complete)|nvJitLink|^nvPTXCompiler"
    r"|\(dynamo_timed\)$|torch/_dynamo/(convert_frame|symbolic_convert|output_graph)\.py"
    r"|torch/_inductor/(graph|scheduler|lowering|async_compile|codegen/[^ ]*|select_algorithm)\.py"
    r"|: (compile_fx|compile_fx_inner|fx_codegen_and_compile|_compile_and_load|precompile)$"
    r"|triton/compiler/|triton/backends/[^ ]*compiler|triton/testing\.py"
    r"|triton/runtime/autotuner\.py\(\d+\): (_?bench|prune)"
    r"|jax/_src/(interpreters/(mlir|pxla)|compiler|compilation_cache)\.py|XlaCompile|backend_compile"
    r"|torch/_inductor/(autotune_process|codecache|runtime/(benchmarking|autotune_cache|hints))\.py"
    r"|(triton_heuristics|select_algorithm)\.py\(\d+\): (_?bench|autotune|coordinate|precompile|do_autotuning)"
    r"|^cudnnFind|^cudnnGetConvolution\w*Algorithm|^cublasLtMatmulAlgo|^(Xla)?Autotun"
    r"|gemm_fusion_autotuner|ConvAlgorithmPicker|GemmAlgorithmPicker"
    r"|torch/utils/cpp_extension\.py|numba/core/(compiler|dispatcher)|cupy/cuda/compiler",
)
_LOADING = re.compile(
    r"torch/utils/data/|^enumerate\(DataLoader\)|IteratorGetNext|nvidia/dali|/webdataset/|datasets/(arrow|iterable)_dataset",
)
# Words in names people chose: a script may be called so that does more than this.
_COMPILING_BY_WORD = re.compile(
    r"\bautotun(e|ing)\b|\b(jit|graph|kernel|shader|program)[ _]?compil(e|ation|ing)\b|^compil(e|ing|ation)\b",
    re.IGNORECASE,
)
_LOADING_BY_WORD = re.compile(
    r"data_?load(er|ing)?\b|\b(load|fetch|read|get|next)[ _]?(next[ _])?(batch|data)\b"
    r"|^(data|input|batch)$|^(data|input)[ _]?(wait|time|fetch|pipeline)\b"
    r"|^p?read(v|64)?$|^fread|^fgets$|^getline$",
    re.IGNORECASE,
)
# Of that, the search for the fastest of several variants: it runs the same kernels many times and is done once.
_SEARCHING = re.compile(
    r"bench|autotun|tuning|coordinate|prune|testing\.py|^cudnn(Find|Get)|MatmulAlgo|AlgorithmPicker", re.I
)
# A launch that takes long on an idle GPU loads what it launches.
_FIRST_LAUNCH = re.compile(r"^(cuda|cu|hip)(Ext|Module)?(Launch|GraphLaunch)")
_ALLOCATING = re.compile(
    r"^(cuda|hip)(Malloc|HostAlloc|HostRegister|HostMalloc|Free|HostFree)|^cuMem(Alloc|HostAlloc|Create|Map|Free)",
)
_RANKS = re.compile(
    r"torch/distributed/(?!elastic|launch|run)[^ ]*: (barrier|all_|broadcast|gather|recv|monitored_barrier|wait)"
    r"|^c10d::|^(nccl|rccl|gloo|mpi|MPI):|^P?MPI_|^nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Send|Recv|Group)",
)
# The host itself waits, for a request, a timer, another thread or process: what for is not in the capture.
_WAITING = re.compile(
    r"^(epoll_p?wait|p?poll|p?select|pselect6|accept4?|recv(from|msg)?|nanosleep|clock_nanosleep|u?sleep|sigtimedwait"
    r"|pthread_(cond_(timed|clock)?wait|join|mutex_(timed)?lock|rwlock_(rd|wr)lock)|sem_(timed|clock)?wait|futex"
    r"|wait(id|pid|3|4)?|pause)$"
    r"|\b(selectors|select|threading|queue|socket|asyncio/base_events|subprocess|multiprocessing/(connection|queues"
    r"|synchronize|popen_fork))\.py\(\d+\): (select|wait|get|acquire|join|recv\w*|poll|_run_once|accept)"
    r"|built-in (method|function) sleep|^time\.sleep",
)
_PATTERNS: tuple[tuple[Verdict, re.Pattern[str]], ...] = (
    ("compilation", _COMPILING),
    ("data_loading", _LOADING),
    ("rank_wait", _RANKS),
    ("allocation", _ALLOCATING),
    ("compilation", _FIRST_LAUNCH),
)
_WORDS: tuple[tuple[Verdict, re.Pattern[str]], ...] = (
    ("compilation", _COMPILING_BY_WORD),
    ("data_loading", _LOADING_BY_WORD),
    ("host_wait", _WAITING),
)
_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+|_v\d{4,}$|_ptsz$")


# The driver's own business, which CUPTI reports beside that of the profiler. A full queue is no pause.
_QUEUE_FULL = "Command Buffer Full"
_DRIVER_LOADS = frozenset({"Lazy Function Loading", "Runtime Triggered Module Loading"})
# Kernels that only a search for the fastest of several variants runs.
_TUNING = re.compile(r"redzone|RepeatBuffer|autotun|_fp_comparison|(fp|bf|f)\d+(_e\dm\d\w*)?_comparison", re.IGNORECASE)

# Calls that bring code to the GPU.
_LOADS_CODE = re.compile(r"^(cu|hip)(Module|Library)Load")
# Kernels that are built while the program runs; all others are loaded from a file in no time.
_BUILT = re.compile(r"cudnn_generated_|^triton_(poi|red|per|tem)_")
# Kernels a library builds while the program runs, one for every shape it has not met yet; seen on an H200: cuDNN's
# attention took 45 ms for every length of the cache.
_BUILT_PER_SHAPE = re.compile(r"cudnn_generated_\w*sdpa")


def loads_code(call: str) -> bool:
    """Whether a call of the runtime loads code onto the GPU."""
    return _LOADS_CODE.search(call) is not None


def is_built(kernel: str | None) -> bool:
    """Whether a kernel is built while the program runs, by its name."""
    return kernel is not None and _BUILT.search(kernel) is not None


def is_built_per_shape(kernel: str | None) -> bool:
    """Whether a kernel is built anew for every new shape, by its name."""
    return kernel is not None and _BUILT_PER_SHAPE.search(kernel) is not None


def compiles(name: str | None) -> bool:
    """Whether a name is about compiling or loading code, and not about a search among variants of it."""
    if name is None or _SEARCHING.search(name):
        return False
    return bool(_COMPILING.search(name) or _COMPILING_BY_WORD.search(name))


def allocates(call: str) -> bool:
    """Whether a call of the runtime allocates or frees memory."""
    return _ALLOCATING.search(call) is not None


def is_launch(name: str | None) -> bool:
    """Whether a call of the runtime launches a kernel or a graph."""
    return name is not None and _FIRST_LAUNCH.search(name) is not None


def judge_overhead(name: str) -> Verdict | None:
    """What a profiler reports as overhead: its own pause, code that the driver loads, or neither."""
    if name in _DRIVER_LOADS:
        return "compilation"
    return None if name == _QUEUE_FULL else "profiler"


def is_tuning(kernel: str | None) -> bool:
    """Whether a kernel belongs to an autotuner, by its name."""
    return kernel is not None and _TUNING.search(kernel) is not None


def judge(names: Iterable[str], near: Iterable[str] = ()) -> tuple[Verdict, str | None]:
    """The kind of work of a stack of names, innermost first, and the name that says so.

    `near` are those of them that are about as long as the time to explain: only of these mere words are believed.
    """
    stack, close = tuple(names), tuple(near)
    for patterns, candidates in ((_PATTERNS, stack), (_WORDS, close)):
        for verdict, pattern in patterns:
            found = next((name for name in candidates if pattern.search(name)), None)
            if found is not None:
                return verdict, found
    return ("host_work", None) if stack else ("unknown", None)


def readable(name: str) -> str:
    """A name without addresses and version suffixes, which differ from run to run."""
    return _ADDRESS.sub("", name)

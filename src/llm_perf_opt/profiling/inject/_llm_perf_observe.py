"""Looks at a program from inside while its stacks are sampled: what only the running process knows.

Started by `sitecustomize` where LLM_PERF_OBSERVE is set, in the sampled pass alone, never in the clean one. A thread
looks `rate_hz` times a second at where the main thread is: the expression, the types of the values it uses, and how the
process's memory grew. Alongside that it counts pauses of the garbage collector, compilations of torch, threads and
their wait for a processor. With `stacks` it also writes the stacks of all threads, where no sampler may read the
process from outside. Everything goes to one file for each process, rewritten now and then: a program that is ended
leaves one too.

Needs the standard library alone, and looks at values by their exact type: no code of the program runs.
"""

import atexit
import gc
import os
import sys
import threading
import time
from contextlib import suppress
from itertools import islice
from types import CodeType, FrameType
from typing import Any

VARIABLE = "LLM_PERF_OBSERVE"
WRITE_EVERY_S = 1.0
# Values of a place are described at most this many times: they rarely change their type.
LOOKS_AT_VALUES = 2
NAMES_OF_A_PLACE = 60
MOST_STACKS, MOST_PLACES, MOST_MEMORY = 20_000, 2000, 600
DEEPEST = 120
NAMELESS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<lambda>")
PAGE = os.sysconf("SC_PAGE_SIZE")
# What changes how fast a program is, by the beginning of its name.
KNOWN = (
    "CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "NVIDIA_", "OMP_", "MKL_", "OPENBLAS_", "KMP_", "GOMP_", "NUMEXPR_", "BLIS_",
    "VECLIB_", "RAYON_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "TRANSFORMERS_", "HF_HUB_",
    "TOKENIZERS_", "VLLM_", "XLA_", "JAX_", "TF_", "MALLOC_", "LD_PRELOAD", "GLIBC_TUNABLES", "PYTHONDEVMODE",
    "PYTHONASYNCIODEBUG", "PYTHONMALLOC", "PYTHONTRACEMALLOC", "PYTHONOPTIMIZE", "PYTHONDONTWRITEBYTECODE",
    "PYTHONPROFILEIMPORTTIME", "PYTHON_GIL", "PYTHONUNBUFFERED", "PYTHONFAULTHANDLER",
)  # fmt: skip
TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")
BASES = (("torch.nn.modules.module", "torch.nn.Module"), ("torch.optim.optimizer", "torch.optim.Optimizer"))
MOST_PARAMETERS = 1000
SIZED = ("list", "dict", "set", "tuple", "str", "bytes", "bytearray", "collections.deque", "frozenset")
FILES = ("_io.TextIOWrapper", "_io.BufferedReader", "_io.BufferedWriter", "_io.FileIO", "_io.BufferedRandom")


def describe(value: Any) -> str:
    """The type of a value, and what matters for time: dtype and size, file, peer. Looks at exact types alone."""
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if name in TENSORS:
        dtype, device = str(value.dtype).removeprefix("torch."), value.device.type
        return f"torch.Tensor {dtype} {device} {value.numel()} elements {tuple(value.shape)}"
    if name == "numpy.ndarray":
        return f"numpy.ndarray {value.dtype} {value.size} elements {value.shape}"
    if name.startswith("pandas.") and kind.__name__ in ("DataFrame", "Series"):
        return f"pandas.{kind.__name__} {value.shape[0]} rows"
    base = next((base for base in BASES if any(one.__module__ == base[0] for one in kind.__mro__)), None)
    if base is not None:
        return described_model(value, base[1]) or name
    if name in SIZED:
        return f"{name} {len(value)} elements"
    if name in FILES:
        return f"{name} {value.name!r}"
    if name == "socket.socket":
        with suppress(OSError):
            return f"socket.socket {value.getpeername()!r}"
    return name


def described_model(value: Any, kind: str) -> str:
    """The dtype of most parameters of a module or optimizer of torch, and how many there are; empty without any."""
    held = getattr(value, "__dict__", {})
    counts: dict[str, int] = {}
    groups = [group["params"] for group in held.get("param_groups", ())]
    modules, found = [held], [one for group in groups for one in group]
    while modules and len(found) < MOST_PARAMETERS:
        inner = modules.pop()
        found += [one for one in inner.get("_parameters", {}).values() if one is not None]
        modules += [one.__dict__ for one in inner.get("_modules", {}).values() if one is not None]
    for one in (one for one in found[:MOST_PARAMETERS] if type(one).__name__ in ("Parameter", "Tensor")):
        dtype = str(one.dtype).removeprefix("torch.")
        counts[dtype] = counts.get(dtype, 0) + one.numel()
    if not counts:
        return ""
    return f"{kind} {max(counts, key=lambda name: counts[name])} {sum(counts.values())} parameters"


class LookedAt:
    """One line of the main thread: time there by expression, the types of its values, memory it added."""

    __slots__ = ("grown", "looked", "spans", "types", "weight_s")

    def __init__(self) -> None:
        self.weight_s = 0.0
        self.spans: dict[tuple[int, int], float] = {}
        self.types: dict[str, str] = {}
        self.looked = 0
        self.grown = 0


class Collections:
    """Pauses of the garbage collector, and the line of the program's own at which each came."""

    def __init__(self) -> None:
        self.count = [0, 0, 0]
        self.total_s = self.longest_s = 0.0
        self.begun = 0.0
        self.at: dict[tuple[str, str, int], float] = {}

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            # Time on a processor: on a busy machine a pause lasts longer, as all else does.
            self.begun = time.thread_time()
            return
        if not self.begun:
            return
        took = time.thread_time() - self.begun
        self.begun = 0.0
        self.count[info["generation"]] += 1
        self.total_s += took
        self.longest_s = max(self.longest_s, took)
        frame = self.around()
        while frame is not None and is_library(frame.f_code.co_filename):
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                # A part of what the import costs.
                return
            frame = frame.f_back
        frame = named(frame)
        if frame is not None:
            key = (frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno or 0)
            self.at[key] = self.at.get(key, 0.0) + took

    @staticmethod
    def around() -> FrameType | None:
        """The frame a pause came in; at the end of the interpreter there is none."""
        try:
            return sys._getframe(2)
        except ValueError:
            return None


class Observer:
    """The samples of one process and their file."""

    def __init__(self, folder: str, *, rate_hz: float, stacks: bool) -> None:
        self.folder = folder
        self.period_s = 1.0 / rate_hz
        self.keeps_stacks = stacks
        self.main = threading.main_thread().ident or 0
        self.own = 0
        self.places: dict[tuple[str, str, int], LookedAt] = {}
        self.stacks: dict[tuple[str, bool, tuple[tuple[str, str, int], ...]], float] = {}
        self.awaits: dict[tuple[str, str, int], float] = {}
        self.memory: list[tuple[float, int]] = []
        self.spacing_s = 0.2
        self.rss = 0
        self.collections = Collections()
        self.begun = time.monotonic()
        self.age_s = age_of_process()
        self.most_threads = 0
        self.flags: dict[str, bool] = {}
        self.raised_limit = False
        self.stop = threading.Event()
        self.thread: threading.Thread | None = None

    def start(self) -> None:
        gc.callbacks.append(self.collections)
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self.forked)
        self.thread = threading.Thread(target=self.look_on, name="llm-perf-observe", daemon=True)
        self.thread.start()

    def forked(self) -> None:
        """A child has no such thread, and what was seen is the parent's."""
        if self.collections in gc.callbacks:
            gc.callbacks.remove(self.collections)
        atexit.unregister(self.end)

    def end(self) -> None:
        self.stop.set()
        if self.collections in gc.callbacks:
            gc.callbacks.remove(self.collections)
        if self.thread is not None:
            self.thread.join(1.0)
        self.write(at_end=True)

    def look_on(self) -> None:
        self.own = threading.get_ident()
        last = written = time.monotonic()
        while not self.stop.wait(self.period_s):
            now = time.monotonic()
            self.look(now - last)
            last = now
            if now - written > WRITE_EVERY_S:
                self.write(at_end=False)
                written = time.monotonic()

    def look(self, weight_s: float) -> None:
        """One sample, which represents the time since the last one: a call that keeps the GIL delays it."""
        frames = sys._current_frames()
        if self.stop.is_set():
            # The main thread waits for this one.
            return
        self.most_threads = max(self.most_threads, len(frames) - 1)
        rss = resident_bytes()
        grown, self.rss = (rss - self.rss if self.rss else 0), rss
        elapsed = time.monotonic() - self.begun
        if not self.memory or elapsed - self.memory[-1][0] >= self.spacing_s:
            self.memory.append((elapsed, rss))
            if len(self.memory) > MOST_MEMORY:
                self.memory = self.memory[::2]
                self.spacing_s *= 2
        main = frames.get(self.main)
        if main is not None:
            self.look_at(main, weight_s, grown)
            if main.f_code.co_name == "select" and main.f_code.co_filename.endswith("selectors.py"):
                self.look_at_tasks(weight_s)
        if self.keeps_stacks:
            for ident, frame in frames.items():
                if ident != self.own:
                    self.keep(ident, frame, weight_s)

    def look_at(self, leaf: FrameType, weight_s: float, grown: int) -> None:
        frame: FrameType | None = leaf
        while frame is not None and is_library(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return
        key = (frame.f_code.co_filename, (named(frame) or frame).f_code.co_name, frame.f_lineno or 0)
        place = self.places.get(key)
        if place is None:
            if len(self.places) >= MOST_PLACES:
                return
            place = self.places[key] = LookedAt()
        place.weight_s += weight_s
        if "no_kv_cache" not in self.flags and "transformers.generation.utils" in sys.modules:
            self.look_at_generation(leaf)
        place.grown += grown
        span = span_of(frame.f_code, frame.f_lasti, key[2])
        if span is not None:
            place.spans[span] = place.spans.get(span, 0.0) + weight_s
        if place.looked < LOOKS_AT_VALUES:
            place.looked += 1
            around = named(frame)
            if around is not None and around is not frame:
                place.types.update(values_of(around))
            place.types.update(values_of(frame))

    def look_at_generation(self, leaf: FrameType) -> None:
        """Whether `generate()` of transformers runs without a KV cache."""
        frame: FrameType | None = leaf
        while frame is not None:
            if frame.f_code.co_filename.endswith("/transformers/generation/utils.py"):
                given = frame.f_locals.get("model_kwargs")
                if type(given) is dict and "use_cache" in given:
                    self.flags["no_kv_cache"] = given["use_cache"] is False
                    return
            frame = frame.f_back

    def look_at_tasks(self, weight_s: float) -> None:
        """What the tasks of an idle event loop wait for: the line of the program's own that awaits."""
        module = sys.modules.get("asyncio.tasks")
        # From Python 3.12 on it has another name.
        tasks: Any = getattr(module, "_all_tasks", None) or getattr(module, "_scheduled_tasks", ())
        with suppress(RuntimeError):
            # A set that changes while it is read is read the next time.
            found = [place for task in list(tasks) if not task.done() and (place := awaiting(task.get_coro()))]
            for place in found:
                self.awaits[place] = self.awaits.get(place, 0.0) + weight_s / len(found)

    def keep(self, ident: int, leaf: FrameType, weight_s: float) -> None:
        found: list[tuple[str, str, int]] = []
        frame: FrameType | None = leaf
        while frame is not None and len(found) < DEEPEST:
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name).replace("<locals>.", "")
            found.append((name, code.co_filename, frame.f_lineno or 0))
            frame = frame.f_back
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        name = thread.name if thread is not None else str(ident)
        key = (name, ident == self.main, tuple(reversed(found)))
        if key in self.stacks or len(self.stacks) < MOST_STACKS:
            self.stacks[key] = self.stacks.get(key, 0.0) + weight_s

    def write(self, *, at_end: bool) -> None:
        """What was seen so far; a file that cannot be written must not reach the program."""
        # Not before the program's first line: it would be start-up of ours.
        import json

        self.read_flags()
        document = {
            "pid": os.getpid(),
            "age_s": self.age_s,
            "elapsed_s": time.monotonic() - self.begun,
            "ended": at_end,
            "raised": getattr(sys, "last_value", None) is not None,
            "environment": {k: v for k, v in os.environ.items() if k.startswith(KNOWN)},
            "collections": {
                "count": self.collections.count,
                "total_s": self.collections.total_s,
                "longest_s": self.collections.longest_s,
                "at": [[*key, seconds] for key, seconds in list(self.collections.at.items())],
            },
            "compilations": compilations(),
            "threads": threads(self.most_threads),
            "flags": self.flags,
            "memory": self.memory,
            "places": [
                {
                    "file": file,
                    "function": function,
                    "line": line,
                    "weight_s": place.weight_s,
                    "grown_bytes": place.grown,
                    "spans": [[*span, weight] for span, weight in place.spans.items()],
                    "types": place.types,
                }
                for (file, function, line), place in list(self.places.items())
            ],
            "awaits": [[*place, weight] for place, weight in list(self.awaits.items())],
            "stacks": [
                {"thread": thread, "is_main": is_main, "frames": frames, "weight_s": weight}
                for (thread, is_main, frames), weight in list(self.stacks.items())
            ],
        }
        path = os.path.join(self.folder, f"observed-{os.getpid()}")
        try:
            with open(f"{path}.part", "w", encoding="utf-8") as file:
                file.write(json.dumps(document, allow_nan=False))
            os.rename(f"{path}.part", f"{path}.json")
        except (OSError, ValueError) as error:
            with suppress(OSError, ValueError, AttributeError):
                print(f"llm-perf: what was observed could not be written ({error})", file=sys.stderr)

    def read_flags(self) -> None:
        """What torch was reported for the whole process; once set it counts, whatever happens at exit."""
        torch = sys.modules.get("torch")
        if torch is None or "torch.autograd" not in sys.modules:
            return
        # Half-imported, torch has no answer yet.
        with suppress(AttributeError):
            self.flags["anomaly_mode"] = self.flags.get("anomaly_mode", False) or torch.is_anomaly_enabled()
            self.flags["deterministic"] = torch.are_deterministic_algorithms_enabled()
            self.flags["default_float64"] = torch.get_default_dtype() is torch.float64
            self.flags["gpu"] = torch.cuda.is_initialized()
        utils = sys.modules.get("torch._dynamo.utils")
        if utils is not None and not self.raised_limit:
            with suppress(AttributeError):
                utils.set_compilation_metrics_limit(5000)
                self.raised_limit = True


def age_of_process() -> float:
    """Seconds since the process was started: what the interpreter took to come here."""
    try:
        with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
            start = int(file.read().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0


def awaiting(coroutine: Any) -> tuple[str, str, int] | None:
    """The innermost line of the program's own in a chain of coroutines."""
    found = None
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None)
        if frame is not None and not is_library(frame.f_code.co_filename):
            found = (frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno or 0)
        coroutine = getattr(coroutine, "cr_await", None)
    return found


def named(frame: FrameType | None) -> FrameType | None:
    """The function around a comprehension or lambda, which have no name a reader knows."""
    while frame is not None and frame.f_code.co_name in NAMELESS and frame.f_back is not None:
        frame = frame.f_back
    return frame


def is_library(file: str) -> bool:
    return file.startswith("<") or "/site-packages/" in file or "/dist-packages/" in file or file.startswith(LIBRARY)


def span_of(code: CodeType, instruction: int, line: int) -> tuple[int, int] | None:
    """The columns of the expression that an instruction belongs to, from Python 3.11 on and on one line alone."""
    positions = getattr(code, "co_positions", None)
    if positions is None or instruction < 0:
        return None
    first, last, column, end = next(islice(positions(), instruction // 2, None), (None, None, None, None))
    return (column, end) if first == last == line and column is not None and end is not None else None


def values_of(frame: FrameType) -> dict[str, str]:
    """The types of the names a frame uses, its own and global ones, and of the attributes of `self`."""
    local = frame.f_locals
    used = [name for name in frame.f_code.co_names if name in frame.f_globals]
    own = list(local)[:NAMES_OF_A_PLACE] if frame.f_code.co_name != "<module>" else []
    values = {name: frame.f_globals[name] for name in used[:NAMES_OF_A_PLACE]} | {name: local[name] for name in own}
    instance = values.get("self")
    held = getattr(instance, "__dict__", None) if instance is not None else None
    if type(held) is dict:
        values |= {f"self.{name}": value for name, value in list(held.items())[:NAMES_OF_A_PLACE] if type(name) is str}
    skipped = {"module", "function", "type", "builtin_function_or_method", "method"}
    return {name: describe(value) for name, value in values.items() if type(value).__name__ not in skipped}


def compilations() -> list[dict[str, str | int | float | None]]:
    """Compilations of torch.compile, with the guard that failed where it was not the first of its function."""
    utils = sys.modules.get("torch._dynamo.utils")
    found = getattr(utils, "get_compilation_metrics", None)
    if found is None:
        return []
    return [
        {
            "id": str(record.compile_id),
            "function": record.co_name or "",
            "file": record.co_filename or "",
            "line": record.co_firstlineno or 0,
            "reason": getattr(record, "recompile_reason", None),
            "failed": record.fail_reason,
            "seconds": (getattr(record, "duration_us", None) or 0) / 1e6,
        }
        for record in list(found())
    ]


def threads(most: int) -> dict[str, int | float | None]:
    """Threads of Python and of torch, processors the process may use, and how long threads waited for one."""
    torch = sys.modules.get("torch")
    asked = getattr(torch, "get_num_threads", None)
    ran_ns = waited_ns = tasks = 0
    with suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            with suppress(OSError, ValueError, IndexError):
                with open(f"/proc/self/task/{task}/schedstat", encoding="ascii") as file:
                    fields = file.read().split()
                ran_ns, waited_ns, tasks = ran_ns + int(fields[0]), waited_ns + int(fields[1]), tasks + 1
    return {
        "python": most,
        "all": tasks,
        "torch": asked() if asked is not None else None,
        "processors": len(os.sched_getaffinity(0)),
        "ran_s": ran_ns / 1e9,
        "waited_s": waited_ns / 1e9,
    }


def resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE
    except (OSError, IndexError, ValueError):
        return 0


LIBRARY = tuple({os.path.dirname(os.__file__) + os.sep, os.path.dirname(os.path.abspath(__file__)) + os.sep})


def start(text: str) -> None:
    """From RATE:STACKS:FOLDER."""
    rate, stacks, folder = text.split(":", 2)
    Observer(folder, rate_hz=float(rate), stacks=stacks == "1").start()

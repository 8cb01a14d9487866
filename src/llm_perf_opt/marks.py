"""Names what a program is doing: `phase`, `mark_warmup` and `request`, as context managers or decorators.

    import llm_perf_opt as perf

    with perf.phase("prefill", tokens=1024):
        ...
    for _ in range(steps):
        with perf.phase("decode_step", tokens=batch):
            ...

Who listens decides what a mark does. Under nsys or ncu it is an NVTX range, under torch.profiler a `record_function`,
and in a clean pass of llm-perf (`LLM_PERF_MARKS_DIR` is set) a line of a JSONL file with wall times. There the device
is waited for at both ends of an outermost phase, and only there: `synchronised` in the line says so. A request or a
warm-up around phases does not count as one. When no profiler listens a mark costs a few hundred nanoseconds.

Needs nothing but the standard library; torch is used when the program itself has imported it.
"""

import atexit
import functools
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

MARKS_DIR = "LLM_PERF_MARKS_DIR"
# After this many outermost phases that are not warm-up the program is ended, as if it had finished.
STOP_AFTER = "LLM_PERF_STOP_AFTER_PHASES"
# A file alongside the lines: the program was ended that way, and its wall time is none.
STOPPED = "stopped"
# nsys and ncu set it for the programs they watch.
NVTX_INJECTION = "NVTX_INJECTION64_PATH"
FLUSH_EVERY_NS = 1_000_000_000
WARMUP = "warmup"
REQUEST = "request"
TOKENS = "tokens"

P = ParamSpec("P")
R = TypeVar("R")


class phase:
    """One stretch of work with a name; `facts` such as `tokens` go into the clean pass's file."""

    # Slots and nothing else: the cost of an unused mark is mostly its construction.
    __slots__ = ("_facts", "_name", "_opened")
    _kind = "phase"

    def __init__(self, name: str, /, **facts: Any) -> None:
        self._name = name
        self._facts = facts
        self._opened: list[_Opened] | None = None

    def __enter__(self) -> None:
        # Half-imported, torch has no answer yet: that is checked where it costs nothing.
        if _somebody_listens or (_is_recording() if _is_recording is not None else "torch.autograd" in _modules):
            self._open()

    def _open(self) -> None:
        around = _around.get()
        _around.set((*around, self._kind))
        is_outermost = self._kind == "phase" and "phase" not in around
        is_warmup = WARMUP in around or self._kind == WARMUP
        closers: list[Callable[[], object]] = []
        if _follower is not None and is_outermost:
            # First, because it may start a profiler that is to see this very phase.
            closers.append(_follower.open(is_warmup))
        profiler = _torch_profiler() if "torch.autograd" in _modules else None
        if _nvtx is not None:
            closers.append(_nvtx.open(self._name))
        if profiler is not None:
            closers.append(_record_function(profiler, self._name))
        if _journal is not None:
            place = {"depth": len(around), "warmup": is_warmup}
            closers.append(_journal.open(self._kind, self._name, place, self._facts, is_outermost))
        if self._opened is None:
            self._opened = []
        self._opened.append(_Opened(threading.get_ident(), around, closers))

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._opened:
            self._close(self._opened)

    def _close(self, opened: "list[_Opened]") -> None:
        """The last one this thread opened: one mark may be used by several threads, and inside itself."""
        here = threading.get_ident()
        mine = [number for number, one in enumerate(opened) if one.thread == here]
        if not mine:
            return
        last = opened.pop(mine[-1])
        _around.set(last.around)
        for close in reversed(last.closers):
            close()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: every call is one stretch of its own, to the end of a coroutine or generator too."""
        return _decorated(type(self), self._name, self._facts, function)


class _Warmup(phase):
    __slots__ = ()
    _kind = WARMUP


class _Request(phase):
    __slots__ = ()
    _kind = REQUEST


class _Opened(NamedTuple):
    """A mark that is open: in which thread, what is around it, and what is to be done at its end."""

    thread: int
    around: tuple[str, ...]
    closers: list[Callable[[], object]]


def mark_warmup() -> phase:
    """What happens inside is warm-up: it is in no latency."""
    return _Warmup(WARMUP)


def request(request_id: str | int) -> phase:
    """What happens inside belongs to one request; its phases are measured as if it were not there."""
    return _Request(f"{REQUEST} {request_id}", id=request_id)


def _decorated(mark: type[phase], name: str, facts: dict[str, Any], function: Callable[P, R]) -> Callable[P, R]:
    import inspect

    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with mark(name, **facts):
            return await cast(Any, function)(*args, **kwargs)

    async def async_generator(*args: Any, **kwargs: Any) -> Any:
        with mark(name, **facts):
            async for item in cast(Any, function)(*args, **kwargs):
                yield item

    def generator(*args: Any, **kwargs: Any) -> Any:
        with mark(name, **facts):
            return (yield from cast(Any, function)(*args, **kwargs))

    def plain(*args: Any, **kwargs: Any) -> Any:
        with mark(name, **facts):
            return function(*args, **kwargs)

    wrapped: Any = plain
    if inspect.iscoroutinefunction(function):
        wrapped = coroutine
    elif inspect.isasyncgenfunction(function):
        wrapped = async_generator
    elif inspect.isgeneratorfunction(function):
        wrapped = generator
    return cast("Callable[P, R]", functools.update_wrapper(wrapped, function))


class _Nvtx:
    """NVTX ranges through torch where the program has it, else through the package nvtx."""

    def __init__(self) -> None:
        self._push: Callable[[str], object] | None = None
        self._pop: Callable[[], object] = _nothing

    def open(self, name: str) -> Callable[[], object]:
        if self._push is None:
            self._push, self._pop = _nvtx_calls()
        self._push(name)
        return self._pop


def _nvtx_calls() -> tuple[Callable[[str], object], Callable[[], object]]:
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda is not None:
        return torch.cuda.nvtx.range_push, torch.cuda.nvtx.range_pop
    try:
        import nvtx
    except ImportError:
        return _push_nothing, _nothing
    return nvtx.push_range, nvtx.pop_range


def _push_nothing(name: str) -> None:
    """Stand-in where nothing can emit NVTX."""


def _nothing() -> None:
    """Stand-in where there is nothing to close."""


def _torch_profiler() -> Any | None:
    """torch's profiler module while it records, else None. Asked only where torch is there, which may be half-way."""
    global _is_recording
    if _is_recording is None:
        _is_recording = _modules["torch.autograd"].__dict__.get("_profiler_enabled")
    if _is_recording is not None and _is_recording():
        return _modules["torch.autograd.profiler"]
    # Of a profiler that records all threads torch says so in this place alone.
    profiler = _modules.get("torch.autograd.profiler")
    return profiler if profiler is not None and profiler.__dict__.get("_is_profiler_enabled") else None


def _record_function(profiler: Any, name: str) -> Callable[[], object]:
    opened = profiler.record_function(name)
    opened.__enter__()
    return functools.partial(opened.__exit__, None, None, None)


class _Journal:
    """The clean pass's file, one for each process: lines are kept in memory and written about once a second."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: list[str] = []
        self._flushed_ns = time.perf_counter_ns()
        self._lock = threading.Lock()

    def open(
        self, kind: str, name: str, place: dict[str, Any], facts: dict[str, Any], is_outermost: bool
    ) -> Callable[[], object]:
        synchronised = is_outermost and _synchronise()
        start_ns = time.perf_counter_ns()

        def close() -> None:
            if synchronised:
                _synchronise()
            end_ns = time.perf_counter_ns()
            line = {
                **_plain_facts(facts),
                "kind": kind,
                "name": str(name),
                "ms": (end_ns - start_ns) / 1e6,
                "start_ns": start_ns,
                **place,
                "synchronised": synchronised,
                "pid": os.getpid(),
                "thread": threading.get_ident(),
            }
            self._add(json.dumps(line, allow_nan=False), end_ns)

        return close

    def _add(self, line: str, now_ns: int) -> None:
        with self._lock:
            self._lines.append(line)
            is_due = now_ns - self._flushed_ns > FLUSH_EVERY_NS
        if is_due:
            self.flush()

    def flush(self) -> None:
        """Write the marks so far; a file that cannot be written must not end the program."""
        with self._lock:
            lines, self._lines = self._lines, []
            self._flushed_ns = time.perf_counter_ns()
        if not lines:
            return
        try:
            with (self._folder / f"marks-{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
        except OSError as error:
            print(f"llm_perf_opt.marks: {self._folder}: cannot be written ({error.strerror})", file=sys.stderr)

    def forget(self) -> None:
        """In a forked child: what the parent has not written yet is the parent's."""
        self._lines = []
        self._lock = threading.Lock()
        processes = sys.modules.get("multiprocessing.util")
        if processes is not None:
            # Children of multiprocessing leave without atexit, and have their own end.
            processes.register_after_fork(self, lambda journal: processes.Finalize(None, journal.flush, exitpriority=0))


def _plain_facts(facts: dict[str, Any]) -> dict[str, int | str]:
    """Facts as JSON can say them; a count may be a tensor, and what is not a count is left out with a word."""
    plain: dict[str, int | str] = {
        key: value if isinstance(value, int) else str(value) for key, value in facts.items() if key != TOKENS
    }
    if facts.get(TOKENS) is not None:
        try:
            plain[TOKENS] = int(facts[TOKENS])
        except (TypeError, ValueError, OverflowError, RuntimeError):
            print(f"llm_perf_opt.marks: tokens={facts[TOKENS]!r} is not a count, left out", file=sys.stderr)
    return plain


class _Follower:
    """Notify a listener of every outermost phase, and whether it is warm-up."""

    def __init__(
        self, begins: Callable[[bool], object], ended: Callable[[bool], object], before: "_Follower | None" = None
    ) -> None:
        self._begins = begins
        self._ended = ended
        self._before = before

    def open(self, is_warmup: bool) -> Callable[[], object]:
        """Call followers in reverse order: a limit ends the program, and followers after it would miss the phase."""
        self._begins(is_warmup)
        if self._before is None:
            return functools.partial(self._ended, is_warmup)
        before = self._before.open(is_warmup)

        def ended() -> None:
            self._ended(is_warmup)
            before()

        return ended


def follow(begins: Callable[[bool], object], ended: Callable[[bool], object]) -> None:
    """Have these called at both ends of every outermost phase."""
    global _follower, _somebody_listens
    _follower, _somebody_listens = _Follower(begins, ended, _follower), True


class _Limit:
    """Ends the program after its last phase: by leaving the main thread, or by an interrupt from another one."""

    def __init__(self, phases: int, folder: str | None) -> None:
        self._left = phases
        self._folder = folder

    def __call__(self, is_warmup: bool) -> None:
        if is_warmup:
            return
        self._left -= 1
        if self._left > 0:
            return
        if self._folder is not None:
            (Path(self._folder) / STOPPED).touch()
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        os.kill(os.getpid(), signal.SIGINT)


def _nobody_asks(is_warmup: bool) -> None:
    """Stand-in for a listener that is notified when a phase begins."""


def _synchronise() -> bool:
    """Wait for the GPU the program uses through torch; False where there is none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():
        return False
    torch.cuda.synchronize()
    return True


def listen(environ: Any = os.environ) -> None:
    """Look again at who listens; called once when the module is imported."""
    global _nvtx, _journal, _somebody_listens
    _nvtx = _Nvtx() if environ.get(NVTX_INJECTION) else None
    folder = environ.get(MARKS_DIR)
    _journal = _Journal(Path(folder)) if folder else None
    _somebody_listens = _nvtx is not None or _journal is not None
    if _journal is not None:
        atexit.register(_journal.flush)
        os.register_at_fork(after_in_child=_journal.forget)
    if environ.get(STOP_AFTER):
        follow(_nobody_asks, _Limit(int(environ[STOP_AFTER]), folder))


_modules = sys.modules
# The kinds of the marks around the place where we are, in this thread and, of coroutines, in this task.
_around: ContextVar[tuple[str, ...]] = ContextVar("llm_perf_marks", default=())
_is_recording: Callable[[], bool] | None = None
_somebody_listens = False
_nvtx: _Nvtx | None = None
_journal: _Journal | None = None
_follower: _Follower | None = None
listen()

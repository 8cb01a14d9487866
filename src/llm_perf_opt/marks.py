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
warm-up around phases does not count as one. When nobody listens a mark costs a few hundred nanoseconds.

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
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

MARKS_DIR = "LLM_PERF_MARKS_DIR"
# After so many outermost phases that are not warm-up the program is ended, as if it had come to its end.
STOP_AFTER = "LLM_PERF_STOP_AFTER_PHASES"
# nsys and ncu set it for the programs they watch.
NVTX_INJECTION = "NVTX_INJECTION64_PATH"
FLUSH_EVERY_NS = 1_000_000_000
WARMUP = "warmup"
REQUEST = "request"

P = ParamSpec("P")
R = TypeVar("R")


class phase:
    """One stretch of work with a name; `facts` such as `tokens` go into the clean pass's file."""

    _kind = "phase"
    _closers: Sequence[Callable[[], object]] = ()

    def __init__(self, name: str, /, **facts: Any) -> None:
        self._name = name
        self._facts = facts

    def __enter__(self) -> None:
        if _somebody_listens or ("torch.autograd" in _modules and _torch_profiler() is not None):
            self._open()

    def _open(self) -> None:
        closers: list[Callable[[], object]] = []
        if _follower is not None:
            # First, because it may start a profiler that is to see this very phase.
            closers.append(_follower.open(self._kind))
        profiler = _torch_profiler() if "torch.autograd" in _modules else None
        if _nvtx is not None:
            closers.append(_nvtx.open(self._name))
        if profiler is not None:
            closers.append(_record_function(profiler, self._name))
        if _journal is not None:
            closers.append(_journal.open(self._kind, self._name, self._facts))
        self._closers = closers

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._closers:
            for close in reversed(self._closers):
                close()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """As a decorator: every call is one stretch of its own."""

        @functools.wraps(function)
        def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
            with self._again():
                return function(*args, **kwargs)

        return wrapped

    def _again(self) -> "phase":
        other = phase(self._name, **self._facts)
        other._kind = self._kind
        return other


def mark_warmup() -> phase:
    """What happens inside is warm-up: it is in no latency."""
    mark = phase(WARMUP)
    mark._kind = WARMUP
    return mark


def request(request_id: str | int) -> phase:
    """What happens inside belongs to one request; its phases are measured as if it were not there."""
    mark = phase(f"{REQUEST} {request_id}", id=request_id)
    mark._kind = REQUEST
    return mark


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
    """Stands in where nothing can emit NVTX."""


def _nothing() -> None:
    """Stands in where there is nothing to close."""


def _torch_profiler() -> Any | None:
    """torch's profiler module while it records, else None. Asked only where torch is there, which may be half-way."""
    global _is_recording
    if _is_recording is None:
        _is_recording = _modules["torch.autograd"].__dict__.get("_profiler_enabled")
    return _modules["torch.autograd.profiler"] if _is_recording is not None and _is_recording() else None


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
        self._local = threading.local()
        self._lock = threading.Lock()

    def open(self, kind: str, name: str, facts: dict[str, Any]) -> Callable[[], object]:
        stack: list[str] = self._local.__dict__.setdefault("stack", [])
        outermost = kind == "phase" and "phase" not in stack
        stack.append(kind)
        is_warmup = WARMUP in stack
        synchronised = outermost and _synchronise()
        start_ns = time.perf_counter_ns()

        def close() -> None:
            if synchronised:
                _synchronise()
            end_ns = time.perf_counter_ns()
            stack.pop()
            line = {
                "kind": kind,
                "name": name,
                "ms": (end_ns - start_ns) / 1e6,
                "start_ns": start_ns,
                "depth": len(stack),
                "warmup": is_warmup,
                "synchronised": synchronised,
                "pid": os.getpid(),
                "thread": threading.get_ident(),
                **facts,
            }
            self._add(json.dumps(line, default=str), end_ns)

        return close

    def _add(self, line: str, now_ns: int) -> None:
        with self._lock:
            self._lines.append(line)
            is_due = now_ns - self._flushed_ns > FLUSH_EVERY_NS
        if is_due:
            self.flush()

    def flush(self) -> None:
        """Write what there is; a file that cannot be written must not end the program."""
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


class _Follower:
    """Tells somebody of every outermost phase, and whether it is warm-up."""

    def __init__(self, begins: Callable[[bool], object], ended: Callable[[bool], object]) -> None:
        self._begins = begins
        self._ended = ended
        self._stack: list[str] = []

    def open(self, kind: str) -> Callable[[], object]:
        is_outermost = kind == "phase" and "phase" not in self._stack
        is_warmup = WARMUP in self._stack
        if is_outermost:
            self._begins(is_warmup)
        self._stack.append(kind)

        def close() -> None:
            self._stack.pop()
            if is_outermost:
                self._ended(is_warmup)

        return close


def follow(begins: Callable[[bool], object], ended: Callable[[bool], object]) -> None:
    """Have these called at both ends of every outermost phase."""
    global _follower, _somebody_listens
    _follower, _somebody_listens = _Follower(begins, ended), True


class _Limit:
    """Ends the program after its last phase: by leaving the main thread, or by an interrupt from another one."""

    def __init__(self, phases: int) -> None:
        self._left = phases

    def __call__(self, is_warmup: bool) -> None:
        if is_warmup:
            return
        self._left -= 1
        if self._left > 0:
            return
        if threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        os.kill(os.getpid(), signal.SIGINT)


def _nobody_asks(is_warmup: bool) -> None:
    """Stands in for somebody who wants to know when a phase begins."""


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
        follow(_nobody_asks, _Limit(int(environ[STOP_AFTER])))


_modules = sys.modules
_is_recording: Callable[[], bool] | None = None
_somebody_listens = False
_nvtx: _Nvtx | None = None
_journal: _Journal | None = None
_follower: _Follower | None = None
listen()

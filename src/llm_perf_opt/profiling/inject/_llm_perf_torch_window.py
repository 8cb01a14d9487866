"""Starts torch.profiler inside a program that does not know of it, where LLM_PERF_TORCH_WINDOW says so.

It waits until the program has imported torch, opens a window as the variable says, and writes the trace when the window
closes or the program ends. Started by `sitecustomize`.
"""

import atexit
import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ONE_THREAD = "this version of torch"
OF_ITS_OWN = "the program uses torch.profiler itself, and there can be one at a time"


def tell(text: str) -> None:
    """A line of the log, where the program still has one."""
    with suppress(OSError, ValueError, AttributeError):
        print(f"llm-perf: {text}", file=sys.stderr, flush=True)


def profiler_is_on() -> bool:
    """Whether any profiler of torch records."""
    import torch

    return bool(torch.autograd.profiler._is_profiler_enabled)


def every_thread() -> Any | None:
    """What has the profiler record all threads, of which torch by itself records one; None where it does not.

    Alongside CUDA it does not: kernels of all threads are recorded there, and that their operators are still found in
    this mode has not been seen.
    """
    import torch

    if torch.cuda.is_available():
        return None
    try:
        # It records no memory of operators then.
        return torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    except (AttributeError, TypeError):
        return None


class RecordedStretch:
    """The stretch that is recorded: from `start_after_s` for `seconds`, or `steps` phases from the first one on.

    Phases may begin and end in any thread, also concurrently; the program continues as if it were not profiled.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.folder = Path(settings["folder"])
        self.profiler: Any = None
        self.closed = False
        self.phases_seen = 0
        self.due: Callable[[], None] | None = None
        # One that may be taken twice: the alarm rings in a thread that may hold it.
        self.lock = threading.RLock()

    def torch_is_there(self) -> None:
        """Called once, when the program's own `import torch` is complete."""
        if threading.current_thread() is not threading.main_thread():
            self.refuse("torch was imported outside the main thread")
            return
        self.write("imported", "")
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self.forked)
        if signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            # Now: later it may be another thread that asks to be called, and only this one may install it.
            signal.signal(signal.SIGALRM, self.alarm)
        if self.follow_marks():
            return
        delay = self.settings["start_after_s"]
        if delay > 0:
            self.at(delay, self.open)
        else:
            self.open()

    def forked(self) -> None:
        """In a child: a thread of the parent may have held the lock, and is not there to give it back."""
        self.lock = threading.RLock()

    def follow_marks(self) -> bool:
        """With `steps` the program's own phases open and close the window."""
        if self.settings["steps"] is None:
            return False
        # By its name on the path of the program alone.
        phases: Any = importlib.import_module("_llm_perf_generated")
        try:
            marks = phases.load_marks(os.environ.get("LLM_PERF_GENERATED", ""))
        except (ImportError, OSError):
            self.write("note", "steps were requested, but the program's Python has no llm_perf_opt to mark them with")
            return False
        marks.follow(self.phase_begins, self.phase_ended)
        return True

    def phase_begins(self, is_warmup: bool) -> None:
        if not is_warmup:
            self.open()

    def phase_ended(self, is_warmup: bool) -> None:
        if self.profiler is None or is_warmup:
            return
        with self.lock:
            self.phases_seen += 1
            is_last = self.phases_seen >= self.settings["steps"]
        if is_last:
            self.close()

    def open(self) -> None:
        with self.lock:
            if self.profiler is None and not self.closed:
                self.start_profiler()

    def start_profiler(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        known = {"cpu": ProfilerActivity.CPU, "cuda": ProfilerActivity.CUDA}
        wanted = [known[name] for name in self.settings["activities"]]
        if not torch.cuda.is_available():
            wanted = [ProfilerActivity.CPU]
        if profiler_is_on():
            self.closed = True
            self.refuse(OF_ITS_OWN)
            return
        every = every_thread()
        if every is None and threading.current_thread() is not threading.main_thread():
            # A profiler of one thread that another one closes ends the program by a signal.
            self.closed = True
            self.refuse(
                "the program marks its phases outside the main thread, the one that torch.profiler records here"
            )
            return
        if every is None and not torch.cuda.is_available():
            self.write("note", f"{ONE_THREAD} records one thread alone: what others do is not in the trace")
        profiler = profile(
            activities=wanted,
            record_shapes=self.settings["record_shapes"],
            profile_memory=self.settings["profile_memory"],
            with_stack=self.settings["with_stack"],
            experimental_config=every,
        )
        profiler.__enter__()
        self.profiler = profiler
        if self.settings["seconds"] is not None:
            self.at(self.settings["seconds"], self.close)

    def close(self) -> None:
        with self.lock:
            if self.profiler is not None and not self.closed:
                self.closed = True
                self.stop_timer()
                self.stop_profiler()

    def stop_profiler(self) -> None:
        import torch

        if not profiler_is_on():
            # To end what another profiler has ended is a crash.
            self.refuse(OF_ITS_OWN)
            return
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.profiler.__exit__(None, None, None)
        scratch = self.folder / f"trace-{os.getpid()}.part"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.profiler.export_chrome_trace(str(scratch))
            # A trace is there as a whole or not at all.
            scratch.rename(scratch.with_suffix(".json"))
        except (OSError, RuntimeError) as error:
            # torch says by a RuntimeError what it could not write.
            tell(f"the trace of torch.profiler could not be written: {error}")
            return
        tell("the window of torch.profiler is closed and its trace written")

    def at(self, seconds: float, work: Callable[[], None]) -> None:
        """Run something in the main thread later."""
        if signal.getsignal(signal.SIGALRM) != self.alarm:
            self.write("note", "the program uses SIGALRM itself, so the window could not be timed")
            return
        self.due = work
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def stop_timer(self) -> None:
        if self.due is not None and signal.getsignal(signal.SIGALRM) == self.alarm:
            self.due = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def alarm(self, number: int, frame: object) -> None:
        work, self.due = self.due, None
        if work is not None:
            work()
        if self.due is None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if work is None:
            # Not ours: what the program would have got without us.
            os.kill(os.getpid(), signal.SIGALRM)

    def refuse(self, why: str) -> None:
        self.write("refused", why)

    def write(self, kind: str, text: str) -> None:
        """A word for who started the profiler; what cannot be written must not reach the program."""
        try:
            # The command may be repeated by hand, long after its folder is gone.
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / f"{kind}-{os.getpid()}.txt").open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")
        except OSError as error:
            tell(f"{self.folder}: cannot be written ({error.strerror})")


class TorchWatcher:
    """An import finder that lets torch be imported as always and reports the end."""

    def __init__(self, done: Callable[[], None]) -> None:
        self.done = done
        self.inside = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch" or self.inside:
            return None
        self.inside = True
        try:
            spec = importlib.util.find_spec("torch")
        finally:
            self.inside = False
        if spec is None or spec.loader is None:
            return None
        loader: Any = spec.loader
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            run(module)
            sys.meta_path.remove(self)
            self.done()

        loader.exec_module = exec_module
        return spec


def start(text: str) -> None:
    """Wait for torch; the settings are JSON."""
    sys.meta_path.insert(0, TorchWatcher(RecordedStretch(json.loads(text)).torch_is_there))

"""Runs other programs: the only user of subprocess.

Every command gets stdin from /dev/null, its output in a log file, a `cmd.txt` to repeat it by hand, an allow-listed
environment and a timeout after which its whole tree is ended, including descendants that moved to a session of their
own (the agent of nsys does). None of it outlives us, however we end. What is written about a command, and the log it
leaves, holds no secrets, and of a very long log only its two ends stay; the command itself gets the real values.
"""

import ctypes
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import psutil

from llm_perf_opt.core.records import Progress, read_progress
from llm_perf_opt.errors import ToolError
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.secrets.secret_shapes import REDACTED, SECRET_NAME

MARKER = "LLM_PERF_COMMAND_ID"
POLL_S = 0.2
WORKER_POLL_S = 0.002
GRACE_S = 2.0
SETTLE_S = 1.0
# How the processes of nsys are called.
AGENTS = "nsys"
TAIL_BYTES = 8192
QUICK_BYTES = 256 << 20
LOG_SUFFIXES = (".txt", ".log")
SUPERVISOR = Path(__file__).with_name("supervise.py")
# The commands that run now, by process id: what one of them started is not another one's to end.
_RUNNING: set[int] = set()
# It needs a notification of our end, which only this kernel gives.
_HAS_SUPERVISOR = sys.platform.startswith("linux")

_ALLOWED = frozenset((
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TMPDIR", "TZ", "TERM", "COLUMNS", "HOSTNAME",
    "VIRTUAL_ENV", "CONDA_PREFIX", "LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE",
    "HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_DATASETS_CACHE", "HF_DATASETS_OFFLINE", "HF_MODULES_CACHE",
))  # fmt: skip
_ALLOWED_PREFIXES = (
    "LC_", "PYTHON", "CUDA", "NVIDIA_", "NSYS_", "NV_", "NCCL_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "ATEN_",
    "TORCH", "PYTORCH", "TRITON_", "TRANSFORMERS_", "SLURM_", "XDG_", "LLM_PERF_",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """How a command ended. `exit_code` is None when it was ended by us: after `timeout_s`, or when it was over."""

    argv: tuple[str, ...]
    exit_code: int | None
    duration_s: float
    timed_out: bool
    log: Path | None
    tail: str
    leftovers: int

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


# Words at the start of a command line that say how a program is started, not what it is.
_STARTERS = re.compile(r"python(\d+(\.\d+)*)?|torchrun|accelerate|uv|env|bash|sh")


def program_title(command: Sequence[str]) -> str:
    """What a reader calls the program: its script or module, else its first word."""
    words = list(command)
    while len(words) > 1 and (_STARTERS.fullmatch(Path(words[0]).name) or words[0].startswith("-") or "=" in words[0]):
        is_module = words[0] == "-m"
        words = words[1:]
        if is_module:
            break
    return Path(words[0]).name or words[0]


def allowed_environment(environ: Mapping[str, str], extra_names: Sequence[str] = ()) -> dict[str, str]:
    """The part of an environment that may reach a child or an artefact; no secret passes by its prefix."""
    extra = frozenset(extra_names)

    def passes(name: str) -> bool:
        if name in extra or name in _ALLOWED:
            return True
        return name.startswith(_ALLOWED_PREFIXES) and not SECRET_NAME.search(name)

    return {name: value for name, value in environ.items() if passes(name)}


def run_command(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    log: Path,
    cmd_file: Path | None = None,
    cwd: Path | None = None,
    on_tick: Callable[[float, Progress | None], None] | None = None,
    reads: Callable[[str], Progress | None] = read_progress,
    redactor: Redactor | None = None,
    remove: Sequence[Path] = (),
    is_over: Callable[[float], bool] | None = None,
    grace_s: float = GRACE_S,
) -> CommandResult:
    """Run argv to its end or to the timeout. `on_tick` gets the elapsed seconds and the last progress reported.

    `reads` finds progress in a line of the log. The folders in `remove` go when we are killed while it runs. With a
    redactor the log and the command file hold no secrets, but an answer that is data (`.csv`) stays as it is.
    `is_over` is called with the elapsed seconds, and ends the command before its timeout. A command whose time is up
    has `grace_s` to write down what it has.
    """
    argv = tuple(str(a) for a in argv)
    log.parent.mkdir(parents=True, exist_ok=True)
    if cmd_file is not None:
        write_cmd_file(cmd_file, argv, cwd=cwd, env=env, redactor=redactor)
    _become_subreaper()
    marker = uuid.uuid4().hex
    ours = {child.pid for child in psutil.Process().children(recursive=True)}
    start = time.monotonic()
    redactor = redactor if log.suffix in LOG_SUFFIXES else None
    process = _start(argv, env={**env, MARKER: marker}, cwd=cwd, log=log, remove=remove, redactor=redactor)
    has_ended: bool | None = None
    try:
        has_ended = _wait(process, start, timeout_s, log, on_tick, reads, is_over)
    finally:
        # Looking for what it left behind is our time, not the command's.
        duration_s = time.monotonic() - start
        # Also after an interrupt: nothing the command started outlives it.
        exit_code = process.poll()
        # Who interrupts us is not kept waiting.
        patience_s = GRACE_S if has_ended is None else grace_s
        leftovers = _end_tree(process, marker, ours, gently=exit_code is None, grace_s=patience_s)
        if redactor is not None:
            redactor.log(log)
    return CommandResult(
        argv=argv,
        exit_code=exit_code if has_ended else None,
        duration_s=duration_s,
        timed_out=not has_ended and duration_s >= timeout_s,
        log=log,
        tail=read_tail(log),
        leftovers=leftovers,
    )


def run_quick(argv: Sequence[str], *, env: Mapping[str, str], timeout_s: float = 20.0) -> tuple[int | None, str]:
    """Ask a tool a short question. Returns its exit code (None: absent, or ended by us) and what it printed."""
    with tempfile.TemporaryDirectory(prefix="llm-perf-") as scratch:
        log = Path(scratch) / "answer.txt"
        try:
            result = run_command(argv, env=env, timeout_s=timeout_s, log=log)
        except ToolError as error:
            return None, str(error)
        if log.stat().st_size > QUICK_BYTES:
            return None, f"{argv[0]} printed more than {QUICK_BYTES >> 20} MiB"
        text = log.read_text(encoding="utf-8", errors="replace")
    if result.timed_out:
        return None, f"no answer within {timeout_s:g} s" + (f": {text}" if text else "")
    return result.exit_code, text


class Worker:
    """Our own program that works while we continue: bytes in, results in a file. It does not outlive us."""

    def __init__(
        self, argv: Sequence[str], *, env: Mapping[str, str], output: BinaryIO, inherited: Sequence[int]
    ) -> None:
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.DEVNULL,
            env=dict(env),
            pass_fds=tuple(inherited),
            bufsize=0,
        )
        assert self._process.stdin is not None
        self._input = self._process.stdin

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._input.close()
        self._process.kill()
        self._process.wait()

    def send(self, data: bytes) -> None:
        self._input.write(data)

    def finish(self, timeout_s: float) -> bool:
        """Send nothing more and wait for the end; False if it is late or a failure."""
        self._input.close()
        end = time.monotonic() + timeout_s
        while self._process.poll() is None and time.monotonic() < end:
            time.sleep(WORKER_POLL_S)
        return self._process.poll() == 0


class Service:
    """A program that runs in the background, such as a server: output in a log, its whole tree ended at the end."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        log: Path,
        cmd_file: Path,
        cwd: Path | None = None,
        redactor: Redactor | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.argv = tuple(argv)
        self.log = log
        self.ended_by_us = False
        self._redactor, self._grace_s = redactor, grace_s
        log.parent.mkdir(parents=True, exist_ok=True)
        write_cmd_file(cmd_file, self.argv, cwd=cwd, env=env, redactor=redactor)
        _become_subreaper()
        self._marker = uuid.uuid4().hex
        self._ours = {child.pid for child in psutil.Process().children(recursive=True)}
        self._started = time.monotonic()
        self._process = _start(
            self.argv, env={**env, MARKER: self._marker}, cwd=cwd, log=log, remove=(), redactor=redactor
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self._process.poll()

    @property
    def pid(self) -> int:
        """The process at the root of its tree."""
        return self._process.pid

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def interrupt(self, timeout_s: float) -> bool:
        """Interrupt what it started, as Ctrl-C would, and wait for it to end by itself; False if it has not."""
        # A supervisor leaves signals to what it started.
        _signal_all([p for p in _alive_under(self.pid) if p.pid != self.pid or not _HAS_SUPERVISOR], signal.SIGINT)
        return self.wait(timeout_s)

    def tail(self) -> str:
        """What it printed last, without secrets: the log is cleaned only when all has ended."""
        text = read_tail(self.log)
        return text if self._redactor is None else self._redactor.text(text)

    def end(self) -> int:
        """End everything it started, gently first; the count of processes that still ran."""
        is_running = self._process.poll() is None
        self.ended_by_us = self.ended_by_us or is_running
        left = _end_tree(self._process, self._marker, self._ours, gently=is_running, grace_s=self._grace_s)
        if self._redactor is not None:
            self._redactor.log(self.log)
        return left

    def wait(self, timeout_s: float) -> bool:
        """Wait for it to end by itself; False if it has not in that time."""
        return _wait(self._process, time.monotonic(), timeout_s, self.log, None, read_progress)


def write_cmd_file(
    path: Path,
    argv: Sequence[str],
    *,
    cwd: Path | None,
    env: Mapping[str, str],
    redactor: Redactor | None = None,
) -> None:
    """Write a command so that a person can run it again with `sh cmd.txt`, secrets put in again where any were."""
    path.parent.mkdir(parents=True, exist_ok=True)
    added = {k: v for k, v in sorted(env.items()) if os.environ.get(k) != v}
    if redactor is not None:
        argv, added = redactor.words(argv), redactor.tree(added)
    lines = [f"cd {shlex.quote(str(cwd))} &&"] if cwd is not None else []
    lines += [f"{name}={shlex.quote(value)}" for name, value in added.items()]
    lines.append(shlex.join(argv))
    text = " \\\n".join(lines) + "\n"
    note = f"# {REDACTED} stands for a secret that was not written down; put it in to run this again\n"
    path.write_text((note if REDACTED in text else "") + text, encoding="utf-8", errors="surrogateescape")


def read_tail(path: Path, size: int = TAIL_BYTES) -> str:
    """The last bytes of a file as text, whole lines where possible."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        end = file.tell()
        file.seek(max(0, end - size))
        data = file.read()
    if end > size and b"\n" in data:
        data = data.split(b"\n", 1)[1]
    return data.decode("utf-8", "replace")


def _start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    log: Path,
    remove: Sequence[Path],
    redactor: Redactor | None,
) -> "subprocess.Popen[bytes]":
    """Start a command in its own session, with nothing to read and its output in the log."""
    failed, write_end = os.pipe()
    # What the supervisor takes out of the log if we are killed; in memory, and not for the command.
    known = _in_memory(redactor.values) if redactor is not None and _HAS_SUPERVISOR else None
    cleaned = [] if known is None else ["--clean", str(known), str(log.absolute())]
    try:
        with log.open("wb") as sink:
            process = subprocess.Popen(
                _supervised(argv, write_end, remove, cleaned) if _HAS_SUPERVISOR else argv,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=cwd,
                start_new_session=True,
                pass_fds=(write_end,) if known is None else (write_end, known),
            )
    except OSError as error:
        os.close(failed)
        raise ToolError(f"{argv[0]}: could not be started ({error.strerror or error})") from error
    finally:
        os.close(write_end)
        if known is not None:
            os.close(known)
    # Ends when the command has been started, and says why if it could not be.
    with open(failed, "rb") as answer:
        number = answer.read() if _HAS_SUPERVISOR else b""
    if number:
        process.wait()
        raise ToolError(f"{argv[0]}: could not be started ({os.strerror(int(number))})")
    _RUNNING.add(process.pid)
    return process


def _supervised(argv: Sequence[str], write_end: int, remove: Sequence[Path], cleaned: Sequence[str]) -> list[str]:
    folders = [word for folder in remove for word in ("--remove", str(folder))]
    ours = [sys.executable, "-I", "-S", str(SUPERVISOR), str(write_end), str(os.getpid())]
    return [*ours, *cleaned, *folders, "--", *argv]


def _in_memory(values: Sequence[str]) -> int:
    """A file without a name that holds these values; its number."""
    number = os.memfd_create("llm-perf")
    with open(number, "wb", closefd=False) as file:
        file.write(json.dumps(values).encode())
    return number


def _wait(
    process: "subprocess.Popen[bytes]",
    start: float,
    timeout_s: float,
    log: Path,
    on_tick: Callable[[float, Progress | None], None] | None,
    reads: Callable[[str], Progress | None],
    is_over: Callable[[float], bool] | None = None,
) -> bool:
    """Wait for the end (True), or for the timeout or for it to be over (False)."""
    while True:
        elapsed = time.monotonic() - start
        if elapsed >= timeout_s:
            return process.poll() is not None
        if _ends_within(process, min(POLL_S, timeout_s - elapsed)):
            return True
        if on_tick is not None:
            on_tick(time.monotonic() - start, _last_progress(log, reads))
        if is_over is not None and is_over(time.monotonic() - start):
            return False


def _ends_within(process: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    """Wait for the end. Where the kernel reports it, without the up to 50 ms that `wait` sleeps past it."""
    if process.poll() is not None:
        return True
    number = _end_signal(process.pid)
    if number is not None:
        watched = select.poll()
        watched.register(number, select.POLLIN)
        watched.poll(1e3 * timeout_s)
        os.close(number)
        return process.poll() is not None
    try:
        process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_signal(pid: int) -> int | None:
    """A descriptor that can be read once a process ends; None on other systems, old kernels and in some sandboxes."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _last_progress(log: Path, reads: Callable[[str], Progress | None]) -> Progress | None:
    lines = reversed(re.split(r"[\r\n]+", read_tail(log)))
    return next((found for line in lines if (found := reads(line.strip())) is not None), None)


def _end_tree(
    process: "subprocess.Popen[bytes]", marker: str, ours: set[int], *, gently: bool, grace_s: float = GRACE_S
) -> int:
    """End everything the command started that still runs; the count of such processes. Waits until they are gone.

    A second interrupt must not cut this short, or something would stay behind; it waits these few seconds.
    """
    held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        return _end_all(process, marker, ours, gently=gently, grace_s=grace_s)
    finally:
        _RUNNING.discard(process.pid)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)


def _end_all(process: "subprocess.Popen[bytes]", marker: str, ours: set[int], *, gently: bool, grace_s: float) -> int:
    found = _descendants(process, marker, ours)
    if not found:
        return 0
    if not gently:
        # The agent of nsys ends a moment after nsys; killed in that moment it leaves memory locked that all nsys share.
        # Nothing else is waited for: if we were killed meanwhile, it would not be ended.
        agents = [left for left in found if _is_agent(left)]
        others = [left for left in found if left not in agents]
        _signal_all(others, signal.SIGKILL)
        late = psutil.wait_procs(agents, timeout=SETTLE_S)[1]
        found = [*others, *late]
        gently = bool(late)
    if gently:
        _signal_all(found, signal.SIGTERM)
        psutil.wait_procs(found, timeout=grace_s)
    # A descendant may have forked between looking and ending it, so look again until nothing is found.
    count = len(found)
    for _ in range(5):
        rest = _descendants(process, marker, ours)
        if not rest:
            break
        _signal_all(rest, signal.SIGKILL)
        psutil.wait_procs(rest, timeout=GRACE_S)
    process.poll()
    return count


def _is_agent(process: psutil.Process) -> bool:
    try:
        return process.name().startswith(AGENTS)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _signal_all(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            # Gone already, or another user's (sudo), which we may not end.
            continue


def _descendants(process: "subprocess.Popen[bytes]", marker: str, ours: set[int]) -> list[psutil.Process]:
    """Live processes the command started: our new children and orphans (we are their subreaper), and marked ones."""
    process.poll()
    of_others = {pid for other in _RUNNING - {process.pid} for pid in _tree(other)}
    found = {p.pid: p for p in psutil.Process().children(recursive=True) if p.pid not in ours | of_others}
    if not sys.platform.startswith("linux"):
        found.update({p.pid: p for p in psutil.process_iter() if _is_marked(p, marker)})
    return [p for p in found.values() if _is_alive(p)]


def _alive_under(pid: int) -> list[psutil.Process]:
    return [psutil.Process(one) for one in _tree(pid) if psutil.pid_exists(one)]


def _tree(pid: int) -> set[int]:
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.NoSuchProcess:
        return set()


def _is_marked(process: psutil.Process, marker: str) -> bool:
    try:
        return process.environ().get(MARKER) == marker
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _is_alive(process: psutil.Process) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            process.wait(timeout=0)
            return False
        return True
    except (psutil.NoSuchProcess, psutil.TimeoutExpired):
        return False


def _become_subreaper() -> None:
    """Let orphaned descendants become our children instead of init's, so that they can be found (Linux)."""
    if sys.platform.startswith("linux"):
        pr_set_child_subreaper = 36
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0)

"""A process that runs already, inspected for a while from outside: stacks, processor time, waits, GPU.

py-spy samples the stacks where it may; what /proc says of a process of the same user is there without it.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from llm_perf_opt.core.documents import ClockSample, HostDocument, HostThread
from llm_perf_opt.core.records import Progress
from llm_perf_opt.diagnosis.host.owners import busiest, host_rows
from llm_perf_opt.diagnosis.host.stacks import of_program, read_stacks, with_command_code
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.profiling.observed import LineNames
from llm_perf_opt.profiling.sampled import SourceLines
from llm_perf_opt.system.nvml import sample_gpu
from llm_perf_opt.system.process import CommandResult, allowed_environment, run_command
from llm_perf_opt.system.py_spy import find_sampler
from llm_perf_opt.system.redact import Redactor

YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
WRITE_S = 30.0
THREADS_KEPT = 8
# What a thread is in that works, or waits for nothing in the kernel.
RUNNING = ("", "0")


@dataclass(frozen=True, kw_only=True)
class ProcessTarget:
    """The process asked for: whose it is, and whether it runs Python."""

    pid: int
    command: tuple[str, ...]
    user: str
    is_mine: bool
    is_python: bool
    folder: Path


@dataclass(frozen=True, kw_only=True)
class AttachedLook:
    """What was seen of it. `samples` is None where its stacks could not be sampled, and `why` says why."""

    target: ProcessTarget
    seconds: float
    samples: HostDocument | None
    why: str
    cpu_s: float | None
    waits: Mapping[str, float]
    read_bytes: int | None
    written_bytes: int | None
    environment: Mapping[str, str]
    gpu: tuple[ClockSample, ...]
    gpu_device: str
    gpu_reason: str
    ended: bool


def find_target(pid: int) -> ProcessTarget:
    """A process by its number; an error where there is none."""
    try:
        process = psutil.Process(pid)
        command = tuple(process.cmdline()) or (process.name(),)
        user, uid = process.username(), process.uids().effective
    except psutil.NoSuchProcess as error:
        raise ConfigError(f"run: --attach: no process {pid} runs on this machine; `ps aux` lists them") from error
    is_mine = os.geteuid() in (0, uid)
    return ProcessTarget(
        pid=pid,
        command=command,
        user=user,
        is_mine=is_mine,
        is_python=_runs_python(process, command),
        folder=_folder(process),
    )


def _runs_python(process: psutil.Process, command: tuple[str, ...]) -> bool:
    """By its program, or by the library of the interpreter it has loaded."""
    try:
        if Path(process.exe()).name.startswith("python"):
            return True
        return any("libpython" in region.path for region in process.memory_maps())
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return Path(command[0]).name.startswith("python")


def _folder(process: psutil.Process) -> Path:
    try:
        return Path(process.cwd())
    except (psutil.AccessDenied, psutil.NoSuchProcess):
        return Path.cwd()


def look_at(target: ProcessTarget, *, seconds: float, rate_hz: int, out: Path, gpu: int | str | None) -> AttachedLook:
    """Sample for a while; what is not possible is left out and said."""
    redactor = Redactor()
    polled = _Polled(target.pid)
    sampler = find_sampler()
    why = _refusal(target) or ("py-spy is not installed: pip install py-spy" if sampler is None else "")
    samples: HostDocument | None = None
    with sample_gpu(gpu) as of_gpu:
        if sampler is not None and not why:
            raw = out / "stacks.txt"
            argv = [sampler[0], "record", "--format", "raw", "--threads", "--subprocesses", "--nonblocking", "--idle"]
            argv += ["--full-filenames", "--rate", str(rate_hz), "--duration", str(max(1, math.ceil(seconds)))]
            argv += ["--output", str(raw), "--pid", str(target.pid)]
            result = run_command(
                argv,
                env=allowed_environment(os.environ),
                timeout_s=seconds + WRITE_S,
                log=out / "log.txt",
                on_tick=polled.tick,
            )
            samples = _described(target, raw, sampler[1], rate_hz=rate_hz, redactor=redactor, polled=polled)
            why = "" if samples is not None else _why_nothing(result)
        end = polled.begun + seconds
        while samples is None and time.monotonic() < end and polled.poll():
            time.sleep(0.05)
    return AttachedLook(
        target=target,
        seconds=time.monotonic() - polled.begun,
        samples=samples,
        why=why,
        cpu_s=polled.cpu_s,
        waits=polled.waits,
        read_bytes=polled.bytes_of("read_bytes"),
        written_bytes=polled.bytes_of("write_bytes"),
        environment={key: redactor.text(value) for key, value in polled.environment.items()},
        gpu=tuple(of_gpu.samples),
        gpu_device=of_gpu.device,
        gpu_reason=of_gpu.reason or "",
        ended=polled.ended,
    )


def _refusal(target: ProcessTarget) -> str:
    """Why its stacks cannot be sampled, as far as that is known before trying."""
    if not target.is_mine:
        return f"it belongs to {target.user}: run the command as {target.user} or as root"
    if not target.is_python:
        return f"it is not a Python process ({Path(target.command[0]).name}), and only Python stacks are sampled"
    return ""


def _why_nothing(result: CommandResult) -> str:
    tail = result.tail
    if "ermission" in tail or "EPERM" in tail or "ptrace" in tail:
        scope = YAMA.read_text(encoding="ascii").strip() if YAMA.is_file() else None
        if scope not in (None, "0"):
            return (
                f"the kernel lets a process read its children alone (kernel.yama.ptrace_scope={scope}): run as root, "
                "set it to 0 (`sudo sysctl kernel.yama.ptrace_scope=0`), or start the program with `llm-perf run -- …`"
            )
        return "py-spy may not read its memory: in a container add --cap-add SYS_PTRACE, or run as root on the host"
    last = " ".join(line for line in tail.strip().splitlines() if line.strip())[-200:]
    return f"py-spy saw no Python at work: {last or 'it ended without output'}"


def _described(
    target: ProcessTarget, raw: Path, sampler: str, *, rate_hz: int, redactor: Redactor, polled: "_Polled"
) -> HostDocument | None:
    text = raw.read_text(encoding="utf-8", errors="replace") if raw.is_file() else ""
    process, stacks = of_program(read_stacks(text))
    if not stacks:
        return None
    stacks = with_command_code(stacks)
    lines, names = SourceLines(target.folder, redactor), LineNames(folder=target.folder)
    main = [stack for stack in stacks if stack.is_main and stack.process == process]
    others = [stack for stack in stacks if stack not in main]
    threads = sorted(busiest(others, lines, names).items(), key=lambda item: -item[1][0])
    return HostDocument(
        sampler=sampler,
        rate_hz=rate_hz,
        wall_s=max(sum(stack.samples for stack in main) / rate_hz, 1 / rate_hz),
        samples=sum(stack.samples for stack in main),
        cpu_s=polled.cpu_s,
        rows=host_rows(main, lines, names),
        threads=tuple(HostThread(name=name, samples=n, owner=owner) for name, (n, owner) in threads[:THREADS_KEPT]),
    )


class _Polled:
    """What /proc says of a process again and again: where its main thread waits, its processor time, its files."""

    def __init__(self, pid: int) -> None:
        self.begun = time.monotonic()
        self.ended = False
        self._seen: Counter[str] = Counter()
        self._folder = Path(f"/proc/{pid}")
        self._process = psutil.Process(pid)
        self._first_cpu = self._last_cpu = self._cpu()
        self._first_io, self._last_io = self._io(), self._io()
        self.environment = self._variables()

    @property
    def waits(self) -> Mapping[str, float]:
        """The share of samples of the main thread in each state, `running` or the kernel's function it waits in."""
        total = sum(self._seen.values())
        return {name: count / total for name, count in self._seen.most_common()}

    @property
    def cpu_s(self) -> float | None:
        if self._first_cpu is None or self._last_cpu is None:
            return None
        return max(0.0, self._last_cpu - self._first_cpu)

    def bytes_of(self, key: str) -> int | None:
        return self._last_io[key] - self._first_io[key] if key in self._first_io and key in self._last_io else None

    def poll(self) -> bool:
        """Look once; False where the process has ended."""
        if self.ended or not self._process.is_running():
            self.ended = True
            return False
        self._seen[self._state()] += 1
        self._last_cpu = self._cpu() or self._last_cpu
        self._last_io = self._io() or self._last_io
        return True

    def tick(self, elapsed_s: float, latest: Progress | None) -> None:
        """While a command of ours runs."""
        del elapsed_s, latest
        self.poll()

    def _state(self) -> str:
        try:
            place = (self._folder / "wchan").read_text(encoding="ascii").strip()
            state = self._process.status()
        except (OSError, psutil.NoSuchProcess):
            return "unknown"
        if state == psutil.STATUS_RUNNING:
            return "running"
        return f"waiting in {place}" if place not in RUNNING else state

    def _cpu(self) -> float | None:
        try:
            times = self._process.cpu_times()
        except psutil.Error:
            return None
        return float(times.user + times.system)

    def _io(self) -> Mapping[str, int]:
        try:
            text = (self._folder / "io").read_text(encoding="ascii")
        except OSError:
            return {}
        return {key: int(value) for key, _, value in (line.partition(":") for line in text.splitlines())}

    def _variables(self) -> Mapping[str, str]:
        try:
            return allowed_environment(self._process.environ())
        except psutil.Error:
            return {}

"""py-spy on the process tree of a server from its start until it is ready, and how long each process lived.

py-spy attaches from outside and does not pause the server. It keeps the last stack of a process that ended, so the
lives of processes are noted here.
"""

import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from llm_perf_opt.serving.startup.startup_stacks import SampledProcess, placed, read_trace
from llm_perf_opt.system.process import Service, allowed_environment
from llm_perf_opt.system.py_spy import find_sampler
from llm_perf_opt.system.redact import Redactor

RATE_HZ = 20
LOOK_S = 0.25
LONGEST_S = 3600
# Stacks are written when the sampler is interrupted.
WRITE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class StartupSamples:
    """What was seen of a start: processes on the server's clock (0: it was started), or why nothing was."""

    ready_s: float
    sampler: str | None = None
    processes: tuple[SampledProcess, ...] = ()
    trouble: str | None = None


@dataclass(kw_only=True)
class StartupSampler:
    """Samples while its context lasts: from a server's start until it is ready; then `samples` has what was seen."""

    out_dir: Path
    environ: Mapping[str, str]
    redactor: Redactor
    samples: StartupSamples | None = None
    _alive: dict[int, float] = field(default_factory=dict)

    @contextmanager
    def until_ready(self, server: Service) -> Iterator[None]:
        """The context; a server that never gets ready leaves no samples."""
        found = find_sampler()
        if found is None:
            yield
            self.samples = StartupSamples(
                ready_s=server.elapsed_s, trouble="py-spy is not installed: pip install py-spy"
            )
            return
        folder = Path(tempfile.mkdtemp(prefix="llm-perf-startup-"))
        try:
            # Stacks name the commands of processes, so they do not stay in the run.
            offset_s = server.elapsed_s
            with self._started(found[0], server, folder / "stacks.json") as sampler, self._watched(server):
                yield
                ready_s = server.elapsed_s
                sampler.interrupt(WRITE_S)
            self.samples = self._read(folder / "stacks.json", found[1], ready_s, offset_s)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _started(self, program: str, server: Service, file: Path) -> Service:
        argv = [program, "record", "--format", "chrometrace", "--threads", "--idle", "--subprocesses", "--nonblocking"]
        argv += ["--full-filenames", "--rate", str(RATE_HZ), "--duration", str(LONGEST_S), "--output", str(file)]
        return Service(
            [*argv, "--pid", str(server.pid)],
            env=allowed_environment(self.environ),
            log=self.out_dir / "startup-sampler.log",
            cmd_file=self.out_dir / "startup-sampler.cmd.txt",
            redactor=self.redactor,
        )

    @contextmanager
    def _watched(self, server: Service) -> Iterator[None]:
        """Note which processes live, in a thread."""
        stop = threading.Event()
        thread = threading.Thread(target=self._watch, args=(server, stop), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _watch(self, server: Service, stop: threading.Event) -> None:
        try:
            root = psutil.Process(server.pid)
            while not stop.wait(LOOK_S):
                for child in (root, *root.children(recursive=True)):
                    if _lives(child):
                        self._alive[child.pid] = server.elapsed_s
        except psutil.NoSuchProcess:
            # The server has ended, which those who wait for it say.
            return

    def _read(self, file: Path, sampler: str, ready_s: float, offset_s: float) -> StartupSamples:
        log = self.out_dir / "startup-sampler.log"
        try:
            processes = read_trace(file.read_bytes())
        except (OSError, msgspec.MsgspecError):
            last = " ".join(log.read_text(encoding="utf-8", errors="replace").split()[-30:])
            text = f"py-spy gave no samples of the server's start: {self.redactor.text(last) or 'it said nothing'}"
            return StartupSamples(ready_s=ready_s, sampler=sampler, trouble=text)
        # The last look was up to so long before the end of a process, or of the start.
        ends = {pid: at + LOOK_S for pid, at in self._alive.items()}
        return StartupSamples(ready_s=ready_s, sampler=sampler, processes=placed(processes, offset_s, ends))


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False

"""Client side of the worker protocol: start, request, stop; every failure becomes one error with a reason."""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.records import Progress, read_progress
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.errors import CommandFailed
from llm_perf_opt.model.hardware.calibrate import cache_dir
from llm_perf_opt.optimize.experiment_plan import TrialSet
from llm_perf_opt.optimize.experiment_verdict import LossLimits, check_outputs
from llm_perf_opt.optimize.optimize_document import OutputCheck
from llm_perf_opt.pipeline.optimize.worker_protocol import SOCKET, Answer, PassSample, WorkerAsk, WorkerReady
from llm_perf_opt.profiling.baseline import last_words
from llm_perf_opt.profiling.vendor.launch import build_work_argv, bytecode_environment, workload_overrides
from llm_perf_opt.system.process import Service, allowed_environment, read_tail
from llm_perf_opt.system.redact import Redactor

WORKER = "llm_perf_opt.children.optimize_worker"
POLL_S = 0.2
CHUNK_BYTES = 1 << 16
TAIL_BYTES = 2048
# Words of a process that found no room, in torch's and in the system's own words.
NO_ROOM = ("out of memory", "OutOfMemoryError", "CUDA_ERROR_OUT_OF_MEMORY", "Cannot allocate memory")
Tick = Callable[[float, Progress | None], None]


class OutOfMemory(CommandFailed):
    """A worker found no room: alongside another one, or at all."""


class OutOfTime(CommandFailed):
    """A worker was ended because its time was up."""


@dataclass(frozen=True, kw_only=True)
class WorkerPass:
    """What one pass measured: values by metric, one a sample, the most memory, and all tokens it generated."""

    values: Mapping[str, list[RepeatedValue]]
    peak_bytes: int | None
    tokens: int = 0


class ExperimentWorker(Protocol):
    """One configuration that can be requested passes; times to wait until are of the monotonic clock."""

    @property
    def log(self) -> Path: ...

    @property
    def start_s(self) -> float: ...

    def wait_ready(self, until: float) -> WorkerReady: ...

    def run_pass(self, number: int, until: float) -> WorkerPass: ...

    def write_reference(self, path: Path, until: float) -> None: ...

    def check(self, path: Path, until: float, *, is_lossy: bool, limits: LossLimits) -> OutputCheck: ...

    def end(self) -> None: ...


class Bench(Protocol):
    """What experiments are made on: our own model, or a program. None as candidate is the start."""

    @property
    def title(self) -> str: ...

    def open(self, candidate: TrialSet | None, folder: Path, tick: Tick) -> ExperimentWorker: ...

    def refuse(self, candidate: TrialSet) -> str | None:
        """Why a candidate cannot be run at all."""
        ...

    def look(self, candidate: TrialSet, folder: Path, timeout_s: float, tick: Tick) -> tuple[Finding, ...] | None:
        """What a profile of it finds that could still be saved; None where it cannot be profiled."""
        ...

    def recommend(self, candidate: TrialSet, sentence: str, folder: Path) -> tuple[str | None, str]:
        """The file to use it with, if any, and the command."""
        ...


class ModelWorker:
    """One configuration of our own model in its own process."""

    def __init__(
        self, config: AppConfig, folder: Path, *, environment: Mapping[str, str], redactor: Redactor, tick: Tick
    ) -> None:
        self.log = folder / "worker.log"
        self.start_s = 0.0
        self._tick = tick
        # Where the session puts its own (see `check_workload`).
        self._scratch_dir = folder.parent / "tmp" / folder.name
        self._socket_dir = tempfile.TemporaryDirectory(prefix="llm-perf-")
        # A path of a socket may have 107 bytes, and that of a run may be longer.
        address = Path(self._socket_dir.name) / "line"
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(address))
        self._door.listen(1)
        self._line: socket.socket | None = None
        self._unread = b""
        env = allowed_environment(os.environ, config.run.env_passthrough)
        env |= bytecode_environment(os.environ, cache_dir(os.environ, "bytecode"))
        env |= {**environment, SOCKET: str(address)}
        self._service = Service(
            build_work_argv(WORKER, workload_overrides(config), hydra_run_dir=folder),
            env=env,
            log=self.log,
            cmd_file=folder / "cmd.txt",
            redactor=redactor,
        )

    def wait_ready(self, until: float) -> WorkerReady:
        """Until the model is loaded, prepared and warm."""
        start = time.monotonic()
        self._door.settimeout(POLL_S)
        while self._line is None:
            try:
                self._line, _ = self._door.accept()
            except TimeoutError:
                self._watch(until)
        answer = self._answer(until)
        assert answer.ready is not None
        self.start_s = time.monotonic() - start
        return answer.ready

    def run_pass(self, number: int, until: float) -> WorkerPass:
        samples = self._ask(WorkerAsk(do="pass", number=number), until).samples
        peaks = [s.peak_memory_bytes for s in samples if s.peak_memory_bytes is not None]
        return WorkerPass(
            values=pass_values(samples, repeat=number),
            peak_bytes=max(peaks, default=None),
            tokens=sum(s.tokens for s in samples),
        )

    def write_reference(self, path: Path, until: float) -> None:
        self._ask(WorkerAsk(do="reference", path=str(path)), until)

    def check(self, path: Path, until: float, *, is_lossy: bool, limits: LossLimits) -> OutputCheck:
        agreement = self._ask(WorkerAsk(do="check", path=str(path)), until).agreement
        return check_outputs(agreement, is_lossy=is_lossy, limits=limits)

    def end(self) -> None:
        """Let go of the line, which ends it, end what still runs of it, and remove its caches: they are large."""
        if self._line is not None:
            self._line.close()
            self._line = None
        self._door.close()
        # It frees the device by itself, and sooner than after a signal.
        self._service.wait(POLL_S * 10)
        self._service.end()
        self._socket_dir.cleanup()
        shutil.rmtree(self._scratch_dir, ignore_errors=True)

    def _ask(self, ask: WorkerAsk, until: float) -> Answer:
        assert self._line is not None
        try:
            self._line.sendall(msgspec.json.encode(ask) + b"\n")
        except OSError:
            self._watch(until, is_lost=True)
        return self._answer(until)

    def _answer(self, until: float) -> Answer:
        assert self._line is not None
        self._line.settimeout(POLL_S)
        while b"\n" not in self._unread:
            try:
                data = self._line.recv(CHUNK_BYTES)
            except TimeoutError:
                self._watch(until)
                continue
            except OSError:
                data = b""
            if not data:
                self._watch(until, is_lost=True)
            self._unread += data
        text, _, self._unread = self._unread.partition(b"\n")
        return msgspec.json.decode(text, type=Answer)

    def _watch(self, until: float, *, is_lost: bool = False) -> None:
        """Raise where it has ended or its time is up; where the line is lost it is about to end."""
        if is_lost:
            self._service.wait(POLL_S * 50)
        code = self._service.poll()
        if code is not None or is_lost:
            said = last_words(self._service.tail()) or f"it ended with exit code {code} and printed nothing"
            kind = OutOfMemory if any(words in said for words in NO_ROOM) or code == -9 else CommandFailed
            hint = " (the system may have run out of memory)" if code == -9 else ""
            raise kind(f"{said}{hint}")
        if time.monotonic() >= until:
            self._service.end()
            raise OutOfTime(f"it was ended after {self._service.elapsed_s:.0f} s: its share of the budget was used up")
        lines = reversed(read_tail(self.log, TAIL_BYTES).splitlines())
        self._tick(
            self._service.elapsed_s, next((progress for line in lines if (progress := read_progress(line))), None)
        )


def pass_values(samples: tuple[PassSample, ...], *, repeat: int) -> dict[str, list[RepeatedValue]]:
    """The metrics of a pass, one value a sample; `tokens_per_s` are those of all sequences over the whole request."""

    def series(values: list[tuple[str, float | None]]) -> list[RepeatedValue]:
        return [RepeatedValue(sample_id=n, repeat=repeat, value=v) for n, v in values if v is not None]

    return {
        "ttft_ms": series([(s.sample_id, s.ttft_ms) for s in samples]),
        "tpot_ms": series([(s.sample_id, s.tpot_ms) for s in samples]),
        "tokens_per_s": series([(s.sample_id, 1e3 * s.tokens / s.request_ms) for s in samples]),
    }

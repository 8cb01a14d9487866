"""Experiments on a program of the user's own: a pass is a start of it, with other words or another environment."""

import hashlib
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.core.host import Host
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.errors import CommandFailed
from llm_perf_opt.marks import MARKS_DIR
from llm_perf_opt.optimize.experiment_plan import TrialSet
from llm_perf_opt.optimize.experiment_verdict import LossLimits
from llm_perf_opt.optimize.optimize_document import OutputCheck
from llm_perf_opt.pipeline.optimize.worker_protocol import WorkerReady
from llm_perf_opt.pipeline.optimize.workers import ExperimentWorker, OutOfTime, Tick, WorkerPass
from llm_perf_opt.profiling.baseline import last_words
from llm_perf_opt.profiling.user_program import phase_metrics, read_marks
from llm_perf_opt.system.process import allowed_environment, program_title, run_command
from llm_perf_opt.system.redact import Redactor

STDOUT = "stdout"
# What phases of a program are called in optimize.json.
RENAMED = {"decode_tokens_per_s": "tokens_per_s"}


@dataclass(frozen=True, kw_only=True)
class ProgramBench:
    """The program, what of its outputs must stay the same, and where it is started."""

    command: tuple[str, ...]
    outputs: tuple[str, ...]
    user_dir: Path
    host: Host
    redactor: Redactor

    @property
    def title(self) -> str:
        return program_title(self.command)

    def open(self, candidate: TrialSet | None, folder: Path, tick: Tick) -> ExperimentWorker:
        words = () if candidate is None else program_words(candidate)
        return ProgramWorker(
            bench=self,
            command=(*self.command, *words),
            environment={} if candidate is None else dict(candidate.environment),
            folder=folder,
            tick=tick,
        )

    def refuse(self, candidate: TrialSet) -> str | None:
        del candidate
        return None

    def look(self, candidate: TrialSet, folder: Path, timeout_s: float, tick: Tick) -> tuple[Finding, ...] | None:
        del candidate, folder, timeout_s, tick
        return None

    def recommend(self, candidate: TrialSet, sentence: str, folder: Path) -> tuple[str | None, str]:
        del sentence, folder
        variables = self.redactor.tree(candidate.environment)
        environment = [f"{key}={shlex.quote(value)}" for key, value in variables.items()]
        words = self.redactor.words((*self.command, *program_words(candidate)))
        return None, " ".join([*environment, shlex.join(words)])


def program_words(candidate: TrialSet) -> tuple[str, ...]:
    """What is added to the command line: `key=value`, or a flag alone."""
    return tuple(f"{key}={value}" if value else key for key, value in candidate.sets.items())


@dataclass(kw_only=True)
class ProgramWorker:
    """One configuration of the program; nothing of it stays alive between passes."""

    bench: ProgramBench
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    tick: Tick
    start_s: float = 0.0
    digests: dict[str, str] = field(default_factory=dict)

    @property
    def log(self) -> Path:
        return self.folder / "pass-0.log"

    def wait_ready(self, until: float) -> WorkerReady:
        """Nothing is loaded before a pass."""
        host = self.bench.host
        device = host.gpus[0].name if host.gpus else host.cpu
        return WorkerReady(
            device="cuda" if host.gpus else "cpu", device_name=device, dtype="", load_s=0.0, compile_s=None, notes=()
        )

    def run_pass(self, number: int, until: float) -> WorkerPass:
        """One start to its end: the wall time, and what its marks say."""
        marks = self.folder / f"marks-{number}"
        marks.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"pass-{number}.log"
        env = allowed_environment(os.environ) | {**self.environment, MARKS_DIR: str(marks)}
        result = run_command(
            self.command,
            env=env,
            timeout_s=max(1.0, until - time.monotonic()),
            log=log,
            cmd_file=self.folder / "cmd.txt",
            cwd=self.bench.user_dir,
            on_tick=self.tick,
            redactor=self.bench.redactor,
        )
        if result.timed_out:
            raise OutOfTime(f"it was ended after {result.duration_s:.0f} s: its share of the budget was used up")
        if not result.ok:
            said = last_words(result.tail) or "it printed nothing"
            raise CommandFailed(f"it failed with exit code {result.exit_code}: {said}")
        self._keep_digests(log)
        found = [mark for mark in read_marks(marks, self.bench.redactor) if not mark.warmup]
        metrics = {RENAMED.get(name, name): stats.p50 for name, stats in phase_metrics(found).items()}
        metrics["wall_ms"] = 1e3 * result.duration_s
        values = {
            name: [RepeatedValue(sample_id="program", repeat=number, value=value)]
            for name, value in metrics.items()
            if value is not None
        }
        return WorkerPass(values=values, peak_bytes=None)

    def write_reference(self, path: Path, until: float) -> None:
        """The digests of the start's outputs, one a line."""
        self.run_pass(0, until)
        path.write_text("\n".join(f"{digest} {name}" for name, digest in self.digests.items()), encoding="utf-8")

    def check(self, path: Path, until: float, *, is_lossy: bool, limits: LossLimits) -> OutputCheck:
        del limits
        self.run_pass(0, until)
        if not self.bench.outputs:
            text = "outputs were not compared: `outputs:` of the file does not name them"
            return OutputCheck(verdict="not checked", text=text, limits="", agreement=None)
        wanted = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            digest, _, name = line.partition(" ")
            wanted[name] = digest
        other = [name for name in self.bench.outputs if wanted.get(name) != self.digests.get(name)]
        if not other:
            text = f"byte for byte: {', '.join(self.bench.outputs)}"
            return OutputCheck(verdict="equal", text=text, limits="equal bytes", agreement=None)
        text = f"other bytes in {', '.join(other)}"
        if is_lossy:
            more = f"{text}; declared lossy, and how far they are apart is not known"
            return OutputCheck(verdict="not checked", text=more, limits="", agreement=None)
        return OutputCheck(verdict="different", text=text, limits="equal bytes", agreement=None)

    def end(self) -> None:
        """Each pass ended with its program."""

    def _keep_digests(self, log: Path) -> None:
        for name in self.bench.outputs:
            file = log if name == STDOUT else self.bench.user_dir / name
            if not file.is_file():
                raise CommandFailed(f"outputs: the program did not write {name}")
            self.digests[name] = hashlib.sha256(file.read_bytes()).hexdigest()

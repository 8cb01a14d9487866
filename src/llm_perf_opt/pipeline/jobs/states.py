"""How each job of a sweep is, read from its run directory and from the scheduler; no answer of a job is needed.

A job that is gone from the queue and has no finished manifest has failed. That also holds where there is no accounting
(`sacct` fails there, and whoever waits for its word waits for ever).
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from llm_perf_opt.core.manifest import RunManifest, read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE, PLAN_FILE
from llm_perf_opt.errors import ManifestError
from llm_perf_opt.pipeline.jobs.record import ERROR_FILE, JobEntry, JobsDocument, read_jobs
from llm_perf_opt.system.files import read_limited
from llm_perf_opt.system.lock import is_locked
from llm_perf_opt.system.process import allowed_environment, run_quick

SLURM = "submitit_slurm"
LOCAL = "submitit_local"
ERROR_BYTES = 1 << 20
# Words of squeue for a job that waits; every other state it lists is of one that runs or ends.
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")

State = Literal["missing", "planned", "queued", "running", "ok", "failed", "unknown"]
UNFINISHED: tuple[State, ...] = ("queued", "running", "unknown")


@dataclass(frozen=True, kw_only=True)
class JobState:
    """`missing`: it never began. `planned`: a dry run. `unknown`: the scheduler gave no answer.

    `reason` says why it is not ok.

    `is_own`: the run itself wrote down how it ended; a failure without that was seen from outside. `is_listed`: the
    scheduler still has it.
    """

    number: int
    state: State
    reason: str | None = None
    where: str | None = None
    is_own: bool = False
    is_listed: bool = False

    @property
    def text(self) -> str | None:
        """What to say of a job that is not ok."""
        if self.state == "ok":
            return None
        return self.state if self.reason is None else f"{self.state}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class SchedulerQueue:
    """What a scheduler lists: the state of each job it still knows. `problem`: it could not be queried."""

    states: Mapping[str, str]
    problem: str | None = None


def job_states(sweep_dir: Path, document: JobsDocument, queue: SchedulerQueue | None = None) -> list[JobState]:
    """One state for each job, in their order. `queue` is requested where none is given."""
    known = queue if queue is not None else ask_scheduler(document)
    has_submitter = is_locked(sweep_dir)
    return [_state(sweep_dir / job.folder, job, known, has_submitter) for job in document.jobs]


def ask_scheduler(document: JobsDocument) -> SchedulerQueue | None:
    """Slurm's queue, or which of the local processes live; None: the launcher keeps no queue of its own."""
    ids = [job.scheduler_id for job in document.jobs if job.scheduler_id is not None]
    if not ids:
        return None
    if document.launcher == SLURM:
        return ask_slurm(ids)
    return SchedulerQueue(states={number: "RUNNING" for number in ids if _is_submitit(number)})


def ask_slurm(ids: Sequence[str], environ: Mapping[str, str] = os.environ) -> SchedulerQueue:
    arrays = sorted({number.partition("_")[0] for number in ids})
    code, text = run_quick(
        [
            "squeue",
            "--noheader",
            "--array",
            "--format=%i|%T",
            f"--jobs={','.join(arrays)}",
        ],
        env=allowed_environment(environ),
    )
    # It says so of a single job it has forgotten; of several it lists those it knows.
    if code != 0 and "Invalid job id" in text:
        return SchedulerQueue(states={})
    if code != 0:
        last = text.strip().splitlines()[-1:] or ["no answer"]
        return SchedulerQueue(states={}, problem=f"squeue could not be queried ({last[0]})")
    rows = [line.strip().partition("|") for line in text.splitlines() if "|" in line]
    return SchedulerQueue(states={number: state for number, _, state in rows})


def _state(folder: Path, job: JobEntry, queue: SchedulerQueue | None, has_submitter: bool) -> JobState:
    manifest, problem = _manifest(folder)
    is_fresh = manifest is not None and (job.submitted_at is None or manifest.created_at >= job.submitted_at)
    listed = None if queue is None or job.scheduler_id is None else queue.states.get(job.scheduler_id)
    where = None if manifest is None else str(manifest.environment.get("hostname") or "") or None

    def stands(state: State, reason: str | None = None, *, is_own: bool = False) -> JobState:
        return JobState(
            number=job.number, state=state, reason=reason, where=where, is_own=is_own, is_listed=listed is not None
        )

    if listed in _WAITING:
        return stands("queued", f"Slurm job {job.scheduler_id}")
    if manifest is not None and manifest.status == "ok":
        return stands("ok", is_own=True)
    if listed is not None or is_locked(folder):
        return stands("running")
    if job.scheduler_id is not None and queue is not None and queue.problem is not None:
        return stands("unknown", queue.problem)
    if manifest is not None and is_fresh:
        return stands("failed", _why(manifest), is_own=manifest.status != "running")
    error = _error(folder)
    if error is not None:
        return stands("failed", error, is_own=True)
    if problem is not None:
        return stands("failed", problem)
    if job.scheduler_id is not None:
        text = f"job {job.scheduler_id} is gone from the queue and left no result; its log is below .submitit/"
        return stands("failed", text)
    if has_submitter and job.submitted_at is not None:
        return stands("queued")
    if manifest is not None:
        return stands("failed", _why(manifest))
    if (folder / PLAN_FILE).exists():
        return stands("planned", "a dry run")
    return stands("missing", "it never began")


def _manifest(folder: Path) -> tuple[RunManifest | None, str | None]:
    if not (folder / MANIFEST_FILE).exists():
        return None, None
    try:
        return read_manifest(folder), None
    except ManifestError as error:
        return None, str(error)


def _why(manifest: RunManifest) -> str:
    if manifest.status == "running":
        return "it ended without finishing: killed, out of memory, out of time, or its node was lost"
    if manifest.status == "interrupted":
        return "it was interrupted"
    failed = [f"{stage.name}: {stage.reason}" for stage in manifest.stages if stage.status == "failed"]
    return "; ".join(failed or manifest.warnings[-1:]) or "the run failed"


def _error(folder: Path) -> str | None:
    try:
        text = read_limited(folder / ERROR_FILE, ERROR_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
    return " ".join(text.split())


def _is_submitit(number: str) -> bool:
    """Whether the process of a local job lives; its number may have gone to another program since."""
    try:
        process = psutil.Process(int(number))
        return process.status() != psutil.STATUS_ZOMBIE and any("submitit" in word for word in process.cmdline())
    except (psutil.Error, ValueError):
        return False


def remove_pickles(sweep_dir: Path) -> None:
    """Remove what submitit pickled for jobs that have ended: it holds their overrides as they were given."""
    document = read_jobs(sweep_dir)
    if document is None or any(state.state in UNFINISHED for state in job_states(sweep_dir, document)):
        return
    for path in (sweep_dir / ".submitit").glob("**/*.pkl"):
        path.unlink(missing_ok=True)


def all_ok(sweep_dirs: Sequence[Path]) -> bool:
    """Whether every job of these sweeps did what was requested; also if there are none."""
    documents = [(folder, read_jobs(folder)) for folder in sweep_dirs]
    states = [state.state for folder, document in documents if document for state in job_states(folder, document)]
    return all(state in ("ok", "planned") for state in states)

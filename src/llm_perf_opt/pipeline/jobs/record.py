"""`jobs.json`: what a sweep was asked to do, written before anything is launched: a killed submitter loses nothing."""

import hashlib
import hmac
import json
import os
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from llm_perf_opt.core.manifest import LARGEST_BYTES, write_json
from llm_perf_opt.errors import ConfigError, ManifestError
from llm_perf_opt.system.files import read_limited
from llm_perf_opt.system.trust import user_key

JOBS_FILE = "jobs.json"
ERROR_FILE = "error.txt"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A sweep's command line; `only`: the numbers of the jobs to do again. `begun`: the directories it went to."""

    arguments: tuple[str, ...] = ()
    only: tuple[int, ...] | None = None
    begun: list[Path] = field(default_factory=list)


# Hydra makes sweepers itself, from the configuration alone; what they should know besides is here.
ASKED: ContextVar[Asked] = ContextVar("asked")


@dataclass(frozen=True, kw_only=True)
class JobEntry:
    """One job. `scheduler_id` is Slurm's or, for local processes, the process; `submitted_at`: when it last was.

    A result older than `submitted_at` is of an earlier attempt.
    """

    number: int
    folder: str
    overrides: tuple[str, ...]
    submitted_at: str | None = None
    scheduler_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class JobsDocument:
    """`jobs.json`. `arguments`: the command line after `llm-perf profile`, without secrets."""

    schema_version: Literal[1] = 1
    created_at: str
    launcher: str
    arguments: tuple[str, ...]
    user_dir: str
    jobs: tuple[JobEntry, ...]
    signature: str = ""

    def with_jobs(self, changed: Sequence[JobEntry]) -> "JobsDocument":
        new = {job.number: job for job in changed}
        return replace(self, jobs=tuple(new.get(job.number, job) for job in self.jobs))


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def write_jobs(sweep_dir: Path, document: JobsDocument, environ: Mapping[str, str] = os.environ) -> None:
    """Write it with the mark of this user: resuming runs what it says."""
    key = user_key(environ, make=True)
    write_json(sweep_dir / JOBS_FILE, replace(document, signature="" if key is None else _mark(key, document)))


def read_jobs(sweep_dir: Path) -> JobsDocument | None:
    """The jobs of a sweep; None: made by a version that did not write them down."""
    path = sweep_dir / JOBS_FILE
    try:
        return msgspec.json.decode(read_limited(path, LARGEST_BYTES), type=JobsDocument)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise ManifestError(f"{path}: {error}; the sweep cannot be read") from error


def require_own(sweep_dir: Path, document: JobsDocument, environ: Mapping[str, str] = os.environ) -> None:
    """Refuse to run what another user wrote."""
    key = user_key(environ, make=False)
    if key is None or not hmac.compare_digest(_mark(key, document), document.signature):
        raise ConfigError(
            f"{sweep_dir / JOBS_FILE}: the sweep was not started by you on this machine, or was changed since; "
            f"resuming it would run: llm-perf profile {' '.join(document.arguments)}; allowed: --trust if you trust it"
        )


def _mark(key: bytes, document: JobsDocument) -> str:
    jobs = [[job.number, job.folder, list(job.overrides)] for job in document.jobs]
    content = json.dumps([list(document.arguments), document.user_dir, jobs]).encode()
    return hmac.new(key, content, hashlib.sha256).hexdigest()

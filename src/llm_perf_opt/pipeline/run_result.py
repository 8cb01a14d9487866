"""What a run came to, as one document: `--json` of `profile`, `run`, `infer`, `report` and `open` prints it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from llm_perf_opt.core.manifest import LARGEST_BYTES, read_manifest
from llm_perf_opt.core.names import DIAGNOSIS_FILE, MANIFEST_FILE
from llm_perf_opt.core.records import Metric, RunStatus, StageStatus
from llm_perf_opt.diagnosis.diagnosis_document import Diagnosis
from llm_perf_opt.errors import ManifestError
from llm_perf_opt.pipeline.index import index_run
from llm_perf_opt.report.write import RENDERERS, TRACE
from llm_perf_opt.system.files import read_limited, real_path


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """How one stage ended; `reason` says why it failed or was skipped."""

    name: str
    status: StageStatus
    duration_s: float | None
    reason: str | None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run: how its stages ended, its numbers, its diagnosis and its files.

    `numbers` are those `llm-perf runs` shows; `files` are relative to `run_dir`. `diagnosis` is None where the run was
    not diagnosed, for example because every stage failed.
    """

    schema_version: Literal[1] = 1
    run_id: str
    run_dir: str
    created_at: str
    status: RunStatus
    stages: tuple[StageResult, ...]
    numbers: Mapping[str, Metric]
    warnings: tuple[str, ...]
    files: tuple[str, ...]
    diagnosis: Diagnosis | None


def read_run_result(run_dir: Path) -> RunResult:
    """Read it from a run directory whose reports were written."""
    manifest = read_manifest(run_dir)
    names = (MANIFEST_FILE, *(name for name, _ in RENDERERS), TRACE, DIAGNOSIS_FILE)
    return RunResult(
        run_id=manifest.run_id,
        run_dir=str(real_path(run_dir)),
        created_at=manifest.created_at,
        status=manifest.status,
        stages=tuple(
            StageResult(name=stage.name, status=stage.status, duration_s=stage.duration_s, reason=stage.reason)
            for stage in manifest.stages
        ),
        numbers=index_run(run_dir).numbers,
        warnings=manifest.warnings,
        files=tuple(name for name in names if (run_dir / name).is_file()),
        diagnosis=read_diagnosis(run_dir),
    )


def read_diagnosis(run_dir: Path) -> Diagnosis | None:
    """The diagnosis a run's reports were written from; None where there is none."""
    path = run_dir / DIAGNOSIS_FILE
    try:
        return msgspec.json.decode(read_limited(path, LARGEST_BYTES), type=Diagnosis)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ManifestError(f"{path}: {error}; `llm-perf report {run_dir}` writes it again") from error

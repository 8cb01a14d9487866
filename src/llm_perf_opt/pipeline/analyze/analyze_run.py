"""Writes the analysis of given captures as a run directory, as if the stages had run."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from msgspec import UNSET

from llm_perf_opt.capture.readers.kinds import NCU, TORCH
from llm_perf_opt.core.manifest import RunManifest, write_manifest
from llm_perf_opt.core.names import ANALYSIS_FILE, NSYS, OPERATORS_CSV, TORCH_PROFILER
from llm_perf_opt.core.records import Metric, StageFile, StageRecord
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.analyze.read import AnalyzedCaptures
from llm_perf_opt.profiling.capture_files import capture_metrics, write_analysis, write_operators
from llm_perf_opt.report.sections.capture_detail import capture_sections
from llm_perf_opt.report.sections.capture_pictures import write_pictures
from llm_perf_opt.report.write import write_reports
from llm_perf_opt.system.files import real_path
from llm_perf_opt.system.redact import Redactor


def require_free(output: Path) -> None:
    """Make the directory, and refuse one that holds something, before any work is done."""
    folder = output.expanduser()
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"-o {output}: exists and is not an empty directory, allowed: a new or an empty one")
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise ConfigError(
            f"-o {output}: cannot be made ({error.strerror or error}), allowed: a new directory"
        ) from error
    if not writable:
        raise ConfigError(f"-o {output}: cannot be written into, allowed: a new directory or an empty one of yours")


def write_run(
    output: Path,
    files: Sequence[Path],
    found: AnalyzedCaptures,
    *,
    overrides: tuple[str, ...],
    context: Callable[[Path, str], list[StageRecord]],
) -> None:
    """Files, manifest and reports; `context` gives the stages that say what the captures cannot."""
    run_dir = real_path(output.expanduser())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    stages = context(run_dir, now)
    stages += [] if found.kind == NCU else [_timeline_stage(run_dir, found, now)]
    if found.ncu is not None:
        stages.append(_ncu_stage(run_dir, found, now))
    # As env.json describes a GPU; what a capture does not say is reported as unknown.
    gpus = [
        {
            "index": index,
            "name": device.name,
            "memory_bytes": device.memory_bytes,
            "driver": "not recorded",
            "compute_capability": device.compute_capability,
        }
        for index, device in enumerate(found.analysis.gpu.devices)
    ]
    manifest = RunManifest(
        run_id=run_dir.name,
        created_at=now,
        status="ok",
        config={"analyze": {"files": [str(file) for file in files]}},
        environment={"gpus": gpus},
        overrides=overrides,
        stages=tuple(stages),
    )
    # A page of a user's capture is made to be shared; names in it may hold a token.
    redactor = Redactor.of(os.environ)
    redactor.folder(run_dir)
    write_manifest(run_dir, manifest, redactor)
    write_reports(run_dir)


def _timeline_stage(run_dir: Path, found: AnalyzedCaptures, now: str) -> StageRecord:
    name = TORCH_PROFILER if found.kind == TORCH else NSYS
    # What ncu measured has a stage and files of its own.
    files = write_analysis(run_dir / name, replace(found.analysis, ncu=UNSET), found.measured, found.inputs)
    if found.analysis.operators is not UNSET:
        path = write_operators(run_dir / name / OPERATORS_CSV, found.analysis.operators)
        files.append(StageFile(role="operators_csv", path=path))
    pictures = write_pictures(run_dir, name, found.analysis)
    files += [StageFile(role="picture", path=run_dir / picture.path) for picture in pictures.values()]
    return StageRecord(
        name=name,
        status="ok",
        started_at=now,
        files=tuple(files),
        metrics=capture_metrics(found.analysis, source=f"{name}/{ANALYSIS_FILE}", kind=found.kind),
        notes=found.analysis.notes,
        sections=capture_sections(found.analysis, source=f"{name}/{ANALYSIS_FILE}", pictures=pictures),
    )


def _ncu_stage(run_dir: Path, found: AnalyzedCaptures, now: str) -> StageRecord:
    from llm_perf_opt.profiling.ncu.ncu_results import write_kernels

    assert found.ncu is not None
    folder = run_dir / NCU
    folder.mkdir(parents=True, exist_ok=True)
    launches = Metric(
        value=found.ncu.launches, unit="count", how="launches in the ncu files given", source="ncu/kernels.json"
    )
    return StageRecord(
        name=NCU,
        status="ok",
        started_at=now,
        files=tuple(write_kernels(found.ncu, folder)),
        metrics={"ncu_launches": launches},
        notes=found.ncu.notes,
    )

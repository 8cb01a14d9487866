"""Open captures and runs as analyses, and ask them in SQL."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.api.analysis import PerfAnalysis
from llm_perf_opt.api.sources import CaptureFiles, FilesAre, RunDirectory
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import ConfigError

if TYPE_CHECKING:
    from llm_perf_opt.sql.database import Guard, SqlLimits
    from llm_perf_opt.sql.table import DataTable

PathLike = str | os.PathLike[str]


def analyze(
    *captures: PathLike,
    detail: bool = False,
    files_are: FilesAre | None = None,
    limits: "SqlLimits | None" = None,
) -> PerfAnalysis:
    """Analyze one capture, or several of one program (ranks of a job, or repetitions).

    Reads exports and reports of nsys, torch traces, rocpd databases, kernel summaries and ncu files. `detail` reads
    shapes, sizes of collectives and memory from long traces too; `files_are` decides what several files are.
    """
    paths = _given(captures)
    if len(paths) == 1 and _is_run(paths[0]):
        raise ConfigError(f"analyze: {paths[0]} is a run, allowed: capture files; load_run opens a run")
    found = PerfAnalysis(CaptureFiles(paths, detail=detail, files_are=files_are), limits)
    # What is wrong with a file is reported here, and not where its first figure is used.
    _ = found.diagnosis
    return found


def load_run(path: PathLike, *, detail: bool = False, limits: "SqlLimits | None" = None) -> PerfAnalysis:
    """Open the directory of a run; its documents are read when they are first used."""
    folder = Path(path).expanduser()
    return PerfAnalysis(RunDirectory(folder, read_manifest(folder), detail=detail), limits)


def open_any(
    *paths: PathLike, detail: bool = False, limits: "SqlLimits | None" = None, guard: "Guard | None" = None
) -> PerfAnalysis:
    """Open a run or captures, whichever the paths lead to, without judging them yet.

    `guard` bounds the process while it answers a statement.
    """
    given = _given(paths)
    if len(given) == 1 and _is_run(given[0]):
        return PerfAnalysis(RunDirectory(given[0], read_manifest(given[0]), detail=detail), limits, guard)
    return PerfAnalysis(CaptureFiles(given, detail=detail), limits, guard)


def query(source: "PathLike | PerfAnalysis", sql: str) -> "DataTable":
    """The result of one SELECT statement over the views of a run, a capture or an analysis."""
    return (source if isinstance(source, PerfAnalysis) else open_any(source)).query(sql)


def _given(paths: tuple[PathLike, ...]) -> list[Path]:
    if not paths:
        raise ConfigError("analyze: no capture given, allowed: at least one file")
    found = [Path(path).expanduser() for path in paths]
    missing = next((path for path in found if not os.path.lexists(path)), None)
    if missing is not None:
        raise ConfigError(f"{missing}: no such file or directory, allowed: a capture, or the directory of a run")
    return found


def _is_run(path: Path) -> bool:
    return os.path.lexists(path / MANIFEST_FILE)

"""Captures and runs as subjects with a diagnosis; the latest are kept, since a client asks about one several times."""

import tempfile
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from msgspec import UNSET

from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.diagnosis.document import Diagnosis
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.mcp_server.limits import as_data
from llm_perf_opt.mcp_server.paths import Roots
from llm_perf_opt.pipeline.run_result import read_diagnosis, read_run_result
from llm_perf_opt.system.arrays import load_numpy

KEPT = 8
# Kinds of files that hold no timeline to be judged.
NOT_JUDGED = {
    "load": "results of a load generator",
    "memory_snapshot": "a memory snapshot",
}


@dataclass(frozen=True, kw_only=True)
class JudgedSubject:
    """A run, or the captures of one; `diagnosis` is None where there is none, and `missing` then says why."""

    name: str
    diagnosis: Diagnosis | None
    missing: str | None
    numbers: Mapping[str, float]


class Captures:
    """Reads subjects inside the roots."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._kept: OrderedDict[tuple[tuple[str, int, int], ...], JudgedSubject] = OrderedDict()
        # Tools may be called concurrently; one analysis takes all the memory there should be taken.
        self._lock = Lock()

    def read(self, source: str | Sequence[str]) -> JudgedSubject:
        """The run or captures a client named, several as the ranks or repeats of one job."""
        names = [source] if isinstance(source, str) else list(source)
        if not names:
            raise ConfigError("source: none given, allowed: the path of a run or a capture, or several captures")
        paths = [self._roots.resolve(name) for name in names]
        key = tuple(_stamp(path) for path in paths)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = self._read(paths)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[key]

    def _read(self, paths: Sequence[Path]) -> JudgedSubject:
        if len(paths) == 1 and (paths[0] / MANIFEST_FILE).is_file():
            return self._run(paths[0])
        return self._capture(paths)

    def _run(self, run_dir: Path) -> JudgedSubject:
        self._roots.require_own_files(read_manifest(run_dir), run_dir)
        result = read_run_result(run_dir)
        failed = [stage.name for stage in result.stages if stage.status == "failed"]
        missing = f"failed stages: {', '.join(failed)}" if failed else "no stage of this run recorded anything to judge"
        numbers = {
            name: float(metric.value)
            for name, metric in result.numbers.items()
            if isinstance(metric.value, int | float) and not isinstance(metric.value, bool)
        }
        return JudgedSubject(
            name=self._roots.name_of(run_dir),
            diagnosis=read_diagnosis(run_dir),
            missing=missing,
            numbers=numbers,
        )

    def _capture(self, paths: Sequence[Path]) -> JudgedSubject:
        from llm_perf_opt.capture.readers.kinds import capture_files, kind_of

        load_numpy()
        from llm_perf_opt.pipeline.analyze.read import read_captures

        files = tuple(file for path in paths for file in capture_files(path))
        outside = [file for file in files if not self._roots.holds(file)]
        if outside:
            raise ConfigError(f"{as_data(str(outside[0]))}: a link that leads out of the folders this server may read")
        kinds = [kind_of(file) for file in files]
        name = ", ".join(self._roots.name_of(path) for path in paths)
        other = next((NOT_JUDGED[kind] for kind in kinds if kind in NOT_JUDGED), None)
        if other is not None:
            missing = f"{other} holds no timeline to judge; `llm-perf analyze` shows what it holds"
            return JudgedSubject(name=name, diagnosis=None, missing=missing, numbers={})
        with tempfile.TemporaryDirectory(prefix="llm-perf-mcp-") as scratch:
            analysis = read_captures(files, kinds, Path(scratch), detailed=True).analysis
        found = None if analysis.diagnosis is UNSET else analysis.diagnosis
        return JudgedSubject(name=name, diagnosis=found, missing="nothing in this capture can be judged", numbers={})


def _stamp(path: Path) -> tuple[str, int, int]:
    """What differs when a file, or the manifest of a run, does."""
    manifest = path / MANIFEST_FILE
    stat = (manifest if manifest.is_file() else path).stat()
    return str(path), stat.st_mtime_ns, stat.st_size

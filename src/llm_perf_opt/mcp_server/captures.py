"""Captures and runs as subjects with a diagnosis; the latest are kept, since a client asks about one several times."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock

from llm_perf_opt.api.analysis import PerfAnalysis
from llm_perf_opt.api.load import open_any
from llm_perf_opt.commands.query import bounded_process
from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.mcp_server.allowed_paths import Roots
from llm_perf_opt.mcp_server.limits import as_data
from llm_perf_opt.pipeline.run_result import read_run_result
from llm_perf_opt.sql.database import SqlLimits
from llm_perf_opt.sql.table import DataTable

KEPT = 8
# A statement of a client's; one that cannot be stopped ends the server.
LIMITS = SqlLimits(memory_bytes=1 << 30, timeout_s=20.0)
# Kinds of files that hold no timeline to be judged.
NOT_JUDGED = {
    "load": "results of a load generator",
    "memory_snapshot": "a memory snapshot",
}


class JudgedSubject:
    """A run, or the captures of one. `missing` says why there is nothing to judge, `numbers` are those of a run."""

    def __init__(
        self, *, name: str, opened: PerfAnalysis, missing: str | None = None, numbers: Mapping[str, float] | None = None
    ) -> None:
        self.name, self.opened, self.missing, self.numbers = name, opened, missing, numbers or {}
        self._asked: tuple[str, DataTable] | None = None

    def query(self, sql: str) -> DataTable:
        """The result of a statement; the pages of one are out of the same result."""
        if self._asked is None or self._asked[0] != sql:
            self._asked = (sql, self.opened.query(sql))
        return self._asked[1]

    def rows_in(self, view: str) -> int:
        """How many rows a view has."""
        return int(self.opened.query(f"SELECT count(*) AS n FROM {view}").columns["n"][0])


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
        numbers = {
            name: float(metric.value)
            for name, metric in read_run_result(run_dir).numbers.items()
            if isinstance(metric.value, int | float) and not isinstance(metric.value, bool)
        }
        opened = open_any(run_dir, limits=LIMITS, guard=bounded_process)
        return JudgedSubject(name=self._roots.name_of(run_dir), opened=opened, numbers=numbers)

    def _capture(self, paths: Sequence[Path]) -> JudgedSubject:
        from llm_perf_opt.capture.readers.kinds import capture_files, kind_of

        files = tuple(file for path in paths for file in capture_files(path))
        outside = [file for file in files if not self._roots.holds(file)]
        if outside:
            raise ConfigError(f"{as_data(str(outside[0]))}: a link that leads out of the folders this server may read")
        name = ", ".join(self._roots.name_of(path) for path in paths)
        other = next((NOT_JUDGED[kind] for kind in map(kind_of, files) if kind in NOT_JUDGED), None)
        missing = None if other is None else f"{other} holds no timeline; `llm-perf analyze` shows what it holds"
        opened = open_any(*files, detail=True, limits=LIMITS, guard=bounded_process)
        return JudgedSubject(name=name, opened=opened, missing=missing)


def _stamp(path: Path) -> tuple[str, int, int]:
    """What differs when a file, or the manifest of a run, does."""
    manifest = path / MANIFEST_FILE
    stat = (manifest if manifest.is_file() else path).stat()
    return str(path), stat.st_mtime_ns, stat.st_size

"""A run for notebooks: `load_run(path)` gives its numbers as tables that become frames of pandas or polars.

Nothing but the manifest is read before a table is requested, and each table is read once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llm_perf_opt.core.manifest import RunManifest, read_manifest
from llm_perf_opt.errors import ToolError

if TYPE_CHECKING:
    from llm_perf_opt.report.run_files import RunFiles

Value = float | int | str | bool | None


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """Columns of equal length by name."""

    columns: Mapping[str, Sequence[Value]]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def rows(self) -> list[dict[str, Value]]:
        """One mapping for each row."""
        names = list(self.columns)
        return [dict(zip(names, values, strict=True)) for values in zip(*self.columns.values(), strict=True)]

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame`."""
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise ToolError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        return pandas.DataFrame(dict(self.columns))

    def to_polars(self) -> Any:
        """A `polars.DataFrame`."""
        try:
            import polars
        except ModuleNotFoundError as error:
            raise ToolError("to_polars needs polars, which is not installed: pip install polars") from error
        return polars.DataFrame({name: _of_one_type(values) for name, values in self.columns.items()})


def _of_one_type(values: Sequence[Value]) -> list[Value]:
    """Whole numbers among others as these: polars takes a column's type from its first value."""
    if not any(isinstance(value, float) for value in values):
        return list(values)
    return [float(value) if type(value) is int else value for value in values]


@dataclass(frozen=True)
class LoadedRun:
    """A run directory. Tables are empty where the run did not measure what they hold."""

    path: Path
    manifest: RunManifest

    @cached_property
    def metrics(self) -> RunTable:
        """Every number of every stage: value, unit, spread, how, source, or the reason why there is none."""
        rows = [
            {
                "stage": stage.name,
                "metric": name,
                "value": metric.value if isinstance(metric.value, int | float) else None,
                "text": metric.value if isinstance(metric.value, str) else None,
                "unit": metric.unit,
                "p10": None if metric.spread is None else metric.spread.p10,
                "p90": None if metric.spread is None else metric.spread.p90,
                "n": None if metric.spread is None else metric.spread.n,
                "how": metric.how,
                "source": metric.source,
                "reason": metric.reason,
            }
            for stage in self.manifest.stages
            for name, metric in stage.metrics.items()
        ]
        return _run_table(rows)

    @cached_property
    def samples(self) -> RunTable:
        """Every sample of every repeat of the clean pass."""
        lines = self._files.samples
        names = list(dict.fromkeys(name for line in lines for name in line.values))
        return _run_table(
            [
                {
                    "sample_id": line.sample_id,
                    "repeat": line.repeat,
                    **{n: line.values.get(n) for n in names},
                }
                for line in lines
            ]
        )

    @cached_property
    def kernels(self) -> RunTable:
        """The kernels of the capture, the longest first."""
        from llm_perf_opt.report.run_files import Found

        capture = self._files.capture
        return _run_table([asdict(row) for row in capture.content.kernels] if isinstance(capture, Found) else [])

    @cached_property
    def operators(self) -> RunTable:
        """The operators of the profiled pass, as torch has them."""
        from llm_perf_opt.report.run_files import Found

        operators = self._files.operators
        return _run_table([asdict(row) for row in operators.content] if isinstance(operators, Found) else [])

    @cached_property
    def ranges(self) -> RunTable:
        """The named ranges of the capture: how often, how long, and how busy the GPU was meanwhile."""
        from llm_perf_opt.report.run_files import Found

        capture = self._files.capture
        rows = capture.content.ranges if isinstance(capture, Found) else ()
        return _run_table(
            [
                {
                    "name": row.name,
                    "parent": row.parent,
                    "instances": row.instances,
                    "wall_ns": row.wall_ns,
                    "kernel_count": row.kernel_count,
                    "kernel_ns": row.kernel_ns,
                    "gpu_busy_ns": row.gpu_busy_ns,
                    "gpu_idle_ns": row.gpu_idle_ns,
                    "launch_ns": row.launch_ns,
                }
                for row in rows
            ]
        )

    @cached_property
    def _files(self) -> "RunFiles":
        from llm_perf_opt.report.run_files import read_run_files

        return read_run_files(self.manifest, self.path)


def load_run(path: Path | str) -> LoadedRun:
    """Open the directory of a run; raises ManifestError where there is none."""
    folder = Path(path)
    return LoadedRun(path=folder, manifest=read_manifest(folder))


def _run_table(rows: Sequence[Mapping[str, Any]]) -> RunTable:
    names = list(rows[0]) if rows else []
    return RunTable(columns={name: [row[name] for row in rows] for name in names})

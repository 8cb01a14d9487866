"""Compare two analyses, runs or captures: one verdict, and the figures behind it."""

from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.api.analysis import PerfAnalysis
from llm_perf_opt.api.load import PathLike
from llm_perf_opt.api.sources import CaptureFiles

if TYPE_CHECKING:
    from llm_perf_opt.comparison.comparison import CompareDocument, MetricComparison
    from llm_perf_opt.comparison.differences import KernelChange
    from llm_perf_opt.pipeline.compare.sides import ReadSide

DEFAULT_THRESHOLD = 0.02


class Comparison:
    """A candidate against a baseline. `document` is what `llm-perf compare --json` prints."""

    def __init__(self, document: "CompareDocument") -> None:
        self.document = document

    @property
    def verdict(self) -> str:
        """In a word or two: `better`, `worse`, `same`, `inconclusive`, … as `compare.json` has it."""
        return self.document.verdict

    @property
    def sentence(self) -> str:
        """The verdict in words, with the figure it rests on."""
        return self.document.sentence

    @property
    def metrics(self) -> "tuple[MetricComparison, ...]":
        """Metrics measured on both sides."""
        return self.document.metrics

    @property
    def kernels(self) -> "tuple[KernelChange, ...]":
        """Kernels of both captures, the largest differences first."""
        return self.document.kernels

    @property
    def notes(self) -> tuple[str, ...]:
        return self.document.notes

    def __repr__(self) -> str:
        return f"Comparison({self.verdict}: {self.sentence})"

    def _repr_html_(self) -> str:
        from html import escape

        from llm_perf_opt.report.compare.compare_text import metric_table

        head, rows = metric_table(self.metrics)
        cells = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        table = f"<table><thead><tr>{top}</tr></thead><tbody>{cells}</tbody></table>" if rows else ""
        return f"<div><b>{escape(self.verdict)}</b>: {escape(self.sentence)}</div>{table}"


def compare(
    base: PathLike | PerfAnalysis,
    candidate: PathLike | PerfAnalysis,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    force: bool = False,
) -> Comparison:
    """Compare a candidate with a baseline: analyses, runs, directories of runs, or captures.

    Differences below `threshold` do not matter. Runs that did different work are refused unless `force` is given.
    """
    from llm_perf_opt.system.arrays import load_numpy

    load_numpy()
    from llm_perf_opt.pipeline.compare.compare_document import compare_read_sides
    from llm_perf_opt.pipeline.compare.sides import matched_sides

    sides = matched_sides(_side(base), _side(candidate), force=force)
    return Comparison(compare_read_sides(*sides, threshold=threshold, force=force))


def _side(given: PathLike | PerfAnalysis) -> "ReadSide":
    from llm_perf_opt.pipeline.compare.sides import capture_side, read_side

    if not isinstance(given, PerfAnalysis):
        return read_side(Path(given).expanduser())
    source = given._source
    if isinstance(source, CaptureFiles):
        return capture_side(Path(source.name), source.analyzed)
    assert given.path is not None
    return read_side(given.path)

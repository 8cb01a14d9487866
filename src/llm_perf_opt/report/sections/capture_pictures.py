"""Draws what sections of a capture show: files in the run directory, by the key of their section."""

from collections.abc import Sequence
from pathlib import Path

from msgspec import UNSET

from llm_perf_opt.capture.allocator_memory import MemoryCurve
from llm_perf_opt.capture.shapes import ShapesAnalysis
from llm_perf_opt.core.sections import Picture
from llm_perf_opt.core.units import count_of, digits
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.report.draw import ScatterPoint, scatter_svg, steps_svg
from llm_perf_opt.report.sections.capture_detail import MEMORY, SHAPES

POINTS = 300


def write_pictures(run_dir: Path, stage: str, analysis: CaptureAnalysis) -> dict[str, Picture]:
    """The pictures there is something to draw for."""
    drawn: dict[str, tuple[str, str, str]] = {}
    if analysis.shapes is not UNSET and (text := _shapes(analysis.shapes)):
        shows = "FLOP per byte against FLOP/s of each operator and shape; the area is its share of the time"
        drawn[SHAPES] = ("shapes.svg", text, shows)
    if analysis.memory is not UNSET:
        drawn[MEMORY] = ("memory.svg", _memory(analysis.memory), "bytes held by torch's allocator over the trace")
    found = {}
    for key, (name, text, shows) in drawn.items():
        (run_dir / stage / name).write_text(text, encoding="utf-8")
        found[key] = Picture(path=f"{stage}/{name}", shows=shows)
    return found


def _shapes(shapes: ShapesAnalysis) -> str:
    """Empty where nothing has FLOPs."""
    drawn = [row for row in shapes.rows if row.tflops and row.flop_per_byte][:POINTS]
    if not drawn:
        return ""
    most = max(row.time_ns for row in drawn)
    points = [
        ScatterPoint(
            x=row.flop_per_byte or 1.0,
            y=1e12 * (row.tflops or 1.0),
            weight=row.time_ns / most,
            group=row.kind,
            text=f"{row.operator} {row.shape}, {row.dtype}: {digits(row.tflops or 0)} TFLOP/s, "
            f"{digits(row.time_ns / 1e6)} ms in {count_of(row.calls, 'call')}",
        )
        for row in drawn
    ]
    peaks = shapes.roof.peak_tflops
    roofs = {f"{name} {digits(peaks[name])} TFLOP/s": 1e12 * peaks[name] for name in _formats(shapes) if name in peaks}
    slope = None if shapes.roof.bandwidth_gb_s is None else 1e9 * shapes.roof.bandwidth_gb_s
    return scatter_svg(points, roofs=roofs, slope=slope, title="Work by shape under the rooflines of the GPU")


def _memory(curves: Sequence[MemoryCurve]) -> str:
    """The GPU's curves; those of the host where there are no others."""
    shown = [curve for curve in curves if curve.device == "GPU"] or list(curves)
    several = len({curve.source for curve in shown}) > 1
    lines = {f"{c.device}, {Path(c.source).name}" if several else c.device: c.points for c in shown}
    length_ns = max(curve.length_ns for curve in shown)
    return steps_svg(lines, length_ns=length_ns, title="Memory held by torch's allocator")


def _formats(shapes: ShapesAnalysis) -> list[str]:
    return list(dict.fromkeys(row.dtype for row in shapes.rows))

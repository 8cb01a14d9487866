#!/usr/bin/env python3
"""Analyse a folder that ncu-profile-kernels wrote: figures, bounds, roofline and histograms, with their units.

Reads the CSV exports (or the reports) of every kernel_* folder in it, or of the folder itself, prints a table and
writes kernels.csv, kernels.json, kernels.md, roofline.svg and histograms.svg. Needs the package llm-perf-opt, no GPU
and, where the CSV files are, no ncu. Exit codes: 0 done, 1 a folder could not be read, 2 bad usage or nothing to read.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

from llm_perf_opt.capture.kernels.ncu_analysis import analyze_ncu
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis, NcuKernel
from llm_perf_opt.capture.readers.ncu_report import load_ncu_dir
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.profiling.ncu.ncu_results import kernels_csv
from llm_perf_opt.report.draw import roofline_svg
from llm_perf_opt.report.render.kernels_md import render_kernels_md

PROG = "analyze_ncu_dir"
PANEL_WIDTH, PANEL_HEIGHT, MARGIN = 300, 200, 44
COLUMNS = 2
BINS = 10
BAR_FILL = "#0072B2"


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=PROG, description=(__doc__ or "").splitlines()[0])
    parser.add_argument("dir", type=Path, help="output of ncu-profile-kernels, or one kernel_* folder of it")
    parser.add_argument("-o", "--output-dir", type=Path, help="where to write (default: DIR/analysis)")
    args = parser.parse_args(argv)
    folders = sorted(p for p in args.dir.glob("kernel_*") if p.is_dir()) or [args.dir]
    launches, bad = [], []
    for folder in folders:
        try:
            launches += load_ncu_dir(folder)
        except ProfilingError as error:
            bad.append(str(error))
    for message in bad:
        print(f"{PROG}: {message}", file=sys.stderr)
    if not launches:
        print(f"{PROG}: {args.dir}: nothing to analyse", file=sys.stderr)
        return 2
    analysis = analyze_ncu(launches)
    out = args.output_dir or args.dir / "analysis"
    write(analysis, out, title=args.dir.name)
    print("\n".join(table(analysis)))
    print(f"written to {out}")
    return 1 if bad else 0


def write(analysis: NcuAnalysis, out: Path, *, title: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "kernels.json", msgspec.to_builtins(analysis))
    files = {
        "kernels.csv": kernels_csv(analysis.kernels),
        "kernels.md": render_kernels_md(analysis, plots=["roofline.svg", "histograms.svg"]),
        "roofline.svg": roofline_svg(analysis.kernels, title=f"Roofline, {title}"),
        "histograms.svg": histograms_svg(series(analysis.kernels), title=f"Kernels of {title}"),
    }
    for name, text in files.items():
        (out / name).write_text(text, encoding="utf-8")


def series(kernels: tuple[NcuKernel, ...]) -> dict[str, list[float]]:
    """What the histograms show; a kernel without the value is left out of that panel."""
    columns = {
        "duration, µs": [(k.duration_ns, 1e-3) for k in kernels],
        "DRAM bandwidth, GB/s": [(k.dram_bytes_per_s, 1e-9) for k in kernels],
        "compute throughput, %": [(k.compute_sol_pct, 1.0) for k in kernels],
        "memory throughput, %": [(k.memory_sol_pct, 1.0) for k in kernels],
        "achieved occupancy, %": [(k.occupancy_pct, 1.0) for k in kernels],
        "intensity, FLOP/byte": [(k.intensity_flop_per_byte, 1.0) for k in kernels],
    }
    return {name: [v * factor for v, factor in cells if v is not None] for name, cells in columns.items()}


def table(analysis: NcuAnalysis) -> list[str]:
    header = f"{'kernel':<44}{'n':>4}{'us':>10}{'bound':>10}{'GB/s':>10}{'GFLOP/s':>12}{'FLOP/B':>9}{'occ %':>8}"
    rows = [header]
    for k in analysis.kernels:
        cells = (
            _cell(k.duration_ns, 1e-3, 10, 2), f"{k.bound:>10}", _cell(k.dram_bytes_per_s, 1e-9, 10, 1),
            _cell(k.flop_per_s, 1e-9, 12, 1), _cell(k.intensity_flop_per_byte, 1.0, 9, 2),
            _cell(k.occupancy_pct, 1.0, 8, 1),
        )  # fmt: skip
        rows.append(f"{k.short[:43]:<44}{k.launches:>4}{''.join(cells)}")
    return rows


def _cell(value: float | None, factor: float, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value * factor:>{width}.{digits}f}"


def histograms_svg(series: Mapping[str, Sequence[float]], *, title: str) -> str:
    """One panel per series with at least one value; percentages span 0 to 100, everything else its own values."""
    panels = [(name, values) for name, values in series.items() if values]
    rows = -(-len(panels) // COLUMNS)
    width, height = COLUMNS * PANEL_WIDTH, 40 + max(rows, 1) * PANEL_HEIGHT
    body = [f'<text x="14" y="24" font-size="16">{escape(title)}</text>']
    if not panels:
        body.append('<text x="14" y="60">No values.</text>')
    for index, (name, values) in enumerate(panels):
        left, top = index % COLUMNS * PANEL_WIDTH, 40 + index // COLUMNS * PANEL_HEIGHT
        body += _panel(name, values, left, top)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="11" fill="#222">\n<rect width="{width}" height="{height}" fill="#fff"/>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def bin_counts(values: Sequence[float], low: float, high: float) -> list[int]:
    """How many values fall into each of BINS equal parts; the highest value belongs to the last one."""
    counts = [0] * BINS
    span = (high - low) or 1.0
    for value in values:
        counts[min(BINS - 1, max(0, int((value - low) / span * BINS)))] += 1
    return counts


def _panel(name: str, values: Sequence[float], left: int, top: int) -> list[str]:
    low, high = (0.0, 100.0) if name.endswith("%") else (min(values), max(values))
    counts = bin_counts(values, low, high)
    bottom, wide = top + PANEL_HEIGHT - MARGIN, (PANEL_WIDTH - 2 * MARGIN) / BINS
    tall = PANEL_HEIGHT - 2 * MARGIN
    out = [f'<text x="{left + MARGIN}" y="{top + 24}">{escape(name)} (n = {len(values)})</text>']
    for index, count in enumerate(counts):
        size = tall * count / max(counts)
        x = left + MARGIN + index * wide
        out.append(
            f'<rect x="{x:.1f}" y="{bottom - size:.1f}" width="{wide - 1:.1f}" height="{size:.1f}" fill="{BAR_FILL}"/>'
        )
        if count:
            out.append(f'<text x="{x + wide / 2:.1f}" y="{bottom - size - 3:.1f}" text-anchor="middle">{count}</text>')
    right = left + PANEL_WIDTH - MARGIN
    out.append(f'<line x1="{left + MARGIN}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="#222"/>')
    out.append(f'<text x="{left + MARGIN}" y="{bottom + 16}">{low:.4g}</text>')
    out.append(f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{high:.4g}</text>')
    return out


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

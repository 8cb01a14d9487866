"""kernels.md: the kernels of a capture, what bounds each of them and what ncu advises.

kernels.md: every kernel of a run, and what ncu says about those it measured.

report.md of one profiled region (range replay): what ncu measured over the whole range.
"""

import re
from collections.abc import Sequence

from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis, NcuKernel
from llm_perf_opt.core.markdown import code, escape, plain, table
from llm_perf_opt.core.units import count_of, or_dash
from llm_perf_opt.report.render.report_md import kernel_table
from llm_perf_opt.report.view.report_view import ReportView

ADVICE_WIDTH = 220
STALLS_NAMED = 3
_TEXT_COLUMNS = ("kernel", "bound")
_HEADER = (
    *("#", "kernel", "GPU time", "launches", "mean", "bound"),
    *("of peak", "DRAM", "FLOP/s", "intensity", "occupancy"),
)


def render_kernels_md(analysis: NcuAnalysis, *, plots: Sequence[str] | None = None) -> str:
    """The whole page. `plots` are paths from where the page lies; without them those of the analysis."""
    lines = ["# Kernels", "", *_summary(analysis), *(f"- {plain(note)}" for note in analysis.capture_notes), ""]
    if not analysis.kernels:
        return "\n".join([*lines, "No kernel was profiled.", ""])
    rows = [_row(rank, k) for rank, k in enumerate(analysis.kernels, start=1)]
    lines += [*table(_HEADER, rows, right=[name for name in _HEADER if name not in _TEXT_COLUMNS]), ""]
    lines += [f"![{plain(plot)}]({plot})" for plot in (analysis.plots if plots is None else plots)]
    lines += ["", "## What ncu advises", ""]
    for rank, kernel in enumerate(analysis.kernels, start=1):
        lines += [*_details(rank, kernel), ""]
    return "\n".join(lines)


def _summary(analysis: NcuAnalysis) -> list[str]:
    device = f" on {analysis.device}" if analysis.device else ""
    lines = [f"- {analysis.launches} launches of {len(analysis.kernels)} kernels profiled by ncu{device}."]
    if analysis.match_rate is not None:
        lines.append(
            f"- {analysis.matched} of {len(analysis.kernels)} kernels found on the nsys timeline "
            f"({100 * analysis.match_rate:.0f} %); GPU time and launches are nsys's, everything else is ncu's."
        )
        known = [k.nsys_time_pct for k in analysis.kernels if k.nsys_time_pct is not None]
        whole = analysis.joined_with or "all kernels on the timeline"
        lines.append(f"- They make up {sum(known):.1f} % of the GPU time of {plain(whole)}.")
    else:
        lines.append("- No nsys timeline to join with: the share of GPU time is not known.")
    lines.append(f"- Bound: {analysis.bound_rule}.")
    lines.append(
        "- Of peak: the nearer of the two rooflines (operations of the busiest pipe, DRAM bytes), dense peaks."
    )
    lines.append("- Under ncu a kernel runs alone with cold caches, so its duration differs from that on the timeline.")
    return lines


def _row(rank: int, kernel: NcuKernel) -> tuple[str, ...]:
    mean_ns = kernel.duration_ns
    if kernel.nsys_total_ns is not None and kernel.nsys_instances:
        mean_ns = kernel.nsys_total_ns / kernel.nsys_instances
    return (
        str(rank),
        plain(kernel.short),
        or_dash(kernel.nsys_time_pct, "{:.1f} %"),
        str(kernel.launches if kernel.nsys_instances is None else kernel.nsys_instances),
        or_dash(mean_ns, "{:.2f} µs", unit=1e3),
        kernel.bound,
        or_dash(kernel.roof_pct, "{:.1f} %"),
        or_dash(kernel.dram_bytes_per_s, "{:,.1f} GB/s", unit=1e9),
        or_dash(kernel.flop_per_s, "{:,.1f} G", unit=1e9),
        or_dash(kernel.intensity_flop_per_byte, "{:.2f}"),
        or_dash(kernel.occupancy_pct, "{:.1f} %"),
    )


def _details(rank: int, kernel: NcuKernel) -> list[str]:
    lines = [f"### {rank}. {plain(kernel.short)}", "", f"`{kernel.kernel.replace('`', chr(39))}`", ""]
    if kernel.occupancy_theoretical_pct is not None:
        limiter = "" if kernel.occupancy_limiter in (None, "none") else f", limited by {kernel.occupancy_limiter}"
        achieved = or_dash(kernel.occupancy_pct, "{:.1f} %")
        lines.append(f"- Occupancy {achieved} of {kernel.occupancy_theoretical_pct:.1f} % theoretical{limiter}.")
    if kernel.stalls_pct:
        stalls = list(kernel.stalls_pct.items())[:STALLS_NAMED]
        words = ", ".join(f"{name.replace('_', ' ')} {share:.0f} %" for name, share in stalls)
        lines.append(f"- Warps stall on: {words}.")
    for item in kernel.advice:
        scope = f" {item.scope}" if item.scope else ""
        gain = f" (estimated{scope} speed-up {item.speedup_pct:.1f} %)" if item.speedup_pct is not None else ""
        lines.append(f"- {item.rule}{gain}: {plain(_shorten(item.text))}")
    lines += [f"- {key}: not known, {reason}." for key, reason in kernel.missing.items()]
    return lines


def _shorten(text: str) -> str:
    """The first sentences that fit."""
    if len(text) <= ADVICE_WIDTH:
        return text
    sentences = re.split(r"(?<=\.) ", text)
    out = sentences[0]
    for sentence in sentences[1:]:
        if len(out) + len(sentence) >= ADVICE_WIDTH:
            break
        out += f" {sentence}"
    return out


SHOWN = 200


def render_kernels_page(view: ReportView) -> str:
    kernels = view.kernels
    if kernels.missing is not None:
        return f"# Kernels\n\nUnknown: {escape(kernels.missing.text)}.\n"
    sources = ", ".join(code(s) for s in (kernels.source, kernels.ncu_source) if s)
    is_plain = view.is_bare and kernels.ncu_source is None
    lines = [
        "# Kernels",
        "",
        f"{len(kernels.rows)} kernels ({sources})." + ("" if is_plain else f" {escape(kernels.join)}"),
        "",
        f"Share is of all kernel time of {kernels.place}."
        if is_plain
        else f"Share is of all kernel time of {kernels.place}; prefill and decode are times of one prompt and of one "
        "token. Floor: the time the kernel's own FLOPs and bytes need at the data sheet's peaks. A dash: not measured.",
        "",
        *kernel_table(kernels, SHOWN, filled=view.is_bare),
    ]
    if len(kernels.rows) > SHOWN:
        lines += ["", f"{len(kernels.rows) - SHOWN} more are in {sources}."]
    lines += ["", *(f"- {escape(note)}" for note in kernels.notes)]
    if view.ncu is not None and view.ncu.kernels:
        text = render_kernels_md(view.ncu)
        lines += ["", "## Measured by ncu", *text.splitlines()[1:]]
    return "\n".join([*lines, "", "## Full names", "", *_names(view)]) + "\n"


def _names(view: ReportView) -> list[str]:
    rows = [(str(rank), code(row.name)) for rank, row in enumerate(view.kernels.rows[:SHOWN], start=1)]
    return table(("#", "name"), rows, right=("#",))


_ROWS = (
    ("duration", "duration_ns", 1e3, "{:,.2f} µs"),
    ("operations", "flop_per_s", 1e9, "{:,.1f} GFLOP/s"),
    ("DRAM traffic", "dram_bytes", 1e6, "{:,.2f} MB"),
    ("DRAM bandwidth", "dram_bytes_per_s", 1e9, "{:,.1f} GB/s"),
    ("arithmetic intensity", "intensity_flop_per_byte", 1.0, "{:.3f} FLOP/byte"),
    ("compute throughput", "compute_sol_pct", 1.0, "{:.1f} % of peak"),
    ("memory throughput", "memory_sol_pct", 1.0, "{:.1f} % of peak"),
    ("of peak", "roof_pct", 1.0, "{:.1f} %"),
)


def render_region_md(label: str, row: NcuKernel) -> str:
    """One region's page. A value ncu did not measure is a dash with its reason."""
    lines = [
        f"# Region {label}",
        "",
        f"Measured by ncu as one range: {count_of(row.launches, 'instance')}. Bound: {row.bound}.",
        "",
    ]
    values = vars(row)
    rows = [(name, or_dash(values[key], form, unit=unit)) for name, key, unit, form in _ROWS]
    lines += table(("what", "measured"), rows, right=("measured",))
    lines += ["", *(f"- {key}: not known, {reason}." for key, reason in row.missing.items())]
    return "\n".join(lines).rstrip() + "\n"

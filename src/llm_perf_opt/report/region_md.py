"""report.md of one profiled region (range replay): what ncu measured over the whole range."""

from llm_perf_opt.analysis.kernels.ncu_records import NcuKernel
from llm_perf_opt.core.markdown import table
from llm_perf_opt.core.units import or_dash

_ROWS = (
    ("duration", "duration_ns", 1e3, "{:,.2f} µs"),
    ("operations", "flop_per_s", 1e9, "{:,.1f} GFLOP/s"),
    ("DRAM traffic", "dram_bytes", 1e6, "{:,.2f} MB"),
    ("DRAM bandwidth", "dram_bytes_per_s", 1e9, "{:,.1f} GB/s"),
    ("arithmetic intensity", "intensity_flop_per_byte", 1.0, "{:.3f} FLOP/byte"),
    ("compute throughput", "compute_sol_pct", 1.0, "{:.1f} % of peak"),
    ("memory throughput", "memory_sol_pct", 1.0, "{:.1f} % of peak"),
    ("of roof", "roof_pct", 1.0, "{:.1f} %"),
)


def render_region_md(label: str, row: NcuKernel) -> str:
    """One region's page. A value ncu did not measure is a dash with its reason."""
    lines = [f"# Region {label}", "", f"Measured {row.launches} time(s) by ncu as one range. Bound: {row.bound}.", ""]
    values = vars(row)
    rows = [(name, or_dash(values[key], form, unit=unit)) for name, key, unit, form in _ROWS]
    lines += table(("what", "measured"), rows, right=("measured",))
    lines += ["", *(f"- {key}: not known, {reason}." for key, reason in row.missing.items())]
    return "\n".join(lines).rstrip() + "\n"

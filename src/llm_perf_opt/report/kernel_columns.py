"""The columns of the kernel table, each declared once: the page, its script and the markdown pages read them by name.

A new figure of ncu is one entry in `MEASURED`; only a unit nobody has used yet needs a line in `FORMATS` and in the
script's `text`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.analysis.kernels.ncu_records import NcuKernel
from llm_perf_opt.core.units import digits, format_count, format_ms, format_percent
from llm_perf_opt.report.view.kernels import VIEWS, KernelRowView

Value = float | str | None
Unit = Literal["ms", "share", "launches", "us", "%", "B/s", "FLOP/s"]

FORMATS: Mapping[Unit, Callable[[float], str]] = {
    "ms": format_ms,
    "share": format_percent,
    "launches": lambda value: f"{value:,.0f}",
    "us": lambda value: format_ms(value / 1e3),
    "%": lambda value: f"{digits(value)} %",
    "B/s": lambda value: f"{digits(value / 1e9)} GB/s",
    "FLOP/s": lambda value: format_count(value, "FLOP/s"),
}


@dataclass(frozen=True, kw_only=True)
class KernelColumn:
    """One column. `key` is its name in the page's data and script; a column without a unit holds words."""

    key: str
    title: str
    value: Callable[[KernelRowView], Value]
    unit: Unit | None = None
    explain: str | None = None

    @property
    def heading(self) -> str:
        return self.title[0].upper() + self.title[1:]

    def text(self, row: KernelRowView) -> str:
        return show_value(self.value(row), self.unit)


def _ncu(of: Callable[[NcuKernel], Value]) -> Callable[[KernelRowView], Value]:
    """A figure of ncu, for the kernels it measured."""
    return lambda row: None if row.ncu is None else of(row.ncu)


# What does not depend on the phase chosen, behind the kernel's name, class, times and launches.
MEASURED = (
    KernelColumn(key="mean", title="mean", unit="us", value=lambda row: row.mean_us),
    KernelColumn(key="bound", title="bound", value=_ncu(lambda ncu: ncu.bound)),
    KernelColumn(
        key="roof",
        title="of roof",
        unit="%",
        value=_ncu(lambda ncu: ncu.roof_pct),
        explain="the nearer of the compute and the memory roof",
    ),
    KernelColumn(key="dram", title="DRAM", unit="B/s", value=_ncu(lambda ncu: ncu.dram_bytes_per_s)),
    KernelColumn(key="flops", title="FLOP/s", unit="FLOP/s", value=_ncu(lambda ncu: ncu.flop_per_s)),
    KernelColumn(key="occupancy", title="occupancy", unit="%", value=_ncu(lambda ncu: ncu.occupancy_pct)),
    KernelColumn(
        key="floor",
        title="floor",
        unit="us",
        value=lambda row: row.floor_us,
        explain="time its own FLOPs and bytes need at the data sheet's peaks",
    ),
)


def show_value(value: Value, unit: Unit | None) -> str:
    """A dash stands for what was not measured."""
    if value is None or value == "":
        return "—"
    return str(value) if unit is None or isinstance(value, str) else FORMATS[unit](value)


def script_values(row: KernelRowView) -> dict[str, Value]:
    """Everything the script knows of a kernel, by name; times and launches once for each view."""
    ncu = row.ncu
    times, launches = zip(VIEWS, row.time_ms, strict=True), zip(VIEWS, row.launches, strict=True)
    return {
        "name": row.short_name,
        "full": row.name if row.name != row.short_name else None,
        "class": row.kernel_class,
        "module": row.module,
        "generated": row.generated,
        "limiter": ncu.occupancy_limiter if ncu and ncu.occupancy_limiter != "none" else None,
        "advice": ncu.advice[0].text if ncu and ncu.advice else None,
        **{f"time_{view}": value for view, value in times},
        **{f"launches_{view}": value for view, value in launches},
        **{column.key: column.value(row) for column in MEASURED},
    }

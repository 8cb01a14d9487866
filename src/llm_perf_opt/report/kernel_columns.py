"""The columns of the kernel table, each declared once: the page, its script and the markdown pages read them by name.

A new figure of ncu is one entry in `COLUMNS`; only a new unit needs a line in `FORMATS` and in the
script's `text`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.capture.kernels.ncu_records import NcuKernel
from llm_perf_opt.core.units import digits, format_bytes, format_count, format_ms, format_percent
from llm_perf_opt.report.view.kernels_view import VIEWS, KernelRowView

Value = float | str | None
Unit = Literal["ms", "share", "launches", "us", "%", "B/s", "FLOP/s", "B", "count"]

FORMATS: Mapping[Unit, Callable[[float], str]] = {
    "ms": format_ms,
    "share": format_percent,
    "launches": lambda value: f"{value:,.0f}",
    "us": lambda value: format_ms(value / 1e3),
    "%": lambda value: f"{digits(value)} %",
    "B/s": lambda value: f"{digits(value / 1e9)} GB/s",
    "FLOP/s": lambda value: format_count(value, "FLOP/s"),
    "B": format_bytes,
    "count": lambda value: f"{value:,.0f}" if float(value).is_integer() else digits(value),
}


@dataclass(frozen=True, kw_only=True)
class KernelColumn:
    """One column. `key` is its name in the page's data and script; a column without a unit holds words.

    `is_first`: shown from the start, on the markdown pages too; the others are there to be chosen.
    """

    key: str
    title: str
    value: Callable[[KernelRowView], Value]
    unit: Unit | None = None
    explain: str | None = None
    is_first: bool = True

    @property
    def heading(self) -> str:
        return self.title[0].upper() + self.title[1:]

    def texts(self, rows: Sequence[KernelRowView]) -> list[str]:
        return column_texts([self.value(row) for row in rows], self.unit)


def _ncu(of: Callable[[NcuKernel], Value]) -> Callable[[KernelRowView], Value]:
    """A figure of ncu, for the kernels it measured."""
    return lambda row: None if row.ncu is None else of(row.ncu)


# What does not depend on the phase chosen, behind the kernel's name, class, times and launches.
COLUMNS = (
    KernelColumn(key="mean", title="mean", unit="us", value=lambda row: row.mean_us, explain="time of one launch"),
    KernelColumn(key="min", title="min", unit="us", value=lambda row: row.min_us, is_first=False),
    KernelColumn(key="max", title="max", unit="us", value=lambda row: row.max_us, is_first=False),
    KernelColumn(
        key="stddev",
        title="deviation",
        unit="us",
        value=lambda row: row.stddev_us,
        explain="standard deviation of the launches",
        is_first=False,
    ),
    KernelColumn(
        key="per_prefill",
        title="per prefill",
        unit="count",
        value=lambda row: row.launches[1],
        explain="launches in one prefill",
        is_first=False,
    ),
    KernelColumn(
        key="per_step",
        title="per step",
        unit="count",
        value=lambda row: row.launches[2],
        explain="launches in one decode step",
        is_first=False,
    ),
    KernelColumn(
        key="bound",
        title="bound",
        value=_ncu(lambda ncu: ncu.bound),
        explain="what limits it: compute, memory, or neither (latency)",
    ),
    KernelColumn(
        key="roof",
        title="of peak",
        unit="%",
        value=_ncu(lambda ncu: ncu.roof_pct),
        explain="% of the nearer of compute peak and memory peak",
    ),
    KernelColumn(
        key="dram",
        title="DRAM",
        unit="B/s",
        value=_ncu(lambda ncu: ncu.dram_bytes_per_s),
        explain="bytes to and from GPU memory by time",
    ),
    KernelColumn(key="flops", title="FLOP/s", unit="FLOP/s", value=_ncu(lambda ncu: ncu.flop_per_s)),
    KernelColumn(
        key="occupancy",
        title="occupancy",
        unit="%",
        value=_ncu(lambda ncu: ncu.occupancy_pct),
        explain="active warps, % of the SM's maximum",
    ),
    KernelColumn(
        key="floor",
        title="floor",
        unit="us",
        value=lambda row: row.floor_us,
        explain="lower bound: time for the kernel's FLOPs and bytes at data-sheet peaks",
    ),
    KernelColumn(
        key="grid", title="grid", value=lambda row: "; ".join(row.grids) or None, explain="blocks", is_first=False
    ),
    KernelColumn(
        key="block",
        title="block",
        value=lambda row: "; ".join(row.blocks) or None,
        explain="threads of a block",
        is_first=False,
    ),
    KernelColumn(
        key="registers",
        title="registers",
        unit="count",
        value=lambda row: row.registers,
        explain="of one thread",
        is_first=False,
    ),
    KernelColumn(
        key="shared",
        title="shared memory",
        unit="B",
        value=lambda row: row.shared_bytes,
        explain="of one block",
        is_first=False,
    ),
)
MEASURED = tuple(column for column in COLUMNS if column.is_first)


def show_value(value: Value, unit: Unit | None) -> str:
    """A dash stands for what was not measured."""
    if value is None or value == "":
        return "—"
    return str(value) if unit is None or isinstance(value, str) else FORMATS[unit](value)


# Units whose values in one column share a scale: the first that the largest value reaches, and its name.
SCALES: Mapping[Unit, tuple[tuple[float, str], ...]] = {
    "ms": ((1e3, "s"), (1.0, "ms"), (1e-3, "µs")),
    "us": ((1e6, "s"), (1e3, "ms"), (1.0, "µs")),
    "B/s": ((1e9, "GB/s"),),
    "share": ((1e-2, "%"),),
    "%": ((1.0, "%"),),
}
DIGITS, MOST_PLACES = 4, 2


def column_texts(values: Sequence[Value], unit: Unit | None) -> list[str]:
    """The texts of a column: times, rates and shares in one unit with the same decimal places, as in the script."""
    if unit is None or unit not in SCALES:
        return [show_value(value, unit) for value in values]
    largest = max((abs(value) for value in values if isinstance(value, int | float)), default=0.0)
    sizes = SCALES[unit]
    size, name = next((each for each in sizes if largest >= each[0]), sizes[-1])
    whole = math.floor(math.log10(largest / size)) + 1 if largest else 1
    places = min(max(DIGITS - whole, 0), MOST_PLACES)
    return [f"{_fixed(v / size, places)} {name}" if isinstance(v, int | float) else show_value(v, None) for v in values]


def _fixed(value: float, places: int) -> str:
    least = 10.0**-places
    return f"< {least:.{places}f}" if value and abs(value) < 0.5 * least else f"{value:,.{places}f}"


def script_values(row: KernelRowView) -> dict[str, Value]:
    """Everything the script knows of a kernel, by name; times, launches and modules once for each view."""
    times, launches = zip(VIEWS, row.time_ms, strict=True), zip(VIEWS, row.launches, strict=True)
    return {
        "name": row.short_name,
        "full": row.name if row.name != row.short_name else None,
        "class": row.kernel_class,
        "generated": row.generated,
        **{f"module_{view}": value for view, value in zip(VIEWS, row.modules, strict=True)},
        **{f"time_{view}": value for view, value in times},
        **{f"launches_{view}": value for view, value in launches},
        **{column.key: column.value(row) for column in COLUMNS},
    }


# A heading and its lines: what is reported, and the value.
Detail = tuple[str, tuple[tuple[str, str], ...]]


def kernel_details(row: KernelRowView) -> tuple[Detail, ...]:
    """Everything ncu knows of a kernel, in the order it is read; none for kernels it did not measure."""
    ncu = row.ncu
    if ncu is None:
        return ()
    found = (
        ("Launch", _launch(ncu)),
        ("Speed", _speed(ncu)),
        ("Occupancy", _occupancy(ncu)),
        ("Why warps wait", tuple((_words(name), _percent(share)) for name, share in ncu.stalls_pct.items())),
        ("Busiest units, % of peak", tuple((name, _percent(share)) for name, share in ncu.breakdown_pct.items())),
        ("What ncu advises", tuple((_advice(a.rule, a.speedup_pct, a.scope), a.text) for a in ncu.advice)),
        ("Not known", tuple((_words(name), reason) for name, reason in ncu.missing.items())),
    )
    return tuple((heading, lines) for heading, lines in found if lines)


def _percent(value: float) -> str:
    return f"{digits(value)} %"


def _words(name: str) -> str:
    return name.replace("_", " ")


def _advice(rule: str, speedup_pct: float | None, scope: str | None) -> str:
    if speedup_pct is None:
        return rule
    return f"{rule} (estimated {scope + ' ' if scope else ''}speed-up {digits(speedup_pct)} %)"


def _known(*lines: tuple[str, float | None, Unit]) -> tuple[tuple[str, str], ...]:
    return tuple((name, show_value(value, unit)) for name, value, unit in lines if value is not None)


def _launch(ncu: NcuKernel) -> tuple[tuple[str, str], ...]:
    texts = (("grid", "; ".join(ncu.grids)), ("block", "; ".join(ncu.blocks)), ("in ranges", "; ".join(ncu.ranges)))
    return (
        *((name, text) for name, text in texts if text),
        *_known(
            ("launches measured", float(ncu.launches), "count"),
            ("registers per thread", ncu.registers_per_thread, "count"),
            ("shared memory per block", ncu.shared_bytes_per_block, "B"),
            ("waves per SM", ncu.waves_per_sm, "count"),
            ("passes of ncu", ncu.passes, "count"),
        ),
    )


def _speed(ncu: NcuKernel) -> tuple[tuple[str, str], ...]:
    def micro(value: float | None) -> float | None:
        return None if value is None else value / 1e3

    intensity = ncu.intensity_flop_per_byte
    return (
        *_known(
            ("duration under ncu", micro(ncu.duration_ns), "us"),
            ("compute throughput, of peak", ncu.compute_sol_pct, "%"),
            ("memory throughput, of peak", ncu.memory_sol_pct, "%"),
            ("DRAM throughput, of peak", ncu.dram_sol_pct, "%"),
            ("of the compute peak", ncu.compute_roof_pct, "%"),
            ("of the memory peak", ncu.memory_roof_pct, "%"),
            ("DRAM", ncu.dram_bytes_per_s, "B/s"),
            ("L2", ncu.l2_bytes_per_s, "B/s"),
            ("L1", ncu.l1_bytes_per_s, "B/s"),
            *((f"{pipe} pipe", rate, "FLOP/s") for pipe, rate in ncu.flop_per_s_by_pipe.items() if rate > 0),
            *((f"{cache} hit rate", rate, "%") for cache, rate in ncu.hit_rates_pct.items()),
        ),
        *((("intensity", f"{digits(intensity)} FLOP/byte"),) if intensity is not None else ()),
    )


def _occupancy(ncu: NcuKernel) -> tuple[tuple[str, str], ...]:
    limiter = ncu.occupancy_limiter
    return (
        *_known(("achieved", ncu.occupancy_pct, "%"), ("theoretical", ncu.occupancy_theoretical_pct, "%")),
        *((("limited by", limiter),) if limiter not in (None, "none") else ()),
    )

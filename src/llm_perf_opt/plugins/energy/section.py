"""What the page and the Perfetto trace show of the energy: a table by phase, power over time, counters."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from llm_perf_opt.plugin import (
    ChartBand,
    CounterDocument,
    CounterSpan,
    CounterTrack,
    Picture,
    Section,
    SectionTable,
    StageContext,
    WorkloadSpan,
    draw_chart,
)
from llm_perf_opt.plugins.energy.document import DeviceEnergy, EnergyDocument
from llm_perf_opt.plugins.energy.meters import Metered, Reading

MOST_POINTS = 1500
MOST_BANDS = 400
BANDED = ("prefill", "decode")


def energy_section(
    ctx: StageContext,
    document: EnergyDocument,
    metered: Sequence[Metered],
    spans: Sequence[WorkloadSpan],
    source: str,
) -> Section:
    """The stage's section; its picture is power over the requests."""
    title = "Energy"
    name = "power.svg"
    first = min(span.start_ns for span in spans)
    last = max(span.end_ns for span in spans)
    lines = {m.device: _seconds(power_points(m.readings), first, last) for m in metered}
    bands = [
        ChartBand(start=(s.start_ns - first) / 1e9, end=(s.end_ns - first) / 1e9, label=s.name)
        for s in spans
        if s.name in BANDED
    ]
    drawn = draw_chart(
        {device: points for device, points in lines.items() if points},
        title="Power over the requests",
        x_unit="s",
        y_unit="W",
        bands=bands if len(bands) <= MOST_BANDS else (),
    )
    (ctx.out_dir / name).write_text(drawn, encoding="utf-8")
    return Section(
        title=title,
        paragraphs=(
            "Joules of the workload, metered while it ran unprofiled. Idle power is what the device drew before "
            "the workload was started; it is in the first columns and taken off in the last two.",
            *document.warnings,
        ),
        metrics=(
            "joules_per_token",
            "joules_per_token_above_idle",
            "prefill_joules_per_token",
            "decode_joules_per_token",
            "request_joules",
            "idle_power_w",
            "mean_power_w",
            "energy_check_pct",
        ),
        tables=(_phases(document, source), _devices(document.devices, source)),
        picture=Picture(path=f"{ctx.out_dir.name}/{name}", shows="power of each device over time, phases shaded"),
    )


def _phases(document: EnergyDocument, source: str) -> SectionTable:
    return SectionTable(
        title="By phase",
        columns=(
            "phase",
            "device",
            "times",
            "s",
            "tokens",
            "J",
            "mean W",
            "J/token",
            "J above idle",
            "J/token above idle",
        ),
        rows=tuple(
            (
                row.phase,
                device.device,
                row.count,
                row.seconds,
                row.tokens,
                row.joules,
                row.mean_w,
                row.joules_per_token,
                row.above_idle_j,
                row.above_idle_j_per_token,
            )
            for device in document.devices
            for row in device.phases
        ),
        source=source,
    )


def _devices(devices: Sequence[DeviceEnergy], source: str) -> SectionTable:
    return SectionTable(
        title="Meters",
        columns=(
            "device",
            "meter",
            "refresh, ms",
            "idle W",
            "counter J",
            "trapezoid J",
            "SM clock, MHz",
            "°C",
            "throttled by",
        ),
        rows=tuple(
            (
                device.device,
                device.energy_how,
                device.refresh_ms,
                device.idle_w,
                device.counter_j,
                device.trapezoid_j,
                None if device.steadiness is None else device.steadiness.sm_clock_mhz_median,
                None if device.steadiness is None else device.steadiness.temperature_c_max,
                _throttled(device),
            )
            for device in devices
        ),
        source=source,
    )


def _throttled(device: DeviceEnergy) -> str | None:
    shares = None if device.steadiness is None else device.steadiness.throttle_shares
    if shares is None:
        return None
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares.items()) or "nothing"


def power_points(readings: Sequence[Reading]) -> list[tuple[int, float]]:
    """Power over time: as reported, or from the increase of the counter between two readings."""
    known_power = [(r.at_ns, r.power_w) for r in readings if r.power_w is not None]
    if known_power:
        return known_power
    known = [(r.at_ns, r.energy_j) for r in readings if r.energy_j is not None]
    return [(b, (y - x) / ((b - a) / 1e9)) for (a, x), (b, y) in pairwise(known) if b > a]


def _seconds(points: Sequence[tuple[int, float]], first: int, last: int) -> list[tuple[float, float]]:
    """The part inside, from its beginning on; of many points one of each group is kept."""
    inside = [((at - first) / 1e9, value) for at, value in points if first <= at <= last]
    step = 1 + len(inside) // MOST_POINTS
    return inside[::step]


def write_counters(out_dir: Path, metered: Sequence[Metered], spans: Sequence[WorkloadSpan]) -> Path:
    """Power, clock and temperature of every device with the phases alongside them, for the Perfetto trace."""
    tracks = []
    for one in metered:
        tracks.append(CounterTrack(name=f"{one.device} power", unit="W", points=tuple(power_points(one.readings))))
        clock = tuple((d.at_ns, d.sm_clock_mhz) for d in one.details if d.sm_clock_mhz is not None)
        heat = tuple((d.at_ns, d.temperature_c) for d in one.details if d.temperature_c is not None)
        tracks += [CounterTrack(name=f"{one.device} SM clock", unit="MHz", points=clock)] if clock else []
        tracks += [CounterTrack(name=f"{one.device} temperature", unit="°C", points=heat)] if heat else []
    marked = tuple(CounterSpan(name=s.name, start_ns=s.start_ns, end_ns=s.end_ns) for s in spans)
    document = CounterDocument(title="energy: meters alongside a clean pass", tracks=tuple(tracks), spans=marked)
    path = out_dir / "counters.json"
    path.write_text(json.dumps(asdict(document), allow_nan=False) + "\n", encoding="utf-8")
    return path

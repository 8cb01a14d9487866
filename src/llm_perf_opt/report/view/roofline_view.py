"""Roofline: kernels and phases against the data-sheet peak and the achievable one, and how much of peaks is used."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis, NcuKernel
from llm_perf_opt.core.records import Spread
from llm_perf_opt.core.units import format_ms, format_rate
from llm_perf_opt.diagnosis.facts import Known, PhaseFacts, Quantity, RunFacts, Unknown
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.hardware.roofline import mbu, mfu
from llm_perf_opt.model.hardware.work import BYTES, short_dtype
from llm_perf_opt.model.static.static_document import StaticDocument
from llm_perf_opt.report.run_files import Found, RunFiles
from llm_perf_opt.report.view.kernels_view import KernelRowView, KernelsView

# More of them would hide each other, and make the page heavy.
MOST_POINTS = 400


@dataclass(frozen=True, kw_only=True)
class Roof:
    """min(flops_per_s, intensity × bytes_per_s)."""

    label: str
    kind: str
    flops_per_s: float
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """`weight` from 0 to 1 sets the size; `phases` the phases it belongs to."""

    label: str
    kind: str
    group: str
    intensity: float
    flops_per_s: float
    weight: float
    detail: str
    phases: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RooflineView:
    """`x` and `y` are the ends of the axes as powers of ten."""

    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]
    x: tuple[int, int]
    y: tuple[int, int]
    notes: tuple[str, ...]
    missing: Unknown | None = None


def roofline_view(files: RunFiles, facts: RunFacts, kernels: KernelsView) -> RooflineView:
    roofs = _roofs(files)
    placed = sorted(_kernel_points(kernels), key=lambda point: -point.weight)
    points = (*placed[:MOST_POINTS], *_phase_points(facts))
    notes = []
    if len(placed) > MOST_POINTS:
        notes.append(f"The {MOST_POINTS} heaviest kernels are drawn; without a point: {len(placed) - MOST_POINTS:,}.")
    if not facts.is_cpu and not any(p.kind == "kernel" for p in points):
        notes.append("No kernel is drawn: their FLOPs and bytes come from ncu (pipeline.ncu.enable=true).")
    hidden = sum(1 for row in kernels.rows if row.ncu is not None and _does_no_flop(row.ncu))
    if hidden:
        notes.append(f"Kernels without floating-point work, which have no place on these axes: {hidden}.")
    missing = None
    if not roofs:
        reason = files.static.content.hardware.reason if isinstance(files.static, Found) else files.static.reason
        missing = Unknown(
            reason=reason or "the hardware's peaks are not known", enable="hardware=<entry> or hardware.calibrate=true"
        )
    elif not points:
        missing = Unknown(
            reason="neither a phase nor a kernel was measured", enable="pipeline.torch_profiler.enable=true"
        )
    x, y = _axes(roofs, points)
    return RooflineView(roofs=roofs, points=points, x=x, y=y, notes=tuple(notes), missing=missing)


def _roofs(files: RunFiles) -> tuple[Roof, ...]:
    if isinstance(files.static, Unknown):
        return _measured_roofs(files.ncu.content) if isinstance(files.ncu, Found) else ()
    static = files.static.content
    hardware, dtype = static.hardware, static.dtype
    found = []
    sheet, bandwidth = hardware.peak_tflops.get(dtype), hardware.memory_bandwidth_gb_s
    if sheet is not None and bandwidth is not None:
        label = f"data sheet, {dtype}: {format_rate(sheet * 1e12, 'FLOP')}, {format_rate(bandwidth * 1e9, 'B')}"
        found.append(Roof(label=label, kind="datasheet", flops_per_s=sheet * 1e12, bytes_per_s=bandwidth * 1e9))
    reached, copied = hardware.achieved_tflops.get(dtype), hardware.achieved_bandwidth_gb_s
    if reached is not None and copied is not None:
        label = f"achievable, {dtype}: {format_rate(reached * 1e12, 'FLOP')}, {format_rate(copied * 1e9, 'B')}"
        found.append(Roof(label=label, kind="achievable", flops_per_s=reached * 1e12, bytes_per_s=copied * 1e9))
    return tuple(found)


def _measured_roofs(ncu: NcuAnalysis) -> tuple[Roof, ...]:
    """The peaks ncu states of the pipes its kernels used, at the clocks it measured with."""
    bandwidth = max((k.peak_dram_bytes_per_s or 0.0 for k in ncu.kernels), default=0.0)
    peaks: dict[str, float] = {}
    for kernel in ncu.kernels:
        for pipe, rate in kernel.flop_per_s_by_pipe.items():
            if rate > 0 and pipe in kernel.peak_flop_per_s:
                peaks[pipe] = max(peaks.get(pipe, 0.0), kernel.peak_flop_per_s[pipe])
    if not bandwidth:
        return ()
    return tuple(
        Roof(
            label=f"ncu, {pipe}: {format_rate(peak, 'FLOP')}, {format_rate(bandwidth, 'B')}",
            kind="datasheet",
            flops_per_s=peak,
            bytes_per_s=bandwidth,
        )
        for pipe, peak in sorted(peaks.items(), key=lambda item: -item[1])
    )


def _does_no_flop(kernel: NcuKernel) -> bool:
    return kernel.intensity_flop_per_byte is not None and (kernel.flop_per_s or 0) <= 0


def _kernel_points(kernels: KernelsView) -> Iterable[Point]:
    total = kernels.totals_ms[0] or 0.0
    for row in kernels.rows:
        ncu = row.ncu
        if ncu is None or not ncu.intensity_flop_per_byte or not ncu.flop_per_s:
            continue
        intensity, flops_per_s = ncu.intensity_flop_per_byte, ncu.flop_per_s
        time = row.time_ms[0]
        share = time / total if time is not None and total else 0.0
        phases = tuple(name for name, ms in zip(("prefill", "decode"), row.time_ms[1:], strict=True) if ms is not None)
        roof = "" if ncu.roof_pct is None else f", {ncu.roof_pct:.0f} % of the roofline"
        yield Point(
            label=row.short_name,
            kind="kernel",
            group=row.kernel_class,
            intensity=intensity,
            flops_per_s=flops_per_s,
            weight=min(1.0, math.sqrt(share)),
            detail=f"{row.kernel_class}, {intensity:.3g} FLOP/byte, {format_rate(flops_per_s, 'FLOP')}{roof}"
            + "".join(f", {100 * part:.1f} % of {of}" for part, of in _shares(row, kernels)),
            phases=phases,
        )


def _shares(row: KernelRowView, kernels: KernelsView) -> Iterable[tuple[float, str]]:
    """Of the kernel time of each phase it runs in; of all kernel time where no phase is known."""
    names = ("all kernel time", "prefill's kernel time", "decode's kernel time")
    found = [
        (time / total, name)
        for time, total, name in zip(row.time_ms, kernels.totals_ms, names, strict=True)
        if time and total
    ]
    return found[1:] or found


def _phase_points(facts: RunFacts) -> Iterable[Point]:
    for phase in facts.phases.values():
        if not (isinstance(phase.flops, Known) and isinstance(phase.bytes, Known) and isinstance(phase.wall, Known)):
            continue
        if phase.bytes.value <= 0 or phase.wall.value <= 0 or phase.flops.value <= 0:
            continue
        rate = phase.flops.value / (phase.wall.value / 1e3)
        yield Point(
            label=f"{phase.name} (whole phase)",
            kind="phase",
            group="phase",
            intensity=phase.flops.value / phase.bytes.value,
            flops_per_s=rate,
            weight=1.0,
            detail=f"needed work over the clean {format_ms(phase.wall.value)} {phase.per}: {format_rate(rate, 'FLOP')}",
            phases=(phase.name,),
        )


def _axes(roofs: tuple[Roof, ...], points: tuple[Point, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Whole powers of ten around everything drawn."""
    xs = [p.intensity for p in points] + [r.flops_per_s / r.bytes_per_s for r in roofs]
    ys = [p.flops_per_s for p in points] + [r.flops_per_s for r in roofs]
    return _decades(xs, (-1, 3)), _decades(ys, (9, 15))


def _decades(values: list[float], default: tuple[int, int]) -> tuple[int, int]:
    if not values:
        return default
    low = math.floor(math.log10(min(values)) - 0.15)
    high = math.ceil(math.log10(max(values)) + 0.15)
    return low, max(high, low + 1)


def peak_flops(static: StaticDocument) -> tuple[float, str] | Unknown:
    """The peak for the run's format: the data sheet's, on a device without one the calibrated."""
    try:
        dtype = short_dtype(static.dtype, where="dtype")
    except ConfigError as error:
        return Unknown(reason=str(error))
    hardware = static.hardware
    if dtype in hardware.peak_tflops:
        return hardware.peak_tflops[dtype] * 1e12, f"data-sheet peak of {hardware.name} in {dtype}"
    if not hardware.peak_tflops and dtype in hardware.achieved_tflops:
        return hardware.achieved_tflops[dtype] * 1e12, f"calibrated peak of {hardware.name} in {dtype}"
    reason = hardware.reason or f"no peak of {hardware.name or 'this device'} for {dtype} is known"
    return Unknown(
        reason=reason, enable=f"hardware.peak_tflops.{dtype if dtype in BYTES else 'bf16'}=… or hardware.calibrate=true"
    )


def peak_bytes(static: StaticDocument) -> tuple[float, str] | Unknown:
    hardware = static.hardware
    if hardware.memory_bandwidth_gb_s is not None:
        return hardware.memory_bandwidth_gb_s * 1e9, f"data-sheet bandwidth of {hardware.name}"
    if hardware.achieved_bandwidth_gb_s is not None:
        return hardware.achieved_bandwidth_gb_s * 1e9, f"calibrated bandwidth of {hardware.name}"
    reason = hardware.reason or f"no bandwidth of {hardware.name or 'this device'} is known"
    return Unknown(reason=reason, enable="hardware.memory_bandwidth_gb_s=… or hardware.calibrate=true")


def mfu_of(files: RunFiles, phase: PhaseFacts) -> Quantity:
    if isinstance(files.static, Unknown):
        return files.static
    return _utilisation(
        phase.flops, phase.wall, peak_flops(files.static.content), mfu, files.static.source, best=phase.achievable
    )


def mbu_of(files: RunFiles, phase: PhaseFacts) -> Quantity:
    if isinstance(files.static, Unknown):
        return files.static
    return _utilisation(
        phase.bytes, phase.wall, peak_bytes(files.static.content), mbu, files.static.source, best=phase.achievable
    )


def _utilisation(
    work: Quantity,
    wall: Quantity,
    peak: tuple[float, str] | Unknown,
    formula: Callable[[float, float, float], float],
    source: str,
    *,
    best: Quantity,
) -> Quantity:
    """`best`: the bound that measured rates set; where the run beat it, its share of such a rate says nothing."""
    if isinstance(wall, Unknown):
        return wall
    if isinstance(work, Unknown):
        return work
    if isinstance(peak, Unknown):
        return peak
    value = formula(work.value, wall.value, peak[0])
    if value > 1 and isinstance(best, Unknown):
        return best
    spread = wall.spread
    if spread is not None:
        low, high = (formula(work.value, time, peak[0]) for time in (spread.p90, spread.p10))
        spread = Spread(p10=low, p90=high, n=spread.n)
    return Known(value=value, unit="share", how=f"of the {peak[1]}, in the clean pass", source=source, spread=spread)

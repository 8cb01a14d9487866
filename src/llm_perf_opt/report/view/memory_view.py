"""Memory and power: what was predicted, what was measured, and what the device has."""

from dataclasses import dataclass
from statistics import mean, median

from llm_perf_opt.core.units import digits, format_bytes
from llm_perf_opt.diagnosis.facts import Known, MemoryFacts, Quantity, RunFacts, Unknown
from llm_perf_opt.report.run_files import Found, RunFiles
from llm_perf_opt.report.view.shown import Cell, Shown, show
from llm_perf_opt.report.view.subject_view import MODEL, PageSubject


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part of the memory bar, in percent of the scale."""

    label: str
    kind: str
    left_pct: float
    width_pct: float
    text: str


@dataclass(frozen=True, kw_only=True)
class MemoryView:
    rows: tuple[tuple[str, Cell], ...]
    segments: tuple[Segment, ...]
    measured_pct: float | None
    scale: str
    power: tuple[tuple[str, Cell], ...]
    power_missing: Unknown | None
    fits: tuple[str, ...]

    @property
    def unknown(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What is not known, by the reason."""
        groups: dict[str, list[str]] = {}
        for label, cell in self.rows:
            if isinstance(cell, Unknown):
                groups.setdefault(cell.text, []).append(label[0].lower() + label[1:])
        return tuple((reason, tuple(labels)) for reason, labels in groups.items())

    @property
    def missing(self) -> Unknown | None:
        """Why there is nothing at all to show."""
        if not self.rows:
            return self.power_missing
        reasons = [cell for _, cell in self.rows if isinstance(cell, Unknown)]
        return reasons[0] if len(reasons) == len(self.rows) and self.power_missing is not None else None


def memory_view(files: RunFiles, facts: RunFacts, subject: PageSubject = MODEL) -> MemoryView:
    """Of a program without a known model and of given captures only what is known: the rest is not a gap in the run."""
    memory = facts.memory
    rows: tuple[tuple[str, Quantity], ...] = (
        ("Weights (predicted)", memory.weights),
        ("KV cache (predicted)", memory.kv_cache),
        ("KV cache per token (predicted)", memory.kv_per_token),
        ("Activations (predicted)", memory.activations),
        ("Peak (predicted)", memory.predicted_peak),
        ("Peak (measured)", memory.measured_peak),
        ("Memory of the device", memory.capacity),
    )
    segments, measured, scale = _bar(memory)
    power, why = _power(files)
    if subject.kind == "capture" or subject.no_bounds is not None:
        rows = tuple(row for row in rows if not isinstance(row[1], Unknown))
    return MemoryView(
        rows=tuple((label, show(quantity)) for label, quantity in rows),
        segments=segments,
        measured_pct=measured,
        scale=scale,
        power=power,
        power_missing=None if subject.kind == "capture" else why,
        fits=_fits(files),
    )


def _bar(memory: MemoryFacts) -> tuple[tuple[Segment, ...], float | None, str]:
    """Weights, cache and activations end to end; the scale ends a little above the larger peak."""
    parts = [
        ("weights", "weights", memory.weights),
        ("kv-cache", "KV cache", memory.kv_cache),
        ("activations", "activations", memory.activations),
    ]
    known = [(kind, label, q.value) for kind, label, q in parts if isinstance(q, Known)]
    if len(known) != len(parts):
        return (), None, ""
    total = sum(value for _, _, value in known)
    peak = memory.measured_peak.value if isinstance(memory.measured_peak, Known) else 0.0
    scale = 1.05 * max(total, peak)
    if scale <= 0:
        return (), None, ""
    segments, at = [], 0.0
    for kind, label, value in known:
        width = 100 * value / scale
        segments.append(Segment(label=label, kind=kind, left_pct=at, width_pct=width, text=format_bytes(value)))
        at += width
    return tuple(segments), 100 * peak / scale if peak else None, format_bytes(scale)


def _fits(files: RunFiles) -> tuple[str, ...]:
    if not isinstance(files.static, Found):
        return ()
    memory = files.static.content.memory
    found = []
    if memory.largest_batch is not None:
        found.append(f"largest batch that fits at this context: {memory.largest_batch:,}")
    if memory.largest_context is not None:
        found.append(f"largest context that fits at this batch: {memory.largest_context:,} tokens")
    return tuple(found)


def _power(files: RunFiles) -> tuple[tuple[tuple[str, Cell], ...], Unknown | None]:
    if isinstance(files.clocks, Unknown) or not files.clocks.content.samples:
        return (), Unknown(reason="power, clocks and temperature were not sampled in this run")
    file, source = files.clocks.content, files.clocks.source
    how = f"{len(file.samples)} samples every {file.interval_ms:g} ms"

    def cell(values: list[float], unit: str, *, middle: bool = True) -> Cell:
        if not values:
            return Unknown(reason="the driver did not say")
        value = (median if middle else mean)(values)
        return Shown(
            text=f"{digits(value)} {unit} (max {digits(max(values))} {unit})", value=value, how=how, source=source
        )

    rows: tuple[tuple[str, Cell], ...] = (
        ("Power, mean", cell([s.power_w for s in file.samples if s.power_w is not None], "W", middle=False)),
        ("SM clock, median", cell([s.sm_clock_mhz for s in file.samples if s.sm_clock_mhz is not None], "MHz")),
        ("Temperature, median", cell([s.temperature_c for s in file.samples if s.temperature_c is not None], "°C")),
    )
    return rows, None

"""Where the time goes: a whole request on one bar, and the steps of each phase on one scale."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.core.units import format_factor, format_ms, format_ms_in_column, format_percent
from llm_perf_opt.diagnosis.facts import Known, Quantity, RunFacts, Unknown
from llm_perf_opt.diagnosis.waterfall import KnownStep, UnknownStep, Waterfall
from llm_perf_opt.report.run_facts import clean_metric
from llm_perf_opt.report.run_files import Found, RunFiles
from llm_perf_opt.report.view.shown import BoundDistance, TimePart, TimeSplit, format_spread
from llm_perf_opt.report.view.subject_view import CLEAN_OPTION, MODEL, PageSubject, phases_shown

# Narrower bars would vanish on the screen.
MIN_WIDTH_PCT = 0.25


@dataclass(frozen=True, kw_only=True)
class BarRow:
    """One step. `left_pct` and `width_pct` place its bar; without `missing` all texts are set."""

    key: str
    label: str
    kind: str
    left_pct: float
    width_pct: float
    total: str
    added: str
    factor: str
    how: str
    source: str | None
    is_estimate: bool
    missing: Unknown | None = None
    request_total: str = ""
    request_added: str = ""


@dataclass(frozen=True, kw_only=True)
class WaterfallView:
    """One phase. Texts of a whole request are empty where the number of its steps is not known.

    `scale_ms` is what a bar over the whole width takes, `wall_ms` the measured time.
    """

    phase: str
    title: str
    per: str
    rows: tuple[BarRow, ...]
    summary: str
    notes: tuple[str, ...]
    scale_ms: float
    wall_ms: float | None
    request_title: str = ""
    request_summary: str = ""

    @property
    def is_known(self) -> bool:
        return any(row.missing is None for row in self.rows)

    @property
    def is_placed(self) -> bool:
        """Whether the time or its bound is known, so that the steps between them mean something."""
        return any(row.missing is None for row in self.rows if row.kind in ("bound", "wall"))

    @property
    def of_what(self) -> str:
        """The conclusion of the rows; without the model's lower bound, where the time goes."""
        has_bound = any(row.kind == "bound" for row in self.rows)
        return "from the limit to what was measured" if has_bound else "where the time goes"


def waterfalls_view(
    waterfalls: Sequence[Waterfall], facts: RunFacts, subject: PageSubject
) -> tuple[WaterfallView, ...]:
    """Those of the phases the subject has; without a model to compare with, those that say more than the wall time."""
    shown = phases_shown(subject, facts)
    views = [
        waterfall_view(fall, facts.phases[fall.phase].steps_per_request, subject)
        for fall in waterfalls
        if fall.phase in shown
    ]
    if subject.no_bounds is None:
        return tuple(views)
    return tuple(view for view in views if {row.kind for row in view.rows} - {"wall", "unexplained"})


def waterfall_view(waterfall: Waterfall, steps: float | None = None, subject: PageSubject = MODEL) -> WaterfallView:
    """`steps` is how often the phase's step happens in a request."""
    known = [step for step in waterfall.steps if isinstance(step, KnownStep)]
    wall = waterfall.known("wall")
    scale = max((step.to_ms for step in known), default=0.0)
    asked = waterfall.steps if subject.no_bounds is None else known
    missing = missing_in_capture(waterfall.phase) if subject.kind == "capture" else {}
    return WaterfallView(
        phase=waterfall.phase,
        title=f"{waterfall.phase.capitalize()}, {waterfall.per}",
        per=waterfall.per,
        rows=tuple(_row(step, scale, steps, missing) for step in asked),
        summary=_summary(waterfall, 1.0, waterfall.per),
        notes=waterfall.notes,
        scale_ms=scale,
        wall_ms=None if wall is None else wall.to_ms,
        request_title="" if steps is None else f"{waterfall.phase.capitalize()}, per request{_of_steps(steps)}",
        request_summary="" if steps is None else _summary(waterfall, steps, "per request"),
    )


def _of_steps(steps: float) -> str:
    return "" if steps == 1 else f" ({steps:,.0f} steps)"


def missing_in_capture(phase: str) -> Mapping[str, Unknown]:
    """What a capture lacks, by the step that needs it, in the options of the command that reads captures."""
    clean = Unknown(
        reason="the times of a capture are those under the profiler",
        enable=f"{CLEAN_OPTION[phase]} alongside the capture",
    )
    bound = Unknown(
        reason="the capture does not say which model ran",
        enable="model=… hardware=… workload.prompt=… alongside the capture",
    )
    return {"datasheet": bound, "achievable": bound, "idle": clean, "wall": clean}


def _row(step: KnownStep | UnknownStep, scale: float, steps: float | None, missing: Mapping[str, Unknown]) -> BarRow:
    if isinstance(step, UnknownStep):
        return BarRow(
            key=step.key,
            label=step.label,
            kind=step.kind,
            left_pct=0.0,
            width_pct=0.0,
            total="unknown",
            added="",
            factor="",
            how="",
            source=None,
            is_estimate=False,
            missing=missing.get(step.key, step.why),
        )
    low, high = min(step.from_ms, step.to_ms), max(step.from_ms, step.to_ms)
    left = 100 * low / scale if scale > 0 else 0.0
    width = max(100 * (high - low) / scale if scale > 0 else 0.0, MIN_WIDTH_PCT)
    is_first = step.from_ms == 0
    sign = "+" if step.delta_ms >= 0 else "−"
    return BarRow(
        key=step.key,
        label=step.label,
        kind=step.kind,
        left_pct=min(left, 100 - MIN_WIDTH_PCT),
        width_pct=min(width, 100 - min(left, 100 - MIN_WIDTH_PCT)),
        total=format_ms(step.to_ms),
        added="" if is_first else sign + _added(step.delta_ms, scale),
        factor="" if is_first or step.factor is None else format_factor(step.factor),
        how=step.how,
        source=step.source,
        is_estimate=step.is_estimate,
        request_total="" if steps is None else format_ms(steps * step.to_ms),
        request_added="" if steps is None or is_first else sign + _added(steps * step.delta_ms, steps * scale),
    )


def _added(delta_ms: float, scale: float) -> str:
    """In milliseconds in every row, with fewer decimals where the bars are long."""
    return format_ms_in_column(abs(delta_ms), places=3 if scale < 100 else 1)


def _summary(waterfall: Waterfall, steps: float, per: str) -> str:
    """One sentence for those who do not see the bars."""
    wall = waterfall.known("wall")
    bound = waterfall.known("achievable") or waterfall.known("datasheet")
    if wall is None:
        return "The clean wall time is not known."
    if bound is None or bound.to_ms <= 0:
        return f"{format_ms(steps * wall.to_ms)} {per}; the bound is not known."
    factor = format_factor(wall.to_ms / bound.to_ms)
    text = f"{format_ms(steps * wall.to_ms)} {per}, {factor} the bound of {format_ms(steps * bound.to_ms)}"
    if waterfall.idle_share is not None:
        text += f"; GPU idle {100 * waterfall.idle_share:.0f} % of it"
    return text + "."


# What a step's time is of, in the terms of one of it.
ONE = {PREFILL: "one prefill", DECODE: "one token"}


def split_of(waterfall: Waterfall) -> TimeSplit | None:
    """Its wall time on one bar: both bounds as one, then each step. None where the steps do not add up to it."""
    wall = waterfall.known("wall")
    steps = [step for step in waterfall.steps if isinstance(step, KnownStep) and step.kind != "wall"]
    if wall is None or wall.to_ms <= 0 or any(step.delta_ms < 0 for step in steps):
        return None
    bound = sum(step.delta_ms for step in steps if step.kind == "bound")
    parts = [("hardware limit", "bound", bound)] if bound else []
    above = " above the hardware limit" if bound else ""
    names = {"kernels": f"GPU kernels{above}", "operators": f"operators{above}"}
    parts += [
        (names.get(step.key, _start_small(step.label)), step.kind, step.delta_ms)
        for step in steps
        if step.kind != "bound"
    ]
    return TimeSplit(
        what=ONE[waterfall.phase],
        total=format_ms(wall.to_ms),
        parts=tuple(TimePart(label=label, kind=kind, share=ms / wall.to_ms) for label, kind, ms in parts),
        is_estimate=any(step.is_estimate for step in steps),
    )


def _start_small(label: str) -> str:
    """`GPU idle: …` stays as it is; `Not explained` becomes a part of a list."""
    return label if label[1:2].isupper() else label[:1].lower() + label[1:]


def distance_of(waterfall: Waterfall) -> BoundDistance | None:
    wall = waterfall.known("wall")
    bound = waterfall.known("achievable") or waterfall.known("datasheet")
    if wall is None or bound is None or bound.to_ms <= 0:
        return None
    return BoundDistance(
        phase=waterfall.phase,
        factor=format_factor(wall.to_ms / bound.to_ms),
        wall=format_ms(wall.to_ms),
        bound=format_ms(bound.to_ms),
        per=waterfall.per,
    )


# Parts of a prefill some models time themselves.
STANDARD = ("prepare_ms", "prefill_ms", "ttft_ms", "decode_ms", "tpot_ms", "itl_ms", "e2e_ms", "post_ms")


@dataclass(frozen=True, kw_only=True)
class RequestPart:
    """One part; `left_pct` and `width_pct` place it on the bar."""

    key: str
    label: str
    text: str
    share: str
    spread: str
    how: str
    source: str | None
    left_pct: float
    width_pct: float


@dataclass(frozen=True, kw_only=True)
class RequestView:
    """`missing` names the parts that were not measured, and why; `tokens` are those of a typical answer.

    `is_whole`: both phases are known, so that the shares are those of a request.
    """

    parts: tuple[RequestPart, ...]
    total: str
    per_token: str
    tokens: float | None
    missing: tuple[tuple[str, Unknown], ...]
    notes: tuple[str, ...]
    is_whole: bool = True


def request_view(files: RunFiles, facts: RunFacts, subject: PageSubject = MODEL) -> RequestView | None:
    """None where neither phase was timed without a profiler: there is no bar of one unknown part.

    Only our own loop times every part: of other subjects none is missing.
    """
    asked = [(key, label, _part(key, files, facts)) for key, label in LABELS]
    known = [(key, label, found) for key, label, found in asked if isinstance(found, Known)]
    if not {PREFILL, DECODE} & {key for key, _, _ in known}:
        return None
    total = sum(found.value for _, _, found in known)
    is_whole = {PREFILL, DECODE} <= {key for key, _, _ in known}
    parts, at = [], 0.0
    for key, label, found in known:
        width = 100 * found.value / total if total else 0.0
        steps = facts.phases[DECODE].steps_per_request if key == DECODE else None
        part = _request_part(key, label, found, at, width, steps)
        parts.append(part if is_whole else replace(part, share=""))
        at += width
    tokens = clean_metric(files.manifest, "tokens")
    count = tokens.value if isinstance(tokens, Known) else None
    return RequestView(
        parts=tuple(parts),
        total=format_ms(total),
        per_token=format_ms(total / count) if count else "",
        tokens=count,
        missing=tuple(
            (label, found) for _, label, found in asked if isinstance(found, Unknown) and subject.kind == "model"
        ),
        notes=tuple(_request_notes(files, total)),
        is_whole=is_whole,
    )


def request_split(files: RunFiles, facts: RunFacts) -> TimeSplit | None:
    """A whole request on one bar; None where a phase of it is not known."""
    whole = request_view(files, facts)
    if whole is None or not whole.is_whole:
        return None
    return TimeSplit(
        what="one request",
        total=whole.total,
        parts=tuple(TimePart(label=p.label, kind=p.key, share=p.width_pct / 100) for p in whole.parts),
    )


LABELS = (
    ("prepare", "prepare (host)"),
    (PREFILL, "prefill, to the first token"),
    (DECODE, "decode"),
    ("post", "tokens to text (host)"),
)


def _part(key: str, files: RunFiles, facts: RunFacts) -> Quantity:
    if key == PREFILL:
        ttft = clean_metric(files.manifest, "ttft_ms")
        found = ttft if isinstance(ttft, Known) else facts.phases[PREFILL].wall
        return replace(found, how=found.how + _inside(files)) if isinstance(found, Known) else found
    if key != DECODE:
        return clean_metric(files.manifest, f"{key}_ms")
    found, step = clean_metric(files.manifest, "decode_ms"), facts.phases[DECODE]
    if isinstance(found, Known) or isinstance(step.wall, Unknown):
        return found
    if step.steps_per_request is None:
        return Unknown(reason=f"{format_ms(step.wall.value)} per token, the number of tokens is not known")
    how = f"{step.steps_per_request:,.0f} steps of {format_ms(step.wall.value)} ({step.wall.how})"
    return replace(step.wall, value=step.wall.value * step.steps_per_request, how=how, spread=None, is_estimate=True)


def _inside(files: RunFiles) -> str:
    """The model's own parts of a prefill, such as its vision towers."""
    if not isinstance(files.metrics, Found):
        return ""
    own = [
        f"{name.removesuffix('_ms')} {format_ms(stats.p50)}"
        for name, stats in files.metrics.content.clean.metrics.items()
        if name.endswith("_ms") and name not in STANDARD and stats.p50 is not None
    ]
    return f"; of which: {', '.join(own)}" if own else ""


def _request_part(key: str, label: str, found: Known, at: float, width: float, steps: float | None) -> RequestPart:
    return RequestPart(
        key=key,
        label=f"{label}, {steps:,.0f} steps" if steps else label,
        text=("≈ " if found.is_estimate else "") + format_ms(found.value),
        share=format_percent(width / 100),
        spread="" if found.spread is None else format_spread(found.spread, found.unit),
        how=found.how,
        source=found.source,
        left_pct=at,
        width_pct=width,
    )


def _request_notes(files: RunFiles, total: float) -> list[str]:
    measured = clean_metric(files.manifest, "e2e_ms")
    if not isinstance(measured, Known):
        return []
    spread = "" if measured.spread is None else f", {format_spread(measured.spread, 'ms')}"
    return [f"Medians of each part, {format_ms(total)} together; whole requests: {format_ms(measured.value)}{spread}."]

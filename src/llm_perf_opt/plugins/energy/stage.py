"""Stage energy: idle power first, then the workload with every meter of the machine sampled alongside it."""

import json
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Self

from annotated_types import Ge, Gt, Le

from llm_perf_opt.plugin import (
    ClockSample,
    Host,
    Metric,
    Obstacle,
    ProfilingError,
    StageConfig,
    StageContext,
    StageFile,
    StageOutput,
    StageSkipped,
    WorkloadRun,
    WorkloadSpan,
    run_workload,
)
from llm_perf_opt.plugins.energy.attribution import (
    LONG_PHASE,
    EnergyCurve,
    PhaseEnergy,
    counter_curve,
    lowest_power,
    merged,
    phase_energies,
    power_curve,
)
from llm_perf_opt.plugins.energy.document import (
    DeviceEnergy,
    EnergyDocument,
    PhaseRow,
    Steadiness,
    add_rows,
    phase_row,
    with_rows,
)
from llm_perf_opt.plugins.energy.meters import Metered, looked_for, metering
from llm_perf_opt.plugins.energy.section import energy_section, write_counters

REQUEST, PREFILL, DECODE = "request", "prefill", "decode"
# Over so long the idle power is taken: GPUs fall back to it within seconds after work.
IDLE_WINDOW_S = 1.0
# Clocks and temperature that move by more than this make two halves of a run differ.
CLOCK_MOVES = 0.05
TEMPERATURE_MOVES_C = 10.0
BUSY_PCT = 20.0
# Not a limit the work ran into.
HARMLESS = ("gpu_idle", "applications_clocks_setting", "display_clock_setting")
MOST_REPEATS = 2000


@dataclass(frozen=True, kw_only=True)
class EnergyConfig(StageConfig):
    """`pipeline.energy.*`: how often meters are read, how long at idle, and how long the workload should run.

    A prefill too short to be reported alongside decode is run alone for `prompts_s`, one after the other; 0: it is not.
    """

    interval_ms: Annotated[float, Ge(1.0), Le(60_000.0)] = 20.0
    idle_s: Annotated[float, Ge(0.0), Le(86_400.0)] = 5.0
    min_s: Annotated[float, Gt(0.0), Le(86_400.0)] = 10.0
    prompts_s: Annotated[float, Ge(0.0), Le(86_400.0)] = 5.0
    repeats: Annotated[int, Ge(1)] | None = None
    warmup_rounds: Annotated[int, Ge(0)] = 1

    def light(self) -> Self:
        return replace(self, idle_s=min(1.0, self.idle_s), min_s=min(5.0, self.min_s), prompts_s=0.0)


class EnergyStage:
    """See the module."""

    name = "energy"
    config_cls = EnergyConfig
    after: tuple[str, ...] = ("torch_profiler", "direct_inference")
    tools: tuple[str, ...] = ()
    runs_model = True

    def preflight(self, cfg: EnergyConfig, host: Host) -> Sequence[Obstacle]:
        return ()

    def run(self, cfg: EnergyConfig, ctx: StageContext) -> StageOutput:
        """Meter idle, meter the workload, attribute, write."""
        interval_s = cfg.interval_ms / 1e3
        with metering(ctx, interval_s=interval_s) as idle:
            time.sleep(max(cfg.idle_s, 2.5 * interval_s))
        if not idle:
            raise StageSkipped(f"no energy or power counters on this machine: {'; '.join(looked_for(ctx))}")
        with metering(ctx, interval_s=interval_s) as metered:
            start_ns = time.monotonic_ns()
            work = run_workload(
                ctx, timeout_s=cfg.timeout_s, warmup_rounds=cfg.warmup_rounds, repeats=_repeats(cfg, ctx)
            )
            end_ns = time.monotonic_ns()
        spans = with_requests(work.spans) or (WorkloadSpan(name=REQUEST, start_ns=start_ns, end_ns=end_ns),)
        document = describe(metered, idle, spans, cfg)
        # Before anything else is run: what was measured remains, regardless of the prompts' results.
        samples_file = _samples_file(ctx, work, metered, document)
        document, said = _with_prompts(document, idle, spans, cfg, ctx)
        path = ctx.out_dir / "energy.json"
        path.write_text(json.dumps(asdict(document), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        counters = write_counters(ctx.out_dir, metered, spans)
        source = f"{ctx.out_dir.name}/energy.json"
        return StageOutput(
            metrics=energy_metrics(document, source),
            files=(
                StageFile(role="energy_json", path=path),
                StageFile(role="counters", path=counters),
                *samples_file,
            ),
            notes=(*work.notes, *_unmarked(work), *said, *document.warnings),
            samples=work.samples,
            sections=(energy_section(ctx, document, metered, spans, source),),
        )


def _repeats(cfg: EnergyConfig, ctx: StageContext) -> int | None:
    """So many that the samples take `min_s`, going by the clean pass of this run; else as `run.repeats` says."""
    if cfg.repeats is not None:
        return cfg.repeats
    for name in ctx.clean_stages:
        record = ctx.earlier.get(name)
        metric = None if record is None else record.metrics.get("e2e_ms")
        planned = ctx.config.run.repeats
        if record is not None and metric is not None and isinstance(metric.value, int | float) and metric.value > 0:
            wanted = _to_fill(cfg.min_s, metric.value / 1e3 * _requests_of_a_repeat(record.file("samples")))
            return wanted if isinstance(planned, str) else max(planned, wanted)
    return None


def _to_fill(seconds: float, each_s: float) -> int:
    return min(MOST_REPEATS, int(seconds / each_s) + 1)


def _requests_of_a_repeat(samples: Path | None) -> int:
    """How many lines of samples.jsonl are of the first repeat of its clean pass; 1 where there is none."""
    if samples is None or not samples.is_file():
        return 1
    lines = [json.loads(line) for line in samples.read_text(encoding="utf-8").splitlines()]
    repeats = [line["repeat"] for line in lines if line.get("pass") != "profiled"]
    return max(1, repeats.count(repeats[0])) if repeats else 1


def _with_prompts(
    document: EnergyDocument,
    idle: Sequence[Metered],
    spans: Sequence[WorkloadSpan],
    cfg: EnergyConfig,
    ctx: StageContext,
) -> tuple[EnergyDocument, tuple[str, ...]]:
    """The document with the energy of prefill from prompts that ran alone, where prefill and decode overlap."""
    unknown = [row for row in document.total if row.phase == PREFILL and row.joules is None]
    if not unknown or not cfg.prompts_s or ctx.config.workload.command is not None:
        return document, ()
    found = [span for span in spans if span.name == PREFILL]
    of_a_repeat = max(1, sum(span.repeat == found[0].repeat for span in found))
    repeats = _to_fill(cfg.prompts_s, median(span.seconds for span in found) * of_a_repeat)
    ctx.say(f"energy: a prefill is too short to be reported alongside decode; {repeats * of_a_repeat} prompts alone")
    try:
        with metering(ctx, interval_s=cfg.interval_ms / 1e3) as metered:
            work = run_workload(
                ctx,
                timeout_s=cfg.timeout_s,
                warmup_rounds=cfg.warmup_rounds,
                repeats=repeats,
                stop_after_tokens=1,
                part="prompts",
            )
    except ProfilingError as error:
        return document, (f"prompts alone, for the energy of prefill: {error}",)
    prompts = [span for span in work.spans if span.name == PREFILL]
    alone = describe(metered, idle, prompts, cfg)
    return with_rows(document, alone, PREFILL, said="prompts alone, one after the other"), ()


def with_requests(spans: Sequence[WorkloadSpan]) -> tuple[WorkloadSpan, ...]:
    """The spans with whole requests among them, and what each generated.

    A program that marks no requests has one from each prefill to the last step before the next. One whose tokens are
    without one generated those of its steps, and the first of each sequence, which comes out of prefill.
    """
    prefills = sorted((s for s in spans if s.name == PREFILL), key=lambda s: s.start_ns)
    steps = sorted((s for s in spans if s.name == DECODE), key=lambda s: s.start_ns)
    requests = [s for s in spans if s.name == REQUEST]
    others = [s for s in spans if s.name != REQUEST]
    if not requests and prefills and steps:
        ends = [*(later.start_ns for later in prefills[1:]), max(s.end_ns for s in spans) + 1]
        for prefill, until in zip(prefills, ends, strict=True):
            last = max((s.end_ns for s in steps if prefill.start_ns <= s.start_ns < until), default=prefill.end_ns)
            requests.append(WorkloadSpan(name=REQUEST, start_ns=prefill.start_ns, end_ns=last))
    return (*(_with_tokens(request, steps) for request in requests), *others)


def _with_tokens(request: WorkloadSpan, steps: Sequence[WorkloadSpan]) -> WorkloadSpan:
    first = bisect_left(steps, request.start_ns, key=lambda s: s.start_ns)
    last = bisect_left(steps, request.end_ns, key=lambda s: s.start_ns)
    step_tokens = [step.tokens for step in steps[first:last]]
    known = [tokens for tokens in step_tokens if tokens is not None]
    if request.tokens is not None or not known or len(known) != len(step_tokens):
        return request
    return replace(request, tokens=sum(known) + max(known))


def _unmarked(work: WorkloadRun) -> tuple[str, ...]:
    if work.spans:
        return ()
    return ("the program marks no phases, so the energy is that of the whole program, its start included",)


def describe(
    metered: Sequence[Metered], idle: Sequence[Metered], spans: Sequence[WorkloadSpan], cfg: EnergyConfig
) -> EnergyDocument:
    """The figures of every device, and of those that ran the model together."""
    devices = tuple(_device(one, _same(idle, one), spans) for one in metered)
    kind = "gpu" if any(device.kind == "gpu" for device in devices) else "cpu"
    headline = tuple(device for device in devices if device.kind == kind)
    names = list(dict.fromkeys(row.phase for device in headline for row in device.phases))
    total = tuple(add_rows(tuple(row for d in headline for row in d.phases if row.phase == name)) for name in names)
    return EnergyDocument(
        interval_ms=cfg.interval_ms,
        idle_s=cfg.idle_s,
        headline=tuple(device.device for device in headline),
        devices=devices,
        total=total,
        warnings=tuple(text for device in devices for text in steadiness_warnings(device)),
    )


def _same(idle: Sequence[Metered], one: Metered) -> Metered | None:
    return next((other for other in idle if other.device == one.device), None)


def _device(metered: Metered, idle: Metered | None, spans: Sequence[WorkloadSpan]) -> DeviceEnergy:
    counter, power = counter_curve(metered.readings), power_curve(metered.readings)
    curve = counter or power
    idle_w, idle_reason = idle_power(idle)
    names = [name for name in dict.fromkeys(span.name for span in spans) if name != REQUEST]
    energies: tuple[PhaseEnergy, ...] = ()
    if curve is not None:
        energies = (*phase_energies(curve, spans, (REQUEST,)), *phase_energies(curve, spans, names))
    at_work = max((e.joules / e.seconds for e in energies if e.joules is not None and e.seconds), default=None)
    if idle_w is not None and at_work is not None and idle_w > at_work:
        idle_reason = f"the device drew {idle_w:.0f} W before the workload and {at_work:.0f} W at work: it was not idle"
        idle_w = None
    counter_j, trapezoid_j, why = check(counter, power, spans)
    during = [d for d in metered.details if any(start <= d.at_ns <= end for start, end in merged(spans))]
    return DeviceEnergy(
        device=metered.device,
        kind=metered.kind,
        energy_how=metered.energy_how or "integral of the power, no counter",
        power_how=metered.power_how,
        readings=len(metered.readings),
        refresh_ms=None if curve is None else curve.period_s * 1e3,
        idle_w=idle_w,
        idle_reason=idle_reason,
        counter_j=counter_j,
        trapezoid_j=trapezoid_j,
        check_pct=100 * (trapezoid_j / counter_j - 1) if counter_j and trapezoid_j is not None else None,
        check_reason=why,
        phases=tuple(phase_row(energy, idle_w) for energy in energies),
        steadiness=_steadiness(during) if during else None,
    )


def idle_power(idle: Metered | None) -> tuple[float | None, str | None]:
    """The power before the workload was started, or why it is not known."""
    if idle is None:
        return None, "the device was not metered before the workload"
    curve = counter_curve(idle.readings) or power_curve(idle.readings)
    if curve is None:
        return None, "the meter was not refreshed often enough before the workload; a longer idle_s helps"
    busy = [d.utilisation_pct for d in idle.details if d.utilisation_pct is not None]
    if busy and median(busy) > BUSY_PCT:
        return None, f"the device was {median(busy):.0f} % busy with other work before the workload was started"
    return lowest_power(curve, IDLE_WINDOW_S), None


def check(
    counter: EnergyCurve | None, power: EnergyCurve | None, spans: Sequence[WorkloadSpan]
) -> tuple[float | None, float | None, str | None]:
    """Joules from the first request to the end of the last by the counter and by trapezoids, or why not both."""
    if counter is None or power is None:
        return None, None, "the device has no counter" if counter is None else "the device reports no power"
    start = max(counter.at_ns[0], power.at_ns[0], min(span.start_ns for span in spans))
    end = min(counter.at_ns[-1], power.at_ns[-1], max(span.end_ns for span in spans))
    if end - start < 3 * counter.period_s * 1e9:
        return None, None, "the requests were over before the counter was refreshed three times"
    return counter.between(start, end), power.between(start, end), None


def _steadiness(samples: Sequence[ClockSample]) -> Steadiness:
    clocks = sorted(s.sm_clock_mhz for s in samples if s.sm_clock_mhz is not None)
    heat = [s.temperature_c for s in samples if s.temperature_c is not None]
    reasons = [s.throttle_reasons for s in samples if s.throttle_reasons is not None]
    tenths = quantiles(clocks, n=10) if len(clocks) > 1 else None
    named = sorted({reason for one in reasons for reason in one})
    return Steadiness(
        samples=len(samples),
        sm_clock_mhz_p10=tenths[0] if tenths else None,
        sm_clock_mhz_median=median(clocks) if clocks else None,
        sm_clock_mhz_p90=tenths[-1] if tenths else None,
        temperature_c_min=min(heat, default=None),
        temperature_c_max=max(heat, default=None),
        throttle_shares={n: sum(n in one for one in reasons) / len(reasons) for n in named} if reasons else None,
    )


def steadiness_warnings(device: DeviceEnergy) -> tuple[str, ...]:
    """What moved while requests ran, so that another run may well use other energy."""
    steady, found = device.steadiness, []
    if steady is None:
        return ()
    low, middle, high = steady.sm_clock_mhz_p10, steady.sm_clock_mhz_median, steady.sm_clock_mhz_p90
    if low is not None and high is not None and middle and (high - low) / middle > CLOCK_MOVES:
        found.append(f"{device.device}: the SM clock moved from {low:.0f} to {high:.0f} MHz (p10 to p90)")
    cold, warm = steady.temperature_c_min, steady.temperature_c_max
    if cold is not None and warm is not None and warm - cold > TEMPERATURE_MOVES_C:
        found.append(f"{device.device}: the temperature moved from {cold:.0f} to {warm:.0f} °C")
    for name, share in (steady.throttle_shares or {}).items():
        if name not in HARMLESS:
            found.append(f"{device.device}: clocks were lowered by {name} in {100 * share:.0f} % of the samples")
    return tuple(found)


def energy_metrics(document: EnergyDocument, source: str) -> Mapping[str, Metric]:
    """The stage's numbers; `joules_per_token` is that of whole requests."""
    rows = {row.phase: row for row in document.total}
    of = " + ".join(document.headline)
    metrics: dict[str, Metric] = {}
    for name, prefix in ((REQUEST, ""), (PREFILL, "prefill_"), (DECODE, "decode_")):
        row = rows.get(name)
        per = "prompt token" if name == PREFILL else "generated token"
        metrics[f"{prefix}joules_per_token"] = _metric(row, "joules_per_token", "J/token", of, source, per)
        metrics[f"{prefix}joules_per_token_above_idle"] = _metric(
            row, "above_idle_j_per_token", "J/token", of, source, per
        )
    request = rows.get(REQUEST)
    each = None if request is None or request.joules is None else request.joules / request.count
    metrics["request_joules"] = Metric(
        value=each,
        unit="J",
        how=f"{of}, mean of {request.count if request else 0} whole requests: preparation, prefill, decode",
        source=source,
        reason=None if each is not None else _why(request),
    )
    devices = [d for d in document.devices if d.device in document.headline]
    idle = [d.idle_w for d in devices]
    metrics["idle_power_w"] = Metric(
        value=sum(w for w in idle if w is not None) if None not in idle else None,
        unit="W",
        how=f"{of}, lowest mean of {IDLE_WINDOW_S:g} s within {document.idle_s:g} s before the workload was started",
        source=source,
        reason=next((d.idle_reason for d in devices if d.idle_reason), None),
    )
    metrics["mean_power_w"] = _metric(request, "mean_w", "W", of, source, None)
    checks = [d.check_pct for d in devices]
    metrics["energy_check_pct"] = Metric(
        value=max((c for c in checks if c is not None), key=abs, default=None),
        unit="%",
        how="trapezoids of the power against the counter, over all requests",
        source=source,
        reason=next((d.check_reason for d in devices if d.check_reason), None),
    )
    return metrics


def _metric(row: PhaseRow | None, field: str, unit: str, of: str, source: str, per: str | None) -> Metric:
    value = None if row is None else getattr(row, field)
    how = f"{of}, {row.count} spans, {row.how}" if row is not None and row.how else of
    reason = None if value is not None else _why(row)
    return Metric(value=value, unit=unit, how=how, per=per, source=source, reason=reason)


def _why(row: PhaseRow | None) -> str:
    if row is None:
        return "the workload had no such phase"
    return row.reason or ("its tokens are not known" if not row.tokens else "idle power is not known")


def _samples_file(
    ctx: StageContext, work: WorkloadRun, metered: Sequence[Metered], document: EnergyDocument
) -> list[StageFile]:
    """samples.jsonl of the workload with the energy of each request, where a request is long enough to be read off."""
    written = next((file.path for file in work.files if file.role == "samples"), None)
    if written is None:
        return []
    curves = [counter_curve(m.readings) or power_curve(m.readings) for m in metered if m.device in document.headline]
    spans = {(span.sample_id, span.start_ns): span for span in work.spans if span.name == REQUEST}
    path = ctx.out_dir / "samples.jsonl"
    with path.open("w", encoding="utf-8") as file:
        requests = iter(spans.values())
        for text in written.read_text(encoding="utf-8").splitlines():
            line, span = json.loads(text), next(requests)
            parts = [
                curve.between(span.start_ns, span.end_ns)
                for curve in curves
                if curve is not None and span.seconds >= LONG_PHASE * curve.period_s
            ]
            if parts and len(parts) == len(curves) and None not in parts:
                line["joules"] = sum(part for part in parts if part is not None)
                line["joules_per_token"] = line["joules"] / (span.tokens or 1)
            file.write(json.dumps(line, allow_nan=False) + "\n")
    return [StageFile(role="samples", path=path)]


STAGE = EnergyStage()

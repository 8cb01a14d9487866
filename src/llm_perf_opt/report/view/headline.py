"""Headline: what ran, the numbers that matter, and the verdict in one sentence; each subject builds its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Literal

from msgspec import UNSET

from llm_perf_opt.core.names import BUSY_GPUS, DECODE, PROGRAM
from llm_perf_opt.core.units import digits, format_factor, format_ms, format_percent
from llm_perf_opt.diagnosis.diagnose import MIN_HEADLINE, WEAK
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, Diagnosis, VerdictKind
from llm_perf_opt.diagnosis.facts import Known, Quantity, RunFacts, Unknown
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.diagnosis.run import REQUEST
from llm_perf_opt.diagnosis.waterfall import Waterfall
from llm_perf_opt.report.run_facts import clean_metric, measured_prompt
from llm_perf_opt.report.run_files import Found, RunFiles
from llm_perf_opt.report.samples import stability_warnings
from llm_perf_opt.report.view.captured import (
    captured_split,
    captured_tiles,
    host_alone_split,
    ncu_split,
    ncu_tiles,
    served_tiles,
    served_title,
    served_verdict,
)
from llm_perf_opt.report.view.cost import million_tokens
from llm_perf_opt.report.view.findings import FindingKey, gain_of, gain_of_saving, key_of, saved_in_request_ms, twins
from llm_perf_opt.report.view.modules import ModulesView, operators_split
from llm_perf_opt.report.view.roofline_view import mbu_of, mfu_of
from llm_perf_opt.report.view.shown import BoundDistance, Shown, Tile, TimeSplit, show
from llm_perf_opt.report.view.subject_view import CLEAN_OPTION, PageSubject, is_given
from llm_perf_opt.report.view.waterfall_view import distance_of, request_split, split_of

Tone = Literal["good", "warn", "bad", "unknown"]
NEAR_BOUND = 1.3
FAR_FROM_BOUND = 2.0
TONES: Mapping[VerdictKind, Tone] = {
    "finding": "bad",
    "one_time": "warn",
    "healthy": "good",
    "largest_cell": "warn",
    "not_recorded": "unknown",
    "kernels_only": "unknown",
    "no_gpu_work": "unknown",
    "nothing_measured": "unknown",
}


@dataclass(frozen=True, kw_only=True)
class HeadlineView:
    """`facts` is what to print of the run; `device` and `parameters` are None where they are not known.

    `log` is what a program that crashed printed, by its path in the run. `promised` is the key of the finding
    the verdict is about. `split` and `distance`
    are of the phase the verdict is about: where its time goes, and how far it is from its bound. `is_unjudged`: no
    cause looks at such a capture, so that none was found says nothing.
    """

    title: str
    device: str | None
    parameters: int | None
    facts: tuple[tuple[str, str], ...]
    verdict: str
    tone: Tone
    phase: str
    tiles: tuple[Tile, ...]
    warnings: tuple[str, ...] = ()
    promised: FindingKey | None = None
    log: str | None = None
    is_cpu: bool = False
    is_unjudged: bool = False
    split: TimeSplit | None = None
    distance: BoundDistance | None = None
    no_distance: Unknown | None = None


@dataclass(frozen=True, kw_only=True)
class HeadlineAnswer:
    """What was found, in one sentence and a few numbers, before a subject says what it is of.

    `is_answer`: the sentence says where time goes, not only that nothing is known of it.
    """

    verdict: str
    tone: Tone
    tiles: tuple[Tile, ...]
    phase: str = DECODE
    promised: FindingKey | None = None
    split: TimeSplit | None = None
    distance: BoundDistance | None = None
    is_unjudged: bool = False
    is_answer: bool = False


def answer_of(
    files: RunFiles, facts: RunFacts, waterfalls: tuple[Waterfall, ...], diagnosis: Diagnosis
) -> HeadlineAnswer:
    """Of the clean phases; of the capture where nothing else was timed; of ncu's kernels where there is no more."""
    if isinstance(files.ncu, Found) and isinstance(files.capture, Unknown) and _is_nothing_else(files, facts):
        found = files.ncu.content
        return HeadlineAnswer(
            verdict=diagnosis.verdict.text, tone="unknown", tiles=ncu_tiles(files.ncu), split=ncu_split(found)
        )
    best = best_finding(diagnosis.claims, facts)
    split = request_split(files, facts) if best is not None and best.phase == REQUEST else None
    capture = _capture_alone(files, facts)
    if capture is not None:
        verdict = diagnosis.verdict
        about = next((f for f in diagnosis.claims if key_of(f) == (verdict.rule, verdict.scope)), best)
        return HeadlineAnswer(
            verdict=verdict.text,
            tone=TONES[verdict.kind],
            tiles=captured_tiles(capture, diagnosis),
            promised=None if about is None else key_of(about),
            split=split or captured_split(diagnosis) or host_alone_split(capture.content),
            is_unjudged=capture.content.host_alone is not UNSET and not diagnosis.claims,
            is_answer=verdict.kind not in ("no_gpu_work", "nothing_measured"),
        )
    text, tone, phase = _verdict(waterfalls, diagnosis.claims, facts, best)
    if diagnosis.verdict.scope == PROGRAM:
        split = captured_split(diagnosis)
        text = text if best is not None else diagnosis.verdict.text
    fall = _shown_first(waterfalls, phase, facts)
    return HeadlineAnswer(
        verdict=text,
        tone=tone,
        tiles=_tiles(files, facts),
        phase=fall.phase if fall is not None else phase or DECODE,
        promised=None if best is None else key_of(best),
        is_answer=best is not None,
        split=split or (None if fall is None else split_of(fall)),
        distance=None if fall is None else distance_of(fall),
    )


def headline_of(
    files: RunFiles,
    facts: RunFacts,
    answer: HeadlineAnswer,
    modules: ModulesView | None,
    *,
    title: str | None = None,
    verdict: str | None = None,
    tone: Tone | None = None,
    tiles: tuple[Tile, ...] | None = None,
    no_distance: Unknown | None = None,
) -> HeadlineView:
    """What every subject says of its device and workload, with what it says in other words than the answer."""
    return HeadlineView(
        title=title or model_name(files),
        device=device_name(files),
        parameters=parameter_count(files),
        facts=run_facts(files, facts),
        verdict=verdict or answer.verdict,
        tone=tone or answer.tone,
        phase=answer.phase,
        tiles=answer.tiles if tiles is None else tiles,
        warnings=run_warnings(files),
        promised=answer.promised,
        is_cpu=bool(facts.is_cpu),
        is_unjudged=answer.is_unjudged,
        split=answer.split or (None if modules is None else operators_split(modules)),
        distance=answer.distance,
        no_distance=no_distance,
    )


def capture_headline(
    files: RunFiles, facts: RunFacts, answer: HeadlineAnswer, modules: ModulesView, *, has_phases: bool
) -> HeadlineView:
    """Of given captures: nothing is reported of what they cannot know."""
    return headline_of(
        files,
        facts,
        answer,
        modules,
        tiles=tuple(tile for tile in answer.tiles if isinstance(tile.cell, Shown)),
        no_distance=why_no_distance(answer.phase) if answer.distance is None and has_phases else None,
    )


def why_no_distance(phase: str) -> Unknown:
    """What a capture lacks to say how far its phases are from their bounds."""
    return Unknown(
        reason="the capture names neither its model nor a time without a profiler",
        enable=f"llm-perf analyze … model=… hardware=… workload.prompt=… {CLEAN_OPTION[phase]} …",
    )


def load_headline(
    files: RunFiles, facts: RunFacts, answer: HeadlineAnswer, modules: ModulesView, subject: PageSubject
) -> HeadlineView:
    """Of a server under load, with what a window of a profiler showed inside it."""
    assert subject.load is not None
    return headline_of(
        files,
        facts,
        answer,
        modules if subject.has_parts else None,
        title=served_title(files),
        verdict=served_verdict(subject.load),
        tone="bad" if subject.load.reason else "unknown",
        tiles=served_tiles(subject.load),
    )


def _shown_first(waterfalls: tuple[Waterfall, ...], about: str | None, facts: RunFacts) -> Waterfall | None:
    """Of the phase the verdict is about, else of the one that loses, or takes, most of a request."""
    timed = [
        (_lost_ms(fall, facts), fall.wall.value * (facts.phases[fall.phase].steps_per_request or 1.0), fall)
        for fall in waterfalls
        if isinstance(fall.wall, Known)
    ]
    largest = max(timed, key=lambda item: item[:2])[2] if timed else None
    return next((fall for *_, fall in timed if fall.phase == about), largest)


def _is_nothing_else(files: RunFiles, facts: RunFacts) -> bool:
    timed = any(isinstance(phase.wall, Known) for phase in facts.phases.values())
    return not timed and isinstance(files.static, Unknown)


def run_warnings(files: RunFiles) -> tuple[str, ...]:
    """Why the numbers may not come out the same again."""
    shared = shared_gpus(files.manifest.environment)
    if not files.samples:
        return shared
    unsteady = stability_warnings(
        files.samples,
        files.metrics.content if isinstance(files.metrics, Found) else None,
        files.clocks.content if isinstance(files.clocks, Found) else None,
    )
    return (*shared, *unsteady)


def shared_gpus(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """A sentence for each GPU that did others' work when the run began."""
    found = environment.get(BUSY_GPUS)
    return tuple(
        f"GPU {index} was {percent} % busy before this run did anything: another program uses it too, and every time "
        "measured here is that of a shared GPU"
        for index, percent in (found.items() if isinstance(found, Mapping) else ())
    )


def model_name(files: RunFiles) -> str:
    if isinstance(files.metrics, Found):
        return files.metrics.content.model.name
    if isinstance(files.static, Found):
        return files.static.content.model
    model, workload = files.manifest.config.get("model"), files.manifest.config.get("workload")
    if isinstance(model, Mapping) and isinstance(workload, Mapping) and workload.get("command") is None:
        return str(model.get("name"))
    if isinstance(files.capture, Found) and files.capture.content.sources:
        return _file_names([source.path for source in files.capture.content.sources])
    return files.manifest.run_id


def _file_names(paths: Sequence[str]) -> str:
    """The first two, since a job may have hundreds; of paths the last part."""
    names = [PurePath(path).name for path in paths]
    rest = len(names) - 2
    return ", ".join(names[:2]) + (f" and {rest} more" if rest > 0 else "")


def device_name(files: RunFiles) -> str | None:
    if isinstance(files.metrics, Found) and files.metrics.content.model.device_name:
        return files.metrics.content.model.device_name
    if isinstance(files.capture, Found) and files.capture.content.gpu.name:
        return files.capture.content.gpu.name
    if isinstance(files.ncu, Found) and files.ncu.content.device:
        return files.ncu.content.device
    return None


def parameter_count(files: RunFiles) -> int | None:
    if isinstance(files.static, Found):
        return files.static.content.parameters.total
    return files.metrics.content.model.parameters if isinstance(files.metrics, Found) else None


def run_facts(files: RunFiles, facts: RunFacts) -> tuple[tuple[str, str], ...]:
    device = device_name(files)
    shown = "unknown" if device is None else f"{device} (CPU)" if facts.is_cpu else device
    found = [("device", shown), ("dtype", facts.dtype or "unknown")]
    found = [fact for fact in found if fact[1] != "unknown"]
    static = files.static.content if isinstance(files.static, Found) else None
    parameters = parameter_count(files)
    if parameters is not None:
        found.append(("parameters", _short_count(parameters)))
    if static is not None:
        found.append(("batch", str(static.workload.batch)))
    prompt = measured_prompt(files)
    if prompt is not None:
        found.append(("prompt", f"{prompt:,.0f} tokens"))
    elif static is not None:
        found.append(("prompt", f"{static.workload.prompt_tokens:,} tokens (assumed)"))
    found.append(("run", files.manifest.run_id))
    found.append(("analysed" if is_given(files) else "started", _minute(files.manifest.created_at)))
    return tuple(found)


def _short_count(parameters: int) -> str:
    """As model names say it: 1.24 B, 110 M."""
    for size, name in ((1e9, "B"), (1e6, "M")):
        if parameters >= size:
            return f"{digits(parameters / size)} {name}"
    return f"{parameters:,}"


def _minute(moment: str) -> str:
    """To the minute, in UTC; the provenance has it as it was written."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return moment


def _sequences(files: RunFiles) -> str:
    deployment = files.metrics.content.deployment if isinstance(files.metrics, Found) else None
    batch_stats = files.metrics.content.clean.metrics.get("batch") if isinstance(files.metrics, Found) else None
    batch = (
        deployment.batch
        if deployment is not None
        else batch_stats.p50
        if batch_stats is not None and batch_stats.p50
        else 1
    )
    return "one sequence" if batch == 1 else f"all {batch:.0f} sequences"


def _capture_alone(files: RunFiles, facts: RunFacts) -> Found[CaptureAnalysis] | None:
    """The capture of a run in which nothing was timed without a profiler and nothing predicted."""
    timed = any(isinstance(phase.wall, Known) for phase in facts.phases.values())
    if timed or not isinstance(files.capture, Found) or not files.capture.content.sources:
        return None
    found = files.capture.content
    has_work = found.gpu.kernel_count or found.graphs.launches_traced_as_a_whole
    return files.capture if has_work or isinstance(files.static, Unknown) else None


def _tiles(files: RunFiles, facts: RunFacts) -> tuple[Tile, ...]:
    ttft = clean_metric(files.manifest, "ttft_ms")
    if isinstance(ttft, Unknown) and isinstance(facts.phases["prefill"].wall, Known):
        prefill = Tile(
            key="prefill",
            label="Prefill",
            cell=show(facts.phases["prefill"].wall),
            explain="time of one prefill, clean pass",
        )
    else:
        prefill = Tile(key="ttft", label="TTFT", cell=show(ttft), explain="time to first token, clean pass")
    decode = facts.phases["decode"]
    return (
        prefill,
        Tile(
            key="tpot",
            label="TPOT",
            cell=show(decode.wall),
            explain="time per output token after the first, clean pass",
        ),
        Tile(
            key="decode_speed",
            label="Decode speed",
            cell=show(_speed(files, facts)),
            explain=f"tokens per second of {_sequences(files)} while decoding",
        ),
        Tile(
            label="MFU, prefill",
            cell=show(mfu_of(files, facts.phases["prefill"])),
            explain="model FLOPs utilisation: needed FLOPs over what the peak would have done in the clean time",
        ),
        Tile(
            label="MBU, decode",
            cell=show(mbu_of(files, decode)),
            explain="model bandwidth utilisation: weights and KV cache once, over what the peak would have moved",
        ),
        Tile(label="Peak memory", cell=show(facts.memory.measured_peak), explain="highest of all samples, clean pass"),
        *_cost(files),
    )


def _cost(files: RunFiles) -> tuple[Tile, ...]:
    """Of a million output tokens of requests one after the other, where the price of a device is set."""
    found = million_tokens(files).cost
    if found is None:
        return ()
    cell = Shown(text=digits(found.value), value=found.value, how=found.how, source=found.source)
    return (Tile(key="cost", label="Cost, million tokens", cell=cell, explain="of a million output tokens"),)


def _speed(files: RunFiles, facts: RunFacts) -> Quantity:
    speed = clean_metric(files.manifest, "decode_tokens_per_s")
    wall = facts.phases["decode"].wall
    if isinstance(speed, Known) or isinstance(wall, Unknown) or not wall.value:
        return speed
    return Known(
        value=1e3 / wall.value, unit="tokens/s", how=f"from the time per token ({wall.how})", source=wall.source
    )


def _verdict(
    waterfalls: tuple[Waterfall, ...], found: tuple[Finding, ...], facts: RunFacts, best: Finding | None
) -> tuple[str, Tone, str | None]:
    """What to say first, how bad that is, and the phase it is about."""
    if best is not None and best.max_gain is not None and best.max_gain >= FAR_FROM_BOUND:
        return _promise(best, found, facts), "bad", best.phase
    compared = [(w, *distance) for w in waterfalls if (distance := _distance(w)) is not None]
    if compared:
        worst, text, factor = max(compared, key=lambda item: _lost_ms(item[0], facts))
        tone: Tone = "good" if factor < NEAR_BOUND else "warn" if factor < FAR_FROM_BOUND else "bad"
        promise = f" {_promise(best, found, facts)}" if best is not None else ""
        return text + promise, tone, worst.phase
    if best is not None:
        return _promise(best, found, facts), "warn", best.phase
    known = [w for w in waterfalls if isinstance(w.wall, Known)]
    if known:
        times = ", ".join(f"{w.phase} {format_ms(w.wall.value)} {w.per}" for w in known if isinstance(w.wall, Known))
        return f"Measured: {times}; the distance to the hardware's lower bound is not known.", "unknown", None
    texts = [text for text in (_bound_text(w) for w in waterfalls) if text is not None]
    if texts:
        return (
            f"No latency was measured. By model and hardware alone, no faster than {', '.join(texts)}.",
            "unknown",
            None,
        )
    return "No latency was measured and no bound is known: what was run and found is below.", "unknown", None


def best_finding(found: Sequence[Finding], facts: RunFacts) -> Finding | None:
    """What the verdict is about; a guess is for the list of findings, not for the one sentence everybody reads."""
    return next((f for f in found if _may_be_headline(f) and is_worth_it(f, facts)), None)


def _may_be_headline(finding: Finding) -> bool:
    return finding.confidence not in WEAK and not finding.is_one_time and (finding.share or 0.0) >= MIN_HEADLINE


def is_worth_it(finding: Finding, facts: RunFacts) -> bool:
    """Whether a request would be faster by a noticeable amount; where requests are not known, the phase."""
    saved = saved_in_request_ms(finding, facts)
    gain = (None if saved is None else gain_of_saving(saved, facts)) or finding.max_gain
    return gain is None or gain >= 1 + MIN_HEADLINE


def _promise(finding: Finding, found: tuple[Finding, ...], facts: RunFacts) -> str:
    if finding.max_gain is None:
        return f"{finding.title}."
    return f"{finding.title}. {finding.hint or 'A fix'} could give up to {gain_of(twins(finding, found), facts)}."


def _lost_ms(waterfall: Waterfall, facts: RunFacts) -> float:
    """What a request takes above a phase's bound; of one step where their number is not known."""
    bound = waterfall.known("achievable") or waterfall.known("datasheet")
    if bound is None or isinstance(waterfall.wall, Unknown):
        return 0.0
    return (waterfall.wall.value - bound.to_ms) * (facts.phases[waterfall.phase].steps_per_request or 1.0)


def _distance(waterfall: Waterfall) -> tuple[str, float] | None:
    """How far a phase is from its bound."""
    bound = waterfall.known("achievable") or waterfall.known("datasheet")
    if bound is None or isinstance(waterfall.wall, Unknown) or bound.to_ms <= 0:
        return None
    factor = waterfall.wall.value / bound.to_ms
    share = format_percent(1 / factor)
    text = (
        f"{waterfall.phase.capitalize()} takes {format_ms(waterfall.wall.value)} {waterfall.per}, "
        f"{format_factor(factor)} the {format_ms(bound.to_ms)} this hardware allows ({share} of the possible speed)."
    )
    return text, factor


def _bound_text(waterfall: Waterfall) -> str | None:
    bound = waterfall.known("achievable") or waterfall.known("datasheet")
    return None if bound is None else f"{waterfall.phase} {format_ms(bound.to_ms)} {waterfall.per}"

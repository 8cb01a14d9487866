"""Slow requests as a section of the report, and as lines for the terminal."""

from collections.abc import Mapping, Sequence

from llm_perf_opt.core.sections import Cell, Link, Section, SectionTable, filled
from llm_perf_opt.core.units import format_ms
from llm_perf_opt.serving.requests.request_records import (
    PARTS,
    CapturedSteps,
    Delay,
    ExplainedRequest,
    Part,
    SlowDocument,
    SlowLevel,
    StepKernel,
    StepRange,
)

TITLE = "Slowest requests"
DELAYS = "Requests that delayed others"
LINES_SHOWN = 3
RANGES_SHOWN = 3
KERNELS_SHOWN = 3
# Headings of parts: the table has many columns.
SHORT: Mapping[Part, str] = {
    "other requests' prefill": "others' prefill",
    "host and scheduler": "host",
    "network and client": "network",
}
# Smaller parts of a request are in the document alone.
PART_SHOWN = 0.05
METHODS = {
    "steps": "Parts are measured: the engine recorded which request was in which step. Each moment belongs to one "
    "part, so that parts sum to the end-to-end time. The time that prefill adds to a shared step belongs to the "
    "prompts in it, by their tokens. Network and client includes the way of tokens through the server's front end.",
    "arrival times": "Parts are bounds from the arrival times of tokens in concurrent streams: queue and own prefill "
    "cannot be separated before the first token, and other requests' prefill is at most what gaps have above the usual "
    "while another request waited for its first token.",
}


def slow_sections(document: SlowDocument, *, source: str, files: Sequence[str] = ()) -> tuple[Section, ...]:
    """One section with two tables for each level; `files` hold the steps."""
    levels = [level for level in document.levels if level.slowest]
    if not levels:
        return ()
    texts = [line for level in levels for line in _verdicts(level)]
    texts += [METHODS[method] for method in dict.fromkeys(level.method for level in levels)]
    texts += [text for level in levels if (text := _matched(level, document)) is not None]
    texts += [_captured(level.label, level.captured) for level in levels if level.captured is not None]
    texts += [*document.notes, *(note for level in levels for note in level.notes)]
    tables = [
        table
        for level in levels
        for table in (_slowest(level, source), *_delays(level, source), *_kernels(level, source))
    ]
    captures = [level.captured.file for level in levels if level.captured is not None]
    links = (
        Link(text="every part with its steps", target=source),
        *(Link(text="steps of the engine", target=file) for file in files),
        *(Link(text="capture of the server", target=file) for file in captures),
    )
    return (Section(title=TITLE, paragraphs=tuple(dict.fromkeys(texts)), tables=tuple(tables), links=links),)


def slow_lines(document: SlowDocument) -> list[str]:
    """What a person wants to read first, for each level."""
    lines = [*document.notes]
    for level in document.levels:
        lines += _verdicts(level)
        lines += [f"  {_line(one)}" for one in level.slowest[:LINES_SHOWN]]
        matched = _matched(level, document)
        lines += [] if matched is None else [matched]
    return lines


def steps_text(ranges: Sequence[StepRange]) -> str:
    """`210 to 213, 220`, shortened where there are many."""
    shown = [f"{one.first}" if one.first == one.last else f"{one.first} to {one.last}" for one in ranges[:RANGES_SHOWN]]
    return ", ".join([*shown, "…"] if len(ranges) > RANGES_SHOWN else shown)


def _named_steps(ranges: Sequence[StepRange]) -> str:
    is_one = len(ranges) == 1 and ranges[0].first == ranges[0].last
    return f"{'step' if is_one else 'steps'} {steps_text(ranges)}"


def _verdicts(level: SlowLevel) -> list[str]:
    """What dominates the slowest requests, and who delayed the others most."""
    if not level.slowest:
        return []
    sums = {name: sum(p.time_s for one in level.slowest for p in one.parts if p.name == name) for name in PARTS}
    largest = max(sums, key=sums.__getitem__)
    total = sum(one.e2e_s for one in level.slowest)
    share, count = f"{100 * sums[largest] / total:.0f} %", len(level.slowest)
    texts = [f"{level.label}: {share} of the time of the {count} slowest requests is {largest}."]
    return [*texts, *(f"{level.label}: {_delay_text(delay, level)}." for delay in level.delays[:1])]


def _delay_text(delay: Delay, level: SlowLevel) -> str:
    most = "up to " if level.method == "arrival times" else ""
    where = f", in {_named_steps(delay.steps)}" if delay.steps else ""
    others = "1 other" if delay.victims == 1 else f"{delay.victims} others"
    return f"the prefill of {_name(delay)} delayed {others} by {most}{_time(delay.time_s)} in total{where}"


def _name(delay: Delay) -> str:
    tokens = "" if delay.prompt_tokens is None else f" ({delay.prompt_tokens:,} prompt tokens)"
    return f"request {delay.request}{tokens}"


def _line(one: ExplainedRequest) -> str:
    parts = ", ".join(f"{part.name} {_time(part.time_s)}" for part in sorted(one.parts, key=lambda part: -part.time_s))
    return f"request {one.index}: {_time(one.e2e_s)} end-to-end: {parts}"


def _matched(level: SlowLevel, document: SlowDocument) -> str | None:
    match = level.match
    if match is None or match.steps_share is None or match.tokens_share is None:
        return None
    return (
        f"{level.label}: {100 * match.steps_share:.1f} % of {match.steps:,} steps and "
        f"{100 * match.tokens_share:.1f} % of {match.tokens:,} output tokens matched "
        f"({document.engine} {document.version})."
    )


def _captured(label: str, captured: CapturedSteps) -> str:
    return (
        f"{label}: {captured.work} of {captured.steps:,} steps are from {captured.file}, put on the clock of the steps "
        f"by the time of day; {100 * captured.inside_share:.1f} % of their time lies within steps. The profiler slows "
        "the server down: this load shows which work the time goes to; its times are not those measured above."
    )


def _kernels(level: SlowLevel, source: str) -> list[SectionTable]:
    """The work in the steps of each part of the slowest requests, longest parts first."""
    if level.captured is None:
        return []
    work = level.captured.work
    rows = [
        (one.index, part.name, 1e3 * part.time_s, steps_text(part.steps), 1e3 * part.kernels_s, _work(part.kernels))
        for one in level.slowest
        for part in sorted(one.parts, key=lambda part: -part.time_s)
        if part.kernels_s is not None and part.time_s >= PART_SHOWN * one.e2e_s
    ]
    columns = ("request", "part", "ms", "steps", f"all {work}, ms", f"longest {work}")
    return [
        SectionTable(
            title=f"{work.capitalize()} by part, {level.label}", columns=columns, rows=tuple(rows), source=source
        )
    ]


def _work(kernels: Sequence[StepKernel]) -> str:
    return "; ".join(f"{one.name} {_time(one.time_s)} ({one.count:,}×)" for one in kernels[:KERNELS_SHOWN])


def _slowest(level: SlowLevel, source: str) -> SectionTable:
    names = [name for name in PARTS if any(part.name == name for one in level.slowest for part in one.parts)]
    is_bounded = level.method == "arrival times"
    columns = ["request", "sent s", "prompt", "end-to-end", *(SHORT.get(name, name) for name in names)]
    columns += ["others' prefill at least"] if is_bounded else ["shared steps"]
    rows = [(*_cells(one, names), _least(one) if is_bounded else _shared(one), *_causes(one)) for one in level.slowest]
    return SectionTable(
        title=f"Slowest requests, {level.label}, in ms",
        columns=(*columns, "delayed most by", "longest gap"),
        rows=tuple(rows),
        source=source,
    )


def _cells(one: ExplainedRequest, names: Sequence[Part]) -> tuple[Cell, ...]:
    times = {part.name: 1e3 * part.time_s for part in one.parts}
    parts: list[Cell] = [times.get(name, 0.0) for name in names]
    return (one.index, one.started_s, one.prompt_tokens, 1e3 * one.e2e_s, *parts)


def _shared(one: ExplainedRequest) -> float:
    return 1e3 * sum(part.shared_s for part in one.parts)


def _least(one: ExplainedRequest) -> float | None:
    return next((1e3 * p.low_s for p in one.parts if p.name == "other requests' prefill" and p.low_s is not None), None)


def _causes(one: ExplainedRequest) -> tuple[str, str]:
    """The request that delayed it most, and its longest gap."""
    delayed = longest = ""
    if one.delayed_by:
        delay = one.delayed_by[0]
        where = f", {_named_steps(delay.steps)}" if delay.steps else ""
        delayed = f"{delay.request}: {_time(delay.time_s)}{where}"
    gap = one.longest_gap
    if gap is not None and gap.time_s:
        step = "" if gap.step is None else f", step {gap.step}"
        longest = f"{_time(gap.time_s)}, token {gap.token}{step}"
    return delayed, longest


def _delays(level: SlowLevel, source: str) -> list[SectionTable]:
    if not level.delays:
        return []
    if level.method == "arrival times":
        columns = ("request", "prompt tokens", "others delayed", "by at most ms in total")
        rows = tuple((one.request, one.prompt_tokens, one.victims, 1e3 * one.time_s) for one in level.delays)
        return [SectionTable(title=f"{DELAYS}, {level.label}", columns=columns, rows=rows, source=source)]
    found: dict[str, Sequence[Cell]] = {
        "request": [one.request for one in level.delays],
        "prompt tokens": [one.prompt_tokens for one in level.delays],
        "others delayed": [one.victims for one in level.delays],
        "by ms in total": [1e3 * one.time_s for one in level.delays],
        "steps": [steps_text(one.steps) for one in level.delays],
    }
    if level.captured is not None:
        found[f"longest {level.captured.work}"] = [_work(one.kernels) for one in level.delays]
    return [filled(f"{DELAYS}, {level.label}", found, source)]


def _time(seconds: float) -> str:
    return format_ms(1e3 * seconds)

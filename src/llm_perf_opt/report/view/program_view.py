"""The page of a user's own program: its name, its end, its phases, and what is known of it."""

from dataclasses import replace

from llm_perf_opt.core.documents import HostObserved
from llm_perf_opt.core.names import BUSY_SHARE, PROCESSOR_TIME
from llm_perf_opt.core.sections import SectionTable
from llm_perf_opt.core.units import format_ms
from llm_perf_opt.diagnosis.facts import Known, Quantity, RunFacts, Unknown
from llm_perf_opt.diagnosis.host_scope import COMPUTES, GENERATION, is_enough
from llm_perf_opt.diagnosis.ledger import cell_name
from llm_perf_opt.report.run_facts import clean_metric
from llm_perf_opt.report.run_files import Found, RunFiles
from llm_perf_opt.report.view.headline import (
    HeadlineAnswer,
    HeadlineView,
    Tone,
    device_name,
    parameter_count,
    run_facts,
    run_warnings,
)
from llm_perf_opt.report.view.modules import ModulesView, operators_split
from llm_perf_opt.report.view.sections_view import SectionView, table_view
from llm_perf_opt.report.view.shown import Shown, Tile, TimePart, TimeSplit, show
from llm_perf_opt.report.view.subject_view import PageSubject, program_of
from llm_perf_opt.system.process import program_title

# Measured ceilings are exact to some percent; what is faster than this share of a bound was not bound by it.
BEATEN = 0.9
# Phases as a program marks them, by the metric that holds their times; any other metric in ms is named as its phase.
PHASE_OF = {"tpot_ms": "decode_step"}
NO_PHASES_MARKED = (
    'Without marked phases nothing can be judged against a limit: put `with llm_perf_opt.phase("decode_step"):` around '
    "each step."
)
# Wall times whose slowest tenth takes this many times the fastest one measure nothing.
UNSTEADY = 1.5
# Metrics in ms that are not phase, or hold the times of one that has a row already.
NO_PHASES = ("wall_ms", "ttft_ms", "itl_ms")


def program_headline(
    files: RunFiles, facts: RunFacts, answer: HeadlineAnswer, modules: ModulesView, subject: PageSubject
) -> HeadlineView:
    """Its own name, its end, and what is known of it."""
    wall = clean_metric(files.manifest, "wall_ms")
    tiles = tuple(tile for tile in answer.tiles if isinstance(tile.cell, Shown))
    if isinstance(wall, Known):
        explain = "from start to end of the program, without a profiler"
        tiles = (Tile(key="wall", label="Wall time", cell=show(wall), explain=explain), *tiles)
    verdict, tone = _verdict(files, facts, answer, subject, wall, tiles)
    split = answer.split
    if split is None and subject.has_parts:
        split = operators_split(modules, wall_ms=program_wall_ms(files))
    crashed = subject.crashed
    return HeadlineView(
        title=program_title(subject.command),
        device=device_name(files),
        parameters=parameter_count(files),
        facts=run_facts(files, facts),
        verdict=f"{verdict} It did not run to its end under torch.profiler." if subject.failed_under_torch else verdict,
        tone=tone,
        phase=answer.phase,
        tiles=tiles,
        warnings=(*run_warnings(files), *_unsteady(wall)),
        promised=answer.promised,
        log=None if crashed is None else next((c.log for c in reversed(crashed.commands) if c.log is not None), None),
        is_cpu=bool(facts.is_cpu),
        is_unjudged=answer.is_unjudged,
        split=None if split is None else _with_limit(split, files, facts, wall),
        distance=answer.distance,
        no_distance=_why_no_distance(files, tiles, subject),
    )


def _verdict(
    files: RunFiles,
    facts: RunFacts,
    answer: HeadlineAnswer,
    subject: PageSubject,
    wall: Quantity,
    tiles: tuple[Tile, ...],
) -> tuple[str, Tone]:
    if subject.crashed is not None:
        return f"The program did not run to its end: {subject.crashed.said}", "bad"
    why = "Its phases are ranges that only profilers see" if subject.maps_phases else "It marks no decode steps"
    if isinstance(wall, Known) and not any(tile.key == "tpot" for tile in tiles):
        text = f"It ran {wall.value / 1e3:.3g} s without a profiler. {why}, so no latency is known."
        if isinstance(files.host, Found) and is_enough(files.host.content):
            # Its stacks say where the time went: that answer needs no marks.
            return f"{answer.verdict} It ran {wall.value / 1e3:.3g} s without a profiler.", answer.tone
        # The findings of its capture come first.
        if answer.is_answer:
            return f"{answer.verdict} {text}", answer.tone
        return _without_stacks(wall.value / 1e3, files) or text, answer.tone
    if not tiles and isinstance(files.metrics, Found):
        if isinstance(files.host, Found) and is_enough(files.host.content):
            return f"{answer.verdict} It did not end by itself and was ended.", answer.tone
        return f"It did not end by itself and was ended. {why}, so no latency is known.", answer.tone
    wrong = faster_than_possible(facts, files.static.content.model) if isinstance(files.static, Found) else None
    return (answer.verdict, answer.tone) if wrong is None else (wrong, "bad")


def _without_stacks(wall_s: float, files: RunFiles) -> str | None:
    """Whether a program without samples computed or waited, and what would say more; None where that is not known."""
    used = clean_metric(files.manifest, PROCESSOR_TIME)
    busy = clean_metric(files.manifest, BUSY_SHARE)
    if not isinstance(used, Known) or not isinstance(busy, Known):
        return None
    ran = f"It ran {wall_s:.3g} s without a profiler, and used a processor for {used.value:.3g} s when it ran again"
    unknown = "No Python was seen in it, so its functions are not known"
    if busy.value >= COMPUTES:
        return f"{ran}: it computes. {unknown}: `perf record -g` samples programs in other languages."
    return f"{ran}: it waits. {unknown}: `strace -f -c -w` adds up the time of its system calls."


def _with_limit(split: TimeSplit, files: RunFiles, facts: RunFacts, wall: Quantity) -> TimeSplit:
    """The bar of a program with the part of `generate()` that the hardware needs, where bounds are known."""
    place = next((n for n, part in enumerate(split.parts) if part.label == cell_name(GENERATION)), None)
    if place is None or not isinstance(files.metrics, Found) or not isinstance(wall, Known) or wall.value <= 0:
        return split
    needed_ms = 0.0
    for phase in facts.phases.values():
        bound = phase.achievable if isinstance(phase.achievable, Known) else phase.datasheet
        spread = phase.wall.spread if isinstance(phase.wall, Known) else None
        if isinstance(bound, Known) and spread is not None:
            needed_ms += bound.value * spread.n / (files.metrics.content.clean.repeats or 1)
    whole = split.parts[place]
    share = needed_ms / wall.value
    if not 0 < share < whole.share:
        return split
    limit = TimePart(label="hardware limit", kind="bound", share=share)
    rest = replace(whole, label=f"{whole.label} above the hardware limit", share=whole.share - share)
    return replace(split, parts=(*split.parts[:place], limit, rest, *split.parts[place + 1 :]))


def _why_no_distance(files: RunFiles, tiles: tuple[Tile, ...], subject: PageSubject) -> Unknown | None:
    """Of a program whose model is not named; of one that marks no steps, that too; of one that loads no torch, that."""
    why = subject.no_bounds
    seen = files.host.content.observed if isinstance(files.host, Found) else None
    if why is not None and isinstance(seen, HostObserved) and seen.threads.torch is None:
        return Unknown(reason="it loads no torch and runs no model that could be compared with a limit of the hardware")
    if why is None or any(tile.key == "tpot" for tile in tiles):
        return why
    return Unknown(
        reason="it marks no phases and does not say which model it runs",
        enable=f'{why.enable}, with perf.phase("decode_step") around each step',
    )


def _unsteady(wall: Quantity) -> tuple[str, ...]:
    """What to know of runs of the program that do not agree."""
    spread = wall.spread if isinstance(wall, Known) else None
    if spread is None or spread.n < 2 or spread.p90 <= UNSTEADY * spread.p10:
        return ()
    low, high = format_ms(spread.p10), format_ms(spread.p90)
    return (
        f"the {spread.n} runs of the program took between {low} and {high} (p10 to p90): the first may have filled "
        "caches, or other programs ran; more workload.repeats say more",
    )


def program_wall_ms(files: RunFiles) -> float | None:
    """How long a program that marks no phases ran without a profiler; None for anything else."""
    wall = clean_metric(files.manifest, "wall_ms")
    if not program_of(files) or phases_section(files) or not isinstance(wall, Known):
        return None
    return wall.value


def faster_than_possible(facts: RunFacts, model: str) -> str | None:
    """What to say of a program that beats the bounds of the model it was configured with: then it runs another one."""
    for name, phase in facts.phases.items():
        bound = phase.datasheet if isinstance(phase.datasheet, Known) else phase.achievable
        if isinstance(bound, Known) and isinstance(phase.wall, Known) and phase.wall.value < BEATEN * bound.value:
            return (
                f"{name.capitalize()} took {format_ms(phase.wall.value)}, and {model} needs at least "
                f"{format_ms(bound.value)} here: the program runs another model than model= names, or marks other "
                "tokens than it computes. Bounds and utilisation on this page are not its own."
            )
    return None


def phases_section(files: RunFiles) -> tuple[SectionView, ...]:
    """Every phase the program marked, as its clean pass timed it; none for our own inference."""
    if not program_of(files) or not isinstance(files.metrics, Found):
        return ()
    clean = files.metrics.content.clean
    wall = clean.metrics.get("wall_ms")
    # Only runs that came to their end by themselves have a wall time.
    whole = None if wall is None or wall.mean is None or wall.n != clean.repeats else wall.mean * wall.n
    rows: list[tuple[str | float | None, ...]] = [
        (
            PHASE_OF.get(key, key.removesuffix("_ms")),
            stats.n,
            *(stats.p50, stats.p10, stats.p90),
            stats.n * stats.mean,
            100 * stats.n * stats.mean / whole if whole else None,
        )
        for key, stats in clean.metrics.items()
        if key.endswith("_ms") and key not in NO_PHASES and stats.mean is not None
    ]
    if not rows:
        return ()
    columns = ("phase", "times", "median, ms", "p10, ms", "p90, ms", "together, ms", "of the wall time, %")
    table = SectionTable(columns=columns, rows=tuple(rows), source=files.metrics.source)
    repeats = "one run" if clean.repeats == 1 else f"{clean.repeats} runs"
    text = f"Wall times of {repeats} without a profiler, warm-up left out. Phases inside others count in both."
    view = SectionView(
        key="phases",
        # Its own clean pass lies in scratch, which is not a stage.
        stage="" if files.metrics.source.startswith("tmp/") else files.metrics.source.split("/")[0],
        title="Phases of the program",
        paragraphs=(text,),
        metrics=(),
        tables=(table_view(table),),
        pictures=(),
        links=(),
    )
    return (view,)

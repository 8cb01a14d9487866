"""The page of a program or a capture of the user's own: its name, its end, and only the parts that apply to it."""

import shlex
from collections.abc import Mapping
from dataclasses import replace

from llm_perf_opt.core.names import DECODE, PREFILL, TORCH_PROFILER
from llm_perf_opt.core.process import program_title
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.core.sections import SectionTable
from llm_perf_opt.core.units import format_ms
from llm_perf_opt.diagnosis.facts import GpuFacts, Known, PhaseFacts, Quantity, RunFacts, Unknown
from llm_perf_opt.report.facts import clean_metric
from llm_perf_opt.report.run_files import Found, RunFiles
from llm_perf_opt.report.view.headline import HeadlineView
from llm_perf_opt.report.view.kernels import KernelsView
from llm_perf_opt.report.view.memory import MemoryView
from llm_perf_opt.report.view.modules import ModulesView
from llm_perf_opt.report.view.roofline import RooflineView
from llm_perf_opt.report.view.sections import SectionView, table_view
from llm_perf_opt.report.view.shown import Shown, Tile, show
from llm_perf_opt.report.view.timeline import TimelineView
from llm_perf_opt.report.view.waterfall import RequestView, WaterfallView

# The parts of a page between its headline and what stages add, in their order.
CLEAN_OPTION = {PREFILL: "--clean-prefill-ms", DECODE: "--clean-tpot-ms"}
PARTS = ("waterfall", "findings", "kernels", "roofline", "timeline", "modules", "memory")
# Measured ceilings are exact to some percent; what is faster than this share of a bound was not bound by it.
BEATEN = 0.9
# Phases as a program marks them, by the metric that holds their times; any other metric in ms is named as its phase.
PHASE_OF = {"tpot_ms": "decode_step"}
NO_PHASES_MARKED = (
    'Without marked phases nothing can be judged against a limit: put `with llm_perf_opt.phase("decode_step"):` around '
    "each step."
)
# Wall times whose slower tenth takes so many times the faster one are no measure of anything.
UNSTEADY = 1.5
# Metrics in ms that are no phase, or hold the times of one that has a row already.
NO_PHASES = ("wall_ms", "ttft_ms", "itl_ms")


def program_of(files: RunFiles) -> tuple[str, ...] | None:
    """The command that was run in the place of our own inference; None where none was."""
    workload = files.manifest.config.get("workload")
    command = workload.get("command") if isinstance(workload, Mapping) else None
    return tuple(str(word) for word in command) if isinstance(command, list | tuple) and command else None


def maps_phases(files: RunFiles) -> bool:
    """Whether the phases are ranges of the program's own, by `workload.phases` or a preset."""
    workload = files.manifest.config.get("workload")
    return isinstance(workload, Mapping) and bool(workload.get("phases") or workload.get("phase_preset"))


def phases_shown(files: RunFiles, facts: RunFacts) -> tuple[str, ...]:
    """The phases a page has: both for our own inference, of a program those timed, of a capture those in it."""
    if is_bare(files):
        return tuple(name for name, phase in facts.phases.items() if _is_known(phase))
    if program_of(files) is None:
        return tuple(facts.phases)
    return tuple(name for name, phase in facts.phases.items() if isinstance(phase.wall, Known))


def is_bare(files: RunFiles) -> bool:
    """Whether captures made elsewhere were read: what is not in them was not forgotten, it cannot be known."""
    return "analyze" in files.manifest.config


def _is_known(phase: PhaseFacts) -> bool:
    return isinstance(phase.gpu, GpuFacts) or isinstance(phase.wall, Known) or isinstance(phase.datasheet, Known)


def parts_of_capture(
    falls: tuple[WaterfallView, ...],
    kernels: KernelsView,
    roofline: RooflineView,
    timeline: TimelineView,
    modules: ModulesView,
    memory: MemoryView,
    *,
    has_findings: bool,
) -> tuple[str, ...]:
    """The parts of a capture's page: what the capture, or what was said beside it, knows."""
    known = {
        "waterfall": any(fall.is_placed for fall in falls),
        "findings": has_findings,
        "kernels": kernels.missing is None,
        "roofline": roofline.missing is None,
        "timeline": timeline.missing is None,
        "modules": len(modules.phases) > 0 or len(modules.operators) > 0,
        "memory": bool(memory.power) or any(isinstance(cell, Shown) for _, cell in memory.rows),
    }
    return tuple(part for part in PARTS if known[part])


def waterfall_of_capture(fall: WaterfallView) -> WaterfallView:
    """What is missing is asked for in the words of the command that reads captures."""
    clean = Unknown(
        reason="the times of a capture are those under the profiler",
        enable=f"{CLEAN_OPTION[fall.phase]} beside the capture",
    )
    bound = Unknown(
        reason="the capture does not say which model ran",
        enable="model=… hardware=… workload.prompt=… beside the capture",
    )
    said = {"datasheet": bound, "achievable": bound, "idle": clean, "wall": clean}
    rows = [row if row.missing is None else replace(row, missing=said.get(row.key, row.missing)) for row in fall.rows]
    return replace(fall, rows=tuple(rows))


def modules_of_capture(view: ModulesView) -> ModulesView:
    """Without a word about what only our own inference measures."""
    return replace(view, time_missing=None, operators_missing=None, double_entry_missing=None)


def memory_of_capture(view: MemoryView) -> MemoryView:
    rows = tuple((label, cell) for label, cell in view.rows if not isinstance(cell, Unknown))
    return replace(view, rows=rows, power_missing=None)


def of_capture(head: HeadlineView, *, phases: bool) -> HeadlineView:
    """The headline of a capture says nothing of what it cannot know."""
    return replace(
        head,
        facts=tuple(fact for fact in head.facts if fact[1] != "unknown"),
        tiles=tuple(tile for tile in head.tiles if isinstance(tile.cell, Shown)),
        no_distance=None if head.distance is not None or not phases else why_no_distance(head.phase),
    )


def why_no_distance(phase: str) -> Unknown:
    """What a capture lacks to say how far its phases are from their bounds."""
    return Unknown(
        reason="the capture names neither its model nor a time without a profiler",
        enable=f"llm-perf analyze … model=… hardware=… workload.prompt=… {CLEAN_OPTION[phase]} …",
    )


def of_program(head: HeadlineView, files: RunFiles, facts: RunFacts) -> HeadlineView:
    """The headline as it is for our own inference; for a program its own name, its end, and what is known of it."""
    command = program_of(files)
    if command is None:
        return head
    head = _of_ran_program(head, files, facts, command)
    if not failed_under_torch(files):
        return head
    return replace(head, verdict=f"{head.verdict} It did not run to its end under torch.profiler.")


def _of_ran_program(head: HeadlineView, files: RunFiles, facts: RunFacts, command: tuple[str, ...]) -> HeadlineView:
    failed = crashed_stage(files)
    wall = clean_metric(files.manifest, "wall_ms")
    tiles = tuple(tile for tile in head.tiles if isinstance(tile.cell, Shown))
    if isinstance(wall, Known):
        explain = "from start to end of the program, without a profiler"
        tiles = (Tile(key="wall", label="Wall time", cell=show(wall), explain=explain), *tiles)
    head = replace(head, title=program_title(command), tiles=tiles, warnings=(*head.warnings, *_unsteady(wall)))
    if failed is not None:
        log = next((c.log for c in reversed(failed.commands) if c.log is not None), None)
        verdict = f"The program did not run to its end: {without_log(failed.reason or '')}"
        return replace(head, verdict=verdict, tone="bad", log=log)
    why = "Its phases are ranges that only profilers see" if maps_phases(files) else "It marks no decode steps"
    if isinstance(wall, Known) and not any(tile.key == "tpot" for tile in tiles):
        text = f"It ran {wall.value / 1e3:.3g} s without a profiler. {why}, so no latency is known."
        if isinstance(files.host, Found):
            # Its stacks say where the time went: that answer needs no marks.
            return replace(head, verdict=f"{head.verdict} It ran {wall.value / 1e3:.3g} s without a profiler.")
        # What its capture tells comes first, where that is a finding.
        return replace(head, verdict=text if head.promised is None else f"{head.verdict} {text}")
    if not tiles and isinstance(files.metrics, Found):
        return replace(head, verdict=f"It did not end by itself and was ended. {why}, so no latency is known.")
    wrong = faster_than_possible(facts, files.static.content.model) if isinstance(files.static, Found) else None
    return head if wrong is None else replace(head, verdict=wrong, tone="bad")


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
    if program_of(files) is None or phases_section(files) or not isinstance(wall, Known):
        return None
    return wall.value


def faster_than_possible(facts: RunFacts, model: str) -> str | None:
    """What to say of a program that beats the bounds of the model it is said to run: then it runs another one."""
    for name, phase in facts.phases.items():
        bound = phase.datasheet if isinstance(phase.datasheet, Known) else phase.achievable
        if isinstance(bound, Known) and isinstance(phase.wall, Known) and phase.wall.value < BEATEN * bound.value:
            return (
                f"{name.capitalize()} took {format_ms(phase.wall.value)}, and {model} needs at least "
                f"{format_ms(bound.value)} here: the program runs another model than model= names, or marks other "
                "tokens than it computes. Bounds and utilisation on this page are not its own."
            )
    return None


def crashed_stage(files: RunFiles) -> StageRecord | None:
    """The stage whose clean pass the program did not survive; None where it ran to its end once."""
    if program_of(files) is None or isinstance(files.metrics, Found):
        return None
    return next((s for s in files.manifest.stages if s.status == "failed" and s.declared.runs_model), None)


def failed_under_torch(files: RunFiles) -> bool:
    """Whether a program that ran to its end without a profiler did not with torch.profiler inside."""
    stage = files.manifest.stage(TORCH_PROFILER)
    if stage is None or stage.status != "failed" or not isinstance(files.metrics, Found):
        return False
    return bool(stage.commands) and stage.commands[-1].exit_code != 0


def has_no_model(files: RunFiles) -> bool:
    """Whether a program ran of which nobody said what model it runs."""
    return program_of(files) is not None and not isinstance(files.static, Found)


def why_no_bounds(files: RunFiles) -> Unknown:
    """Of a program whose model nobody named, with the command that names it."""
    given = shlex.join(program_of(files) or ())
    return Unknown(reason="the program does not say which model it runs", enable=f"llm-perf run model=NAME -- {given}")


def why_no_distance_of_program(head: HeadlineView, why: Unknown) -> Unknown:
    """Of a program whose model nobody named; of one that marks no steps, that too."""
    if any(tile.key == "tpot" for tile in head.tiles):
        return why
    return Unknown(
        reason="it marks no phases and does not say which model it runs",
        enable=f'{why.enable}, with perf.phase("decode_step") around each step',
    )


def waterfalls_without_bounds(falls: tuple[WaterfallView, ...]) -> tuple[WaterfallView, ...]:
    """Only rows that are known, and no waterfall where all of it is the wall time itself."""
    cut = [replace(fall, rows=tuple(row for row in fall.rows if row.missing is None)) for fall in falls]
    return tuple(fall for fall in cut if {row.kind for row in fall.rows} - {"wall", "unexplained"})


def without_missing_parts(view: RequestView | None) -> RequestView | None:
    """Without the parts only our own inference times."""
    return None if view is None else replace(view, missing=())


def modules_of_program(view: ModulesView) -> ModulesView:
    """A table of modules where the trace names some, since `other` alone says nothing; no word of our double entry."""
    named = tuple(phase for phase in view.phases if any(row.group != "other" for row in phase.rows))
    return replace(view, phases=named, double_entry_missing=None)


def phases_section(files: RunFiles) -> tuple[SectionView, ...]:
    """Every phase the program marked, as its clean pass timed it; none for our own inference."""
    if program_of(files) is None or not isinstance(files.metrics, Found):
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
        stage=files.metrics.source.split("/")[0],
        title="Phases of the program",
        paragraphs=(text,),
        metrics=(),
        tables=(table_view(table),),
        picture=None,
        links=(),
    )
    return (view,)


def without_log(reason: str) -> str:
    """The page links the log instead of naming a path of the machine it was made on."""
    return reason.partition(" (log: ")[0]

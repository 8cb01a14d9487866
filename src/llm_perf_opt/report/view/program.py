"""The page of a program of the user's own: its name, how it ended, and only the parts that can apply to it."""

from collections.abc import Mapping
from dataclasses import replace

from llm_perf_opt.analysis.findings.facts import Known, RunFacts
from llm_perf_opt.core.process import program_title
from llm_perf_opt.report.facts import clean_metric
from llm_perf_opt.report.run_files import Found, RunFiles
from llm_perf_opt.report.view.headline import HeadlineView
from llm_perf_opt.report.view.shown import Shown, Tile, show


def program_of(files: RunFiles) -> tuple[str, ...] | None:
    """The command that was run in the place of our own inference; None where none was."""
    workload = files.manifest.config.get("workload")
    command = workload.get("command") if isinstance(workload, Mapping) else None
    return tuple(str(word) for word in command) if command else None


def phases_shown(files: RunFiles, facts: RunFacts) -> tuple[str, ...]:
    """The phases a page has: both for our own inference, for a program those it was timed in."""
    if program_of(files) is None:
        return tuple(facts.phases)
    return tuple(name for name, phase in facts.phases.items() if isinstance(phase.wall, Known))


def of_program(head: HeadlineView, files: RunFiles) -> HeadlineView:
    """The headline as it is for our own inference; for a program its own name, its end, and what is known of it."""
    command = program_of(files)
    if command is None:
        return head
    failed = next((s for s in files.manifest.stages if s.status == "failed" and s.declared.runs_model), None)
    wall = clean_metric(files.manifest, "wall_ms")
    tiles = tuple(tile for tile in head.tiles if isinstance(tile.cell, Shown))
    if isinstance(wall, Known):
        explain = "from start to end of the program, without a profiler"
        tiles = (Tile(key="wall", label="Wall time", cell=show(wall), explain=explain), *tiles)
    head = replace(head, title=program_title(command), tiles=tiles)
    if failed is not None and not isinstance(files.metrics, Found):
        return replace(head, verdict=f"The program did not run to its end: {failed.reason}", tone="bad")
    if isinstance(wall, Known) and not any(tile.key == "tpot" for tile in tiles):
        text = f"It ran {wall.value / 1e3:.3g} s without a profiler. It marks no decode steps, so no latency is known."
        return replace(head, verdict=text)
    return head

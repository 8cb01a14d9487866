"""Draws a load test: latency of every request over time, and throughput against latency of a sweep."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llm_perf_opt.core.sections import Picture, Section
from llm_perf_opt.report.draw import LoadPoint, over_time_svg, trade_svg
from llm_perf_opt.report.sections.served_load import COUNTERS_OVER_TIME, OVER_TIME, TRADE
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import BENCH, BenchDocument, LevelResult
from llm_perf_opt.system.files import write_whole

# On all charts of a page together.
MOST_DOTS = 6000


def draw_runs(run_dir: Path, runs: Sequence[LoadRun]) -> tuple[Section, ...]:
    """Each level's requests over time, and the server's counters: one chart each, with a choice of the level."""
    done = [run for run in runs if any(record.status == "ok" for record in run.records)]
    latencies = [_latencies(run_dir, number, run, len(done)) for number, run in enumerate(done, start=1)]
    counted = [run for run in done if len(run.counters) > 2]
    counters = [_counters(run_dir, number, run) for number, run in enumerate(counted, start=1)]
    return tuple(
        Section(title=title, picture=pictures[0], others=tuple(pictures[1:]))
        for title, pictures in ((OVER_TIME, latencies), (COUNTERS_OVER_TIME, counters))
        if pictures
    )


def _latencies(run_dir: Path, number: int, run: LoadRun, levels: int) -> Picture:
    good = [record for record in run.records if record.status == "ok"]
    # Evenly thinned, so that a page of many levels stays small.
    good = good[:: max(1, len(good) * levels // MOST_DOTS)]
    # As in `draw_trade`, so that a latency has one colour on the page.
    dots = {"TTFT": [_dot(r, r.ttft_s) for r in good], "end-to-end": [_dot(r, r.latency_s) for r in good]}
    name = f"{BENCH}/over_time_{number}.svg"
    text = over_time_svg(dots, title=f"{OVER_TIME}, {run.level.label}")
    write_whole(run_dir / name, text.encode())
    shows = f"end-to-end latency and TTFT of each request against when it was sent, {run.level.label}"
    return Picture(path=name, shows=shows, label=run.level.label)


def _counters(run_dir: Path, number: int, run: LoadRun) -> Picture:
    dots = {
        shown: [(s.at_s, s.values[shown]) for s in run.counters if shown in s.values and s.at_s >= 0]
        for shown in ("running", "waiting")
    }
    name = f"{BENCH}/counters_{number}.svg"
    title = f"{COUNTERS_OVER_TIME}, {run.level.label}"
    x_text = "seconds since the start of the load"
    text = over_time_svg({k: v for k, v in dots.items() if v}, title=title, unit="", x_text=x_text)
    write_whole(run_dir / name, text.encode())
    shows = f"requests that run and that wait in the server over time, {run.level.label}"
    return Picture(path=name, shows=shows, label=run.level.label)


def _dot(record: RequestRecord, seconds: float | None) -> tuple[float, float]:
    return record.started_s, 1e3 * (seconds or 0.0)


def draw_trade(run_dir: Path, document: BenchDocument) -> tuple[Section, ...]:
    """Throughput against latency, where there are several levels to compare."""
    levels = [level for level in document.levels if level.completed and level.output_tokens_per_s]
    if len(levels) < 2:
        return ()
    lines = {
        "TTFT, median": _points(levels, "ttft"),
        "end-to-end, median": _points(levels, "e2el"),
        "TPOT, median": _points(levels, "tpot"),
    }
    kept = {name: points for name, points in lines.items() if points}
    text = trade_svg(kept, x_text="output tokens per second", title=TRADE)
    write_whole(run_dir / BENCH / "throughput_latency.svg", text.encode())
    shows = "median latencies of each level against the output tokens per second it reached"
    return (Section(title=TRADE, picture=Picture(path=f"{BENCH}/throughput_latency.svg", shows=shows)),)


def _points(levels: Sequence[LevelResult], name: str) -> list[LoadPoint]:
    found = []
    for level in levels:
        median = level.latencies[name].median_ms if name in level.latencies else None
        if median is not None:
            found.append(LoadPoint(x=level.output_tokens_per_s or 0.0, y_ms=median, label=level.marked_label))
    return found


def with_pictures(sections: Sequence[Section], *drawn: Section) -> tuple[Section, ...]:
    """The table first, then what is drawn, then the rest."""
    return (*sections[:1], *drawn, *(replace(section) for section in sections[1:]))

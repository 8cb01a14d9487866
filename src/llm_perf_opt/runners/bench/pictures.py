"""Draws a load test: latency of every request over time, and throughput against latency of a sweep."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llm_perf_opt.core.files import write_whole
from llm_perf_opt.core.sections import Picture, Section
from llm_perf_opt.report.load_charts import LoadPoint, over_time_svg, trade_svg
from llm_perf_opt.serving.records import LoadRun, RequestRecord
from llm_perf_opt.serving.results import BENCH, BenchDocument, LevelResult
from llm_perf_opt.serving.sections import OVER_TIME, TRADE

MOST_DOTS = 4000
MOST_LEVELS = 3


def draw_runs(run_dir: Path, runs: Sequence[LoadRun]) -> tuple[Section, ...]:
    """End-to-end latency and TTFT of each request over time; of a long sweep the first, middle and last level."""
    found = []
    done = [run for run in runs if any(record.status == "ok" for record in run.records)]
    for number, run in _some(done):
        good = [record for record in run.records if record.status == "ok"][:MOST_DOTS]
        dots = {"end-to-end": [_dot(r, r.latency_s) for r in good], "TTFT": [_dot(r, r.ttft_s) for r in good]}
        name = f"over_time_{number}.svg" if len(done) > 1 else "over_time.svg"
        text = over_time_svg(dots, title=f"{OVER_TIME}, {run.level.label}")
        write_whole(run_dir / BENCH / name, text.encode())
        shows = f"end-to-end latency and TTFT of each request against when it was sent, {run.level.label}"
        title = OVER_TIME if len(done) == 1 else f"{OVER_TIME}, {run.level.label}"
        found.append(Section(title=title, picture=Picture(path=f"{BENCH}/{name}", shows=shows)))
    return tuple(found)


def _some(runs: Sequence[LoadRun]) -> list[tuple[int, LoadRun]]:
    numbered = list(enumerate(runs, start=1))
    if len(numbered) <= MOST_LEVELS:
        return numbered
    return [numbered[0], numbered[len(numbered) // 2], numbered[-1]]


def _dot(record: RequestRecord, seconds: float | None) -> tuple[float, float]:
    return record.started_s, 1e3 * (seconds or 0.0)


def draw_trade(run_dir: Path, document: BenchDocument) -> tuple[Section, ...]:
    """Throughput against latency, where there are several levels to compare."""
    levels = [level for level in document.levels if level.completed and level.output_tokens_per_s]
    if len(levels) < 2:
        return ()
    lines = {
        "TTFT, median": _points(levels, "ttft"),
        "TPOT, median": _points(levels, "tpot"),
        "end-to-end, median": _points(levels, "e2el"),
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
            found.append(LoadPoint(x=level.output_tokens_per_s or 0.0, y_ms=median, label=level.label))
    return found


def with_pictures(sections: Sequence[Section], *drawn: Section) -> tuple[Section, ...]:
    """The table first, then what is drawn, then the rest."""
    return (*sections[:1], *drawn, *(replace(section) for section in sections[1:]))

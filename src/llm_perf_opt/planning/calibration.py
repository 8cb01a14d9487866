"""`llm-perf plan --calibrate-from`: limits and demands answered by what a server was measured to take.

A run of `llm-perf bench` with several numbers of requests in flight is the calibration. Nothing beyond it is answered:
not more requests in flight than were measured, no other lengths, no other server. More servers of the kind may be.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.estimate.measured import (
    MeasuredLevel,
    MeasuredPace,
    left_out_errors,
    left_out_ttft_errors,
    median_error,
)
from llm_perf_opt.model.estimate.queueing import LoadTimes, open_load
from llm_perf_opt.planning.deployments import Demand, Limits, highest_kept
from llm_perf_opt.planning.prediction_table import filled
from llm_perf_opt.serving.load_results import BENCH, BENCH_FILE, BenchDocument, LevelResult
from llm_perf_opt.serving.saturation import is_sound
from llm_perf_opt.system.files import read_limited
from llm_perf_opt.system.terminal import terminal_table

OPTION = "--calibrate-from"
LARGEST_BYTES = 64 << 20
# Lengths that may differ from the measured ones and still be the same requests.
NEAR = 0.1
# Beyond this median error of levels that were left out, the levels do not describe the server.
LARGEST_ERROR = 0.1
# So does one level that is off by more than this.
LARGEST_OUTLIER = 0.5


@dataclass(frozen=True, kw_only=True)
class MeasuredServer:
    """What was measured, and where."""

    pace: MeasuredPace
    name: str
    file: Path


@dataclass(frozen=True, kw_only=True)
class CalibratedLevel:
    """One measured level; `left_out_error` is that of its tokens per second by the other levels alone.

    `left_out_ttft_error`: that of its median time to first token.
    """

    concurrency: int
    output_tokens_per_s: float
    left_out_error: float | None
    left_out_ttft_error: float | None
    ttft_ms: float
    fitted_ttft_ms: float
    fitted_ttft_p95_ms: float
    fitted_tpot_ms: float


@dataclass(frozen=True, kw_only=True)
class CalibratedAnswer:
    """The most load on one server that meets the limits, and how many servers the demand needs."""

    in_flight: float
    requests_per_s: float | None
    ttft_ms: float
    ttft_p95_ms: float
    tpot_ms: float
    servers: int | None


@dataclass(frozen=True, kw_only=True)
class CalibratedDocument:
    """What `llm-perf plan --calibrate-from --json` prints. `answer` is None where nothing measured meets the limits.

    `steady` says whether the levels describe the server well enough to plan with.
    """

    schema_version: Literal[1] = 1
    server: str
    file: str
    prompt_tokens: int
    output_tokens: int
    levels: tuple[CalibratedLevel, ...]
    median_error: float | None
    steady: bool
    answer: CalibratedAnswer | None


def read_server(text: str) -> MeasuredServer:
    """A run directory of `bench`, or its bench.json."""
    path = Path(text).expanduser()
    file = path / BENCH / BENCH_FILE if path.is_dir() else path
    try:
        document = msgspec.json.decode(read_limited(file, LARGEST_BYTES), type=BenchDocument)
    except OSError as error:
        raise ConfigError(
            f"{OPTION}: {file} cannot be read ({error.strerror}); give a run of llm-perf bench"
        ) from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{OPTION}: {file} is not a bench.json ({error}); give a run of llm-perf bench") from error
    levels = [level for level in document.levels if level.concurrency is not None and is_sound(level)]
    problems = _problems(levels, file)
    if problems:
        raise ConfigError(problems)
    prompts, outputs = zip(*(_lengths(level) for level in levels), strict=True)
    found = [_level(level) for level in sorted(levels, key=lambda level: level.concurrency or 0)]
    pace = MeasuredPace(
        levels=tuple(found),
        prompt=round(sum(prompts) / len(prompts)),
        output=round(sum(outputs) / len(outputs)),
    )
    name = " · ".join(part for part in (document.server, document.model) if part) or file.parent.name
    return MeasuredServer(pace=pace, name=name, file=file)


def _problems(levels: list[LevelResult], file: Path) -> list[str]:
    counts = sorted({level.concurrency or 0 for level in levels})
    if len(counts) < 2 or len(counts) != len(levels):
        return [
            f"{OPTION}: {file} has {len(counts)} different numbers of requests in flight; at least 2 are needed, such "
            "as load.concurrency=1,4,16"
        ]
    missing = [
        level.label
        for level in levels
        if not level.input_tokens
        or not level.output_tokens_per_s
        or any(level.latencies.get(name) is None or level.latencies[name].median_ms is None for name in ("ttft", "itl"))
    ]
    if missing:
        return [f"{OPTION}: {file}: no tokens, throughput or latencies of {', '.join(missing)}"]
    lengths = [_lengths(level) for level in levels]
    if any(max(values) > (1 + NEAR) * min(values) for values in zip(*lengths, strict=True)):
        return [f"{OPTION}: {file}: prompts or answers of its levels differ in length by more than {100 * NEAR:.0f} %"]
    if min(output for _, output in lengths) < 2:
        return [f"{OPTION}: {file}: answers of a single token say nothing about steps"]
    return []


def _lengths(level: LevelResult) -> tuple[float, float]:
    return (level.input_tokens or 0) / level.completed, (level.output_tokens or 0) / level.completed


def _level(level: LevelResult) -> MeasuredLevel:
    first = level.latencies["ttft"]
    return MeasuredLevel(
        concurrency=level.concurrency or 0,
        ttft_ms=first.median_ms or 0.0,
        gap_ms=level.latencies["itl"].median_ms or 0.0,
        output_tokens_per_s=level.output_tokens_per_s or 0.0,
        ttft_mean_ms=first.mean_ms,
        ttft_p90_ms=first.p90_ms,
        ttft_p99_ms=first.p99_ms,
    )


def length_problems(server: MeasuredServer, *, prompt: int | None, output: int | None) -> list[str]:
    """Lengths asked for that were not measured."""
    found = []
    for what, asked, measured in (("prompts", prompt, server.pace.prompt), ("answers", output, server.pace.output)):
        if asked is not None and not measured / (1 + NEAR) <= asked <= measured * (1 + NEAR):
            found.append(
                f"{OPTION}: {what} of {asked:,} tokens were not measured, those of {server.file} have {measured:,}; "
                "measure them with llm-perf bench"
            )
    return found


def most_in_flight(pace: MeasuredPace, limits: Limits) -> tuple[int, LoadTimes] | None:
    """The most requests in flight, of those measured, that meet the limits."""
    best = None
    for sequences in range(pace.least, pace.most + 1):
        times = pace.closed_times(sequences)
        if limits.keeps(times):
            best = sequences, times
    return best


def most_arrivals(pace: MeasuredPace, limits: Limits, burstiness: float) -> tuple[float, LoadTimes] | None:
    """The most arrivals per second on one server that meet the limits with no more in flight than were measured."""

    def kept(per_s: float) -> tuple[float, LoadTimes] | None:
        times = open_load(pace, per_s / 1e3, output=pace.output, places=pace.most, burstiness=burstiness)
        is_kept = times is not None and limits.keeps(times) and per_s / 1e3 * times.request_ms <= pace.most
        return (per_s, times) if times is not None and is_kept else None

    return highest_kept(kept, pace.tokens_per_s(pace.most) / pace.output)


def calibrated_document(
    server: MeasuredServer, limits: Limits, demand: Demand | None, *, burstiness: float
) -> CalibratedDocument:
    """The figures `render_calibrated` prints."""
    errors = left_out_errors(server.pace)
    steady = is_steady(server)
    return CalibratedDocument(
        server=server.name,
        file=str(server.file),
        prompt_tokens=server.pace.prompt,
        output_tokens=server.pace.output,
        levels=tuple(_calibrated_level(level, server.pace, dict(errors)) for level in server.pace.levels),
        median_error=median_error(errors),
        steady=steady,
        answer=_calibrated_answer(server.pace, limits, demand, burstiness) if steady else None,
    )


def _calibrated_level(level: MeasuredLevel, pace: MeasuredPace, off: Mapping[int, float]) -> CalibratedLevel:
    times = pace.closed_times(level.concurrency)
    return CalibratedLevel(
        concurrency=level.concurrency,
        output_tokens_per_s=level.output_tokens_per_s,
        left_out_error=off.get(level.concurrency),
        left_out_ttft_error=pace.left_out_ttft_error(level),
        ttft_ms=level.ttft_ms,
        fitted_ttft_ms=times.ttft_ms,
        fitted_ttft_p95_ms=times.ttft_p95_ms,
        fitted_tpot_ms=times.tpot_ms,
    )


def _calibrated_answer(
    pace: MeasuredPace, limits: Limits, demand: Demand | None, burstiness: float
) -> CalibratedAnswer | None:
    if demand is None:
        most = most_in_flight(pace, limits)
        return None if most is None else _calibrated_load(float(most[0]), most[1], per_s=None, servers=None)
    arrivals = most_arrivals(pace, limits, burstiness)
    if arrivals is None:
        return None
    per_s, times = arrivals
    held = per_s * times.request_ms / 1e3
    return _calibrated_load(held, times, per_s=per_s, servers=_servers(demand, per_s, held))


def _calibrated_load(
    in_flight: float, times: LoadTimes, *, per_s: float | None, servers: int | None
) -> CalibratedAnswer:
    return CalibratedAnswer(
        in_flight=in_flight,
        requests_per_s=per_s,
        ttft_ms=times.ttft_ms,
        ttft_p95_ms=times.ttft_p95_ms,
        tpot_ms=times.tpot_ms,
        servers=servers,
    )


def _servers(demand: Demand, per_s: float, held: float) -> int:
    """How many servers a demand needs, each with its share of requests per second and in flight."""
    share = 1 + demand.headroom
    if demand.per_s is not None:
        return math.ceil(demand.per_s * share / per_s)
    return math.ceil((demand.users or 0) * share / held)


def render_calibrated(server: MeasuredServer, limits: Limits, demand: Demand | None, *, burstiness: float) -> str:
    pace = server.pace
    errors = left_out_errors(pace)
    off = dict(errors)
    rows = []
    for level in pace.levels:
        times, first = pace.closed_times(level.concurrency), pace.left_out_ttft_error(level)
        rows.append(
            (
                str(level.concurrency),
                f"{level.output_tokens_per_s:,.4g}",
                f"{off[level.concurrency]:+.1%}" if level.concurrency in off else "–",
                f"{level.ttft_ms:,.4g}",
                f"{level.ttft_p95_ms:,.4g}",
                "–" if first is None else f"{first:+.1%}",
                f"{times.tpot_ms:,.4g}",
            )
        )
    header = ("in flight", "tok/s", "left out", "ttft ms", "p95", "left out", "tpot ms")
    lines = [
        *filled(f"{server.name}: {pace.prompt:,} + {pace.output:,} tokens, measured in {server.file}"),
        "",
        terminal_table(header, rows, right=range(len(header)), rule=False),
        "",
    ]
    error = median_error(errors)
    if error is None:
        lines += filled("Two levels say nothing about loads between them: measure three or more to know the error.")
    else:
        first_error = median_error(left_out_ttft_errors(pace))
        of_first = "" if first_error is None else f", {100 * first_error:.1f} % in time to first token"
        lines += filled(
            f"left out: each level by the others alone; median error {100 * error:.1f} % in tokens per second"
            f"{of_first}."
        )
        if not is_steady(server):
            lines += filled(
                f"The median error is above {100 * LARGEST_ERROR:.0f} %, or a level is off by more than "
                f"{100 * LARGEST_OUTLIER:.0f} %: the levels scatter too much to plan with. Measure longer, on a "
                "machine that does nothing else."
            )
            return "\n".join(lines) + "\n"
    return "\n".join([*lines, "", *_answer(server, limits, demand, burstiness)]) + "\n"


def is_steady(server: MeasuredServer) -> bool:
    """Whether levels that are left out can be worked out from the others; nothing is known of two levels."""
    errors = left_out_errors(server.pace)
    error = median_error(errors)
    return error is None or (error <= LARGEST_ERROR and max(abs(off) for _, off in errors) <= LARGEST_OUTLIER)


def _answer(server: MeasuredServer, limits: Limits, demand: Demand | None, burstiness: float) -> list[str]:
    pace = server.pace
    if demand is None:
        most = most_in_flight(pace, limits)
        if most is None:
            return filled("No measured number of requests in flight meets the SLOs.")
        sequences, times = most
        beyond = " (the highest load measured; more may be possible)" if sequences == pace.most else ""
        return filled(
            f"Up to {sequences} requests in flight meet the SLOs{beyond}: first token in {times.ttft_ms:,.4g} ms "
            f"(median), {times.ttft_p95_ms:,.4g} ms (95th percentile), "
            f"{times.tpot_ms:,.4g} ms a token, {pace.tokens_per_s(sequences):,.4g} tokens per second."
        )
    arrivals = most_arrivals(pace, limits, burstiness)
    if arrivals is None:
        return filled("No arrival rate meets the SLOs within the measured concurrency.")
    per_s, times = arrivals
    held = per_s * times.request_ms / 1e3
    servers = _servers(demand, per_s, held)
    what = f"{demand.users:,} users" if demand.per_s is None else f"{demand.per_s:g} requests per second"
    return filled(
        f"{what}: {servers} such servers. One meets the SLOs up to {per_s:.3g} requests per second, {held:.3g} in "
        f"flight: first token in {times.ttft_ms:,.4g} ms (median), {times.ttft_p95_ms:,.4g} ms (95th percentile), "
        f"{times.tpot_ms:,.4g} ms a token."
    )

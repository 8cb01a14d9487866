"""Reads the files a run of our own workload left behind into what a stage reports."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.core.documents import MetricsDocument, Stats
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.names import (
    INPUTS_FILE,
    KERNELS_CSV,
    METRICS_FILE,
    OPERATORS_CSV,
    OPERATORS_MD,
    SAMPLES_FILE,
    TRACE_FILE,
    WALL_METRIC,
    Role,
)
from llm_perf_opt.core.process import CommandResult
from llm_perf_opt.core.records import Metric, StageFile, StageOutput
from llm_perf_opt.core.slowdown import TimedSample, matched_ratios, slowdown
from llm_perf_opt.core.stage import Obstacle
from llm_perf_opt.errors import CommandFailed, ParseError

LINES_QUOTED = 6
# What samples.jsonl calls the pass that was not under torch.profiler.
CLEAN_PASS = "clean"
FILES: tuple[tuple[Role, str], ...] = (
    ("metrics", METRICS_FILE),
    ("samples", SAMPLES_FILE),
    ("operators_csv", OPERATORS_CSV),
    ("operators_md", OPERATORS_MD),
    ("trace", TRACE_FILE),
    ("kernels_csv", KERNELS_CSV),
)


def torch_obstacles(host: Host) -> tuple[Obstacle, ...]:
    """What every stage that runs the model needs of this machine."""
    if "torch" in host.packages and host.packages["torch"] is None:
        return (Obstacle(what="torch is not installed, so the model cannot run", remedy="pip install 'torch>=2.11'"),)
    return ()


def require_success(result: CommandResult, what: str, *, stage: str) -> None:
    """Raise with the words the child of a stage ended with; what it wrote until then stays where it is."""
    if result.ok:
        return
    if result.timed_out:
        ending = f"did not end within {result.duration_s:.0f} s (pipeline.{stage}.timeout_s)"
    elif result.exit_code is not None and result.exit_code < 0:
        hint = " (the system may have run out of memory)" if result.exit_code == -9 else ""
        ending = f"was ended by signal {-result.exit_code}{hint}"
    else:
        ending = f"failed with exit code {result.exit_code}"
    last = last_words(result.tail)
    raise CommandFailed(f"{what} {ending}: {last or 'it printed nothing'} (log: {result.log})")


def last_words(tail: str) -> str:
    """The lines that say why a program ended: from its last `error:` on, or the last one outside a traceback."""
    lines = [line.rstrip() for line in tail.splitlines() if line.strip()]
    starts = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    if starts:
        quoted = lines[starts[-1] :][:LINES_QUOTED]
        return "; ".join([quoted[0].removeprefix("error: "), *quoted[1:]])
    plain = [line for line in lines if not line.startswith((" ", "Traceback "))]
    return plain[-1] if plain else ""


def read_metrics(folder: Path) -> MetricsDocument:
    """What the workload wrote into metrics.json."""
    path = folder / METRICS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=MetricsDocument)
    except FileNotFoundError as error:
        raise ParseError(f"{path}: the workload ended well but did not write it") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"{path}: is not what it should be ({error})") from error


def read_inputs(folder: Path) -> tuple[Mapping[str, Any], ...]:
    """The samples the workload used, with size and hash."""
    path = folder / INPUTS_FILE
    return tuple(json.loads(path.read_bytes())) if path.is_file() else ()


def used_samples(output: StageOutput, folder: Path) -> tuple[Mapping[str, Any], ...]:
    """The samples a profiled workload used, and those of the clean pass its stage made for itself."""
    clean = [file.path.parent for file in output.files if file.role == "metrics"]
    return tuple(sample for place in (*clean, folder) for sample in read_inputs(place))


def clean_metrics(data: MetricsDocument, source: str) -> dict[str, Metric]:
    """The headline numbers of the clean pass: the median of each, or the reason why there is none."""
    clean = data.clean
    metrics = {name: _median(name, stats, source) for name, stats in clean.metrics.items()}
    metrics["peak_memory_bytes"] = Metric(
        value=clean.peak_memory_bytes,
        unit="bytes",
        how=f"clean pass, highest of all samples: {clean.peak_memory_how}",
        source=source,
        reason=clean.peak_memory_reason,
    )
    metrics["device_name"] = Metric(value=data.model.device_name, unit="", how="as torch names it", source=source)
    return metrics


def profiled_slowdown(data: MetricsDocument, source: str) -> dict[str, Metric]:
    """What the profiler cost a run that made both passes itself and compared them."""
    return slowdown(
        data.slowdown or dict.fromkeys(WALL_METRIC),
        clean_ms=_medians(data.clean.metrics),
        profiled_ms=_medians({} if data.profiled is None else data.profiled.metrics),
        where="in the profiled pass",
        source=source,
    )


def slowdown_between(
    clean: MetricsDocument, profiled: MetricsDocument, *, folders: tuple[Path, Path], where: str, source: str
) -> dict[str, Metric]:
    """What a profiler cost: two metrics.json, and the folders they lie in, the clean one first."""
    return slowdown(
        matched_ratios(*(read_timed_samples(folder) for folder in folders)),
        clean_ms=_medians(clean.clean.metrics),
        profiled_ms=_medians(profiled.clean.metrics),
        where=where,
        source=source,
    )


def read_timed_samples(folder: Path) -> list[TimedSample]:
    """The samples of the pass our inference made, as it timed them itself; none if it wrote no samples."""
    path = folder / SAMPLES_FILE
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    rows = [json.loads(line) for line in lines]
    return [
        TimedSample(sample_id=row["sample_id"], prefill_ms=row["prefill_ms"], step_ms=tuple(row["itl_values_ms"]))
        for row in rows
        if row["pass"] == CLEAN_PASS
    ]


def _medians(metrics: Mapping[str, Stats]) -> dict[str, float | None]:
    return {phase: metrics[key].p50 if key in metrics else None for phase, key in WALL_METRIC.items()}


def forget_results(folder: Path) -> None:
    """Remove what an earlier attempt wrote, so that nothing of it is taken for the next one's."""
    for name in (INPUTS_FILE, *(name for _, name in FILES)):
        (folder / name).unlink(missing_ok=True)


def existing_files(folder: Path) -> tuple[StageFile, ...]:
    """The files of the fixed names that were written."""
    return tuple(StageFile(role=role, path=folder / name) for role, name in FILES if (folder / name).is_file())


def notes_of(data: MetricsDocument) -> tuple[str, ...]:
    """The run's own notes, the model's stated fallbacks, and one line on bad samples."""
    bad = data.bad_samples
    names = ", ".join(sample.sample_id for sample in bad[:5])
    skipped = (f"{len(bad)} sample(s) could not be run and were skipped: {names}",) if bad else ()
    return (*data.notes, *data.model.notes, *skipped)


def _median(name: str, stats: Stats, source: str) -> Metric:
    value = stats.p50
    return Metric(
        value=value,
        unit=_unit(name),
        how=f"clean pass, median of {stats.n}",
        per="second of the phase" if name.endswith("_per_s") else None,
        source=source,
        reason=stats.reason or None,
    )


def _unit(name: str) -> str:
    if name.endswith("_per_s"):
        return "tokens/s"
    return "ms" if name.endswith("_ms") else "tokens"

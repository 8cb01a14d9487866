"""samples.jsonl: what each sample of each repeat measured, and whether the repeats agree."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llm_perf_opt.comparison.stability import (
    TARGET,
    RepeatedValue,
    check_stability,
    machine_warnings,
)
from llm_perf_opt.core.documents import ClockDocument, MetricsDocument
from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.names import CLEAN_PASS_ORDER, WALL_METRIC
from llm_perf_opt.errors import ParseError
from llm_perf_opt.system.files import is_absurd

CLEAN_PASS = "clean"
# Above this the GPU was at work, and its clock says how fast.
BUSY_PCT = 50.0


@dataclass(frozen=True, kw_only=True)
class SampleLine:
    """One sample of one repeat of the clean pass: its numbers by name."""

    sample_id: str
    repeat: int
    values: Mapping[str, float]


def parse_samples(data: bytes, *, source: str) -> tuple[SampleLine, ...]:
    """The clean samples of a file's content, in the order they were measured."""
    try:
        lines = [msgspec.json.decode(line) for line in data.splitlines() if line.strip()]
        return tuple(_sample(line) for line in lines if line["pass"] == CLEAN_PASS)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ParseError(f"{source}: cannot be read as samples of a clean pass ({error})") from error


def _sample(line: Mapping[str, object]) -> SampleLine:
    """The numbers of one line; all of them are times, rates or counts, so none is below zero."""
    values = {k: v for k, v in line.items() if isinstance(v, int | float) and k not in _LABELS}
    wrong = [name for name, v in values.items() if isinstance(v, bool) or is_absurd(v) or not 0 <= v < math.inf]
    if wrong:
        raise ValueError(f"{wrong[0]} is not a measured value")
    repeat = line["repeat"]
    if type(repeat) is not int:
        raise TypeError("repeat is not a number")
    return SampleLine(
        sample_id=str(line["sample_id"]), repeat=repeat, values={name: float(v) for name, v in values.items()}
    )


_LABELS = ("sample_id", "repeat", "epoch", "start_ns")
# How long a fixed piece of CPU work took around a sample: about the machine, not about the model.
HOST_PROBE = "host_probe_ms"


def samples_file(manifest: RunManifest) -> Path | None:
    """The samples of the clean pass whose medians are the run's headline."""
    rank = {name: index for index, name in enumerate(CLEAN_PASS_ORDER)}
    stages = sorted(manifest.stages, key=lambda stage: rank.get(stage.name, len(rank)))
    paths = [stage.file("samples") for stage in stages if stage.status == "ok"]
    return next((path for path in paths if path is not None and path.is_file()), None)


def series_of(samples: Sequence[SampleLine], metric: str) -> tuple[RepeatedValue, ...]:
    """The values of one metric, in the order they were measured."""
    return tuple(
        RepeatedValue(sample_id=line.sample_id, repeat=line.repeat, value=line.values[metric])
        for line in samples
        if metric in line.values
    )


def stability_warnings(
    samples: Sequence[SampleLine],
    metrics: MetricsDocument | None,
    clocks: ClockDocument | None,
    *,
    target: float = TARGET,
) -> tuple[str, ...]:
    """What a reader of the headline must know about its repeats and about the machine meanwhile."""
    checked = [check_stability(key, series_of(samples, key), target=target) for key in WALL_METRIC.values()]
    running = [sample for sample in clocks.samples if (sample.utilisation_pct or 0) > BUSY_PCT] if clocks else []
    clean = metrics.clean if metrics is not None else None
    # The machine first: where it moves, so do the repeats.
    return (
        *machine_warnings(
            other_cpus=clean.other_cpus if clean else None,
            cpu_count=clean.cpu_count if clean else None,
            host_probes_ms=[line.values[HOST_PROBE] for line in samples if HOST_PROBE in line.values],
            clocks_mhz=[sample.sm_clock_mhz for sample in running if sample.sm_clock_mhz is not None],
        ),
        *(text for one in checked for text in one.warnings),
    )

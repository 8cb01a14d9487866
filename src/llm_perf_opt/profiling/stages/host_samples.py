"""Stage host_samples: the Python stacks of a program of the user's own, in its own pass."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from llm_perf_opt.config.schema import StageConfig
from llm_perf_opt.core.documents import HostDocument, Stats
from llm_perf_opt.core.host import Host
from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import BUSY_SHARE, HOST_SAMPLES, HOST_SAMPLES_FILE, PROCESSOR_TIME
from llm_perf_opt.core.records import Metric, StageFile, StageOutput
from llm_perf_opt.core.stage import Obstacle, StageContext
from llm_perf_opt.core.units import format_ms
from llm_perf_opt.errors import StageSkipped
from llm_perf_opt.profiling.baseline import clean_baseline, own_clean_pass, refuse_failed_program
from llm_perf_opt.profiling.sampled import Launched, SamplerFailed, sample_program
from llm_perf_opt.system.py_spy import find_sampler

# Samples a short program should give, and the highest rate, which costs it 10 to 20 %.
WANTED, MOST_HZ = 200, 1000


@dataclass(frozen=True, kw_only=True)
class HostSamplesConfig(StageConfig):
    """`pipeline.host_samples.*`: samples a second, and whether a second pass looks at who holds the GIL."""

    rate_hz: Annotated[int, Interval(ge=1, le=1000)] = 200
    gil: bool = True


class HostSamplesStage:
    """See the module."""

    name = HOST_SAMPLES
    config_cls = HostSamplesConfig
    # First of those that run the program, so that its answer is there before any profiler starts.
    after: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    runs_model = True
    gives_clean_pass = False
    needs_our_model = False

    def preflight(self, cfg: HostSamplesConfig, host: Host) -> Sequence[Obstacle]:
        if find_sampler() is not None:
            return ()
        what = "py-spy is not installed: a thread inside the program samples it"
        return (Obstacle(what=what, remedy="pip install py-spy", blocking=False),)

    def run(self, cfg: HostSamplesConfig, ctx: StageContext) -> StageOutput:
        """Sample the program; a sampler that fails takes nothing away from what was measured before."""
        if ctx.config.workload.command is None:
            raise StageSkipped("it samples your own program: llm-perf run -- python prog.py")
        refuse_failed_program(ctx)
        clean = clean_baseline(ctx, cfg.timeout_s).metrics.clean.metrics
        ctx.say(f"{self.name}: clean pass: {_first_words(clean)}; its stacks are sampled next")
        metrics, files = own_clean_pass(ctx)
        try:
            rate_hz = _rate_for(clean, cfg.rate_hz)
            found = sample_program(ctx, rate_hz=rate_hz, timeout_s=cfg.timeout_s, holds_gil=cfg.gil)
        except SamplerFailed as error:
            ctx.say(f"{self.name}: no host stacks: {error}")
            used = {} if error.ran is None else _without_samples(error.ran, f"{self.name}/log.txt")
            return StageOutput(metrics={**metrics, **used}, files=files, notes=(f"no host stacks: {error}",))
        for note in found.notes:
            ctx.say(f"{self.name}: {note}")
        path = write_json(ctx.out_dir / HOST_SAMPLES_FILE, found)
        return StageOutput(
            metrics={**metrics, **_metrics(found, f"{self.name}/{HOST_SAMPLES_FILE}")},
            files=(
                *files,
                StageFile(role="host_samples", path=path),
                StageFile(role="host_stacks", path=ctx.out_dir / "stacks.txt"),
            ),
            notes=found.notes,
        )


def _rate_for(clean: Mapping[str, Stats], rate_hz: int) -> int:
    """A program that is over soon is sampled more often: a few looks at it say little."""
    wall = clean["wall_ms"].p50 if "wall_ms" in clean else None
    return max(rate_hz, min(MOST_HZ, math.ceil(WANTED * 1e3 / wall))) if wall else rate_hz


def _first_words(clean: Mapping[str, Stats]) -> str:
    """What is known as soon as the program has run once."""
    wall = clean["wall_ms"].p50 if "wall_ms" in clean else None
    sentences = ["the program was ended" if wall is None else f"the program ran {format_ms(wall)}"]
    for key, label in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("training_step_ms", "median training step")):
        value = clean[key].p50 if key in clean else None
        sentences += [] if value is None else [f"{label} {format_ms(value)}"]
    return ", ".join(sentences)


def _metrics(found: HostDocument, source: str) -> dict[str, Metric]:
    how = f"{found.sampler}, in samples of 1/{found.rate_hz} s, main thread"
    metrics = {"host_samples": Metric(value=found.samples, unit="samples", how=how, source=source)}
    if found.observed is not None and found.observed.memory.peak_bytes:
        metrics["host_peak_memory_bytes"] = Metric(
            value=found.observed.memory.peak_bytes,
            unit="bytes",
            how="most resident memory of the process, pass with sampled stacks",
            source=source,
        )
    return metrics | _processor_time(found.cpu_s, source)


def _without_samples(ran: Launched, source: str) -> dict[str, Metric]:
    """Of a program in any language: the processor time of a pass, and how much of its time that explains."""
    busy = min(1.0, ((ran.cpu_s or 0.0) + ran.cpu_wait_s) / max(ran.duration_s, 1e-9))
    how = "time with a processor or waiting for one over wall time, pass without samples"
    known = {} if ran.cpu_s is None else {BUSY_SHARE: Metric(value=round(busy, 4), unit="", how=how, source=source)}
    return known | _processor_time(ran.cpu_s, source)


def _processor_time(cpu_s: float | None, source: str) -> dict[str, Metric]:
    how = "processor time of all its processes, pass with sampled stacks"
    return (
        {PROCESSOR_TIME: Metric(value=round(cpu_s, 3), unit="s", how=how, source=source)} if cpu_s is not None else {}
    )


STAGE = HostSamplesStage()

"""A pass with the GPU's counter of energy read alongside it."""

import time

from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.errors import ConfigError, ToolError
from llm_perf_opt.pipeline.optimize.workers import ExperimentWorker
from llm_perf_opt.system.nvml import sample_gpu

# The driver renews its counter some ten to fifty times a second: over this time that is two percent at most.
LEAST_METERED_S = 3.0
INTERVAL_S = 0.02
NO_COUNTER = "the driver has no counter of energy for it"


def require_counter(gpu: int | str | None) -> None:
    """Refuse the objective before anything runs where no counter of energy can be read."""
    with sample_gpu(gpu, interval_s=INTERVAL_S) as sampled:
        time.sleep(2 * INTERVAL_S)
    if not any(sample.energy_j is not None for sample in sampled.samples):
        raise ConfigError(
            f"--objective: joules_per_token needs the energy counter of an NVIDIA GPU, which cannot be read here "
            f"({sampled.reason or NO_COUNTER}), allowed: tpot_ms, ttft_ms, tokens_per_s; "
            "`llm-perf profile pipeline.energy.enable=true` says which other meters this machine has"
        )


def metered_pass(
    worker: ExperimentWorker, number: int, until: float, *, gpu: int | str | None
) -> tuple[dict[str, list[RepeatedValue]], int | None]:
    """Passes until the counter can be trusted: all joules of the GPU meanwhile, idle power included, by all tokens."""
    values: dict[str, list[RepeatedValue]] = {}
    peak: int | None = None
    tokens = 0
    with sample_gpu(gpu, interval_s=INTERVAL_S) as sampled:
        began = time.monotonic()
        while not tokens or time.monotonic() - began < LEAST_METERED_S:
            found = worker.run_pass(number, until)
            tokens += found.tokens
            peak = max([one for one in (peak, found.peak_bytes) if one is not None], default=None)
            values = values or {name: list(series) for name, series in found.values.items()}
            if not found.tokens:
                break
    joules = [sample.energy_j for sample in sampled.samples if sample.energy_j is not None]
    if len(joules) < 2 or not tokens:
        raise ToolError(f"the energy of the GPU could not be read alongside a pass: {sampled.reason or NO_COUNTER}")
    each = (joules[-1] - joules[0]) / tokens
    values["joules_per_token"] = [RepeatedValue(sample_id="all", repeat=number, value=each)]
    return values, peak

"""Documents that cross a wall between packages: written by `workload` or `profiling`, read by `report`.

A document's record stands beside its writer wherever the reader may import it. `report` knows neither `workload` nor
`profiling`, so the records of what they write for it are here, where all of them may look. A reader may do without keys
that have a default, because a run made earlier did not write them.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class ClockSample:
    """What the driver said at one moment; `throttle_reasons` empty: nothing lowers the clocks, None: it did not say."""

    at_ns: int
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    memory_used_bytes: int | None = None
    utilisation_pct: float | None = None
    throttle_reasons: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ClockDocument:
    """`gpu_samples.json`: clocks, power and memory sampled during the whole stage, loading included."""

    schema_version: Literal[1] = 1
    device: str
    interval_ms: float
    max_sm_clock_mhz: float | None = None
    power_limit_w: float | None = None
    samples: tuple[ClockSample, ...]

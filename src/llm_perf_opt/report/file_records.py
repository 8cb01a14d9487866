"""What metrics.json holds, as far as a report shows it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Statistics of one measured quantity."""

    mean: float | None
    std: float | None
    p50: float | None
    p90: float | None
    p99: float | None
    n: int
    reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    name: str
    parameters: int | None = None
    dtype: str | None = None
    device: str | None = None
    device_name: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CleanPass:
    metrics: Mapping[str, Stats]
    repeats: int | None = None
    samples: int | None = None
    warmup_rounds: int | None = None
    peak_memory_bytes: int | None = None
    peak_memory_how: str | None = None
    peak_memory_reason: str | None = None


@dataclass(frozen=True, kw_only=True)
class MetricsFile:
    """`metrics.json` of the workload."""

    model: ModelRecord
    clean: CleanPass
    slowdown: Mapping[str, float | None] | None = None
    modules: Mapping[str, Mapping[str, float]] | None = None
    modules_by: str | None = None
    modules_reason: str | None = None

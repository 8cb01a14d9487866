"""The rows of a kernel table; apart from numpy, so that a summary alone starts at once."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """One kernel name. `time_pct` is its share of the time of all kernels, as nsys counts it."""

    name: str
    short_name: str
    kernel_class: str
    instances: int
    total_ns: int
    avg_ns: float
    med_ns: float
    min_ns: int
    max_ns: int
    stddev_ns: float
    time_pct: float


@dataclass(frozen=True, kw_only=True)
class CopyRow:
    """Copies or sets of one kind."""

    kind: str
    instances: int
    total_ns: int
    size_bytes: int | None
    avg_ns: float
    min_ns: int
    max_ns: int

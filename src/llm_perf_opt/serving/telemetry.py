"""GPUs of this machine while a level runs: power, energy, utilisation and memory by the driver's samples."""

import ipaddress
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

from llm_perf_opt.serving.load_results import GpuFigures
from llm_perf_opt.system.nvml import GpuSamples, sample_gpu


def is_local(url: str) -> bool:
    """Whether an address is one of this machine by itself: then its GPUs are ours to look at."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def sampled_gpus(gpus: Sequence[int | str], *, library: Any = None) -> Iterator[tuple[GpuSamples, ...]]:
    """Sample these GPUs while the block runs."""
    with ExitStack() as stack:
        yield tuple(stack.enter_context(sample_gpu(which, library=library)) for which in gpus)


def gpu_figures(gpus: Sequence[GpuSamples]) -> tuple[GpuFigures, ...]:
    """The GPUs that worked during the level; those that did not are used by another process, or unused."""
    found = (_figures(one) for one in gpus if len(one.samples) > 1)
    return tuple(one for one in found if one.utilisation_pct)


def _figures(gpu: GpuSamples) -> GpuFigures:
    samples = gpu.samples
    span_s = (samples[-1].at_ns - samples[0].at_ns) / 1e9
    first, last = samples[0].energy_j, samples[-1].energy_j
    energy = last - first if first is not None and last is not None else _integral(gpu)
    busy = [sample.utilisation_pct for sample in samples if sample.utilisation_pct is not None]
    memory = [sample.memory_used_bytes for sample in samples if sample.memory_used_bytes is not None]
    return GpuFigures(
        device=gpu.device,
        mean_power_w=energy / span_s if energy is not None and span_s > 0 else None,
        energy_j=energy,
        utilisation_pct=fmean(busy) if busy else None,
        most_memory_bytes=max(memory, default=None),
    )


def _integral(gpu: GpuSamples) -> float | None:
    """Energy from samples of power, where the driver has no counter of it."""
    known = [(sample.at_ns, sample.power_w) for sample in gpu.samples if sample.power_w is not None]
    if len(known) < 2:
        return None
    return sum((b - a) / 1e9 * (p + q) / 2 for (a, p), (b, q) in pairwise(known))

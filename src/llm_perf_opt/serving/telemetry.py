"""GPUs of this machine while a level runs: power, energy, utilisation and memory by the driver's samples."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from statistics import fmean
from typing import Any
from urllib.parse import urlsplit

from llm_perf_opt.serving.load_results import GpuFigures
from llm_perf_opt.system.nvml import GpuSamples, sample_gpu


def is_local(url: str) -> bool:
    """Whether an address is one of this machine: of its loopback or of another interface. Then its GPUs are ours.

    A name is local where all of its addresses are.
    """
    host = urlsplit(url).hostname or ""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(_is_own(family, address) for family, _, _, _, address in found)


def _is_own(family: int, address: Any) -> bool:
    """A socket can be bound to addresses of this machine only."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as own:
            own.bind(address)
            return True
    except OSError:
        return False


def missing_samples(gpus: Sequence[GpuSamples]) -> tuple[str, ...]:
    """Why GPUs of this machine were not sampled, each reason once."""
    return tuple(dict.fromkeys(one.reason for one in gpus if not one.samples and one.reason is not None))


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

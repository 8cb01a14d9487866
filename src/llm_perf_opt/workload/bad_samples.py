"""Which errors mean that one sample is bad, and when there are too many of them."""

import struct
import zlib
from collections.abc import Mapping, Set

from llm_perf_opt.errors import ProfilingError


def bad_sample_errors() -> tuple[type[BaseException], ...]:
    """What reading or running one sample may raise: broken files, inputs the model refuses, no memory for them."""
    import torch
    from PIL import Image

    # Pillow reports a broken PNG as SyntaxError, a truncated file as OSError, a huge one as DecompressionBombError.
    return (
        ProfilingError,
        OSError,
        ValueError,
        SyntaxError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
        torch.OutOfMemoryError,
    )


def describe_error(error: BaseException) -> str:
    """The kind of error and its first line."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def release_memory(device: str) -> None:
    """Give cached device memory back, so that the samples after one that was too large find room."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()


def refuse_too_many_bad(*, bad: Mapping[str, str], sample_ids: Set[str], max_bad_fraction: float) -> None:
    """Fail the run when too large a part of its samples could not be run, or none could."""
    if not bad:
        return
    fraction = len(bad) / len(sample_ids)
    first_id, first_error = next(iter(bad.items()))
    first = f"the first: {first_id} ({first_error})"
    if len(bad) == len(sample_ids):
        raise ProfilingError(f"none of the {len(sample_ids)} sample(s) could be run; {first}")
    if fraction > max_bad_fraction:
        raise ProfilingError(
            f"{len(bad)} of {len(sample_ids)} samples are bad ({fraction:.1%}), more than "
            f"dataset.max_bad_fraction={max_bad_fraction:g} allows; what was measured is kept; {first}"
        )

"""Predicted times of the same model elsewhere, as `static.json` holds them: a grid of GPUs, formats, batches, lengths.

`model/estimate/what_if.py` fills it. Nothing here is measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class WhatIfTime:
    """Milliseconds of one step: what no run can beat, and the estimate with its band."""

    bound: float
    low: float
    mid: float
    high: float


@dataclass(frozen=True, kw_only=True)
class WhatIfLength:
    """`prompt` tokens of a prefill, `context` tokens in the cache of a decode step."""

    prompt: int
    context: int


@dataclass(frozen=True, kw_only=True)
class WhatIfPoint:
    """One combination. `times` by phase, None where the GPU's peaks allow no estimate; `fits`: into its memory."""

    fits: bool | None
    times: Mapping[str, WhatIfTime | None]


@dataclass(frozen=True, kw_only=True)
class WhatIf:
    """`points` in the order of `gpus`, `dtypes`, `batches` and `lengths`, what is last changes first.

    `gpu`, `dtype`, `batch` and `length` are the places of the run itself; `gpu` and `dtype` are None where its device
    is not a GPU whose figures are known. `engine` is the way of running that is assumed everywhere.
    """

    engine: str
    gpus: tuple[str, ...]
    dtypes: tuple[str, ...]
    batches: tuple[int, ...]
    lengths: tuple[WhatIfLength, ...]
    gpu: int | None
    dtype: int | None
    batch: int
    length: int
    points: tuple[WhatIfPoint, ...]

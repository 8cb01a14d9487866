"""What if: predicted times of another GPU, weight format, batch or length, to choose from on the page."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.core.names import PHASES
from llm_perf_opt.model.static.model_what_if import WhatIf, WhatIfLength, WhatIfPoint
from llm_perf_opt.report.run_files import Found, RunFiles

# Milliseconds of each phase as the script reads them: lower bound, low, middle and high end of the estimate.
Times = tuple[float, float, float, float] | None


@dataclass(frozen=True, kw_only=True)
class WhatIfChoice:
    """One list to choose from. `chosen` is the place of the run's own value, or the first."""

    key: str
    label: str
    options: tuple[str, ...]
    chosen: int


@dataclass(frozen=True, kw_only=True)
class WhatIfRow:
    """One combination as the script reads it; `times` in the order of the phases."""

    fits: bool | None
    times: tuple[Times, ...]


@dataclass(frozen=True, kw_only=True)
class WhatIfView:
    """`rows` in the order of the choices, what is last changes first."""

    engine: str
    choices: tuple[WhatIfChoice, ...]
    batches: tuple[int, ...]
    phases: tuple[str, ...]
    rows: tuple[WhatIfRow, ...]
    source: str


def what_if_view(files: RunFiles) -> WhatIfView | None:
    """None where the run has no such predictions."""
    found = files.static.content.what_if if isinstance(files.static, Found) else None
    if found is None or not isinstance(files.static, Found):
        return None
    return WhatIfView(
        engine=found.engine,
        choices=_choices(found),
        batches=found.batches,
        phases=PHASES,
        rows=tuple(_row(point) for point in found.points),
        source=files.static.source,
    )


def _choices(found: WhatIf) -> tuple[WhatIfChoice, ...]:
    return (
        _choice("gpu", "GPU", found.gpus, found.gpu),
        _choice("dtype", "weights", found.dtypes, found.dtype),
        _choice("batch", "batch", [f"{batch:,}" for batch in found.batches], found.batch),
        _choice("length", "prompt, context", [_length(one) for one in found.lengths], found.length),
    )


def _choice(key: str, label: str, values: Sequence[str], own: int | None) -> WhatIfChoice:
    options = tuple(f"{value} (this run)" if place == own else value for place, value in enumerate(values))
    return WhatIfChoice(key=key, label=label, options=options, chosen=own or 0)


def _length(one: WhatIfLength) -> str:
    return f"{one.context:,}" if one.prompt == one.context else f"{one.prompt:,}, {one.context:,}"


def _row(point: WhatIfPoint) -> WhatIfRow:
    return WhatIfRow(fits=point.fits, times=tuple(_times(point, phase) for phase in PHASES))


def _times(point: WhatIfPoint, phase: str) -> Times:
    found = point.times.get(phase)
    return None if found is None else (found.bound, found.low, found.mid, found.high)

"""What the same model would take elsewhere: predicted times over GPUs, weight formats, batches and lengths.

A grid of points, so that a page can show other choices offline: each has the lower bound of a step and the estimate
with its band, as `llm-perf predict` gives them. Nothing here is measured.
"""

from collections.abc import Mapping
from dataclasses import replace

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.core.names import DECODE, PREFILL
from llm_perf_opt.model.estimate.engine_model import ENGINES
from llm_perf_opt.model.estimate.steps import Setting, step_bound, step_estimate
from llm_perf_opt.model.hardware.hardware import CPU
from llm_perf_opt.model.hardware.work import BYTES, Dtypes, Shape, Step
from llm_perf_opt.model.static.model_memory import RESERVE, memory_need
from llm_perf_opt.model.static.model_what_if import WhatIf, WhatIfLength, WhatIfPoint, WhatIfTime
from llm_perf_opt.model.static.parts import Model

# Entries of the catalogue that are compared with the GPU of the run.
GPUS = ("h200", "b200", "h100_sxm", "a100_80gb", "mi300x", "l40s", "rtx5090")
NARROWER = ("fp8", "int4")
BATCHES = (1, 8, 32, 128)
LENGTHS = (1024, 8192, 32768)
# More digits than an estimate has.
DIGITS = 4


def what_if(
    model: Model,
    shape: Shape,
    dtypes: Dtypes,
    hardware: HardwareSection | None,
    catalogue: Mapping[str, HardwareSection],
    *,
    engine: str,
) -> WhatIf | None:
    """None of models with an image side, whose whole time is not estimated."""
    if model.images is not None:
        return None
    own = None if hardware is None or hardware.name == CPU else hardware
    gpus = {} if own is None else {own.name: own}
    gpus |= {name: catalogue[name] for name in GPUS if name not in gpus}
    # What a CPU runs in fp32, a GPU runs in bf16.
    wide = dtypes if own is not None else Dtypes.uniform("bf16")
    narrower = [name for name in NARROWER if BYTES[name] < wide.weight_bytes]
    formats = {wide.weight: wide, **{name: replace(wide, weight=name) for name in narrower}}
    # A checkpoint's own sizes say nothing of narrower copies.
    as_stored, as_run = model, replace(model, stored=None)
    batches = tuple(sorted({*BATCHES, shape.batch}))
    mine = WhatIfLength(prompt=shape.prompt, context=shape.context)
    usual = [WhatIfLength(prompt=tokens, context=tokens) for tokens in LENGTHS]
    lengths = tuple(sorted({mine, *usual}, key=lambda one: (one.context, one.prompt)))
    return WhatIf(
        engine=engine,
        gpus=tuple(gpus),
        dtypes=tuple(formats),
        batches=batches,
        lengths=lengths,
        gpu=None if own is None else 0,
        dtype=None if own is None else 0,
        batch=batches.index(shape.batch),
        length=lengths.index(mine),
        points=tuple(
            _point(as_stored if weight == wide.weight else as_run, section, found, batch, length, engine)
            for section in gpus.values()
            for weight, found in formats.items()
            for batch in batches
            for length in lengths
        ),
    )


def _point(
    model: Model, hardware: HardwareSection, dtypes: Dtypes, batch: int, length: WhatIfLength, engine: str
) -> WhatIfPoint:
    setting = Setting(model=model, dtypes=dtypes, hardware=hardware, engine=engine)
    steps = {
        PREFILL: Step(batch=batch, new=length.prompt, past=0),
        DECODE: Step(batch=batch, new=1, past=length.context),
    }
    return WhatIfPoint(
        fits=_fits(setting, batch, length), times={name: _time(setting, step) for name, step in steps.items()}
    )


def _time(setting: Setting, step: Step) -> WhatIfTime | None:
    lowest, found = step_bound(setting, step), step_estimate(setting, step)
    if lowest is None or found is None:
        return None
    return WhatIfTime(
        bound=_short(lowest.ms), low=_short(found.low_ms), mid=_short(found.mid_ms), high=_short(found.high_ms)
    )


def _fits(setting: Setting, batch: int, length: WhatIfLength) -> bool | None:
    if setting.hardware.memory_gb is None:
        return None
    need = memory_need(
        setting.model,
        batch=batch,
        prompt=length.prompt,
        context=length.context,
        dtypes=setting.dtypes,
        mla_mode=ENGINES[setting.engine].mla_decode,
    )
    return need.peak_bytes <= (1 - RESERVE) * setting.hardware.memory_gb * 1e9


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

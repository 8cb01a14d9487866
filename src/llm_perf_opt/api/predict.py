"""What the hardware allows for a model and what to expect of it, before anything runs."""

import os
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from llm_perf_opt.errors import ConfigError

if TYPE_CHECKING:
    from llm_perf_opt.model.static.prediction import PhasePrediction
    from llm_perf_opt.planning.predicted_rows import Row

Setting = str | int | float | bool


@dataclass(frozen=True, kw_only=True)
class PredictedPhase:
    """One prefill or one decode step, in milliseconds.

    `bound_ms` is the least time the hardware's data sheet allows (measured ceilings where there is no sheet), None
    with a `reason`. `estimate_ms` is what to expect, between `low_ms` and `high_ms`; `limit` is what limits it. Rates
    are those of one replica.
    """

    bound_ms: float | None
    estimate_ms: float | None
    low_ms: float | None
    high_ms: float | None
    limit: str | None
    tokens_per_s_bound: float | None
    tokens_per_s: float | None
    reason: str | None


class Prediction:
    """One row of `llm-perf predict`; `row` has every figure behind it."""

    def __init__(self, row: "Row") -> None:
        self.row = row

    @cached_property
    def prefill(self) -> PredictedPhase:
        return _phase(self.row.prefill)

    @cached_property
    def decode(self) -> PredictedPhase:
        return _phase(self.row.decode)

    @property
    def fits(self) -> bool | None:
        """Whether weights and caches fit into memory; None: not known."""
        return self.row.fits

    @property
    def memory_bytes(self) -> float:
        """Memory over all devices."""
        return self.row.memory_bytes

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed."""
        return self.row.notes

    @property
    def figures(self) -> dict[str, str | float | int | None]:
        """All columns of the command's table by name."""
        from llm_perf_opt.planning.predicted_rows import COLUMNS

        return {column.key: column.value(self.row) for column in COLUMNS}

    def __repr__(self) -> str:
        found = self.row.analysis
        device = found.hardware.name if found.hardware else "unknown hardware"
        shown = ", ".join(
            f"{name} {_words(phase)}" for name, phase in (("prefill", self.prefill), ("decode", self.decode))
        )
        return f"Prediction({found.name} on {device}: {shown})"

    def _repr_html_(self) -> str:
        from html import escape

        shown = {key: value for key, value in self.figures.items() if value is not None}
        rows = "".join(
            f"<tr><td>{escape(key)}</td><td>{escape(_cell(value))}</td></tr>" for key, value in shown.items()
        )
        return f"<div>{escape(repr(self))}</div><table><tbody>{rows}</tbody></table>"


def predict(*overrides: str, model: str | None = None, hardware: str | None = None, **workload: Setting) -> Prediction:
    """Predict one deployment: `predict(model="llama3_8b", hardware="h200", batch=8, prompt=1024)`.

    `model` is a preset, a folder, a config.json or a hub name. Keywords are keys of `workload` (batch, prompt, context,
    output, engine, tp, weight_dtype, …); `overrides` are further words of `llm-perf predict`.
    """
    from llm_perf_opt.system.arrays import load_numpy

    load_numpy()
    from llm_perf_opt.planning.planning_rows import predictions

    words = [*overrides, *(f"workload.{key}={value}" for key, value in workload.items())]
    if model is not None:
        words.append(f"model.path={model}" if "/" in model or os.path.exists(model) else f"model={model}")
    words += [] if hardware is None else [f"hardware={hardware}"]
    rows = predictions(words)
    if len(rows) != 1:
        raise ConfigError(f"predict: {len(rows)} combinations of model, hardware and workload, allowed: one")
    return Prediction(rows[0])


def _phase(found: "PhasePrediction") -> PredictedPhase:
    from llm_perf_opt.planning.predicted_rows import bound_ms, middle_ms

    least, expected = bound_ms(found), found.estimate
    return PredictedPhase(
        bound_ms=least,
        estimate_ms=middle_ms(found),
        low_ms=None if expected is None else expected.low_ms,
        high_ms=None if expected is None else expected.high_ms,
        limit=found.limit,
        tokens_per_s_bound=found.tokens_per_s(least),
        tokens_per_s=found.tokens_per_s(middle_ms(found)),
        reason=None if least is not None else found.datasheet_reason or found.achievable_reason,
    )


def _words(phase: PredictedPhase) -> str:
    if phase.bound_ms is None:
        return f"unknown ({phase.reason})"
    expected = "" if phase.estimate_ms is None else f", ≈ {phase.estimate_ms:.3g} ms"
    return f"≥ {phase.bound_ms:.3g} ms{expected}"


def _cell(value: str | float | int | None) -> str:
    return f"{value:,.6g}" if isinstance(value, float) else str(value)

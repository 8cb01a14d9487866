"""The document `optimize.json` holds: every experiment with what was predicted, measured and checked."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Objective = Literal["tpot_ms", "ttft_ms", "tokens_per_s", "joules_per_token", "wall_ms"]
OBJECTIVES: tuple[Objective, ...] = ("tpot_ms", "ttft_ms", "tokens_per_s", "joules_per_token", "wall_ms")
UNITS: dict[str, str] = {
    "tpot_ms": "ms",
    "ttft_ms": "ms",
    "tokens_per_s": "tokens/s",
    "joules_per_token": "J/token",
    "wall_ms": "ms",
    "peak_gb": "GB",
    "compile_s": "s",
}
HIGHER_IS_BETTER = ("tokens_per_s",)

# helped: faster, outputs hold, limits kept. wrong: outputs differ, regardless of its gain.
ExperimentStatus = Literal["helped", "no gain", "slower", "wrong", "over a limit", "failed", "not tried"]
Held = Literal["held", "exceeded", "exceeded within the noise"]
OutputVerdict = Literal["equal", "within rounding", "within limits", "different", "not checked"]
OptimizeStatus = Literal["running", "done", "interrupted", "failed"]


@dataclass(frozen=True, kw_only=True)
class PredictedBound:
    """The most an experiment could bring, by the rules that named it.

    `gain` is the speed-up over the start (Amdahl), `least` the value of the objective it could not beat, None where the
    rules leave nothing over. `parts` are the findings it is made of, `how` the arithmetic in words.
    """

    gain: float | None
    least: float | None
    rules: tuple[str, ...]
    parts: tuple[str, ...]
    how: str


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How near the outputs of an experiment are to those of the start, on the same prompts.

    Tokens are greedy and free-running; the distances are of the logits while both read the start's tokens.
    `flip_gap` is the largest gap, in logits of the start, between its first choice and the other's; `rounding` what the
    number format lets logits differ by (see `verdict`).
    """

    samples: int
    positions: int
    tokens_equal: bool
    first_difference: str | None
    top1: float
    kl_mean: float
    kl_max: float
    flip_gap: float
    logit_rms: float
    dtype: str


@dataclass(frozen=True, kw_only=True)
class OutputCheck:
    """What is reported about outputs; `limits` are the numbers it was held against."""

    verdict: OutputVerdict
    text: str
    limits: str
    agreement: Agreement | None


@dataclass(frozen=True, kw_only=True)
class MetricChange:
    """A metric in the experiment and in what it was compared with; `gain` above 1 is an improvement (95 % interval)."""

    metric: str
    unit: str
    before: float
    after: float
    gain: float
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class ExperimentRow:
    """One experiment. `against` is what it was measured alongside: `start` or the best until then.

    `is_combined`: several fixes at once, whose gain is that of none of them alone.

    `total_gain` is over the baseline: the product of the gains. `break_even_tokens` are those after which preparing
    (compiling, capturing) has paid for itself; None where nothing was saved or prepared.
    """

    name: str
    title: str
    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    is_lossy: bool
    status: ExperimentStatus
    reason: str
    against: str
    bound: PredictedBound | None
    bound_held: Held | None
    changes: tuple[MetricChange, ...]
    total_gain: float | None
    check: OutputCheck | None
    peak_memory_bytes: int | None
    start_s: float | None
    compile_s: float | None
    break_even_tokens: float | None
    pairs: int
    how: str
    log: str | None
    is_combined: bool = False

    def change(self, metric: str) -> MetricChange | None:
        return next((one for one in self.changes if one.metric == metric), None)

    def total_interval(self, objective: str) -> tuple[float, float] | None:
        """That of `total_gain`: the one measured alongside `against`, times what that had brought already."""
        change = self.change(objective)
        if change is None or change.low is None or change.high is None or self.total_gain is None:
            return None
        before = self.total_gain / change.gain
        return before * change.low, before * change.high


@dataclass(frozen=True, kw_only=True)
class StartRow:
    """What was there before: its metrics, and the settings that experiments changed."""

    metrics: Mapping[str, float]
    peak_memory_bytes: int | None
    start_s: float | None
    passes: int


@dataclass(frozen=True, kw_only=True)
class PathStep:
    """One verified step from the start to the best; `gain` is over the step before."""

    name: str
    title: str
    value: float
    gain: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class Distance:
    """How far the best still is from what the hardware allows."""

    value: float
    bound: float
    unit: str
    how: str


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to set. `file` is the experiment for `--config-dir`, `command` a use of it, `code` the calls of torch."""

    overrides: tuple[str, ...]
    environment: Mapping[str, str]
    is_lossy: bool
    file: str | None
    command: str
    code: str


@dataclass(frozen=True, kw_only=True)
class RuleCalibration:
    """How often what a rule promised at most was not exceeded. `worst` names the experiment that went furthest."""

    rule: str
    experiments: int
    held: int
    exceeded: int
    within_noise: int
    worst: str | None


@dataclass(frozen=True, kw_only=True)
class OptimizeDocument:
    """`optimize.json`. `gain` is the best over the start, measured one alongside the other where `gain_is_direct`.

    `left` is what the findings name that no experiment here can do.
    """

    schema_version: Literal[1] = 1
    status: OptimizeStatus
    objective: Objective
    constraints: tuple[str, ...]
    model: str
    device: str | None
    budget_s: float
    spent_s: float
    max_experiments: int | None
    profile: str | None
    start: StartRow | None
    experiments: tuple[ExperimentRow, ...]
    best: str | None
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    gain_is_direct: bool
    path: tuple[PathStep, ...]
    distance: Distance | None
    left: tuple[str, ...]
    recommendation: Recommendation | None
    calibration: tuple[RuleCalibration, ...]
    sentence: str
    notes: tuple[str, ...]

    def row(self, name: str) -> ExperimentRow | None:
        return next((row for row in self.experiments if row.name == name), None)

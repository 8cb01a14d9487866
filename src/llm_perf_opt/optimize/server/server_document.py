"""The document `optimize_server.json` holds: every configuration that was started, what it gave, and what to set."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ServerObjective = Literal["goodput", "tokens_per_s", "ttft_ms", "tpot_ms", "e2el_ms"]
SERVER_OBJECTIVES: tuple[ServerObjective, ...] = ("goodput", "tokens_per_s", "ttft_ms", "tpot_ms", "e2el_ms")
SERVER_UNITS: dict[str, str] = {
    "goodput": "requests/s",
    "requests_per_s": "requests/s",
    "tokens_per_s": "tokens/s",
    "ttft_ms": "ms",
    "ttft_p99_ms": "ms",
    "tpot_ms": "ms",
    "tpot_p99_ms": "ms",
    "itl_p99_ms": "ms",
    "e2el_ms": "ms",
    "e2el_p99_ms": "ms",
}
MORE_IS_BETTER = ("goodput", "requests_per_s", "tokens_per_s")

# screened: started once, so nothing is claimed of it. verified: better than the start in interleaved rounds, and its
# answers hold. not better: measured in rounds, without a significant gain. wrong: its answers are not those of the
# start, regardless of its gain.
ConfigurationStatus = Literal["start", "screened", "verified", "not better", "wrong", "over a limit", "failed"]
AnswerVerdict = Literal["equal", "within rounding", "within limits", "different", "not comparable", "not checked"]
StartPurpose = Literal["start", "screen", "verify"]
StartStatus = Literal["ok", "wrong", "over a limit", "failed"]
SearchStatus = Literal["running", "done", "interrupted", "failed"]


@dataclass(frozen=True, kw_only=True)
class OptionSetting:
    """An option of the space and its value."""

    option: str
    value: str


@dataclass(frozen=True, kw_only=True)
class LoadObservation:
    """What the load of the start shows; `id` is what choices of the space name in `when`."""

    id: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ServedCheck:
    """How near the answers to the same prompts are to those of the start, greedy, over HTTP.

    `top1` is the share of equal tokens up to and with the first difference of each prompt, `logprob_mean` the mean
    change of the tokens' log probabilities before it, `flip_gap` how much less probable the start found the other token
    at a first difference, at most; None where the server reports no log probabilities. `limits` is what was allowed.
    """

    verdict: AnswerVerdict
    text: str
    limits: str = ""
    prompts: int = 0
    tokens: int = 0
    differing: int = 0
    top1: float | None = None
    logprob_mean: float | None = None
    flip_gap: float | None = None


@dataclass(frozen=True, kw_only=True)
class StartOutcome:
    """One start of a server from its command to its end; a line of the journal.

    `level` is the load the metrics were measured at, `spent_s` what of the budget was used when it ended.
    """

    configuration: tuple[OptionSetting, ...]
    purpose: StartPurpose
    status: StartStatus
    reason: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    level: str | None = None
    concurrency: int | None = None
    check: ServedCheck | None = None
    observations: tuple[LoadObservation, ...] = ()
    start_s: float | None = None
    took_s: float = 0.0
    spent_s: float = 0.0
    log: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VerifiedGain:
    """A factor above 1 is better; with its 95 % confidence interval, from `rounds` interleaved rounds of starts."""

    gain: float
    low: float | None
    high: float | None
    rounds: int
    how: str


@dataclass(frozen=True, kw_only=True)
class ConfigurationRow:
    """A configuration over all of its starts. `ratio` is its first start over that of the start: no claim."""

    name: str
    settings: tuple[OptionSetting, ...]
    words: tuple[str, ...]
    status: ConfigurationStatus
    reason: str
    is_lossy: bool
    starts: int
    metrics: Mapping[str, float]
    ratio: float | None
    gain: VerifiedGain | None
    check: ServedCheck | None
    level: str | None
    start_s: float | None
    log: str | None
    on_frontier: bool = False


@dataclass(frozen=True, kw_only=True)
class FlagGain:
    """What one setting of the best brings: the best over the best without it. `why` says where it was not measured."""

    option: str
    value: str
    words: tuple[str, ...]
    gain: VerifiedGain | None
    verdict: Literal["better", "same", "worse", "inconclusive", "not measured"]
    why: str


@dataclass(frozen=True, kw_only=True)
class OptionRow:
    """An option of the space: the values that were worth trying, and why the others were not."""

    option: str
    flag: str
    tried: tuple[str, ...]
    because: tuple[str, ...]
    left_out: str


@dataclass(frozen=True, kw_only=True)
class ServerRecommendation:
    """What to start: the command with its variables, a compose file and a manifest for Kubernetes."""

    name: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    is_lossy: bool
    command: str
    compose: str
    kubernetes: str


@dataclass(frozen=True, kw_only=True)
class OptimizeServerDocument:
    """`optimize_server.json`. `starts` counts starts of servers, `resumed` those of an earlier part of this search."""

    schema_version: Literal[1] = 1
    status: SearchStatus
    engine: str
    model: str | None
    command: tuple[str, ...]
    objective: ServerObjective
    slo: str
    constraints: tuple[str, ...]
    budget_s: float
    spent_s: float
    starts: int
    most_starts: int | None
    resumed: int
    grid: int
    observations: tuple[LoadObservation, ...]
    options: tuple[OptionRow, ...]
    configurations: tuple[ConfigurationRow, ...]
    best: str | None
    gain: VerifiedGain | None
    flags: tuple[FlagGain, ...]
    recommendation: ServerRecommendation | None
    sentence: str
    notes: tuple[str, ...]

    def row(self, name: str) -> ConfigurationRow | None:
        return next((row for row in self.configurations if row.name == name), None)

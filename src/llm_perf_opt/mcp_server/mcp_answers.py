"""The records tools answer with; strings between ⟪ and ⟫ come from captures and files."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "abstained"]


@dataclass(frozen=True, kw_only=True)
class Pointer:
    """The call that answers with more."""

    tool: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Which of all rows an answer holds; `next` asks for those that follow."""

    offset: int
    returned: int
    total: int
    next: Pointer | None = None


@dataclass(frozen=True, kw_only=True)
class ToolAnswer:
    """What a tool answers. `abstained`: the evidence does not hold it, `reason` says what is missing.

    `result` is a record of this module; `rows` are those of the page; `more` are calls that go into detail.
    """

    status: Status
    reason: str | None = None
    result: Any = None
    rows: tuple[Any, ...] = ()
    page: Page | None = None
    more: tuple[Pointer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """One line of doctor."""

    name: str
    ok: bool
    value: str
    fix: str | None


@dataclass(frozen=True, kw_only=True)
class FoundRun:
    """One run below a root; `path` is what the other tools take as a source."""

    path: str
    date: str
    model: str
    device: str
    status: str
    ttft_ms: float | None
    tpot_ms: float | None
    wall_ms: float | None
    tokens_per_s: float | None
    note: str | None


@dataclass(frozen=True, kw_only=True)
class ScopeRow:
    """A stretch of time and the largest parts of its time ledger, in percent of its wall time."""

    id: str
    kind: str
    wall_ms: float
    instances: int
    clean: bool
    parts_pct: Mapping[str, float]
    kernels_pct: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class SubjectRow:
    """What was analyzed: verdict, program and what was recorded of it."""

    source: str
    verdict: str
    verdict_kind: str
    rule: str | None
    scope: str | None
    hottest_kernel: str | None
    framework: str
    engine: str | None
    gpu: str | None
    ranks: int
    traits: tuple[str, ...]
    recorded: tuple[str, ...]
    not_recorded: tuple[str, ...]
    unrecorded_pct: float
    findings: int
    numbers: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """One exclusive part of a scope's time. `owner`: what the host was in, the innermost first."""

    id: str
    time_ms: float
    share_pct: float
    count: int
    owner: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ScopeHead:
    """The scope whose time ledger the rows are; they sum to `wall_ms`, measured without a profiler where `clean`."""

    source: str
    id: str
    kind: str
    wall_ms: float
    clean: bool


@dataclass(frozen=True, kw_only=True)
class FindingRow:
    """One finding; `number` is what `explain` takes. Times are of the scope, one instance where it is a phase."""

    number: int
    rule: str
    title: str
    scope: str
    share_pct: float | None
    saves_ms: float | None
    max_gain: float | None
    confidence: str
    is_one_time: bool


@dataclass(frozen=True, kw_only=True)
class EvidenceRow:
    """One line of evidence and the file it can be checked against."""

    text: str
    source: str


@dataclass(frozen=True, kw_only=True)
class ExplainedFinding:
    """A finding with its fix, the bound behind its gain, and what would refute it."""

    finding: FindingRow
    fix: str
    refuted_by: str
    lower_bound: str | None
    lower_bound_ms: float | None
    at_stake_ms: float | None
    cells_ms: Mapping[str, float]
    caveat: str | None
    range: str | None
    experiments: tuple[str, ...]
    documentation: str | None


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One metric of both sides; `ratio` is candidate over baseline with its 95 % confidence interval."""

    metric: str
    verdict: str
    base: float | None
    candidate: float | None
    ratio: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True, kw_only=True)
class ComparisonHead:
    """The verdict of a comparison."""

    base: str
    candidate: str
    verdict: str
    sentence: str
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class QueryHead:
    """The statement that was run, and its columns; rows hold values in this order."""

    source: str
    columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CapturedRun:
    """A program that was run under the profilers."""

    run: str
    exit_code: int | None
    status: str
    verdict: str | None

"""Causes as data: which cells a cause explains, its words and its advice; and the judge that goes with it.

Each cause is `causes/<id>.toml`. Where a cell alone is the evidence, that is all of it. Else `causes/<id>.py` alongside
it has a function `judge(scope, program)` that returns a claim or nothing; it is imported only where the cause's cells
hold time. Its words are templates, filled with numbers last.
"""

import string
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from llm_perf_opt.core.units import count_of, format_bytes, format_factor, format_ms, format_percent
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.ledger import Claim, Confidence, Value
from llm_perf_opt.diagnosis.scope import Kind, Scope
from llm_perf_opt.system.terminal import cut_text

FOLDER = Path(__file__).parent / "causes"
# The rows of advice end a file; before them are the words, from the title on.
WORDS, ADVICE = "\ntitle = ", "\n[[advice]]\n"
SCOPES: tuple[Kind, ...] = ("steady", "phase")


@dataclass(frozen=True, kw_only=True)
class AdviceRow:
    """What to do where all of `when` and none of `unless` is true of program and claim."""

    text: str
    when: frozenset[str] = frozenset()
    unless: frozenset[str] = frozenset()
    hint: str | None = None
    doc: str | None = None
    experiments: tuple[str, ...] = ()

    def fits(self, traits: frozenset[str]) -> bool:
        return self.when <= traits and not self.unless & traits


@dataclass(frozen=True, kw_only=True)
class _Words:
    """What a cause says, by key."""

    titles: Mapping[str, str]
    plain_words: str
    refutes: str
    evidence: Mapping[str, str]
    caveats: Mapping[str, str]
    floors: Mapping[str, str]
    experiments: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """`cells` are what it may explain: it is judged where they hold `min_share` of the scope on the critical path.

    `judged_by` names the module for a cause that is data alone: its cells are all its evidence, or its kernels, which
    move data in the ways `moves` names or come so near to their memory roofline as `roof_pct` says, and take
    `min_kernel_share` of the kernel time.
    `needs` is what the scope must have besides (`Scope.has`). `is_by_owner`: its owners have nothing in common but the
    kind of time, so that the first of them decides its place among the findings.

    Of two claims on one cell that of the larger `specificity` wins: 1 names a cell, 2 an activity, 3 a mechanism.
    """

    id: str
    words_toml: str
    advice_toml: str
    cells: tuple[str, ...] = ()
    min_share: float = 0.01
    scopes: tuple[Kind, ...] = SCOPES
    specificity: int = 2
    is_idle: bool = False
    is_one_time: bool = False
    is_by_owner: bool = False
    needs: frozenset[str] = frozenset()
    has_judge: bool = False
    judged_by: str = "cell_alone"
    moves: tuple[str, ...] = ()
    roof_pct: tuple[float, float] = (0.0, 0.0)
    min_kernel_share: float = 0.05
    confidence: Confidence = "medium"

    @cached_property
    def _words(self) -> _Words:
        """Read only of a cause that is judged."""
        data = tomllib.loads(self.words_toml)
        return _Words(
            titles={"title": data["title"], **data.get("titles", {})},
            plain_words=data["plain_words"],
            refutes=data["refutes"],
            evidence=data.get("evidence", {}),
            caveats=data.get("caveats", {}),
            floors=data.get("floors", {}),
            experiments=tuple(data.get("experiments", ())),
        )

    @property
    def titles(self) -> Mapping[str, str]:
        return self._words.titles

    @property
    def plain_words(self) -> str:
        return self._words.plain_words

    @property
    def refutes(self) -> str:
        return self._words.refutes

    @property
    def evidence(self) -> Mapping[str, str]:
        return self._words.evidence

    @property
    def caveats(self) -> Mapping[str, str]:
        return self._words.caveats

    @property
    def floors(self) -> Mapping[str, str]:
        return self._words.floors

    @property
    def experiments(self) -> tuple[str, ...]:
        return self._words.experiments

    @cached_property
    def advice(self) -> tuple[AdviceRow, ...]:
        """The rows in order, read only of a cause that is found: they are half of its file."""
        return tuple(
            AdviceRow(
                text=row["text"],
                when=frozenset(row.get("when", ())),
                unless=frozenset(row.get("unless", ())),
                hint=row.get("hint"),
                doc=row.get("doc"),
                experiments=tuple(row.get("experiments", ())),
            )
            for row in tomllib.loads(self.advice_toml)["advice"]
        )

    def applies_to(self, scope: Scope) -> bool:
        """Whether to judge a scope at all, by its kind and its ledger."""
        if not scope.kinds & set(self.scopes):
            return False
        return self.needs <= scope.has and (not self.cells or scope.at_stake(self.cells) >= self.min_share)

    def judge(self, scope: Scope, program: Program) -> Claim | None:
        module = import_module(f"{__package__}.causes.{self.id if self.has_judge else self.judged_by}")
        if not self.has_judge:
            return cast("Claim | None", module.judge_cells(scope, self))
        return cast("Judge", module.judge)(scope, program)

    def advise(self, traits: frozenset[str]) -> AdviceRow:
        """The first row that fits; the last of a cause fits always."""
        return next(row for row in self.advice if row.fits(traits))


class Judge(Protocol):
    """What a module of `causes` has under the name `judge`."""

    def __call__(self, scope: Scope, program: Program) -> Claim | None: ...


@cache
def load_causes() -> tuple[Cause, ...]:
    """All causes, by id."""
    judges = {path.stem for path in FOLDER.glob("*.py")}
    return tuple(_load(path, has_judge=path.stem in judges) for path in sorted(FOLDER.glob("*.toml")))


def _load(path: Path, *, has_judge: bool) -> Cause:
    own, table, rows = path.read_text(encoding="utf-8").partition(ADVICE)
    head, title, words = own.partition(WORDS)
    data: dict[str, Any] = tomllib.loads(head)
    return Cause(
        id=path.stem,
        words_toml=title + words,
        advice_toml=table + rows,
        cells=tuple(data.get("cells", ())),
        min_share=data.get("min_share", 0.01),
        scopes=tuple(data.get("scopes", SCOPES)),
        specificity=data.get("specificity", 2),
        is_idle=data.get("is_idle", False),
        is_one_time=data.get("is_one_time", False),
        is_by_owner=data.get("is_by_owner", False),
        needs=frozenset(data.get("needs", ())),
        judged_by=data.get("judged_by", "cell_alone"),
        moves=tuple(data.get("moves", ())),
        roof_pct=tuple(data.get("roof_pct", (0.0, 0.0))),
        min_kernel_share=data.get("min_kernel_share", 0.05),
        confidence=data.get("confidence", "medium"),
        has_judge=has_judge,
    )


NAME_WIDTH = 100
# Before the noun of a count: `{gaps:# gap}`.
COUNTED = "# "


class _Numbers(string.Formatter):
    """Formats of our own: `ms` and `us` of nanoseconds, `pct` of a share, `x` of a ratio, `n` of a count, `bytes`,
    `gbs` of bytes per second, `name` for names that may be long, `# noun` for a count with its noun."""

    def format_field(self, value: Any, spec: str) -> str:
        if spec.startswith(COUNTED):
            return count_of(value, spec.removeprefix(COUNTED))
        return FORMATS[spec](value) if spec in FORMATS else format(value, spec)


FORMATS: Mapping[str, Callable[[Any], str]] = {
    "ms": lambda ns: format_ms(ns / 1e6),
    "us": lambda ns: f"{ns / 1e3:,.1f} µs",
    "pct": lambda share: format_percent(share) if share < 0.1 else f"{100 * share:.0f} %",
    "x": format_factor,
    "n": lambda count: f"{count:,.0f}",
    "bytes": format_bytes,
    "gbs": lambda rate: f"{rate / 1e9:,.1f} GB/s",
    "name": lambda name: cut(str(name)),
}
_NUMBERS = _Numbers()


def fill(template: str, values: Mapping[str, Value]) -> str:
    """A template with its numbers. A missing one is a defect of the cause, and an error."""
    return _NUMBERS.vformat(template, (), values)


def cut(name: str) -> str:
    return cut_text(name, NAME_WIDTH)


def capitalized(text: str) -> str:
    """With a capital letter where it begins with a word of ours; names of ranges stay as they are."""
    return text[:1].upper() + text[1:]

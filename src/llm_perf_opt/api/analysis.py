"""What a capture, a run or a block of code says, as data: verdict, findings, scopes, coverage, tables and SQL."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, overload

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, Coverage, Diagnosis, Program, ScopeRecord
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.sql.view_schema import BY_NAME, VIEWS
from llm_perf_opt.system.terminal import cut_text

if TYPE_CHECKING:
    from llm_perf_opt.api.sources import AnalysisSource
    from llm_perf_opt.sql.database import Guard, SqlDatabase, SqlLimits
    from llm_perf_opt.sql.table import DataTable, Fill

# What a short description shows of a verdict.
VERDICT_SHOWN = 160


class Findings(Sequence[Finding]):
    """Findings in the order of the report."""

    def __init__(self, found: Sequence[Finding]) -> None:
        self._found = tuple(found)

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, index: int) -> Finding: ...

    @overload
    def __getitem__(self, index: slice) -> "Findings": ...

    def __getitem__(self, index: int | slice) -> "Finding | Findings":
        return Findings(self._found[index]) if isinstance(index, slice) else self._found[index]

    def __repr__(self) -> str:
        lines = [f"{number}. {one.title} [{one.rule}]" for number, one in enumerate(self._found, 1)]
        return "\n".join(lines) or "no findings"

    def _repr_html_(self) -> str:
        from llm_perf_opt.report.render.first_screen import render_findings

        return render_findings(self._found)


class Scopes(Mapping[str, ScopeRecord]):
    """Scopes by their identifiers, each with its time ledger."""

    def __init__(self, scopes: Sequence[ScopeRecord]) -> None:
        self._scopes = {scope.id: scope for scope in scopes}

    def __getitem__(self, name: str) -> ScopeRecord:
        try:
            return self._scopes[name]
        except KeyError:
            known = ", ".join(self._scopes) or "none"
            raise KeyError(f"no scope {name!r} was measured, known here: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._scopes)

    def __len__(self) -> int:
        return len(self._scopes)

    def __repr__(self) -> str:
        shown = (f"{scope.id}: {scope.wall_ns / 1e6:,.3f} ms" for scope in self._scopes.values())
        return f"Scopes({', '.join(shown)})"


class PerfAnalysis:
    """The answer and what it rests on. Tables are read when first asked for; `query` sees the same as SQL views."""

    def __init__(
        self, source: "AnalysisSource", limits: "SqlLimits | None" = None, guard: "Guard | None" = None
    ) -> None:
        self._source, self._limits, self._guard = source, limits, guard

    @property
    def name(self) -> str:
        """Path of the capture, or the identifier of the run."""
        return self._source.name

    @property
    def path(self) -> Path | None:
        """The capture file or the directory of the run; None of several files and of a block of code."""
        return self._source.path

    @property
    def manifest(self) -> RunManifest | None:
        """What the run recorded of itself; None of captures."""
        return self._source.manifest

    @property
    def diagnosis(self) -> Diagnosis:
        """The whole answer, as `diagnosis.json` holds it."""
        return self._source.diagnosis

    @property
    def analysis(self) -> CaptureAnalysis | None:
        """The tables and figures of the capture, as `analysis.json` holds them; None where there is none."""
        return self._source.captured

    @property
    def verdict(self) -> str:
        """The answer in one or two sentences; `diagnosis.verdict` has its kind and its cause."""
        return self.diagnosis.verdict.text

    @cached_property
    def findings(self) -> Findings:
        """Findings, the largest saving first; each has a `title`, a `fix` and its evidence."""
        return Findings(self.diagnosis.claims)

    @cached_property
    def scopes(self) -> Scopes:
        """Scopes by name (`decode`, `prefill`, `steady`, `capture`, …), each with its `ledger`."""
        return Scopes(self._source.scopes)

    @property
    def coverage(self) -> Coverage:
        """What was recorded and what was not."""
        return self.diagnosis.coverage

    @property
    def program(self) -> Program:
        """What is known about the program: framework, engine, GPU."""
        return self.diagnosis.program

    @property
    def has_capture(self) -> bool:
        """Whether the tables of events can be filled: a run may have lost its capture."""
        return self._source.has_capture

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out while reading, and why."""
        return self._source.notes

    @property
    def kernels(self) -> "DataTable":
        """One row per kernel."""
        return self.table("kernels")

    @property
    def launches(self) -> "DataTable":
        """One row per host call that launched work or waited."""
        return self.table("launches")

    @property
    def copies(self) -> "DataTable":
        """One row per copy or memset."""
        return self.table("copies")

    @property
    def ranges(self) -> "DataTable":
        """One row per named range."""
        return self.table("ranges")

    @property
    def gaps(self) -> "DataTable":
        """One row per time without a kernel, with cause and owner."""
        return self.table("gaps")

    @property
    def operators(self) -> "DataTable":
        """One row per call of an operator."""
        return self.table("operators")

    @property
    def memory(self) -> "DataTable":
        """One row per allocation or release."""
        return self.table("memory")

    @property
    def samples(self) -> "DataTable":
        """One row per number of a sample of the clean pass."""
        return self.table("samples")

    @property
    def metrics(self) -> "DataTable":
        """One row per number of a stage."""
        return self.table("metrics")

    @property
    def requests(self) -> "DataTable":
        """One row per request of a load test."""
        return self.table("requests")

    @property
    def ledger(self) -> "DataTable":
        """One row per cell of the time ledgers of all scopes."""
        return self.table("ledger")

    def table(self, name: str) -> "DataTable":
        """One view as a table; `tables` names them all."""
        from llm_perf_opt.errors import ConfigError, did_you_mean
        from llm_perf_opt.sql.table import table_of

        if name not in BY_NAME:
            raise ConfigError(
                f"table: no table {name!r}{did_you_mean(name, BY_NAME)}, allowed: {', '.join(self.tables)}"
            )
        if name not in self._tables:
            self._tables[name] = table_of(BY_NAME[name], self._fills[name]())
        return self._tables[name]

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of all tables, which are those of the SQL views."""
        return tuple(view.name for view in VIEWS)

    def query(self, sql: str) -> "DataTable":
        """The result of one SELECT statement over the views; nothing else can be reached from it."""
        return self._database.query(sql)

    @cached_property
    def _database(self) -> "SqlDatabase":
        from llm_perf_opt.sql.database import DEFAULT_LIMITS, SqlDatabase, unguarded

        return SqlDatabase(self._fills, self._limits or DEFAULT_LIMITS, self._guard or unguarded)

    @cached_property
    def _fills(self) -> "Mapping[str, Fill]":
        """Each asked once: tables and SQL share their columns."""
        return {name: cache(fill) for name, fill in self._source.fills().items()}

    @cached_property
    def _tables(self) -> "dict[str, DataTable]":
        return {}

    def __repr__(self) -> str:
        shown = cut_text(self.verdict, VERDICT_SHOWN)
        count = len(self.findings)
        return f"{type(self).__name__}({self.name}: {shown} {count} finding{'' if count == 1 else 's'})"

    def _repr_html_(self) -> str:
        """The first screen of the report."""
        from llm_perf_opt.report.render.first_screen import render_first_screen

        return render_first_screen(self._source.first_screen())

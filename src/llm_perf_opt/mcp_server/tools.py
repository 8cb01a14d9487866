"""What the server can do, one method per tool: arguments to the text of an answer. Nothing here knows the protocol."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.diagnosis.diagnosis_document import Diagnosis, ScopeRecord
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.errors import ConfigError, did_you_mean
from llm_perf_opt.mcp_server.allowed_paths import ReadOnlyFolder, Roots
from llm_perf_opt.mcp_server.answer_rows import TableRows
from llm_perf_opt.mcp_server.captures import Captures, JudgedSubject
from llm_perf_opt.mcp_server.limits import LONGEST_TEXT, as_data, paged, rendered
from llm_perf_opt.mcp_server.mcp_answers import (
    CellRow,
    CheckRow,
    ComparisonHead,
    EvidenceRow,
    ExplainedFinding,
    FindingRow,
    FoundRun,
    MetricRow,
    Pointer,
    QueryHead,
    ScopeHead,
    ScopeRow,
    SubjectRow,
    ToolAnswer,
)
from llm_perf_opt.profiling.vendor.launch import quote
from llm_perf_opt.sql.view_schema import VIEWS, SqlView

# What one row of analyze names; the rest is one call away.
PARTS_SHOWN, KERNELS_SHOWN, OWNERS_SHOWN, NUMBERS_SHOWN, NOTES_SHOWN = 6, 3, 3, 24, 4
# Verdicts that say the evidence is missing.
NO_EVIDENCE = ("not_recorded", "no_gpu_work", "nothing_measured")
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")
_KEY = re.compile(r"[a-z_]{1,32}(\.[a-z_]{1,32})?")
_VALUE = re.compile(r"[A-Za-z0-9_.,-]{1,120}")

Source = Annotated[
    str | list[str],
    Field(
        description="Path of a run directory or of a capture (nsys .sqlite or .nsys-rep, torch trace, rocpd .db, ncu "
        "pages); several captures are the ranks or repeats of one job"
    ),
]
Offset = Annotated[int, Field(ge=0, description="First row of the page; an answer's page.next has the next one")]


class Tools:
    """The tools over what lies inside some folders."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._captures = Captures(roots)

    def doctor(self) -> str:
        """What this machine can record and what is missing for the rest, each with its fix."""
        from llm_perf_opt.commands.doctor import diagnose
        from llm_perf_opt.profiling.vendor.vendor_tools import probe_host
        from llm_perf_opt.system.process import allowed_environment

        checks = diagnose(probe_host(env=allowed_environment(os.environ), disk=self._roots.folders[0]))
        rows = [
            CheckRow(
                name=check.name,
                ok=check.ok,
                value=as_data(check.value),
                fix=None if check.remedy is None else as_data(check.remedy, LONGEST_TEXT),
            )
            for check in checks
        ]
        return paged(ToolAnswer(status="ok"), rows, offset=0, tool="doctor", arguments={})

    def list_runs(
        self,
        folder: Annotated[str, Field(description="Folder to look in, two levels deep")] = ".",
        offset: Offset = 0,
    ) -> str:
        """Runs with their date, model, device, status and times, the newest first."""
        from llm_perf_opt.pipeline.catalogue import list_runs

        place = self._roots.resolve(folder)
        listed = list_runs(ReadOnlyFolder(root=place, roots=self._roots), kind="row")
        rows = [
            FoundRun(
                path=as_data(self._roots.name_of(Path(os.path.realpath(row.path)))),
                date=as_data(row.date),
                model=as_data(row.model),
                device=as_data(row.device),
                status=row.status,
                ttft_ms=row.ttft_ms,
                tpot_ms=row.tpot_ms,
                wall_ms=row.wall_ms,
                tokens_per_s=row.tokens_per_s,
                note=as_data(row.failed) if row.failed else None,
            )
            for row in sorted(listed.rows.values(), key=lambda row: (row.date, row.path), reverse=True)
        ]
        if not rows:
            return rendered(_abstained(f"no runs below {as_data(folder)}; captures are given to analyze by their path"))
        return paged(ToolAnswer(status="ok"), rows, offset=offset, tool="list_runs", arguments={"folder": folder})

    def analyze(
        self,
        source: Source,
        scope: Annotated[
            str | None, Field(description="Id of one scope: its whole time ledger, or of all scopes the largest parts")
        ] = None,
        offset: Offset = 0,
    ) -> str:
        """The verdict of a run or a capture, what was recorded, and where the time of each scope went."""
        subject = self._captures.read(source)
        if subject.missing is not None:
            return rendered(_abstained(subject.missing))
        diagnosis = subject.opened.diagnosis
        if scope is not None:
            return self._ledger(subject, scope, source, offset)
        missing = _missing(diagnosis)
        answer = ToolAnswer(
            status="ok" if missing is None else "abstained",
            reason=missing,
            result=_subject_row(subject, diagnosis),
            more=(Pointer(tool="findings", arguments={"source": source}),),
        )
        rows = [_scope_row(row) for row in subject.opened.scopes.values()]
        return paged(answer, rows, offset=offset, tool="analyze", arguments={"source": source})

    def _ledger(self, subject: JudgedSubject, name: str, source: str | Sequence[str], offset: int) -> str:
        record = subject.opened.scopes.get(name)
        if record is None:
            ids = list(subject.opened.scopes)
            allowed = ", ".join(as_data(scope) for scope in ids)
            near = did_you_mean(name, ids)
            raise ConfigError(f"scope: no such scope (got {as_data(name)}){near}, allowed: {allowed}")
        head = ScopeHead(
            source=as_data(subject.name),
            id=as_data(record.id),
            kind=record.kind,
            wall_ms=_ms(record.wall_ns),
            clean=record.clean,
        )
        rows = [
            CellRow(
                id=as_data(cell.id),
                time_ms=_ms(cell.time_ns),
                share_pct=_percent(cell.time_ns, record.wall_ns),
                count=cell.count,
                owner=tuple(as_data(owner) for owner in cell.owner[:OWNERS_SHOWN]),
            )
            for cell in sorted(record.cells, key=lambda cell: (-cell.time_ns, cell.id))
        ]
        arguments = {"source": source, "scope": name}
        return paged(ToolAnswer(status="ok", result=head), rows, offset=offset, tool="analyze", arguments=arguments)

    def findings(self, source: Source, offset: Offset = 0) -> str:
        """What to change first: causes with the affected share of time, what they save and how certain they are."""
        subject = self._captures.read(source)
        if subject.missing is not None:
            return rendered(_abstained(subject.missing))
        diagnosis = subject.opened.diagnosis
        missing = _missing(diagnosis)
        if not diagnosis.claims:
            return rendered(_abstained(missing or _no_cause(diagnosis)))
        first = Pointer(tool="explain", arguments={"source": source, "number": 1})
        answer = ToolAnswer(status="ok" if missing is None else "abstained", reason=missing, more=(first,))
        rows = [_finding_row(number, finding) for number, finding in enumerate(diagnosis.claims, 1)]
        return paged(answer, rows, offset=offset, tool="findings", arguments={"source": source})

    def explain(
        self,
        source: Source,
        number: Annotated[int, Field(ge=1, description="Number of the finding, as findings lists it")] = 1,
        offset: Offset = 0,
    ) -> str:
        """One finding: its evidence, its fix, the lower bound behind its gain, and what would refute it."""
        subject = self._captures.read(source)
        if subject.missing is not None:
            return rendered(_abstained(subject.missing))
        diagnosis = subject.opened.diagnosis
        claims = diagnosis.claims
        if not claims:
            return rendered(_abstained(_missing(diagnosis) or _no_cause(diagnosis)))
        if number > len(claims):
            raise ConfigError(f"number: no such finding (got {number}), allowed: 1 to {len(claims)}")
        finding = claims[number - 1]
        answer = ToolAnswer(status="ok", result=_explained(number, finding))
        rows = [
            EvidenceRow(text=as_data(line.text, LONGEST_TEXT), source=as_data(self._roots.name_of(Path(line.source))))
            for line in finding.cited
        ]
        arguments = {"source": source, "number": number}
        return paged(answer, rows, offset=offset, tool="explain", arguments=arguments)

    def query(
        self,
        source: Source,
        sql: Annotated[
            str,
            Field(
                description="One SELECT statement of DuckDB. Views: "
                + "; ".join(f"{view.name}({', '.join(view.names)})" for view in VIEWS)
                + ". Times in ns"
            ),
        ],
        offset: Offset = 0,
    ) -> str:
        """Exact figures in SQL over kernels, launches, copies, ranges, gaps, operators, ledger, findings and more."""
        subject = self._captures.read(source)
        if subject.missing is not None:
            return rendered(_abstained(subject.missing))
        named = _views_in(sql)
        taken = [view.name for view in named if view.needs == "capture" and not subject.opened.has_capture]
        if taken:
            return rendered(_abstained(f"the run holds no capture to fill {', '.join(taken)} from"))
        table = subject.query(sql)
        absent = _not_recorded(subject, named)
        if absent:
            return rendered(_abstained(f"not recorded here: {', '.join(absent)}; analyze says what was"))
        head = QueryHead(source=as_data(subject.name), columns=tuple(as_data(name) for name in table.columns))
        arguments = {"source": source, "sql": sql}
        return paged(
            ToolAnswer(status="ok", result=head), TableRows(table), offset=offset, tool="query", arguments=arguments
        )

    def compare(
        self,
        base: Annotated[str, Field(description="Baseline: a run, a folder of runs (its passes), or a capture")],
        candidate: Annotated[str, Field(description="Candidate: the same kind as the baseline")],
        offset: Offset = 0,
    ) -> str:
        """Whether the candidate is faster: each metric with its ratio and 95 % confidence interval."""
        from llm_perf_opt.system.arrays import load_numpy

        load_numpy()
        from llm_perf_opt.comparison.comparison import compare_sides, unknown_variation
        from llm_perf_opt.comparison.settings import incomparable
        from llm_perf_opt.pipeline.compare.sides import changes_between, device_notes, known_variation, read_sides

        paths = self._side(base), self._side(candidate)
        sides = read_sides(*paths)
        settings = changes_between(*sides, meant=frozenset())
        reasons = incomparable(settings)
        if reasons:
            texts = "; ".join(as_data(reason) for reason in reasons[:NOTES_SHOWN])
            return rendered(_abstained(f"these runs did not do the same work: {texts}"))
        # Earlier starts of the same work are read from the folder around a run.
        around = all(self._roots.holds(path.parent) for path in paths)
        variation = known_variation(*sides, None) if around else unknown_variation
        document = compare_sides(
            sides[0].input, sides[1].input, settings=settings, variation=variation, notes=device_notes(*sides)
        )
        undecided = document.verdict == "inconclusive"
        head = ComparisonHead(
            base=as_data(document.base.name),
            candidate=as_data(document.candidate.name),
            verdict=document.verdict,
            sentence=as_data(document.sentence, LONGEST_TEXT),
            notes=tuple(as_data(note, LONGEST_TEXT) for note in document.notes[:NOTES_SHOWN]),
        )
        rows = [
            MetricRow(
                metric=as_data(row.metric),
                verdict=row.verdict,
                base=row.base_value,
                candidate=row.candidate_value,
                ratio=row.ratio,
                low=row.low,
                high=row.high,
            )
            for row in document.metrics
        ]
        reason = "the measurements do not decide it; more repeats of each side would" if undecided else None
        answer = ToolAnswer(status="abstained" if undecided else "ok", reason=reason, result=head)
        arguments = {"base": base, "candidate": candidate}
        return paged(answer, rows, offset=offset, tool="compare", arguments=arguments)

    def _side(self, name: str) -> Path:
        """A file or folder, everything in which is inside the roots."""
        path = self._roots.resolve(name)
        folders = [path, *path.glob("*")] if path.is_dir() else []
        for folder in folders:
            if not self._roots.holds(folder):
                raise ConfigError(f"{as_data(name)}: holds a link that leads out of the folders this server may read")
            if (folder / MANIFEST_FILE).is_file():
                self._roots.require_own_files(read_manifest(folder), folder)
        return path

    def predict(
        self,
        model: Annotated[str, Field(description="Preset such as llama3_8b, or the path of a folder with config.json")],
        hardware: Annotated[str, Field(description="Preset such as h200")],
        workload: Annotated[
            dict[str, str | int | float] | None,
            Field(description="Such as prompt, output, batch, concurrency, rate, tp, pp, ep, dp; values may be lists"),
        ] = None,
        offset: Offset = 0,
    ) -> str:
        """What the hardware allows for a model before anything runs: lower bounds and expected times."""
        from llm_perf_opt.planning.planning_rows import predictions
        from llm_perf_opt.planning.predicted_rows import BY_KEY

        rows = predictions(self._overrides(model, hardware, workload or {}))
        shown = [
            {
                key: as_data(value) if isinstance(value, str) else value
                for key, column in BY_KEY.items()
                if (value := column.value(row)) is not None
            }
            for row in rows
        ]
        arguments = {"model": model, "hardware": hardware, "workload": workload}
        return paged(ToolAnswer(status="ok"), shown, offset=offset, tool="predict", arguments=arguments)

    def _overrides(self, model: str, hardware: str, workload: Mapping[str, str | int | float]) -> list[str]:
        """Overrides of `predict`; names and values that could be anything else are refused."""
        problems = []
        if not _NAME.fullmatch(hardware):
            problems.append(f"hardware: not a preset (got {as_data(hardware)}), allowed: a name such as h200")
        for key, value in workload.items():
            if not _KEY.fullmatch(key) or not _VALUE.fullmatch(str(value)):
                problems.append(f"workload: not a setting (got {as_data(f'{key}={value}')}), allowed: prompt=1024")
        if problems:
            raise ConfigError(problems)
        of_model = f"model={model}" if _NAME.fullmatch(model) else f"model.path={quote(str(self._side(model)))}"
        return [of_model, f"hardware={hardware}", *(f"workload.{key}={value}" for key, value in workload.items())]


def _views_in(sql: str) -> list[SqlView]:
    """Views a statement may be about."""
    words = {word.casefold() for word in re.findall(r"\w+", sql)}
    return [view for view in VIEWS if view.name in words]


def _not_recorded(subject: JudgedSubject, named: Sequence[SqlView]) -> list[str]:
    """Views of which the captures hold nothing: no rows would read as none happened."""
    empty = [view for view in named if not subject.rows_in(view.name)]
    if not empty:
        # What was recorded is known only after the whole capture was judged.
        return []
    missing = {*subject.opened.coverage.missing}
    if subject.opened.manifest is None:
        missing |= {view.name for view in VIEWS if view.needs == "run"}
    return [view.name for view in empty if view.name in missing]


def _abstained(reason: str | None) -> ToolAnswer:
    return ToolAnswer(status="abstained", reason=reason)


def _no_cause(diagnosis: Diagnosis) -> str:
    return f"no cause was identified; verdict: {as_data(diagnosis.verdict.text, LONGEST_TEXT)}"


def _missing(diagnosis: Diagnosis) -> str | None:
    """Why the evidence does not hold an answer."""
    if not diagnosis.coverage.recorded:
        return "no capture was recorded, so there is nothing to judge; a run's numbers are those of its clean pass"
    if diagnosis.verdict.kind not in NO_EVIDENCE:
        return None
    missing = ", ".join(as_data(what) for what in diagnosis.coverage.missing)
    return f"{as_data(diagnosis.verdict.text, LONGEST_TEXT)}{f'; not recorded: {missing}' if missing else ''}"


def _ms(time_ns: int) -> float:
    return round(time_ns / 1e6, 6)


def _percent(part: float, whole: float) -> float:
    return round(100.0 * part / whole, 2) if whole else 0.0


def _optional(text: str | None, limit: int = LONGEST_TEXT) -> str | None:
    return None if not text else as_data(text, limit)


def _subject_row(subject: JudgedSubject, diagnosis: Diagnosis) -> SubjectRow:
    verdict, program, coverage = diagnosis.verdict, diagnosis.program, diagnosis.coverage
    return SubjectRow(
        source=as_data(subject.name),
        verdict=as_data(verdict.text, LONGEST_TEXT),
        verdict_kind=verdict.kind,
        rule=verdict.rule,
        scope=_optional(verdict.scope),
        hottest_kernel=_optional(verdict.hottest_kernel),
        framework=as_data(program.framework),
        engine=_optional(program.engine),
        gpu=_optional(program.gpu_name),
        ranks=program.ranks_given,
        traits=program.traits,
        recorded=tuple(as_data(what) for what in coverage.recorded),
        not_recorded=tuple(as_data(what) for what in coverage.missing),
        unrecorded_pct=round(100.0 * coverage.unrecorded_share, 2),
        findings=len(diagnosis.claims),
        numbers={as_data(name): value for name, value in sorted(subject.numbers.items())[:NUMBERS_SHOWN]},
    )


def _scope_row(scope: ScopeRecord) -> ScopeRow:
    cells = sorted(scope.cells, key=lambda cell: (-cell.time_ns, cell.id))[:PARTS_SHOWN]
    return ScopeRow(
        id=as_data(scope.id),
        kind=scope.kind,
        wall_ms=_ms(scope.wall_ns),
        instances=scope.instances,
        clean=scope.clean,
        parts_pct={as_data(cell.id): _percent(cell.time_ns, scope.wall_ns) for cell in cells},
        kernels_pct={
            as_data(kernel.short_name): _percent(kernel.own_ns, scope.wall_ns)
            for kernel in scope.kernels[:KERNELS_SHOWN]
        },
    )


def _finding_row(number: int, finding: Finding) -> FindingRow:
    return FindingRow(
        number=number,
        rule=finding.rule,
        title=as_data(finding.title, LONGEST_TEXT),
        scope=as_data(finding.scope),
        share_pct=None if finding.share is None else round(100.0 * finding.share, 2),
        saves_ms=finding.saves_ms,
        max_gain=finding.max_gain,
        confidence=finding.confidence,
        is_one_time=finding.is_one_time,
    )


def _explained(number: int, finding: Finding) -> ExplainedFinding:
    cells = sorted(finding.cells.items(), key=lambda item: (-item[1], item[0]))[:PARTS_SHOWN]
    return ExplainedFinding(
        finding=_finding_row(number, finding),
        fix=as_data(finding.remedy, LONGEST_TEXT),
        refuted_by=as_data(finding.refutes, LONGEST_TEXT),
        lower_bound=_optional(finding.floor),
        lower_bound_ms=None if finding.floor_ns is None else _ms(finding.floor_ns),
        at_stake_ms=None if finding.stake_ns is None else _ms(finding.stake_ns),
        cells_ms={as_data(name): _ms(time_ns) for name, time_ns in cells},
        caveat=_optional(finding.caveat),
        range=_optional(finding.range_name),
        experiments=finding.experiments,
        documentation=finding.doc,
    )

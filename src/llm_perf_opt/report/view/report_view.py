"""The whole view of a run: what every renderer reads and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.core.names import DIAGNOSIS_FILE
from llm_perf_opt.diagnosis.diagnosis_document import Diagnosis
from llm_perf_opt.diagnosis.facts import RunFacts, Unknown
from llm_perf_opt.diagnosis.run import diagnose_run
from llm_perf_opt.diagnosis.waterfall import Waterfall, build_waterfall
from llm_perf_opt.report.run_facts import gather, joined_ncu
from llm_perf_opt.report.run_files import EarlierRun, Found, RunFiles
from llm_perf_opt.report.view.cost import million_tokens
from llm_perf_opt.report.view.findings import FindingView, findings_view
from llm_perf_opt.report.view.flame import FlameView, flame_view
from llm_perf_opt.report.view.headline import (
    HeadlineView,
    answer_of,
    capture_headline,
    headline_of,
    load_headline,
)
from llm_perf_opt.report.view.kernels_view import KernelsView, kernels_view
from llm_perf_opt.report.view.ledger_view import ledger_section
from llm_perf_opt.report.view.memory_view import MemoryView, memory_view
from llm_perf_opt.report.view.modules import ModulesView, modules_view
from llm_perf_opt.report.view.program_view import NO_PHASES_MARKED, phases_section, program_headline
from llm_perf_opt.report.view.provenance_view import Failure, ProvenanceView, failures_view, provenance_view
from llm_perf_opt.report.view.roofline_view import RooflineView, roofline_view
from llm_perf_opt.report.view.sections_view import SectionView, diagnosis_section, sections_view
from llm_perf_opt.report.view.shown import Shown
from llm_perf_opt.report.view.subject_view import PageSubject, phases_shown, subject_of
from llm_perf_opt.report.view.timeline_view import TimelineView, timeline_view
from llm_perf_opt.report.view.waterfall_view import RequestView, WaterfallView, request_view, waterfalls_view
from llm_perf_opt.report.view.what_if_view import WhatIfView, what_if_view

# The parts of a page between its headline and what stages add, in their order.
PARTS = ("waterfall", "findings", "kernels", "roofline", "timeline", "modules", "memory")


@dataclass(frozen=True, kw_only=True)
class ReportView:
    """`steps` is how often a phase's step happens in a request. `damage`: what of the run is missing or cannot be read.

    `sections` are those of the stages, `first_sections` those of a program's phases.
    """

    subject: PageSubject
    headline: HeadlineView
    waterfalls: tuple[WaterfallView, ...]
    what_if: WhatIfView | None
    request: RequestView | None
    steps: Mapping[str, float | None]
    findings: tuple[FindingView, ...]
    kernels: KernelsView
    roofline: RooflineView
    timeline: TimelineView
    modules: ModulesView
    memory: MemoryView
    ledger: SectionView | None
    first_sections: tuple[SectionView, ...]
    sections: tuple[SectionView, ...]
    flames: tuple[FlameView, ...]
    provenance: ProvenanceView
    failures: tuple[Failure, ...]
    earlier: tuple[EarlierRun, ...]
    ncu: NcuAnalysis | None
    has_trace: bool
    present: frozenset[str]
    diagnosis: Diagnosis
    damage: tuple[str, ...] = ()

    @property
    def is_bare(self) -> bool:
        """Of given captures, which say nothing of the rest."""
        return self.subject.is_bare

    @property
    def is_load_alone(self) -> bool:
        """A server was measured from outside, without a capture."""
        return self.subject.is_load_alone

    @property
    def is_crashed(self) -> bool:
        """A program that did not run to its end: there is nothing else to show."""
        return self.subject.crashed is not None

    @property
    def no_bounds(self) -> Unknown | None:
        """Of a program whose model is not named, how to name it."""
        return self.subject.no_bounds

    @cached_property
    def parts(self) -> tuple[str, ...]:
        """The parts that are shown: of given captures what they know, of a run what is not missing."""
        if not self.subject.has_parts:
            return ()
        if self.is_bare:
            return tuple(part for part in PARTS if self._knows(part))
        empty = {part for part, _, _ in self.empty}
        found = tuple(part for part in PARTS if part not in empty)
        # That nothing was found is reported on the first screen, where something was measured.
        is_empty = found == ("findings",) and self.request is None
        return found if self.findings or is_empty else tuple(part for part in found if part != "findings")

    def _knows(self, part: str) -> bool:
        known = {
            "waterfall": any(fall.is_placed for fall in self.waterfalls),
            "findings": len(self.findings) > 0,
            "kernels": self.kernels.missing is None,
            "roofline": self.roofline.missing is None,
            "timeline": self.timeline.missing is None,
            "modules": len(self.modules.phases) > 0 or len(self.modules.operators) > 0,
            "memory": bool(self.memory.power) or any(isinstance(cell, Shown) for _, cell in self.memory.rows),
        }
        return known[part]

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured and nothing predicted."""
        return not set(self.parts) - {"findings"} and self.request is None

    @property
    def can_ask_what_if(self) -> bool:
        """Whether predictions of other choices can be drawn: next to a waterfall."""
        return self.what_if is not None and "waterfall" in self.parts

    @property
    def before_ledger(self) -> str | None:
        """The part that the time ledger follows: the findings, or the waterfall where there are none."""
        return next((part for part in ("findings", "waterfall") if part in self.parts), None)

    @property
    def unjudged(self) -> str | None:
        """Why no cause could be found: a program that marks no phases."""
        if self.subject.kind != "program" or self.is_crashed or self.subject.maps_phases:
            return None
        return None if self.first_sections or self.waterfalls or self.findings else NO_PHASES_MARKED

    @property
    def first_finding(self) -> FindingView | None:
        """What to do first: what the verdict promises, else what could save most, though it may be a guess."""
        promised = [f for f in self.findings if self.headline.promised in f.keys]
        return next(iter((*promised, *self.findings)), None)

    @property
    def absent(self) -> tuple[tuple[str, str, Unknown], ...]:
        """Parts there is nothing to show in, by name and title, with the reason: a list says it better than boxes.

        None of existing captures, for which they were not requested; one word for all that needs
        the model of an unnamed program.
        """
        if self.is_bare:
            return ()
        if self.no_bounds is None:
            return self.empty
        needs_model = ("roofline", "memory")
        others = tuple(part for part in self.empty if part[0] not in needs_model)
        return (*others, ("bounds", "Bounds", self.no_bounds))

    @property
    def empty(self) -> tuple[tuple[str, str, Unknown], ...]:
        """All parts there is nothing to show in."""
        parts = (
            ("waterfall", "Waterfall", self._no_waterfall()),
            ("kernels", "Kernels", self.kernels.missing),
            ("roofline", "Roofline", self.roofline.missing),
            ("timeline", "Timeline", self.timeline.missing),
            ("modules", "Modules and operators", self.modules.missing),
            ("memory", "Memory and power", self.memory.missing),
        )
        # A failure is reported once, at the top.
        return tuple(
            (key, title, why if why.brief is None else Unknown(reason=why.brief, enable=why.enable))
            for key, title, why in parts
            if why is not None
        )

    def _no_waterfall(self) -> Unknown | None:
        if any(fall.is_known for fall in self.waterfalls):
            return None
        reasons = [row.missing for fall in self.waterfalls for row in fall.rows if row.key == "wall" and row.missing]
        return reasons[0] if reasons else Unknown(reason="no phase was timed without a profiler")


def build_view(files: RunFiles) -> ReportView:
    """Decide everything once."""
    ncu = joined_ncu(files)
    facts = gather(files, ncu)
    subject = subject_of(files)
    falls = tuple(build_waterfall(phase) for phase in facts.phases.values())
    diagnosis = diagnose_run(
        facts,
        files.capture.content if isinstance(files.capture, Found) else None,
        files.trace.content if isinstance(files.trace, Found) else None,
        files.measured_gains,
        files.ncu.content if isinstance(files.ncu, Found) else None,
    )
    kernels = kernels_view(files, facts, ncu)
    modules = modules_view(files, subject)
    ledger = ledger_section(diagnosis, source=DIAGNOSIS_FILE)
    return ReportView(
        subject=subject,
        headline=_headline(files, facts, falls, diagnosis, modules, subject),
        waterfalls=waterfalls_view(falls, facts, subject),
        what_if=what_if_view(files),
        request=request_view(files, facts, subject),
        steps={name: phase.steps_per_request for name, phase in facts.phases.items()},
        findings=findings_view(diagnosis.claims, facts, diagnosis.measured_gains, million_tokens(files)),
        diagnosis=diagnosis,
        kernels=kernels,
        roofline=roofline_view(files, facts, kernels),
        timeline=timeline_view(files),
        modules=modules,
        memory=memory_view(files, facts, subject),
        first_sections=phases_section(files),
        ledger=None if ledger is None or not subject.has_parts else diagnosis_section(ledger),
        sections=sections_view(files),
        flames=flame_view(files),
        provenance=provenance_view(files, facts, _sources(files), diagnosis.claims, subject),
        failures=failures_view(files),
        earlier=files.earlier,
        ncu=ncu,
        has_trace=bool(files.timelines),
        present=files.present,
        damage=files.damage,
    )


def _headline(
    files: RunFiles,
    facts: RunFacts,
    falls: tuple[Waterfall, ...],
    diagnosis: Diagnosis,
    modules: ModulesView,
    subject: PageSubject,
) -> HeadlineView:
    answer = answer_of(files, facts, falls, diagnosis)
    if subject.kind == "load":
        return load_headline(files, facts, answer, modules, subject)
    if subject.kind == "program":
        return program_headline(files, facts, answer, modules, subject)
    if subject.kind == "capture":
        has_phases = len(phases_shown(subject, facts)) > 0
        return capture_headline(files, facts, answer, modules, has_phases=has_phases)
    return headline_of(files, facts, answer, modules)


def _sources(files: RunFiles) -> tuple[str, ...]:
    found = [files.metrics, files.static, files.capture, files.ncu, files.operators, files.clocks, *files.timelines]
    return tuple(f.source for f in found if isinstance(f, Found))

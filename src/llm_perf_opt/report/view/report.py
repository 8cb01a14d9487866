"""The whole view of a run: what every renderer reads and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from llm_perf_opt.analysis.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.core.names import STATIC_ANALYSIS
from llm_perf_opt.diagnosis.document import Diagnosis
from llm_perf_opt.diagnosis.facts import Unknown
from llm_perf_opt.diagnosis.run import diagnose_run
from llm_perf_opt.diagnosis.waterfall import build_waterfall
from llm_perf_opt.report.facts import gather, joined_ncu
from llm_perf_opt.report.run_files import EarlierRun, Found, RunFiles
from llm_perf_opt.report.view.captured import load_test
from llm_perf_opt.report.view.findings import FindingView, findings_view
from llm_perf_opt.report.view.flame import FlameView, flame_view
from llm_perf_opt.report.view.headline import HeadlineView, headline
from llm_perf_opt.report.view.kernels import KernelsView, kernels_view
from llm_perf_opt.report.view.memory import MemoryView, memory_view
from llm_perf_opt.report.view.modules import ModulesView, modules_view, operators_split
from llm_perf_opt.report.view.program import (
    NO_PHASES_MARKED,
    PARTS,
    crashed_stage,
    has_no_model,
    is_bare,
    maps_phases,
    memory_of_capture,
    modules_of_capture,
    modules_of_program,
    of_capture,
    of_program,
    parts_of_capture,
    phases_section,
    phases_shown,
    program_of,
    program_wall_ms,
    waterfall_of_capture,
    waterfalls_without_bounds,
    why_no_bounds,
    why_no_distance_of_program,
    without_missing_parts,
)
from llm_perf_opt.report.view.provenance import Failure, ProvenanceView, failures_view, provenance_view
from llm_perf_opt.report.view.roofline import RooflineView, roofline_view
from llm_perf_opt.report.view.sections import SectionView, sections_view
from llm_perf_opt.report.view.timeline import TimelineView, timeline_view
from llm_perf_opt.report.view.waterfall import RequestView, WaterfallView, request_view, waterfall_view


@dataclass(frozen=True, kw_only=True)
class ReportView:
    """`parts` are those shown: none where a server was measured from outside and nothing looked inside it.

    `is_bare`: of captures made elsewhere, which say nothing of the rest. `steps` is how often a phase's step happens in
    a request. `damage`: what of the run is missing or cannot be read. `no_bounds`: of a program whose model nobody
    named, how to name it. `is_crashed`: of a program that did not run to its end, there is nothing else to show.
    `unjudged`: why no rule could find anything.
    """

    headline: HeadlineView
    waterfalls: tuple[WaterfallView, ...]
    request: RequestView | None
    steps: Mapping[str, float | None]
    findings: tuple[FindingView, ...]
    kernels: KernelsView
    roofline: RooflineView
    timeline: TimelineView
    modules: ModulesView
    memory: MemoryView
    first_sections: tuple[SectionView, ...]
    sections: tuple[SectionView, ...]
    flames: tuple[FlameView, ...]
    provenance: ProvenanceView
    failures: tuple[Failure, ...]
    earlier: tuple[EarlierRun, ...]
    ncu: NcuAnalysis | None
    has_trace: bool
    present: frozenset[str]
    damage: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS
    is_bare: bool = False
    no_bounds: Unknown | None = None
    is_crashed: bool = False
    unjudged: str | None = None
    diagnosis: Diagnosis | None = None

    @property
    def is_load_alone(self) -> bool:
        return not self.parts and not self.is_crashed

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured and nothing predicted."""
        return not set(self.parts) - {"findings"} and self.request is None

    @property
    def first_finding(self) -> FindingView | None:
        """What to do first: what the verdict promises, else what could save most, though it may be a guess."""
        promised = [f for f in self.findings if self.headline.promised in (f.title, *f.also)]
        return next(iter((*promised, *self.findings)), None)

    @property
    def absent(self) -> tuple[tuple[str, str, Unknown], ...]:
        """Parts there is nothing to show in, by name and title, with the reason: a list says it better than boxes.

        None of captures made elsewhere, of which nobody said that they should have them; one word for all that needs
        the model of a program nobody named.
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
        # A failure is told once, at the top.
        told = {f"stage {s.name} failed: {s.reason}": f"stage {s.name} failed" for s in self.provenance.stages}
        return tuple(
            (key, title, replace(why, reason=told.get(why.reason, why.reason)))
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
    waterfalls = tuple(build_waterfall(phase) for phase in facts.phases.values())
    diagnosis = diagnose_run(
        facts,
        files.capture.content if isinstance(files.capture, Found) else None,
        files.trace.content if isinstance(files.trace, Found) else None,
    )
    found = diagnosis.claims
    kernels = kernels_view(files, facts, ncu)
    view = ReportView(
        headline=of_program(headline(files, facts, waterfalls, diagnosis), files, facts),
        waterfalls=tuple(
            waterfall_view(w, facts.phases[w.phase].steps_per_request)
            for w in waterfalls
            if w.phase in phases_shown(files, facts)
        ),
        request=request_view(files, facts),
        steps={name: phase.steps_per_request for name, phase in facts.phases.items()},
        findings=findings_view(found, facts),
        diagnosis=diagnosis,
        kernels=kernels,
        roofline=roofline_view(files, facts, kernels),
        timeline=timeline_view(files),
        modules=modules_view(files),
        memory=memory_view(files, facts),
        first_sections=phases_section(files),
        sections=sections_view(files),
        flames=flame_view(files),
        provenance=provenance_view(files, facts, _sources(files), found),
        failures=failures_view(files),
        earlier=files.earlier,
        ncu=ncu,
        has_trace=bool(files.timelines),
        present=files.present,
        damage=files.damage,
        parts=() if load_test(files) is not None and isinstance(files.capture, Unknown) else PARTS,
    )
    if view.is_load_alone:
        return replace(view, provenance=replace(view.provenance, not_run=()))
    if is_bare(files) and view.parts:
        return _with_split(_of_capture(view))
    if program_of(files) is not None:
        view = _of_program(view, files)
    empty = {part for part, _, _ in view.empty}
    view = replace(view, parts=tuple(part for part in view.parts if part not in empty))
    # That nothing was found is said on the first screen, where something was measured.
    dropped = () if view.findings or view.is_empty else ("findings",)
    view = replace(view, parts=tuple(part for part in view.parts if part not in dropped))
    return _with_split(view, wall_ms=program_wall_ms(files))


def _with_split(view: ReportView, *, wall_ms: float | None = None) -> ReportView:
    """Where no clean time says where it goes, the operators do."""
    if view.headline.split is not None or not view.parts:
        return view
    return replace(view, headline=replace(view.headline, split=operators_split(view.modules, wall_ms=wall_ms)))


def _of_program(view: ReportView, files: RunFiles) -> ReportView:
    """Of a program of the user's own: its phases, and nothing only our own inference has."""
    view = replace(
        view,
        request=without_missing_parts(view.request),
        modules=modules_of_program(view.modules),
        # How to have its bounds is said once, and not by naming a stage that cannot help.
        provenance=replace(
            view.provenance, not_run=tuple(name for name in view.provenance.not_run if name != STATIC_ANALYSIS)
        ),
    )
    if crashed_stage(files) is not None:
        return replace(view, parts=(), is_crashed=True)
    if not view.first_sections and not view.waterfalls and not view.findings and not maps_phases(files):
        view = replace(view, unjudged=NO_PHASES_MARKED)
    if has_no_model(files):
        why = why_no_bounds(files)
        return replace(
            view,
            headline=replace(view.headline, no_distance=why_no_distance_of_program(view.headline, why)),
            waterfalls=waterfalls_without_bounds(view.waterfalls),
            no_bounds=why,
        )
    return view


def _of_capture(view: ReportView) -> ReportView:
    """Of a capture made elsewhere: only what it can know."""
    shown = (view.waterfalls, view.kernels, view.roofline, view.timeline, view.modules, view.memory)
    return replace(
        view,
        headline=of_capture(view.headline, phases=len(view.waterfalls) > 0),
        request=without_missing_parts(view.request),
        waterfalls=tuple(waterfall_of_capture(fall) for fall in view.waterfalls),
        modules=modules_of_capture(view.modules),
        memory=memory_of_capture(view.memory),
        provenance=replace(view.provenance, not_run=()),
        parts=parts_of_capture(*shown, has_findings=len(view.findings) > 0),
        is_bare=True,
    )


def _sources(files: RunFiles) -> tuple[str, ...]:
    found = [files.metrics, files.static, files.capture, files.ncu, files.operators, files.clocks, *files.timelines]
    return tuple(f.source for f in found if isinstance(f, Found))

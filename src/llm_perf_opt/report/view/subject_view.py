"""What a page is of: our own run model loop, a user's program, given captures, kernels alone, or a served load.

Each subject shows the parts that apply to it; nothing is taken off a page after it was made.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llm_perf_opt.core.names import DECODE, PREFILL, TORCH_PROFILER
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.diagnosis.facts import GpuFacts, Known, PhaseFacts, RunFacts, Unknown
from llm_perf_opt.report.run_files import Found, RunFiles

Kind = Literal["model", "program", "capture", "load"]
CLEAN_OPTION = {PREFILL: "--clean-prefill-ms", DECODE: "--clean-tpot-ms"}
LOAD_STAGE = "bench"


@dataclass(frozen=True, kw_only=True)
class PageSubject:
    """`command` is the program's own, `crashed` the stage whose clean pass it did not survive.

    `has_model`: it is known which model ran, so that there can be bounds. `has_capture`: a profiler recorded it.
    `is_given`: `llm-perf analyze` read what was measured elsewhere.
    """

    kind: Kind
    command: tuple[str, ...] = ()
    crashed: StageRecord | None = None
    load: StageRecord | None = None
    has_model: bool = True
    has_capture: bool = True
    is_given: bool = False
    failed_under_torch: bool = False
    maps_phases: bool = False

    @property
    def is_bare(self) -> bool:
        """Whether captures were given: what is not in them was not forgotten, it cannot be known."""
        return self.kind == "capture"

    @property
    def is_load_alone(self) -> bool:
        return self.kind == "load" and not self.has_capture

    @property
    def has_parts(self) -> bool:
        """Whether there is anything to show below the headline."""
        return not self.is_load_alone and self.crashed is None

    @property
    def no_bounds(self) -> Unknown | None:
        """Of a program that ran and whose model is not named, with the command that names it."""
        if self.kind != "program" or self.has_model or self.crashed is not None:
            return None
        given = shlex.join(self.command)
        return Unknown(
            reason="the program does not say which model it runs", enable=f"llm-perf run model=NAME -- {given}"
        )


MODEL = PageSubject(kind="model")


def subject_of(files: RunFiles) -> PageSubject:
    """By the manifest and the files there are."""
    command = program_of(files)
    load = files.manifest.stage(LOAD_STAGE)
    kind: Kind = "model"
    if load is not None:
        kind = "load"
    elif is_given(files):
        kind = "capture"
    elif command:
        kind = "program"
    return PageSubject(
        kind=kind,
        command=command,
        crashed=_crashed_stage(files) if kind == "program" else None,
        load=load,
        has_model=isinstance(files.static, Found),
        has_capture=isinstance(files.capture, Found),
        is_given=is_given(files),
        failed_under_torch=kind == "program" and _failed_under_torch(files),
        maps_phases=_maps_phases(files),
    )


def is_given(files: RunFiles) -> bool:
    """Whether `llm-perf analyze` made the run, of captures or results that were given."""
    return "analyze" in files.manifest.config


def program_of(files: RunFiles) -> tuple[str, ...]:
    """The command that was run in the place of our own inference; empty where none was."""
    workload = files.manifest.config.get("workload")
    command = workload.get("command") if isinstance(workload, Mapping) else None
    return tuple(str(word) for word in command) if isinstance(command, list | tuple) else ()


def _maps_phases(files: RunFiles) -> bool:
    """Whether the phases are ranges of the program's own, by `workload.phases` or a preset."""
    workload = files.manifest.config.get("workload")
    return isinstance(workload, Mapping) and bool(workload.get("phases") or workload.get("phase_preset"))


def _crashed_stage(files: RunFiles) -> StageRecord | None:
    """The stage whose clean pass the program did not survive; None where it ran to its end once."""
    if isinstance(files.metrics, Found):
        return None
    return next((s for s in files.manifest.stages if s.status == "failed" and s.declared.runs_model), None)


def _failed_under_torch(files: RunFiles) -> bool:
    """Whether a program that ran to its end without a profiler did not with torch.profiler inside."""
    stage = files.manifest.stage(TORCH_PROFILER)
    if stage is None or stage.status != "failed" or not isinstance(files.metrics, Found):
        return False
    return bool(stage.commands) and stage.commands[-1].exit_code != 0


def phases_shown(subject: PageSubject, facts: RunFacts) -> tuple[str, ...]:
    """The phases a page has: both for our own inference, of a program those timed, of a capture those in it."""
    if subject.kind == "capture":
        return tuple(name for name, phase in facts.phases.items() if _is_known(phase))
    if subject.kind == "program":
        return tuple(name for name, phase in facts.phases.items() if isinstance(phase.wall, Known))
    return tuple(facts.phases)


def _is_known(phase: PhaseFacts) -> bool:
    return isinstance(phase.gpu, GpuFacts) or isinstance(phase.wall, Known) or isinstance(phase.datasheet, Known)

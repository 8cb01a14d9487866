"""What is known about the program observed, found once: framework, engine, what it does, and on what."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.analysis.gaps.report import IdleReport
from llm_perf_opt.diagnosis.document import ProgramRecord
from llm_perf_opt.diagnosis.evidence import CaptureEvidence
from llm_perf_opt.diagnosis.facts import RunFacts


@dataclass(frozen=True, kw_only=True)
class Program:
    """`traits` are what advice asks for: `torch`, `training`, `compiled`, `graphs`, `engine`, `vLLM`, …"""

    framework: str
    engine: str | None
    gpu_name: str | None
    world_size: int
    ranks_given: int
    traits: frozenset[str]

    def has(self, *traits: str) -> bool:
        return self.traits.issuperset(traits)


def program_of(evidence: CaptureEvidence) -> Program:
    """By the names, kernels and calls of its captures."""
    report = evidence.report
    return Program(
        framework=report.framework,
        engine=report.engine,
        gpu_name=evidence.gpu_name,
        world_size=evidence.world_size,
        ranks_given=len(evidence.timelines),
        traits=frozenset(_traits(report, evidence)),
    )


def _traits(report: IdleReport, evidence: CaptureEvidence) -> Sequence[str]:
    classes = {row.kernel_class for row in evidence.kernels}
    known = {
        report.framework: True,
        report.engine or "": report.engine is not None,
        "engine": report.engine is not None,
        "training": report.trains,
        "inference": not report.trains,
        "compiled": report.compiled,
        "hip": report.is_hip,
        "no_graphs": report.without_graphs,
        "graphs": evidence.has_graphs,
        "attention": "attention" in classes,
        "decoder": "attention" in classes and not report.trains,
        "convolution": "convolution" in classes,
        "frees_memory": any("free" in row.call.lower() for row in report.memory),
        "several_ranks": evidence.world_size > 1,
        "system_calls": any(len(t.system) for t in evidence.timelines),
        "frames": any(len(t.frames) for t in evidence.timelines),
        "torch_trace": any(t.kind == "torch" for t in evidence.timelines),
        "rocpd": any(t.kind == "rocpd" for t in evidence.timelines),
        "nsys_trace": any(t.kind == "nsys" for t in evidence.timelines),
    }
    return [trait for trait, is_true in known.items() if is_true]


def program_of_record(record: ProgramRecord) -> Program:
    """As an earlier analysis wrote it down."""
    return Program(
        framework=record.framework,
        engine=record.engine,
        gpu_name=record.gpu_name,
        world_size=record.world_size,
        ranks_given=record.ranks_given,
        traits=frozenset(record.traits),
    )


def program_of_run(facts: RunFacts, captured: Program | None) -> Program:
    """Our own loop: torch, inference; with what the capture showed where there is one."""
    traits = {"torch", "inference", "attention", "decoder", "own_loop", "cpu" if facts.is_cpu else "gpu"}
    if captured is not None:
        traits |= captured.traits - {"other", "training"}
    return Program(
        framework="torch",
        engine=None,
        gpu_name=captured.gpu_name if captured is not None else None,
        world_size=captured.world_size if captured is not None else 1,
        ranks_given=captured.ranks_given if captured is not None else 1,
        traits=frozenset(traits),
    )

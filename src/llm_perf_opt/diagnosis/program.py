"""What is known about the program observed, found once: framework, engine, what it does, and on what.

Patterns of names are data: `program.toml`.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.evidence import CaptureEvidence
from llm_perf_opt.diagnosis.gaps.gap_verdict import means

if TYPE_CHECKING:
    from llm_perf_opt.diagnosis.facts import RunFacts

OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One thing a capture may show: patterns of names in it, and of its devices."""

    name: str
    names: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Patterns:
    """What `program.toml` holds."""

    engine: tuple[_Row, ...]
    framework: tuple[_Row, ...]
    trait: tuple[_Row, ...]


@cache
def _patterns() -> _Patterns:
    text = Path(__file__).with_name("program.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Patterns)


def program_of(evidence: CaptureEvidence) -> Program:
    """By the names, kernels and calls of its captures; a server that was started for it is known by name."""
    names = _Names(evidence)
    framework = "torch" if names.is_torch_trace else names.first(_patterns().framework) or OTHER
    engine = evidence.engine or names.first(_patterns().engine)
    return Program(
        framework=framework,
        engine=engine,
        gpu_name=evidence.gpu_name,
        world_size=evidence.world_size,
        ranks_given=len(evidence.timelines),
        traits=tuple(sorted(set(_traits(evidence, names, framework, engine)))),
    )


class _Names:
    """The names in captures, searched for patterns."""

    def __init__(self, evidence: CaptureEvidence) -> None:
        self._names = {name for timeline in evidence.timelines for name in timeline.names}
        self._devices = {device.name for timeline in evidence.timelines for device in timeline.devices}
        self.is_torch_trace = any(timeline.kind == "torch" for timeline in evidence.timelines)

    def first(self, rows: Sequence[_Row]) -> str | None:
        """The first row of which a pattern is found."""
        return next((row.name for row in rows if self.has(row)), None)

    def has(self, row: _Row) -> bool:
        found = ((row.names, self._names), (row.devices, self._devices))
        return any(_matches(patterns, texts) for patterns, texts in found if patterns)

    def traits(self) -> list[str]:
        return [row.name for row in _patterns().trait if self.has(row)]


def _matches(patterns: Sequence[str], texts: set[str]) -> bool:
    mark = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    return any(mark.search(text) for text in texts)


def _traits(evidence: CaptureEvidence, names: _Names, framework: str, engine: str | None) -> Sequence[str]:
    classes: dict[str, int] = {}
    for row in evidence.kernels:
        classes[row.kernel_class] = classes.get(row.kernel_class, 0) + row.total_ns
    # Attention between convolutions is that of images.
    is_language = 0 < classes.get("attention", 0) >= classes.get("convolution", 0)
    timelines, found = evidence.timelines, names.traits()
    trains = "training" in found
    known = {
        framework: True,
        engine or OTHER: engine is not None,
        "engine": engine is not None,
        "inference": not trains,
        "graphs": evidence.has_graphs,
        "attention": "attention" in classes,
        "decoder": is_language and not trains,
        "convolution": "convolution" in classes,
        "frees_memory": any(means(row.call, "frees") for row in evidence.report.memory),
        "several_ranks": evidence.world_size > 1,
        "system_calls": any(len(t.system) for t in timelines),
        "frames": any(len(t.frames) for t in timelines),
        "torch_trace": names.is_torch_trace,
        "rocpd": any(t.kind == "rocpd" for t in timelines),
        "nsys_trace": any(t.kind == "nsys" for t in timelines),
    }
    return [*found, *(trait for trait, is_true in known.items() if is_true)]


def program_of_run(facts: "RunFacts", captured: Program | None) -> Program:
    """Our own loop: torch, inference; with what the capture showed where there is one."""
    traits = {"torch", "inference", "attention", "decoder", "own_loop", "cpu" if facts.is_cpu else "gpu"}
    if captured is not None:
        traits |= set(captured.traits) - {OTHER, "training"}
    return Program(
        framework="torch",
        engine=None,
        gpu_name=captured.gpu_name if captured is not None else None,
        world_size=captured.world_size if captured is not None else 1,
        ranks_given=captured.ranks_given if captured is not None else 1,
        traits=tuple(sorted(traits)),
    )

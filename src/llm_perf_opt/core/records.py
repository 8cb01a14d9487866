"""Frozen result types that stages produce and reports read."""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from llm_perf_opt.core.names import DIRECT_INFERENCE, GIVEN, HOST_SAMPLES, NCU, NSYS, STATIC_ANALYSIS, TORCH_PROFILER
from llm_perf_opt.core.sections import Section

_PROGRESS = re.compile(r"llm-perf(?: (?P<done>\d+)/(?P<of>\d+))?: (?P<text>.*)")
# The file in which a child of ours notes when the steps of its work begin.
STEPS_FILE = "LLM_PERF_STEPS_FILE"
BEFORE_FIRST_STEP = "start"
LAST_STEP = "end"
StageStatus = Literal["ok", "failed", "skipped"]
RunStatus = Literal["running", "ok", "failed", "interrupted"]
# Operations of a year on every computer there is are fewer.
LARGEST_VALUE = 1e30
# Nothing takes less than no time, or holds less than nothing; a difference or a temperature may be below zero.
NEVER_NEGATIVE = frozenset(("ns", "us", "ms", "s", "bytes", "tokens", "tokens/s", "FLOP", "parameters"))


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How far the values lie apart whose median is reported: eight of ten are between `p10` and `p90`."""

    p10: float
    p90: float
    n: int


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number with its unit and how it was obtained, or no number and the reason why.

    `how` is a short phrase such as "clean pass, median of 30"; `per` names the denominator of a ratio; `source` is the
    file inside the run directory the value can be checked against. `spread` is there where the value is a median. What
    is not a finite number, or one that nothing on earth has (a time below zero), is not a value: a manifest may be
    anyone's.
    """

    value: float | int | str | None
    unit: str
    how: str
    per: str | None = None
    source: str | None = None
    reason: str | None = None
    spread: Spread | None = None

    def __post_init__(self) -> None:
        if self.value is None and not self.reason:
            raise ValueError("a metric without a value needs a reason")
        least = 0.0 if self.unit in NEVER_NEGATIVE else -LARGEST_VALUE
        if isinstance(self.value, int | float) and not least <= self.value <= LARGEST_VALUE:
            object.__setattr__(self, "value", None)
            object.__setattr__(self, "reason", "the number reported for it is not finite, or absurd")
        if self.spread is not None and not least <= self.spread.p10 <= self.spread.p90 <= LARGEST_VALUE:
            object.__setattr__(self, "spread", None)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a command: steps done of the total, where that is known. Our children log it as a line."""

    text: str
    done: int | None = None
    of: int | None = None

    @property
    def line(self) -> str:
        count = "" if self.done is None or self.of is None else f" {self.done}/{self.of}"
        return f"llm-perf{count}: {self.text}"


def read_progress(line: str) -> Progress | None:
    """The progress that a line of a log states; None for output of libraries and tools."""
    found = _PROGRESS.fullmatch(line)
    if found is None:
        return None
    done, of = found["done"], found["of"]
    return Progress(text=found["text"], done=int(done) if done else None, of=int(of) if of else None)


@dataclass(frozen=True, kw_only=True)
class CommandStep:
    """A part of what a command of ours did: importing, loading, a pass over the samples."""

    name: str
    duration_s: float


@dataclass(frozen=True, kw_only=True)
class _StepBegan:
    name: str
    at_ns: int


def begin_step(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """In a child: report what it does from now on. Of several ranks only the first one reports."""
    path = environ.get(STEPS_FILE)
    if path and environ.get("RANK", "0") == "0":
        with open(path, "ab") as file:
            file.write(msgspec.json.encode(_StepBegan(name=name, at_ns=time.monotonic_ns())) + b"\n")


def read_steps(path: Path, *, start_ns: int, end_ns: int) -> tuple[CommandStep, ...]:
    """What a command noted, with the time until its first step (it was being started) and after its last.

    None of a command that noted nothing. A step that came twice is reported once, with both times.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    began = msgspec.json.Decoder(_StepBegan)
    noted = [began.decode(line) for line in lines]
    moments = [_StepBegan(name=BEFORE_FIRST_STEP, at_ns=start_ns), *noted, _StepBegan(name="", at_ns=end_ns)]
    spent_ns: dict[str, int] = {}
    for step, after in pairwise(moments if noted else ()):
        spent_ns[step.name] = spent_ns.get(step.name, 0) + after.at_ns - step.at_ns
    return tuple(CommandStep(name=name, duration_s=round(ns / 1e9, 3)) for name, ns in spent_ns.items())


@dataclass(frozen=True, kw_only=True)
class StageFile:
    """A file a stage wrote: what it is for, and where (absolute here, relative to the run in the manifest)."""

    role: str
    path: Path


@dataclass(frozen=True, kw_only=True)
class CommandRecord:
    """One command as it was run. `exit_code` is None when we ended it ourselves.

    `label` says what it did; `steps` is how long the parts of it took, where it is a child of ours that notes them.
    """

    argv: tuple[str, ...]
    exit_code: int | None
    duration_s: float
    log: str | None = None
    timed_out: bool = False
    label: str = ""
    steps: tuple[CommandStep, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StageTraits:
    """What a stage declares about itself, so that others need not know it by name.

    `runs_model`: it runs the workload, whose files are checked before the run. `gives_clean_pass`: its metrics hold
    latencies measured without a profiler. `needs_our_model`: it is skipped where `workload.command` replaces our model.
    """

    runs_model: bool = False
    gives_clean_pass: bool = False
    needs_our_model: bool = False


# What the stages were when manifests did not record it yet.
_UNRECORDED_TRAITS = {
    STATIC_ANALYSIS: StageTraits(needs_our_model=True),
    TORCH_PROFILER: StageTraits(runs_model=True, gives_clean_pass=True),
    DIRECT_INFERENCE: StageTraits(runs_model=True, gives_clean_pass=True),
    NSYS: StageTraits(runs_model=True),
    NCU: StageTraits(runs_model=True),
    HOST_SAMPLES: StageTraits(runs_model=True),
    GIVEN: StageTraits(gives_clean_pass=True),
}


@dataclass(frozen=True, kw_only=True)
class StageOutput:
    """What a stage found. It cannot claim a status or a time: `pipeline/run.py` sets them.

    `sections` appear on the pages of the run after ours.
    """

    metrics: Mapping[str, Metric] = field(default_factory=dict)
    files: tuple[StageFile, ...] = ()
    notes: tuple[str, ...] = ()
    samples: tuple[Mapping[str, Any], ...] = ()
    sections: tuple[Section, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """One stage in the manifest. `reason` is set for every status but ok; `fingerprint` decides about reuse.

    `failure` is the reason without the path of a log, where that names one.

    `traits` is None in manifests of runs that did not record them.
    """

    name: str
    status: StageStatus
    reason: str | None = None
    started_at: str | None = None
    duration_s: float | None = None
    fingerprint: Mapping[str, str] | None = None
    commands: tuple[CommandRecord, ...] = ()
    files: tuple[StageFile, ...] = ()
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    traits: StageTraits | None = None
    sections: tuple[Section, ...] = ()
    failure: str | None = None

    @property
    def said(self) -> str:
        """The reason without where the log is: what a page says that links the log."""
        return self.failure or self.reason or ""

    @property
    def declared(self) -> StageTraits:
        """The traits recorded, or those the stage of this name had when none were recorded."""
        return self.traits or _UNRECORDED_TRAITS.get(self.name, StageTraits())

    def file(self, role: str) -> Path | None:
        """The first file with this role, or None."""
        return next((f.path for f in self.files if f.role == role), None)

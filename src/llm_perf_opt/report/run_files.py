"""Reads the files of a run a report is made from; one that is missing or unreadable becomes a stated reason."""

import csv
import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.capture.window import TimelineWindow
from llm_perf_opt.core.documents import ClockDocument, CounterDocument, GeneratedDocument, HostDocument, MetricsDocument
from llm_perf_opt.core.manifest import RunManifest, read_manifest
from llm_perf_opt.core.names import (
    DECODE,
    MANIFEST_FILE,
    MEASURED_GAINS_FILE,
    ROLE_WRITERS,
    STATIC_ANALYSIS,
    TORCH_PROFILER,
    WALL_METRIC,
    Role,
)
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.diagnosis.facts import Unknown
from llm_perf_opt.errors import ManifestError, ParseError
from llm_perf_opt.model.static.static_document import StaticDocument
from llm_perf_opt.report.samples import SampleLine, parse_samples, samples_file
from llm_perf_opt.system.files import read_limited, real_path, refuse_absurd_numbers

T = TypeVar("T")
LARGEST_PICTURE = 8 << 20
LARGEST_FILE = 1 << 30
MOST_FILES = 20_000
LOG_LINES, LOG_CHARACTERS = 25, 4_000
# What a page is made from.
PAGE_ROLES = (
    "metrics",
    "samples",
    "static_json",
    "analysis_json",
    "timeline_json",
    "operators_csv",
    "gpu_samples",
    "counters",
    "ncu_kernels_json",
    "generated_kernels",
    "host_samples",
    "bench_json",
)
FILES_NAMED = 4
MOST_BESIDE, SHOWN_EARLIER = 100, 5
NOT_SAMPLED = Unknown(reason="the program's stacks were not sampled", enable="pipeline.host_samples.enable=true")
TPOT = WALL_METRIC[DECODE]


@dataclass(frozen=True, kw_only=True)
class Found(Generic[T]):
    """A file's content and its path relative to the run."""

    content: T
    source: str


@dataclass(frozen=True, kw_only=True)
class OperatorRow:
    """One operator of operators.csv, its own times; None where the trace holds no such work."""

    name: str
    calls: int
    self_cpu_ns: int | None
    self_device_ns: int | None


@dataclass(frozen=True, kw_only=True)
class EarlierRun:
    """A run of the same model, inputs and machine that lies alongside this one."""

    run_id: str
    created_at: str
    tpot_ms: float


@dataclass(frozen=True, kw_only=True)
class RunFiles:
    """Everything read, each found or unknown. `present` are all files of the run, by their paths in it.

    `logs` are the last lines of the failed stages' logs, by stage; `earlier` the runs before this one, oldest first.
    `damage`: what the manifest names and is not there, or is not what it should be, a sentence each.
    """

    manifest: RunManifest
    metrics: Found[MetricsDocument] | Unknown
    static: Found[StaticDocument] | Unknown
    capture: Found[CaptureAnalysis] | Unknown
    trace: Found[CaptureAnalysis] | Unknown
    ncu: Found[NcuAnalysis] | Unknown
    operators: Found[tuple[OperatorRow, ...]] | Unknown
    samples: tuple[SampleLine, ...]
    added_samples: tuple[SampleLine, ...]
    timelines: tuple[Found[TimelineWindow], ...]
    clocks: Found[ClockDocument] | Unknown
    generated: Found[GeneratedDocument] | Unknown
    counters: tuple[Found[CounterDocument], ...]
    pictures: Mapping[str, Found[bytes] | Unknown]
    host: Found[HostDocument] | Unknown = NOT_SAMPLED
    present: frozenset[str] = frozenset()
    logs: Mapping[str, Found[str]] = field(default_factory=dict)
    earlier: tuple[EarlierRun, ...] = ()
    measured_gains: Mapping[str, float] = field(default_factory=dict)
    damage: tuple[str, ...] = ()


def read_run_files(manifest: RunManifest, run_dir: Path) -> RunFiles:
    """Read what the manifest names."""
    reader = _Reader(manifest, real_path(run_dir))
    samples = reader.samples()
    found = RunFiles(
        manifest=manifest,
        metrics=reader.first("metrics", MetricsDocument),
        static=reader.first("static_json", StaticDocument),
        capture=reader.first("analysis_json", CaptureAnalysis),
        trace=reader.of(TORCH_PROFILER, "analysis_json", CaptureAnalysis),
        ncu=reader.first("ncu_kernels_json", NcuAnalysis),
        operators=reader.operators(),
        samples=samples,
        added_samples=reader.added_samples(samples),
        timelines=reader.all("timeline_json", TimelineWindow),
        clocks=reader.first("gpu_samples", ClockDocument),
        generated=reader.first("generated_kernels", GeneratedDocument),
        host=reader.first("host_samples", HostDocument),
        counters=reader.all("counters", CounterDocument),
        pictures={
            picture.path: reader.picture(picture.path)
            for stage in manifest.stages
            for section in stage.sections
            for picture in section.pictures
        },
        present=reader.present(),
        logs=reader.logs(),
        earlier=_earlier(manifest, real_path(run_dir)),
        measured_gains=reader.measured_gains(),
    )
    return replace(found, damage=(*reader.missing(), *dict.fromkeys(reader.wrong)))


class _Reader:
    """Finds files by role and reads them."""

    def __init__(self, manifest: RunManifest, root: Path) -> None:
        self._manifest, self._root = manifest, root
        self.wrong: list[str] = []

    def missing(self) -> list[str]:
        """Of each stage the files the manifest names that were removed; files of others are not checked.

        Only of those a page is made from: who took captures and scratch files away saved room.
        """
        found = []
        scratch = self._root / "tmp"
        for stage in self._manifest.stages:
            own = [
                file.path
                for file in stage.files
                if file.role in PAGE_ROLES
                and file.path.is_relative_to(self._root)
                and not file.path.is_relative_to(scratch)
            ]
            gone = [path.relative_to(self._root).as_posix() for path in own if not os.path.lexists(path)]
            if gone:
                named = ", ".join(gone[:FILES_NAMED])
                more = f" and {len(gone) - FILES_NAMED} more" if len(gone) > FILES_NAMED else ""
                found.append(f"missing, though the manifest names it: {named}{more} (stage {stage.name})")
        return found

    def first(self, role: Role, kind: type[T]) -> "Found[T] | Unknown":
        """The first readable file of this role; stages that are expected to write it come first."""
        stages = ROLE_WRITERS[role]
        problems = []
        for path in (stage.file(role) for stage in self._ordered(stages)):
            if path is not None:
                found = self._read(path, kind)
                if isinstance(found, Found):
                    return found
                problems.append(found.reason)
        if problems:
            return Unknown(reason="; ".join(problems))
        return self._absent(stages)

    def of(self, name: str, role: Role, kind: type[T]) -> "Found[T] | Unknown":
        """A file of one stage."""
        stage = self._manifest.stage(name)
        path = stage.file(role) if stage is not None else None
        return self._absent((name,)) if path is None else self._read(path, kind)

    def all(self, role: Role, kind: type[T]) -> "tuple[Found[T], ...]":
        paths = [s.file(role) for s in self._manifest.stages]
        read = [self._read(path, kind) for path in paths if path is not None]
        return tuple(found for found in read if isinstance(found, Found))

    def operators(self) -> "Found[tuple[OperatorRow, ...]] | Unknown":
        stage = self._manifest.stage(TORCH_PROFILER)
        path = stage.file("operators_csv") if stage is not None else None
        if path is None:
            return self._absent((TORCH_PROFILER,))
        try:
            text = self._content(path).decode("utf-8")
            rows = tuple(_operator(row) for row in csv.DictReader(StringIO(text, newline="")))
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            return self._unreadable(path, f"{self._relative(path)}: cannot be read ({_why(error)})")
        return Found(content=rows, source=self._relative(path))

    def samples(self) -> tuple[SampleLine, ...]:
        """Of the clean pass; none where they cannot be read, because the medians are in the manifest."""
        path = samples_file(self._manifest)
        try:
            return () if path is None else parse_samples(self._content(path), source=self._relative(path))
        except (OSError, ParseError) as error:
            if isinstance(error, ParseError):
                self.wrong.append(str(error))
            return ()

    def added_samples(self, known: tuple[SampleLine, ...]) -> tuple[SampleLine, ...]:
        """What stages measured of samples besides the clean pass of the headline: the numbers that one has not."""
        first = samples_file(self._manifest)
        names = {name for line in known for name in line.values}
        found: list[SampleLine] = []
        for path in (stage.file("samples") for stage in self._manifest.stages if stage.status == "ok"):
            if path is None or path == first:
                continue
            try:
                lines = parse_samples(self._content(path), source=self._relative(path))
            except (OSError, ParseError):
                continue
            found += [replace(line, values={n: v for n, v in line.values.items() if n not in names}) for line in lines]
        return tuple(found)

    def picture(self, path: str) -> "Found[bytes] | Unknown":
        """A picture a stage's section names; a link must not lead out of the run either."""
        file = real_path(self._root / path)
        if not file.is_relative_to(self._root):
            return Unknown(reason=f"{path}: is not inside the run directory")
        try:
            if file.stat().st_size > LARGEST_PICTURE:
                return Unknown(reason=f"{path}: is larger than {LARGEST_PICTURE >> 20} MiB, too large for the page")
            return Found(content=read_limited(file, LARGEST_PICTURE), source=path)
        except (OSError, ValueError) as error:
            return Unknown(reason=f"{path}: cannot be read ({_why(error)})")

    def logs(self) -> dict[str, Found[str]]:
        """The end of what a failed stage's last command said; none where it cannot be read."""
        found = {}
        for stage in self._manifest.stages:
            paths = [command.log for command in stage.commands if command.log and command.exit_code != 0]
            if stage.status != "failed" or not paths:
                continue
            try:
                text = self._content(self._root / paths[-1]).decode("utf-8", "replace")
            except OSError:
                continue
            lines = text.rstrip()[-LOG_CHARACTERS:].splitlines()[-LOG_LINES:]
            if lines:
                found[stage.name] = Found(content="\n".join(lines), source=paths[-1])
        return found

    def present(self) -> frozenset[str]:
        """The files a page may link to; scratch is not among them, and a huge directory is not read to its end."""
        found = (
            path
            for path in self._root.rglob("*")
            if path.is_file() and "tmp" not in path.parts[len(self._root.parts) :]
        )
        return frozenset(path.relative_to(self._root).as_posix() for path in islice(found, MOST_FILES))

    def measured_gains(self) -> Mapping[str, float]:
        """By cause; none where nothing was tried."""
        path = self._root / MEASURED_GAINS_FILE
        found = self._read(path, dict[str, float]) if os.path.lexists(path) else None
        return found.content if isinstance(found, Found) else {}

    def _ordered(self, stages: tuple[str, ...]) -> list[StageRecord]:
        order = {name: index for index, name in enumerate(stages)}
        return sorted(self._manifest.stages, key=lambda s: order.get(s.name, len(order)))

    def _read(self, path: Path, kind: type[T]) -> "Found[T] | Unknown":
        source = self._relative(path)
        try:
            content = msgspec.json.decode(refuse_absurd_numbers(self._content(path)), type=kind)
        except OSError as error:
            return self._unreadable(path, f"{source}: cannot be read ({_why(error)})")
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            return self._unreadable(path, f"{source}: is invalid ({error})")
        return Found(content=content, source=source)

    def _unreadable(self, path: Path, reason: str) -> Unknown:
        """One that is missing is reported with all that are."""
        if os.path.lexists(path):
            self.wrong.append(reason)
        return Unknown(reason=reason)

    def _content(self, path: Path) -> bytes:
        """The bytes of a file the manifest names; another user's manifest must not make us read files of ours."""
        if not real_path(path).is_relative_to(self._root):
            raise OSError(errno.EPERM, "is not inside the run directory")
        return read_limited(path, LARGEST_FILE)

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix() if path.is_relative_to(self._root) else path.as_posix()

    def _absent(self, stages: tuple[str, ...]) -> Unknown:
        """Why the file is not there: the stage failed, was skipped, wrote none, or was not enabled."""
        for name in stages:
            stage = self._manifest.stage(name)
            if stage is not None and stage.status != "ok":
                # Its own reason says what to do; to enable it again would not help.
                state = f"stage {name} {stage.status}"
                return Unknown(reason=f"{state}: {stage.reason}", brief=state if stage.status == "failed" else None)
            if stage is not None:
                return Unknown(reason=f"stage {name} wrote no such file")
        return Unknown(reason=f"stage {stages[0]} was not run", enable=self._remedy(stages[0]))

    def _remedy(self, stage: str) -> str:
        """What would bring it; static analysis of a program of the user's own needs the name of the model it runs."""
        is_named = not (stage == STATIC_ANALYSIS and runs_a_program(self._manifest))
        return f"pipeline.{stage}.enable=true" if is_named else "model=<the model it runs>"


def runs_a_program(manifest: RunManifest) -> bool:
    """Whether a program of the user's own ran."""
    workload = manifest.config.get("workload")
    return isinstance(workload, Mapping) and bool(workload.get("command"))


def _earlier(manifest: RunManifest, root: Path) -> tuple[EarlierRun, ...]:
    """The last runs before this one in its folder that did the same on the same machine."""
    kind = _what_ran(manifest)
    if kind is None:
        return ()
    beside = [path for path in islice(root.parent.glob(f"*/{MANIFEST_FILE}"), MOST_FILES) if path.parent != root]
    beside = sorted(beside, key=lambda path: path.parent.name)[-MOST_BESIDE:]
    found = []
    for path in beside:
        try:
            other = read_manifest(path.parent)
        except ManifestError:
            continue
        times = [s.metrics[TPOT].value for s in other.stages if s.declared.gives_clean_pass and TPOT in s.metrics]
        known = [float(value) for value in times if isinstance(value, int | float)]
        if known and other.created_at < manifest.created_at and _what_ran(other) == kind:
            found.append(EarlierRun(run_id=other.run_id, created_at=other.created_at, tpot_ms=known[0]))
    return tuple(sorted(found, key=lambda run: run.created_at)[-SHOWN_EARLIER:])


def _what_ran(manifest: RunManifest) -> tuple[object, ...] | None:
    """Model, inputs, program and machine; None for what was not run here."""
    config, environment = manifest.config, manifest.environment
    if "model" not in config:
        return None
    asked = tuple(config.get(part) for part in ("model", "dataset", "infer", "workload"))
    return (*asked, environment.get("cpu"), str(environment.get("gpus")))


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def _operator(row: dict[str, str]) -> OperatorRow:
    cpu, device = row["self_cpu_ns"], row["self_device_ns"]
    return OperatorRow(
        name=row["name"],
        calls=int(row["calls"]),
        self_cpu_ns=int(cpu) if cpu else None,
        self_device_ns=int(device) if device else None,
    )

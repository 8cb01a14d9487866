"""Where an analysis comes from: capture files or a run directory, each part read when first asked for."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.names import NSYS, TORCH_PROFILER, Role
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.sql.view_schema import BY_NAME, VIEWS
from llm_perf_opt.system.arrays import load_numpy
from llm_perf_opt.system.files import real_path

if TYPE_CHECKING:
    from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, Diagnosis, ScopeRecord
    from llm_perf_opt.pipeline.analyze.read import AnalyzedCaptures, ReadFiles
    from llm_perf_opt.report.render.first_screen import FirstScreen
    from llm_perf_opt.report.run_files import RunFiles
    from llm_perf_opt.report.view.report_view import ReportView
    from llm_perf_opt.sql.events import CaptureEvents, ViewRows
    from llm_perf_opt.sql.table import Fill

FilesAre = Literal["ranks", "repeats"]
# Of a run, these are recorded by torch's profiler alone.
_OF_TORCH = ("operators", "memory")
# Captures of a run by the stage that wrote them, the one that slows a program down least first.
_CAPTURES: tuple[tuple[str, Role], ...] = ((NSYS, "nsys_sqlite"), (TORCH_PROFILER, "trace"), (NSYS, "nsys_report"))


class AnalysisSource(Protocol):
    """What an analysis is made of; `captured` is None where only a run's files are known."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path | None: ...

    @property
    def manifest(self) -> RunManifest | None: ...

    @property
    def diagnosis(self) -> "Diagnosis": ...

    @property
    def scopes(self) -> "tuple[ScopeRecord, ...]": ...

    @property
    def captured(self) -> "CaptureAnalysis | None": ...

    @property
    def has_capture(self) -> bool: ...

    @property
    def notes(self) -> tuple[str, ...]: ...

    def fills(self) -> "Mapping[str, Fill]": ...

    def first_screen(self) -> "FirstScreen": ...


class CaptureFiles:
    """Capture files of one program: nsys, torch, rocpd, ncu."""

    def __init__(
        self, files: Sequence[Path], *, detail: bool = False, files_are: FilesAre | None = None, name: str | None = None
    ) -> None:
        self.files, self.detail, self.files_are = tuple(files), detail, files_are
        self.name = name or ", ".join(str(file) for file in files)
        self._is_named = name is not None

    @property
    def path(self) -> Path | None:
        return self.files[0] if len(self.files) == 1 else None

    @property
    def manifest(self) -> None:
        return None

    @property
    def has_capture(self) -> bool:
        return True

    @cached_property
    def read(self) -> "ReadFiles":
        load_numpy()
        from llm_perf_opt.capture.readers.kinds import LOAD, capture_files, kind_of, require_one_story
        from llm_perf_opt.pipeline.analyze.read import read_files

        files = [file for path in self.files for file in capture_files(path)]
        kinds = [kind_of(file) for file in files]
        require_one_story(kinds)
        if LOAD in kinds:
            raise ConfigError(f"{self.name}: results of a load generator, which hold no times of kernels")
        with tempfile.TemporaryDirectory(prefix="llm-perf-read-") as scratch:
            found = read_files(files, kinds, Path(scratch), detailed=self.detail)
        return _renamed(found, self.name) if self._is_named else found

    @cached_property
    def analyzed(self) -> "AnalyzedCaptures":
        from llm_perf_opt.pipeline.analyze.read import analyze_files

        return analyze_files(self.read, files_are=self.files_are)

    @property
    def captured(self) -> "CaptureAnalysis":
        return self.analyzed.analysis

    @cached_property
    def diagnosis(self) -> "Diagnosis":
        from msgspec import UNSET

        found = self.captured.diagnosis
        if found is UNSET:
            raise ConfigError(f"{self.name}: there is no timeline in it, so nothing was judged")
        return found

    @cached_property
    def scopes(self) -> "tuple[ScopeRecord, ...]":
        """What was judged, and the phases the capture marks."""
        from llm_perf_opt.diagnosis.marked_phases import marked_phases

        return (*self.diagnosis.scopes, *marked_phases(self.captured))

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self.analyzed.notes, *self.captured.notes)

    def fills(self) -> "Mapping[str, Fill]":
        events = {view.name: partial(self.events, view.name) for view in VIEWS if view.needs == "capture"}
        return {**_nothing(), **events, **_answers(self)}

    def first_screen(self) -> "FirstScreen":
        from llm_perf_opt.report.render.first_screen import screen_of_capture

        return screen_of_capture(self.name, self.captured, self.diagnosis)

    def events(self, view: str) -> "ViewRows":
        """The rows of a view of events."""
        from llm_perf_opt.sql import events, gaps
        from llm_perf_opt.sql import range_views as ranges

        rows: Mapping[str, Callable[[CaptureEvents], ViewRows | None]] = {
            "kernels": events.kernel_rows,
            "launches": events.launch_rows,
            "copies": events.copy_rows,
            "graphs": events.graph_rows,
            "operators": events.operator_rows,
            "memory": events.memory_rows,
            "ranges": ranges.range_rows,
            "gaps": gaps.gap_rows,
        }
        return events.stacked(view, [part for one in self._events if (part := rows[view](one)) is not None])

    @cached_property
    def _events(self) -> "tuple[CaptureEvents, ...]":
        from llm_perf_opt.sql.events import events_of

        return events_of(self.read.captures)


def _renamed(read: "ReadFiles", name: str) -> "ReadFiles":
    """The same captures under another name: the file they were read from does not stay."""
    return replace(
        read,
        captures=tuple(replace(one, timeline=replace(one.timeline, source=name)) for one in read.captures),
    )


class RunDirectory:
    """A run that was made: its documents, and the capture that lies in it."""

    def __init__(self, path: Path, manifest: RunManifest, *, detail: bool = False) -> None:
        self.path, self.manifest, self.detail = path, manifest, detail

    @property
    def name(self) -> str:
        return self.manifest.run_id

    @cached_property
    def files(self) -> "RunFiles":
        load_numpy()
        from llm_perf_opt.report.run_files import read_run_files

        return read_run_files(self.manifest, self.path)

    @cached_property
    def view(self) -> "ReportView":
        from llm_perf_opt.core.names import MANIFEST_FILE
        from llm_perf_opt.errors import numbers_of
        from llm_perf_opt.report.view.report_view import build_view

        with numbers_of(self.path / MANIFEST_FILE):
            return build_view(self.files)

    @property
    def diagnosis(self) -> "Diagnosis":
        return self.view.diagnosis

    @cached_property
    def scopes(self) -> "tuple[ScopeRecord, ...]":
        """What was judged; the phases its capture marks where none was timed without a profiler."""
        from llm_perf_opt.diagnosis.marked_phases import marked_phases

        judged, captured = self.diagnosis.scopes, self.captured
        timed = any(scope.kind == "phase" for scope in judged)
        return judged if timed or captured is None else (*judged, *marked_phases(captured))

    @property
    def captured(self) -> "CaptureAnalysis | None":
        from llm_perf_opt.report.run_files import Found

        return self.files.capture.content if isinstance(self.files.capture, Found) else None

    @property
    def notes(self) -> tuple[str, ...]:
        stages = (f"{stage.name}: {note}" for stage in self.manifest.stages for note in stage.notes)
        return (*self.files.damage, *stages)

    @property
    def has_capture(self) -> bool:
        return self.capture() is not None

    def capture(self, *, of_torch: bool = False) -> CaptureFiles | None:
        """The capture files in the run; None where it has none, or they were taken away."""
        places = [place for place in _CAPTURES if not of_torch or place[0] == TORCH_PROFILER]
        for stage_name, role in places:
            if (stage_name, role) not in self._captures:
                self._captures[stage_name, role] = self._files_of(stage_name, role)
            found = self._captures[stage_name, role]
            if found is not None:
                return found
        return None

    @cached_property
    def _captures(self) -> "dict[tuple[str, str], CaptureFiles | None]":
        return {}

    def _files_of(self, stage_name: str, role: Role) -> CaptureFiles | None:
        """A manifest of another user must not make us read files outside the run."""
        root, stage = real_path(self.path), self.manifest.stage(stage_name)
        files = [] if stage is None else [file.path for file in stage.files if file.role == role]
        inside = [file for file in files if file.is_file() and real_path(file).is_relative_to(root)]
        return CaptureFiles(inside, detail=self.detail) if inside else None

    def fills(self) -> "Mapping[str, Fill]":
        events = {view.name: partial(self._events, view.name) for view in VIEWS if view.needs == "capture"}
        return {**events, **_answers(self), **self._of_run()}

    def first_screen(self) -> "FirstScreen":
        from llm_perf_opt.report.render.first_screen import screen_of_run

        return screen_of_run(self.view)

    def _events(self, view: str) -> "ViewRows":
        found = (self.capture(of_torch=True) if view in _OF_TORCH else None) or self.capture()
        if found is None:
            documents = ", ".join(one.name for one in VIEWS if one.needs != "capture")
            raise ConfigError(
                f"{self.path}: the run holds no capture to fill {view} from (nsys/*.sqlite or a torch trace); query "
                f"{documents}, or the capture itself"
            )
        return found.events(view)

    def _of_run(self) -> "dict[str, Fill]":
        load_numpy()
        from llm_perf_opt.sql import answers

        requests = next((path for s in self.manifest.stages if (path := s.file("bench_requests"))), None)
        if requests is not None and not real_path(requests).is_relative_to(real_path(self.path)):
            requests = None
        return {
            "metrics": lambda: answers.metric_rows(self.manifest),
            "samples": lambda: answers.sample_rows((*self.files.samples, *self.files.added_samples)),
            "requests": lambda: answers.request_rows(requests),
        }


def _answers(source: AnalysisSource) -> "dict[str, Fill]":
    load_numpy()
    from llm_perf_opt.sql import answers

    return {
        "ledger": lambda: answers.ledger_rows(source.scopes),
        "findings": lambda: answers.finding_rows(source.diagnosis),
    }


def _nothing() -> "dict[str, Fill]":
    """Views of which a capture has no rows."""
    from llm_perf_opt.sql.events import stacked

    return {name: partial(stacked, name, ()) for name, view in BY_NAME.items() if view.needs == "run"}

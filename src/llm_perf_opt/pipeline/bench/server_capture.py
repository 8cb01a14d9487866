"""Captures of a server as stages of the run: nsys with its analysis, or the files of the server's own profiler."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from llm_perf_opt.capture.ranges import with_phases
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.core.names import NSYS
from llm_perf_opt.core.records import CommandRecord, StageFile, StageRecord
from llm_perf_opt.core.stage import CommandRunner
from llm_perf_opt.diagnosis.analyze import RecordedCapture, analyze_captures
from llm_perf_opt.pipeline.bench.profile_window import NsysWindow
from llm_perf_opt.pipeline.console import Console
from llm_perf_opt.profiling.artifacts import Artifacts
from llm_perf_opt.profiling.capture_files import capture_metrics, write_analysis
from llm_perf_opt.report.sections.idle_sections import idle_sections
from llm_perf_opt.system.process import allowed_environment
from llm_perf_opt.system.redact import Redactor

# The servers of conf/server whose work advice can name: a window of nsys does not always identify its server.
ENGINES: Mapping[str, str] = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "tensorrt_llm": "TensorRT-LLM",
    "transformers": "transformers serve",
}


@dataclass(frozen=True, kw_only=True)
class LookPlace:
    """Where the commands of nsys run and leave their files; the part of a stage's context they need."""

    out_dir: Path
    tmp_dir: Path
    run_command: CommandRunner
    console: Console

    def say(self, text: str) -> None:
        self.console.say(text)

    @classmethod
    def of(cls, root: Path, console: Console, records: list[CommandRecord], redactor: Redactor) -> "LookPlace":
        artifacts = Artifacts.from_root(root)
        runner = CommandRunner(
            stage=NSYS,
            out_dir=artifacts.out_dir(NSYS),
            tmp_dir=artifacts.tmp_dir(NSYS),
            environment=allowed_environment(os.environ),
            on_tick=console.tick,
            records=records,
            redactor=redactor,
        )
        return cls(out_dir=runner.out_dir, tmp_dir=runner.tmp_dir, run_command=runner, console=console)


def nsys_stage(place: LookPlace, window: NsysWindow, *, server: str, label: str) -> StageRecord:
    """The analysis of what nsys recorded of a server (`server.name`), as the stage of a profile would have it."""
    source = f"{NSYS}/analysis.json"
    captures = [RecordedCapture(timeline=with_phases(read_nsys_sqlite(path), {})) for path in window.exports]
    analyzed = analyze_captures(captures, engine=ENGINES.get(server))
    analysis = analyzed.analysis
    files = write_analysis(place.out_dir, analysis, analyzed.measured)
    note = f"a window of the server under {label}, opened after warming up"
    return StageRecord(
        name=NSYS,
        status="ok",
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        commands=tuple(place.run_command.records),
        files=(*(StageFile(role="nsys_sqlite", path=path) for path in window.exports), *files),
        metrics=capture_metrics(analysis, source=source, kind="nsys"),
        notes=(note, *window.notes, *analysis.notes),
        sections=tuple(idle_sections(analysis, source=source)),
    )

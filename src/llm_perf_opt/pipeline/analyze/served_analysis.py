"""Results of load generators given to `llm-perf analyze`: a table, JSON, or a run directory with its report."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from llm_perf_opt.core.manifest import RunManifest, write_json, write_manifest
from llm_perf_opt.core.records import StageFile, StageRecord
from llm_perf_opt.core.sections import titled_table
from llm_perf_opt.pipeline.analyze.analyze_run import require_free
from llm_perf_opt.report.sections.load_pictures import draw_trade, with_pictures
from llm_perf_opt.report.sections.served_load import bench_metrics, bench_sections
from llm_perf_opt.report.write import write_reports
from llm_perf_opt.serving.foreign_results import read_results
from llm_perf_opt.serving.load_results import BENCH, BENCH_FILE, BenchDocument
from llm_perf_opt.system.files import real_path
from llm_perf_opt.system.json_output import print_json
from llm_perf_opt.system.redact import Redactor


def analyze_results(files: Sequence[Path], output: Path | None, *, as_json: bool) -> None:
    """Read the files, print what they say, and write a run directory where one was requested."""
    if output is not None:
        require_free(output)
    document = read_results(files)
    if output is not None:
        _write_run(real_path(output.expanduser()), files, document)
    if as_json:
        print_json(msgspec.to_builtins(document))
        return
    (section, *_) = bench_sections(document, source=BENCH_FILE)
    print("\n\n".join([*section.paragraphs, *(titled_table(table) for table in section.tables)]))
    if output is not None:
        print(f"\nwritten: {output / 'report.md'}")


def _write_run(run_dir: Path, files: Sequence[Path], document: BenchDocument) -> None:
    source = f"{BENCH}/{BENCH_FILE}"
    path = write_json(run_dir / source, document)
    drawn = draw_trade(run_dir, document)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    pictures = [StageFile(role="picture", path=run_dir / picture.path) for s in drawn for picture in s.pictures]
    stage = StageRecord(
        name=BENCH,
        status="ok",
        started_at=now,
        files=(StageFile(role="bench_json", path=path), *pictures),
        metrics=bench_metrics(document, source=source),
        notes=document.notes,
        sections=with_pictures(bench_sections(document, source=source), *drawn),
    )
    manifest = RunManifest(
        run_id=run_dir.name,
        created_at=now,
        status="ok",
        config={"analyze": {"files": [str(file) for file in files]}, "model": {"name": document.model or run_dir.name}},
        environment={},
        stages=(stage,),
    )
    # A page of a user's capture is made to be shared; names in it may hold a token.
    redactor = Redactor.of(os.environ)
    redactor.folder(run_dir)
    write_manifest(run_dir, manifest, redactor)
    write_reports(run_dir)

"""Renders every report of a run from its manifest."""

from pathlib import Path

from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.report.markdown import render_report


def write_reports(run_dir: Path) -> list[Path]:
    """Write the reports beside the manifest; returns their paths, the main one first."""
    manifest = read_manifest(run_dir)
    path = run_dir / "report.md"
    path.write_text(render_report(manifest), encoding="utf-8")
    return [path]

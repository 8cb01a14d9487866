"""Renders every report of a run from its manifest and the files it names."""

from collections.abc import Callable
from pathlib import Path

import msgspec

from llm_perf_opt.core.manifest import read_manifest, write_json
from llm_perf_opt.core.names import DIAGNOSIS_FILE, MANIFEST_FILE
from llm_perf_opt.errors import numbers_of
from llm_perf_opt.report.render.html import render_html
from llm_perf_opt.report.render.kernels_md import render_kernels_page
from llm_perf_opt.report.render.perfetto import render_perfetto
from llm_perf_opt.report.render.report_md import render_report_md
from llm_perf_opt.report.render.summary_md import render_summary_md
from llm_perf_opt.report.run_files import read_run_files
from llm_perf_opt.report.view.report_view import ReportView, build_view
from llm_perf_opt.system.files import write_page, write_whole

TRACE = "trace.perfetto.json.gz"
# The main report first.
RENDERERS: tuple[tuple[str, Callable[[ReportView], str]], ...] = (
    ("report.html", render_html),
    ("report.md", render_report_md),
    ("kernels.md", render_kernels_page),
    ("stakeholder_summary.md", render_summary_md),
)


def view_run(run_dir: Path) -> ReportView:
    """What the reports of a run would say by now."""
    with numbers_of(run_dir / MANIFEST_FILE):
        return build_view(read_run_files(read_manifest(run_dir), run_dir))


def write_reports(run_dir: Path) -> list[Path]:
    """Write the reports alongside the manifest; returns their paths, the main one first."""
    return write_view(run_dir)[1]


def write_view(run_dir: Path) -> tuple[ReportView, list[Path]]:
    """Write the reports; returns also what they say."""
    with numbers_of(run_dir / MANIFEST_FILE):
        files = read_run_files(read_manifest(run_dir), run_dir)
        view = build_view(files)
        pages = [(name, render(view)) for name, render in RENDERERS]
        content = render_perfetto(files)
    paths = [write_page(run_dir / name, page) for name, page in pages]
    if view.diagnosis is not None:
        write_json(run_dir / DIAGNOSIS_FILE, msgspec.to_builtins(view.diagnosis))
    trace = run_dir / TRACE
    # A trace of an earlier rendering must not outlive the data it was made from.
    trace.unlink(missing_ok=True)
    if content is not None:
        paths.append(write_whole(trace, content))
    return view, paths

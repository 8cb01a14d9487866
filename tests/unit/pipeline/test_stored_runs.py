"""Runs of released versions are still read, reported and compared (docs/stability.md)."""

import tarfile
from pathlib import Path

import pytest

from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.pipeline.loaded_run import load_run
from llm_perf_opt.report.write import write_view
from tests.support.fixtures_dir import DATA

STORED = sorted((DATA / "stored_runs").glob("*.tar.xz"))


@pytest.fixture(params=STORED, ids=[path.name.removesuffix(".tar.xz") for path in STORED])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_there_is_a_run_of_every_release_that_changed_a_document() -> None:
    assert [path.name for path in STORED] == ["0.2.0.tar.xz"]


def test_a_run_of_an_earlier_version_is_read_with_its_numbers(stored: Path) -> None:
    manifest = read_manifest(stored)
    assert (manifest.schema_version, manifest.status) == (1, "ok")
    rows = {(row["stage"], row["metric"]): row["value"] for row in load_run(stored).metrics.rows()}
    assert rows["torch_profiler", "tpot_ms"] == 11.579037912698412
    assert rows["nsys", "kernel_count"] == 222_324


def test_its_report_is_written_anew(stored: Path) -> None:
    view, paths = write_view(stored)
    assert {"report.html", "report.md", "kernels.md", "stakeholder_summary.md"} <= {path.name for path in paths}
    assert view.headline.verdict

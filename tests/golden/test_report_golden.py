"""The markdown reports of the H200 capture, whole; and the figures its waterfall must show.

To accept a change: LLM_PERF_UPDATE_GOLDEN=1 pytest tests/golden/test_report_golden.py, then read the difference.
"""

import json
import os
import re
from pathlib import Path

import jsonschema
import pytest

from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.report.run_files import read_run_files
from llm_perf_opt.report.view.report_view import ReportView, build_view
from scripts.schemas import FOLDER
from tests.support.report_runs import analyze_h200

# One worker makes the report these tests look at.
pytestmark = pytest.mark.xdist_group("report_golden")

GOLDEN = Path(__file__).parent / "h200"
PAGES = ("report.md", "kernels.md", "stakeholder_summary.md")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return analyze_h200(tmp_path_factory.mktemp("golden"))


@pytest.fixture(scope="module")
def view(run: Path) -> ReportView:
    return build_view(read_run_files(read_manifest(run), run))


def steady(text: str, run: Path) -> str:
    """Without what differs from day to day and from folder to folder."""
    text = re.sub(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d\+00:00| \d\d:\d\d UTC)", "DATE", text)
    return text.replace(str(run.parent), "FOLDER")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_h200_capture_reads_as_agreed(name: str, run: Path) -> None:
    found = steady((run / name).read_text(encoding="utf-8"), run)
    path = GOLDEN / name
    if os.environ.get("LLM_PERF_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["nsys/analysis", "nsys/timeline", "ncu/kernels"])
def test_a_document_of_the_h200_capture_obeys_its_schema(name: str, run: Path) -> None:
    schema = json.loads((FOLDER / f"{Path(name).name}.schema.json").read_text(encoding="utf-8"))
    found = json.loads((run / f"{name}.json").read_text(encoding="utf-8"))
    assert not list(jsonschema.Draft202012Validator(schema).iter_errors(found))


def test_the_decode_waterfall_of_the_h200_shows_the_known_figures(view: ReportView) -> None:
    decode = next(w for w in view.waterfalls if w.phase == "decode")
    totals = {row.key: float(row.total.split()[0]) for row in decode.rows if row.missing is None}
    assert totals["wall"] == pytest.approx(15.13, rel=0.03)
    assert 1.94 <= totals["kernels"] <= 1.95
    assert totals["achievable"] == pytest.approx(0.555, rel=0.03)
    assert list(totals) == ["datasheet", "achievable", "kernels", "host", "starting", "wall"]


def test_the_first_finding_is_the_launch_bound_decode(view: ReportView) -> None:
    first = view.findings[0]
    assert (first.rule, first.phase, first.confidence) == ("launch_bound", "decode and prefill", "high")
    assert first.also == ("Launch-bound prefill: GPU idle 63 % of each prompt",)
    assert (first.saves, first.saves_each) == ("up to 88.89 ms per request", "13.18 ms per token, 9.804 ms per prompt")
    assert first.gain == "6.0× over a request (7.8× in decode, 2.6× in prefill)"
    assert "profiler_overhead" not in {f.rule for f in view.findings} and view.provenance.overhead
    assert view.headline.verdict == (
        "Launch-bound decode: GPU idle 87 % of each step. CUDA graphs or torch.compile could give up to 6.0× over a "
        "request (7.8× in decode, 2.6× in prefill)."
    )


def test_kernels_of_ncu_are_found_on_the_timeline_and_placed_on_the_roofline(view: ReportView) -> None:
    assert view.kernels.join.startswith("16 of 16 kernels measured by ncu found on the timeline (100 %)")
    assert {p.kind for p in view.roofline.points} == {"kernel", "phase"}
    assert [r.kind for r in view.roofline.roofs] == ["datasheet", "achievable"]


def test_time_of_kernels_that_launches_hide_is_no_finding(view: ReportView) -> None:
    """Decode waits for launches: faster kernels would only lengthen the gaps between them."""
    assert [f.rule for f in view.findings] == ["launch_bound"]
    assert view.ledger is not None
    assert [table.title for table in view.ledger.tables] == [
        "prefill: 15.90 ms, measured without a profiler",
        "decode: 15.13 ms, measured without a profiler",
    ]
    assert view.ledger.tables[1].rows[0][:3] == ("CPU launch overhead", "13.18", "87.12")


def test_no_time_of_the_profiled_pass_is_shown_as_a_latency(run: Path, view: ReportView) -> None:
    # 23.8 ms is a decode step under nsys, 17.6 ms a prefill.
    shown = [row.total for w in view.waterfalls for row in w.rows] + [str(tile.cell) for tile in view.headline.tiles]
    assert not [text for text in shown if re.search(r"\b(23\.[78]|17\.[56])", text)]
    assert "23.8" not in (run / "stakeholder_summary.md").read_text(encoding="utf-8")

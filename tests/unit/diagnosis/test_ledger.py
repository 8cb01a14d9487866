"""The ledger: cells that sum to the wall time, of every capture there is."""

from pathlib import Path

import pytest
from msgspec import UNSET

from llm_perf_opt.diagnosis.ledger import Cell, balanced, cell_name, cell_names, fitted
from tests.support.verdicts import analyze, captures

AT_HAND = dict(captures())


def test_cells_that_do_not_sum_to_the_wall_time_are_a_defect() -> None:
    cells = [Cell(id="gpu.compute.GEMM", time_ns=7), Cell(id="idle.launch", time_ns=2)]
    assert balanced(9, cells).cells == tuple(cells)
    with pytest.raises(AssertionError, match="sum to 9 ns of 10 ns"):
        balanced(10, cells)


def test_cells_are_found_by_every_part_of_their_id() -> None:
    ledger = balanced(10, [Cell(id="gpu.copy.h2d.pinned", time_ns=6), Cell(id="gpu.copy.h2d", time_ns=4)])
    assert (ledger.ns("gpu.copy"), ledger.ns("gpu.copy.h2d"), ledger.ns("gpu.copy.h2d.pinned")) == (10, 10, 6)
    assert (ledger.ns("gpu.cop"), ledger.share("gpu.copy.h2d.pinned")) == (0, 0.6)
    assert ledger.idle_ns == 10


@pytest.mark.parametrize(("weights", "total"), [({"a": 1.0, "b": 2.0}, 10), ({"a": 0.3, "b": 0.3, "c": 0.4}, 7)])
def test_parts_in_proportion_sum_exactly(weights: dict[str, float], total: int) -> None:
    parts = fitted(weights, total)
    assert sum(parts.values()) == total
    assert all(abs(parts[key] - total * weights[key] / sum(weights.values())) < len(weights) for key in weights)
    assert fitted({}, total) == fitted({"a": 0.0}, total) == {}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name.startswith(("tests/", "planted/")) else pytest.mark.slow) for name in AT_HAND],
)
def test_the_ledger_of_every_capture_sums_to_its_wall_time(name: str) -> None:
    path: Path = AT_HAND[name]
    if "rocpd" in name or "ascend" in name or "power_iteration_chrome" in name:
        pytest.skip("not read, or without a timeline")
    analysis = analyze(path)
    assert analysis.diagnosis
    for scope in analysis.diagnosis.scopes:
        assert sum(cell.time_ns for cell in scope.cells) == scope.wall_ns > 0
        assert all(cell.time_ns > 0 for cell in scope.cells)
        assert all(cell_name(cell.id) in cell_names().values() for cell in scope.cells)
    whole = analysis.diagnosis.scope("capture")
    if whole is not None and analysis.gpu.span_ns:
        edges = () if analysis.host_edges is UNSET else analysis.host_edges
        assert whole.wall_ns == (analysis.gpu.span_ns or 0) + sum(edge.length_ns for edge in edges)
        busy = sum(c.time_ns for c in whole.cells if c.id.startswith(("gpu.compute", "gpu.communication")))
        assert busy == analysis.gpu.busy_ns


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name.startswith("tests/") else pytest.mark.slow)
        for name in AT_HAND
        if "power_iteration_chrome" not in name
    ],
)
def test_findings_never_promise_one_nanosecond_twice(name: str) -> None:
    analysis = analyze(AT_HAND[name])
    assert analysis.diagnosis
    assert analysis.diagnosis.verdict.hottest_kernel or not analysis.kernels
    for scope in analysis.diagnosis.scopes:
        taken: dict[str, int] = {}
        for finding in analysis.findings:
            if finding.scope == scope.id:
                for cell, time_ns in finding.cells.items():
                    taken[cell] = taken.get(cell, 0) + time_ns
        for cell, time_ns in taken.items():
            assert time_ns <= sum(c.time_ns for c in scope.cells if c.id == cell), cell
    assert all(f.max_gain is None or f.floor_ns is not None for f in analysis.findings)
    once = [f.is_one_time for f in analysis.findings]
    assert all(f.max_gain is None for f in analysis.findings if f.is_one_time)
    # Recurring costs come first, but for a capture that is little else than start-up.
    assert once in (sorted(once), sorted(once, reverse=True))

"""Captures with a kernel name for nearly each launch: bounded tables, and no lost nanosecond."""

from pathlib import Path

import pytest

from llm_perf_opt.capture import kernel_names
from llm_perf_opt.capture.kernel_names import REST, limit_kernel_names
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.timeline import Timeline
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from tests.support.nsys_builder import Export


def _capture(path: Path, names: list[str]) -> Timeline:
    export = Export()
    for number, name in enumerate(names):
        at = 1000 * number
        export.call(at, at + 100, number + 1)
        # The first ones take the most time.
        export.kernel(name, at + 200, at + 800 - number, number + 1)
    return read_nsys_sqlite(export.write(path))


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_names, "MOST_NAMES", 3)
    monkeypatch.setattr(kernel_names, "MOST_FAMILIES", 2)


def test_a_capture_with_few_names_stays_as_it_is(tmp_path: Path) -> None:
    timeline = _capture(tmp_path / "a.sqlite", ["gemm_1", "gemm_2", "norm", "gemm_1"])
    assert limit_kernel_names(timeline) is timeline


def test_rare_names_that_differ_in_numbers_are_one_kernel(tmp_path: Path) -> None:
    names = ["gemm_1", "gemm_2", "norm", "add_1", "add_2", "mul_7_8", "mul_70_80", "cat_1", "norm"]
    timeline = _capture(tmp_path / "a.sqlite", names)
    limited = limit_kernel_names(timeline)
    rows = {row.name: (row.instances, row.total_ns) for row in analyze_timelines([timeline]).kernels}
    assert rows == {
        "gemm_1": (1, 600),
        "gemm_2": (1, 599),
        "norm": (2, 598 + 592),
        "add_N": (2, 597 + 596),
        "mul_N_N": (2, 595 + 594),
        REST: (1, 593),
    }
    assert sum(time_ns for _, time_ns in rows.values()) == sum(600 - number for number in range(9))
    assert {"add_1", "cat_1"} & set(limited.names) == set()
    assert limited.notes[-1] == (
        "8 distinct kernel names: the 3 with the most time are listed, "
        "the others are counted together where they differ only in numbers"
    )


def test_a_name_that_an_operator_has_too_stays_its_name(tmp_path: Path) -> None:
    export = Export()
    export.range("add_1", 0, 9000)
    for number, name in enumerate(["a", "b", "c", "add_1", "add_2"]):
        export.call(1000 * number, 1000 * number + 100, number + 1)
        export.kernel(name, 1000 * number + 200, 1000 * number + 800 - number, number + 1)
    limited = limit_kernel_names(read_nsys_sqlite(export.write(tmp_path / "a.sqlite")))
    assert [limited.names[code] for code in limited.ranges.name] == ["add_1"]
    assert [limited.names[code] for code in limited.kernels.name] == ["a", "b", "c", "add_N", "add_N"]

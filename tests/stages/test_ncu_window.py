"""The window of launches in which kernels are looked for that ncu did not meet by name."""

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from llm_perf_opt.core.records import Metric, StageFile, StageRecord
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.profiling.ncu.select import launch_sequence
from llm_perf_opt.profiling.ncu.session import Window, best_window
from tests.support.fake_ncu import install
from tests.support.fixtures_dir import DATA
from tests.support.ncu_run import H200, Run, captures, host

CLEAN = {"tpot_ms": Metric(value=1.0, unit="ms", how="clean pass")}

LAYER = ["norm", "q", "k", "v", "sdpa", "o", "norm", "gate", "up", "down"]
STEP = [*LAYER * 3, "norm", "head"]


def test_the_shortest_window_with_every_missing_kernel_is_found() -> None:
    # The last layer's sdpa is the one nearest to the head, which comes once a step.
    found = best_window(STEP * 4, {"sdpa": 5.0, "down": 7.0, "head": 9.0}, first=32, last=96)
    assert found == Window(start=32 + 24, width=8, names=frozenset({"sdpa", "down", "head"}))
    assert (STEP * 4)[56:64] == ["sdpa", "o", "norm", "gate", "up", "down", "norm", "head"]


def test_what_does_not_fit_together_is_decided_by_weight() -> None:
    sequence = ["a", *["x"] * 70, "b", "x"]
    assert best_window(sequence, {"a": 1.0, "b": 2.0}, first=0, last=99) == Window(
        start=71, width=1, names=frozenset({"b"})
    )
    assert best_window(sequence, {"a": 1.0, "b": 2.0}, first=0, last=99, width=80) == Window(
        start=0, width=72, names=frozenset({"a", "b"})
    )


@pytest.mark.parametrize(("first", "last"), [(0, 0), (5, 5), (0, 4)])
def test_nothing_wanted_in_reach_gives_no_window(first: int, last: int) -> None:
    assert best_window(["x", "x", "x", "x", "a"], {"a": 1.0}, first=first, last=last) is None


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("h200") / "run.sqlite"
    path.write_bytes(lzma.decompress((DATA / "h200" / "llama.sqlite.xz").read_bytes()))
    return path


def _by_hand(path: Path) -> list[str]:
    """The kernels of the first decode range in the order of their launches, in plain SQL."""
    with closing(sqlite3.connect(path)) as database:
        start, end, thread = database.execute(
            "SELECT n.start, n.end, n.globalTid FROM NVTX_EVENTS n LEFT JOIN StringIds s ON s.id = n.textId "
            "WHERE coalesce(n.text, s.value) = 'decode' ORDER BY n.start LIMIT 1"
        ).fetchone()
        rows = database.execute(
            "SELECT s.value FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME r USING (correlationId) "
            "JOIN StringIds s ON s.id = k.demangledName WHERE r.start >= ? AND r.start < ? AND r.globalTid = ? "
            "ORDER BY r.start",
            (start, end, thread),
        )
        return [name for (name,) in rows]


def test_the_order_of_launches_is_that_of_the_first_range(capture: Path) -> None:
    record = StageRecord(name="nsys", status="ok", files=(StageFile(role="nsys_sqlite", path=capture),))
    expected = _by_hand(capture)
    assert len(expected) > 2000
    assert launch_sequence(record, "decode*") == expected
    assert launch_sequence(record, "sam") == []
    assert launch_sequence(None, "decode*") == []


@pytest.mark.long
@pytest.mark.slow
def test_kernels_missed_by_name_are_looked_for_by_place(capture: Path, tmp_path: Path) -> None:
    config = type_config(compose_config(["model=llama_tiny", "infer.max_new_tokens=5"]), user_dir=tmp_path)
    install(tmp_path / "bin")
    # ncu meets one kernel by name; a window of launches holds whatever is in it.
    nsys = StageRecord(name="nsys", status="ok", files=(StageFile(role="nsys_sqlite", path=capture),))
    run = Run(
        folder=tmp_path / "run",
        config=config,
        host=host(str(tmp_path / "bin" / "ncu"), H200),
        env={"FAKE_NCU_KERNELS": "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"},
        earlier={"nsys": nsys, "torch_profiler": StageRecord(name="torch_profiler", status="ok", metrics=CLEAN)},
    )
    output = run.stage(max_kernels=6)
    first, second = captures(run)
    assert "--kernel-id" in first and "--launch-skip" not in first
    assert "--kernel-id" not in second
    assert second[second.index("--kernel-name") + 1] == "regex:^(?!.*(nccl.*|ncclDevKernel.*))"
    skip, count = (int(second[second.index(flag) + 1]) for flag in ("--launch-skip", "--launch-count"))
    missing = set(_by_hand(capture)[skip : skip + count])
    (said,) = [line for line in run.said if "second look" in line]
    assert said == f"ncu: 3 chosen kernels were not met by name; a second look at {count} launches in a row"
    assert count <= 64 and "nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN" in missing
    assert {f.path.name for f in output.files if f.role == "ncu_report"} == {"decode.ncu-rep", "decode-window.ncu-rep"}
    assert {"raw-window.csv", "details-window.csv", "cmd-window.txt", "log-window.txt"} <= {
        p.name for p in run.out.iterdir()
    }
    assert output.metrics["ncu_launches"].value == 48

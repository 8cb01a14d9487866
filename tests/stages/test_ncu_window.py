"""Consecutive launches that hold the kernels that matter: profiled first, or where a capture by name met too few."""

import lzma
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.capture.kernels.ncu_analysis import analyze_ncu, join_nsys
from llm_perf_opt.capture.kernels.ncu_records import NcuLaunch, NsysKernel
from llm_perf_opt.capture.readers.ncu_log import NcuLog
from llm_perf_opt.core.records import Metric, StageFile, StageRecord
from llm_perf_opt.errors import ToolError
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.profiling.ncu import ncu_capture as ncu_capture
from llm_perf_opt.profiling.ncu.ncu_capture import NcuCaptured
from llm_perf_opt.profiling.ncu.ncu_results import result_metrics
from llm_perf_opt.profiling.ncu.ncu_session import Window, best_window, covering_window, named_alike
from llm_perf_opt.profiling.ncu.select import launch_sequence
from tests.support.fake_ncu import install
from tests.support.fixtures_dir import DATA
from tests.support.ncu_run import H200, Run, captures, host
from tests.support.nsys_builder import h200_export

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


def test_the_shortest_window_that_weighs_enough_is_found() -> None:
    weights = {"norm": 1.0, "q": 4.0, "sdpa": 3.0, "down": 7.0, "gate": 5.0, "head": 9.0}
    # The head with the end of the last layer before it; q comes after it, in the next step.
    found = covering_window(STEP * 4, weights, 22.0, first=32, last=96)
    assert found == Window(start=32 + 27, width=5, names=frozenset({"gate", "down", "norm", "head"}))
    assert covering_window(STEP * 4, weights, 29.0, first=32, last=96) == Window(
        start=32 + 24, width=10, names=frozenset(weights)
    )


def test_a_window_that_weighs_enough_may_be_nowhere_or_too_long() -> None:
    assert covering_window(STEP * 4, {"head": 9.0}, 9.5, first=0, last=128) is None
    assert covering_window(["a", *["x"] * 63, "b"], {"a": 1.0, "b": 1.0}, 2.0, first=0, last=99) is None
    assert covering_window(["a", *["x"] * 62, "b"], {"a": 1.0, "b": 1.0}, 2.0, first=0, last=99) is not None
    assert covering_window(STEP, {"head": 9.0}, 9.0, first=0, last=20) is None


def test_a_window_may_be_wider_where_a_graph_is_left_out() -> None:
    assert Window(start=9, width=4, names=frozenset("a")).wider(3) == Window(start=6, width=10, names=frozenset("a"))
    assert Window(start=1, width=4, names=frozenset("a")).wider(3) == Window(start=0, width=8, names=frozenset("a"))


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
            "ORDER BY r.start, k.start",
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


def test_a_kernel_of_two_reports_is_one_whatever_namespaces_they_drop() -> None:
    first = [NcuLaunch(launch_id="0", kernel="void at::copy<4, at::Op>(int)")]
    more = [
        NcuLaunch(launch_id="0", kernel="void native::copy<4, native::Op>(int)"),
        NcuLaunch(launch_id="1", kernel="void native::copy<8, native::Op>(int)"),
    ]
    named = [launch.kernel for launch in named_alike(more, first)]
    assert named == ["void at::copy<4, at::Op>(int)", "void native::copy<8, native::Op>(int)"]


def test_time_that_kernels_share_on_the_timeline_is_counted_once() -> None:
    timeline = [NsysKernel(name="void at::native::copy<(int)4>(int)", instances=9, total_ns=900.0)]
    timeline.append(NsysKernel(name="gemm", instances=1, total_ns=100.0))
    launches = [
        NcuLaunch(launch_id=str(i), kernel=f"void {space}::copy<4>(int)") for i, space in enumerate(("at", "b"))
    ]
    analysis = join_nsys(analyze_ncu(launches), timeline, source="run.sqlite")
    captured = NcuCaptured(report=Path("r"), log=NcuLog(outcome="ok"), rerun=False, duration_s=1.0)
    assert result_metrics(analysis, captured)["ncu_coverage"].value == pytest.approx(0.9)


def _times(database: sqlite3.Connection, where: str = "1") -> dict[str, int]:
    return dict(
        database.execute(
            "SELECT s.value, sum(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            f"JOIN StringIds s ON s.id = k.demangledName WHERE {where} GROUP BY 1"
        ).fetchall()
    )


def _run(capture: Path, tmp_path: Path, kernels: str, *words: str) -> Run:
    composed = compose_config(["model=llama_tiny", "infer.max_new_tokens=5", *words])
    config = type_config(composed, user_dir=tmp_path)
    install(tmp_path / "bin")
    nsys = StageRecord(name="nsys", status="ok", files=(StageFile(role="nsys_sqlite", path=capture),))
    return Run(
        folder=tmp_path / "run",
        config=config,
        host=host(str(tmp_path / "bin" / "ncu"), H200),
        env={"FAKE_NCU_KERNELS": kernels},
        earlier={"nsys": nsys, "torch_profiler": StageRecord(name="torch_profiler", status="ok", metrics=CLEAN)},
    )


@pytest.mark.long
@pytest.mark.slow
def test_few_launches_in_a_row_are_profiled_in_place_of_names(capture: Path, tmp_path: Path) -> None:
    run = _run(capture, tmp_path, "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT")
    output = run.stage()
    first, second = captures(run)
    assert "--kernel-id" not in first
    skip, count = (int(first[first.index(flag) + 1]) for flag in ("--launch-skip", "--launch-count"))
    assert "pipeline.direct_inference.stop_after_tokens=4" in first
    launched = _by_hand(capture)
    # The second or third of the four steps of this capture, which is as long as the workload under ncu.
    assert len(launched) // 4 <= skip and skip + count <= 3 * len(launched) // 4
    held = set(launched[skip : skip + count])
    with closing(sqlite3.connect(capture)) as database:
        times = _times(database)
    assert sum(times[n] for n in held) >= 0.85 * sum(times[n] for n in set(launched))
    assert f"ncu: profiled: the {count} consecutive launches that hold them" in run.said
    assert output.metrics["ncu_plan_launches"].value == count <= 64
    # The stand-in reports the same few kernels for every query, which is less than is at that place.
    assert any(line.endswith("not found at their position; second capture by name") for line in run.said)
    assert "--kernel-id" in second and "--launch-skip" not in second
    assert "pipeline.direct_inference.stop_after_tokens=8" in second
    assert {f.path.name for f in output.files if f.role == "ncu_report"} == {"decode.ncu-rep", "decode-named.ncu-rep"}


@pytest.mark.long
@pytest.mark.slow
def test_kernels_of_a_graph_are_taken_at_their_place_with_room_beside_them(tmp_path: Path) -> None:
    capture = h200_export(tmp_path, "compiled")
    words = ["infer.cache=static", "infer.compile=reduce-overhead", "infer.max_new_tokens=16"]
    run = _run(capture, tmp_path, "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT", *words)
    run.stage()
    first = captures(run)[0]
    skip, count = (int(first[first.index(flag) + 1]) for flag in ("--launch-skip", "--launch-count"))
    launched = _by_hand(capture)
    assert len(launched) == 15 * 327
    with closing(sqlite3.connect(capture)) as database:
        # Of the steps alone: the prefill has kernels of its own.
        times = _times(database, "k.graphNodeId IS NOT NULL")
    held = set(launched[skip + 3 : skip + count - 3])
    assert sum(times[n] for n in held if n in times) >= 0.9 * sum(times.values())
    assert count <= 30
    assert any(word == '++infer.compile="default"' for word in first)


@pytest.mark.long
@pytest.mark.slow
def test_a_place_without_kernels_leads_back_to_their_names(capture: Path, tmp_path: Path) -> None:
    run = _run(capture, tmp_path, "nccl_only")
    with pytest.raises(ToolError, match="no kernel was profiled"):
        run.stage()
    assert "ncu: there is no kernel at that place; the chosen ones are requested by name" in run.said
    window, named, bare = captures(run)
    assert "--launch-skip" in window and "--kernel-id" in named
    assert "--launch-skip" not in bare and "--kernel-id" not in bare


@pytest.mark.long
@pytest.mark.slow
def test_a_second_look_that_fails_leaves_the_first(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = ncu_capture._run

    def late(plan: ncu_capture.Capture, *args: Any, suffix: str) -> Any:
        if suffix:
            raise ToolError("ncu did not end within 60 s")
        return once(plan, *args, suffix=suffix)

    monkeypatch.setattr(ncu_capture, "_run", late)
    run = _run(capture, tmp_path, "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT")
    output = run.stage()
    assert "ncu: the second capture has no result (ncu did not end within 60 s)" in run.said
    assert output.metrics["ncu_launches"].value == 24


@pytest.mark.long
@pytest.mark.slow
def test_a_capture_that_was_cut_short_is_not_made_again(
    capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = ncu_capture._run

    def cut(*args: Any, suffix: str) -> Any:
        log, result, _ = once(*args, suffix=suffix)
        return log, result, "ncu was ended after 60 s"

    monkeypatch.setattr(ncu_capture, "_run", cut)
    run = _run(capture, tmp_path, "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT")
    output = run.stage()
    assert len(captures(run)) == 1
    assert "ncu was ended after 60 s" in output.notes


@pytest.mark.long
@pytest.mark.slow
def test_more_launches_of_each_kernel_are_asked_for_by_name(capture: Path, tmp_path: Path) -> None:
    run = _run(capture, tmp_path, "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT")
    run.stage(max_launches_per_kernel=2)
    assert "--kernel-id" in captures(run)[0]


@pytest.mark.long
@pytest.mark.slow
def test_kernels_missed_by_name_are_looked_for_by_place(capture: Path, tmp_path: Path) -> None:
    # ncu meets one kernel by name; a window of launches contains all of them.
    run = _run(capture, tmp_path, "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT")
    output = run.stage(max_kernels=6)
    first, second = captures(run)
    assert "--kernel-id" in first and "--launch-skip" not in first
    assert "--kernel-id" not in second
    assert second[second.index("--kernel-name") + 1] == "regex:^(?!.*(nccl.*|ncclDevKernel.*))"
    skip, count = (int(second[second.index(flag) + 1]) for flag in ("--launch-skip", "--launch-count"))
    missing = set(_by_hand(capture)[skip : skip + count])
    (said,) = [line for line in run.said if "second capture" in line]
    assert said == f"ncu: 3 chosen kernels not found by name; second capture of {count} consecutive launches"
    assert count <= 64 and "nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN" in missing
    assert {f.path.name for f in output.files if f.role == "ncu_report"} == {"decode.ncu-rep", "decode-window.ncu-rep"}
    assert {"raw-window.csv", "details-window.csv", "cmd-window.txt", "log-window.txt"} <= {
        p.name for p in run.out.iterdir()
    }
    assert output.metrics["ncu_launches"].value == 48

"""What a terminal shows: lines and tables that fit it, colours where they are wanted, progress, the answer of a run."""

import os
import pty
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TextIO

import pytest
from rich.text import Text

from llm_perf_opt.capture.readers.ncu_log import read_ncu_progress
from llm_perf_opt.commands.entry import run_safely
from llm_perf_opt.core.manifest import read_manifest, write_manifest
from llm_perf_opt.core.records import Progress, StageRecord, read_progress
from llm_perf_opt.pipeline.console import LiveConsole, Pace, StageTurn, answer, ended_line, progress_text, verdict_lines
from llm_perf_opt.report.view.findings import FindingView
from llm_perf_opt.report.write import write_view
from llm_perf_opt.system.terminal import screen_width, show, table_text, terminal_table, wrap_line
from tests.support.report_runs import clean, stage, write_run

HEADER = ("range", "n", "wall ms", "copy/sync ms", "kernel")
ROWS = [
    ("decode_step", "24", "918.293", "0.020", "nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT"),
    ("prefill", "4", "463.854", "0.146", "setting up: loading, compiling or tuning"),
]


def test_a_table_folds_its_header_then_shortens_names_and_breaks_no_word() -> None:
    assert terminal_table(HEADER, ROWS, right=(1, 2, 3), width=60).splitlines() == [
        "range         n  wall ms  copy/sync  kernel",
        "                                 ms",
        "-----------  --  -------  ---------  -----------------------",
        "decode_step  24  918.293      0.020  nvjet_sm90_…x1_v_bz_TNT",
        "prefill       4  463.854      0.146  setting up: loading,",
        "                                     compiling or tuning",
    ]


def test_a_table_too_wide_even_so_comes_in_pieces_with_the_first_column() -> None:
    lines = terminal_table(HEADER, ROWS, right=(1, 2, 3), width=40).splitlines()
    assert max(map(len, lines)) <= 40
    assert [line.split()[0] for line in lines if line.startswith("decode_step")] == ["decode_step"] * 2
    assert {cell for row in ROWS for cell in row[:4]} <= set(" ".join(lines).split())


def test_a_column_without_a_value_is_left_out_on_a_terminal_and_kept_elsewhere() -> None:
    rows = [("tpot_ms", "", "better"), ("ttft_ms", "", "same")]
    assert terminal_table(
        ("metric", "repeats needed", "verdict"), rows, right=(2,), rule=False, width=40
    ).splitlines() == [
        "metric   verdict",
        "tpot_ms   better",
        "ttft_ms     same",
    ]
    assert "repeats needed" in terminal_table(("metric", "repeats needed", "verdict"), rows, right=())


def test_a_table_elsewhere_is_as_wide_as_it_is() -> None:
    assert terminal_table(HEADER, ROWS, right=(1, 2, 3), rule=False).splitlines()[1].endswith(ROWS[0][4])


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("short", ["short"]),
        ("  - one two three four five six", ["  - one two three four", "    five six"]),
        ("key   what it does in many words", ["key   what it does in", "      many words"]),
        ("see /a/path/without/any/space/in/it now", ["see", "/a/path/without/any/space/in/it", "now"]),
    ],
)
def test_a_line_ends_at_a_space_and_goes_on_below_its_text(line: str, lines: list[str]) -> None:
    assert wrap_line(line, 24) == lines


def on_terminal(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch, columns: int) -> str:
    """What a piece of work prints to a terminal of this width."""
    leader, follower = pty.openpty()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    with open(follower, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)

        def main(argv: list[str]) -> int:
            work()
            return 0

        assert run_safely(main, []) == 0
        terminal.flush()
        found = os.read(leader, 100_000).decode()
    os.close(leader)
    return found.replace("\r\n", "\n")


def test_all_that_is_printed_on_a_terminal_ends_at_spaces_and_steers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_terminal(lambda: print("a line of many words \x1b[2J that a terminal wraps"), monkeypatch, 30)
    assert found == "a line of many words \\x1b[2J\nthat a terminal wraps\n"


@pytest.mark.parametrize(("no_color", "red"), [("", True), ("1", False)])
def test_errors_are_red_unless_no_colour_is_wanted(no_color: str, red: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    found = on_terminal(lambda: print("error: key: no such choice", file=sys.stderr), monkeypatch, 80)
    assert found == ("\x1b[31merror: key: no such choice\x1b[0m\n" if red else "error: key: no such choice\n")


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_a_styled_line_keeps_its_colours_when_it_is_wrapped(
    no_color: str, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    line = Text.assemble("  1. decode is ", ("launch-bound and so on", "red"), " for long")
    found = on_terminal(lambda: show(line), monkeypatch, 30)
    assert re.sub(r"\x1b\[[\d;]*m", "", found) == "  1. decode is launch-bound\n     and so on for long\n"
    assert ("\x1b[31mlaunch-bound" in found) is coloured


def test_a_command_line_is_not_wrapped_so_that_it_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "  mkdir -p a/nsys && nsys profile --output=a/nsys/run python program.py"
    assert on_terminal(lambda: LiveConsole().say_command(line), monkeypatch, 30) == f"{line}\n"
    assert on_terminal(lambda: LiveConsole().say(line), monkeypatch, 30).count("\n") > 1


def test_nothing_is_wrapped_where_there_is_no_terminal(tmp_path: Path) -> None:
    def width(stream: TextIO) -> int | None:
        return screen_width(stream, {"COLUMNS": "20"})

    with (tmp_path / "log").open("w") as file:
        assert width(file) is None


def test_progress_of_our_children_and_of_ncu_is_read_and_other_words_are_not() -> None:
    told = Progress(text="clean pass, sample 3", done=3, of=6)
    assert read_progress(told.line) == told
    assert read_progress(Progress(text="loading").line) == Progress(text="loading")
    assert read_progress("USDT:2026-11-16 SyncActivityProfilerHandler.cpp:52] profiler_start") is None
    line = '==PROF== Profiling "gemm" - 4: 0%....50%'
    assert read_ncu_progress(line) == Progress(text="kernel 5, gemm")
    named = '==PROF== Profiling "1:7:void at::native::reduce<4>(int):20": 0%....50%'
    assert read_ncu_progress(named) == Progress(text="kernel void at::native::reduce<4>(int)")
    assert read_ncu_progress('==PROF== Profiling "gemm_x8": 0%') == Progress(text="kernel gemm_x8")
    assert read_ncu_progress("==PROF== Connected to process 12") is None


def test_the_line_of_progress_tells_stage_time_samples_and_the_rest() -> None:
    pace = Pace()
    turn = StageTurn(name="torch_profiler", number=2, of=4)
    seen = []
    for elapsed, done in ((10.0, 1), (14.0, 2), (18.0, 3), (19.0, 3)):
        told = Progress(text="clean pass", done=done, of=6)
        seen.append(progress_text(turn, elapsed, told, left_s=pace.left_s(elapsed, told)).plain)
    assert seen == [
        "[2/4] torch_profiler  10 s  1 of 6  clean pass",
        "[2/4] torch_profiler  14 s  2 of 6, about 16 s left  clean pass",
        "[2/4] torch_profiler  18 s  3 of 6, about 12 s left  clean pass",
        "[2/4] torch_profiler  19 s  3 of 6, about 11 s left  clean pass",
    ]
    # The profiled pass counts its own samples.
    assert pace.left_s(25.0, Progress(text="profiled", done=1, of=2)) is None


def test_a_run_ends_with_its_answer_and_names_a_failed_stage_once(tmp_path: Path) -> None:
    measured = stage("torch_profiler", tmp_path, metrics=clean(ttft_ms=120.0, tpot_ms=12.5))
    failed = StageRecord(name="nsys", status="failed", reason="nsys was not found")
    run = write_run(tmp_path, measured, failed, status="failed")
    view, reports = write_view(run)
    lines = [line.plain for line in answer(read_manifest(run), view, reports)]
    assert lines[1] == "Measured: decode 12.50 ms per token; the distance to the hardware's lower bound is not known."
    assert lines[-2:] == [
        f"nsys failed; fix the cause, then: llm-perf profile run.resume={run}",
        f"report: {run}/report.html",
    ]
    assert "nsys was not found" not in "\n".join(lines)


def test_the_same_failure_of_a_second_stage_is_not_told_again() -> None:
    told: set[str] = set()
    reason = "my.py failed with exit code 1: no room (log: {}/clean.log)"
    lines = [
        ended_line(
            StageRecord(
                name=name,
                status="failed",
                reason=reason.format(name),
                failure="my.py failed with exit code 1: no room",
                duration_s=2.0,
            ),
            reused=False,
            reasons_shown=told,
        )
        for name in ("torch_profiler", "nsys")
    ]
    assert lines == [
        "torch_profiler: failed in 2.0 s — my.py failed with exit code 1: no room (log: torch_profiler/clean.log)",
        "nsys: failed in 2.0 s — for the same reason",
    ]


def test_a_program_that_crashed_is_told_of_when_it_did_and_not_again(tmp_path: Path) -> None:
    reason = "my.py failed with exit code 1: RuntimeError: no room (log: torch_profiler/clean.log)"
    failed = StageRecord(
        name="torch_profiler",
        status="failed",
        reason=reason,
        failure=reason.removesuffix(" (log: torch_profiler/clean.log)"),
    )
    config = {"workload": {"command": ["python", "my.py"]}}
    run = write_run(tmp_path, failed, status="failed")
    write_manifest(run, replace(read_manifest(run), config=config))
    view, reports = write_view(run)
    assert "RuntimeError: no room" in view.headline.verdict
    assert "no room" not in "\n".join(line.plain for line in answer(read_manifest(run), view, reports))


def test_a_finding_is_told_with_its_gain_behind_a_colon(tmp_path: Path) -> None:
    run = write_run(tmp_path, stage("torch_profiler", tmp_path, metrics=clean(ttft_ms=120.0, tpot_ms=12.5)))
    view, _ = write_view(run)
    finding = FindingView(
        rank=1,
        rule="launch_bound",
        title="Decode waits",
        also=(),
        phase="decode",
        evidence=(),
        plain_words="",
        remedy="",
        saves="up to 2 ms per request",
        saves_each="",
        gain="1.2× over a request",
        confidence="high",
        caveat=None,
    )
    lines = [line.plain for line in verdict_lines(replace(view, findings=(finding,)))]
    assert lines[-1] == "  1. Decode waits: up to 2 ms per request, 1.2× over a request"


def test_a_busy_machine_is_told_beside_the_verdict(tmp_path: Path) -> None:
    run = write_run(tmp_path, stage("torch_profiler", tmp_path, metrics=clean(ttft_ms=120.0, tpot_ms=12.5)))
    view, _ = write_view(run)
    warnings = ("other programs kept 1.6 of 2 CPU cores busy during the clean pass", "tpot_ms: uncertain by ±5 %")
    shaky = replace(view, headline=replace(view.headline, warnings=warnings))
    told = [[line.plain for line in verdict_lines(one) if "unsteady" in line.plain] for one in (view, shaky)]
    assert told == [[], [f"  unsteady: {warnings[0]}"]]


def test_a_table_has_its_header_in_bold() -> None:
    text = table_text(("a",), [("1",)], right=(), rule=False)
    assert [str(span.style) for span in text.spans] == ["bold"]

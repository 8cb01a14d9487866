"""`llm-perf run --attach`: its options, what it says of a process, and what it says where it may not look."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from llm_perf_opt.commands.attach import AttachOptions, parse_options, read_duration
from llm_perf_opt.commands.attach_answer import answer_lines, attach
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.profiling import attached
from llm_perf_opt.profiling.attached import AttachedLook, ProcessTarget, find_target, look_at

BUSY = """
import json, time
def pack(state):
    return json.dumps(state)
end = time.monotonic() + 60
state = list(range(100_000))
while time.monotonic() < end:
    pack(state)
"""


def test_options_are_read_with_and_without_a_sign() -> None:
    found = parse_options(["--attach", "42", "--duration=1.5m", "--rate", "50", "--out", "here"])
    assert found == AttachOptions(pid=42, duration_s=90.0, rate_hz=50, out=Path("here"))
    assert parse_options(["--attach=42"]) == AttachOptions(pid=42)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--attach", "me"], "must be the number of a process (got 'me')"),
        (["--attach"], "--attach has no value"),
        (["--attach", "1", "--duration", "9x"], "invalid duration '9x': use 90s, 10m or 1h"),
        (["--attach", "1", "--rate", "0"], "--rate must be between 1 and 1000 (got '0')"),
        (["--attach", "1", "python"], "'python' does not go with --attach"),
    ],
)
def test_a_wrong_option_says_what_is_right(words: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(words)
    assert told in str(caught.value)


def test_a_duration_has_a_unit_or_is_seconds() -> None:
    assert [read_duration(text) for text in ("500ms", "20", "20s", "2m", "1h")] == [0.5, 20.0, 20.0, 120.0, 3600.0]


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[int]:
    program = tmp_path / "busy.py"
    program.write_text(BUSY, encoding="utf-8")
    with subprocess.Popen([sys.executable, str(program)], stdin=subprocess.DEVNULL) as process:
        time.sleep(0.3)
        yield process.pid
        process.kill()


@pytest.mark.slow
def test_a_running_program_gets_an_answer_and_goes_on(
    busy: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert attach(AttachOptions(pid=busy, duration_s=1.0, rate_hz=100, out=tmp_path / "out"))
    told = capsys.readouterr().out
    assert "Serialisation (JSON, pickle): " in told and "pack() at busy.py:4" in told
    assert "main thread, by the kernel: " in told
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"host_samples.json", "diagnosis.json", "stacks.txt"}
    assert find_target(busy).is_python


def test_a_process_that_is_not_python_is_looked_at_as_far_as_the_kernel_says(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "30"]) as process:
        target = find_target(process.pid)
        look = look_at(target, seconds=0.2, rate_hz=100, out=tmp_path, gpu=None)
        process.kill()
    assert (target.is_python, look.samples) == (False, None)
    assert look.why == "it is not a Python process (sleep), and only Python stacks are sampled"
    assert next(iter(look.waits)).startswith(("waiting in ", "sleeping"))


def test_a_process_that_is_not_there_is_refused() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(ConfigError, match=f"no process {process.pid} runs on this machine"):
        find_target(process.pid)


def target(*, is_mine: bool) -> ProcessTarget:
    return ProcessTarget(
        pid=7, command=("python", "x.py"), user="alice", is_mine=is_mine, is_python=True, folder=Path("/")
    )


def test_a_process_of_another_user_is_left_alone_and_says_who_may() -> None:
    assert attached._refusal(target(is_mine=True)) == ""
    assert attached._refusal(target(is_mine=False)) == ("it belongs to alice: run the command as alice or as root")


def test_what_was_not_possible_is_said_with_what_was() -> None:
    look = AttachedLook(
        target=target(is_mine=True),
        seconds=2.0,
        samples=None,
        why="py-spy may not read its memory",
        cpu_s=1.0,
        waits={"running": 1.0},
        read_bytes=None,
        written_bytes=None,
        environment={},
        gpu=(),
        gpu_device="",
        gpu_reason="",
        ended=False,
    )
    assert answer_lines(look, None)[:3] == [
        "no host stacks: py-spy may not read its memory",
        "  processors: 0.50 in use on average",
        "  main thread, by the kernel: running 100.0 %",
    ]

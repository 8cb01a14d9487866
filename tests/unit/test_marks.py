"""Marks in anyone's program: silent, as NVTX ranges, in a torch trace, and as lines of a clean pass."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import llm_perf_opt as perf
from llm_perf_opt import marks
from llm_perf_opt.profiling.user_program import read_marks
from llm_perf_opt.system.redact import Redactor
from tests.support.fixtures_dir import REPO


@pytest.fixture
def listened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Marks go to files below tmp_path; afterwards there is no listener again."""
    marks.listen({marks.MARKS_DIR: str(tmp_path)})
    yield lambda: _lines(tmp_path)
    marks.listen({})


def _lines(folder: Path) -> list[dict[str, Any]]:
    assert marks._journal is not None
    marks._journal.flush()
    return [json.loads(line) for path in folder.glob("marks-*.jsonl") for line in path.read_text().splitlines()]


def test_a_phase_is_a_line_with_its_wall_time_and_facts(listened: Any) -> None:
    with perf.phase("prefill", tokens=1024):
        pass
    (line,) = listened()
    assert line.pop("ms") >= 0 and line.pop("start_ns") > 0 and line.pop("thread") > 0
    assert line == {
        "kind": "phase",
        "name": "prefill",
        "depth": 0,
        "warmup": False,
        "synchronised": False,
        "pid": os.getpid(),
        "tokens": 1024,
    }


def test_requests_and_warm_up_surround_phases_and_decorators_mark_every_call(listened: Any) -> None:
    @perf.phase("decode_step", tokens=2)
    def step(value: int) -> int:
        return value + 1

    with perf.mark_warmup():
        step(0)
    with perf.request(7):
        assert step(step(1)) == 3
    found = [(line["kind"], line["name"], line["depth"], line["warmup"]) for line in listened()]
    assert found == [
        ("phase", "decode_step", 1, True),
        ("warmup", "warmup", 0, True),
        ("phase", "decode_step", 1, False),
        ("phase", "decode_step", 1, False),
        ("request", "request 7", 0, False),
    ]


def test_an_error_passes_through_and_the_phase_is_still_closed(listened: Any) -> None:
    with pytest.raises(ValueError, match="inside"), perf.phase("prefill"):
        raise ValueError("inside")
    with perf.phase("after"):
        pass
    assert [(line["name"], line["depth"]) for line in listened()] == [("prefill", 0), ("after", 0)]


def test_facts_of_any_kind_leave_the_line_readable(
    listened: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Counted:
        """As a tensor of one number."""

        def __int__(self) -> int:
            return 8

    with perf.phase("a", tokens=Counted(), ms="mine", share=float("nan")):
        pass
    with perf.phase("b", tokens="many"):
        pass
    listened()
    assert [(mark.name, mark.tokens) for mark in read_marks(tmp_path, Redactor())] == [("a", 8), ("b", None)]
    assert capsys.readouterr().err == "llm_perf_opt.marks: tokens='many' is not a count, left out\n"


def test_a_forked_worker_writes_its_phases_at_its_end(tmp_path: Path) -> None:
    code = (
        "import multiprocessing, llm_perf_opt as perf\n"
        "def work():\n"
        "    with perf.phase('child'): pass\n"
        "with perf.phase('parent'): pass\n"
        "worker = multiprocessing.get_context('fork').Process(target=work)\n"
        "worker.start(); worker.join()\n"
    )
    environment = {**os.environ, marks.MARKS_DIR: str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert [mark.name for mark in read_marks(tmp_path, Redactor())] == ["parent", "child"]


def test_one_mark_may_be_open_in_several_threads_and_inside_itself(listened: Any) -> None:
    step = perf.phase("step")
    inside, may_end = threading.Event(), threading.Event()

    def other() -> None:
        with step:
            inside.set()
            may_end.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait(10)
    with step, step:
        pass
    may_end.set()
    thread.join()
    assert [(line["thread"] == thread.ident, line["depth"]) for line in listened()] == [
        (False, 1),
        (False, 0),
        (True, 0),
    ]


def test_decorated_coroutines_and_generators_are_marked_to_their_end(listened: Any) -> None:
    @perf.phase("answer")
    async def answer() -> str:
        await asyncio.sleep(0.02)
        return "done"

    @perf.phase("stream")
    async def stream() -> AsyncIterator[int]:
        for number in range(2):
            await asyncio.sleep(0.01)
            yield number

    @perf.phase("pieces")
    def pieces() -> Iterator[int]:
        time.sleep(0.02)
        yield 1

    async def use() -> tuple[str, list[int]]:
        return await answer(), [number async for number in stream()]

    assert (asyncio.run(use()), list(pieces())) == (("done", [0, 1]), [1])
    lines = listened()
    assert [line["name"] for line in lines] == ["answer", "stream", "pieces"]
    assert all(line["ms"] >= 19 for line in lines)


def test_requests_of_one_event_loop_do_not_stand_inside_each_other(listened: Any) -> None:
    async def serve(number: int, seconds: float) -> None:
        with perf.request(number), perf.phase("decode"):
            await asyncio.sleep(seconds)

    async def both() -> None:
        await asyncio.gather(serve(1, 0.01), serve(2, 0.03))

    asyncio.run(both())
    assert [(line["name"], line["depth"]) for line in listened()] == [
        ("decode", 1),
        ("request 1", 0),
        ("decode", 1),
        ("request 2", 0),
    ]


@pytest.mark.slow
def test_a_phase_is_a_range_of_a_torch_trace_while_the_profiler_records() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as recorded, perf.phase("decode_step"):
        pass
    with perf.phase("unheard"):
        pass
    names = {event.name for event in recorded.events() or []}
    assert "decode_step" in names and "unheard" not in names


def test_under_a_profiler_that_injects_nvtx_a_phase_is_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    calls = (seen.append, lambda: seen.append("end"))
    monkeypatch.setattr(marks, "_nvtx_calls", lambda: calls)
    marks.listen({marks.NVTX_INJECTION: "/opt/libInjection.so"})
    try:
        with perf.phase("prefill"), perf.phase("inner"):
            pass
    finally:
        marks.listen({})
    assert seen == ["prefill", "inner", "end", "end"]


def test_marks_need_neither_torch_nor_our_dependencies(tmp_path: Path) -> None:
    code = (
        "import sys, llm_perf_opt as perf\n"
        "with perf.phase('a'): pass\n"
        "import os\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    with perf.phase('child'): pass\n"
        "    sys.exit()\n"
        "os.waitpid(pid, 0)\n"
        "print(sorted({'torch', 'numpy', 'msgspec', 'hydra', 'pydantic'} & set(sys.modules)))\n"
    )
    environment = {**os.environ, marks.MARKS_DIR: str(tmp_path), "PYTHONPATH": str(REPO / "src")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
    files = [path.read_text().splitlines() for path in tmp_path.iterdir()]
    assert sorted([json.loads(line)["name"] for line in lines] for lines in files) == [["a"], ["child"]]


def test_a_folder_that_is_gone_does_not_end_the_program(tmp_path: Path) -> None:
    environment = {**os.environ, marks.MARKS_DIR: str(tmp_path / "gone")}
    code = "import llm_perf_opt as perf\nwith perf.phase('a'): pass\nprint('done')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("done\n", 0)
    assert done.stderr == f"llm_perf_opt.marks: {tmp_path / 'gone'}: cannot be written (No such file or directory)\n"

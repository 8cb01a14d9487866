"""The in-process sampler: places, types, pauses, memory; and what is made of it."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.core.documents import HostRow
from llm_perf_opt.diagnosis.host.owners import INTERPRETER, no_names
from llm_perf_opt.diagnosis.host.stacks import Frame, Stack, with_command_code
from llm_perf_opt.profiling.observed import (
    LineNames,
    first_look,
    observing_environment,
    read_looks,
    stacks_of,
    stacks_of_places,
    summarise_look,
)
from llm_perf_opt.profiling.sampled import Pass, _ends, _explained, _other_side

PROGRAM = """
import os, time
def work(end):
    kept = bytearray(30_000_000)
    while time.process_time() < end:
        for _ in range(1000):
            node = []
            node.append(node)
    return len(kept)
work(time.process_time() + 0.5)
os.environ.clear()
"""


def watch(folder: Path, *, stacks: bool, text: str = PROGRAM, **environ: str) -> Path:
    program = folder / "program.py"
    program.write_text(text, encoding="utf-8")
    looks = folder / "looks"
    looks.mkdir()
    given = {**os.environ, **environ}
    env = {**given, **observing_environment(looks, stacks=stacks, environ=given)}
    subprocess.run([sys.executable, str(program)], env=env, check=True, timeout=60, stdin=subprocess.DEVNULL)
    return program


def test_a_look_knows_places_types_pauses_and_memory(tmp_path: Path) -> None:
    program = watch(tmp_path, stacks=False)
    look = first_look(read_looks(tmp_path / "looks"), 0)
    assert look is not None and look.ended and not look.raised and look.stacks == ()
    assert look.age_s > 0
    # Of two seconds 1.5 were sampled; 0.1 passed before, so 0.4 after.
    timed = replace(look, age_s=0.1, elapsed_s=1.5)
    whole = Pass(process=look.pid, stacks=(), duration_s=2.0, cpu_s=1.0, end_unseen=False, sampler="py-spy", look=timed)
    bare = HostRow(cell=INTERPRETER, function="", file="", line=0, leaf="", text="", samples=100)
    assert _ends([bare], whole) == [replace(bare, cell="host.exit", samples=80), replace(bare, samples=20)]
    assert _ends([bare], replace(whole, look=replace(timed, ended=False))) == [bare]
    assert (str(program), "work") in {(place.file, place.function) for place in look.places}
    types = {name: seen for place in look.places for name, seen in place.types.items()}
    assert types["kept"] == "bytearray 30000000 elements"
    found = summarise_look(look, str)
    assert found.garbage.count > 0 and found.garbage.owner.startswith("work() at program.py:")
    assert found.memory.peak_bytes > 30_000_000
    assert found.threads.processors == len(os.sched_getaffinity(0))


def test_an_end_by_an_exception_is_known(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        watch(tmp_path, stacks=False, text="raise ValueError('no')\n")
    look = first_look(read_looks(tmp_path / "looks"), 0)
    assert look is not None and look.ended and look.raised


def test_where_it_samples_too_its_stacks_are_those_of_a_sampler(tmp_path: Path) -> None:
    program = watch(tmp_path, stacks=True)
    look = first_look(read_looks(tmp_path / "looks"), 0)
    assert look is not None
    stacks = stacks_of(look, rate_hz=200)
    assert all(stack.is_main and stack.process == look.pid for stack in stacks)
    # The first sample may come before the program's first line, the last at its end.
    work = [s for s in stacks if s.frames[:1] == (Frame(function="<module>", file=str(program), line=10),)]
    assert {stack.frames[1].function for stack in work} == {"work"}
    samples = sum(stack.samples for stack in work)
    assert samples > 40
    assert samples > 0.5 * sum(stack.samples for stack in stacks)


def test_variables_that_change_the_speed_are_kept_and_no_others(tmp_path: Path) -> None:
    text = "import time\ntime.sleep(0.2)\n"
    watch(tmp_path, stacks=False, text=text, OMP_NUM_THREADS="1", MY_PASSWORD="secret")
    look = first_look(read_looks(tmp_path / "looks"), 0)
    assert look is not None
    assert look.environment["OMP_NUM_THREADS"] == "1"
    assert "MY_PASSWORD" not in look.environment


def test_a_line_is_named_with_the_values_that_were_seen(tmp_path: Path) -> None:
    text = "import time\ndef poll(end, file):\n    while time.process_time() < end:\n        file.read(1 << 22)\n"
    text += "with open('/dev/zero', 'rb') as source:\n    poll(time.process_time() + 0.4, source)\n"
    program = watch(tmp_path, stacks=False, text=text)
    names = LineNames(folder=tmp_path, look=first_look(read_looks(tmp_path / "looks"), 0))
    assert names(str(program), "poll", 4)[0] in ("_io.BufferedReader().read", "file.read")
    assert names.detail(str(program), 4) == "_io.BufferedReader '/dev/zero'"


def test_an_idle_event_loop_is_known_by_what_its_tasks_await(tmp_path: Path) -> None:
    text = "import asyncio\nasync def ask():\n    await asyncio.sleep(0.5)\nasyncio.run(ask())\n"
    program = watch(tmp_path, stacks=False, text=text)
    look = first_look(read_looks(tmp_path / "looks"), 0)
    assert look is not None
    assert {(file, function, line) for file, function, line, _ in look.awaits} == {(str(program), "ask", 3)}


def test_places_stand_for_the_stacks_that_a_sampler_lost(tmp_path: Path) -> None:
    watch(tmp_path, stacks=False)
    look = first_look(read_looks(tmp_path / "looks"), 0)
    assert look is not None
    stacks = stacks_of_places(look, rate_hz=200)
    assert {stack.frames[0].function for stack in stacks} <= {place.function for place in look.places}
    assert sum(stack.samples for stack in stacks) > 40


MODEL = """
import sys, time, types
class Module:
    pass
Module.__module__ = "torch.nn.modules.module"
class Parameter:
    dtype = "torch.float64"
    def numel(self):
        return 3
class Net(Module):
    def __init__(self, inner):
        self._parameters, self._modules = {"weight": Parameter(), "bias": None}, inner
def run(net, end):
    while time.process_time() < end:
        for _ in range(1000):
            len(net._modules)
run(Net({"a": Net({})}), time.process_time() + 0.4)
"""


def test_a_module_is_told_by_the_dtype_and_number_of_its_parameters(tmp_path: Path) -> None:
    program = watch(tmp_path, stacks=False, text=MODEL)
    look = first_look(read_looks(tmp_path / "looks"), 0)
    names = LineNames(folder=program.parent, look=look)
    assert "arg torch.nn.Module float64 6 parameters" in names(str(program), "run", 16)


def child(*frames: Frame, samples: int) -> Stack:
    return Stack(processes=(7, 9), thread="MainThread", is_main=True, frames=frames, samples=samples)


WAIT = HostRow(cell="host.wait.process", function="score", file="/home/a.py", line=3, leaf="", text="", samples=90)
WORK = Frame(function="decode", file="/home/a.py", line=8)


def test_a_wait_for_workers_that_load_data_is_owned_by_what_they_do(tmp_path: Path) -> None:
    other = _other_side([child(WORK, samples=60)], lambda file, line: "", no_names, 7)
    row = _explained(replace(WAIT, cell="host.data_loading"), LineNames(folder=tmp_path), other, 90)
    assert (row.cell, row.function, row.line, row.samples) == ("host.data_loading.workers", "decode", 8, 90)
    assert row.leaf == "awaited in score() at a.py:3"


def test_a_wait_for_processes_that_mostly_start_says_what_they_import(tmp_path: Path) -> None:
    loads = Frame(function="<module>", file="/lib/python3.11/site-packages/pandas/__init__.py", line=1)
    frozen = Frame(function="_find_and_load", file="<frozen importlib._bootstrap>", line=1)
    starts = child(WORK, frozen, loads, samples=60)
    other = _other_side([starts, child(WORK, samples=20)], lambda file, line: "", no_names, 7)
    row = _explained(WAIT, LineNames(folder=tmp_path), other, 90)
    assert (row.cell, row.detail) == ("host.wait.process.start", "meanwhile a child process: importing pandas")


def test_code_after_c_is_the_programs_own_and_that_of_libraries_is_not() -> None:
    frames = (
        Frame(function="<module>", file="<string>", line=5),
        Frame(function="encode", file="<string>", line=4),
        Frame(function="__init__", file="<string>", line=3),
    )
    stacks = (child(*frames, samples=3), child(*frames[1:], samples=2))
    named, other = with_command_code(stacks)
    assert [frame.file for frame in named.frames] == ["-c", "-c", "<string>"]
    assert other == stacks[1]

"""The stage host_samples keeps the contract; a sampler that fails takes nothing away from the clean pass."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from llm_perf_opt.config.schema import WorkloadSection
from llm_perf_opt.core.documents import HostDocument
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.profiling import sampled
from llm_perf_opt.profiling.stages.host_samples import STAGE, HostSamplesConfig
from llm_perf_opt.testing import StageCase, StageContract, plain_config, scratch_context

BUSY = """
import threading, time
def spin(end):
    count = 0
    while time.monotonic() < end:
        count += 1
def other(end):
    count = 0
    while time.monotonic() < end:
        count += 1
end = time.monotonic() + 0.8
"""
ALONE = BUSY + "spin(end)\n"
BOTH = BUSY + "thread = threading.Thread(target=other, args=(end,))\nthread.start()\nspin(end)\nthread.join()\n"


def case(folder: Path, text: str, **workload: float) -> StageCase:
    program = folder / "busy.py"
    program.write_text(text, encoding="utf-8")
    section = replace(WorkloadSection(), command=(sys.executable, str(program)), **workload)  # type: ignore[arg-type]
    config = plain_config(folder, workload=section)
    return StageCase(settings=HostSamplesConfig(enable=True, timeout_s=60.0), config=config)


def run(given: StageCase, folder: Path, said: list[str] | None = None) -> StageOutput:
    ctx = scratch_context("host_samples", folder / "run", config=given.config, said=said)
    assert isinstance(given.settings, HostSamplesConfig)
    return STAGE.run(given.settings, ctx)


def document(output: StageOutput) -> HostDocument:
    path = next(file.path for file in output.files if file.role == "host_samples")
    return msgspec.json.decode(path.read_bytes(), type=HostDocument)


class TestHostSamples(StageContract):
    stage = STAGE

    def success(self, folder: Path) -> StageCase:
        return case(folder, ALONE)

    def failure(self, folder: Path) -> StageCase:
        return case(folder, "raise SystemExit('no data')")

    def skip(self, folder: Path) -> StageCase:
        return replace(case(folder, ""), config=plain_config(folder))

    def timeout(self, folder: Path) -> None:
        # A program that does not end in time is ended, and what was sampled stays.
        return None


def test_the_busiest_function_and_its_line_are_named(tmp_path: Path) -> None:
    output = run(case(tmp_path, ALONE), tmp_path)
    found = document(output)
    assert (found.rows[0].cell, found.rows[0].function) == ("host.work.python", "spin")
    assert found.rows[0].line in (5, 6)
    assert output.metrics["wall_ms"].source == "tmp/workload/clean/metrics.json"
    assert found.gil is None


def test_a_second_pass_says_who_holds_the_gil_where_threads_compete(tmp_path: Path) -> None:
    found = document(run(case(tmp_path, BOTH), tmp_path))
    assert found.gil is not None
    assert found.gil.holder.startswith("other() at busy.py:")
    assert found.gil.main_share + found.gil.others_share > 0.5


@pytest.mark.long
def test_a_program_that_does_not_end_is_sampled_and_ended(tmp_path: Path) -> None:
    found = document(run(case(tmp_path, "import time\ntime.sleep(600)\n", duration_s=2.0), tmp_path))
    assert (found.rows[0].cell, found.rows[0].text) == ("host.wait.sleep", "time.sleep(600)")


def test_where_py_spy_may_not_read_the_program_a_thread_inside_samples_it_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = tmp_path / "py-spy"
    refused.write_text("#!/bin/sh\necho 'Permission Denied: try sudo'\nexit 1\n", encoding="utf-8")
    refused.chmod(0o755)
    monkeypatch.setattr(sampled, "find_sampler", lambda: (str(refused), "py-spy"))
    said: list[str] = []
    output = run(case(tmp_path, ALONE), tmp_path, said)
    assert "wall_ms" in output.metrics
    assert "--cap-add SYS_PTRACE" in output.notes[0]
    assert "a thread inside the program sampled it, 100 times a second" in output.notes[0]
    # On a busy machine a note says that too.
    assert said[0].startswith("host_samples: clean pass: the program ran ")
    assert said[1:] == [f"host_samples: {note}" for note in output.notes]
    found = document(output)
    assert found.sampler == "a thread inside the program"
    assert (found.rows[0].cell, found.rows[0].function) == ("host.work.python", "spin")


def test_where_nothing_can_sample_the_clean_pass_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampled, "find_sampler", lambda: None)
    section = replace(WorkloadSection(), command=("sleep", "0.3"))
    given = StageCase(
        settings=HostSamplesConfig(enable=True, timeout_s=60.0), config=plain_config(tmp_path, workload=section)
    )
    output = run(given, tmp_path)
    assert "wall_ms" in output.metrics
    assert output.notes[0].startswith(
        "no host stacks: py-spy is not installed (pip install py-spy); the program showed"
    )
    # It slept: so much is known of a program in any language.
    busy = output.metrics["cpu_busy_share"].value
    assert isinstance(busy, float) and busy < 0.5


@pytest.mark.long
@pytest.mark.slow
def test_an_interpreter_that_a_shell_must_find_first_is_sampled(tmp_path: Path) -> None:
    shim = tmp_path / "python"
    shim.write_text(f'#!/bin/sh\nsleep 1\nexec {sys.executable} "$@"\n', encoding="utf-8")
    shim.chmod(0o755)
    program = tmp_path / "busy.py"
    program.write_text(ALONE, encoding="utf-8")
    section = replace(WorkloadSection(), command=(str(shim), str(program)))
    settings = HostSamplesConfig(enable=True, timeout_s=60.0)
    found = document(run(StageCase(settings=settings, config=plain_config(tmp_path, workload=section)), tmp_path))
    assert found.sampler.startswith("py-spy ")
    assert (found.rows[0].cell, found.rows[0].function) == ("host.work.python", "spin")


def test_a_program_whose_end_was_not_seen_is_not_called_successful(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = tmp_path / "py-spy"
    stack = 'process 7:"python a.py";thread (7): MainThread;spin (a.py:3) 40'
    script = f"#!/bin/sh\nwhile [ \"$1\" != --output ]; do shift; done\nprintf '%s\\n' '{stack}' > \"$2\"\n"
    sampler.write_text(script, encoding="utf-8")
    sampler.chmod(0o755)
    monkeypatch.setattr(sampled, "find_sampler", lambda: (str(sampler), "py-spy"))
    assert run(case(tmp_path, ALONE), tmp_path).notes == (sampled.NO_EXIT_CODE,)


def test_secrets_in_source_lines_are_not_written_down(tmp_path: Path) -> None:
    secret = "hf_" + "a1B2c3D4" * 5
    text = f'import time\ntime.sleep(0.5 if "{secret}" else 0)\n'
    output = run(case(tmp_path, text), tmp_path)
    assert secret not in json.dumps(msgspec.to_builtins(document(output)))

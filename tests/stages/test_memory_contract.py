"""The stage memory keeps the contract, and a workload that dies of memory leaves a post-mortem."""

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.config.schema import AppConfig, InferSection
from llm_perf_opt.core.stage import StageFailed
from llm_perf_opt.plugins.memory.stage import STAGE, MemoryConfig
from llm_perf_opt.testing import StageCase, StageContract, scratch_context
from tests.support.fixtures_dir import REPO
from tests.support.workload_fakes import FakeConfig, prompts

IMPORTS_FAKES = {"PYTHONPATH": os.pathsep.join([str(REPO), str(REPO / "src")])}


def fake_model(folder: Path, *lines: str) -> AppConfig:
    return FakeConfig(dataset=prompts(folder / "p.txt", lines), infer=InferSection(max_new_tokens=3)).build(folder)


@pytest.mark.long
class TestMemory(StageContract):
    stage = STAGE

    def case(self, folder: Path, *lines: str, timeout_s: float = 120.0) -> StageCase:
        settings = MemoryConfig(enable=True, timeout_s=timeout_s)
        return StageCase(settings=settings, config=fake_model(folder, *lines), env=IMPORTS_FAKES)

    def success(self, folder: Path) -> StageCase:
        return self.case(folder, "1 2", "3")

    def failure(self, folder: Path) -> StageCase:
        return replace(self.case(folder, "1 2"), env={**IMPORTS_FAKES, "FAKE_HUGE_BYTES": str(1 << 50)})

    def skip(self, folder: Path) -> None:
        return None

    def timeout(self, folder: Path) -> StageCase:
        return self.case(folder, "1", timeout_s=0.2)


@pytest.mark.long
def test_a_workload_that_runs_out_of_memory_fails_with_its_post_mortem(tmp_path: Path) -> None:
    case = TestMemory().failure(tmp_path)
    ctx = scratch_context("memory", tmp_path / "run", config=case.config, env=case.env)
    assert isinstance(case.settings, MemoryConfig)
    with pytest.raises(StageFailed) as caught:
        STAGE.run(case.settings, ctx)
    assert str(caught.value).startswith("the workload ran out of memory: ")
    assert "what was allocated is in memory/out_of_memory.json" in str(caught.value)
    output = caught.value.output
    assert [section.title for section in output.sections] == ["Out of memory", "Memory over time"]
    assert {file.role for file in output.files} >= {"memory_oom_json", "memory_json", "memory_resident", "counters"}


@pytest.mark.long
def test_a_workload_the_system_kills_leaves_its_resident_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TestMemory().success(tmp_path)
    killer = (
        "import os, signal, sys\n"
        "from llm_perf_opt.plugins.memory.watcher import MemoryWatcher as Real\n"
        "class MemoryWatcher(Real):\n"
        "    def ended(self, name):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "killer.py").write_text(killer)
    env = {**case.env, "PYTHONPATH": f"{tmp_path}{os.pathsep}{IMPORTS_FAKES['PYTHONPATH']}"}
    ctx = scratch_context("memory", tmp_path / "run", config=case.config, env=env)
    assert isinstance(case.settings, MemoryConfig)
    monkeypatch.setattr(sys.modules[STAGE.__module__], "WATCHER", "killer:MemoryWatcher")
    with pytest.raises(StageFailed) as caught:
        STAGE.run(case.settings, ctx)
    assert "was ended by signal 9, as the system does when memory runs out; its resident set was" in str(caught.value)
    assert [file.role for file in caught.value.output.files] == ["memory_resident"]

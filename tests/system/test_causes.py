"""`llm-perf run` names the planted cause of programs without marks, and the line it is in."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.causes.run import Planted, ask_llm_perf, load_planted

from llm_perf_opt.config.schema import WorkloadSection
from llm_perf_opt.diagnosis.diagnose import judge
from llm_perf_opt.diagnosis.diagnosis_document import Program
from llm_perf_opt.diagnosis.facts import HostFacts, Unknown
from llm_perf_opt.diagnosis.host_scope import program_scope
from llm_perf_opt.profiling.sampled import sample_program
from llm_perf_opt.testing import plain_config, scratch_context

PLANTED = load_planted()
QUICK = [row for row in PLANTED if row.quick]
WHOLE = ("python_loop", "sleep", "json_dump")
NOTHING_KNOWN = Program(framework="other", engine=None, gpu_name=None, world_size=1, ranks_given=1, traits=())


@pytest.mark.parametrize("planted", QUICK, ids=lambda row: row.name)
def test_the_sampled_pass_alone_names_the_planted_cause(
    planted: Planted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLM_PERF_CAUSE_SECONDS", "0.3")
    section = replace(WorkloadSection(), command=(sys.executable, str(planted.program)))
    config = plain_config(tmp_path, workload=section)
    ctx = scratch_context("host_samples", tmp_path / "run", config=config)
    samples = sample_program(ctx, rate_hz=200, timeout_s=60.0, holds_gil=False)
    unknown = Unknown(reason="there was no clean pass")
    scope = program_scope(HostFacts(samples=samples, source="host_samples.json", wall=unknown))
    assert scope is not None
    first = judge([scope], NOTHING_KNOWN)[0]
    assert first.rule == planted.cause
    assert planted.owner in first.title


@pytest.mark.long
@pytest.mark.parametrize("planted", [row for row in PLANTED if row.name in WHOLE], ids=lambda row: row.name)
def test_the_first_finding_is_the_planted_cause(planted: Planted, tmp_path: Path) -> None:
    answer = ask_llm_perf(planted, tmp_path)
    assert answer.is_right, answer.said


def test_every_program_has_an_expected_answer_and_ten_are_quick() -> None:
    folder = PLANTED[0].program.parent
    assert {row.program.name for row in PLANTED} == {path.name for path in folder.glob("*.py")}
    assert len(PLANTED) >= 40
    assert len(QUICK) == 10

"""Models that nobody wrote a rule for, through the whole pipeline."""

from pathlib import Path

import pytest

from tests.support.orchestrator import llm_perf, only_run, statuses, valid_manifest

pytest.importorskip("torch")

QUICK = (
    "run.mode=light",
    "run.device=cpu",
    "dataset=synthetic",
    "dataset.num_samples=1",
    "dataset.prompt_tokens=64",
    "infer.max_new_tokens=4",
)


def test_a_family_the_closed_form_does_not_know_runs_and_the_page_says_so(tmp_path: Path) -> None:
    done = llm_perf(
        "profile", "model=llama_tiny", "model.geometry.model_type=gpt2", *QUICK, cwd=tmp_path, timeout_s=300
    )
    assert done.code == 0, done.err
    run_dir = only_run(tmp_path)
    assert statuses(valid_manifest(run_dir)) == {"static_analysis": "ok", "torch_profiler": "ok"}
    said = "the closed form does not know the family 'gpt2'"
    summary = f"{said}: FLOPs and bytes are counted by operators alone, and there are no bounds"
    assert summary in (run_dir / "report.md").read_text()
    page = (run_dir / "report.html").read_text()
    assert summary.replace("'", "&#39;") in page
    assert f"  decode bound of this hardware: unknown ({said})" in done.err

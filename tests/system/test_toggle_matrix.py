"""All 16 combinations of the four stages through the real orchestrator, with the real nsys and ncu where installed."""

import itertools
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support import fake_ncu, fake_nsys
from tests.support.orchestrator import llm_perf, only_run, statuses, valid_manifest

STAGES = ("static_analysis", "torch_profiler", "nsys", "ncu")
# One page, two tokens: what a stage costs is then little more than the start of its processes.
FAST = (
    "experiment=ocr_tiny",
    "run.mode=light",
    "run.device=cpu",
    "infer.max_new_tokens=2",
    "infer.crop_mode=false",
    "dataset.num_samples=1",
    "dataset.page_width=96",
    "dataset.page_height=96",
)
REPORTS = {"report.md", "report.html", "kernels.md", "stakeholder_summary.md"}
PROVENANCE = {"manifest.json", "config.yaml", "env.json"}


def _tools(folder: Path) -> dict[str, str]:
    """The real tools where they are installed, otherwise stand-ins that speak their words."""
    if os.environ.get("LLM_PERF_REQUIRE_TOOLS") == "1":
        return {}
    for name, fake in (("nsys", fake_nsys.install), ("ncu", fake_ncu.install)):
        if shutil.which(name) is None:
            fake(folder)
    return {"PATH": os.pathsep.join([str(folder), os.environ["PATH"]])}


def _combinations() -> list[object]:
    """Each combination; those that start nsys share a worker, because two at a time can lose each other's agent.

    None and all are in the default suite, the others are long.
    """
    group, long = pytest.mark.xdist_group("nsys"), (pytest.mark.slow, pytest.mark.long)
    usual = {(False,) * 4, (True,) * 4}
    return [
        pytest.param(
            on,
            marks=[*([group] if on[STAGES.index("nsys")] else []), *(() if on in usual else long)],
        )
        for on in itertools.product([False, True], repeat=4)
    ]


@pytest.mark.parametrize("enabled", _combinations(), ids=lambda e: "".join("01"[x] for x in e))
def test_every_combination_of_stages(enabled: tuple[bool, ...], tmp_path: Path) -> None:
    toggles = [f"pipeline.{stage}.enable={str(on).lower()}" for stage, on in zip(STAGES, enabled, strict=True)]
    work = tmp_path / "work"
    work.mkdir()
    done = llm_perf(
        "profile", *FAST, *toggles, cwd=work, timeout_s=280, OMP_NUM_THREADS="1", **_tools(tmp_path / "bin")
    )
    chosen = [stage for stage, on in zip(STAGES, enabled, strict=True) if on]
    if not chosen:
        assert (done.code, list((work / "tmp" / "runs").iterdir())) == (2, [])
        return
    run_dir = only_run(work)
    manifest = valid_manifest(run_dir)
    # Without a GPU ncu has nothing to profile, and that is a failure with a reason, never an empty success.
    has_gpu = bool(json.loads((run_dir / "env.json").read_text())["gpus"])
    expected = {stage: "failed" if stage == "ncu" and not has_gpu else "ok" for stage in chosen}
    assert statuses(manifest) == expected, done.err
    assert [s["name"] for s in manifest["stages"]] == chosen
    assert done.code == (1 if "failed" in expected.values() else 0)
    dry = llm_perf(
        "profile", *FAST, *toggles, "run.dry_run=true", cwd=tmp_path, timeout_s=60, **_tools(tmp_path / "bin")
    )
    assert dry.code == (2 if "failed" in expected.values() else 0), dry.err
    assert manifest["status"] == ("failed" if "failed" in expected.values() else "ok")
    assert {p.name for p in run_dir.iterdir() if p.is_dir()} == {*chosen, "tmp"}
    files = {p.name for p in run_dir.iterdir() if p.is_file()}
    # Stages that ran the model say on which samples; ncu alone without a GPU has failed.
    runs_the_model = {"torch_profiler", "nsys", *(["ncu"] if has_gpu else [])} & set(chosen)
    inputs = {"inputs.yaml"} if runs_the_model else set()
    assert PROVENANCE | REPORTS | inputs <= files
    assert (run_dir / "nsys" / "run.nsys-rep").exists() == ("nsys" in chosen)
    for stage in manifest["stages"]:
        assert [f["path"] for f in stage["files"] if not (run_dir / f["path"]).exists()] == []

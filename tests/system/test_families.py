"""Models without a rule, through the whole pipeline."""

import json
import os
from pathlib import Path

import pytest

from tests.support.fixtures_dir import DATA, REPO
from tests.support.orchestrator import llm_perf, only_run, statuses, valid_manifest
from tests.support.schemas import valid_file

pytest.importorskip("torch")

QUICK = (
    "run.mode=light",
    "run.device=cpu",
    "dataset=synthetic",
    "dataset.num_samples=1",
    "dataset.prompt_tokens=64",
    "infer.max_new_tokens=4",
)


@pytest.mark.long
def test_a_family_the_closed_form_does_not_know_runs_and_the_page_says_so(tmp_path: Path) -> None:
    done = llm_perf(
        "profile", "model=llama_tiny", "model.geometry.model_type=persimmon", *QUICK, cwd=tmp_path, timeout_s=300
    )
    assert done.code == 0, done.err
    run_dir = only_run(tmp_path)
    assert statuses(valid_manifest(run_dir)) == {"static_analysis": "ok", "torch_profiler": "ok"}
    said = "the closed form does not know the family 'persimmon'"
    summary = f"{said}: FLOPs and bytes are counted by operators alone, and there are no bounds"
    assert summary in (run_dir / "report.md").read_text()
    page = (run_dir / "report.html").read_text()
    assert summary.replace("'", "&#39;") in page
    assert " per token; the bound is not known." in done.err


FAMILIES = DATA / "families"
# What an author of a family writes, and nothing else: the lists of docs/models.md.
TEXT = [
    "conf/model/starcoder2/arch/starcoder2_tiny.yaml",
    "conf/model/starcoder2_tiny.yaml",
    "starcoder2_family.py",
]
IMAGE = [
    "conf/model/page_reader/arch/page_reader.yaml",
    "conf/model/page_reader.yaml",
    "page_reader.py",
    "page_reader_torch.py",
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("folder", "preset", "written", "parameters", "groups"),
    [
        ("text", "starcoder2_tiny", TEXT, 124_544, {"attention", "mlp", "norm", "embedding", "lm_head"}),
        ("image", "page_reader", IMAGE, 213_376, {"attention", "mlp", "norm", "embedding", "lm_head", "look"}),
    ],
)
def test_a_family_added_from_outside_is_profiled_like_one_of_ours(
    folder: str, preset: str, written: list[str], parameters: int, groups: set[str], tmp_path: Path
) -> None:
    root = FAMILIES / folder
    files = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file() and p.suffix != ".pyc")
    assert files == sorted(written)
    done = llm_perf(
        *("profile", "--config-dir", str(root / "conf"), f"model={preset}", *QUICK),
        cwd=tmp_path,
        timeout_s=300,
        PYTHONPATH=os.pathsep.join([str(root), str(REPO)]),
    )
    assert done.code == 0, done.err
    run_dir = only_run(tmp_path)
    assert statuses(valid_manifest(run_dir)) == {"static_analysis": "ok", "torch_profiler": "ok"}
    static = valid_file("static", run_dir / "static_analysis" / "static.json")
    assert (static["parameters"]["total"], static["closed_form_reason"]) == (parameters, None)
    prefill = static["phases"]["prefill"]
    assert set(prefill["groups"]) - {"other"} == groups
    assert prefill["counted_flops"] == prefill["flops"]
    assert [e for e in static["double_entry"] if not e["agrees"] and e["group"] != "other"] == []
    shares = json.loads((run_dir / "torch_profiler" / "metrics.json").read_text())["modules"]["prefill"]
    assert groups <= set(shares)


def test_docs_list_the_files_of_both_families() -> None:
    page = (REPO / "docs" / "models.md").read_text()
    assert (len(TEXT) <= 3, len(IMAGE) <= 5) == (True, True)
    assert [name for name in (*TEXT, *IMAGE) if f"`{name}`" not in page] == []

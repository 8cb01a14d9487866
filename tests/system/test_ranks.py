"""Two ranks on the CPU with gloo: one model split over them says what one rank says, and each has its capture."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.orchestrator import llm_perf
from tests.support.tiny_snapshot import write_tiny_snapshot

pytestmark = [pytest.mark.long, pytest.mark.real_nsys]
SMALL = (
    "dataset=synthetic",
    "dataset.num_samples=2",
    "dataset.prompt_tokens=16",
    "run.device=cpu",
    "run.repeats=1",
    "infer.max_new_tokens=6",
    "pipeline.static_analysis.enable=false",
    "pipeline.torch_profiler.enable=false",
    "pipeline.direct_inference.enable=true",
    "pipeline.direct_inference.output.prediction.enable=true",
)


def run(folder: Path, *overrides: str) -> dict[str, Any]:
    done = llm_perf("profile", *SMALL, *overrides, f"hydra.run.dir={folder}", cwd=folder.parent, timeout_s=600)
    assert done.code == 0, done.err
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return manifest


def texts(folder: Path) -> list[str]:
    lines = (folder / "pred" / "predictions.jsonl").read_text().splitlines()
    return [json.loads(line)["text_raw"] for line in lines]


def test_a_split_model_says_what_a_whole_one_says_and_its_communication_is_in_the_report(tmp_path: Path) -> None:
    model = ("model=causal_lm", f"model.path={write_tiny_snapshot(tmp_path / 'snapshot')}")
    run(tmp_path / "one", *model)
    manifest = run(
        tmp_path / "two", *model, "run.ranks=2", "infer.tp=2", "pipeline.nsys.enable=true", "model.dtype=float32"
    )
    ours = tmp_path / "two" / "direct_inference"
    assert texts(ours) == texts(ours / "rank1") == texts(tmp_path / "one" / "direct_inference")
    metrics = manifest["stages"][0]["metrics"]
    assert metrics["slowest_rank_tpot_ms"]["value"] >= metrics["tpot_ms"]["value"] * 0.999
    nsys = tmp_path / "two" / "nsys"
    assert sorted(path.name for path in nsys.glob("*.sqlite")) == ["run.rank0.sqlite", "run.rank1.sqlite"]
    traffic = json.loads((nsys / "analysis.json").read_text())["traffic"]
    # Each of two layers adds up the parts of attention and of the feed-forward, and the embedding: 5 for each of the
    # 6 tokens of 2 samples; the logits are gathered once for each token.
    counts = {(row["rank"], row["operation"]): row["count"] for row in traffic}
    assert counts == {(r, op): n for r in (0, 1) for op, n in (("all_reduce", 60), ("all_gather", 12))}
    assert all(0 < row["share_of_phases_pct"] < 100 and row["time_ns"] > 0 for row in traffic)
    report = (tmp_path / "two" / "report.md").read_text()
    assert "## Traffic between ranks" in report and "## Ranks: clean times" in report


def test_ranks_with_a_model_each_share_the_samples(tmp_path: Path) -> None:
    manifest = run(tmp_path / "two", "model=llama_tiny", "run.ranks=2")
    folder = tmp_path / "two" / "direct_inference"
    assert [len(texts(folder)), len(texts(folder / "rank1"))] == [1, 1]
    rates = [
        json.loads((place / "metrics.json").read_text())["clean"]["metrics"]["decode_tokens_per_s"]["p50"]
        for place in (folder, folder / "rank1")
    ]
    assert manifest["stages"][0]["metrics"]["all_ranks_decode_tokens_per_s"]["value"] == pytest.approx(sum(rates))

"""ncu sees the workload the user asked for, and never a kernel that is excluded."""

from pathlib import Path

import pytest

from llm_perf_opt.children.start import load_child_config
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.profiling.ncu.ncu_session import prepare
from llm_perf_opt.profiling.stages.ncu import to_the_end, work_argv
from llm_perf_opt.profiling.vendor.launch import quote
from llm_perf_opt.testing import scratch_context
from tests.founding.composing import TINY, stage, typed

NCU = ("runner=stage2", "pipeline.nsys.enable=false")


def _under_ncu(folder: Path, *argv: str) -> dict[str, object]:
    """What the program that ncu starts is reported."""
    config = typed(*TINY, *NCU, *argv)
    ctx = scratch_context("ncu", folder / "run", config=config)
    words = work_argv(ctx, stage(config, "ncu").workload)
    child, _ = load_child_config([word for word in words[3:] if not word.startswith("hydra.job.chdir")])
    sampling = child.dataset.sampling
    return {
        "tokens": child.infer.max_new_tokens,
        "epochs": sampling.num_epochs,
        "samples": sampling.num_samples_per_epoch,
        "repeats": child.run.repeats,
        "warm-ups": stage(child, "direct_inference").warmup_rounds,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "tokens"),
    [
        ("infer.max_new_tokens=100", 100),
        ("run.representative_max_new_tokens=50", 50),
        ("pipeline.ncu.workload.max_new_tokens=7", 7),
        ("run.mode=light", 16),
    ],
)
def test_088_089_the_token_budget_is_the_one_asked_for(tmp_path: Path, override: str, tokens: int) -> None:
    """001:10, 001:22-24"""
    assert _under_ncu(tmp_path, override)["tokens"] == tokens


def test_a_sample_ends_early_under_ncu_unless_the_user_counts_launches_or_replays_ranges() -> None:
    config = typed(*TINY, *NCU, "infer.max_new_tokens=100")
    plain = to_the_end(stage(config, "ncu"))
    assert (plain.workload.tokens(config), plain.workload.stops_early(config)) == (8, True)
    for word in ("launch_skip=3", "launch_count=3", "replay_mode=range"):
        asked = typed(*TINY, *NCU, "infer.max_new_tokens=100", f"pipeline.ncu.ncu_cli.{word}")
        whole = to_the_end(stage(asked, "ncu"))
        assert (whole.workload.tokens(asked), whole.workload.stops_early(asked)) == (100, False)
    short = typed(*TINY, *NCU, "infer.max_new_tokens=5")
    assert stage(short, "ncu").workload.sentence(short).endswith("warmup_rounds 0")


def test_101_what_is_shorter_under_ncu_is_a_key_with_a_default(tmp_path: Path) -> None:
    """001:14, 001:38-41"""
    asked = ("dataset.sampling.num_epochs=2", "dataset.sampling.num_samples_per_epoch=3", "infer.max_new_tokens=9")
    short = {"tokens": 9, "epochs": 1, "samples": 1, "repeats": 1, "warm-ups": 0}
    assert _under_ncu(tmp_path, *asked) == short
    keys = ("num_epochs", "num_samples_per_epoch", "repeats")
    as_everywhere = [f"pipeline.ncu.workload.{key}=null" for key in keys]
    assert _under_ncu(tmp_path, *asked, *as_everywhere, "pipeline.ncu.workload.warmup_rounds=1") == {
        "tokens": 9,
        "epochs": 2,
        "samples": 3,
        "repeats": 3,
        "warm-ups": 1,
    }


def test_090_the_workload_under_ncu_is_shown_and_recorded(tmp_path: Path) -> None:
    """001:24: no silent divergence; what is reported goes to console, notes of the manifest and kernels.md"""
    config = typed(*TINY, *NCU, "infer.max_new_tokens=100")
    ctx = scratch_context("ncu", tmp_path / "run", config=config)
    assert prepare(stage(config, "ncu"), ctx, "ncu").notes[0] == (
        "workload under ncu (pipeline.ncu.workload): max_new_tokens 100, num_epochs 1, num_samples_per_epoch 1, "
        "repeats 1, warmup_rounds 0; a sample ends after 8 of its tokens"
    )
    assert config.resolved["pipeline"]["ncu"]["workload"] == {
        "max_new_tokens": None,
        "num_epochs": 1,
        "num_samples_per_epoch": 1,
        "repeats": 1,
        "warmup_rounds": 0,
        "stop_after_tokens": 8,
    }


@pytest.mark.parametrize("exclude", [["nccl.*", "ncclDevKernel.*"], ["mine"], []])
def test_095_the_rerun_keeps_the_excluded_kernels_out(tmp_path: Path, exclude: list[str]) -> None:
    """001:32, and a collective under ncu can deadlock"""
    config = typed(*TINY, *NCU, f"pipeline.ncu.exclude={quote(exclude)}")
    ctx = scratch_context("ncu", tmp_path / "run", config=config, earlier=dict[str, StageRecord]())
    capture = prepare(stage(config, "ncu"), ctx, "ncu").capture
    wanted = f"^(?!.*({'|'.join(exclude)}))" if exclude else None
    for again in (capture.without_filters(), capture.window(3, 8)):
        assert (again.launches.kernel_regex, again.launches.invocations) == (wanted, None)
    argv = capture.without_filters().argv(tmp_path, ["./bench"])
    assert ("--nvtx" in argv, "--kernel-name" in argv) == (False, bool(exclude))

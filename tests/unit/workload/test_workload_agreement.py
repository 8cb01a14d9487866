"""Outputs of two configurations of a real tiny model, compared as `optimize` does it."""

from pathlib import Path

import pytest

from llm_perf_opt.optimize.experiment_verdict import LossLimits, check_outputs
from llm_perf_opt.workload.agreement import _Reference, _Tally, check_agreement, write_reference
from llm_perf_opt.workload.session import Session, check_workload, open_session
from tests.support.model_presets import compose_preset

WORDS = ("model=llama_tiny", "dataset.prompt_tokens=24", "dataset.num_samples=3", "infer.max_new_tokens=12")


def opened(folder: Path, *words: str) -> Session:
    return open_session(check_workload(compose_preset(*WORDS, "run.device=cpu", *words), folder / "work"))


def test_distances_are_of_every_position_and_a_flip_is_measured_by_the_starts_own_logits() -> None:
    import torch

    tally = _Tally()
    start = _Reference(tokens=(0, 1), logits=torch.tensor([[2.0, 1.5, 0.0], [0.0, 3.0, 1.0]]))
    tally.add("a", start, (1, 1), torch.tensor([[1.5, 2.0, 0.0], [10.0, 13.0, 11.0]]))
    found = tally.result(dtype="bfloat16")
    # The second position differs by a constant alone, which changes no probability.
    p, q = (torch.tensor(x, dtype=torch.float64).softmax(0) for x in ([2.0, 1.5, 0.0], [1.5, 2.0, 0.0]))
    assert found.kl_mean == pytest.approx(float((p * (p / q).log()).sum()) / 2)
    assert (found.top1, found.flip_gap, found.tokens_equal) == (0.5, 0.5, False)
    assert found.first_difference == "token 1 of a"


@pytest.mark.long
@pytest.mark.slow
def test_the_same_model_agrees_with_itself_in_batches_and_static_caches_and_another_seed_does_not(
    tmp_path: Path,
) -> None:
    reference = tmp_path / "reference.pt"
    write_reference(opened(tmp_path), reference)
    for words in (("infer.cache=static",), ("infer.batch=2",)):
        found = check_agreement(opened(tmp_path, *words), reference)
        assert (found.samples, found.positions, found.tokens_equal, found.top1) == (3, 36, True, 1.0), words
        assert found.kl_mean < 1e-9 and found.flip_gap == 0 and found.dtype == "float32"
    narrow = check_agreement(opened(tmp_path, "model.dtype=bfloat16"), reference)
    assert 1e-9 < narrow.kl_mean < 0.01 and narrow.top1 > 0.8
    other = check_agreement(opened(tmp_path, "run.seed=5"), reference)
    assert not other.tokens_equal and other.first_difference == "token 1 of synthetic-0000" and other.top1 < 0.5
    assert check_outputs(other, is_lossy=True, limits=LossLimits()).verdict == "different"

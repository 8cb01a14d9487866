"""What is refused or warned of before anything runs: missing packages, too little memory."""

from dataclasses import replace

import pytest

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.host import Gpu
from llm_perf_opt.pipeline.preflight import (
    MemoryCheck,
    check_memory,
    device_problem,
    package_problems,
    workload_problems,
)
from llm_perf_opt.profiling.stages import static_analysis, torch_profiler
from llm_perf_opt.testing import plain_host
from tests.founding.composing import typed

STAGES = [torch_profiler.STAGE]
H200 = Gpu(index=0, name="NVIDIA H200", memory_bytes=141 << 30, driver="1")


@pytest.fixture(scope="module")
def llama() -> AppConfig:
    return typed("model=llama3_8b", "model.weights=random", "dataset=synthetic")


def test_a_model_without_torch_is_refused_with_the_extra_to_install(llama: AppConfig) -> None:
    light = plain_host(packages={"torch": None, "transformers": None})
    assert package_problems(llama, light, STAGES) == (
        "torch and transformers: not installed, and needed to run a model; pip install 'llm-perf-opt[run]' "
        "(pipeline.static_analysis and `llm-perf predict` work without)",
    )
    assert package_problems(llama, light, [static_analysis.STAGE]) == ()
    assert package_problems(llama, plain_host(packages={"torch": "2.13", "transformers": "5"}), STAGES) == ()
    old = plain_host(packages={"torch": "2.4.0+cu121", "transformers": "4.48.0"})
    assert [text.partition(";")[0] for text in package_problems(llama, old, STAGES)] == [
        "torch 2.4.0+cu121: too old for our own loop, which needs 2.11",
        "transformers 4.48.0: too old for our own loop, which needs 5.0",
    ]
    program = replace(llama, workload=replace(llama.workload, command=("python", "x.py")))
    assert package_problems(program, light, STAGES) == ()


def test_a_model_that_cannot_be_loaded_is_refused_and_one_that_may_run_out_is_warned_of(llama: AppConfig) -> None:
    def check(gib: int, batch: int = 1) -> tuple[bool, bool]:
        config = replace(llama, infer=replace(llama.infer, batch=batch))
        gpu = replace(H200, memory_bytes=gib << 30)
        found = check_memory(config, plain_host(gpus=(gpu,)), STAGES, {})
        return found.problem is not None, found.note is not None

    # 16.06 GB of weights in bf16, 131,072 bytes of cache a token.
    assert check(141) == (False, False)
    assert check(14) == (True, False)
    assert check(16, batch=8) == (False, True)
    on_cpu = check_memory(llama, plain_host(memory_bytes=24 << 30), STAGES, {})
    assert on_cpu.problem == (
        "model: the weights in float32 take 32.1 GB, more than a CPU, whose memory is 25.8 GB; allowed: a smaller "
        "model, a narrower model.dtype or model.quantization, another run.device"
    )
    hidden = check_memory(llama, plain_host(gpus=(H200,)), STAGES, {"CUDA_VISIBLE_DEVICES": ""})
    assert hidden.problem is not None and "a CPU" in hidden.problem
    assert check_memory(llama, plain_host(memory_bytes=1), [static_analysis.STAGE], {}).problem is None


def test_the_gpu_whose_memory_counts_is_the_one_that_is_visible(llama: AppConfig) -> None:
    small = replace(H200, index=1, name="small", memory_bytes=8 << 30)
    host = plain_host(gpus=(H200, small))
    second = check_memory(llama, host, STAGES, {"CUDA_VISIBLE_DEVICES": "1"})
    assert second.problem is not None and "small, which has 8.59 GB" in second.problem
    assert check_memory(llama, host, STAGES, {}).problem is None


def test_a_split_model_has_the_memory_of_all_its_gpus_and_needs_whole_heads(llama: AppConfig) -> None:
    small = replace(H200, memory_bytes=14 << 30)
    split = replace(llama, infer=replace(llama.infer, tp=4), run=replace(llama.run, ranks=4))
    assert check_memory(split, plain_host(gpus=(small,) * 4), STAGES, {}) == MemoryCheck()
    tiny = replace(H200, memory_bytes=2 << 30)
    found = check_memory(split, plain_host(gpus=(tiny,) * 4), STAGES, {})
    assert found.problem is not None and "more than 4 × NVIDIA H200, which have 8.59 GB" in found.problem
    assert workload_problems(split, STAGES) == ()
    # llama3_8b has 32 heads for queries and 8 for keys and values.
    odd = replace(llama, infer=replace(llama.infer, tp=16), run=replace(llama.run, ranks=16))
    assert workload_problems(odd, STAGES) == (
        "infer.tp: 8 heads of attention cannot be split over 16 ranks (got 16), allowed: a divisor of the numbers of "
        "heads, keys' and values' too, or run.ranks alone, which gives each rank a whole model",
    )


def test_more_ranks_than_gpus_are_refused(llama: AppConfig) -> None:
    ranks = replace(llama, run=replace(llama.run, ranks=2))
    one, two = plain_host(gpus=(H200,)), plain_host(gpus=(H200, replace(H200, index=1)))
    assert device_problem(ranks, one, {}) == (
        "run.ranks: 2 ranks need a GPU each (got 2), this machine shows 1; allowed: 1"
    )
    assert device_problem(ranks, two, {}) is None
    assert device_problem(ranks, two, {"CUDA_VISIBLE_DEVICES": "1"}) is not None
    assert device_problem(replace(ranks, run=replace(ranks.run, device="cpu")), one, {}) is None


def test_a_synthetic_prompt_longer_than_the_positions_of_the_model_is_refused(llama: AppConfig) -> None:
    geometry = llama.model.geometry
    assert geometry is not None
    positions = geometry["max_position_embeddings"]
    dataset = replace(llama.dataset, prompt_tokens=positions)
    (problem,) = workload_problems(replace(llama, dataset=dataset), [torch_profiler.STAGE])
    new = llama.infer.max_new_tokens
    assert problem == (
        f"dataset.prompt_tokens: {positions} tokens of prompt and {new} new ones (infer.max_new_tokens) are more than "
        f"the {positions} positions of the model (got {positions}), allowed: at most {positions - new}"
    )

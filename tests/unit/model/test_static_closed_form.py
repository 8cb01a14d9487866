"""The closed form: whole values of well-known models, and the rules it is made of. No torch here."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.errors import ConfigError, ParseError
from llm_perf_opt.model.families.known import known_types, read_text_model
from llm_perf_opt.model.families.wrapped import is_wrapped
from llm_perf_opt.model.hardware.roofline import Ceilings, bound
from llm_perf_opt.model.hardware.work import Dtypes, View, short_dtype
from llm_perf_opt.model.static.closed_form import (
    count_parameters,
    decode_phase,
    kv_bytes,
    kv_bytes_per_token,
    prefill_phase,
    weight_bytes,
)
from llm_perf_opt.model.static.config_json import NotInClosedForm, read_config_json
from llm_perf_opt.model.static.double_entry import COPIED, UNEXPLAINED, Entry, double_entry
from llm_perf_opt.model.static.forms import MlaMode, expected_experts, needed_pairs
from llm_perf_opt.model.static.model_memory import memory_fit, memory_need
from llm_perf_opt.model.static.operator_count import Count, Tally
from llm_perf_opt.model.static.parts import Model
from llm_perf_opt.model.static.quantised import Quantised, read_quantised, run_dtypes
from tests.support.static_cases import FAMILY_CASES, SMALL, preset_model

BF16 = Dtypes.uniform("bf16")


def preset(name: str) -> Model:
    return preset_model(name)


def small(model_type: str, **changes: object) -> Model:
    data = {**SMALL, **FAMILY_CASES[model_type], "model_type": model_type, **changes}
    return read_text_model(data, where="config.json")


def _sizes(hidden: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
    }


def test_parameters_of_known_models_are_exact() -> None:
    found = {
        name: (count_parameters(preset(name)).total, count_parameters(preset(name)).activated)
        for name in (
            "causal_lm/arch/llama3_1b",
            "causal_lm/arch/llama3_8b",
            "causal_lm/arch/qwen3_8b",
            "causal_lm/arch/qwen3_30b_a3b",
            "causal_lm/arch/deepseek_v2_lite",
            "deepseek_ocr/arch/deepseek_ocr.default",
        )
    }
    assert found == {
        "causal_lm/arch/llama3_1b": (1_235_814_400, 1_235_814_400),
        "causal_lm/arch/llama3_8b": (8_030_261_248, 8_030_261_248),
        "causal_lm/arch/qwen3_8b": (8_190_735_360, 8_190_735_360),
        "causal_lm/arch/qwen3_30b_a3b": (30_532_122_624, 3_353_032_704),
        "causal_lm/arch/deepseek_v2_lite": (15_706_484_224, 2_661_150_208),
        "deepseek_ocr/arch/deepseek_ocr.default": (3_336_106_240, 1_140_977_920),
    }


PUBLISHED = {
    "BLOOM": (
        {"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "n_head": 112, "vocab_size": 250880},
        176_247_271_424,
    ),
    "GPT-J-6B": (
        {"model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "vocab_size": 50400},
        6_050_882_784,
    ),
    "MPT-7B": (
        {"model_type": "mpt", "d_model": 4096, "n_heads": 32, "n_layers": 32, "vocab_size": 50432},
        6_649_286_656,
    ),
    "DBRX": (
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "vocab_size": 100352,
            "attn_config": {"kv_n_heads": 8},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
        },
        131_596_523_520,
    ),
    "GPT-NeoX-20B": (
        {"model_type": "gpt_neox", "vocab_size": 50432, **_sizes(6144, 24576, 44, 64)},
        20_554_567_680,
    ),
    "OPT-6.7B": (
        {"model_type": "opt", "vocab_size": 50272, "ffn_dim": 16384, **_sizes(4096, 1, 32, 32)},
        6_658_473_984,
    ),
    "Phi-2": ({"model_type": "phi", "vocab_size": 51200, **_sizes(2560, 10240, 32, 32)}, 2_779_683_840),
    "Mamba-2.8B": (
        {"model_type": "mamba", "vocab_size": 50280, "state_size": 16, **_sizes(2560, 5120, 64, 1)},
        2_768_345_600,
    ),
    "Jamba": (
        {"model_type": "jamba", "vocab_size": 65536, "num_key_value_heads": 8, **_sizes(4096, 14336, 32, 32)},
        51_570_323_328,
    ),
    "OLMoE-1B-7B": (
        {
            "model_type": "olmoe",
            "vocab_size": 50304,
            "num_experts": 64,
            "num_experts_per_tok": 8,
            **_sizes(2048, 1024, 16, 16),
        },
        6_919_161_856,
    ),
    "Phi-3.5-MoE": (
        {
            "model_type": "phimoe",
            "vocab_size": 32064,
            "num_key_value_heads": 8,
            "num_local_experts": 16,
            "num_experts_per_tok": 2,
            "attention_bias": True,
            "lm_head_bias": True,
            **_sizes(4096, 6400, 32, 32),
        },
        41_873_153_344,
    ),
}


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_parameters_are_those_of_the_published_checkpoint(name: str) -> None:
    data, count = PUBLISHED[name]
    assert count_parameters(read_text_model(data, where=name)).total == count


def test_kimi_k2_is_its_checkpoint_without_the_correction_of_its_routers() -> None:
    data = {
        "model_type": "kimi_k2",
        "vocab_size": 163840,
        "tie_word_embeddings": False,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 1,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        **_sizes(7168, 18432, 61, 64),
    }
    tensors = 1_026_408_232_448
    assert count_parameters(read_text_model(data, where="c")).total == tensors - 60 * 384


@pytest.mark.parametrize(
    ("hidden", "width", "expert", "experts", "layers", "dense", "billions"),
    [(5120, 12288, 1536, 160, 92, 3, 358.34), (4096, 10944, 1408, 128, 46, 1, 110.47)],
    ids=["GLM-4.5", "GLM-4.5-Air"],
)
def test_glm_4_5_and_the_layer_that_predicts_further_tokens_are_the_published_files(
    hidden: int, width: int, expert: int, experts: int, layers: int, dense: int, billions: float
) -> None:
    data = {
        "model_type": "glm4_moe",
        "vocab_size": 151552,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "use_qk_norm": hidden == 5120,
        "head_dim": 128,
        "num_key_value_heads": 8,
        "moe_intermediate_size": expert,
        "first_k_dense_replace": dense,
        "n_routed_experts": experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        **_sizes(hidden, width, layers, 96),
    }
    total, longer = (
        count_parameters(read_text_model({**data, "num_hidden_layers": n}, where="c")).total
        for n in (layers, layers + 1)
    )
    # The layer brings tables of its own, three norms and the matmul that joins token and hidden state.
    further = (longer - total) + 2 * 151552 * hidden + 3 * hidden + 2 * hidden * hidden
    assert (total + further) / 1e9 == pytest.approx(billions, abs=0.005)


@pytest.mark.parametrize(("layers", "experts", "size"), [(24, 32, 13_761_264_768), (36, 128, 65_248_815_744)])
def test_a_mixed_checkpoint_takes_the_bytes_of_its_published_files(layers: int, experts: int, size: int) -> None:
    """gpt-oss: experts in mxfp4, the rest in bf16; the sizes are those of the tensors in its safetensors index."""
    data = {
        "model_type": "gpt_oss",
        "vocab_size": 201088,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": experts,
        "num_experts_per_tok": 4,
        "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]},
        **_sizes(2880, 2880, layers, 64),
    }
    stored = read_quantised(data, where="c")
    assert weight_bytes(read_text_model(data, where="c"), run_dtypes("bf16", stored)) == size


def test_parts_of_deepseek_ocr_are_exact() -> None:
    groups = count_parameters(preset("deepseek_ocr/arch/deepseek_ocr.default")).groups
    decoder = sum(v for k, v in groups.items() if k not in ("sam", "clip", "projector", "other"))
    assert (groups["sam"], groups["clip"], groups["projector"], groups["other"], decoder) == (
        95_569_152,
        303_177_728,
        2_622_720,
        2_560,
        2_934_734_080,
    )


def test_kv_bytes_per_token_follow_the_kind_of_attention() -> None:
    latent = preset("causal_lm/arch/deepseek_v2_lite")
    assert kv_bytes_per_token(preset("causal_lm/arch/llama3_8b"), BF16) == 131_072
    # 27 layers of kv_lora_rank 512 + rope 64, two bytes each: not heads times dimensions.
    assert kv_bytes_per_token(latent, BF16) == 27 * 576 * 2
    assert kv_bytes_per_token(latent, BF16, "absorbed") == 27 * 576 * 2
    assert kv_bytes_per_token(latent, BF16, "cached") == 27 * 16 * (192 + 128) * 2
    assert (
        kv_bytes_per_token(preset("causal_lm/arch/llama3_8b"), Dtypes(compute="bf16", weight="bf16", kv="fp8"))
        == 65_536
    )


def test_flops_of_llama3_8b_equal_the_sum_over_its_matrices() -> None:
    model = preset("causal_lm/arch/llama3_8b")
    per_token = 32 * (4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336)
    scores = 32 * 4 * 32 * 128
    prefill = prefill_phase(model, batch=1, prompt=1024, dtypes=BF16).total
    decode = decode_phase(model, batch=1, context=1024, dtypes=BF16).total
    assert prefill.flops == 2 * 1024 * per_token + scores * 1024 * 1024 + 2 * 4096 * 128256
    assert decode.flops == 2 * per_token + scores * 1025 + 2 * 4096 * 128256


def test_attention_grows_with_the_square_of_the_prompt_and_half_of_it_is_masked() -> None:
    model = preset("causal_lm/arch/llama3_8b")

    def masked(prompt: int) -> float:
        return prefill_phase(model, batch=1, prompt=prompt, dtypes=BF16).total.flops_masked

    scores = 32 * 4 * 32 * 128
    assert masked(1024) == scores * 1024 * 1023 / 2
    assert masked(2048) == scores * 2048 * 2047 / 2
    assert decode_phase(model, batch=1, context=1024, dtypes=BF16).total.flops_masked == 0


def test_grouped_queries_read_only_their_own_keys() -> None:
    shared = decode_phase(small("llama"), batch=1, context=1000, dtypes=BF16).total
    own = decode_phase(small("llama", num_key_value_heads=4), batch=1, context=1000, dtypes=BF16).total
    one = decode_phase(small("llama", num_key_value_heads=1), batch=1, context=1000, dtypes=BF16).total
    assert (one.kv_read_bytes, shared.kv_read_bytes, own.kv_read_bytes) == (
        4 * 1001 * 2 * 16 * 2,
        4 * 1001 * 2 * 32 * 2,
        4 * 1001 * 2 * 64 * 2,
    )


def test_a_sliding_window_caps_keys_and_cache() -> None:
    model = small("mistral", sliding_window=16)
    far = decode_phase(model, batch=1, context=5000, dtypes=BF16)
    near = decode_phase(model, batch=1, context=15, dtypes=BF16)
    assert far.total.flops == near.total.flops
    assert kv_bytes(model, 5000, BF16) == kv_bytes(model, 16, BF16) == 16 * kv_bytes_per_token(model, BF16)


def test_needed_pairs_count_what_a_mask_leaves() -> None:
    def by_hand(new: int, past: int, window: int | None) -> int:
        return sum(min(past + i + 1, window or past + i + 1) for i in range(new))

    cases = [(5, 0, None), (5, 7, None), (10, 0, 4), (3, 2, 4), (3, 9, 4), (1, 100, 16)]
    assert [needed_pairs(*case) for case in cases] == [by_hand(*case) for case in cases]


def test_modes_of_latent_attention_differ_in_decode_flops() -> None:
    model = preset("causal_lm/arch/deepseek_v2_lite")

    def flops(mode: MlaMode) -> float:
        return decode_phase(model, batch=1, context=1024, dtypes=BF16, mla_mode=mode).total.flops

    # Expanding all keys again costs 2·L·r·H·(nope + v) a layer instead of one token's.
    up = 2 * 512 * 16 * (128 + 128)
    assert flops("latent-expand") - flops("cached") == 27 * up * 1024
    assert 23 < flops("latent-expand") / flops("cached") < 24
    absorbed_scores = 27 * 2 * 16 * 1025 * (576 + 512)
    cached_scores = 27 * 2 * 16 * 1025 * (192 + 128)
    assert flops("absorbed") - flops("cached") == absorbed_scores - cached_scores


def test_expected_experts_follow_the_formula() -> None:
    assert expected_experts(128, 8, 1) == 8
    assert expected_experts(128, 8, 64) == pytest.approx(128 * (1 - (120 / 128) ** 64))
    assert expected_experts(64, 6, 10_000) == pytest.approx(64)
    model = preset("causal_lm/arch/qwen3_30b_a3b")
    one = decode_phase(model, batch=1, context=1, dtypes=BF16).groups["experts"].weight_bytes
    assert one == 48 * 8 * 3 * 2048 * 768 * 2


def test_weights_in_memory_follow_the_formats() -> None:
    model = preset("causal_lm/arch/llama3_8b")
    assert weight_bytes(model, BF16) == 2 * 8_030_261_248
    layers = 32 * (4096 * (4096 + 1024 + 1024 + 4096) + 3 * 4096 * 14336)
    rest = 8_030_261_248 - layers
    int4 = Dtypes(compute="bf16", weight="int4", kv="bf16")
    assert weight_bytes(model, int4) == layers / 2 + 2 * rest


def test_decode_bound_of_the_h200_llama_is_near_its_measured_bandwidth() -> None:
    work = decode_phase(preset("causal_lm/arch/llama3_1b"), batch=1, context=1024, dtypes=BF16).total
    ceilings = Ceilings(kind="achievable", flops_per_s={"bf16": 819e12}, bytes_per_s=4.25e12)
    found = bound(work, BF16, ceilings)
    assert found.limit == "memory"
    assert found.ms == pytest.approx(0.5895, abs=0.0005)
    # The weights alone, each read once: the table of embeddings counts, because it is the output matrix too.
    assert work.weight_bytes == pytest.approx(2 * 1_235_814_400, rel=1e-5)
    assert 1e3 * work.weight_bytes / 4.25e12 == pytest.approx(0.5816, abs=0.0001)


def test_largest_batch_and_context_just_fit() -> None:
    model = preset("causal_lm/arch/llama3_8b")
    shape: dict[str, Any] = {"prompt": 1024, "dtypes": BF16, "mla_mode": "latent-expand"}
    fit = memory_fit(model, 80e9, batch=1, context=1024, **shape)

    def peak(batch: int, context: int) -> float:
        return memory_need(model, batch=batch, context=context, **shape).peak_bytes

    assert peak(fit.largest_batch, 1024) <= 77.6e9 < peak(fit.largest_batch + 1, 1024)
    # No more than its positions, however much room there is.
    assert fit.largest_context == model.longest == 8192
    endless = memory_fit(replace(model, longest=None), 80e9, batch=1, context=1024, **shape)
    assert endless.largest_context is not None
    assert peak(1, endless.largest_context) <= 77.6e9 < peak(1, endless.largest_context + 1)
    assert memory_fit(model, 10e9, batch=1, context=1024, **shape).largest_batch == 0
    windowed = small("mistral", sliding_window=16)
    assert memory_fit(windowed, 80e9, batch=1, context=1024, **shape).largest_context is None


def test_the_towers_of_deepseek_ocr_count_in_its_memory() -> None:
    model = preset("deepseek_ocr/arch/deepseek_ocr.default")
    shape: dict[str, Any] = {"prompt": 913, "context": 913, "dtypes": BF16, "mla_mode": "latent-expand"}
    page, tiles = View(size=1024, count=1), View(size=640, count=6)
    without = memory_need(model, batch=1, **shape)
    seen = memory_need(model, batch=1, views=(page,), **shape)
    # One view of 64 × 64 tokens: the bias of 12 heads, two terms of it, seven rows of 768, and the picture.
    elements = 12 * 64**4 + 2 * 12 * 64**3 + 7 * 768 * 64**2 + 3 * 1024**2
    assert (without.activations_bytes < 6e7, seen.activations_bytes) == (True, 2 * elements)
    # Six tiles are one batch and need more than the page after them; both pictures are there all the while.
    both = memory_need(model, batch=1, views=(tiles, page), **shape)
    elements = 6 * (12 * 40**4 + 2 * 12 * 40**3 + 7 * 768 * 40**2) + 3 * (1024**2 + 6 * 640**2)
    assert both.activations_bytes == 2 * elements
    two = (View(size=640, count=12), View(size=1024, count=2))
    assert memory_need(model, batch=2, views=two, **shape).activations_bytes == 2 * both.activations_bytes
    fit = memory_fit(model, 141e9, batch=2, views=two, **shape)
    assert fit.largest_batch == int(
        (141e9 * 0.97 - both.weights_bytes) // (both.kv_cache_bytes + both.activations_bytes)
    )
    assert 200 < fit.largest_batch < 250


def attention_entry(model: Model, counted: float, dtypes: Dtypes = BF16) -> Entry:
    """The books' entry about the bytes of attention in a decode step in which this was counted."""
    phase = decode_phase(model, batch=3, context=32, dtypes=dtypes)
    groups = {name: Tally(flops=work.flops, bytes=work.bytes) for name, work in phase.groups.items()}
    groups["attention"] = Tally(flops=phase.groups["attention"].flops, bytes=counted)
    entries = double_entry(model, {"decode": (phase, Count(groups=groups, operators={}))}, dtypes)
    return next(e for e in entries if (e.group, e.quantity) == ("attention", "bytes"))


def test_a_difference_is_explained_only_by_a_rule_that_predicts_its_size() -> None:
    model = small("mistral")
    closed = attention_entry(model, 0.0).closed_form
    # Four windowed layers copy 16 keys and values of three sequences to two more heads of 16 elements each.
    copied = closed + 4 * 3 * 16 * 2 * 2 * 16 * 2
    assert attention_entry(model, copied).explanation == COPIED
    assert attention_entry(model, copied * 1.005).explanation == COPIED
    assert attention_entry(model, copied * 1.05).explanation == UNEXPLAINED
    assert attention_entry(model, closed * 1000).explanation == UNEXPLAINED
    assert attention_entry(model, closed).explanation is None


def test_another_number_format_explains_what_it_changes_and_no_more() -> None:
    model = small("llama")
    fp8 = Dtypes(compute="bf16", weight="fp8", kv="bf16")
    counted = decode_phase(model, batch=3, context=32, dtypes=BF16).groups["attention"].bytes
    explained = attention_entry(model, counted, fp8).explanation
    assert explained is not None and explained.startswith("the count builds the model in bf16; the closed form reads")
    assert attention_entry(model, 2 * counted, fp8).explanation == UNEXPLAINED


def test_small_products_outside_the_named_parts_have_to_be_small() -> None:
    model = small("llama")
    phase = decode_phase(model, batch=3, context=32, dtypes=BF16)
    groups = {name: Tally(flops=work.flops, bytes=work.bytes) for name, work in phase.groups.items()}

    def explained(flops: float) -> str | None:
        count = Count(groups={**groups, "other": Tally(flops=flops)}, operators={})
        entries = double_entry(model, {"decode": (phase, count)}, BF16)
        return next(e.explanation for e in entries if (e.group, e.quantity) == ("other", "flops"))

    small_text = (
        "small matmuls outside the named parts (rotary tables, position interpolation): less than 1 % of the phase"
    )
    assert explained(phase.total.flops / 1000) == small_text
    assert explained(phase.total.flops) == UNEXPLAINED


def test_every_family_has_a_case() -> None:
    assert set(FAMILY_CASES) == set(known_types())


def test_models_whose_code_lies_beside_their_weights_are_read_as_llama() -> None:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    internlm = {**sizes, "model_type": "internlm2", "vocab_size": 92544, "num_key_value_heads": 8, "bias": False}
    baichuan = {**sizes, "model_type": "baichuan", "vocab_size": 125696, "intermediate_size": 11008}
    assert count_parameters(read_text_model(internlm, where="c")).total == 7_737_708_544
    assert count_parameters(read_text_model(baichuan, where="c")).total == 7_505_973_248


def test_an_unknown_model_type_is_refused_by_name() -> None:
    with pytest.raises(ParseError) as error:
        read_text_model({"model_type": "mamba3"}, where="/m/config.json")
    assert str(error.value).startswith(
        "/m/config.json: model_type: 'mamba3' is not known to the closed form; known: arcee, bamba, bloom, "
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "c: hidden_size: missing; the sizes cannot be worked out without it"),
        ({"vocab_size": "100"}, "c: vocab_size: not a whole number ≥ 1 (got '100')"),
        ({"num_key_value_heads": 3}, "c: num_key_value_heads: 3 does not divide num_attention_heads 4"),
        ({"tie_word_embeddings": "no"}, "c: tie_word_embeddings: not true or false (got 'no')"),
    ],
)
def test_a_missing_or_odd_field_is_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ParseError) as error:
        read_text_model({**SMALL, "model_type": "llama", **changes}, where="c")
    assert str(error.value) == message


def test_a_missing_latent_rank_is_not_guessed() -> None:
    data = {**SMALL, **FAMILY_CASES["deepseek_v2"], "model_type": "deepseek_v2"}
    del data["q_lora_rank"]
    with pytest.raises(ParseError, match="c: q_lora_rank: missing"):
        read_text_model(data, where="c")


def test_config_json_problems_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match=r"config.json: not found"):
        read_config_json(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ParseError, match=r"config.json: cannot be read as JSON"):
        read_config_json(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ParseError, match=r"config.json: not a JSON object"):
        read_config_json(tmp_path)


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, Quantised(weight="fp8")),
        ({"quant_method": "awq", "bits": 4}, Quantised(weight="int4")),
        ({"quant_method": "gptq", "bits": 8}, Quantised(weight="int8")),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, Quantised(weight="int4")),
        (
            {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
            Quantised(weight="mxfp4", has_wide_attention=True),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}, "targets": ["Linear"]}},
                "ignore": ["lm_head"],
            },
            Quantised(weight="int4"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 16}, "targets": ["Linear"]}
                },
                "ignore": ["re:.*self_attn.*", "lm_head"],
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
            Quantised(weight="nvfp4", has_wide_attention=True, kv="fp8"),
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
            Quantised(weight="nvfp4", kv="fp8"),
        ),
        ({"quant_algo": "W4A8_AWQ"}, Quantised(weight="int4")),
        (
            {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int4WeightOnlyConfig"}}},
            Quantised(weight="int4"),
        ),
        ({"quant_method": "torchao", "quant_type": "int8_weight_only"}, Quantised(weight="int8")),
        (
            {
                "quant_method": "torchao",
                "quant_type": {"default": {"_type": "Float8DynamicActivationInt4WeightConfig"}},
            },
            Quantised(weight="int4"),
        ),
        (
            {"quant_method": "fp8", "modules_to_not_convert": ["visual.blocks.0.attn.qkv", "model.self_attn.q_norm"]},
            Quantised(weight="fp8"),
        ),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {"weights": {"num_bits": 8, "type": "float"}, "targets": ["re:.*self_attn.*"]},
                    "group_1": {
                        "weights": {"num_bits": 4, "type": "float", "group_size": 16},
                        "targets": ["re:.*mlp.*"],
                    },
                },
            },
            Quantised(weight="nvfp4", attention="fp8"),
        ),
        (
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4", "group_size": 32}}},
            Quantised(weight="mxfp4"),
        ),
    ],
)
def test_the_formats_of_a_quantised_checkpoint_are_read(config: dict[str, object], found: Quantised) -> None:
    assert read_quantised({"quantization_config": config}, where="c") == found


def test_attention_left_alone_layer_by_layer_counts_only_if_every_layer_is_named() -> None:
    config = {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn.q_proj"]}
    one = read_quantised({"quantization_config": config, "num_hidden_layers": 1}, where="c")
    two = read_quantised({"quantization_config": config, "num_hidden_layers": 2}, where="c")
    assert (one, two) == (Quantised(weight="fp8", has_wide_attention=True), Quantised(weight="fp8"))


def test_a_quantisation_nobody_knows_is_refused_with_a_way_on() -> None:
    assert read_quantised({}, where="c") is None
    with pytest.raises(ParseError, match=r"'exl9' with None bits is not known .* workload.weight_dtype=fp8"):
        read_quantised({"quantization_config": {"quant_method": "exl9"}}, where="c")


def test_number_formats_have_short_names() -> None:
    assert [short_dtype(n, where="x") for n in ("bfloat16", "torch.float16", "float32", "int8")] == [
        "bf16",
        "fp16",
        "fp32",
        "int8",
    ]
    with pytest.raises(ConfigError, match=r"model\.dtype: not a number format"):
        short_dtype("complex64", where="model.dtype")


def test_the_text_model_inside_a_wrapper_is_read_with_its_types_defaults() -> None:
    """Gemma 3 4B as its config.json has it: heads and vocabulary are transformers' defaults."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    model = read_text_model({"model_type": "gemma3", "text_config": text, "vision_config": {}}, where="c")
    assert count_parameters(model).total == 3_880_263_168
    assert (is_wrapped({"text_config": text}), is_wrapped(text)) == (True, False)


def test_the_whole_model_says_whether_its_output_matrix_is_the_embedding() -> None:
    text = {**SMALL, "model_type": "llama", "tie_word_embeddings": False}
    found = read_text_model({"model_type": "w", "text_config": text, "tie_word_embeddings": True}, where="c")
    assert found.decoder.is_tied
    assert not read_text_model({"model_type": "w", "text_config": text}, where="c").decoder.is_tied


def test_kimi_k2_is_read_as_deepseek_v3() -> None:
    data = {**SMALL, **FAMILY_CASES["deepseek_v3"]}
    kimi, deepseek = (read_text_model({**data, "model_type": t}, where="c") for t in ("kimi_k2", "deepseek_v3"))
    assert kimi == deepseek


@pytest.mark.parametrize("data", [{"model_type": "t5"}, {"model_type": "anything", "is_encoder_decoder": True}])
def test_what_is_no_decoder_is_refused_with_a_way_on(data: dict[str, Any]) -> None:
    with pytest.raises(NotInClosedForm, match=r"only decoders are predicted; profile your own program"):
        read_text_model(data, where="c")


def test_a_state_takes_the_same_memory_at_every_context() -> None:
    model = read_text_model({**SMALL, **FAMILY_CASES["mamba2"], "model_type": "mamba2"}, where="c")
    # Four layers of 8 heads × 16 × 32 elements, and a convolution over 128 + 2 · 2 · 32 channels of 4.
    assert kv_bytes(model, 10, BF16) == kv_bytes(model, 10_000, BF16) == 2 * 4 * (8 * 16 * 32 + 256 * 4)
    assert kv_bytes_per_token(model, BF16) == 0


# Layers of Llama-3.3-Nemotron-Super-49B by their width over Llama's: 49 with attention, 31 without.
NAS_WIDTHS = {5.25: 49, 1.3125: 10, 1.0: 8, 2.625: 6, 0.5: 6, 3.28125: 1}
NAS_BLOCKS = [
    {"attention": {"no_op": i >= 49, "n_heads_in_group": 8}, "ffn": {"no_op": False, "ffn_mult": width}}
    for i, width in enumerate(width for width, count in NAS_WIDTHS.items() for _ in range(count))
]


@pytest.mark.parametrize(
    ("geometry", "parameters"),
    [
        # Counted by transformers too: NVIDIA-Nemotron-3-Super-120B-A12B, whose experts work on a latent.
        (
            {
                "model_type": "nemotron_h",
                "vocab_size": 131072,
                "hidden_size": 4096,
                "intermediate_size": 2688,
                "num_attention_heads": 32,
                "num_key_value_heads": 2,
                "head_dim": 128,
                "mamba_num_heads": 128,
                "mamba_head_dim": 64,
                "ssm_state_size": 128,
                "n_groups": 8,
                "conv_kernel": 4,
                "use_conv_bias": True,
                "n_routed_experts": 512,
                "num_experts_per_tok": 22,
                "moe_intermediate_size": 2688,
                "moe_latent_size": 1024,
                "moe_shared_expert_intermediate_size": 5376,
                "n_shared_experts": 1,
                "hybrid_override_pattern": "MEMEMEM*" + "EMEMEMEM*" * 2 + "EMEMEMEMEM*" * 4 + "EMEMEMEM*" + "EMEMEMEME",
                "num_hidden_layers": 88,
                "tie_word_embeddings": False,
            },
            120_668_687_360,
        ),
        # Published as 49.9 B.
        (
            {
                "model_type": "nemotron-nas",
                "vocab_size": 128256,
                "hidden_size": 8192,
                "num_attention_heads": 64,
                "num_hidden_layers": 80,
                "block_configs": NAS_BLOCKS,
                "tie_word_embeddings": False,
            },
            49_867_145_216,
        ),
        # Published as 196 B.
        (
            {
                "model_type": "step3p7",
                "num_hidden_layers": 45,
                "hidden_size": 4096,
                "num_attention_heads": 64,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "vocab_size": 128896,
                "intermediate_size": 11264,
                "sliding_window": 512,
                "first_k_dense_replace": 3,
                "num_experts": 288,
                "num_experts_per_tok": 8,
                "moe_intermediate_size": 1280,
                "share_expert_dim": 1280,
            },
            None,
        ),
    ],
    ids=["Nemotron-3-Super", "Nemotron-Super-49B", "Step-3.7-Flash"],
)
def test_parameters_of_published_models_are_met(geometry: dict[str, Any], parameters: int | None) -> None:
    found = count_parameters(read_text_model(geometry, where="config.json")).total
    assert found == (pytest.approx(196e9, rel=0.01) if parameters is None else parameters)


def test_mimo_without_its_patterns_has_those_of_transformers() -> None:
    sizes = {
        "model_type": "mimo_v2_flash",
        "num_hidden_layers": 48,
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "num_key_value_heads": 4,
        "swa_num_key_value_heads": 8,
        "head_dim": 192,
        "v_head_dim": 128,
        "intermediate_size": 16384,
        "vocab_size": 152576,
        "sliding_window": 128,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "tie_word_embeddings": False,
    }
    named = {
        **sizes,
        "hybrid_layer_pattern": [0, *(int((i + 1) % 6 != 0) for i in range(1, 48))],
        "moe_layer_freq": [0] + [1] * 47,
    }
    assert read_text_model(sizes, where="a").decoder == read_text_model(named, where="b").decoder


def test_a_text_part_without_a_type_has_that_of_its_wrapper() -> None:
    text = {
        "hidden_size": 64,
        "intermediate_size": 32,
        "dense_intermediate_size": 128,
        "shared_intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 100,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "moe_layer_freq": [0, 1],
    }
    wrapped = {"model_type": "minimax_m3_vl", "text_config": text}
    alone = {"model_type": "minimax_m3", **text}
    assert read_text_model(wrapped, where="a").decoder.blocks == read_text_model(alone, where="b").decoder.blocks

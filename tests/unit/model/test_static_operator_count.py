"""Operator counting on the meta device against the closed form, for every family and preset."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.model.hardware.work import View
from llm_perf_opt.model.static.closed_form import Phase
from llm_perf_opt.model.static.operator_count import Count
from llm_perf_opt.model.static.parts import LatentAttention, Model
from tests.support.static_cases import FAMILY_CASES, SMALL, preset_geometry, preset_model

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from llm_perf_opt.core.names import DECODE, PREFILL  # noqa: E402
from llm_perf_opt.model.families.known import read_text_model  # noqa: E402
from llm_perf_opt.model.hardware.work import Dtypes  # noqa: E402
from llm_perf_opt.model.static.closed_form import count_parameters, decode_phase, kv_bytes, prefill_phase  # noqa: E402
from llm_perf_opt.model.static.double_entry import UNEXPLAINED, disagreements, double_entry  # noqa: E402
from llm_perf_opt.model.static.operator_count import count_operators, operator_cost  # noqa: E402
from llm_perf_opt.model.static.prediction import estimate_operators  # noqa: E402
from llm_perf_opt.plugins.deepseek_ocr.adapter import SamGeometry  # noqa: E402
from llm_perf_opt.plugins.deepseek_ocr.vision import SamEncoder  # noqa: E402
from llm_perf_opt.workload.models.causal_lm_torch import build_on_meta  # noqa: E402
from llm_perf_opt.workload.models.module_groups import group_modules  # noqa: E402

pytestmark = pytest.mark.slow

BF16 = Dtypes.uniform("bf16")
PRESETS = ("llama3_1b", "llama3_8b", "qwen3_8b", "qwen3_30b_a3b", "deepseek_v2_lite")


def count_text(module: Any, *, batch: int, prompt: int) -> dict[str, Count]:
    groups = group_modules(module)
    ids = torch.zeros(batch, prompt, dtype=torch.long, device="meta")
    with torch.no_grad():
        first, out = count_operators(module, groups, lambda: module(input_ids=ids, use_cache=True, logits_to_keep=1))
        cache = out.past_key_values
        second, _ = count_operators(
            module,
            groups,
            lambda: module(input_ids=ids[:, :1], past_key_values=cache, use_cache=True, logits_to_keep=1),
        )
    return {PREFILL: first, DECODE: second}


def both_books(
    model: Model,
    counts: dict[str, Count],
    *,
    batch: int,
    prompt: int,
    dtypes: Dtypes = BF16,
    views: tuple[View, ...] = (),
) -> dict[str, tuple[Phase, Count]]:
    phases = {
        PREFILL: prefill_phase(model, batch=batch, prompt=prompt, dtypes=dtypes, views=views),
        DECODE: decode_phase(model, batch=batch, context=prompt, dtypes=dtypes),
    }
    return {name: (phases[name], counts[name]) for name in phases}


def small_meta(model_type: str) -> tuple[dict[str, Any], Any]:
    config = transformers.AutoConfig.for_model(model_type, **{**SMALL, **FAMILY_CASES[model_type]})
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    if model_type in OWN_FIELDS:
        return {**SMALL, **FAMILY_CASES[model_type], "model_type": model_type}, module
    return config.to_dict(), module


# Their files have other fields than the configuration that transformers makes of them.
OWN_FIELDS = {"gemma4_text", "mimo_v2_flash"}
# Parameters alone can be compared: transformers runs all experts of Llama 4 for every token, works on states in chunks
# that cost more than they must, scores keys that an indexer left out, has no cache of the usual kind in Mamba 2; GPT-2
# and DBRX ask the device for values.
NOT_COUNTED = {"gpt2", "llama4_text", "mamba2", "qwen3_next", "bamba", "falcon_h1", "granitemoehybrid", "nemotron_h"}
NOT_COUNTED |= {
    "deepseek_v32",
    "gemma4_text",
    "glm_moe_dsa",
    "kimi_linear",
    "mimo_v2_flash",
    "minimax_m3_vl_text",
    "dbrx",
    "jamba",
    "lfm2",
    "mamba",
    "qwen3_5_moe_text",
    "qwen3_5_text",
}
# Transformers builds it inside a model that also reads images.
NOT_ALONE = {"step3p5"}
# At this size biases, positions and scores that are not fused are more than a hundredth of a group's bytes.
FLOPS_ALONE = {"bloom", "gpt_bigcode", "gptj", "granitemoeshared", "opt", "phi", "phimoe"}


@pytest.mark.parametrize("model_type", sorted(NOT_COUNTED))
def test_parameters_equal_what_transformers_builds(model_type: str) -> None:
    data, module = small_meta(model_type)
    assert count_parameters(read_text_model(data, where=model_type)).total == sum(
        p.numel() for p in module.parameters()
    )


# As the files of the checkpoints say it, which transformers reads into other fields.
KIMI = {
    **SMALL,
    **{key: value for key, value in FAMILY_CASES["kimi_linear"].items() if not key.startswith("linear_")},
    "model_type": "kimi_linear",
    "num_experts": 8,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "linear_attn_config": {"full_attn_layers": [2, 4], "kda_layers": [1, 3], "head_dim": 8, "num_heads": 4},
}


def test_step_has_the_parameters_that_transformers_builds() -> None:
    from transformers.models.step3p7 import Step3p7TextConfig, Step3p7TextModel

    data = {**SMALL, **FAMILY_CASES["step3p5"], "model_type": "step3p5"}
    with torch.device("meta"):
        module = Step3p7TextModel(Step3p7TextConfig(**{k: v for k, v in data.items() if k != "model_type"}))
    model = read_text_model(data, where="step")
    head = data["hidden_size"] * data["vocab_size"]
    assert count_parameters(model).total == sum(p.numel() for p in module.parameters()) + head
    (full, near) = sorted({layer.attention.heads for layer, _ in model.decoder.blocks})  # type: ignore[union-attr]
    assert (full, near) == (4, 6)
    assert read_text_model({**data, "moe_layers_enum": [1, 2, 3]}, where="step") == model


def test_kimi_is_read_under_the_names_its_file_uses() -> None:
    module = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        built = module(transformers.AutoConfig.for_model(**KIMI), dtype=torch.bfloat16)
    model = read_text_model(KIMI, where="kimi")
    assert count_parameters(model).total == sum(p.numel() for p in built.parameters())
    assert sum(count for layer, count in model.decoder.blocks if isinstance(layer.attention, LatentAttention)) == 2


def test_keys_that_are_picked_bound_what_a_step_reads_and_not_what_is_kept() -> None:
    data = {**SMALL, **FAMILY_CASES["minimax_m3_vl_text"], "model_type": "minimax_m3_vl_text"}
    model = read_text_model(data, where="m3")
    every = read_text_model({**data, "layer_types": ["full_attention"] * 4}, where="m3")
    sparse, full = (decode_phase(one, batch=1, context=1024, dtypes=BF16).total for one in (model, every))
    # 3 of 4 layers read 8 keys of two heads, of 16 each, and the index of all 1,025; the others all keys and values.
    each = 2 * (16 + 16) * 2
    assert full.kv_read_bytes == 4 * 1025 * each
    assert sparse.kv_read_bytes == 1025 * each + 3 * (8 * each + 1025 * 16 * 2)
    assert kv_bytes(model, 1024, BF16) == kv_bytes(every, 1024, BF16) + 3 * 1024 * 16 * 2


@pytest.mark.parametrize("model_type", sorted(set(FAMILY_CASES) - NOT_COUNTED - NOT_ALONE))
def test_closed_form_equals_what_transformers_builds(model_type: str) -> None:
    data, module = small_meta(model_type)
    model = read_text_model(data, where=model_type)
    assert count_parameters(model).total == sum(p.numel() for p in module.parameters())
    books = both_books(model, count_text(module, batch=3, prompt=32), batch=3, prompt=32)
    for form, count in books.values():
        assert count.total.flops == form.total.flops
        assert count.unknown == ()
        found = {name: tally.flops for name, tally in count.groups.items() if tally.flops}
        assert found == {name: work.flops for name, work in form.groups.items() if work.flops}
    if model_type in FLOPS_ALONE:
        return
    assert [e for e in disagreements(double_entry(model, books, BF16)) if e.explanation == UNEXPLAINED] == []
    # The count stays as it is when the closed form takes narrow weights and a narrow cache: that has to explain it.
    narrow = Dtypes(compute="bf16", weight="int4", kv="fp8")
    books = both_books(model, {name: count for name, (_, count) in books.items()}, batch=3, prompt=32, dtypes=narrow)
    assert [e for e in disagreements(double_entry(model, books, narrow)) if e.explanation == UNEXPLAINED] == []


@pytest.mark.parametrize("name", PRESETS)
def test_presets_agree_within_a_thousandth(name: str) -> None:
    geometry = preset_geometry(f"causal_lm/arch/{name}")
    model = read_text_model(geometry, where=name)
    module = build_on_meta(geometry, dtype="bfloat16", attention="sdpa", experts=None)
    parameters = count_parameters(model)
    assert parameters.total == sum(p.numel() for p in module.parameters())
    assert parameters.activated == activated_by_transformers(module)
    counts = count_text(module, batch=1, prompt=1024)
    books = both_books(model, counts, batch=1, prompt=1024)
    for phase, (form, count) in books.items():
        assert count.total.flops == pytest.approx(form.total.flops, rel=1e-3)
        guessed = estimate_operators(model, is_prefill=phase == PREFILL)
        assert count.total.operators == pytest.approx(guessed, rel=0.1)
    assert disagreements(double_entry(model, books, BF16)) == ()


def activated_by_transformers(module: Any) -> int:
    """All parameters, those of stacked routed experts by the share a token picks."""
    config = module.config.to_dict()
    experts = config.get("n_routed_experts") or config.get("num_local_experts") or config.get("num_experts")
    total = 0
    for name, parameter in module.named_parameters():
        if ".experts." in name:
            assert parameter.shape[0] == experts
            total += parameter.numel() // experts * config["num_experts_per_tok"]
        else:
            total += parameter.numel()
    return total


def ocr_meta(preset: str, dtype: Any) -> tuple[Model, Any]:
    from llm_perf_opt.plugins.deepseek_ocr.adapter import parse_geometry
    from llm_perf_opt.plugins.deepseek_ocr.build import build_on_meta as build_ocr

    geometry = preset_geometry(f"deepseek_ocr/arch/{preset}")
    module = build_ocr(parse_geometry(geometry), dtype="bfloat16").to(dtype)
    module.set_experts_mode("grouped")
    return preset_model(f"deepseek_ocr/arch/{preset}"), module


@pytest.mark.parametrize(
    ("preset", "base", "tile", "tiles", "prompt"),
    [
        ("deepseek_ocr.default", 1024, 640, 6, 912),
        ("deepseek_ocr.tiny", 256, 128, 2, 60),
        ("deepseek_ocr.tiny", 256, 128, 0, 60),
    ],
)
def test_pages_agree_with_and_without_tiles(preset: str, base: int, tile: int, tiles: int, prompt: int) -> None:
    from llm_perf_opt.plugins.deepseek_ocr.network import Views
    from llm_perf_opt.plugins.deepseek_ocr.preprocess import PARTS

    dtype = torch.bfloat16 if preset.endswith("default") else torch.float32
    dtypes = Dtypes.uniform("bf16" if preset.endswith("default") else "fp32")
    model, module = ocr_meta(preset, dtype)
    groups = group_modules(module, claimed=PARTS)
    ids = torch.zeros(1, prompt, dtype=torch.long, device="meta")
    page = torch.empty(1, 3, base, base, device="meta", dtype=dtype)
    cut = torch.empty(tiles, 3, tile, tile, device="meta", dtype=dtype) if tiles else None
    views = Views(page=page, tiles=cut, grid=(tiles, 1) if tiles else (1, 1), start=1)
    with torch.no_grad():
        first, out = count_operators(module, groups, lambda: module(ids, views=views))
        cache = out.past_key_values
        second, _ = count_operators(module, groups, lambda: module(ids[:, :1], past_key_values=cache))
    seen = ((View(size=tile, count=tiles),) if tiles else ()) + (View(size=base, count=1),)
    books = both_books(model, {PREFILL: first, DECODE: second}, batch=1, prompt=prompt, dtypes=dtypes, views=seen)
    for form, count in books.values():
        assert count.total.flops == form.total.flops
    assert disagreements(double_entry(model, books, dtypes)) == ()


def test_attention_is_counted_the_same_on_every_path() -> None:
    q = torch.randn(2, 8, 16, 32)
    k = torch.randn(2, 2, 24, 32)
    full = 2.0 * 2 * 8 * 16 * 24 * (32 + 32)
    holder = torch.nn.Identity()

    for device in ("cpu", "meta"):
        at, on = q.to(device), k.to(device)
        attend = partial(torch.nn.functional.scaled_dot_product_attention, at, on, on, enable_gqa=True)
        count, _ = count_operators(holder, {}, attend)
        assert count.total.flops == full
        assert count.total.operators == 1
        # Keys and values of two heads, not of eight.
        assert count.total.bytes == 4 * (2 * 2 * 8 * 16 * 32 + 2 * 2 * 2 * 24 * 32)


def test_attention_called_below_the_python_function_is_counted_too() -> None:
    q = torch.randn(1, 4, 16, 32)
    holder = torch.nn.Identity()
    count, _ = count_operators(holder, {}, lambda: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q))
    assert count.total.flops == 2.0 * 4 * 16 * 16 * 64
    for name in ("flash_attention", "efficient_attention", "cudnn_attention", "attention_math"):
        cost = operator_cost(f"aten::_scaled_dot_product_{name}", (q, q, q), (q,))
        assert cost is not None and cost.flops == 2.0 * 4 * 16 * 16 * 64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_grouped_products_are_counted_in_every_format(dtype: Any) -> None:
    rows = torch.empty(12, 64, dtype=dtype, device="meta")
    matrices = torch.empty(8, 64, 32, dtype=dtype, device="meta")
    ends = torch.empty(8, dtype=torch.int32, device="meta")
    count, out = count_operators(torch.nn.Identity(), {}, lambda: torch._grouped_mm(rows, matrices, offs=ends))
    assert tuple(out.shape) == (12, 32)
    assert count.total.flops == 2.0 * 12 * 64 * 32
    assert count.total.bytes == rows.element_size() * (12 * 64 + 8 * 64 * 32 + 12 * 32)
    few, _ = count_operators(torch.nn.Identity(), {}, lambda: torch._grouped_mm(rows[:3], matrices, offs=ends))
    # Three rows can touch three matrices at most.
    assert few.total.bytes == rows.element_size() * (3 * 64 + 3 * 64 * 32 + 3 * 32)


def test_convolutions_and_biases_are_counted() -> None:
    conv = torch.nn.Conv2d(3, 8, kernel_size=4, stride=2, device="meta")
    image = torch.empty(2, 3, 18, 18, device="meta")
    count, out = count_operators(conv, {"": "sam"}, lambda: conv(image))
    assert tuple(out.shape) == (2, 8, 8, 8)
    assert count.groups["sam"].flops == 2.0 * 2 * 64 * 8 * 3 * 16
    linear = torch.nn.Linear(16, 4, device="meta")
    count, _ = count_operators(linear, {}, lambda: linear(torch.empty(5, 16, device="meta")))
    assert (count.total.flops, count.total.bytes) == (2.0 * 5 * 16 * 4, 4 * (5 * 16 + 16 * 4 + 4 + 5 * 4))


def allocated_peak(work: Callable[[], object], tmp_path: Path) -> int:
    """Bytes that torch's allocator held at most while this ran."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=activities, profile_memory=True) as profiler:
        work()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    held = peak = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize(("size", "count"), [(256, 1), (128, 4), (96, 3)])
def test_the_towers_hold_at_their_widest_point_what_the_closed_form_says(size: int, count: int, tmp_path: Path) -> None:
    data = preset_geometry("deepseek_ocr/arch/deepseek_ocr.tiny")
    lists = {key: tuple(data["sam"][key]) for key in ("global_layers", "downsample")}
    sam = SamEncoder(SamGeometry(**{**data["sam"], **lists}))
    for parameter in sam.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    measured = allocated_peak(lambda: sam(torch.zeros(count, 3, size, size)), tmp_path)
    images = preset_model("deepseek_ocr/arch/deepseek_ocr.tiny").images
    assert images is not None
    predicted = images.peak_bytes((View(size=size, count=count),), Dtypes.uniform("fp32"))
    # Scratch room of single operators is not part of the closed form.
    assert predicted == pytest.approx(measured, rel=0.05)
    assert predicted <= measured

"""Models the closed form does not know: operators alone, for decoders of `transformers` no rule was written for."""

import pytest

pytest.importorskip("torch")

from llm_perf_opt.model.hardware.work import Dtypes, Shape
from llm_perf_opt.model.static.closed_form import count_parameters, kv_bytes
from llm_perf_opt.model.static.config_json import NotInClosedForm
from llm_perf_opt.model.static.counted import (
    CountedAnalysis,
    counted_document,
    counted_markdown,
    counted_metrics,
    unknown_text,
)
from llm_perf_opt.model.static.operator_count import Count, Tally, count_module_parameters
from llm_perf_opt.profiling.static_child import count_phases
from tests.support.model_presets import adapter_of, compose_preset

pytestmark = pytest.mark.slow

SHAPE = Shape(batch=1, prompt=64, context=72, how="as asked for")
# Elements of one layer's matrices with a hidden size of 64 and four heads, biases aside.
PLAIN = 12 * 64 * 64
LAYERS = {
    "bitnet": PLAIN,
    # A block of two matrices.
    "persimmon": 4 * 64 * 64 + 2 * 64 * 192,
}


@pytest.mark.parametrize("family", list(LAYERS))
def test_a_decoder_without_a_rule_is_counted_to_the_last_product(family: str) -> None:
    config = compose_preset("model=llama_tiny", f"model.geometry.model_type={family}")
    adapter = adapter_of(config)
    with pytest.raises(NotInClosedForm) as unknown:
        adapter.parts(adapter.geometry(config.model), where="model.geometry")
    assert unknown.value.what == f"the family '{family}'"
    module = adapter.build_meta(config.model)
    counts = count_phases(adapter, module, adapter.meta_groups(module), SHAPE)
    matrices = 2 * LAYERS[family]
    assert counts["prefill"].total.flops == 2 * 64 * matrices + 2 * 4 * 64 * 64**2 + 2 * 64 * 512
    assert counts["decode"].total.flops == 2 * matrices + 2 * 4 * 64 * 73 + 2 * 64 * 512
    groups = {"attention", "mlp", "norm", "embedding", "lm_head"}
    assert set(counts["decode"].groups) - {"other"} == groups
    assert counts["decode"].groups.get("other", Tally()).flops == 0


@pytest.mark.parametrize("preset", ["llama_tiny", "qwen3_moe_tiny", "deepseek_v2_tiny", "deepseek_ocr_tiny"])
def test_parameters_of_a_built_module_are_those_of_the_closed_form_by_group(preset: str) -> None:
    config = compose_preset(f"model={preset}")
    adapter = adapter_of(config)
    module = adapter.build_meta(config.model)
    form = count_parameters(adapter.parts(adapter.geometry(config.model), where=preset)).groups
    assert count_module_parameters(module, adapter.meta_groups(module)) == {k: v for k, v in form.items() if v}


@pytest.mark.parametrize(("preset", "batch"), [("llama_tiny", 1), ("llama_tiny", 3), ("qwen3_moe_tiny", 2)])
def test_the_cache_that_was_counted_is_that_of_the_closed_form(preset: str, batch: int) -> None:
    config = compose_preset(f"model={preset}")
    adapter = adapter_of(config)
    module = adapter.build_meta(config.model)
    shape = Shape(batch=batch, prompt=16, context=40, how="as asked for")
    kept = count_phases(adapter, module, adapter.meta_groups(module), shape)["decode"].cache_elements
    model = adapter.parts(adapter.geometry(config.model), where=preset)
    assert kept is not None and 2 * kept == batch * kv_bytes(model, 40, Dtypes.uniform("bf16"))


def analysis(**parameters: int) -> CountedAnalysis:
    tally = Tally(flops=10.0, bytes=20.0, other_bytes=30.0, operators=4)
    count = Count(groups={"mlp": tally, "look": tally}, operators={"aten::mm": tally})
    return CountedAnalysis(
        name="mine",
        reason=unknown_text("the family 'mine'"),
        dtypes=Dtypes.uniform("bf16"),
        shape=SHAPE,
        hardware=None,
        hardware_reason="no such device",
        capacity_bytes=1e9,
        parameters=parameters,
        counts={"prefill": count, "decode": count},
    )


def test_what_only_the_closed_form_knows_is_missing_with_its_reason() -> None:
    found = counted_metrics(analysis(mlp=100, look=23), source="s.json")
    known = {name: metric.value for name, metric in found.items() if metric.value is not None}
    assert known == {
        "params_total": 123,
        "params_activated": 123,
        "weights_bytes": 246,
        "flops_prefill": 20,
        "bytes_prefill": 40,
        "operators_prefill": 8,
        "flops_decode": 20,
        "bytes_decode": 40,
        "operators_decode": 8,
    }
    reasons = {metric.reason for metric in found.values() if metric.value is None}
    assert reasons == {"the closed form does not know the family 'mine'"}


def test_how_many_parameters_a_token_uses_is_not_guessed_where_there_are_experts() -> None:
    assert (analysis(mlp=100).activated, analysis(mlp=100, experts=5).activated) == (100, None)


def test_a_group_that_an_adapter_named_is_listed_after_the_decoder_s() -> None:
    document = counted_document(analysis(mlp=100, look=23), notes=("n",))
    phase = document.phases["decode"]
    assert list(phase.groups) == ["mlp", "look"]
    assert (phase.flops, phase.counted_flops, phase.tokens, phase.per) == (None, 20, 1, "decode step")
    assert (document.closed_form_reason, document.kv_bytes_per_token, document.notes) == (
        "the closed form does not know the family 'mine'",
        None,
        ("n",),
    )
    text = counted_markdown(analysis(mlp=100, look=23))
    assert "| look | 23 | 10 FLOP | 20 B | 30 B | 4 |" in text
    assert text.endswith("## Bounds\n\nNo bound: the closed form does not know the family 'mine'.\n")

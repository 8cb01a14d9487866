"""DeepSeek-OCR in plain torch: its parts against transformers' own, its cache, its ranges, its operators on meta."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from llm_perf_opt.errors import ConfigError, ProfilingError
from llm_perf_opt.plugins.deepseek_ocr.adapter import OcrGeometry, parse_geometry
from llm_perf_opt.plugins.deepseek_ocr.build import build_on_meta, fill_with_noise
from llm_perf_opt.plugins.deepseek_ocr.network import DeepseekOcr, Experts, MoeBlock, Views
from llm_perf_opt.plugins.memory.watcher import storages_of
from llm_perf_opt.workload.models.base import Sample
from tests.support.model_presets import adapter_of, compose_preset, load_preset

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def geometry() -> OcrGeometry:
    config = compose_preset("model=deepseek_ocr_tiny")
    return parse_geometry(adapter_of(config).geometry(config.model))


@pytest.fixture(scope="module")
def loaded() -> Any:
    return load_preset("experiment=ocr_tiny")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "page one, draft.png"
    picture = Image.linear_gradient("L").resize((480, 640)).convert("RGB")
    picture.paste((200, 30, 60), (100, 100, 300, 200))
    picture.save(path)
    return path


def make(geometry: OcrGeometry) -> DeepseekOcr:
    module = build_on_meta(geometry, dtype="float32")
    fill_with_noise(module, device="cpu", seed=1)
    return module


@pytest.mark.long
def test_decoding_with_the_cache_equals_one_forward_over_the_whole_sequence(
    loaded: Any, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_perf_opt.plugins.deepseek_ocr.network._GROW_BY", 16)
    inputs = loaded.prepare(Sample(sample_id="a", image=page))
    step = loaded.prefill(inputs, silent)
    ids = []
    for _ in range(40):  # past the block by which the cache grows
        token = step.logits.argmax(dim=-1, keepdim=True)
        ids.append(int(token))
        step = loaded.decode(token, step.state)
    whole = torch.cat([inputs.ids, torch.tensor([ids])], dim=1)
    with torch.no_grad():
        out = loaded.module(whole, views=inputs.views, logits_to_keep=0)
    greedy = out.logits[0, inputs.ids.shape[1] - 1 : -1].argmax(dim=-1).tolist()
    assert ids == greedy
    assert torch.allclose(step.logits, out.logits[:, -1], atol=1e-4)
    assert len(set(ids)) > 5


def tokens_of(model: Any, page: Path, *, steps: int) -> list[int]:
    step = model.prefill(model.prepare(Sample(sample_id="a", image=page)), silent)
    ids = []
    for _ in range(steps):
        token = step.logits.argmax(dim=-1, keepdim=True)
        ids.append(int(token))
        step = model.decode(token, step.state)
    return ids


@pytest.mark.parametrize(
    "overrides",
    [
        ("infer.cache=static",),
        pytest.param(("infer.cache=static", "infer.compile=default"), marks=pytest.mark.long),
    ],
)
def test_a_static_cache_and_a_compiled_step_change_no_token(
    loaded: Any, page: Path, overrides: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    static = load_preset("experiment=ocr_tiny", "infer.max_new_tokens=40", *overrides)
    wanted = tokens_of(loaded, page, steps=40)
    # The second page finds the cache of the first.
    assert tokens_of(static, page, steps=40) == wanted
    assert tokens_of(static, page, steps=40) == wanted
    assert len(set(wanted)) > 5


def test_a_captured_step_without_a_gpu_is_a_note_and_experts_ask_nothing_of_the_host(page: Path) -> None:
    static = load_preset("experiment=ocr_tiny", "infer.cache=static", "infer.cuda_graph=true")
    assert static.notes[-1] == (
        "infer.cuda_graph=true: no CUDA graph was captured, decode steps run without it: the model runs on cpu"
    )
    assert {part.mode for part in static.module.modules() if isinstance(part, Experts)} == {"batched"}
    # Whoever measures the cache finds it in the state.
    step = static.prefill(static.prepare(Sample(sample_id="a", image=page)), silent)
    assert sum(storages_of(step.state).values()) > 0


def test_the_prompt_holds_the_page_and_its_ranges_are_opened_for_tiles_then_page(loaded: Any, page: Path) -> None:
    inputs = loaded.prepare(Sample(sample_id="a", image=page))
    names: list[str] = []

    @contextmanager
    def ranges(name: str) -> Iterator[None]:
        names.append(name)
        yield

    loaded.prefill(inputs, ranges)
    # Tiles 2x3 of side 2, the page of side 4: (2*2+1)*(2*3) + (4+1)*4+1, then the start token and eight words.
    assert (inputs.views.grid, inputs.page_tokens, loaded.prompt_tokens(inputs)) == ((2, 3), 51, 60)
    assert list(loaded.prompt_ids(inputs)[:52]) == [0, *[1023] * 51]
    assert 1023 not in loaded.prompt_ids(inputs)[52:]
    assert names == ["sam", "clip", "projector", "sam", "clip", "projector"]
    assert loaded.parts == ("sam", "clip", "projector")


@contextmanager
def silent(_name: str) -> Iterator[None]:
    yield


def test_the_page_changes_the_logits_and_a_page_is_needed(loaded: Any, page: Path, tmp_path: Path) -> None:
    Image.new("RGB", (480, 640), (255, 255, 255)).save(tmp_path / "white.png")
    one, other = (
        loaded.prefill(loaded.prepare(Sample(sample_id="a", image=p)), silent).logits
        for p in (page, tmp_path / "white.png")
    )
    assert not torch.allclose(one, other, atol=1e-3)
    with pytest.raises(ProfilingError, match=r"^sample t: DeepSeek-OCR needs a page, not text or token ids$"):
        loaded.prepare(Sample(sample_id="t", text="hello"))


def test_tokens_of_tiles_are_in_reading_order_with_row_ends_and_the_separator_last(geometry: OcrGeometry) -> None:
    module = make(geometry)
    backbone = module.model
    tiles, whole = torch.randn(6, 3, 128, 128), torch.randn(1, 3, 256, 256)
    with torch.no_grad():
        got = backbone.page_tokens(Views(page=whole, tiles=tiles, grid=(2, 3), start=0), silent)
        seen, global_view = backbone.see(tiles, silent), backbone.see(whole, silent)[0]
    expected = []
    for down in range(3):
        for row in range(2):
            expected += [*seen[2 * down, row], *seen[2 * down + 1, row], backbone.image_newline]
    for row in range(4):
        expected += [*global_view[row], backbone.image_newline]
    assert torch.equal(got, torch.stack([*expected, backbone.view_seperator]))


def test_every_way_to_run_the_experts_gives_the_same(geometry: OcrGeometry) -> None:
    block = next(m for m in make(geometry).modules() if isinstance(m, MoeBlock))
    for tokens in (1, 17):
        x = torch.randn(1, tokens, geometry.decoder.hidden_size)
        outs = []
        for mode in ("loop", "batched", "grouped"):
            block.experts.mode = mode
            with torch.no_grad():
                outs.append(block(x))
        assert torch.allclose(outs[0], outs[1], atol=1e-5)
        assert torch.allclose(outs[0], outs[2], atol=1e-5)


def test_the_experts_are_those_of_transformers_deepseek_v2(geometry: OcrGeometry) -> None:
    from transformers import DeepseekV2Config
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe

    d = geometry.decoder
    block = next(m for m in make(geometry).modules() if isinstance(m, MoeBlock))
    theirs = DeepseekV2Moe(
        DeepseekV2Config(
            hidden_size=d.hidden_size,
            moe_intermediate_size=d.moe_intermediate_size,
            n_routed_experts=d.n_routed_experts,
            n_shared_experts=d.n_shared_experts,
            num_experts_per_tok=d.num_experts_per_tok,
        )
    )
    theirs.load_state_dict(block.state_dict())
    x = torch.randn(1, 9, d.hidden_size)
    with torch.no_grad():
        assert torch.allclose(block(x), theirs(x), atol=1e-5)


def test_the_attention_and_norms_are_those_of_transformers_llama(geometry: OcrGeometry) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    d = replace(geometry.decoder, first_k_dense_replace=geometry.decoder.num_hidden_layers)
    module = make(replace(geometry, decoder=d))
    theirs = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=d.vocab_size,
            hidden_size=d.hidden_size,
            intermediate_size=d.intermediate_size,
            num_hidden_layers=d.num_hidden_layers,
            num_attention_heads=d.num_attention_heads,
            rms_norm_eps=d.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": d.rope_theta},
        )
    )
    left_over = theirs.load_state_dict(module.state_dict(), strict=False)
    assert left_over.missing_keys == []
    ids = torch.randint(0, d.vocab_size, (1, 40))
    with torch.no_grad():
        assert torch.allclose(module(ids, logits_to_keep=0).logits, theirs(ids).logits, atol=1e-4)


def test_the_first_encoder_is_transformers_sam(geometry: OcrGeometry) -> None:
    from transformers import SamVisionConfig
    from transformers.models.sam.modeling_sam import SamVisionEncoder

    g = geometry.sam
    ours = make(geometry).model.sam_model
    theirs = SamVisionEncoder(
        SamVisionConfig(
            hidden_size=g.width,
            num_hidden_layers=g.layers,
            num_attention_heads=g.heads,
            mlp_dim=g.mlp_width,
            mlp_ratio=g.mlp_width / g.width,
            window_size=g.window,
            global_attn_indexes=list(g.global_layers),
            patch_size=g.patch,
            image_size=g.image_size,
            output_channels=g.neck,
            attn_implementation="eager",
        )
    )
    renamed = {}
    for name, tensor in ours.state_dict().items():
        for old, new in (
            ("patch_embed.proj.", "patch_embed.projection."),
            ("blocks.", "layers."),
            ("norm1.", "layer_norm1."),
            ("norm2.", "layer_norm2."),
            ("neck.0.", "neck.conv1."),
            ("neck.1.", "neck.layer_norm1."),
            ("neck.2.", "neck.conv2."),
            ("neck.3.", "neck.layer_norm2."),
        ):
            name = name.replace(old, new)
        if not name.startswith("net_"):
            renamed[name] = tensor
    theirs.load_state_dict(renamed)
    pictures = torch.randn(2, 3, g.image_size, g.image_size)
    with torch.no_grad():
        expected = ours.net_3(ours.net_2(theirs(pictures).last_hidden_state))
        assert torch.allclose(ours(pictures), expected, atol=1e-4)


def test_the_second_encoder_is_transformers_clip_on_the_firsts_features(geometry: OcrGeometry) -> None:
    from transformers import CLIPVisionConfig
    from transformers.models.clip.modeling_clip import CLIPEncoder

    g = geometry.clip
    ours = make(geometry).model.vision_model
    theirs = CLIPEncoder(
        CLIPVisionConfig(
            hidden_size=g.width,
            intermediate_size=g.mlp_width,
            num_hidden_layers=g.layers,
            num_attention_heads=g.heads,
            hidden_act="quick_gelu",
            attn_implementation="eager",
        )
    )
    renamed = {}
    for name, tensor in ours.transformer.state_dict().items():
        if "qkv_proj" not in name:
            renamed[name] = tensor
            continue
        for part, piece in zip("qkv", tensor.chunk(3), strict=True):
            renamed[name.replace("qkv_proj", f"{part}_proj")] = piece
    theirs.load_state_dict(renamed)
    features = torch.randn(2, g.width, 4, 4)
    embedded = features.flatten(2).transpose(1, 2)
    with torch.no_grad():
        tokens = torch.cat([ours.embeddings.class_embedding.expand(2, 1, -1), embedded], dim=1)
        tokens = ours.pre_layrnorm(tokens + ours.embeddings.position_embedding.weight)
        expected = theirs(inputs_embeds=tokens).last_hidden_state
        assert torch.allclose(ours(features), expected, atol=1e-4)


@pytest.mark.long
def test_tables_of_positions_are_interpolated_for_other_sides(geometry: OcrGeometry) -> None:
    backbone = make(geometry).model
    with torch.no_grad():
        sides = [backbone.see(torch.randn(1, 3, side, side), silent).shape[1:3] for side in (64, 192, 256, 320)]
    assert sides == [(1, 1), (3, 3), (4, 4), (5, 5)]


def test_the_real_geometry_runs_on_meta_for_counting_operators() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = compose_preset("model=deepseek_ocr", "model.weights=random")
    module = adapter_of(config).build_meta(config.model)
    half = {"dtype": torch.bfloat16, "device": "meta"}
    views = Views(page=torch.empty(1, 3, 1024, 1024, **half), tiles=None, grid=(1, 1), start=1)
    ids = torch.zeros(1, 281, dtype=torch.long, device="meta")
    with torch.no_grad():
        with FlopCounterMode(display=False) as prefill:
            out = module(ids, views=views)
        with FlopCounterMode(display=False) as decode:
            out = module(torch.zeros(1, 1, dtype=torch.long, device="meta"), past_key_values=out.past_key_values)
    assert (out.logits.shape, out.past_key_values.get_seq_length()) == ((1, 1, 129_280), 282)
    # Closed form of one decode step: two operations a weight that takes part, and attention over 282 positions.
    per_layer = 4 * 1280 * 1280
    experts = 3 * 1280 * 896 * (6 + 2) + 64 * 1280
    weights = 12 * per_layer + 3 * 1280 * 6848 + 11 * experts + 1280 * 129_280
    assert decode.get_total_flops() == 2 * weights + 12 * 4 * 282 * 1280
    assert prefill.get_total_flops() > 273 * 2 * (weights - 1280 * 129_280)


def test_module_groups_name_the_vision_parts_whole(loaded: Any) -> None:
    groups = loaded.module_groups()
    vision = {name: group for name, group in groups.items() if group in ("sam", "clip", "projector")}
    assert vision == {"model.sam_model": "sam", "model.vision_model": "clip", "model.projector": "projector"}
    assert sorted(set(groups.values())) == [
        "attention",
        "clip",
        "embedding",
        "experts",
        "lm_head",
        "mlp",
        "norm",
        "projector",
        "router",
        "sam",
    ]


def test_a_geometry_whose_widths_do_not_meet_is_refused_key_by_key() -> None:
    config = compose_preset(
        "model=deepseek_ocr_tiny", "model.geometry.projector.output=95", "model.geometry.clip.heads=5"
    )
    assert adapter_of(config).check(config.model) == (
        "model.geometry.clip.heads: must divide clip.width, see docs/models.md",
        "model.geometry.projector.output: must equal decoder.hidden_size, see docs/models.md",
    )
    wrong = compose_preset("model=deepseek_ocr_tiny", "model.geometry.sam.width=wide")
    with pytest.raises(ConfigError, match=r"^model\.geometry\.sam\.width: not a whole number \(got 'wide'\)"):
        adapter_of(wrong).load(wrong.model, wrong.infer, device="cpu", seed=0)

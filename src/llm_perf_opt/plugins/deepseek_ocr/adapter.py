"""Adapter of DeepSeek-OCR: pages in, text out; its geometry, typed and checked without torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Interval, MultipleOf
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from llm_perf_opt.plugin import (
    ConfigError,
    Fields,
    InferSection,
    LoadedModel,
    Model,
    ModelSection,
    PagePrompt,
    Shape,
    View,
    begin_step,
    find_config_problems,
    find_size_problems,
    find_weight_problems,
    group_modules,
    read_config,
    read_decoder,
    text_decode,
    text_prefill,
    validate,
)
from llm_perf_opt.plugins.deepseek_ocr.gallery import OcrPageFiles
from llm_perf_opt.plugins.deepseek_ocr.preprocess import (
    IMAGE_MARK,
    PARTS,
    ViewSizes,
    choose_grid,
    count_page_tokens,
    count_tile_tokens,
    hash_words,
)
from llm_perf_opt.plugins.deepseek_ocr.towers import ClipTower, SamClipImages, SamTower

SECTION = "model.geometry"
CONFIG_FILE = "config.json"
FORBID_UNKNOWN: Mapping[str, Any] = {"extra": "forbid", "allow_inf_nan": False}
PositiveInt = Annotated[int, Ge(1)]


@dataclass(frozen=True, kw_only=True)
class SamGeometry:
    """The first encoder: windowed attention, global in `global_layers`, then two stride-2 convolutions."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    layers: PositiveInt
    width: PositiveInt
    heads: PositiveInt
    mlp_width: PositiveInt
    window: PositiveInt
    global_layers: tuple[int, ...]
    patch: PositiveInt
    image_size: PositiveInt
    neck: PositiveInt
    downsample: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class ClipGeometry:
    """The second encoder, fed with the first one's features."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    layers: PositiveInt
    width: PositiveInt
    heads: PositiveInt
    mlp_width: PositiveInt
    patch: PositiveInt
    image_size: PositiveInt


@dataclass(frozen=True, kw_only=True)
class ProjectorGeometry:
    """One linear map from both encoders' features to the decoder's width."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    input: PositiveInt
    output: PositiveInt


@dataclass(frozen=True, kw_only=True)
class DecoderGeometry:
    """The decoder in the terms of config.json: plain multi-head attention, the first layers dense, then experts."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    model_type: Literal["deepseek_v2"]
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    intermediate_size: PositiveInt
    moe_intermediate_size: PositiveInt
    n_routed_experts: PositiveInt
    n_shared_experts: PositiveInt
    num_experts_per_tok: PositiveInt
    first_k_dense_replace: int
    vocab_size: PositiveInt
    tie_word_embeddings: Literal[False] = False
    use_mla: Literal[False] = False
    max_position_embeddings: PositiveInt = 8192
    rms_norm_eps: float = 1.0e-6
    rope_theta: float = 10000.0
    norm_topk_prob: bool = False
    routed_scaling_factor: float = 1.0
    bos_token_id: int = 0
    eos_token_id: int = 1


@dataclass(frozen=True, kw_only=True)
class OcrGeometry:
    """All parts together."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    model_type: Literal["deepseek_ocr"]
    sam: SamGeometry
    clip: ClipGeometry
    projector: ProjectorGeometry
    decoder: DecoderGeometry


def parse_geometry(data: Mapping[str, Any]) -> OcrGeometry:
    """The typed geometry, or one ConfigError with every key that is wrong."""
    too_large = find_size_problems(data, where=SECTION)
    if too_large:
        raise ConfigError(too_large)
    geometry, wrong = validate(OcrGeometry, dict(data), SECTION)
    problems = [str(problem) for problem in wrong] if geometry is None else _shape_problems(geometry)
    if geometry is None or problems:
        raise ConfigError(problems)
    return geometry


def _shape_problems(g: OcrGeometry) -> list[str]:
    """Rules between keys: widths that must meet, heads that must divide."""
    d = g.decoder
    rules = [
        (g.sam.width % g.sam.heads == 0, "sam.heads", "must divide sam.width"),
        (all(0 <= i < g.sam.layers for i in g.sam.global_layers), "sam.global_layers", "must be layers of sam"),
        (g.sam.image_size % g.sam.patch == 0, "sam.image_size", "must be a multiple of sam.patch"),
        (g.sam.downsample[1] == g.clip.width, "sam.downsample", "must end with clip.width, whose patches it becomes"),
        (g.clip.width % g.clip.heads == 0, "clip.heads", "must divide clip.width"),
        (g.clip.image_size % g.clip.patch == 0, "clip.image_size", "must be a multiple of clip.patch"),
        (g.projector.input == g.clip.width + g.sam.downsample[1], "projector.input", "must be both features' width"),
        (g.projector.output == d.hidden_size, "projector.output", "must equal decoder.hidden_size"),
        (
            d.hidden_size % (2 * d.num_attention_heads) == 0,
            "decoder.num_attention_heads",
            "must give an even head size",
        ),
        (d.num_key_value_heads == d.num_attention_heads, "decoder.num_key_value_heads", "must equal the query heads"),
        (d.num_experts_per_tok <= d.n_routed_experts, "decoder.num_experts_per_tok", "must not pass n_routed_experts"),
        (
            0 <= d.first_k_dense_replace <= d.num_hidden_layers,
            "decoder.first_k_dense_replace",
            "must be 0 to all layers",
        ),
    ]
    return [f"{SECTION}.{key}: {text}, see docs/models.md" for holds, key, text in rules if not holds]


_DECODER_KEYS = tuple(item.name for item in fields(DecoderGeometry))


def geometry_of_snapshot(config: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """DeepSeek-OCR's published config.json in the terms of `model.geometry`.

    What that file leaves out is fixed in the published model: patch 16, window 14, neck 256, MLPs four times the width.
    """
    try:
        language = config["language_config"]
        widths = config["vision_config"]["width"]
        sam, clip = widths["sam_vit_b"], widths["clip-l-14-224"]
        decoder = {key: language[key] for key in _DECODER_KEYS if language.get(key) is not None}
        geometry = {
            "model_type": "deepseek_ocr",
            "sam": {
                "layers": sam["layers"],
                "width": sam["width"],
                "heads": sam["heads"],
                "mlp_width": 4 * sam["width"],
                "window": 14,
                "global_layers": list(sam["global_attn_indexes"]),
                "patch": 16,
                "image_size": config["vision_config"]["image_size"],
                "neck": 256,
                "downsample": list(sam["downsample_channels"]),
            },
            "clip": {
                "layers": clip["layers"],
                "width": clip["width"],
                "heads": clip["heads"],
                "mlp_width": 4 * clip["width"],
                "patch": clip["patch_size"],
                "image_size": clip["image_size"],
            },
            "projector": {
                "input": config["projector_config"]["input_dim"],
                "output": config["projector_config"]["n_embed"],
            },
            "decoder": {**decoder, "model_type": "deepseek_v2"},
        }
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"model.path: {where} is not the configuration of DeepSeek-OCR ({error} is missing), "
            "set model.path to its snapshot or use model=causal_lm"
        ) from error
    return asdict(parse_geometry(geometry))


_EXAMPLE = "/models/DeepSeek-OCR"


def _one_image(prompt: str) -> str:
    if prompt.count(IMAGE_MARK) != 1:
        raise PydanticCustomError("one_image", "a text that holds <image> exactly once")
    return prompt


# A side that is not a multiple of the patch would lose its last pixels.
PixelSide = Annotated[int, Interval(ge=64, le=4096), MultipleOf(16)]


@dataclass(frozen=True, kw_only=True)
class OcrSection(ModelSection):
    """`model.*` of DeepSeek-OCR. `implementation` says whose code runs a snapshot: its own (if trusted) or ours."""

    implementation: Literal["auto", "remote", "builtin"] = "auto"
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class OcrInfer(InferSection):
    """`infer.*` of DeepSeek-OCR. The patch and the downsampling are the architecture's own and cannot be changed."""

    prompt: Annotated[str, AfterValidator(_one_image)] = "<image>\n<|grounding|>Convert the document to markdown."
    base_size: PixelSide = 1024
    image_size: PixelSide = 640
    crop_mode: bool = True
    patch_size: Literal[16] = 16
    downsample_ratio: Literal[4] = 4


class DeepseekOcrAdapter:
    """Everything that needs torch is imported when a model is loaded or built."""

    @property
    def config_cls(self) -> type[ModelSection]:
        return OcrSection

    @property
    def infer_cls(self) -> type[InferSection]:
        return OcrInfer

    @property
    def data_kind(self) -> str:
        return "pages"

    @property
    def page_files(self) -> OcrPageFiles:
        return OcrPageFiles()

    def check(self, model: OcrSection) -> tuple[str, ...]:
        problems: tuple[str, ...] = ()
        if model.weights == "snapshot" or model.geometry is None:
            problems = find_config_problems(model.path, example=_EXAMPLE)
        if not problems and model.weights == "snapshot" and model.path is not None:
            problems = find_weight_problems(model.path)
        if not problems and model.implementation == "remote" and not model.trust_remote_code:
            problems = (
                "model.trust_remote_code: needed because model.implementation is remote (got False): the snapshot's "
                "own code runs with your rights, allowed: true if you trust it, or model.implementation=builtin",
            )
        if problems:
            return problems
        try:
            parse_geometry(self.geometry(model))
        except ConfigError as error:
            return error.problems
        return ()

    def geometry(self, model: OcrSection) -> Mapping[str, Any]:
        reads_path = model.weights == "snapshot" or model.geometry is None
        if reads_path and not find_config_problems(model.path, example=_EXAMPLE) and model.path is not None:
            return geometry_of_snapshot(read_config(model.path), where=str(model.path / CONFIG_FILE))
        if model.geometry is None:
            raise ConfigError(find_config_problems(model.path, example=_EXAMPLE))
        return model.geometry

    def load(self, model: OcrSection, infer: OcrInfer, *, device: str, seed: int) -> LoadedModel:
        problems = self.check(model)
        if problems:
            raise ConfigError(problems)
        begin_step("imports")
        from llm_perf_opt.plugins.deepseek_ocr.build import load_random, load_snapshot

        begin_step("loading")
        geometry = parse_geometry(self.geometry(model))
        if model.weights == "snapshot":
            return load_snapshot(model, infer, geometry, device=device)
        return load_random(model, infer, geometry, device=device, seed=seed)

    def build_meta(self, model: OcrSection) -> Any:
        begin_step("imports")
        from llm_perf_opt.plugins.deepseek_ocr.build import build_on_meta

        begin_step("building")
        return build_on_meta(parse_geometry(self.geometry(model)), dtype=model.dtype)

    def parts(self, geometry: Mapping[str, Any], *, where: str) -> Model:
        typed = parse_geometry(geometry)
        images = SamClipImages(
            sam=SamTower(**asdict(typed.sam)),
            clip=ClipTower(**asdict(typed.clip)),
            projector_in=typed.projector.input,
            projector_out=typed.projector.output,
        )
        return Model(decoder=read_decoder(Fields(geometry, where).section("decoder")), images=images)

    def page_prompt(self, geometry: Mapping[str, Any], infer: OcrInfer, *, width: int, height: int) -> PagePrompt:
        """The text around the page is one token a word, as the model without a tokenizer takes it."""
        sizes = view_sizes(infer)
        grid = choose_grid(width, height, image_size=infer.image_size) if infer.crop_mode else (1, 1)
        tiles = () if grid == (1, 1) else (View(size=infer.image_size, count=grid[0] * grid[1]),)
        vocabulary = parse_geometry(geometry).decoder.vocab_size
        words = sum(len(hash_words(part, vocabulary=vocabulary)) for part in infer.prompt.split(IMAGE_MARK))
        return PagePrompt(
            tokens=1 + words + count_tile_tokens(grid, sizes) + count_page_tokens(sizes),
            views=(*tiles, View(size=infer.base_size, count=1)),
        )

    def meta_groups(self, module: Any) -> Mapping[str, str]:
        return group_modules(module, claimed=PARTS)

    def meta_prefill(self, module: Any, shape: Shape) -> Any:
        """Experts as a GPU runs them: grouped GEMMs."""
        module.set_experts_mode("grouped")
        if not shape.views:
            return text_prefill(module, shape)
        from llm_perf_opt.plugins.deepseek_ocr.loaded import page_prefill

        return page_prefill(module, shape)

    def meta_decode(self, module: Any, shape: Shape, state: Any) -> None:
        text_decode(module, shape, state)


def view_sizes(infer: OcrInfer) -> ViewSizes:
    return ViewSizes(
        base_size=infer.base_size,
        image_size=infer.image_size,
        patch_size=infer.patch_size,
        downsample_ratio=infer.downsample_ratio,
    )


ADAPTER = DeepseekOcrAdapter()

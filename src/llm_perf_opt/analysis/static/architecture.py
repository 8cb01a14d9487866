"""A model's parts as sizes: what the closed form needs to know, and nothing of any framework."""

from dataclasses import dataclass

GROUPS = (
    "attention",
    "mlp",
    "experts",
    "router",
    "norm",
    "embedding",
    "lm_head",
    "sam",
    "clip",
    "projector",
    "other",
)


@dataclass(frozen=True, kw_only=True)
class GroupedAttention:
    """Attention with `kv_heads` shared by `heads` (equal: MHA, one: MQA). `window` None: every earlier token is seen.

    `norm_elements` are the weights of query and key norms, `sinks` learned scores per head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    is_fused_qkv: bool = False
    norm_elements: int = 0
    sinks: int = 0


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values are projected up from a latent of `kv_rank` + `rope_dim`."""

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    bias: bool = False

    @property
    def qk_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def latent(self) -> int:
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True, kw_only=True)
class DenseMlp:
    """A gated (three matrices) or plain (two) feed-forward block."""

    width: int
    is_gated: bool = True
    bias: bool = False
    is_fused_gate: bool = False


@dataclass(frozen=True, kw_only=True)
class Moe:
    """`top_k` of `experts` gated blocks a token, and one shared block of `shared_width` (0: none) for every token."""

    experts: int
    top_k: int
    width: int
    shared_width: int = 0
    shared_bias: bool = False
    has_shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    is_router_float32: bool = False


Attention = GroupedAttention | LatentAttention
FeedForward = DenseMlp | Moe


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer. `norms` counts those of the hidden width."""

    attention: Attention
    feed_forward: FeedForward
    norms: int = 2


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder-only model; `blocks` are its distinct layers with how often each occurs."""

    model_type: str
    hidden: int
    vocab: int
    is_tied: bool
    blocks: tuple[tuple[Layer, int], ...]
    norm_has_bias: bool = False

    @property
    def layers(self) -> int:
        return sum(count for _, count in self.blocks)


@dataclass(frozen=True, kw_only=True)
class SamTower:
    """SAM's image encoder: windowed attention with relative positions, a neck, then stride-2 convolutions."""

    layers: int
    width: int
    heads: int
    mlp_width: int
    window: int
    global_layers: tuple[int, ...]
    patch: int
    image_size: int
    neck: int
    downsample: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ClipTower:
    """CLIP's image encoder, fed with another tower's features."""

    layers: int
    width: int
    heads: int
    mlp_width: int
    patch: int
    image_size: int


@dataclass(frozen=True, kw_only=True)
class OcrModel:
    """DeepSeek-OCR: two vision towers, a linear projector, two learned vectors and a decoder."""

    sam: SamTower
    clip: ClipTower
    projector_in: int
    projector_out: int
    decoder: Decoder


Model = Decoder | OcrModel


def decoder_of(model: Model) -> Decoder:
    """The text part."""
    return model if isinstance(model, Decoder) else model.decoder

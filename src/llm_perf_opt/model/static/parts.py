"""A model's parts as sizes: what the closed form needs to know, and nothing of any framework."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from llm_perf_opt.model.hardware.work import Dtypes, View, Work

TEXT_GROUPS = ("attention", "mlp", "experts", "router", "norm", "embedding", "lm_head")
IMAGE_GROUPS = ("sam", "clip", "projector")
OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class KeyIndexer:
    """Picks at most `most_keys` keys for a query: `heads` queries of `dim` are scored against one key of a token."""

    heads: int
    dim: int
    most_keys: int


@dataclass(frozen=True, kw_only=True)
class GroupedAttention:
    """Attention with `kv_heads` shared by `heads` (equal: MHA, one: MQA). `window` None: every earlier token is seen.

    `norm_elements` are the weights of query and key norms, `sinks` learned scores per head. `has_gate`: the query's
    projection is twice as wide and its second half gates the result. `v_dim`: values of another width than keys;
    `has_values`: else they are made of what the keys are made of, without their own projection. `gate_width`:
    columns of its own projection that gates the result. `indexer`: a query sees the keys it picks alone.
    """

    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int | None = None
    has_values: bool = True
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    is_fused_qkv: bool = False
    norm_elements: int = 0
    sinks: int = 0
    has_gate: bool = False
    gate_width: int = 0
    indexer: KeyIndexer | None = None

    @property
    def value_dim(self) -> int:
        return self.head_dim if self.v_dim is None else self.v_dim


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values are projected up from a latent of `kv_rank` + `rope_dim`.

    `index_topk`: a query sees only this many keys, the ones an indexer scores highest, with `index_heads` queries
    against one key of `index_dim` a token (no heads: the layer takes the choice of an earlier one). `has_gate`: a
    projection of its own gates the result.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    bias: bool = False
    index_topk: int | None = None
    index_heads: int = 0
    index_dim: int = 0
    has_gate: bool = False

    @property
    def qk_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    @property
    def latent(self) -> int:
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True, kw_only=True)
class StateMixer:
    """A layer that keeps a state of `state_elements` for each sequence instead of keys and values.

    `in_width` are the columns of all projections from the hidden width, `out_width` the rows of the one back to it;
    between them a short convolution over `conv_channels`. `inner_elements` are those of matrices between the two.
    """

    in_width: int
    out_width: int
    conv_channels: int
    conv_kernel: int
    state_elements: int
    bias: bool = False
    conv_bias: bool = False
    inner_elements: int = 0
    other_params: int = 0

    @property
    def kept_elements(self) -> int:
        """What a sequence keeps between steps: the state and the convolution's last inputs."""
        return self.state_elements + self.conv_channels * self.conv_kernel


@dataclass(frozen=True, kw_only=True)
class DenseMlp:
    """A gated (three matrices) or plain (two) feed-forward block."""

    width: int
    is_gated: bool = True
    bias: bool = False
    is_fused_gate: bool = False


@dataclass(frozen=True, kw_only=True)
class Moe:
    """`top_k` of `experts` blocks a token, and one shared block of `shared_width` (0: none) for every token.

    `is_gated`: three matrices, else two. `router_extra`: weights of the router alongside its matrix. `latent`: routed
    experts work on a projection of the hidden width to this one, and their sum is projected back.
    """

    experts: int
    top_k: int
    width: int
    shared_width: int = 0
    shared_bias: bool = False
    has_shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    is_router_float32: bool = False
    is_gated: bool = True
    router_extra: int = 0
    latent: int | None = None

    def routed_hidden(self, hidden: int) -> int:
        """The width that routed experts take and give."""
        return hidden if self.latent is None else self.latent

    @property
    def matrices(self) -> int:
        """Matrices of one block."""
        return 3 if self.is_gated else 2


Attention = GroupedAttention | LatentAttention | StateMixer
FeedForward = DenseMlp | Moe


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One decoder layer. `norms` counts those of the hidden width."""

    attention: Attention
    feed_forward: FeedForward
    norms: int = 2


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder-only model; `blocks` are its distinct layers with how often each occurs.

    `positions`: how many learned positions there are, 0 where they are worked out. `outer_norms` are outside the
    layers; `norm_is_bare`: norms have no weights. `order`: the block of each layer, where it is known.
    """

    model_type: str
    hidden: int
    vocab: int
    is_tied: bool
    blocks: tuple[tuple[Layer, int], ...]
    norm_has_bias: bool = False
    positions: int = 0
    outer_norms: int = 1
    norm_is_bare: bool = False
    head_bias: bool = False
    order: tuple[int, ...] = field(default=(), repr=False)

    @property
    def norm_elements(self) -> int:
        """Weights of one norm."""
        return 0 if self.norm_is_bare else self.hidden * (2 if self.norm_has_bias else 1)

    @property
    def layers(self) -> int:
        return sum(count for _, count in self.blocks)


class ImageSide(Protocol):
    """What turns images into tokens, as the closed form asks about it. `views` are all images of one forward.

    Its module groups go by the names its adapter gives them; they are listed after the decoder's.
    """

    def params(self) -> Mapping[str, int]:
        """Parameters by module group."""
        ...

    def work(self, views: tuple[View, ...], dtypes: Dtypes) -> Mapping[str, Work]:
        """FLOPs and bytes of one forward by module group."""
        ...

    def peak_bytes(self, views: tuple[View, ...], dtypes: Dtypes) -> float:
        """Activations alive at its widest point, the images included."""
        ...

    def operators(self, view_batches: int) -> int:
        """Operators that an eager run launches for this many batches of views."""
        ...


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """Bytes of a checkpoint as it is stored, scales included, and of the routed experts among them.

    `is_head_quantised`: lm_head is in the format of the layers' matrices.
    """

    total_bytes: float
    experts_bytes: float
    is_head_quantised: bool = False


@dataclass(frozen=True, kw_only=True)
class Model:
    """A decoder, and what is before it for a model that reads images.

    `beside`: parameters by group of parts that are held in memory and whose work is not reckoned. `longest`: the most
    positions its configuration names. `stored`: what memory holds of the weights, where a checkpoint is taken as it is.
    """

    decoder: Decoder
    images: ImageSide | None = None
    beside: tuple[tuple[str, int], ...] = ()
    longest: int | None = None
    stored: StoredWeights | None = None


def in_order(groups: Iterable[str]) -> list[str]:
    """Module groups as tables list them: the decoder's, then those of an image side, what is left over last."""
    found = set(groups)
    image = sorted(found - {*TEXT_GROUPS, *IMAGE_GROUPS, OTHER})
    return [g for g in (*TEXT_GROUPS, *IMAGE_GROUPS, *image, OTHER) if g in found]

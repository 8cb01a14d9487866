"""How many bytes a quantised checkpoint holds: the format of every matrix, scales and zero points included.

Configurations name the modules they leave alone, or each module with its format, by names, wildcards or regular
expressions, and every family names its modules differently. So names are sorted into a layer, a part of it (attention,
mlp, experts, shared experts) and a projection; a matrix takes the format of the last name that covers it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.model.static.parts import Decoder, GroupedAttention, LatentAttention, Layer, Moe, StateMixer

ATTENTION, MLP, EXPERTS, SHARED = "attention", "mlp", "experts", "shared"
PARTS = (ATTENTION, MLP, EXPERTS, SHARED)
# Bytes of an element in formats whose scales are prescribed; a scale of fp32 for each tensor is not counted.
ELEMENT_BYTES = {
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
    "mxfp8": 1 + 1 / 32,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5,
}
SCALE_BYTES = 2.0
_LAYER = re.compile(r"(?:layers|h|blocks)(?:\.|\\\.)(\d+)(.*)$")
_PART = (
    (SHARED, re.compile(r"shared_?expert")),
    (EXPERTS, re.compile(r"expert")),
    (ATTENTION, re.compile(r"attn|attention|mixer\.(?:[qkvo]_proj|in_proj|out_proj)|mamba|short_conv")),
    (MLP, re.compile(r"(?<![a-z_])(?:mlp|ffn|feed_forward)|block_sparse_moe|mixer\.(?:up|down|gate)_proj")),
)
# Modules that are not matrices of a layer's products: they are in no format of their own.
_APART = re.compile(
    r"norm|conv1d|router|in_proj_(?:a|b|ba)$|gate(?:\.weight|\.e_score\w*)?\*?$|shared_expert_gate|bias$|sinks$|indexer"
)
# Modules that hold layers of their own: of images, of sound, and of the next tokens that a draft predicts.
_ELSEWHERE = re.compile(r"(?:^|[.*\\])(?:mtp|visual|vision_\w+|audio_\w+)(?:[.*\\]|$)")
_HEAD = re.compile(r"(?:^|\.)lm_head$")
# Families whose experts lie alongside the block that is named mlp, not inside it.
_EXPERTS_APART = ("gemma4",)
_PROJECTION = re.compile(r"([a-z]+(?:_[a-z0-9]+)*)(?:\.weight)?\*?$")
# Projections in one matrix, by the names of those that make them up.
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "query_key_value": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkv": ("in_proj",),
    "in_proj_qkvz": ("in_proj",),
    "kv_a_proj_with_mqa": ("kv_a_proj",),
}
_PROJECTIONS = frozenset(
    (
        *("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj"),
        *("in_proj", "out_proj", "gate_proj", "up_proj", "down_proj"),
        *_FUSED,
    )
)


@dataclass(frozen=True, kw_only=True)
class ModuleRule:
    """What a name covers. `layer` None: every layer; `is_prefix`: of every layer whose number begins so."""

    layer: str | None
    is_prefix: bool
    parts: frozenset[str]
    projections: frozenset[str]

    def covers(self, layer: int, part: str, projection: str | None) -> bool:
        if part not in self.parts or (self.projections and projection not in self.projections):
            return False
        if self.layer is None:
            return True
        return str(layer).startswith(self.layer) if self.is_prefix else str(layer) == self.layer


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Formats of a checkpoint. `element_bytes` of a matrix that nothing names; `left` alone; `named` with their own.

    `head_bytes`: of an element of lm_head, where it is quantised by name.
    """

    element_bytes: float
    left: tuple[ModuleRule, ...] = ()
    named: tuple[tuple[ModuleRule, float], ...] = ()
    is_named_only: bool = False
    parts: Mapping[str, float] = field(default_factory=dict)
    head_bytes: float | None = None

    def bytes_of(self, layer: int, part: str, projection: str | None, *, wide: float) -> float:
        """Of one element; `wide`: of one that is not quantised."""
        if any(rule.covers(layer, part, projection) for rule in self.left):
            return wide
        own = next((size for rule, size in self.named if rule.covers(layer, part, projection)), None)
        if own is not None:
            return own
        return wide if self.is_named_only else self.parts.get(part, self.element_bytes)


def is_head(name: str) -> bool:
    """Whether a module name is that of the language model's output projection."""
    return _HEAD.search(name) is not None


def has_experts_apart(model_type: Any) -> bool:
    """Whether the family's experts are not inside the block that is named mlp."""
    return str(model_type).startswith(_EXPERTS_APART)


def parse_rule(name: str, *, experts_apart: bool = False, is_exact: bool = False) -> ModuleRule | None:
    """A module name, wildcard or regular expression; None: it covers no matrix of a layer's products.

    `experts_apart`: the block that is named mlp does not hold the experts. `is_exact`: a plain name is that of one
    matrix, and the name of a block that holds matrices covers none of them.
    """
    text = name.removeprefix("re:")
    if _ELSEWHERE.search(text):
        return None
    found = _LAYER.search(text)
    layer, rest, is_prefix = None, text, False
    if found is not None:
        layer, rest = found[1], found[2]
        is_prefix = rest == "*"
        if rest.strip(".*") == "":
            return ModuleRule(layer=layer, is_prefix=is_prefix, parts=frozenset(PARTS), projections=frozenset())
    if _APART.search(rest.rstrip("*.")) and not re.search(r"self_attn$", rest):
        return None
    part = next((part for part, pattern in _PART if pattern.search(rest)), None)
    if part is None:
        return None
    projections = _projections(rest)
    if is_exact and not projections and not re.search(r"^re:|\*", name):
        return None
    parts = {part}
    if part == MLP and not projections and not re.search(r"\(", rest):
        # The whole block, with the experts that are inside it; a dense block alongside experts counts as shared.
        parts |= {SHARED} if experts_apart else {EXPERTS, SHARED}
    return ModuleRule(layer=layer, is_prefix=is_prefix, parts=frozenset(parts), projections=projections)


def _projections(rest: str) -> frozenset[str]:
    found = _PROJECTION.search(rest.rstrip(".*"))
    name = found[1] if found is not None else ""
    if name not in _PROJECTIONS:
        return frozenset()
    return frozenset(_FUSED.get(name, (name,)))


def parse_rules(names: Iterable[Any], *, experts_apart: bool = False, is_exact: bool = False) -> tuple[ModuleRule, ...]:
    found = (parse_rule(str(name), experts_apart=experts_apart, is_exact=is_exact) for name in names)
    return tuple(dict.fromkeys(rule for rule in found if rule is not None))


def grouped_bytes(bits: int, group: int | None, *, has_zeros: bool) -> float:
    """Integers of `bits` bits with a scale of 16 bits, and a zero point, for each group (None: each column)."""
    per_group = SCALE_BYTES + (bits / 8 if has_zeros else 0.0)
    return bits / 8 + (per_group / group if group and group > 0 else 0.0)


def matrices_bytes(decoder: Decoder, stored: Stored, *, wide: float) -> tuple[float, float, float]:
    """Bytes of the layers' matrices, of the routed experts among them, and how many elements all of them have."""
    total = experts = elements = 0.0
    for index, layer in enumerate(in_layers(decoder)):
        for part, projection, count in _matrices(layer, decoder.hidden):
            size = count * stored.bytes_of(index, part, projection, wide=wide)
            total += size
            elements += count
            experts += size if part == EXPERTS else 0.0
    return total, experts, elements


def in_layers(decoder: Decoder) -> Sequence[Layer]:
    """The layers in their order; one kind after the other where it is not known."""
    if decoder.order:
        return [decoder.blocks[index][0] for index in decoder.order]
    return [layer for layer, count in decoder.blocks for _ in range(count)]


def _matrices(layer: Layer, hidden: int) -> list[tuple[str, str, float]]:
    """Part, projection and elements of each matrix of a layer."""
    a, block = layer.attention, layer.feed_forward
    found: list[tuple[str, str, float]] = []
    if isinstance(a, GroupedAttention):
        query, key = a.heads * a.head_dim, a.kv_heads * a.head_dim
        found += [
            (ATTENTION, "q_proj", hidden * query * (2 if a.has_gate else 1)),
            (ATTENTION, "k_proj", hidden * key),
            (ATTENTION, "v_proj", hidden * a.kv_heads * a.value_dim if a.has_values else 0),
            (ATTENTION, "o_proj", hidden * a.heads * a.value_dim),
            (ATTENTION, "g_proj", hidden * a.gate_width),
        ]
        if a.indexer is not None:
            found.append((ATTENTION, "indexer", hidden * (a.indexer.heads + 1) * a.indexer.dim))
    elif isinstance(a, LatentAttention):
        width = a.heads * a.qk_dim
        if a.q_rank is None:
            found.append((ATTENTION, "q_proj", hidden * width))
        else:
            found += [(ATTENTION, "q_a_proj", hidden * a.q_rank), (ATTENTION, "q_b_proj", a.q_rank * width)]
        found += [
            (ATTENTION, "kv_a_proj", hidden * a.latent),
            (ATTENTION, "kv_b_proj", a.kv_rank * a.heads * (a.nope_dim + a.v_dim)),
            (ATTENTION, "o_proj", a.heads * a.v_dim * hidden),
            (ATTENTION, "g_proj", a.heads * a.v_dim * hidden if a.has_gate else 0),
        ]
        if a.index_heads:
            found.append((ATTENTION, "indexer", ((a.q_rank or hidden) * a.index_heads + hidden) * a.index_dim))
    elif isinstance(a, StateMixer):
        found += [
            (ATTENTION, "in_proj", hidden * a.in_width + a.inner_elements),
            (ATTENTION, "out_proj", hidden * a.out_width),
        ]
    if isinstance(block, Moe):
        each = block.experts * block.routed_hidden(hidden) * block.width
        names = ("gate_proj", "up_proj", "down_proj")[3 - block.matrices :]
        found += [(EXPERTS, name, each) for name in names]
        shared = hidden * block.shared_width
        found += [(SHARED, name, shared) for name in names if shared]
    elif block.width:
        names = ("gate_proj", "up_proj", "down_proj") if block.is_gated else ("up_proj", "down_proj")
        found += [(MLP, name, hidden * block.width) for name in names]
    return found


def tensor_bytes(name: str, elements: int, dimensions: int, stored: Stored, *, wide: float) -> float:
    """Bytes of a tensor by its name in the model that transformers builds."""
    found = None if _ELSEWHERE.search(name) else _LAYER.search(name)
    if is_head(name.removesuffix(".weight")) and stored.head_bytes is not None:
        return elements * stored.head_bytes
    if found is None or dimensions < 2 or _APART.search(name.removesuffix(".weight")):
        return elements * wide
    part = next((part for part, pattern in _PART if pattern.search(found[2])), None)
    if part is None:
        return elements * wide
    names = _projections(name)
    return elements * stored.bytes_of(int(found[1]), part, next(iter(sorted(names)), None), wide=wide)

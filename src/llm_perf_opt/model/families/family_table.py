"""Reads a decoder by its row of `families.toml`: what its type has in common with Llama, and where it differs."""

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from llm_perf_opt.model.static.config_json import (
    FULL,
    SLIDING,
    Fields,
    NotInClosedForm,
    build_decoder,
    read_heads,
    read_layer_types,
    windows_of,
)
from llm_perf_opt.model.static.parts import Decoder, DenseMlp, FeedForward, GroupedAttention, Layer, Moe

# A value, or a field of the configuration and what a file without it means.
Flag = bool | tuple[str, bool]
Count = int | tuple[str, int]


class FamilyKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file: a key that is not one of its fields is an error."""


class SizeNames(FamilyKeys, frozen=True, kw_only=True):
    """The names of a family for its sizes; of several the first that the file has, or else the last."""

    hidden: tuple[str, ...] = ("hidden_size",)
    heads: tuple[str, ...] = ("num_attention_heads",)
    layers: tuple[str, ...] = ("num_hidden_layers",)


class WindowKeys(FamilyKeys, frozen=True, kw_only=True):
    """How far attention sees, and in which layers."""

    default: int | None = None
    null_is_default: bool = False
    switch: str | None = None
    listed: bool = False
    full_every: Count | None = None
    from_first: bool = False
    last_full: bool = False
    start: Count | None = None

    def of_layers(self, f: Fields, layers: int) -> list[int | None]:
        """The window of each layer; None sees everything."""
        size = self._size(f)
        if not self.listed and self.full_every is None and self.start is None:
            return [size] * layers
        return windows_of(read_layer_types(f, lambda index: self._kind(f, index, layers, size)), size)

    def _size(self, f: Fields) -> int | None:
        if self.switch is not None and not f.boolean(self.switch, False):
            return None
        if self.switch is not None:
            return f.integer("sliding_window")
        read = f.integer if self.null_is_default else f.nullable_integer
        return read("sliding_window", self.default)

    def _kind(self, f: Fields, index: int, layers: int, size: int | None) -> str:
        if size is None:
            return FULL
        if self.start is not None:
            return SLIDING if index >= _given(f, self.start) else FULL
        if self.full_every is None:
            return SLIDING
        counted = index if self.from_first else index + 1
        is_full = counted % _given(f, self.full_every, least=1) == 0 or (self.last_full and index == layers - 1)
        return FULL if is_full else SLIDING


class MlpKeys(FamilyKeys, frozen=True, kw_only=True):
    """The feed-forward block. Without a `width` it is `times_hidden` as wide as the model."""

    width: str = "intermediate_size"
    times_hidden: Count | None = None
    gated: bool = True
    bias: Flag = False
    fused_gate: bool = False

    def read(self, f: Fields, hidden: int) -> DenseMlp:
        if self.times_hidden is None:
            width = f.integer(self.width)
        else:
            by_hidden = _given(f, self.times_hidden, least=1) * hidden
            width = f.integer(self.width, by_hidden) if self.width else by_hidden
        return DenseMlp(width=width, is_gated=self.gated, bias=_flag(f, self.bias), is_fused_gate=self.fused_gate)


class ExpertsKeys(FamilyKeys, frozen=True, kw_only=True):
    """Blocks of which a token takes some. `shared`: how many of their width are in one block for every token."""

    experts: tuple[str]
    width: tuple[str] = ("moe_intermediate_size",)
    shared: tuple[str, int] | None = None
    shared_width: tuple[str, int] | None = None
    router_bias: bool = False
    expert_bias: bool = False
    is_router_float32: bool = False
    dense_first: tuple[str, int] | None = None

    def read(self, f: Fields) -> Moe:
        width = f.integer(*self.width)
        shared = f.count(*self.shared) * width if self.shared is not None else 0
        return Moe(
            experts=f.integer(*self.experts),
            top_k=f.integer("num_experts_per_tok"),
            width=width,
            shared_width=shared if self.shared_width is None else f.count(*self.shared_width),
            router_bias=self.router_bias,
            expert_bias=self.expert_bias,
            is_router_float32=self.is_router_float32,
        )


class FamilyRow(FamilyKeys, frozen=True, kw_only=True):
    """One row; the meaning of each key is at the top of `families.toml`."""

    types: tuple[str, ...]
    is_remote: bool = False
    sizes: SizeNames = msgspec.field(default_factory=SizeNames)
    kv: Literal["own", "follow", "all"] | tuple[str, bool] = "own"
    head_dim: int | None = None
    bias: Flag = False
    qkv_bias: Flag | None = None
    out_bias: Flag | None = None
    fused_qkv: bool = False
    qk_norm: Literal["head", "head_with_bias", "row"] | None = None
    qk_norm_if: Flag = True
    has_sinks: bool = False
    window: WindowKeys | None = None
    mlp: MlpKeys = msgspec.field(default_factory=MlpKeys)
    moe: ExpertsKeys | None = None
    norms: int = 2
    one_norm_if: Flag = False
    norm_bias: bool = False
    bare_norm: bool = False
    outer_norms: int = 1
    head_bias: Flag = False
    positions: tuple[str, int] | None = None
    tied: bool = False
    refuse: tuple[str, ...] = ()

    def read(self, f: Fields, model_type: str) -> Decoder:
        """The decoder that a configuration of this family describes."""
        for name in self.refuse:
            if f.boolean(name, False):
                raise NotInClosedForm(
                    f"{f.where}: {name}: true is not known to the closed form for {model_type}",
                    what=f"{model_type} with {name}",
                )
        hidden, count = _size(f, self.sizes.hidden), _size(f, self.sizes.layers)
        attention = self._attention(f, hidden)
        windows = [None] * count if self.window is None else self.window.of_layers(f, count)
        blocks = self._blocks(f, hidden, count)
        norms = 1 if _flag(f, self.one_norm_if) else self.norms
        layers = [
            Layer(attention=replace(attention, window=seen), feed_forward=block, norms=norms)
            for seen, block in zip(windows, blocks, strict=True)
        ]
        found = build_decoder(f, model_type, layers, tied=self.tied, norm_has_bias=self.norm_bias, hidden=hidden)
        return replace(
            found,
            positions=0 if self.positions is None else f.integer(*self.positions),
            outer_norms=self.outer_norms,
            norm_is_bare=self.bare_norm,
            head_bias=_flag(f, self.head_bias),
        )

    def _attention(self, f: Fields, hidden: int) -> GroupedAttention:
        if self.kv in ("own", "follow"):
            heads, kv_heads, head_dim = read_heads(f, head_dim=self.head_dim, kv_follows=self.kv == "follow")
        else:
            heads = _size(f, self.sizes.heads)
            kv_heads = heads if self.kv == "all" or not f.boolean(*self.kv) else 1
            head_dim = hidden // heads
        elements = {None: 0, "head": 2 * head_dim, "head_with_bias": 4 * head_dim, "row": (heads + kv_heads) * head_dim}
        return GroupedAttention(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            qkv_bias=_flag(f, self.bias if self.qkv_bias is None else self.qkv_bias),
            out_bias=_flag(f, self.bias if self.out_bias is None else self.out_bias),
            is_fused_qkv=self.fused_qkv,
            norm_elements=elements[self.qk_norm] if _flag(f, self.qk_norm_if) else 0,
            sinks=heads if self.has_sinks else 0,
        )

    def _blocks(self, f: Fields, hidden: int, count: int) -> Sequence[FeedForward]:
        if self.moe is None:
            return [self.mlp.read(f, hidden)] * count
        routed = self.moe.read(f)
        if self.moe.dense_first is None:
            return [routed] * count
        first, dense = f.count(*self.moe.dense_first), self.mlp.read(f, hidden)
        return [dense if index < first else routed for index in range(count)]


@cache
def families() -> dict[str, FamilyRow]:
    """The row of each `model_type` of the file."""
    text = Path(__file__).with_name("families.toml").read_text(encoding="utf-8")
    rows = msgspec.convert(tomllib.loads(text)["family"], list[FamilyRow])
    return {model_type: row for row in rows for model_type in row.types}


def _flag(f: Fields, given: Flag) -> bool:
    return given if isinstance(given, bool) else f.boolean(*given)


def _given(f: Fields, given: Count, *, least: int = 0) -> int:
    if isinstance(given, int):
        return given
    return f.integer(*given) if least else f.count(*given)


def _size(f: Fields, names: tuple[str, ...]) -> int:
    return f.integer(next((name for name in names if f.has(name)), names[-1]))

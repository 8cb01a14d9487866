"""What the rules of all model families share: heads, layer patterns, and putting the decoder together."""

from collections import Counter
from collections.abc import Callable, Iterable

from llm_perf_opt.analysis.static.architecture import Decoder, DenseMlp, Layer
from llm_perf_opt.analysis.static.fields import Fields
from llm_perf_opt.errors import ParseError

SLIDING = "sliding_attention"
FULL = "full_attention"


def build_decoder(
    f: Fields, model_type: str, layers: Iterable[Layer], *, tied: bool, norm_has_bias: bool = False
) -> Decoder:
    """`tied` is what a file without `tie_word_embeddings` means."""
    return Decoder(
        model_type=model_type,
        hidden=f.integer("hidden_size"),
        vocab=f.integer("vocab_size"),
        is_tied=f.boolean("tie_word_embeddings", tied),
        blocks=tuple(Counter(layers).items()),
        norm_has_bias=norm_has_bias,
    )


def read_heads(f: Fields, *, head_dim: int | None = None, kv_follows: bool = False) -> tuple[int, int, int]:
    """Query heads, key heads and the width of one.

    Without `head_dim` the hidden size is split evenly. `kv_follows`: no `num_key_value_heads` means one per query head;
    the other types have a number of their own as default, so the file must name it.
    """
    heads = f.integer("num_attention_heads")
    kv_heads = f.integer("num_key_value_heads", heads) if kv_follows else f.integer("num_key_value_heads")
    if heads % kv_heads:
        raise ParseError(f"{f.where}: num_key_value_heads: {kv_heads} does not divide num_attention_heads {heads}")
    return heads, kv_heads, f.integer("head_dim", head_dim or f.integer("hidden_size") // heads)


def windows_of(types: Iterable[str], window: int | None) -> list[int | None]:
    """The window of each layer."""
    return [window if kind == SLIDING else None for kind in types]


def read_layer_types(f: Fields, default: Callable[[int], str]) -> list[str]:
    """`layer_types` of the file, or the pattern the type has by default."""
    count = f.integer("num_hidden_layers")
    given = f.texts("layer_types")
    if given is None:
        return [default(i) for i in range(count)]
    unknown = sorted(set(given) - {SLIDING, FULL})
    if unknown or len(given) != count:
        raise ParseError(f"{f.where}: layer_types: not {count} of {SLIDING}, {FULL} (got {unknown or len(given)})")
    return list(given)


def read_dense_mlp(f: Fields, *, bias: bool = False) -> DenseMlp:
    return DenseMlp(width=f.integer("intermediate_size"), bias=bias)

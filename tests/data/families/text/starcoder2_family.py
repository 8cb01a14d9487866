"""A family added from outside: StarCoder2, which `transformers` runs and whose parts the closed form is told here."""

from collections.abc import Mapping
from typing import Any

from llm_perf_opt.plugin import (
    CausalLMAdapter,
    DenseMlp,
    Fields,
    GroupedAttention,
    Layer,
    Model,
    build_decoder,
    read_heads,
)


class Starcoder2Adapter(CausalLMAdapter):
    """Biases everywhere, norms with a bias, two matrices in the feed-forward block, tied embeddings."""

    def parts(self, geometry: Mapping[str, Any], *, where: str) -> Model:
        f = Fields(geometry, where)
        heads, kv_heads, head_dim = read_heads(f)
        bias = f.boolean("use_bias", True)
        layer = Layer(
            attention=GroupedAttention(
                heads=heads,
                kv_heads=kv_heads,
                head_dim=head_dim,
                window=f.integer("sliding_window", None),
                qkv_bias=bias,
                out_bias=bias,
            ),
            feed_forward=DenseMlp(width=f.integer("intermediate_size"), is_gated=False, bias=bias),
        )
        layers = [layer] * f.integer("num_hidden_layers")
        return Model(decoder=build_decoder(f, "starcoder2", layers, tied=True, norm_has_bias=True))


ADAPTER = Starcoder2Adapter()

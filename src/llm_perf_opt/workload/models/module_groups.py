"""Which part of a decoder each torch module is: attention, mlp, experts, router, norm, embedding, lm_head."""

from collections.abc import Iterator, Mapping
from typing import Any

_BY_NAME: Mapping[str, str] = {
    "self_attn": "attention",
    "self_attention": "attention",
    "attention": "attention",
    "attn": "attention",
    "linear_attn": "attention",
    "mlp": "mlp",
    "feed_forward": "mlp",
    "ffn": "mlp",
    "fc1": "mlp",
    "fc2": "mlp",
    "experts": "experts",
    "shared_experts": "experts",
    "shared_expert": "experts",
    "shared_mlp": "experts",
    "shared_expert_gate": "router",
    "lm_head": "lm_head",
    "embed_out": "lm_head",
}
_ROUTERS = ("gate", "router")


def group_modules(module: Any, *, claimed: Mapping[str, str] | None = None) -> dict[str, str]:
    """Qualified name to group. No module named here holds another one that is, so their times add up.

    `claimed` names modules whose group the caller knows, such as vision encoders.
    """
    return dict(_walk(module, "", claimed or {}))


def _walk(module: Any, prefix: str, claimed: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    children = dict(module.named_children())
    for name, child in children.items():
        path = f"{prefix}.{name}" if prefix else name
        group = claimed[path] if path in claimed else _group_of(name, child, "experts" in children)
        if group is None:
            yield from _walk(child, path, claimed)
        else:
            yield path, group


def _group_of(name: str, module: Any, beside_experts: bool) -> str | None:
    import torch

    if isinstance(module, torch.nn.Embedding):
        return "embedding"
    if "Norm" in type(module).__name__:
        return "norm"
    if name in _ROUTERS:
        return "router" if beside_experts else None
    group = _BY_NAME.get(name)
    # A mixture-of-experts block is called mlp too: its parts are distinguished one level down.
    if group == "mlp" and "experts" in dict(module.named_children()):
        return None
    return group

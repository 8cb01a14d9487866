"""Projections that read one input, joined into one product: q, k and v, and gate and up (`model.join_projections`).

The model's own code calls them one after the other. Whichever is called first computes all of them, and the others
find their part there, so nothing of that code changes. It also holds inside a compiled step: what is kept is taken
away again before the step ends.
"""

from typing import Any

import torch

GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def join_projections(module: Any) -> tuple[str, ...]:
    """Join every group that can be; a note says how many there were."""
    count = 0
    for owner in list(module.modules()):
        for names in GROUPS:
            linears = [getattr(owner, name, None) for name in names]
            if _can_be_joined(linears):
                product = _Product(linears)
                for index, name in enumerate(names):
                    setattr(owner, name, _Part(product, index, is_first=index == 0))
                count += 1
    if not count:
        return ("model.join_projections: this model has no projections of one input that are linear layers",)
    return (f"projections of one input are joined: {count} products instead of several each",)


def _can_be_joined(linears: list[Any]) -> bool:
    """Plain linear layers of one input, all with a bias or none; others (quantised, of adapters) are left alone."""
    if any(type(linear) is not torch.nn.Linear for linear in linears):
        return False
    return len({(one.in_features, one.weight.dtype, one.weight.device, one.bias is None) for one in linears}) == 1


class _Product(torch.nn.Module):  # type: ignore[misc]
    """The fused matmul, and the parts of its last result that are not used yet."""

    def __init__(self, linears: list[Any]) -> None:
        super().__init__()
        first = linears[0]
        self.sizes = [int(one.out_features) for one in linears]
        self.linear = torch.nn.Linear(
            first.in_features, sum(self.sizes), bias=first.bias is not None, device="meta", dtype=first.weight.dtype
        )
        with torch.no_grad():
            self.linear.weight = _frozen([one.weight for one in linears])
            if first.bias is not None:
                self.linear.bias = _frozen([one.bias for one in linears])
        self._input: Any = None
        self._parts: dict[int, Any] = {}

    def take(self, index: int, given: Any) -> Any:
        if self._input is not given or index not in self._parts:
            self._input = given
            self._parts = dict(enumerate(self.linear(given).split(self.sizes, dim=-1)))
        part = self._parts.pop(index)
        if not self._parts:
            self._input = None
        return part


def _frozen(parts: list[Any]) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.cat([part.detach() for part in parts]), requires_grad=False)


class _Part(torch.nn.Module):  # type: ignore[misc]
    """One projection as the model's code knows it; the first of a group holds the fused weights."""

    def __init__(self, product: _Product, index: int, *, is_first: bool) -> None:
        super().__init__()
        if is_first:
            self.product = product
        # In a tuple, torch does not count it as a part of this module too.
        self._product = (product,)
        self._index = index

    def forward(self, given: Any) -> Any:
        return self._product[0].take(self._index, given)

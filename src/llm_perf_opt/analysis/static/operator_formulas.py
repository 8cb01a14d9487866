"""FLOPs and bytes of single torch operators, from the shapes they were called with.

Covers every operator that multiplies matrices: plain, batched and grouped products, convolutions, all variants of
scaled-dot-product attention, and the embedding lookup. Everything else only moves data and is counted in bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

ATTENTION_PREFIX = "aten::_scaled_dot_product"


@dataclass(frozen=True, kw_only=True)
class OperatorCost:
    """One call."""

    flops: float
    bytes: float


def tensor_bytes(value: Any) -> float:
    """Bytes of a tensor that a kernel can touch: a broadcast dimension (stride 0) is there once."""
    elements = 1
    for size, stride in zip(value.shape, value.stride(), strict=True):
        elements *= size if stride else min(size, 1)
    return float(elements * value.element_size())


def attention_cost(query: Any, key: Any, value: Any, out: Any) -> OperatorCost:
    """Scores and weighted values over the full rectangle, whatever the mask; keys as they are passed, not repeated."""
    *batch, rows, qk_dim = query.shape
    keys, v_dim = key.shape[-2], value.shape[-1]
    flops = 2.0 * _product(batch) * rows * keys * (qk_dim + v_dim)
    return OperatorCost(flops=flops, bytes=sum(map(tensor_bytes, (query, key, value, out))))


def operator_cost(name: str, args: Sequence[Any], out: Any) -> OperatorCost | None:
    """The cost of a matrix operator (name as `aten::mm`), or None for one that only moves data."""
    if name.startswith(ATTENTION_PREFIX) and not name.endswith("_backward"):
        return attention_cost(args[0], args[1], args[2], out[0] if isinstance(out, tuple | list) else out)
    formula = _FORMULAS.get(name)
    return None if formula is None else formula(args, out)


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _cost(flops: float, *tensors: Any) -> OperatorCost:
    return OperatorCost(flops=flops, bytes=sum(tensor_bytes(t) for t in tensors if t is not None))


def _mm(args: Sequence[Any], out: Any) -> OperatorCost:
    a, b = args[0], args[1]
    return _cost(2.0 * a.shape[0] * a.shape[1] * b.shape[1], a, b, out)


def _addmm(args: Sequence[Any], out: Any) -> OperatorCost:
    bias, a, b = args[0], args[1], args[2]
    return _cost(2.0 * a.shape[0] * a.shape[1] * b.shape[1], bias, a, b, out)


def _bmm(args: Sequence[Any], out: Any) -> OperatorCost:
    a, b = args[0], args[1]
    return _cost(2.0 * _product(a.shape) * b.shape[-1], a, b, out)


def _baddbmm(args: Sequence[Any], out: Any) -> OperatorCost:
    bias, a, b = args[0], args[1], args[2]
    return _cost(2.0 * _product(a.shape) * b.shape[-1], bias, a, b, out)


def _linear(args: Sequence[Any], out: Any) -> OperatorCost:
    bias = args[2] if len(args) > 2 else None
    return _cost(2.0 * _product(args[0].shape) * args[1].shape[0], args[0], args[1], bias, out)


def _convolution(args: Sequence[Any], out: Any) -> OperatorCost:
    image, weight, bias = args[0], args[1], args[2]
    is_transposed = bool(args[6])
    pixels = _product((image if is_transposed else out).shape[2:])
    return _cost(2.0 * out.shape[0] * pixels * _product(weight.shape), image, weight, bias, out)


def _grouped(args: Sequence[Any], out: Any) -> OperatorCost:
    """Rows sorted by group times one matrix per group; a group without rows is not read."""
    rows, matrices = args[0], args[1]
    if rows.dim() != 2 or matrices.dim() != 3:
        return _grouped_odd(rows, matrices, out)
    touched = min(matrices.shape[0], rows.shape[0]) / matrices.shape[0]
    flops = 2.0 * rows.shape[0] * rows.shape[1] * matrices.shape[2]
    moved = tensor_bytes(rows) + tensor_bytes(out) + touched * tensor_bytes(matrices)
    return OperatorCost(flops=flops, bytes=moved)


def _grouped_odd(a: Any, b: Any, out: Any) -> OperatorCost:
    """Groups along another dimension (weight gradients) or none at all (a batched product)."""
    shared = a.shape[-1]
    if a.dim() == 2 and b.dim() == 2:
        return _cost(2.0 * a.shape[0] * shared * b.shape[1], a, b, out)
    if a.dim() == 3 and b.dim() == 3:
        return _cost(2.0 * _product(a.shape) * b.shape[-1], a, b, out)
    return _cost(2.0 * a.shape[1] * shared * b.shape[-1], a, b, out)


def _embedding(args: Sequence[Any], out: Any) -> OperatorCost:
    """Reads the ids and one row of the table per id, not the table."""
    return OperatorCost(flops=0.0, bytes=tensor_bytes(args[1]) + 2 * tensor_bytes(out))


_FORMULAS: dict[str, Callable[[Sequence[Any], Any], OperatorCost]] = {
    "aten::mm": _mm,
    "aten::addmm": _addmm,
    "aten::_addmm_activation": _addmm,
    "aten::_int_mm": _mm,
    "aten::_scaled_mm": _mm,
    "aten::bmm": _bmm,
    "aten::baddbmm": _baddbmm,
    "aten::linear": _linear,
    "aten::convolution": _convolution,
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "transformers::grouped_mm_fallback": _grouped,
    "aten::embedding": _embedding,
}

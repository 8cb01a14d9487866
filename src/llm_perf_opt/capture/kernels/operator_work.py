"""What one call of an operator has to compute and to move, from the shapes and types torch recorded for it.

FLOPs count 2 for a multiply-add. Of attention with a causal mask only the half that is needed counts. Bytes are those
of every input once and of the result once: what no implementation can do without, unless a cache already holds it.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import msgspec

Kind = Literal["GEMM", "attention", "convolution", "norm"]
_TYPES = {
    "double": ("fp64", 8.0), "float": ("fp32", 4.0), "c10::BFloat16": ("bf16", 2.0), "c10::Half": ("fp16", 2.0),
    "c10::Float8_e4m3fn": ("fp8", 1.0), "c10::Float8_e5m2": ("fp8", 1.0), "c10::Float8_e4m3fnuz": ("fp8", 1.0),
    "c10::Float8_e5m2fnuz": ("fp8", 1.0), "signed char": ("int8", 1.0), "unsigned char": ("uint8", 1.0),
    "char": ("int8", 1.0), "int": ("int32", 4.0), "long int": ("int64", 8.0), "long": ("int64", 8.0),
    "bool": ("bool", 1.0), "short": ("int16", 2.0),
}  # fmt: skip
# A product of these is not written in the format it is computed in.
_WIDENED = frozenset({"fp8", "int8"})
WIDE_BYTES = 2.0
BACKWARD_ATTENTION = 2.5
Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GemmSizes:
    """`batch` products of m×k by k×n."""

    batch: int
    m: int
    n: int
    k: int


@dataclass(frozen=True, kw_only=True)
class OperatorWork:
    """One call. `flops` is None where bytes alone say how long it must take; `sizes` are those of a GEMM."""

    kind: Kind
    shape: str
    dtype: str
    flops: float | None
    size_bytes: float
    sizes: GemmSizes | None = None


@dataclass(frozen=True, kw_only=True)
class _Inputs:
    """Inputs by position: shapes (None: no tensor), types as torch spells them, and values as text."""

    shapes: tuple[Shape | None, ...]
    types: tuple[str, ...]
    values: tuple[str, ...]

    def shape(self, index: int, dims: int | None = None) -> Shape:
        found = self.shapes[index] if index < len(self.shapes) else None
        if not found or (dims is not None and len(found) != dims):
            raise _Unknown
        return found

    def dtype(self, index: int) -> str:
        return _TYPES[self.types[index]][0]

    def item_bytes(self, index: int) -> float:
        return _TYPES[self.types[index]][1]

    def size(self, index: int) -> float:
        """The bytes of an input, 0 for what is not a tensor or an unknown one."""
        shape = self.shapes[index] if index < len(self.shapes) else None
        known = index < len(self.types) and self.types[index] in _TYPES
        return math.prod(shape) * self.item_bytes(index) if shape and known else 0.0

    def numbers(self, index: int) -> Shape:
        text = self.values[index] if index < len(self.values) else ""
        found = tuple(int(n) for n in re.findall(r"-?\d+", text))
        if not found:
            raise _Unknown
        return found

    def is_true(self, index: int) -> bool:
        return index < len(self.values) and self.values[index] == "True"


class _Unknown(Exception):
    """The inputs are not those the formula is for."""


def operator_work(name: str, dims: str, types: bytes, values: bytes) -> OperatorWork | None:
    """The work of an operator of this name, or None where no formula is known or its inputs do not fit it."""
    formula = _formulas().get(name)
    if formula is None or not dims:
        return None
    try:
        inputs = _Inputs(
            shapes=tuple(_shape(d) for d in msgspec.json.decode(dims)),
            types=tuple(str(t) for t in msgspec.json.decode(types or b"[]")),
            values=tuple(str(v) for v in msgspec.json.decode(values or b"[]")),
        )
        return formula(inputs)
    except (_Unknown, KeyError, IndexError, TypeError, ValueError, ZeroDivisionError):
        # Traces are cut, edited and written by others: an odd row has no figures, and the rest still has.
        return None


def has_formula(name: str) -> bool:
    return name in _formulas()


def _shape(value: Any) -> Shape | None:
    """A tensor's sizes; a list of tensors, or an empty list, is none."""
    return tuple(value) if isinstance(value, list) and value and all(type(n) is int for n in value) else None


def _gemm(a: int, b: int) -> Callable[[_Inputs], OperatorWork]:
    """Inputs a and b multiplied: m×k by k×n, both with the same batch or none."""

    def work(inputs: _Inputs) -> OperatorWork:
        left, right = inputs.shape(a), inputs.shape(b)
        if len(left) != len(right) or len(left) not in (2, 3) or left[-1] != right[-2] or left[:-2] != right[:-2]:
            raise _Unknown
        batch = left[0] if len(left) == 3 else 1
        return _product(inputs, a, b, batch=batch, m=left[-2], n=right[-1], k=left[-1])

    return work


def _product(inputs: _Inputs, a: int, b: int, *, batch: int, m: int, n: int, k: int) -> OperatorWork:
    dtype = inputs.dtype(a)
    out = batch * m * n * (WIDE_BYTES if dtype in _WIDENED else inputs.item_bytes(a))
    return OperatorWork(
        kind="GEMM",
        shape=(f"{batch} × " if batch > 1 else "") + f"m {m}, n {n}, k {k}",
        dtype=dtype,
        flops=2.0 * batch * m * n * k,
        size_bytes=inputs.size(a) + inputs.size(b) + out,
        sizes=GemmSizes(batch=batch, m=m, n=n, k=k),
    )


def _linear(inputs: _Inputs) -> OperatorWork:
    """Rows × k by the transposed n × k of a layer."""
    rows, weight = inputs.shape(0), inputs.shape(1, 2)
    if rows[-1] != weight[1]:
        raise _Unknown
    return _product(inputs, 0, 1, batch=1, m=math.prod(rows[:-1]), n=weight[0], k=rows[-1])


def _matmul(inputs: _Inputs) -> OperatorWork:
    left, right = inputs.shape(0), inputs.shape(1)
    if len(right) == 2 and left[-1] == right[0]:
        return _product(inputs, 0, 1, batch=1, m=math.prod(left[:-1]), n=right[1], k=left[-1])
    if len(left) < 3 or left[:-2] != right[:-2] or left[-1] != right[-2]:
        raise _Unknown
    return _product(inputs, 0, 1, batch=math.prod(left[:-2]), m=left[-2], n=right[-1], k=left[-1])


def _grouped(inputs: _Inputs) -> OperatorWork:
    """Rows, each multiplied by the matrix of its group."""
    rows, experts = inputs.shape(0, 2), inputs.shape(1, 3)
    if rows[1] != experts[1]:
        raise _Unknown
    found = _product(inputs, 0, 1, batch=1, m=rows[0], n=experts[2], k=rows[1])
    return replace(found, shape=f"{experts[0]} groups, {found.shape}")


def _scaled_into(inputs: _Inputs) -> OperatorWork:
    """A product of quantised inputs into the first."""
    out, left, right = inputs.shape(0, 2), inputs.shape(1, 2), inputs.shape(2, 2)
    if left[1] != right[0] or out != (left[0], right[1]):
        raise _Unknown
    return _product(inputs, 1, 2, batch=1, m=left[0], n=right[1], k=left[1])


def _attention(
    query: int, causal: int, *, heads_last: bool = False, factor: float = 1.0
) -> Callable[[_Inputs], OperatorWork]:
    """Query, key and value from input `query` on: batch, heads, length, size; or length before heads."""

    def work(inputs: _Inputs) -> OperatorWork:
        q, k, v = (inputs.shape(query + i, 4) for i in range(3))
        if heads_last:
            q, k, v = ((s[0], s[2], s[1], s[3]) for s in (q, k, v))
        batch, heads, new, size = q
        held = k[2]
        if q[3] != k[3] or k[:3] != v[:3] or heads % k[1]:
            raise _Unknown
        is_causal = inputs.is_true(causal)
        pairs = new * held - new * (new - 1) / 2 if is_causal and new <= held else float(new * held)
        out = batch * heads * new * v[3] * inputs.item_bytes(query)
        ins = sum(inputs.size(query + i) for i in range(3))
        named = f"batch {batch}, heads {heads}" + (f"/{k[1]}" if k[1] != heads else "")
        return OperatorWork(
            kind="attention",
            shape=f"{named}, {new} × {held}, size {size}" + (", causal" if is_causal else ""),
            dtype=inputs.dtype(query),
            flops=factor * 2.0 * batch * heads * pairs * (size + v[3]),
            size_bytes=(ins + out) * (2.0 if factor > 1 else 1.0),
        )

    return work


def _convolution(
    stride: int, padding: int, dilation: int, *, transposed: int | None = None
) -> Callable[[_Inputs], OperatorWork]:
    """Input 0 with the weights of input 1; the numbers are the positions of the other arguments."""

    def work(inputs: _Inputs) -> OperatorWork:
        image, weight = inputs.shape(0), inputs.shape(1)
        space = image[2:]
        if transposed is None or not inputs.is_true(transposed):
            space = _out_space(image, weight, inputs.numbers(stride), inputs.numbers(padding), inputs.numbers(dilation))
        return _convolved(inputs, 0, 1, image, weight, space, factor=1.0)

    return work


def _out_space(image: Shape, weight: Shape, stride: Shape, padding: Shape, dilation: Shape) -> Shape:
    def at(values: Shape, index: int) -> int:
        return values[index] if len(values) > 1 else values[0]

    return tuple(
        (length + 2 * at(padding, i) - at(dilation, i) * (kernel - 1) - 1) // at(stride, i) + 1
        for i, (length, kernel) in enumerate(zip(image[2:], weight[2:], strict=True))
    )


def _convolution_backward(inputs: _Inputs) -> OperatorWork:
    """Gradients of the input and of the weights: each as much as the forward."""
    gradient, image, weight = inputs.shape(0), inputs.shape(1), inputs.shape(2)
    return _convolved(inputs, 1, 2, image, weight, gradient[2:], factor=2.0)


def _convolved(
    inputs: _Inputs, at: int, weights: int, image: Shape, weight: Shape, space: Shape, *, factor: float
) -> OperatorWork:
    if len(image) != len(weight) or min(space, default=0) < 1:
        raise _Unknown
    points, out = math.prod(space), image[0] * weight[0] * math.prod(space) * inputs.item_bytes(at)
    kernel = "×".join(str(n) for n in weight[2:])
    return OperatorWork(
        kind="convolution",
        shape=f"{image[0]} × {image[1]} × {'×'.join(map(str, image[2:]))}, {weight[0]} of {kernel}",
        dtype=inputs.dtype(at),
        flops=factor * 2.0 * image[0] * points * math.prod(weight),
        size_bytes=factor * (inputs.size(at) + inputs.size(weights) + out),
    )


def _norm(source: int, *, writes: float = 1.0) -> Callable[[_Inputs], OperatorWork]:
    """Every input read once, and as much as the source written `writes` times."""

    def work(inputs: _Inputs) -> OperatorWork:
        shape = inputs.shape(source)
        read = sum(inputs.size(i) for i in range(len(inputs.shapes)))
        return OperatorWork(
            kind="norm",
            shape=" × ".join(str(n) for n in shape),
            dtype=inputs.dtype(source),
            flops=None,
            size_bytes=read + writes * inputs.size(source),
        )

    return work


_Formula = Callable[[_Inputs], OperatorWork]


def _all(names: Sequence[str], formula: _Formula) -> dict[str, _Formula]:
    return dict.fromkeys(names, formula)


@cache
def _formulas() -> Mapping[str, _Formula]:
    """By the name of an operator; made when the first shape was recorded."""
    return {
        **_all(("aten::mm", "aten::bmm", "aten::_scaled_mm", "aten::_int_mm"), _gemm(0, 1)),
        **_all(("aten::addmm", "aten::baddbmm", "aten::_addmm_activation"), _gemm(1, 2)),
        **_all(("sgl_kernel::fp8_scaled_mm", "sgl_kernel::int8_scaled_mm"), _gemm(0, 1)),
        "aten::linear": _linear,
        "aten::matmul": _matmul,
        **_all(("aten::_grouped_mm", "aten::_scaled_grouped_mm"), _grouped),
        "_C::cutlass_scaled_mm": _scaled_into,
        "aten::_scaled_dot_product_flash_attention": _attention(0, 4),
        "aten::_scaled_dot_product_efficient_attention": _attention(0, 6),
        "aten::_scaled_dot_product_cudnn_attention": _attention(0, 6),
        "aten::_scaled_dot_product_flash_attention_backward": _attention(1, 11, factor=BACKWARD_ATTENTION),
        "aten::_scaled_dot_product_efficient_attention_backward": _attention(1, 11, factor=BACKWARD_ATTENTION),
        **_all(("flash_attn::_flash_attn_forward", "FlashAttnFunc"), _attention(0, 5, heads_last=True)),
        **_all(("aten::convolution", "aten::_convolution"), _convolution(3, 4, 5, transposed=6)),
        "aten::cudnn_convolution": _convolution(3, 2, 4),
        "aten::miopen_convolution": _convolution(4, 3, 5),
        "aten::convolution_backward": _convolution_backward,
        **_all(
            ("aten::native_layer_norm", "aten::native_group_norm", "aten::native_batch_norm", "aten::cudnn_batch_norm",
             "aten::miopen_batch_norm", "aten::_fused_rms_norm", "aten::_softmax", "aten::_log_softmax"),
            _norm(0),
        ),
        **_all(("_C::rms_norm", "sgl_kernel::rmsnorm"), _norm(1, writes=0.0)),
        **_all(("_C::fused_add_rms_norm", "sgl_kernel::fused_add_rmsnorm"), _norm(0, writes=2.0)),
    }  # fmt: skip

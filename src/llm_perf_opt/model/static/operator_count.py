"""Counts FLOPs and bytes of a forward pass operator by operator, on any device, without running it on real data.

Two hooks work together: a function mode sees attention as one call before torch takes it apart (which it does
differently on every device), a dispatch mode sees every other operator. Operators are put down to the module group that
is running. The formulas cover every operator that multiplies matrices: plain, batched and grouped GEMMs,
convolutions, all variants of scaled-dot-product attention, and the embedding lookup. Everything else only moves data
and is counted in bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    """Scores and weighted values over the full rectangle, without the mask; keys as they are passed, not repeated."""
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


OTHER = "other"
# No kernel runs for these, although their schemas do not say so.
_FREE = frozenset(
    [
        "aten::_unsafe_view",
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::new_empty",
        "aten::detach",
        "aten::lift_fresh",
        "aten::_reshape_alias",
        "aten::sym_size",
    ]
)


@dataclass(kw_only=True)
class Tally:
    """`bytes` are those of matrix operators, `other_bytes` those of all others, each read and written unfused."""

    flops: float = 0.0
    bytes: float = 0.0
    other_bytes: float = 0.0
    operators: int = 0


@dataclass(frozen=True, kw_only=True)
class Count:
    """One forward, per module group and per operator. `unknown`: operators of other libraries without a formula.

    `cache_elements`: numbers in the cache when a decode step began.
    """

    groups: Mapping[str, Tally]
    operators: Mapping[str, Tally]
    unknown: tuple[str, ...] = ()
    cache_elements: int | None = None

    @property
    def total(self) -> Tally:
        tallies = self.groups.values()
        return Tally(
            flops=sum(t.flops for t in tallies),
            bytes=sum(t.bytes for t in tallies),
            other_bytes=sum(t.other_bytes for t in tallies),
            operators=sum(t.operators for t in tallies),
        )


@dataclass(kw_only=True)
class _Ledger:
    """What the two modes write into."""

    stack: list[str] = field(default_factory=lambda: [OTHER])
    groups: dict[str, Tally] = field(default_factory=dict)
    operators: dict[str, Tally] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    is_inside_attention: bool = False

    def add(self, operator: str, *, flops: float, moved: float, is_matrix: bool) -> None:
        tallies = (
            self.groups.setdefault(self.stack[-1], Tally()),
            self.operators.setdefault(operator, Tally()),
        )
        for tally in tallies:
            tally.flops += flops
            tally.bytes += moved if is_matrix else 0.0
            tally.other_bytes += 0.0 if is_matrix else moved
            tally.operators += 1


def count_operators(module: Any, groups: Mapping[str, str], forward: Callable[[], Any]) -> tuple[Count, Any]:
    """Run `forward` and count it; returns the count and what `forward` returned.

    `groups` maps qualified names of sub-modules to module groups; the innermost one named wins.
    """
    ledger = _Ledger()
    function_mode, dispatch_mode = _modes(ledger)
    with _attributed(module, groups, ledger), function_mode, dispatch_mode:
        result = forward()
    count = Count(groups=ledger.groups, operators=ledger.operators, unknown=tuple(sorted(ledger.unknown)))
    return count, result


def count_module_parameters(module: Any, groups: Mapping[str, str]) -> dict[str, int]:
    """Parameters by the group of the module that holds them; a tied one counts where it is first found."""
    found: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        owners = [groups[prefix] for prefix in _prefixes(name) if prefix in groups]
        group = owners[-1] if owners else OTHER
        found[group] = found.get(group, 0) + parameter.numel()
    return found


def _prefixes(name: str) -> Iterator[str]:
    """a.b.c as a, a.b, a.b.c."""
    parts = name.split(".")
    return (".".join(parts[: i + 1]) for i in range(len(parts)))


@contextmanager
def _attributed(module: Any, groups: Mapping[str, str], ledger: _Ledger) -> Iterator[None]:
    """Keep the ledger's stack at the group of the module that runs."""
    handles = []
    for name, part in module.named_modules():
        group = groups.get(name)
        if group is None:
            continue

        def enter(_module: Any, _args: Any, group: str = group) -> None:
            ledger.stack.append(group)

        def leave(_module: Any, _args: Any, _out: Any) -> None:
            ledger.stack.pop()

        handles += [part.register_forward_pre_hook(enter), part.register_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _modes(ledger: _Ledger) -> tuple[Any, Any]:
    """The two torch modes over one ledger; classes are made here because torch is imported here."""
    from torch.nn.functional import scaled_dot_product_attention
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class AttentionMode(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is not scaled_dot_product_attention:
                return func(*args, **(kwargs or {}))
            ledger.is_inside_attention = True
            try:
                out = func(*args, **(kwargs or {}))
            finally:
                ledger.is_inside_attention = False
            cost = attention_cost(*_first_three(args, kwargs or {}), out)
            ledger.add("scaled_dot_product_attention", flops=cost.flops, moved=cost.bytes, is_matrix=True)
            return out

    class OperatorMode(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = _shape_of_grouped(func, args)
            if out is None:
                out = func(*args, **(kwargs or {}))
            if not ledger.is_inside_attention:
                _record(ledger, func, args, kwargs or {}, out)
            return out

    return AttentionMode(), OperatorMode()


def _shape_of_grouped(func: Any, args: Any) -> Any | None:
    """The result of a grouped GEMM on meta, where torch refuses all formats but bfloat16; None for anything else."""
    if func._schema.name != "aten::_grouped_mm" or not args[0].is_meta or args[0].dim() != 2 or args[1].dim() != 3:
        return None
    return args[0].new_empty(args[0].shape[0], args[1].shape[2])


def _first_three(args: Any, kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    given = dict(zip(("query", "key", "value"), args, strict=False)) | {
        name: kwargs[name] for name in ("query", "key", "value") if name in kwargs
    }
    return given["query"], given["key"], given["value"]


def _record(ledger: _Ledger, func: Any, args: Any, kwargs: Mapping[str, Any], out: Any) -> None:
    name = func._schema.name
    if name in _FREE or _is_view(func):
        return
    cost = operator_cost(name, args, out)
    if cost is not None:
        ledger.add(name, flops=cost.flops, moved=cost.bytes, is_matrix=True)
        return
    if not name.startswith(("aten::", "prims::", "prim::")):
        ledger.unknown.add(name)
    moved = sum(tensor_bytes(t) for t in (*_tensors(args), *_tensors(kwargs.values()), *_tensors(out)))
    ledger.add(name, flops=0.0, moved=moved, is_matrix=False)


def _is_view(func: Any) -> bool:
    """Whether the result shares memory with an argument that stays as it is: no kernel runs."""
    aliases = [argument.alias_info for argument in func._schema.arguments]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _tensors(values: Any) -> Iterator[Any]:
    """All tensors in an argument list, one level of lists deep."""
    from torch import Tensor

    if isinstance(values, Tensor):
        yield values
        return
    if not isinstance(values, tuple | list | type({}.values())):
        return
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from (v for v in value if isinstance(v, Tensor))

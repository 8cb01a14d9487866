"""Closed form of feed-forward blocks, dense and with routed experts."""

from llm_perf_opt.analysis.static.architecture import DenseMlp, FeedForward, Moe
from llm_perf_opt.analysis.static.dtypes import Dtypes
from llm_perf_opt.analysis.static.work import Work, linear, linear_params


def dense_params(mlp: DenseMlp, hidden: int) -> int:
    up = linear_params(hidden, mlp.width, bias=mlp.bias)
    return (2 if mlp.is_gated else 1) * up + linear_params(mlp.width, hidden, bias=mlp.bias)


def dense_work(mlp: DenseMlp, hidden: int, rows: float, dtypes: Dtypes) -> Work:
    down = linear(rows, mlp.width, hidden, dtypes, bias=mlp.bias)
    up = linear(rows, hidden, mlp.width, dtypes, bias=mlp.bias)
    if not mlp.is_gated:
        return up + down
    if mlp.is_fused_gate:
        return linear(rows, hidden, 2 * mlp.width, dtypes, bias=mlp.bias) + down
    return up + up + down


def expected_experts(experts: int, top_k: int, tokens: int) -> float:
    """Distinct experts that `tokens` tokens touch when each picks its `top_k` uniformly: n·(1 − (1 − k/n)^T)."""
    return experts * (1 - (1 - top_k / experts) ** tokens)


def expert_params(moe: Moe, hidden: int) -> int:
    """One routed expert."""
    bias = moe.expert_bias
    return linear_params(hidden, 2 * moe.width, bias=bias) + linear_params(moe.width, hidden, bias=bias)


def router_params(moe: Moe, hidden: int) -> int:
    return linear_params(hidden, moe.experts, bias=moe.router_bias) + (hidden if moe.has_shared_gate else 0)


def shared_params(moe: Moe, hidden: int) -> int:
    return dense_params(_shared(moe), hidden) if moe.shared_width else 0


def matrix_elements(block: FeedForward, hidden: int) -> int:
    """Elements of the matrices alone, router excluded: what a quantised checkpoint stores in its narrow format."""
    if isinstance(block, Moe):
        return 3 * hidden * (block.experts * block.width + block.shared_width)
    return (3 if block.is_gated else 2) * hidden * block.width


def router_work(moe: Moe, hidden: int, rows: int, dtypes: Dtypes) -> Work:
    kind = Dtypes.uniform("fp32") if moe.is_router_float32 else dtypes
    routing = linear(rows, hidden, moe.experts, kind, bias=moe.router_bias, is_quantised=False)
    return routing + linear(rows, hidden, 1, dtypes, is_quantised=False) if moe.has_shared_gate else routing


def experts_work(moe: Moe, hidden: int, rows: int, dtypes: Dtypes) -> Work:
    """Every token's `top_k` experts do their FLOPs; the weights read are those of the experts expected to be hit."""
    picked = rows * moe.top_k
    up = linear(picked, hidden, 2 * moe.width, dtypes)
    down = linear(picked, moe.width, hidden, dtypes)
    matrices = hidden * 3 * moe.width * dtypes.weight_bytes
    biases = (2 * moe.width + hidden) * dtypes.compute_bytes if moe.expert_bias else 0
    touched = expected_experts(moe.experts, moe.top_k, rows)
    # `linear` counted the weights of one expert.
    routed = up + down + Work(weight_bytes=touched * (matrices + biases) - matrices)
    return routed + dense_work(_shared(moe), hidden, rows, dtypes) if moe.shared_width else routed


def _shared(moe: Moe) -> DenseMlp:
    return DenseMlp(width=moe.shared_width, bias=moe.shared_bias)

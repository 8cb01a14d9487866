"""Closed form of a decoder layer: attention (grouped and latent) and feed-forward blocks (dense and routed)."""

from typing import Literal

from llm_perf_opt.model.hardware.work import Dtypes, Step, Work, linear, linear_params
from llm_perf_opt.model.static.parts import (
    Attention,
    DenseMlp,
    FeedForward,
    GroupedAttention,
    KeyIndexer,
    LatentAttention,
    Moe,
    StateMixer,
)

# cached: keys and values of all heads are cached. latent-expand: the latent is cached and all keys and values are
# projected up again every step, which is what transformers does. absorbed: scores are taken on the latent itself.
MlaMode = Literal["cached", "latent-expand", "absorbed"]
# An indexer's key is kept in 8 bits.
INDEX_BYTES = 1.0
MLA_MODES: tuple[MlaMode, ...] = ("cached", "latent-expand", "absorbed")


def attention_params(a: Attention, hidden: int) -> int:
    if isinstance(a, LatentAttention):
        return _latent_params(a, hidden)
    if isinstance(a, StateMixer):
        conv = a.conv_channels * (a.conv_kernel + (1 if a.conv_bias else 0))
        projections = linear_params(hidden, a.in_width, bias=a.bias) + linear_params(a.out_width, hidden, bias=a.bias)
        return projections + conv + a.inner_elements + a.other_params
    width = (_query_heads(a) + a.kv_heads) * a.head_dim + (a.kv_heads * a.value_dim if a.has_values else 0)
    projections = linear_params(hidden, width, bias=a.qkv_bias) + linear_params(hidden, a.gate_width)
    out = linear_params(a.heads * a.value_dim, hidden, bias=a.out_bias)
    # Norms of the indexer's queries and of its key.
    picking = 0 if a.indexer is None else _picking_elements(a.indexer, hidden) + 2 * a.indexer.dim
    return projections + out + a.norm_elements + a.sinks + picking


def _picking_elements(indexer: KeyIndexer, hidden: int) -> int:
    """The indexer's projections: its queries and its key."""
    return hidden * (indexer.heads + 1) * indexer.dim


def _query_heads(a: GroupedAttention) -> int:
    """Heads the query's projection yields, the gate's included."""
    return 2 * a.heads if a.has_gate else a.heads


def attention_matrix_elements(a: Attention, hidden: int) -> int:
    """Elements of the projections alone: what a quantised checkpoint stores in low precision."""
    if isinstance(a, StateMixer):
        return hidden * (a.in_width + a.out_width) + a.inner_elements
    if isinstance(a, GroupedAttention):
        values = a.heads + (a.kv_heads if a.has_values else 0)
        picking = 0 if a.indexer is None else _picking_elements(a.indexer, hidden)
        return hidden * ((_query_heads(a) + a.kv_heads) * a.head_dim + values * a.value_dim + a.gate_width) + picking
    q_width = a.heads * a.qk_dim
    query = hidden * q_width if a.q_rank is None else (hidden + q_width) * a.q_rank
    up = a.kv_rank * a.heads * (a.nope_dim + a.v_dim)
    indexer = ((a.q_rank or hidden) * a.index_heads + hidden) * a.index_dim if a.index_heads else 0
    return query + hidden * a.latent + up + a.heads * a.v_dim * hidden + indexer


def kv_elements(a: Attention, mode: MlaMode) -> int:
    """What one token adds to the cache of one layer."""
    if isinstance(a, StateMixer):
        return 0
    if isinstance(a, GroupedAttention):
        return a.kv_heads * (a.head_dim + a.value_dim) + (0 if a.indexer is None else a.indexer.dim)
    return (a.heads * (a.qk_dim + a.v_dim) if mode == "cached" else a.latent) + (a.index_dim if a.index_heads else 0)


def cache_copies(a: Attention, mode: MlaMode, tp: int) -> float:
    """How many times tensor-parallel devices keep a layer's cache between them: heads are spread, a latent is not."""
    if isinstance(a, StateMixer):
        return 1
    if isinstance(a, GroupedAttention):
        return max(1.0, tp / a.kv_heads)
    return 1 if mode == "cached" else tp


def state_elements(a: Attention) -> int:
    """What a layer keeps for one sequence, however long it is."""
    return a.kept_elements if isinstance(a, StateMixer) else 0


def cached_tokens(a: Attention, context: int) -> int:
    """How many tokens of a context the cache keeps: a sliding window needs no more than its own length."""
    if isinstance(a, GroupedAttention) and a.window is not None:
        return min(context, a.window)
    return context


def attention_work(a: Attention, hidden: int, step: Step, dtypes: Dtypes, mode: MlaMode) -> Work:
    dtypes = dtypes.around_attention
    if isinstance(a, LatentAttention):
        return _latent_work(a, hidden, step, dtypes, mode)
    if isinstance(a, StateMixer):
        return _mixer_work(a, hidden, step, dtypes)
    q_width, kv_width = a.heads * a.head_dim, a.kv_heads * a.head_dim
    gate = linear(step.rows, hidden, q_width, dtypes, bias=a.qkv_bias) if a.has_gate else Work()
    if a.gate_width:
        gate += linear(step.rows, hidden, a.gate_width, dtypes)
    if a.is_fused_qkv:
        # One product reads the input once; the key and value part of its result is the cache's.
        q = linear(step.rows, hidden, q_width, dtypes, bias=a.qkv_bias)
        kv = linear(step.rows, hidden, 2 * kv_width, dtypes, bias=a.qkv_bias, writes_kv=True)
        shared_input = Work(activation_bytes=-step.rows * hidden * dtypes.compute_bytes)
        projections = q + kv + shared_input
    else:
        q = linear(step.rows, hidden, q_width, dtypes, bias=a.qkv_bias)
        k = linear(step.rows, hidden, kv_width, dtypes, bias=a.qkv_bias, writes_kv=True)
        v_width = a.kv_heads * a.value_dim
        v = Work(kv_write_bytes=step.rows * v_width * dtypes.kv_bytes)
        if a.has_values:
            v = linear(step.rows, hidden, v_width, dtypes, bias=a.qkv_bias, writes_kv=True)
        projections = q + k + v
    out = linear(step.rows, a.heads * a.value_dim, hidden, dtypes, bias=a.out_bias)
    keys = keys_seen(step, a.window)
    most, picking = a.window, Work()
    if a.indexer is not None:
        most, picking = a.indexer.most_keys, _picking_work(a.indexer, hidden, step, dtypes)
        # A prompt's queries pick different keys, so it is reckoned as one block of all of them.
        keys = min(keys, most) if step.new == 1 else keys
    scores = _scores(a.heads, a.head_dim, a.value_dim, keys, step, most) + picking
    kv_read = step.batch * keys * a.kv_heads * (a.head_dim + a.value_dim) * dtypes.kv_bytes
    in_and_out = step.rows * a.heads * (a.head_dim + a.value_dim) * dtypes.compute_bytes
    return projections + gate + scores + Work(kv_read_bytes=kv_read, activation_bytes=in_and_out) + out


def _picking_work(indexer: KeyIndexer, hidden: int, step: Step, dtypes: Dtypes) -> Work:
    """Scores of every earlier key, and the projections that make queries and key."""
    flops = 2 * step.batch * needed_pairs(step.new, step.past) * indexer.heads * indexer.dim
    keys = step.batch * (step.past + step.new) * indexer.dim
    scores = Work(flops=flops, kv_read_bytes=keys * dtypes.kv_bytes)
    queries = linear(step.rows, hidden, indexer.heads * indexer.dim, dtypes)
    return queries + linear(step.rows, hidden, indexer.dim, dtypes, writes_kv=True) + scores


def _mixer_work(a: StateMixer, hidden: int, step: Step, dtypes: Dtypes) -> Work:
    """The least any kernel does: a state updated and read out once a token, read and written once a forward."""
    projections = linear(step.rows, hidden, a.in_width, dtypes, bias=a.bias)
    projections += linear(step.rows, a.out_width, hidden, dtypes, bias=a.bias)
    inner = 2 * step.rows * a.inner_elements
    projections += Work(
        flops=inner,
        flops_quantised=inner if dtypes.weight != dtypes.compute else 0,
        weight_bytes=a.inner_elements * dtypes.weight_bytes,
    )
    kept = step.batch * a.kept_elements * dtypes.kv_bytes
    return projections + Work(
        flops=step.rows * (4 * a.state_elements + 2 * a.conv_channels * a.conv_kernel),
        weight_bytes=a.conv_channels * a.conv_kernel * dtypes.compute_bytes,
        kv_read_bytes=kept if step.past else 0,
        kv_write_bytes=kept,
        activation_bytes=2 * step.rows * a.conv_channels * dtypes.compute_bytes,
    )


def keys_seen(step: Step, window: int | None) -> int:
    """Keys a query is multiplied with: the cache holds window - 1 earlier tokens, the new ones come on top."""
    past = step.past if window is None else min(step.past, window - 1)
    return past + step.new


def _scores(heads: int, qk_dim: int, v_dim: int, keys: int, step: Step, window: int | None = None) -> Work:
    """Scores and the weighted sum of values, for the full rectangle of new tokens by keys."""
    per_pair = 2 * step.batch * heads * (qk_dim + v_dim)
    flops = per_pair * step.new * keys
    masked = flops - per_pair * needed_pairs(step.new, step.past, window)
    return Work(flops=flops, flops_masked=masked, flops_scores=flops)


def needed_pairs(new: int, past: int, window: int | None = None) -> int:
    """Pairs a causal mask leaves: token i sees itself and what came before, at most `window` in all."""
    if window is None:
        return new * past + new * (new + 1) // 2
    growing = max(0, min(new, window - past))
    return growing * past + growing * (growing + 1) // 2 + (new - growing) * window


def _latent_params(a: LatentAttention, hidden: int) -> int:
    q_width = a.heads * a.qk_dim
    if a.q_rank is None:
        query = linear_params(hidden, q_width)
    else:
        query = linear_params(hidden, a.q_rank, bias=a.bias) + a.q_rank + linear_params(a.q_rank, q_width)
    down = linear_params(hidden, a.latent, bias=a.bias) + a.kv_rank
    up = linear_params(a.kv_rank, a.heads * (a.nope_dim + a.v_dim))
    gate = linear_params(hidden, a.heads * a.v_dim) if a.has_gate else 0
    out = linear_params(a.heads * a.v_dim, hidden, bias=a.bias)
    return query + down + up + gate + out + _indexer_params(a, hidden)


def _indexer_params(a: LatentAttention, hidden: int) -> int:
    """Queries from the query's latent, one key, its norm with a bias, and a weight for each head."""
    if not a.index_heads:
        return 0
    queries = linear_params(a.q_rank or hidden, a.index_heads * a.index_dim)
    return queries + linear_params(hidden, a.index_dim) + 2 * a.index_dim + linear_params(hidden, a.index_heads)


def _indexer_work(a: LatentAttention, hidden: int, step: Step, dtypes: Dtypes) -> Work:
    """Scores of every key, in the weights' format: engines run the indexer as narrow as the matrices."""
    if not a.index_heads:
        return Work()
    pairs = step.batch * needed_pairs(step.new, step.past)
    flops = 2 * pairs * a.index_heads * a.index_dim
    keys = (step.past + step.new) * a.index_dim * INDEX_BYTES
    scores = Work(
        flops=flops,
        flops_quantised=flops if dtypes.weight != dtypes.compute else 0,
        kv_read_bytes=step.batch * keys,
        kv_write_bytes=step.rows * a.index_dim * INDEX_BYTES,
    )
    queries = linear(step.rows, a.q_rank or hidden, a.index_heads * a.index_dim, dtypes)
    key = linear(step.rows, hidden, a.index_dim, dtypes)
    return queries + key + linear(step.rows, hidden, a.index_heads, dtypes, is_quantised=False) + scores


def _keys_picked(a: LatentAttention, step: Step) -> int:
    """Keys a query is multiplied with where an indexer picks them."""
    keys = step.past + step.new
    return keys if a.index_topk is None else min(keys, a.index_topk)


def _latent_work(a: LatentAttention, hidden: int, step: Step, dtypes: Dtypes, mode: MlaMode) -> Work:
    query = _latent_query(a, hidden, step, dtypes)
    out = linear(step.rows, a.heads * a.v_dim, hidden, dtypes, bias=a.bias)
    if a.has_gate:
        out += linear(step.rows, hidden, a.heads * a.v_dim, dtypes)
    down = linear(step.rows, hidden, a.latent, dtypes, bias=a.bias, writes_kv=mode != "cached")
    core = {"cached": _cached_core, "latent-expand": _expanding_core, "absorbed": _absorbed_core}[mode]
    return query + down + core(a, step, dtypes) + out + _indexer_work(a, hidden, step, dtypes)


def _latent_query(a: LatentAttention, hidden: int, step: Step, dtypes: Dtypes) -> Work:
    q_width = a.heads * a.qk_dim
    if a.q_rank is None:
        return linear(step.rows, hidden, q_width, dtypes)
    down = linear(step.rows, hidden, a.q_rank, dtypes, bias=a.bias)
    return down + linear(step.rows, a.q_rank, q_width, dtypes)


def _cached_core(a: LatentAttention, step: Step, dtypes: Dtypes) -> Work:
    keys = step.past + step.new
    elements = a.heads * (a.qk_dim + a.v_dim)
    up = linear(step.rows, a.kv_rank, a.heads * (a.nope_dim + a.v_dim), dtypes, writes_kv=True)
    # The shared rotary part is stored once per head alongside what the matmul writes.
    rotary = step.rows * a.heads * a.rope_dim * dtypes.kv_bytes
    moved = Work(
        kv_read_bytes=step.batch * _keys_picked(a, step) * elements * dtypes.kv_bytes,
        kv_write_bytes=rotary,
        activation_bytes=step.rows * elements * dtypes.compute_bytes,
    )
    return up + _scores(a.heads, a.qk_dim, a.v_dim, keys, step, a.index_topk) + moved


def _expanding_core(a: LatentAttention, step: Step, dtypes: Dtypes) -> Work:
    keys = step.past + step.new
    rows = step.batch * keys
    up = linear(rows, a.kv_rank, a.heads * (a.nope_dim + a.v_dim), dtypes)
    elements = a.heads * (a.qk_dim + a.v_dim)
    latent_read = rows * a.kv_rank * dtypes.compute_bytes
    moved = Work(
        # The matmul's input is the cache itself, so it is counted as cache and not as an activation.
        kv_read_bytes=rows * a.latent * dtypes.kv_bytes,
        activation_bytes=(rows + step.rows) * elements * dtypes.compute_bytes - latent_read,
    )
    return up + _scores(a.heads, a.qk_dim, a.v_dim, keys, step, a.index_topk) + moved


def _absorbed_core(a: LatentAttention, step: Step, dtypes: Dtypes) -> Work:
    keys = _keys_picked(a, step)
    flops = 2 * step.rows * a.heads * a.kv_rank * (a.nope_dim + a.v_dim)
    weights = a.kv_rank * a.heads * (a.nope_dim + a.v_dim) * dtypes.weight_bytes
    per_row = a.heads * (a.qk_dim + 2 * a.latent + 2 * a.kv_rank + a.v_dim)
    moved = Work(
        flops=flops,
        flops_quantised=flops if dtypes.weight != dtypes.compute else 0,
        weight_bytes=weights,
        kv_read_bytes=step.batch * keys * a.latent * dtypes.kv_bytes,
        activation_bytes=step.rows * per_row * dtypes.compute_bytes,
    )
    # A prompt's queries pick different keys, so it is reckoned as one block of all of them.
    multiplied = keys if step.new == 1 else step.past + step.new
    return moved + _scores(a.heads, a.latent, a.kv_rank, multiplied, step, a.index_topk)


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
    bias, hidden = moe.expert_bias, moe.routed_hidden(hidden)
    up = linear_params(hidden, (moe.matrices - 1) * moe.width, bias=bias)
    return up + linear_params(moe.width, hidden, bias=bias)


def router_params(moe: Moe, hidden: int) -> int:
    gate = hidden if moe.has_shared_gate else 0
    latent = 0 if moe.latent is None else 2 * hidden * moe.latent
    return linear_params(hidden, moe.experts, bias=moe.router_bias) + gate + latent + moe.router_extra


def shared_params(moe: Moe, hidden: int) -> int:
    return dense_params(_shared(moe), hidden) if moe.shared_width else 0


def matrix_elements(block: FeedForward, hidden: int) -> int:
    """Elements of the matrices alone, router excluded: what a quantised checkpoint stores in low precision."""
    if isinstance(block, Moe):
        routed = block.routed_hidden(hidden) * block.experts * block.width
        return block.matrices * (routed + hidden * block.shared_width)
    return (3 if block.is_gated else 2) * hidden * block.width


def router_work(moe: Moe, hidden: int, rows: int, dtypes: Dtypes) -> Work:
    kind = Dtypes.uniform("fp32") if moe.is_router_float32 else dtypes
    routing = linear(rows, hidden, moe.experts, kind, bias=moe.router_bias, is_quantised=False)
    if moe.latent is not None:
        routing += linear(rows, hidden, moe.latent, dtypes, is_quantised=False)
        routing += linear(rows, moe.latent, hidden, dtypes, is_quantised=False)
    return routing + linear(rows, hidden, 1, dtypes, is_quantised=False) if moe.has_shared_gate else routing


def experts_work(moe: Moe, hidden: int, rows: int, dtypes: Dtypes, *, touched: float | None = None) -> Work:
    """Every token's `top_k` experts do their FLOPs; the weights read are those of the experts expected to be hit.

    All tokens may pick the same `top_k`, so what is read beyond those could be spared. `touched`: how many experts are
    hit, where that is known better than by even picking.
    """
    picked, inner = rows * moe.top_k, moe.routed_hidden(hidden)
    up = linear(picked, inner, (moe.matrices - 1) * moe.width, dtypes)
    down = linear(picked, moe.width, inner, dtypes)
    matrices = inner * moe.matrices * moe.width * dtypes.weight_bytes
    biases = ((moe.matrices - 1) * moe.width + inner) * dtypes.compute_bytes if moe.expert_bias else 0
    touched = expected_experts(moe.experts, moe.top_k, rows) if touched is None else touched
    # `linear` counted the weights of one expert.
    routed = up + down + Work(weight_bytes=touched * (matrices + biases) - matrices)
    routed += Work(weight_spared_bytes=(touched - min(moe.top_k, touched)) * (matrices + biases))
    return routed + dense_work(_shared(moe), hidden, rows, dtypes) if moe.shared_width else routed


def _shared(moe: Moe) -> DenseMlp:
    return DenseMlp(width=moe.shared_width, bias=moe.shared_bias, is_gated=moe.is_gated)

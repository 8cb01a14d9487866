"""What no engine can beat over whole requests: a batch that starts together, and requests that come and go.

Both put the bounds of single steps together, so they share their rule: weights and cache once, needed FLOPs only, at
the ceilings given.
"""

from collections.abc import Callable
from dataclasses import dataclass

from llm_perf_opt.model.hardware.roofline import Ceilings, bound, compute_s
from llm_perf_opt.model.hardware.work import Dtypes
from llm_perf_opt.model.static.closed_form import decode_phase, kv_bytes, prefill_phase, weight_bytes
from llm_perf_opt.model.static.forms import MLA_MODES, MlaMode
from llm_perf_opt.model.static.parts import Model

# A step's bound bends upwards with the context, so the middle of a piece never overstates the piece.
PIECES = 16


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Requests of one length. `prompt` and `output` in tokens; the first output token is the prefill's."""

    prompt: int
    output: int


def batch_bound_ms(model: Model, requests: Requests, dtypes: Dtypes, ceilings: Ceilings, *, batch: int) -> float:
    """`batch` requests that start together and end together: one prefill, then a step for each further token."""
    first = lowest_of_modes(
        lambda mode: (
            bound(
                prefill_phase(model, batch=batch, prompt=requests.prompt, dtypes=dtypes, mla_mode=mode).total,
                dtypes,
                ceilings,
            ).ms
        )
    )
    return first + over_steps(requests, lambda context: step_bound_ms(model, dtypes, ceilings, batch, context))


def step_bound_ms(model: Model, dtypes: Dtypes, ceilings: Ceilings, batch: int, context: int) -> float:
    """One more token for each sequence of a batch."""
    return lowest_of_modes(
        lambda mode: (
            bound(
                decode_phase(model, batch=batch, context=context, dtypes=dtypes, mla_mode=mode).total, dtypes, ceilings
            ).ms
        )
    )


def over_steps(requests: Requests, step: Callable[[int], float]) -> float:
    """The sum of `step` over the contexts of all tokens but the first, piece by piece at its middle."""
    steps = requests.output - 1
    if steps < 1:
        return 0.0
    pieces = min(PIECES, steps)
    total = 0.0
    for piece in range(pieces):
        start, end = steps * piece // pieces, steps * (piece + 1) // pieces
        total += (end - start) * step(requests.prompt + (start + end) // 2)
    return total


def serving_bound_tokens_per_s(
    model: Model, requests: Requests, dtypes: Dtypes, ceilings: Ceilings, *, capacity_bytes: float
) -> float:
    """Output tokens per second with as many concurrent requests as the memory could ever hold.

    Prefills are batched with the decode steps of others, so weights are read once a step and compute of one part hides
    behind memory of the other. 0: the weights alone do not fit.
    """
    mean = requests.prompt + requests.output // 2
    # The smallest cache any mode needs lets the most requests in.
    cache = min(kv_bytes(model, mean, dtypes, mode) for mode in MLA_MODES)
    at_once = int((capacity_bytes - weight_bytes(model, dtypes)) // cache)
    if at_once < 1:
        return 0.0

    def request_s(mode: MlaMode) -> float:
        prompt = prefill_phase(model, batch=1, prompt=requests.prompt, dtypes=dtypes, mla_mode=mode).total
        step = decode_phase(model, batch=at_once, context=mean, dtypes=dtypes, mla_mode=mode).total
        share = (requests.output - 1) / at_once
        products = compute_s(prompt, dtypes, ceilings) + share * compute_s(step, dtypes, ceilings)
        moved = prompt.kv_write_bytes + share * step.bytes_needed
        return max(products, moved / ceilings.bytes_per_s)

    return requests.output / lowest_of_modes(request_s)


def lowest_of_modes(figure: Callable[[MlaMode], float]) -> float:
    """The figure in the best mode of latent attention; all are the same for other models."""
    return min(figure(mode) for mode in MLA_MODES)

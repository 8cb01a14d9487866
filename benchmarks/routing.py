"""How many experts the random weights of benchmarks/prediction_gpu.py make a prompt hit; runs on a CPU in minutes.

    .venv/bin/python benchmarks/routing.py

Random layers make the tokens of a prompt alike: attention averages over what came before, so a part common to all of
them grows from layer to layer, and the router sends them to the same few experts. The time of a prompt is that of the
experts it hits, so the grid has to be read with this number. Only what decides it is built: embedding, attention and
router with the distributions of that program, and for transformers' initialisation the experts too. The result is kept
in benchmarks/results/routing.json, and a run continues where one was cut short.
"""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

RESULT = Path(__file__).resolve().parent / "results" / "routing.json"
HIDDEN, HEADS, KV_HEADS, DIM, EXPERTS, TOP_K, WIDTH, LAYERS = 2048, 32, 4, 128, 128, 8, 768, 48
# Of longer prompts the products of experts are bound by compute, whichever they hit.
PROMPTS = (128, 1024)
# Views of one long block stand for matrices; its length is prime, so that no two rows of one are equal.
PERIOD = 4194301
BLOCK = torch.empty(PERIOD)


def noise(*shape: int) -> torch.Tensor:
    count = torch.Size(shape).numel()
    start = random.randrange(PERIOD)
    return BLOCK[start : start + count].view(shape)


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def angles(tokens: int, engine: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The lean program turns by noise, transformers by positions."""
    if engine == "graph":
        return noise(tokens, 1, DIM // 2), noise(tokens, 1, DIM // 2)
    rates = 1e6 ** (-torch.arange(DIM // 2) / (DIM // 2))
    angle = torch.arange(tokens)[:, None, None] * rates
    return angle.cos(), angle.sin()


def touched(tokens: int, engine: str) -> Iterator[int]:
    """Experts hit in one layer after the other."""
    functional: Any = torch.nn.functional
    is_lean = engine == "graph"
    norm = noise(HIDDEN) if is_lean else torch.ones(HIDDEN)
    cos, sin = angles(tokens, engine)
    x = noise(tokens, HIDDEN)
    for _ in range(LAYERS):
        h = functional.rms_norm(x, (HIDDEN,), norm)
        qkv = (h @ noise((HEADS + 2 * KV_HEADS) * DIM, HIDDEN).T).view(tokens, -1, DIM)
        q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], 1)
        if not is_lean:
            q, k = functional.rms_norm(q, (DIM,)), functional.rms_norm(k, (DIM,))
        q, k, v = (part.transpose(0, 1)[None] for part in (turned(q, cos, sin), turned(k, cos, sin), v))
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + seen[0].transpose(0, 1).reshape(tokens, -1) @ noise(HIDDEN, HEADS * DIM).T
        h = functional.rms_norm(x, (HIDDEN,), norm)
        share, picked = (h @ noise(EXPERTS, HIDDEN).T).softmax(-1).topk(TOP_K, -1)
        hit = picked.unique().tolist()
        yield len(hit)
        if is_lean:
            # Behind norms of 0.02 the experts add nothing that could be seen.
            continue
        share = share / share.sum(-1, keepdim=True)
        added = torch.zeros_like(x)
        for expert in hit:
            rows, place = (picked == expert).nonzero(as_tuple=True)
            gate, up = (h[rows] @ noise(2 * WIDTH, HIDDEN).T).chunk(2, -1)
            inner = (functional.silu(gate) * up) @ noise(HIDDEN, WIDTH).T
            added.index_add_(0, rows, inner * share[rows, place][:, None])
        x = x + added


def main() -> None:
    global BLOCK
    random.seed(0)
    torch.manual_seed(0)
    BLOCK = torch.empty(PERIOD).normal_(0, 0.02).repeat(6)
    found: dict[str, Any] = {
        "schema_version": 1,
        "model": "qwen3_30b_a3b",
        "what": "experts hit, mean of the layers, by engine and tokens of the prompt",
        "experts": EXPERTS,
    }
    if RESULT.is_file():
        found |= json.loads(RESULT.read_text())
    for engine, tokens in ((engine, tokens) for engine in ("graph", "eager") for tokens in PROMPTS):
        if str(tokens) in found.setdefault(engine, {}):
            continue
        with torch.no_grad():
            layers = list(touched(tokens, engine))
        found[engine][str(tokens)] = {"mean": round(sum(layers) / LAYERS, 1), "first": layers[0], "last": layers[-1]}
        print(engine, tokens, found[engine][str(tokens)], flush=True)
        RESULT.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

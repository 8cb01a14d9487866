"""What one GPU really takes: the grid `llm-perf predict` is held against, and the rates its estimates are made of.

    .venv/bin/python benchmarks/prediction_gpu.py --out prediction_gpu.json        about six minutes on an H200
    .venv/bin/python benchmarks/prediction_gpu.py --out tiny.json --tiny           a smoke test, also without a GPU

Needs torch, transformers and PyYAML only. Two ways of running each model are measured:

`eager`: stock transformers, dynamic cache; wall time of a step, and the GPU's busy time in it by kernel.
`graph`: a lean decoder in plain torch (fused qkv and gate/up, cache written in place, grouped GEMMs for experts)
captured as a CUDA graph, which stands for a serving engine.

The cache of a decode step is filled with noise, because what it holds does not change the time. Besides the grid, the
rates of single operators are taken by size: matrix products in bf16, fp16, fp8 and int8, attention, grouped GEMMs,
norms, copies, reads, and the cost of starting an operator. One JSON is written, after every part, so that a run cut
short keeps what it has. A part that fails is named in `errors`.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("llama3_1b", "llama3_8b", "qwen3_30b_a3b")
TINY_MODELS = ("llama_tiny", "qwen3_moe_tiny")
PROMPTS = (128, 1024, 4096)
BATCHES = (1, 8, 32)
CONTEXTS = (1024, 8192)
# Larger than the last cache of any GPU, so that weights come from memory as they do in a model.
COLD_BYTES = 512 << 20
MATRICES = (
    (2048, 2048),
    (4096, 4096),
    (6144, 4096),
    (14336, 4096),
    (4096, 14336),
    (28672, 4096),
    (8192, 8192),
    (57344, 8192),
    (128256, 4096),
)
ROWS = (1, 8, 32, 64, 128, 256, 512, 1024, 4096, 8192)
SQUARE_SIDES = (1024, 2048, 4096, 8192, 16384)

Document = dict[str, Any]


def on_gpu() -> bool:
    return bool(torch.cuda.is_available())


def device() -> str:
    return "cuda" if on_gpu() else "cpu"


def wait() -> None:
    if on_gpu():
        torch.cuda.synchronize()


def free() -> None:
    gc.collect()
    if on_gpu():
        torch.cuda.empty_cache()


def capture(work: Callable[[], Any]) -> Callable[[], Any]:
    """The work as one CUDA graph; without a GPU, the work itself."""
    if not on_gpu():
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return partial(graph.replay)


def wall_us(work: Callable[[], Any], *, runs: int, warm: int = 2) -> Document:
    """Each run waited for: what a caller that needs the result sees."""
    for _ in range(warm):
        work()
    wait()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        wait()
        times.append((time.perf_counter() - start) * 1e6)
    return {"median": statistics.median(times), "min": min(times), "runs": runs}


def busy_us(work: Callable[[], Any], *, runs: int = 2) -> Document:
    """Time in which the GPU has a kernel or copy running, per run, with the kernels by name."""
    if not on_gpu():
        return {"busy": None, "kernels": []}
    from torch.profiler import ProfilerActivity, profile

    work()
    wait()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(runs):
            work()
        wait()
    found = seen.profiler.kineto_results.events()
    spans = sorted(
        (e.start_ns(), e.start_ns() + e.duration_ns(), e.name())
        for e in found
        if e.device_type() == torch.autograd.DeviceType.CUDA and e.duration_ns() > 0
    )
    busy, end = 0, 0
    by_name: dict[str, list[float]] = {}
    for start, stop, name in spans:
        busy += max(0, stop - max(start, end))
        end = max(end, stop)
        entry = by_name.setdefault(name[:120], [0, 0])
        entry[0] += 1 / runs
        entry[1] += (stop - start) / 1e3 / runs
    kernels = [[name, count, us] for name, (count, us) in sorted(by_name.items(), key=lambda item: -item[1][1])]
    return {"busy": busy / 1e3 / runs, "kernels": kernels}


def rate_us(make: Callable[[int], Callable[[], Any]], *, operand_bytes: float, least: int = 4, most: int = 40) -> float:
    """Microseconds of one operator: copies enough that no operand is warm, in one graph, the best of five replays."""
    copies = max(least, min(most, int(COLD_BYTES // max(operand_bytes, 1)) + 1))
    works = [make(i) for i in range(copies)]

    def all_of_them() -> None:
        for work in works:
            work()

    replay = capture(all_of_them)
    return float(wall_us(replay, runs=5, warm=1)["min"]) / copies


# --- rates of single operators ---------------------------------------------------------------------------------------


def products(kind: str, rows: int, n_out: int, n_in: int) -> Callable[[int], Callable[[], Any]]:
    """rows × n_in times n_in × n_out in one format."""

    def make(_: int) -> Callable[[], Any]:
        a = torch.randn(rows, n_in, device=device())
        b = torch.randn(n_out, n_in, device=device(), dtype=torch.bfloat16)
        if kind == "fp8":
            a8, b8 = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
            one = torch.ones((), device=device())
            return lambda: torch._scaled_mm(a8, b8.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        if kind == "int8":
            a8, b8 = a.to(torch.int8), b.to(torch.int8)
            return lambda: torch._int_mm(a8, b8.t())
        wide = {"bf16": torch.bfloat16, "fp16": torch.float16}[kind]
        left, right = a.to(wide), b.to(wide)
        return lambda: torch.nn.functional.linear(left, right)

    return make


def measure_products(tiny: bool) -> Iterator[Document]:
    sizes = [(r, n, k) for n, k in MATRICES for r in ROWS] + [(s, s, s) for s in SQUARE_SIDES]
    if tiny:
        sizes = [(1, 64, 64), (32, 64, 64)]
    for kind in ("bf16", "fp16", "fp8", "int8"):
        width = 2 if kind in ("bf16", "fp16") else 1
        for rows, n_out, n_in in sizes:
            # fp16 runs on the units of bf16; a few sizes show that. The integer product wants more than 16 rows.
            if (kind == "fp16" and n_out != n_in) or (kind in ("fp8", "int8") and rows < 32):
                continue
            us = rate_us(products(kind, rows, n_out, n_in), operand_bytes=n_out * n_in * width, most=24)
            yield {"format": kind, "rows": rows, "n_out": n_out, "n_in": n_in, "us": us}


def measure_attention(tiny: bool) -> Iterator[Document]:
    """Causal attention over a prompt, and one new token for each sequence over its cache."""
    shapes = [(1, 32, 8, 64), (1, 32, 8, 128), (1, 32, 4, 128)] if not tiny else [(1, 4, 2, 16)]
    lengths = (128, 512, 1024, 2048, 4096, 8192) if not tiny else (32,)
    for _, heads, kv_heads, dim in shapes:
        for length in lengths:

            def prompt(_: int, heads: int = heads, kv: int = kv_heads, dim: int = dim, n: int = length) -> Any:
                q, k, v = (noise(1, h, n, dim) for h in (heads, kv, kv))
                return lambda: attend(q, k, v, is_causal=True)

            us = rate_us(prompt, operand_bytes=COLD_BYTES, least=4)
            row = {"batch": 1, "heads": heads, "kv_heads": kv_heads, "dim": dim, "new": length, "past": 0, "us": us}
            yield row
        for batch in (1, 8, 32) if not tiny else (2,):
            for length in (1024, 8192) if not tiny else (32,):

                def step(_: int, heads: int = heads, kv: int = kv_heads, dim: int = dim, b: int = batch) -> Any:
                    q = noise(b, kv, heads // kv, dim)
                    k, v = noise(b, kv, length, dim), noise(b, kv, length, dim)  # noqa: B023 - used at once
                    return lambda: attend(q, k, v, is_causal=False)

                size = 4 * batch * kv_heads * length * dim
                us = rate_us(step, operand_bytes=size, most=24)
                yield {
                    "batch": batch,
                    "heads": heads,
                    "kv_heads": kv_heads,
                    "dim": dim,
                    "new": 1,
                    "past": length,
                    "us": us,
                }


def measure_grouped(tiny: bool) -> Iterator[Document]:
    """Products of routed experts: rows spread evenly over those that are hit."""
    experts, top_k, width, hidden = (128, 8, 768, 2048) if not tiny else (4, 2, 16, 32)
    for tokens in (1, 8, 32, 128, 1024, 4096) if not tiny else (4,):
        for n_in, n_out in ((hidden, 2 * width), (width, hidden)):

            def make(_: int, tokens: int = tokens, n_in: int = n_in, n_out: int = n_out) -> Callable[[], Any]:
                weights = noise(experts, n_out, n_in).transpose(-2, -1)
                picked = torch.stack([torch.randperm(experts, device=device())[:top_k] for _ in range(tokens)])
                rows, ends = noise(tokens * top_k, n_in), group_ends(picked.reshape(-1).sort().values, experts)
                return lambda: torch._grouped_mm(rows, weights, offs=ends)

            us = rate_us(make, operand_bytes=2 * experts * n_in * n_out, most=3, least=2)
            yield {"experts": experts, "top_k": top_k, "tokens": tokens, "n_in": n_in, "n_out": n_out, "us": us}


def warm_us(work: Callable[[], Any]) -> float:
    """One operator again and again on the same operands."""
    return rate_us(lambda _: work, operand_bytes=0)


def measure_memory(tiny: bool) -> Iterator[Document]:
    for size in [1 << n for n in range(20, 33, 2)] if not tiny else [1 << 16]:
        source = torch.ones(size // 2, device=device(), dtype=torch.bfloat16)
        target = torch.empty_like(source)
        yield {"what": "copy", "bytes": 2 * size, "us": warm_us(partial(target.copy_, source))}
        vector = torch.ones(1024, device=device(), dtype=torch.bfloat16)
        yield {"what": "read", "bytes": size, "us": warm_us(partial(torch.mv, source.view(-1, 1024), vector))}
    for rows in (1, 8, 32, 128, 1024, 4096) if not tiny else (4,):
        for hidden in (2048, 4096):
            norm = partial(torch.nn.functional.rms_norm, noise(rows, hidden), (hidden,), noise(hidden))
            yield {"what": "rms_norm", "bytes": 4 * rows * hidden, "rows": rows, "us": warm_us(norm)}
            gate = partial(silu_product, noise(rows, 2 * hidden))
            yield {"what": "silu_product", "bytes": 6 * rows * hidden, "rows": rows, "us": warm_us(gate)}


def measure_launch() -> Iterator[Document]:
    """Starting one small operator: from Python without waiting, and as a node of a graph."""
    x = torch.ones(64, device=device())

    def many() -> None:
        for _ in range(1000):
            x.add_(1)

    many()
    wait()
    start = time.perf_counter()
    many()
    host = (time.perf_counter() - start) * 1e3
    wait()
    node = wall_us(capture(many), runs=5)["min"] / 1000
    empty = wall_us(lambda: x.add_(1), runs=50)["median"]
    yield {"host_us_per_operator": host, "graph_us_per_node": node, "one_operator_and_wait_us": empty}


# --- a lean decoder --------------------------------------------------------------------------------------------------


def noise(*shape: int) -> torch.Tensor:
    return torch.empty(shape, device=device(), dtype=torch.bfloat16).normal_(0, 0.02)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, is_causal: bool) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=is_causal, enable_gqa=q.shape[1] != k.shape[1]
    )


def silu_product(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def group_ends(sorted_experts: torch.Tensor, count: int) -> torch.Tensor:
    """Where each expert's rows end."""
    every = torch.arange(count, device=sorted_experts.device)
    return torch.searchsorted(sorted_experts, every, right=True).to(torch.int32)


class Lean:
    """Weights are noise; the decoder of Llama, and of Qwen3-MoE with its norms on queries and keys left out."""

    def __init__(self, geometry: Document) -> None:
        g = geometry
        self.hidden, self.layers = g["hidden_size"], g["num_hidden_layers"]
        self.heads, self.kv_heads = g["num_attention_heads"], g["num_key_value_heads"]
        self.dim = g.get("head_dim") or self.hidden // self.heads
        self.experts, self.top_k = g.get("num_experts", 0), g.get("num_experts_per_tok", 0)
        wide = (self.heads + 2 * self.kv_heads) * self.dim
        self.embedding = noise(g["vocab_size"], self.hidden)
        self.norm = noise(self.hidden)
        self.blocks = []
        for _ in range(self.layers):
            block = {"qkv": noise(wide, self.hidden), "out": noise(self.hidden, self.heads * self.dim)}
            if self.experts:
                width = g["moe_intermediate_size"]
                block["router"] = noise(self.experts, self.hidden)
                block["up"] = noise(self.experts, 2 * width, self.hidden).transpose(-2, -1)
                block["down"] = noise(self.experts, self.hidden, width).transpose(-2, -1)
            else:
                width = g["intermediate_size"]
                block["up"], block["down"] = noise(2 * width, self.hidden), noise(self.hidden, width)
            self.blocks.append(block)

    def cache(self, batch: int, length: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        shape = (batch, self.kv_heads, length, self.dim)
        return [(noise(*shape), noise(*shape)) for _ in range(self.layers)]

    def forward(self, ids: torch.Tensor, cache: list[tuple[torch.Tensor, torch.Tensor]], turn: Any) -> torch.Tensor:
        """A prompt, or one token behind a full cache: the cache is as long as what is attended to."""
        functional = torch.nn.functional
        batch, new = ids.shape
        x = functional.embedding(ids, self.embedding)
        for block, (keys, values) in zip(self.blocks, cache, strict=True):
            h = functional.rms_norm(x, (self.hidden,), self.norm)
            qkv = functional.linear(h, block["qkv"]).view(batch, new, -1, self.dim)
            q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
            q, k = rotate(q, turn), rotate(k, turn)
            keys[:, :, -new:].copy_(k.transpose(1, 2))
            values[:, :, -new:].copy_(v.transpose(1, 2))
            if new == 1:
                seen = attend(q.view(batch, self.kv_heads, -1, self.dim), keys, values, is_causal=False)
            else:
                seen = attend(q.transpose(1, 2), keys, values, is_causal=True).transpose(1, 2)
            x = x + functional.linear(seen.reshape(batch, new, -1), block["out"])
            h = functional.rms_norm(x, (self.hidden,), self.norm)
            x = x + (self._routed(h, block) if self.experts else self._dense(h, block))
        last = functional.rms_norm(x[:, -1], (self.hidden,), self.norm)
        return functional.linear(last, self.embedding).argmax(-1)

    def _dense(self, h: torch.Tensor, block: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.linear(silu_product(torch.nn.functional.linear(h, block["up"])), block["down"])

    def _routed(self, h: torch.Tensor, block: dict[str, torch.Tensor]) -> torch.Tensor:
        flat = h.reshape(-1, self.hidden)
        scores = torch.nn.functional.linear(flat, block["router"]).float().softmax(-1)
        share, picked = scores.topk(self.top_k, dim=-1)
        experts, order = picked.reshape(-1).sort()
        rows, ends = order // self.top_k, group_ends(experts, self.experts)
        up = silu_product(torch._grouped_mm(flat[rows], block["up"], offs=ends))
        down = torch._grouped_mm(up, block["down"], offs=ends) * share.reshape(-1)[order, None].to(h.dtype)
        return torch.zeros_like(flat).index_add_(0, rows, down).view_as(h)


def rotate(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def measure_graph(geometry: Document, tiny: bool) -> Iterator[Document]:
    model = Lean(geometry)
    for point in points(tiny):
        free()
        with torch.no_grad():
            yield _graph_point(model, geometry, point)


def _graph_point(model: Lean, geometry: Document, point: Document) -> Document:
    new = point["prompt"] or 1
    ids = torch.randint(0, geometry["vocab_size"], (point["batch"], new), device=device())
    cache = model.cache(point["batch"], point["prompt"] or point["context"] + 1)
    turn = (noise(new, 1, model.dim // 2), noise(new, 1, model.dim // 2))
    replay = capture(lambda: model.forward(ids, cache, turn))
    return {**point, "engine": "graph", "wall_us": wall_us(replay, runs=15), "gpu_us": busy_us(replay)}


# --- stock transformers ---------------------------------------------------------------------------------------------


def points(tiny: bool) -> Iterator[Document]:
    for prompt in PROMPTS if not tiny else (16,):
        yield {"phase": "prefill", "batch": 1, "prompt": prompt, "context": 0}
    for context in CONTEXTS if not tiny else (16,):
        for batch in BATCHES if not tiny else (1, 2):
            yield {"phase": "decode", "batch": batch, "prompt": 0, "context": context}


def build_eager(geometry: Document) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**geometry)
    with torch.device(device()):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()


def measure_eager(geometry: Document, tiny: bool) -> Iterator[Document]:
    model = build_eager(geometry)
    for point in points(tiny):
        free()
        with torch.no_grad():
            yield _eager_point(model, geometry, point)


def _eager_point(model: Any, geometry: Document, point: Document) -> Document:
    from transformers import DynamicCache

    heads = geometry["num_key_value_heads"]
    dim = geometry.get("head_dim") or geometry["hidden_size"] // geometry["num_attention_heads"]
    ids = torch.randint(0, geometry["vocab_size"], (point["batch"], point["prompt"] or 1), device=device())
    cache = None
    if not point["prompt"]:
        cache = DynamicCache(config=model.config)
        for layer in range(geometry["num_hidden_layers"]):
            shape = (point["batch"], heads, point["context"], dim)
            cache.update(noise(*shape), noise(*shape), layer)

    def forward() -> Any:
        return model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)

    runs = 12 if point["phase"] == "decode" else 6
    return {**point, "engine": "eager", "wall_us": wall_us(forward, runs=runs), "gpu_us": busy_us(forward)}


# --- all of it -------------------------------------------------------------------------------------------------------


def geometry_of(model: str) -> Document:
    return dict(yaml.safe_load((ROOT / f"conf/model/causal_lm/arch/{model}.yaml").read_text())["geometry"])


def describe() -> Document:
    import transformers

    found = {"torch": torch.__version__, "transformers": transformers.__version__, "device": "cpu"}
    if on_gpu():
        p = torch.cuda.get_device_properties(0)
        found |= {
            "device": p.name,
            "memory_bytes": p.total_memory,
            "l2_bytes": p.L2_cache_size,
            "sms": p.multi_processor_count,
        }
        found["cuda"] = str(torch.version.cuda)
    return found


def parts(tiny: bool) -> list[tuple[str, Callable[[], Iterator[Document]]]]:
    """The grid first: without it the rest is worth little."""
    found: list[tuple[str, Callable[[], Iterator[Document]]]] = [("launch", measure_launch)]
    for name in TINY_MODELS if tiny else MODELS:
        g = geometry_of(name)
        found.append((f"grid.{name}.graph", partial(measure_graph, g, tiny)))
        found.append((f"grid.{name}.eager", partial(measure_eager, g, tiny)))
    found += [
        ("memory", lambda: measure_memory(tiny)),
        ("attention", lambda: measure_attention(tiny)),
        ("grouped", lambda: measure_grouped(tiny)),
        ("products", lambda: measure_products(tiny)),
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="small sizes: shows that everything runs")
    parser.add_argument("--only", default="", help="parts whose name contains this")
    asked = parser.parse_args()
    torch.manual_seed(0)
    document: Document = {"schema_version": 1, "machine": describe(), "seconds": {}, "errors": {}}
    for name, work in parts(asked.tiny):
        if asked.only not in name:
            continue
        start = time.perf_counter()
        document[name] = rows = []
        try:
            for row in work():
                rows.append(row)
        except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError) as error:
            document["errors"][name] = f"{type(error).__name__}: {error}"[:500]
        free()
        document["seconds"][name] = round(time.perf_counter() - start, 1)
        print(f"{name}: {document['seconds'][name]} s {document['errors'].get(name, '')}", flush=True)
        asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

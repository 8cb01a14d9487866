"""What people deploy, measured on a GPU: our own loop compiled and captured, and programs of others through `run`.

    python benchmarks/deploy_gpu.py [--out FILE] [--seconds 330] [--only graph|loop|fp8|equality|jax] [--tiny]

On one GPU, in at most --seconds: llama3_1b with random weights and a prompt of 1,024 tokens at batch 1, 8 and 32, eager
with a growing cache, `infer.cache=static infer.compile=reduce-overhead`, and `infer.cuda_graph=true`; whether the
tokens of each are those of eager mode; a program that replays a CUDA graph of its own through `llm-perf run`, with
its waterfall; weights in fp8; and a JAX program, with the verdicts it gets. One JSON is written after every part; a
part that fails or that there is no time for says so in it and does not end the others. --tiny: the smallest model, also
without a GPU.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROMPT, NEW_TOKENS = 1024, 48
TOKENS_CHECKED = 24
VARIANTS = {
    "eager": [],
    "reduce-overhead": ["infer.cache=static", "infer.compile=reduce-overhead"],
    "cuda_graph": ["infer.cache=static", "infer.cuda_graph=true"],
}
FP8 = {
    "eager-fp8": ["model.quantization=fp8"],
    "reduce-overhead-fp8": [*VARIANTS["reduce-overhead"], "model.quantization=fp8"],
}
PARTS = ("graph", "loop", "fp8", "equality", "jax")
GRAPH_PROGRAM = """
import torch
import llm_perf_opt as perf

LAYERS, WIDTH, HIDDEN, VOCABULARY, BATCH, STEPS, PROMPT = 16, 2048, 8192, 128256, 1, 200, 1024
torch.manual_seed(0)
device, kind = "cuda", torch.bfloat16


def matrix(*shape):
    return torch.randn(*shape, device=device, dtype=kind) * 0.02


weights = [(matrix(WIDTH, WIDTH + 1024), matrix(WIDTH, WIDTH), matrix(WIDTH, 2 * HIDDEN), matrix(HIDDEN, WIDTH))
           for _ in range(LAYERS)]
head = matrix(WIDTH, VOCABULARY)
cache = [torch.zeros(BATCH, 8, PROMPT + STEPS + 8, 64, device=device, dtype=kind) for _ in range(2 * LAYERS)]
hidden = torch.zeros(BATCH, WIDTH, device=device, dtype=kind)


def step(x):
    for number, (qkv, out, gate_up, down) in enumerate(weights):
        y = torch.nn.functional.rms_norm(x, (WIDTH,)) @ qkv
        query = y[:, :WIDTH].reshape(BATCH, 32, 1, 64)
        keys, values = (c.repeat_interleave(4, dim=1) for c in cache[2 * number : 2 * number + 2])
        a = torch.nn.functional.scaled_dot_product_attention(query, keys, values).reshape(BATCH, WIDTH)
        x = x + a @ out
        gate, up = (torch.nn.functional.rms_norm(x, (WIDTH,)) @ gate_up).chunk(2, dim=-1)
        x = x + (torch.nn.functional.silu(gate) * up) @ down
    return (x @ head).argmax(dim=-1)


with torch.no_grad():
    with perf.mark_warmup():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(hidden)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            token = step(hidden)
        for _ in range(5):
            graph.replay()
    for _ in range(STEPS):
        with perf.phase("decode_step", tokens=BATCH):
            graph.replay()
print("last token", int(token[0]))
"""
PLAIN_PROGRAM = """
import torch
import llm_perf_opt as perf

weight, x = torch.randn(256, 256), torch.randn(1, 256)
for _ in range(40):
    with perf.phase("decode_step", tokens=1):
        x = torch.tanh(x @ weight)
"""
JAX_PROGRAM = """
import jax
import jax.numpy as jnp

key = jax.random.PRNGKey(0)
weights = [jax.random.normal(key, (4096, 4096), dtype=jnp.bfloat16) for _ in range(8)]


@jax.jit
def decode_step(x, weights):
    for w in weights:
        x = jax.nn.relu(x @ w) * 0.01
    return x


x = jnp.ones((8, 4096), dtype=jnp.bfloat16)
for _ in range(300):
    x = decode_step(x, weights)
x.block_until_ready()
print("done", x.shape)
"""


def profile(folder: Path, *overrides: str, timeout_s: float) -> tuple[int, str]:
    """One run of llm-perf in its own process; exit code and what it printed last."""
    argv = [sys.executable, "-m", "llm_perf_opt.cli", *overrides]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, cwd=folder, check=False)
    return done.returncode, (done.stdout + done.stderr)[-1500:]


def own_loop(folder: Path, model: str, batch: int, name: str, variant: list[str], timeout_s: float) -> dict[str, Any]:
    """The clean pass of one deployment: times, compile time, notes and the tokens of every sequence."""
    run_dir = folder / f"{name}-{batch}"
    code, tail = profile(
        folder,
        *(
            "infer",
            f"model={model}",
            "model.weights=random",
            f"infer.batch={batch}",
            f"infer.max_new_tokens={NEW_TOKENS}",
        ),
        *("infer.ignore_eos=true", f"dataset.prompt_tokens={PROMPT}", f"dataset.num_samples={batch}", "run.repeats=2"),
        *variant,
        f"artifacts.runs_dir={run_dir}",
        timeout_s=timeout_s,
    )
    path = run_dir / "direct_inference" / "metrics.json"
    if code != 0 or not path.is_file():
        return {"failed": tail}
    document = json.loads(path.read_bytes())
    metrics = document["clean"]["metrics"]
    lines = (run_dir / "direct_inference" / "pred" / "predictions.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "step_ms": metrics["tpot_ms"]["p50"],
        "itl_p50_ms": metrics["itl_ms"]["p50"],
        "itl_p99_ms": metrics["itl_ms"]["p99"],
        "tokens_per_s": metrics["decode_tokens_per_s"]["p50"],
        "prefill_ms": metrics["prefill_ms"]["p50"],
        "deployment": document["deployment"],
        "peak_memory_bytes": document["clean"]["peak_memory_bytes"],
        "notes": [*document["notes"], *document["model"]["notes"]],
        "tokens": {(row := json.loads(line))["sample"]: row["text_raw"] for line in lines},
    }


def shared_prefix(one: str, other: str) -> int:
    """How many tokens two texts of token ids have in common at their start."""
    pairs = zip(one.split(), other.split(), strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.split()), len(other.split())))


def compare_tokens(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Tokens of each variant against eager at the same batch (bfloat16: near-equal scores may fall either way)."""
    result = {}
    for name, entry in found.items():
        variant, _, batch = name.rpartition("-")
        base = found.get(f"eager-{batch}", {})
        if variant == "eager" or "tokens" not in entry or "tokens" not in base:
            continue
        lengths = [shared_prefix(base["tokens"][s], text) for s, text in entry["tokens"].items()]
        result[name] = {"sequences": len(lengths), "same_first_tokens_min": min(lengths), "of": NEW_TOKENS}
    return result


def float32_equality(folder: Path, timeout_s: float) -> dict[str, Any]:
    """In float32 on the small preset every variant must give the very same tokens."""
    texts: dict[str, Any] = {}
    for name, overrides in {
        "alone": ["infer.batch=1"],
        **{v: ["infer.batch=4", *o] for v, o in VARIANTS.items()},
    }.items():
        run_dir = folder / f"tiny-{name}"
        code, tail = profile(
            folder,
            *("infer", "model=llama_tiny", "model.dtype=float32", "infer.ignore_eos=true"),
            *(f"infer.max_new_tokens={TOKENS_CHECKED}", "dataset.prompt_tokens=96", "run.repeats=1", *overrides),
            f"artifacts.runs_dir={run_dir}",
            timeout_s=timeout_s,
        )
        path = run_dir / "direct_inference" / "pred" / "predictions.jsonl"
        if code != 0:
            texts[name] = {"failed": tail}
            continue
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        texts[name] = {row["sample"]: row["text_raw"] for row in rows}
    return {name: text if "failed" in text else text == texts["alone"] for name, text in texts.items()}


def foreign(folder: Path, name: str, source: str, *overrides: str, timeout_s: float) -> dict[str, Any]:
    """A program through `llm-perf run`: stages, figures, findings and the waterfall of decode."""
    script = folder / f"{name}.py"
    script.write_text(source, encoding="utf-8")
    run_dir = folder / f"run-{name}"
    code, tail = profile(
        folder,
        "run",
        f"artifacts.runs_dir={run_dir}",
        *overrides,
        "--",
        sys.executable,
        str(script),
        timeout_s=timeout_s,
    )
    if not (run_dir / "manifest.json").is_file():
        return {"exit_code": code, "failed": tail}
    manifest = json.loads((run_dir / "manifest.json").read_bytes())
    report = run_dir / "report.md"
    text = report.read_text(encoding="utf-8") if report.is_file() else ""
    return {
        "exit_code": code,
        "stages": {s["name"]: [s["status"], s["reason"], s["duration_s"]] for s in manifest["stages"]},
        "metrics": {
            key: metric["value"]
            for stage in manifest["stages"]
            for key, metric in stage["metrics"].items()
            if key in ("tpot_ms", "wall_ms", "bound_decode_ms", "gpu_busy_fraction", "kernel_count")
        },
        "notes": [note for stage in manifest["stages"] for note in stage["notes"]][:40],
        "report_md": text[:6000],
        "tail": tail[-600:],
    }


def describe_host() -> dict[str, Any]:
    import torch
    import transformers

    return {
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": sys.version.split()[0],
        "nsys": shutil.which("nsys"),
        "ncu": shutil.which("ncu"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="What people deploy, on one GPU")
    parser.add_argument("--out", type=Path, default=Path("deploy_gpu.json"))
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--only", choices=PARTS, help="one part instead of all")
    parser.add_argument("--tiny", action="store_true", help="a smoke test with the smallest model, also without a GPU")
    args = parser.parse_args()
    model = "llama_tiny" if args.tiny else "llama3_1b"
    out = args.out.resolve()
    started = time.monotonic()
    wanted = PARTS if args.only is None else (args.only,)
    result: dict[str, Any] = {"host": describe_host()}
    tokens: dict[str, dict[str, Any]] = {}

    def attempt(group: str, key: str, work: Callable[[float], Any]) -> None:
        left_s = args.seconds - (time.monotonic() - started)
        begun = time.monotonic()
        try:
            found = work(left_s) if left_s > 15 else {"failed": "no time left"}
        except (subprocess.TimeoutExpired, OSError, ValueError, KeyError) as error:
            found = {"failed": f"{type(error).__name__}: {error}"[:600]}
        tokens[key] = dict(found)
        found.pop("tokens", None)
        print(f"{key}: {time.monotonic() - begun:.0f} s, {found.get('failed', 'measured')}", flush=True)
        result.setdefault(group, {})[key] = found
        result["tokens_against_eager"] = compare_tokens(tokens)
        result["seconds"] = round(time.monotonic() - started, 1)
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="deploy-") as scratch:
        folder = Path(scratch)
        alone = "pipeline.ncu.enable=false"
        if "graph" in wanted:
            program = GRAPH_PROGRAM if not args.tiny else PLAIN_PROGRAM
            words = [f"model={model}", "hardware=auto", "workload.prompt=1024", alone]
            attempt("programs", "graph", lambda s: foreign(folder, "graph", program, *words, timeout_s=s))
        if "jax" in wanted:
            attempt("programs", "jax", lambda s: foreign(folder, "jax_program", JAX_PROGRAM, alone, timeout_s=s))
        if "fp8" in wanted:
            for name, words in FP8.items():
                attempt("own_loop", f"{name}-1", lambda s, n=name, w=words: own_loop(folder, model, 1, n, w, s))
        if "loop" in wanted:
            # What people ask for first, in case there is no time for the rest.
            order = [(b, v) for b in (1, 8, 32) for v in ("reduce-overhead", "eager")]
            for batch, name in [*order, *((b, "cuda_graph") for b in (1, 8, 32))]:
                attempt(
                    "own_loop",
                    f"{name}-{batch}",
                    lambda s, b=batch, n=name: own_loop(folder, model, b, n, VARIANTS[n], s),
                )
        if "equality" in wanted:
            attempt("float32", "equality", lambda s: float32_equality(folder, s))
    entries = {key: found for key, found in tokens.items() if "failed" in found or found.get("exit_code")}
    print(f"written: {out}; failed: {', '.join(entries) or 'nothing'}")
    return 1 if entries else 0


if __name__ == "__main__":
    sys.exit(main())

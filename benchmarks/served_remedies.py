"""What the advice about a served window gives: `transformers serve` with defaults, and with each fix, under one load.

    python benchmarks/served_remedies.py [--device cuda:0] [--tiny] [--out benchmarks/results/served_gpu.json]

Each server is started again, warmed up and loaded by `llm-perf bench`. On a GPU the time of attention over a length
that was not met before is measured too, with cuDNN and without it. --tiny: the smallest model on the CPU, to see that
all of it runs.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Arguments and environment of each server.
CASES: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "defaults": ((), {}),
    "TORCH_CUDNN_SDPA_AVOID_RECOMPILE=1": ((), {"TORCH_CUDNN_SDPA_AVOID_RECOMPILE": "1"}),
    "--cb-use-cuda-graph": (("--cb-use-cuda-graph",), {}),
}
NEW_LENGTHS = """
import json, sys, time, torch
torch.backends.cuda.enable_cudnn_sdp(sys.argv[1] == "cudnn")
query, took = torch.randn(1, 32, 1, 64, device="cuda", dtype=torch.bfloat16), []
for length in range(400, 420):
    keys = torch.randn(1, 32, length, 64, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    torch.nn.functional.scaled_dot_product_attention(query, keys, keys)
    torch.cuda.synchronize()
    took.append(1e3 * (time.perf_counter() - begun))
print(json.dumps(sorted(took[1:])[len(took) // 2]))
"""


def load(model: Path, device: str, case: str, folder: Path) -> dict[str, Any]:
    args, env = CASES[case]
    words = [str(model), "--device", device, "--dtype", "bfloat16", "--continuous-batching", *args]
    command = [
        *(sys.executable, "-m", "llm_perf_opt.cli", "bench", "server=transformers"),
        f"server.args=[{','.join(words)}]",
        *(f"+server.env.{name}='{value}'" for name, value in env.items()),
        *("load.concurrency=16", "load.requests=96", "load.duration_s=20", "load.drain_s=10", "load.output_tokens=32"),
        *("dataset.prompt_tokens=256", f"artifacts.runs_dir={folder}"),
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=200)
    (level,) = json.loads((folder / "bench" / "bench.json").read_bytes())["levels"]
    times = {key: level["latencies"][key] for key in ("ttft", "tpot")}
    return {
        "output_tokens_per_s": level["output_tokens_per_s"],
        "completed": level["completed"],
        **{f"{key}_ms": {"median": one["median_ms"], "p99": one["p99_ms"]} for key, one in times.items()},
    }


def new_length_ms(backend: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", NEW_LENGTHS, backend], check=True, capture_output=True, stdin=subprocess.DEVNULL
    )
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description="What advice about a served window gives")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    device = "cpu" if args.tiny else args.device
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "served"
        make = [sys.executable, str(HERE / "served_model.py"), str(model), "--device", device.partition(":")[0]]
        subprocess.run([*make, *(["--tiny"] if args.tiny else [])], check=True)
        cases = [case for case in CASES if not (args.tiny and "graph" in case)]
        found: dict[str, Any] = {
            "served": {case: load(model, device, case, Path(scratch) / str(n)) for n, case in enumerate(cases)}
        }
    if device != "cpu":
        found["attention over a new length, ms"] = {
            "cuDNN": new_length_ms("cudnn"),
            "another backend": new_length_ms("other"),
        }
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Energy and memory of real presets on a GPU, what the two stages cost, and one rank through torchrun.

    python benchmarks/energy_memory_gpu.py [--only energy|memory|overhead|rank] [--seconds 285] [--out FILE]

energy: joules per token of llama3_1b, eager and `infer.compile=reduce-overhead`, with the check of the counter against
the integral of the power. memory: predicted against measured memory of llama3_1b, llama3_8b and deepseek_v2_lite side
by side (nothing is timed), and whether PyTorch's memory viewer reads the snapshots. overhead: the slowdown of both
stages on llama3_1b (`stage_overhead.py`; prompts of 8,192 tokens, 16 new ones). rank: llama3_1b as one rank of
torchrun, with NCCL. Random weights; elsewhere a prompt of 1,024 tokens and 128 new ones. The JSON is written after each
part and keeps parts of earlier calls; a part that fails, or that there is no time for, says so in it and does not end
the others.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stage_overhead import measure

SHAPE = [
    "model.weights=random",
    "dataset=synthetic",
    "dataset.prompt_tokens=1024",
    "dataset.num_samples=1",
    "infer.max_new_tokens=128",
    "infer.ignore_eos=true",
]
WITHOUT = ["pipeline.static_analysis.enable=false", "pipeline.torch_profiler.enable=false"]
VARIANTS = {"eager": [], "reduce-overhead": ["infer.cache=static", "infer.compile=reduce-overhead"]}
PARTS = ("energy", "memory", "overhead", "rank")
VIEW = """
import pickle, sys
from torch.cuda import _memory_viz
with open(sys.argv[1], "rb") as file:
    snapshot = pickle.load(file)
page = _memory_viz.trace_plot(snapshot)
entries = sum(len(trace) for trace in snapshot["device_traces"])
print(f"trace_plot: a page of {len(page)} bytes from {len(snapshot['segments'])} segments and {entries} entries")
"""
MODELS = ("llama3_1b", "llama3_8b", "deepseek_v2_lite")


def profile(folder: Path, name: str, overrides: list[str], timeout_s: float) -> tuple[Path, dict[str, Any] | None, str]:
    """One run of llm-perf; its directory, the manifest if there is one, and what it printed last."""
    run_dir = folder / name
    argv = [sys.executable, "-m", "llm_perf_opt.cli", "profile", *SHAPE, *overrides, f"artifacts.runs_dir={run_dir}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, cwd=folder, check=False)
    path = run_dir / "manifest.json"
    manifest = json.loads(path.read_bytes()) if path.is_file() else None
    return run_dir, manifest, (done.stdout + done.stderr)[-1500:]


def stage_of(manifest: dict[str, Any] | None, name: str) -> dict[str, Any]:
    return next((s for s in (manifest or {}).get("stages", ()) if s["name"] == name), {})


def energy(folder: Path, model: str, variant: str, timeout_s: float) -> dict[str, Any]:
    """Joules of one deployment, with everything the stage knows of its meter."""
    overrides = [f"model={model}", *WITHOUT, *VARIANTS[variant], "pipeline.energy.enable=true"]
    run_dir, manifest, tail = profile(
        folder, f"energy-{variant}", [*overrides, "pipeline.energy.repeats=16"], timeout_s
    )
    stage = stage_of(manifest, "energy")
    if stage.get("status") != "ok":
        return {"failed": stage.get("reason") or tail}
    document = json.loads((run_dir / "energy" / "energy.json").read_bytes())
    metrics = json.loads((run_dir / "tmp" / "workload" / "energy" / "metrics.json").read_bytes())["clean"]["metrics"]
    return {
        "metrics": {n: {k: m[k] for k in ("value", "unit", "how", "reason")} for n, m in stage["metrics"].items()},
        "phases": document["total"],
        "device": {k: v for k, v in document["devices"][0].items() if k != "phases"},
        "warnings": document["warnings"],
        "ttft_ms": metrics["ttft_ms"]["p50"],
        "tpot_ms": metrics["tpot_ms"]["p50"],
        "seconds": stage["duration_s"],
    }


def memory(folder: Path, model: str, timeout_s: float) -> dict[str, Any]:
    """Predicted against measured memory of one model, and its peak."""
    overrides = [f"model={model}", "pipeline.torch_profiler.enable=false", "pipeline.memory.enable=true"]
    overrides.append("infer.max_new_tokens=32")
    run_dir, manifest, tail = profile(folder, f"memory-{model}", overrides, timeout_s)
    stage = stage_of(manifest, "memory")
    path = run_dir / "memory" / "memory.json"
    if stage.get("status") != "ok" or not path.is_file():
        return {"failed": stage.get("reason") or tail, "static": stage_of(manifest, "static_analysis").get("reason")}
    document = json.loads(path.read_bytes())
    predicted = json.loads((run_dir / "static_analysis" / "static.json").read_bytes())["memory"]
    peak = document["peak"]
    snapshot = run_dir / "memory" / "snapshot.pickle"
    # In its own process: a pickle can run code.
    argv = [sys.executable, "-c", VIEW, str(snapshot)]
    viewed = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False)
    return {
        "metrics": {name: metric["value"] for name, metric in stage["metrics"].items()},
        "predicted": predicted,
        "peak": {**peak, "stack": peak["stack"][:12], "sites": peak["sites"][:8]},
        "timeline_peak_bytes": peak["total_bytes"],
        "torch_peak_bytes": document["measured_peak_bytes"],
        "used_before_bytes": document["used_before_bytes"],
        "device_used_last_bytes": document["device_used"][-1][1] if document["device_used"] else None,
        "viewer": viewed.stdout.strip() or viewed.stderr[-500:],
        "snapshot_bytes": snapshot.stat().st_size if snapshot.is_file() else None,
        "notes": document["notes"],
        "seconds": stage["duration_s"],
    }


def rank(folder: Path, model: str, timeout_s: float) -> dict[str, Any]:
    """One rank through torchrun, its process group formed with NCCL."""
    overrides = [f"model={model}", *WITHOUT, "run.ranks=1", "pipeline.direct_inference.enable=true"]
    run_dir, manifest, tail = profile(folder, "rank", overrides, timeout_s)
    stage = stage_of(manifest, "direct_inference")
    if stage.get("status") != "ok":
        return {"failed": stage.get("reason") or tail}
    log = (run_dir / "direct_inference" / "log.txt").read_text(encoding="utf-8", errors="replace")
    return {
        "command": stage["commands"][0]["argv"][:12],
        "group": [line for line in log.splitlines() if "in one group through" in line],
        "metrics": {name: metric["value"] for name, metric in stage["metrics"].items() if "pot_ms" in name},
        "seconds": stage["duration_s"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "energy_memory_gpu.json")
    parser.add_argument("--seconds", type=float, default=285.0)
    parser.add_argument("--only", choices=PARTS, help="one part instead of all")
    parser.add_argument("--tiny", action="store_true", help="a smoke test with the smallest model, also without a GPU")
    args = parser.parse_args()
    small, models = ("llama_tiny", ("llama_tiny",)) if args.tiny else ("llama3_1b", MODELS)
    begun = time.monotonic()
    result: dict[str, Any] = json.loads(args.out.read_bytes()) if args.out.is_file() else {}
    wanted = PARTS if args.only is None else (args.only,)
    lock = threading.Lock()

    def left() -> float:
        return args.seconds - (time.monotonic() - begun)

    def part(group: str, name: str, work: Callable[[float], Any], needs_s: float = 20.0) -> None:
        start = time.monotonic()
        if left() < needs_s:
            found: Any = {"failed": f"no time left: {left():.0f} s"}
        else:
            try:
                found = work(left())
            except Exception:  # noqa: BLE001 - one part must not end the others; what went wrong is in the file
                found = {"failed": traceback.format_exc()[-1500:]}
        print(f"{name}: {time.monotonic() - start:.0f} s, {json.dumps(found)[:300]}", file=sys.stderr, flush=True)
        with lock:
            result.setdefault(group, {})[name] = found
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    with tempfile.TemporaryDirectory(prefix="energy-memory-") as scratch:
        folder = Path(scratch)
        if "energy" in wanted:
            for variant in VARIANTS:
                part("energy", variant, lambda s, v=variant: energy(folder, small, v, s))  # type: ignore[misc]
        if "memory" in wanted:
            with ThreadPoolExecutor(max_workers=len(models)) as pool:
                for model in models:
                    pool.submit(part, "memory", model, lambda s, m=model: memory(folder, m, s))  # type: ignore[misc]
        if "overhead" in wanted:
            # A prompt long enough to keep the GPU busy, and steps that wait for the host: both are inspected.
            shape = ["dataset.prompt_tokens=8192", "infer.max_new_tokens=16"]
            shape = shape if not args.tiny else ["infer.max_new_tokens=16"]
            part("overhead", small, lambda s: measure(small, requests=120, seconds=s, overrides=shape, block_s=1.0), 45)
        if "rank" in wanted:
            part("rank", small, lambda s: rank(folder, small, s))
    failed = [name for group in wanted for name, found in result.get(group, {}).items() if "failed" in found]
    print(f"{time.monotonic() - begun:.0f} s; failed: {', '.join(failed) or 'nothing'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

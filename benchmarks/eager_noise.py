"""Why eager decoding takes 9 ms a token in one run and 16 in the next: what the launching thread did in every step.

    python benchmarks/eager_noise.py [--steps 400] [--rounds 3] [--out benchmarks/results/eager_noise.json]

Decodes with random weights in the shapes of Llama 3.2 1B, on one GPU, with the growing cache and without a profiler, in
rounds: as started, pinned to one core, with allocator segments that grow, alongside busy processes on every core. For
each step it keeps the wall time, the processor time of the launching thread, its involuntary context switches, the core
it was on and the GPU's SM clock. Wall time that grows with processor time means slower cores (clock, a busy sibling);
wall time that grows without it means that the thread had to wait for a core.
"""

import argparse
import ctypes
import json
import multiprocessing
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "eager_noise.json"
PROMPT = 1024
WARMUP_STEPS = 8


def spin() -> None:
    while True:
        sum(range(10_000))


def build() -> Any:
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        vocab_size=128256,
        tie_word_embeddings=True,
        max_position_embeddings=8192,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa").eval()


class SmClock:
    def __init__(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            self._read = lambda: pynvml.nvmlDeviceGetClockInfo(pynvml.nvmlDeviceGetHandleByIndex(0), 1)
            self._read()
        except Exception as error:  # noqa: BLE001 - without clocks the rest is still worth having
            print(f"no clocks: {error}")
            self._read = lambda: 0

    def mhz(self) -> int:
        return int(self._read())


def steps_of(model: Any, steps: int, clock: SmClock) -> list[dict[str, float]]:
    import torch

    getcpu = ctypes.CDLL(None).sched_getcpu
    ids = torch.randint(0, 128000, (1, PROMPT), device="cuda")
    rows = []
    with torch.inference_mode():
        out = model(ids, use_cache=True)
        token, cache = out.logits[:, -1:].argmax(-1), out.past_key_values
        torch.cuda.synchronize()
        for number in range(WARMUP_STEPS + steps):
            switches = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
            wall, own = time.perf_counter_ns(), time.thread_time_ns()
            out = model(token, past_key_values=cache, use_cache=True)
            token = out.logits[:, -1:].argmax(-1)
            launched = time.perf_counter_ns()
            torch.cuda.synchronize()
            done = time.perf_counter_ns()
            own = time.thread_time_ns() - own
            if number >= WARMUP_STEPS:
                rows.append(
                    {
                        "wall_ms": (done - wall) / 1e6,
                        "launch_ms": (launched - wall) / 1e6,
                        "thread_cpu_ms": own / 1e6,
                        "involuntary": resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - switches,
                        "core": getcpu(),
                        "sm_mhz": clock.mhz() if number % 16 == 0 else 0,
                    }
                )
    return rows


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    wall = sorted(r["wall_ms"] for r in rows)
    slow = [r for r in rows if r["wall_ms"] > 1.25 * wall[len(wall) // 10]]
    fast = [r for r in rows if r not in slow]

    def median(part: list[dict[str, float]], key: str) -> float | None:
        return round(statistics.median(r[key] for r in part), 3) if part else None

    keys = ("wall_ms", "launch_ms", "thread_cpu_ms")
    return {
        "steps": len(rows),
        "p10_ms": round(wall[len(wall) // 10], 3),
        "p50_ms": round(statistics.median(wall), 3),
        "p90_ms": round(wall[len(wall) * 9 // 10], 3),
        "slow_share": round(len(slow) / len(rows), 3),
        "fast": {key: median(fast, key) for key in keys},
        "slow": {key: median(slow, key) for key in keys},
        "cpu_share_of_wall": round(sum(r["thread_cpu_ms"] for r in rows) / sum(wall), 3),
        "involuntary_switches": sum(r["involuntary"] for r in rows),
        "cores": len({r["core"] for r in rows}),
        "sm_mhz": sorted({int(r["sm_mhz"]) for r in rows if r["sm_mhz"]}),
        "wall_ms": [round(r["wall_ms"], 3) for r in rows],
        "thread_cpu_ms": [round(r["thread_cpu_ms"], 3) for r in rows],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Why eager decoding varies")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    import torch

    model, clock = build(), SmClock()
    found: dict[str, list[Any]] = {"as started": [], "one core": [], "busy neighbours": []}
    everywhere = os.sched_getaffinity(0)
    loads = []
    for _ in range(args.rounds):
        found["as started"].append(summary(steps_of(model, args.steps, clock)))
        os.sched_setaffinity(0, {max(everywhere)})
        found["one core"].append(summary(steps_of(model, args.steps, clock)))
        os.sched_setaffinity(0, everywhere)
        others = [multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in everywhere]
        for other in others:
            other.start()
        time.sleep(1.5)
        found["busy neighbours"].append(summary(steps_of(model, args.steps, clock)))
        for other in others:
            other.terminate()
            other.join()
        loads.append(os.getloadavg())
    result = {
        "gpu": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "cores": len(everywhere),
        "load_average": loads,
        "rounds": found,
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, rounds in found.items():
        for r in rounds:
            print(
                f"{name}: p10 {r['p10_ms']} p50 {r['p50_ms']} p90 {r['p90_ms']} ms; "
                f"thread {100 * r['cpu_share_of_wall']:.0f} % of wall; "
                f"slow {100 * r['slow_share']:.0f} %: {r['fast']} {r['slow']}; switches {r['involuntary_switches']}; "
                f"cores {r['cores']}; SM {r['sm_mhz']}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())

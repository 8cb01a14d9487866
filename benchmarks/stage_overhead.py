"""What the stages energy and memory cost the workload they look at.

    python benchmarks/stage_overhead.py [--out stage_overhead.json] [--model llama_tiny] [--rounds 3] [--seconds 110]

Three arms in turns, each a process of its own: the workload alone, with every meter read beside it as the stage energy
does, and with the watcher of the stage memory inside it. The order changes from round to round. Told are the medians
over rounds of TTFT and TPOT and their ratio to those of the workload alone.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_perf_opt import StageContext, WorkloadRun, run_workload
from llm_perf_opt.core.names import CLEAN_PASS_ORDER
from llm_perf_opt.core.redact import Redactor
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.pipeline.console import PlainConsole
from llm_perf_opt.pipeline.run import stage_context
from llm_perf_opt.plugins.energy.meters import metering
from llm_perf_opt.plugins.energy.stage import EnergyConfig
from llm_perf_opt.plugins.memory.stage import WATCHER, MemoryConfig
from llm_perf_opt.profiling.artifacts import Artifacts
from llm_perf_opt.profiling.vendor.tools import probe_host

METRICS = ("ttft_ms", "tpot_ms")


def alone(ctx: StageContext, timeout_s: float) -> WorkloadRun:
    return run_workload(ctx, timeout_s=timeout_s)


def with_meters(ctx: StageContext, timeout_s: float) -> WorkloadRun:
    with metering(ctx, interval_s=EnergyConfig().interval_ms / 1e3) as found:
        work = run_workload(ctx, timeout_s=timeout_s)
    print("  meters:", [(m.device, len(m.readings)) for m in found] or "none on this machine", file=sys.stderr)
    return work


def with_watcher(ctx: StageContext, timeout_s: float) -> WorkloadRun:
    cfg = MemoryConfig()
    settings = {
        "max_entries": cfg.max_entries,
        "interval_ms": cfg.interval_ms,
        "max_decode_steps": 0,
        "used_before_bytes": None,
    }
    return run_workload(ctx, timeout_s=timeout_s, watcher=WATCHER, settings=settings)


ARMS: dict[str, Callable[[StageContext, float], WorkloadRun]] = {
    "alone": alone,
    "energy": with_meters,
    "memory": with_watcher,
}


def measure(model: str, *, rounds: int, seconds: float, overrides: tuple[str, ...] = ()) -> dict[str, Any]:
    """All rounds there is time for; at least one."""
    begun = time.monotonic()
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ARMS}
    longest = 0.0
    with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
        folder = Path(scratch)
        words = [f"model={model}", "model.weights=random", "dataset=synthetic", "dataset.num_samples=1"]
        fixed = ["infer.ignore_eos=true", "run.repeats=3", f"artifacts.runs_dir={folder}"]
        config = type_config(compose_config([*words, *fixed, *overrides]), user_dir=folder)
        host = probe_host(env=os.environ, disk=folder)
        for number in range(rounds):
            if number and seconds - (time.monotonic() - begun) < longest:
                break
            start = time.monotonic()
            names = list(ARMS)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                ctx = stage_context(
                    name,
                    config=config,
                    host=host,
                    artifacts=Artifacts.for_run(folder / f"round-{number}"),
                    environ=os.environ,
                    console=PlainConsole(),
                    earlier={},
                    clean_stages=CLEAN_PASS_ORDER,
                    records=[],
                    program_failures={},
                    redactor=Redactor(),
                )
                work = ARMS[name](ctx, seconds)
                values = {key: float(work.metrics[key].value or 0.0) for key in METRICS}
                found[name].append(values)
                print(f"round {number + 1} {name}: {values}", file=sys.stderr)
            longest = max(longest, time.monotonic() - start)
    medians = {n: {k: statistics.median(v[k] for v in rows) for k in METRICS} for n, rows in found.items()}
    return {
        "model": model,
        "overrides": list(overrides),
        "rounds": len(found["alone"]),
        "interval_ms": EnergyConfig().interval_ms,
        "rows": found,
        "medians": medians,
        "slowdown": {
            name: {key: medians[name][key] / medians["alone"][key] for key in METRICS}
            for name in ARMS
            if name != "alone"
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "stage_overhead.json")
    parser.add_argument("--model", default="llama_tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=110.0)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    with contextlib.chdir(tempfile.gettempdir()):
        result = measure(args.model, rounds=args.rounds, seconds=args.seconds, overrides=tuple(args.overrides))
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["slowdown"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

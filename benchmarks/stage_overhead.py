"""What the stages energy and memory cost the workload they look at.

    python benchmarks/stage_overhead.py [--out stage_overhead.json] [--model llama_tiny] [--requests 60] [OVERRIDE ...]

One process of the workload for each stage, in which what the stage does is switched on and off many times: alongside it
every meter is read for a block of `--block-s` and then is not, as the stage energy reads them; inside it the watcher of
the stage memory records every second request. So both arms see the same process, the same clocks and the same
neighbours. Blocks (requests) are compared with the next one; the result is the mean ratio of a decode step and of a
prefill with its 95 % interval. Requests that lie across a switch are left out.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from llm_perf_opt.core.names import CLEAN_PASS_ORDER
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.pipeline.console import PlainConsole
from llm_perf_opt.pipeline.run import stage_context
from llm_perf_opt.plugin import StageContext, StepOutput, WorkloadSpan, run_workload
from llm_perf_opt.plugins.energy.meters import metering
from llm_perf_opt.plugins.energy.stage import EnergyConfig
from llm_perf_opt.plugins.memory import cuda
from llm_perf_opt.plugins.memory.stage import MemoryConfig
from llm_perf_opt.plugins.memory.watcher import MemoryWatcher
from llm_perf_opt.profiling.artifacts import Artifacts
from llm_perf_opt.profiling.vendor.vendor_tools import probe_host
from llm_perf_opt.system.redact import Redactor

PHASES = ("prefill", "decode")
# Starting and ending the readers of meters takes a moment that is neither the one arm nor the other.
EDGE_NS = 100_000_000
BLOCK_S = 2.0


class SwitchedWatcher(MemoryWatcher):
    """The watcher of the stage memory, at work in every second request: on, off, off, on, …"""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        super().__init__(folder, settings)
        self._requests = 0
        self._is_on = True

    def ended(self, name: str) -> None:
        super().ended(name)
        if name == "decode":
            self._requests += 1
            self._is_on = self._requests % 4 in (0, 3)
            self._switch()

    def stepped(self, step: StepOutput) -> None:
        if self._is_on:
            super().stepped(step)

    def _switch(self) -> None:
        if not self._device.startswith("cuda"):
            return
        if self._is_on:
            cuda.start_history(self.settings["max_entries"])
        else:
            import torch

            torch.cuda.memory._record_memory_history(enabled=None)


def of_memory(ctx: StageContext, requests: int, timeout_s: float) -> dict[str, Any]:
    cfg = MemoryConfig()
    settings = {"max_entries": cfg.max_entries, "interval_ms": cfg.interval_ms}
    work = run_workload(
        ctx,
        timeout_s=timeout_s,
        repeats=requests,
        watcher="stage_overhead:SwitchedWatcher",
        settings={**settings, "max_decode_steps": 0, "used_before_bytes": None},
        env={"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])},
    )
    rounds = [(number % 4 in (0, 3), rows) for number, rows in enumerate(by_request(work.spans))]
    return {phase: compared([(on, rows[phase]) for on, rows in rounds if phase in rows]) for phase in PHASES}


def of_energy(ctx: StageContext, requests: int, timeout_s: float, block_s: float) -> dict[str, Any]:
    blocks: list[tuple[bool, int, int]] = []
    readings = 0
    ended = threading.Event()

    def switch() -> None:
        nonlocal readings
        on = False
        while not ended.is_set():
            with contextlib.ExitStack() as stack:
                found = stack.enter_context(metering(ctx, interval_s=interval_s)) if on else []
                start_ns = time.monotonic_ns()
                ended.wait(block_s)
                blocks.append((on, start_ns + EDGE_NS, time.monotonic_ns() - EDGE_NS))
            readings += sum(len(meter.readings) for meter in found)
            on = not on

    interval_s = EnergyConfig().interval_ms / 1e3
    switching = threading.Thread(target=switch)
    switching.start()
    try:
        work = run_workload(ctx, timeout_s=timeout_s, repeats=requests)
    finally:
        ended.set()
        switching.join()
    result: dict[str, Any] = {"interval_ms": interval_s * 1e3, "readings": readings, "block_s": block_s}
    for phase in PHASES:
        spans = [span for span in work.spans if span.name == phase]
        rounds = [
            (on, mean_ms([s for s in spans if start <= s.start_ns and s.end_ns <= end])) for on, start, end in blocks
        ]
        result[phase] = compared([(on, ms) for on, ms in rounds if ms is not None])
    return result


def by_request(spans: Sequence[WorkloadSpan]) -> Iterator[dict[str, float]]:
    prefills = sorted((s for s in spans if s.name == "prefill"), key=lambda s: s.start_ns)
    decodes = sorted((s for s in spans if s.name == "decode"), key=lambda s: s.start_ns)
    for prefill, decode in zip(prefills, decodes, strict=True):
        yield {"prefill": prefill.seconds * 1e3, "decode": decode.seconds * 1e3 / (decode.tokens or 1)}


def mean_ms(spans: Sequence[WorkloadSpan]) -> float | None:
    """Of a prefill, or of a step of decode."""
    if not spans:
        return None
    each = [s.seconds * 1e3 / ((s.tokens or 1) if s.name == "decode" else 1) for s in spans]
    return statistics.fmean(each)


def compared(rounds: Sequence[tuple[bool, float]]) -> dict[str, Any]:
    """Neighbours of different arms in pairs; the mean of the logarithms of their ratios."""
    logs = []
    number = 0
    while number + 1 < len(rounds):
        (first_on, first), (second_on, second) = rounds[number : number + 2]
        if first_on == second_on:
            number += 1
            continue
        logs.append(math.log(first / second) if first_on else math.log(second / first))
        number += 2
    arms = {name: [ms for on, ms in rounds if on is wanted] for name, wanted in (("off", False), ("on", True))}
    result: dict[str, Any] = {f"{name}_ms": statistics.median(rows) if rows else None for name, rows in arms.items()}
    if len(logs) < 3:
        return {**result, "pairs": len(logs), "ratio": None}
    middle, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    bounds = {"low": math.exp(middle - 1.96 * error), "high": math.exp(middle + 1.96 * error)}
    return {**result, "pairs": len(logs), "ratio": math.exp(middle), **bounds}


def measure(
    model: str, *, requests: int, seconds: float, overrides: Sequence[str] = (), block_s: float = BLOCK_S
) -> dict[str, Any]:
    """Both stages, one after the other."""
    result: dict[str, Any] = {"model": model, "overrides": list(overrides), "requests": requests}
    with tempfile.TemporaryDirectory(prefix="overhead-") as scratch:
        folder = Path(scratch)
        words = [f"model={model}", "model.weights=random", "dataset=synthetic", "dataset.num_samples=1"]
        config = type_config(
            compose_config([*words, "infer.ignore_eos=true", f"artifacts.runs_dir={folder}", *overrides]),
            user_dir=folder,
        )
        host = probe_host(env=os.environ, disk=folder)
        for name in ("energy", "memory"):
            ctx = stage_context(
                name,
                config=config,
                host=host,
                artifacts=Artifacts.for_run(folder / name),
                environ=os.environ,
                console=PlainConsole(),
                earlier={},
                clean_stages=CLEAN_PASS_ORDER,
                records=[],
                program_failures={},
                redactor=Redactor(),
            )
            if name == "energy":
                result[name] = of_energy(ctx, requests, seconds, block_s)
            else:
                result[name] = of_memory(ctx, requests, seconds)
            print(f"{name}: {json.dumps(result[name])}", file=sys.stderr, flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "stage_overhead.json")
    parser.add_argument("--model", default="llama_tiny")
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--block-s", type=float, default=BLOCK_S)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    with contextlib.chdir(tempfile.gettempdir()):
        result = measure(
            args.model, requests=args.requests, seconds=args.seconds, overrides=args.overrides, block_s=args.block_s
        )
    args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())

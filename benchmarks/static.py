"""FLOPs of a prefill from a model's configuration: ours against FlopCounterMode, fvcore and calflops, in one run.

    .venv/bin/python benchmarks/static.py [--python /path/to/python-with-the-peers]

Every tool runs in its own process per model: seconds after imports (building the model on the meta device counts
where a tool needs one), the whole process with one run in it, peak memory, and what it reports against the closed form.
Logits are those of the last position, as when a prompt is answered. Absent peers are skipped and named.
`FlopCounterMode, batched experts` is the independent check of the closed form: the one way in which torch's own counter
sees experts. The result is kept in benchmarks/results/static.json.
"""

import argparse
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("llama3_8b", "qwen3_30b_a3b", "deepseek_v2_lite")
PROMPT = 1024
REPEATS = 3
RESULT = Path(__file__).with_name("results") / "static.json"
NEEDS = {"fvcore": "fvcore", "calflops": "calflops"}
TARGETS = {"error": 0.001, "speed_against_flop_counter": 500, "predict_s": 1.0, "predict_against_peers": 8}


def geometry(model: str) -> dict[str, Any]:
    import yaml

    return dict(yaml.safe_load((ROOT / f"conf/model/causal_lm/arch/{model}.yaml").read_text())["geometry"])


def closed_form(model: str) -> Callable[[], float]:
    from llm_perf_opt.model.families.known import read_text_model
    from llm_perf_opt.model.hardware.work import Dtypes
    from llm_perf_opt.model.static.closed_form import prefill_phase

    data = geometry(model)
    bf16 = Dtypes.uniform("bf16")

    def work() -> float:
        return prefill_phase(read_text_model(data, where=model), batch=1, prompt=PROMPT, dtypes=bf16).total.flops

    return work


def build(model: str, experts: str | None = None) -> tuple[Any, Any]:
    """The model on meta as transformers builds it, and the prompt."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(**geometry(model))
    choice = {} if experts is None else {"experts_implementation": experts}
    with torch.device("meta"):
        module = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, **choice).eval()
    return module, torch.zeros(1, PROMPT, dtype=torch.long, device="meta")


def operator_count(model: str) -> Callable[[], float]:
    import torch
    from transformers import AutoModelForCausalLM  # noqa: F401 - an import, not work

    from llm_perf_opt.model.static.operator_count import count_operators
    from llm_perf_opt.workload.models.module_groups import group_modules

    def work() -> float:
        module, ids = build(model)
        with torch.no_grad():
            count, _ = count_operators(module, group_modules(module), lambda: module(input_ids=ids, logits_to_keep=1))
        return count.total.flops

    return work


def flop_counter(model: str, experts: str | None = None) -> Callable[[], float]:
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoModelForCausalLM  # noqa: F401 - an import, not work

    def work() -> float:
        module, ids = build(model, experts)
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            module(input_ids=ids, logits_to_keep=1)
        return float(counter.get_total_flops())

    return work


def flop_counter_batched(model: str) -> Callable[[], float]:
    return flop_counter(model, None if model.startswith("llama") else "batched_mm")


def last_logits(module: Any, *, use_cache: bool) -> Any:
    """The model as a module of one tensor argument, which is all that some peers can call."""
    import torch

    class LastLogits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, ids: Any) -> Any:
            return self.module(input_ids=ids, use_cache=use_cache, logits_to_keep=1).logits

    return LastLogits()


def fvcore(model: str) -> Callable[[], float]:
    import logging

    from fvcore.nn import FlopCountAnalysis
    from transformers import AutoModelForCausalLM  # noqa: F401 - an import, not work

    logging.disable(logging.WARNING)

    def work() -> float:
        module, ids = build(model)
        counted = FlopCountAnalysis(last_logits(module, use_cache=False), ids).unsupported_ops_warnings(False)
        # fvcore counts multiply-adds.
        return 2.0 * float(counted.total())

    return work


def calflops(model: str) -> Callable[[], float]:
    from calflops import calculate_flops
    from transformers import AutoModelForCausalLM  # noqa: F401 - an import, not work

    def work() -> float:
        module, ids = build(model)
        flops, _, _ = calculate_flops(
            model=last_logits(module, use_cache=True),
            args=[ids],
            print_results=False,
            print_detailed=False,
            output_as_string=False,
        )
        return float(flops)

    return work


TOOLS: dict[str, Callable[[str], Callable[[], float]]] = {
    "closed form": closed_form,
    "operator count": operator_count,
    "FlopCounterMode": flop_counter,
    "FlopCounterMode, batched experts": flop_counter_batched,
    "fvcore": fvcore,
    "calflops": calflops,
}


def worker(tool: str, model: str) -> None:
    """One tool on one model; prints one line of JSON."""
    work = TOOLS[tool](model)
    times = []
    flops = 0.0
    for _ in range(REPEATS):
        start = time.perf_counter()
        flops = work()
        times.append(time.perf_counter() - start)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {
        "flops": flops,
        "seconds": statistics.median(times),
        "repeated_s": sum(times[1:]),
        "peak_mb": round(peak_mb),
    }
    print(json.dumps(found))


def run_tool(tool: str, model: str, python: str) -> dict[str, Any]:
    start = time.perf_counter()
    done = subprocess.run(
        [python, __file__, "--worker", tool, model],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:200]}
    found = json.loads(done.stdout.splitlines()[-1])
    whole = time.perf_counter() - start - found.pop("repeated_s")
    return {**found, "process_s": round(whole, 2)}


def is_installed(python: str, package: str) -> bool:
    return subprocess.run([python, "-c", f"import {package}"], capture_output=True, check=False).returncode == 0


def predict_seconds() -> float:
    """Wall time of `llm-perf predict` for one model and one GPU."""
    argv = [sys.executable, "-m", "llm_perf_opt.cli", "predict", "model=llama3_8b", "hardware=h200"]
    times = []
    with tempfile.TemporaryDirectory() as scratch:
        for _ in range(5):
            start = time.perf_counter()
            subprocess.run(argv, cwd=scratch, stdout=subprocess.DEVNULL, check=True)
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(python: str) -> dict[str, Any]:
    skipped = [tool for tool, package in NEEDS.items() if not is_installed(python, package)]
    rows: dict[str, dict[str, Any]] = {}
    for model in MODELS:
        found = {tool: run_tool(tool, model, python) for tool in TOOLS if tool not in skipped}
        truth = found["closed form"]["flops"]
        for row in found.values():
            if "flops" in row:
                row["of_closed_form"] = round(row["flops"] / truth, 4)
        rows[model] = found
    return {"prompt": PROMPT, "repeats": REPEATS, "models": rows, "skipped": skipped, "predict_s": predict_seconds()}


def judge(result: dict[str, Any]) -> dict[str, bool]:
    rows = result["models"].values()
    checked = [r[tool] for r in rows for tool in ("operator count", "FlopCounterMode, batched experts")]
    speeds = [r["FlopCounterMode"]["seconds"] / r["closed form"]["seconds"] for r in rows]
    peers = [
        row["process_s"]
        for r in rows
        for tool, row in r.items()
        if tool in ("FlopCounterMode", *NEEDS) and "flops" in row
    ]
    result["closed_form_speed_against_flop_counter"] = [round(s) for s in speeds]
    result["predict_against_fastest_peer_process"] = round(min(peers) / result["predict_s"], 1)
    return {
        "error": all(abs(row["of_closed_form"] - 1) <= TARGETS["error"] for row in checked),
        "speed_against_flop_counter": min(speeds) >= TARGETS["speed_against_flop_counter"],
        "predict_s": result["predict_s"] < TARGETS["predict_s"],
        "predict_against_peers": result["predict_against_fastest_peer_process"] >= TARGETS["predict_against_peers"],
    }


def show(result: dict[str, Any]) -> None:
    for model, found in result["models"].items():
        print(f"\n{model}")
        for tool, row in found.items():
            if "failed" in row:
                print(f"  {tool:34} failed: {row['failed']}")
                continue
            print(
                f"  {tool:34} {row['seconds']:10.5f} s  {row['process_s']:6.2f} s whole process  "
                f"{row['peak_mb']:5} MB  {row['of_closed_form']:.4f} of the closed form"
            )
    for tool in result["skipped"]:
        print(f"skipped: {tool} is not installed in the Python given")
    print(f"\nllm-perf predict: {result['predict_s']:.2f} s")
    print(json.dumps(result["targets_met"], indent=2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="a Python that has the peers and this project")
    parser.add_argument("--worker", nargs=2, metavar=("TOOL", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(*args.worker)
        return 0
    importlib.import_module("llm_perf_opt")
    result = measure(args.python)
    result["targets_met"] = judge(result)
    result["targets"] = TARGETS
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    show(result)
    return 0 if all(result["targets_met"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Holds `llm-perf plan` against NVIDIA's aiconfigurator on ten scenarios; aiconfigurator needs its own venv.

    python -m venv peer && peer/bin/pip install aiconfigurator pyyaml
    .venv/bin/python benchmarks/aiconfigurator_plans.py peer

Each is requested the best configuration of the same model, devices, lengths and limits (time to first token: the
median here, the mean there). Compared are our estimate of its configuration with its own, and its estimate of its
choice with our estimate of ours, as tokens per second and device. The last result is in
benchmarks/results/aiconfigurator_plans.json.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from llm_perf_opt.config.paths import conf_dir  # noqa: E402
from llm_perf_opt.model.estimate.parallel import Layout  # noqa: E402
from llm_perf_opt.planning.chosen_device import find_hardware  # noqa: E402
from llm_perf_opt.planning.deployments import Limits, batches, layouts, rate_per_device  # noqa: E402
from llm_perf_opt.planning.plan_table import spread  # noqa: E402
from llm_perf_opt.planning.planning_rows import predict_row  # noqa: E402
from llm_perf_opt.planning.predict_request import Case, parse_request  # noqa: E402
from llm_perf_opt.planning.predicted_rows import Row  # noqa: E402
from llm_perf_opt.planning.subject import subjects  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "aiconfigurator_plans.json"
HARDWARE = {"h100_sxm": "h100_sxm", "h200_sxm": "h200", "b200_sxm": "b200"}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Limits in milliseconds; `gpus`: devices there are."""

    model: str
    system: str
    gpus: int
    prompt: int
    output: int
    ttft_ms: float
    tpot_ms: float
    backend: str = "vllm"


SCENARIOS = (
    Scenario(model="Qwen/Qwen3-8B", system="h100_sxm", gpus=1, prompt=1024, output=128, ttft_ms=2000, tpot_ms=50),
    Scenario(model="Qwen/Qwen3-8B", system="h100_sxm", gpus=1, prompt=8192, output=512, ttft_ms=2000, tpot_ms=50),
    Scenario(
        model="meta-llama/Meta-Llama-3.1-70B",
        system="h200_sxm",
        gpus=8,
        prompt=3840,
        output=256,
        ttft_ms=500,
        tpot_ms=30,
    ),
    Scenario(model="Qwen/Qwen3-30B-A3B", system="h200_sxm", gpus=4, prompt=2048, output=512, ttft_ms=1000, tpot_ms=20),
    Scenario(
        model="deepseek-ai/DeepSeek-V3",
        system="h200_sxm",
        gpus=8,
        prompt=4000,
        output=1000,
        ttft_ms=2000,
        tpot_ms=50,
        backend="trtllm",
    ),
    Scenario(model="Qwen/Qwen3-32B-FP8", system="h200_sxm", gpus=4, prompt=2048, output=1024, ttft_ms=1000, tpot_ms=30),
    Scenario(model="Qwen/Qwen3-32B", system="h100_sxm", gpus=8, prompt=4096, output=512, ttft_ms=1000, tpot_ms=40),
    Scenario(
        model="Qwen/Qwen3-235B-A22B-FP8", system="h200_sxm", gpus=8, prompt=2048, output=1024, ttft_ms=2000, tpot_ms=50
    ),
    Scenario(
        model="meta-llama/Meta-Llama-3.1-8B",
        system="b200_sxm",
        gpus=1,
        prompt=2048,
        output=256,
        ttft_ms=1000,
        tpot_ms=20,
    ),
    Scenario(
        model="meta-llama/Meta-Llama-3.1-8B", system="h200_sxm", gpus=1, prompt=512, output=512, ttft_ms=500, tpot_ms=25
    ),
)


def peer_choice(peer: Path, scenario: Scenario) -> dict[str, str] | None:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(str(peer / "bin" / "aiconfigurator"), "cli", "default", "--serving-mode", "agg", "--no-color"),
            *("--model-path", scenario.model, "--total-gpus", str(scenario.gpus), "--system", scenario.system),
            *("--backend", scenario.backend, "--isl", str(scenario.prompt), "--osl", str(scenario.output)),
            *("--ttft", str(scenario.ttft_ms), "--tpot", str(scenario.tpot_ms), "--save-dir", folder),
        ]
        environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(
            command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
        )
        files = sorted(Path(folder).rglob("agg/best_config_topn.csv"))
        if not files:
            print(scenario.model, "no result:", done.stderr.strip().splitlines()[-1:], file=sys.stderr)
            return None
        with files[0].open(newline="") as file:
            return next(iter(csv.DictReader(file)), None)


def compare(peer: Path, scenario: Scenario) -> dict[str, Any] | None:
    theirs = peer_choice(peer, scenario)
    if theirs is None:
        return None
    configs = next(peer.glob("lib/python*/site-packages/aiconfigurator_core/model_configs"))
    config = configs / f"{scenario.model.replace('/', '--')}_config.json"
    request = parse_request([f"model.path={config}", f"hardware={HARDWARE[scenario.system]}"], conf=conf_dir())
    subject = next(iter(subjects(request)))
    device, resolved = find_hardware(request.hardware[0], request)

    def evaluate(case: Case) -> Any:
        return predict_row(subject, case, device, resolved)

    def case(layout: Layout) -> Case:
        return Case(
            prompt=scenario.prompt,
            context=scenario.prompt + scenario.output,
            output=scenario.output,
            prefill_chunk=8192,
            engine="server",
            layout=layout,
        )

    limits = Limits(ttft_ms=scenario.ttft_ms, tpot_ms=scenario.tpot_ms, is_median=True)
    rows = [row for layout in layouts(subject.model, scenario.gpus) for row in batches(evaluate, case(layout), limits)]
    ours = max((row for row in rows if limits.allow(row)), key=device_rate, default=None)
    layout = _their_layout(theirs)
    in_flight = int(theirs["concurrency"])
    same = evaluate(_with(case(layout), in_flight))
    return {
        "model": scenario.model,
        "system": scenario.system,
        "tokens": f"{scenario.prompt} + {scenario.output}",
        "limits_ms": [scenario.ttft_ms, scenario.tpot_ms],
        "theirs": {
            "layout": theirs["parallel"],
            "in_flight": in_flight,
            "ttft_ms": round(float(theirs["ttft"])),
            "tpot_ms": round(float(theirs["tpot"]), 1),
            "rate_per_device": round(float(theirs["tokens/s/gpu"])),
        },
        "theirs_by_us": {
            "layout": spread(layout),
            "ttft_ms": round(same.forecast.ttft_ms),
            "tpot_ms": round(same.forecast.tpot_ms, 1),
            "rate_per_device": round(device_rate(same)),
            "ratio": round(device_rate(same) / float(theirs["tokens/s/gpu"]), 2),
        },
        "ours": None
        if ours is None
        else {
            "layout": spread(ours.case.layout),
            "in_flight": ours.case.in_flight,
            "ttft_ms": round(ours.forecast.ttft_ms),
            "tpot_ms": round(ours.forecast.tpot_ms, 1),
            "rate_per_device": round(device_rate(ours)),
        },
    }


def device_rate(row: Row) -> float:
    """Output tokens per second of one device; 0 without an estimate."""
    return 0.0 if row.forecast is None else rate_per_device(row.forecast, row.case.layout)


def _their_layout(row: dict[str, str]) -> Layout:
    """Experts whose matrices are split over attention's replicas have no layout here: they are taken as spread."""
    tp, dp, ep = int(row["tp"]), int(row["dp"]), int(row["moe_ep"])
    return Layout(tp=tp, pp=int(row["pp"]), dp=dp, ep=tp * dp if dp > 1 else ep)


def _with(case: Case, in_flight: int) -> Case:
    return replace(case, batch=max(1, in_flight // case.layout.dp), concurrency=in_flight)


def main() -> None:
    peer = Path(sys.argv[1]).resolve()
    rows = [row for scenario in SCENARIOS if (row := compare(peer, scenario)) is not None]
    for row in rows:
        print(json.dumps(row))
    ratios = [row["theirs_by_us"]["ratio"] for row in rows]
    print(f"{len(rows)} scenarios, our rate of their choice over theirs: median {statistics.median(ratios):.2f}")
    RESULT.write_text(json.dumps({"aiconfigurator": "0.12.0", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

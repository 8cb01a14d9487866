"""Holds the closed formulas of requests that arrive against a simulated engine, iteration by iteration.

    .venv/bin/python benchmarks/queueing.py

The engine takes the same times per step and prompt as `forecast_arrivals`, so what is compared is queueing alone:
median and 95th percentile of the time to first token, and the time per token, at shares of the capacity. The last
result is in benchmarks/results/queueing.json.
"""

import json
import random
import statistics
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from llm_perf_opt.model.estimate.engine_model import ENGINES  # noqa: E402
from llm_perf_opt.model.estimate.requests import (  # noqa: E402
    PROMPT_TOKENS,
    ArrivalRate,
    Load,
    forecast_arrivals,
    prompt_ms,
    token_ms,
)
from llm_perf_opt.model.estimate.steps import Setting  # noqa: E402
from llm_perf_opt.model.hardware.work import Dtypes  # noqa: E402
from tests.unit.model.test_published import catalogue, model_of  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "queueing.json"
LOADS = ((128, 128), (1024, 128), (128, 1024), (2048, 512), (8192, 512))
SHARES = (0.3, 0.5, 0.7, 0.85, 0.95)
REQUESTS = 6000
SEED = 1


@dataclass(frozen=True, kw_only=True)
class Simulated:
    ttft_ms: float
    ttft_p95_ms: float
    tpot_ms: float


def simulate(setting: Setting, load: Load, per_s: float) -> Simulated:
    """First come, first served; an iteration is a token for each request that decodes, and prompts up to a budget."""
    draw = random.Random(SEED)
    host = ENGINES[setting.engine].host
    most = max(1, PROMPT_TOKENS // load.prompt)

    @cache
    def step(batch: int) -> float:
        return token_ms(setting, load, batch=batch) or 0.0

    @cache
    def prompts(count: int) -> float:
        each = (prompt_ms(setting, replace(load, chunk=None), batch=count) or 0.0) / count
        return count * (each + host.request_us / 1e3)

    clock, arrivals = 0.0, []
    for _ in range(REQUESTS):
        clock += draw.expovariate(per_s / 1e3)
        arrivals.append(clock)
    firsts: list[float] = []
    tokens: list[float] = []
    running: list[tuple[int, float]] = []  # tokens left, when the first came
    now, behind = 0.0, 0
    while behind < len(arrivals) or running:
        if not running and behind < len(arrivals) and arrivals[behind] > now:
            now = arrivals[behind]
        taken = []
        while behind < len(arrivals) and arrivals[behind] <= now and len(taken) < most:
            taken.append(arrivals[behind])
            behind += 1
        now += (step(len(running)) if running else 0.0) + (prompts(len(taken)) if taken else 0.0)
        left = []
        for count, first in running:
            if count > 1:
                left.append((count - 1, first))
            else:
                tokens.append((now - first) / (load.output - 1))
        arrival_ms = host.arrival_ms + host.prompt_token_us * load.prompt / 1e3
        firsts += [now - at + arrival_ms for at in taken]
        running = left + [(load.output - 1, now) for _ in taken]
    steady = sorted(firsts[REQUESTS // 10 :])
    return Simulated(
        ttft_ms=statistics.median(steady),
        ttft_p95_ms=steady[int(0.95 * len(steady))],
        tpot_ms=statistics.median(tokens[REQUESTS // 10 :]),
    )


def capacity(setting: Setting, load: Load) -> float:
    """Requests per second from which on the formulas say that the engine cannot keep up."""
    low, high = 0.01, 1e4
    for _ in range(50):
        middle = (low * high) ** 0.5
        low, high = (
            (middle, high) if forecast_arrivals(setting, load, ArrivalRate(per_s=middle)) is not None else (low, middle)
        )
    return low


def main() -> None:
    setting = Setting(
        model=model_of("Qwen3-8B"),
        dtypes=Dtypes.uniform("bf16"),
        hardware=catalogue()["h100_sxm"],
        engine="server",
    )
    rows = []
    for prompt, output in LOADS:
        load = Load(prompt=prompt, output=output, chunk=PROMPT_TOKENS)
        most = capacity(setting, load)
        for share in SHARES:
            rate = most * share
            said, seen = forecast_arrivals(setting, load, ArrivalRate(per_s=rate)), simulate(setting, load, rate)
            assert said is not None
            row = {
                "prompt": prompt,
                "output": output,
                "share_of_capacity": share,
                "per_s": round(rate, 3),
                "ttft_ms": [round(said.ttft_ms, 1), round(seen.ttft_ms, 1)],
                "ttft_p95_ms": [round(said.ttft_p95_ms, 1), round(seen.ttft_p95_ms, 1)],
                "tpot_ms": [round(said.tpot_ms, 2), round(seen.tpot_ms, 2)],
            }
            rows.append(row)
            print(*(f"{key} {value}" for key, value in row.items()))
    RESULT.write_text(json.dumps({"requests": REQUESTS, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()

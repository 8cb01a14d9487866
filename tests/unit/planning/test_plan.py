"""`llm-perf plan`: what meets limits, the cheapest of it, and the Pareto front."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.model.estimate.requests import Load, prompt_ms, token_ms
from llm_perf_opt.model.estimate.steps import Setting
from llm_perf_opt.model.hardware.hardware import load_catalogue
from llm_perf_opt.model.hardware.work import Dtypes
from llm_perf_opt.planning.deployments import Demand, Limits, bill, front, price
from llm_perf_opt.planning.disaggregation import PoolOption, best_pools
from llm_perf_opt.planning.planning_rows import predictions
from tests.support.static_cases import preset_geometry, preset_model

ASKED = ["plan", "model=llama3_8b", "hardware=h200,l40s", "--context", "4096", "--devices=2"]


def test_rows_that_keep_the_limits_are_kept_and_the_cheapest_of_each_device_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = tmp_path / "plan.csv"
    limits = ["--ttft-ms", "400", "--tpot-ms", "25", "--price", "h200=3.5,l40s=1"]
    assert main([*ASKED, *limits, "--csv", str(table)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("3,840 + 256 tokens; first token in 400 ms (95th percentile); 25 ms a token:\n")
    assert max(map(len, out.splitlines())) <= 80
    rows = list(csv.DictReader(table.open()))
    assert {row["hardware"] for row in rows} == {"h200", "l40s"}
    assert [row for row in rows if float(row["ttft_p95_ms"]) > 400 or float(row["tpot_ms"]) > 25] == []
    cheapest = {name: min(float(row["cost"]) for row in rows if row["hardware"] == name) for name in ("h200", "l40s")}
    named = [line.split() for line in out.split("Pareto")[0].splitlines() if line.startswith(("h200", "l40s"))]
    assert [words[0] for words in named] == sorted(cheapest, key=lambda name: cheapest[name])
    assert [float(words[-1]) for words in named] == pytest.approx(sorted(cheapest.values()), rel=0.01)
    # Along the front tokens get slower and cheaper.
    front = [line.split() for line in out.split("Pareto front:")[1].splitlines() if line[:4] in ("h200", "l40s")]
    costs = [float(words[-1]) for words in front]
    assert costs == sorted(costs, reverse=True)


def test_what_could_not_be_estimated_is_never_the_best() -> None:
    asked = ["model=llama3_8b", "hardware=h200", "workload.output=64", "workload.batch=1,8"]
    known = [replace(row, case=replace(row.case, rate=1.0)) for row in predictions(asked)]
    unknown = replace(known[0], forecast=None)
    assert front([unknown, *known]) == front(known) and unknown not in front([unknown])
    assert [min([unknown, row], key=key) for row in known for key in (price, bill)] == [*known[:1] * 2, *known[1:] * 2]


def test_limits_nobody_meets_show_what_came_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--ttft-ms", "1"]) == 0
    out = capsys.readouterr().out
    assert "first token in 1 ms (95th percentile):\n0 of " in out
    assert "Nearest: the shortest time to first token" in out
    rows = [line for line in out.splitlines() if line.startswith(("h200", "l40s"))]
    # One row that is the nearest in both is shown once.
    assert len(rows) == len(set(rows)) == 1


@pytest.mark.parametrize(
    ("weight", "prompt", "output", "measured"),
    [
        ("fp8", 1024, 128, 108),
        ("fp8", 128, 1024, 472),
        ("fp8", 2048, 2048, 52),
        ("fp8", 8192, 512, 10),
        ("bf16", 1024, 128, 80),
        ("bf16", 128, 1024, 396),
        ("bf16", 2048, 2048, 40),
        ("bf16", 8192, 512, 7),
    ],
)
def test_planned_requests_in_flight_are_near_the_measured_capacity(
    weight: str, prompt: int, output: int, measured: int, tmp_path: Path
) -> None:
    """vLLM 0.30 on one H100, the slowest first token within 2 s: tgarg01/silybench-data derived/csv/capacity.csv."""
    table = tmp_path / "plan.csv"
    asked = ["plan", "model=qwen3_8b", "hardware=h100_sxm", f"workload.weight_dtype={weight}", "--devices", "1"]
    limits = ["--ttft-ms", "2000", "--tpot-ms", "50", "--context", str(prompt + output), "--output", str(output)]
    assert main([*asked, *limits, "--csv", str(table)]) == 0
    planned = max(int(row["batch"]) for row in csv.DictReader(table.open()))
    assert measured / 1.5 <= planned <= measured * 1.5


def rows_of(argv: list[str], tmp_path: Path) -> list[dict[str, str]]:
    table = tmp_path / "plan.csv"
    assert main([*argv, "--csv", str(table)]) == 0
    return list(csv.DictReader(table.open()))


def test_a_demand_is_divided_into_replicas_that_keep_the_limits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    limits = ["--ttft-ms", "800", "--tpot-ms", "30", "--devices", "1"]
    asked = ["plan", "model=llama3_8b", "hardware=h200", "workload.weight_dtype=bf16", *limits]
    ten, forty = (rows_of([*asked, "--rate", f"{rate}/s"], tmp_path) for rate in (10, 40))
    assert [float(row["rate"]) for row in (*ten, *forty)] == [10, 40]
    replicas = [int(row["dp"]) for row in (*ten, *forty)]
    assert 3 <= replicas[1] / replicas[0] <= 4
    assert float(forty[0]["ttft_p95_ms"]) <= 800
    assert float(forty[0]["tpot_ms"]) <= 30
    assert float(forty[0]["throughput"]) == pytest.approx(40 * 256)
    assert rows_of([*asked, "--rate", "2400/min"], tmp_path) == forty
    capsys.readouterr()
    more = rows_of([*asked, "--rate", "40", "--headroom", "50%"], tmp_path)
    assert int(more[0]["dp"]) == pytest.approx(1.5 * replicas[1], abs=1)
    out = capsys.readouterr().out
    assert "40 requests per second; 50 % headroom:" in " ".join(out.split())
    assert f"To start one of {more[0]['dp']} replicas on h200, with vLLM or with SGLang:" in " ".join(out.split())


def test_the_cost_of_a_million_tokens_is_that_of_the_demand(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "model=llama3_8b", "hardware=h200", "workload.tp=1", "workload.weight_dtype=fp8"]
    assert main([*asked, "--rate", "20/s", "--price", "h200=3.5"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    (devices,) = {int(line[1]) for line in [out.partition("per hour ")[2].split()]}
    assert f"cost {3.5 * devices / (20 * 256 * 3600) * 1e6:.3g} at this demand" in out
    assert "cost/M" not in out


def test_users_are_requests_in_flight_of_all_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "model=llama3_8b", "hardware=h200", "workload.weight_dtype=bf16", "--devices", "1"]
    assert main([*asked, "--users", "300", "--tpot-ms", "30", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    serving = found["serving"]
    request_s = serving["request_ms"] / 1e3
    assert serving["arrivals_per_s"] * request_s == pytest.approx(300, rel=0.02)
    assert serving["tpot_ms"] <= 30


def test_replicas_at_the_slow_end_keep_the_limits_there(capsys: pytest.CaptureFixture[str]) -> None:
    def replicas(per_s: str, tpot_ms: str) -> str:
        asked = ["plan", "model=llama3_8b", "hardware=h100_sxm", "workload.tp=1", "workload.weight_dtype=bf16"]
        limits = ["--rate", per_s, "--tpot-ms", tpot_ms, "--context", "1280", "--output", "256"]
        assert main([*asked, *limits]) == 0
        row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("h100_sxm"))
        return " ".join(row.split()[2:5])

    # One idle server is enough, however slow; a busy one is not.
    assert replicas("0.1", "50").startswith("1 –")
    assert replicas("15", "50").startswith("1 to 2")
    # 6.6 ms a token alone: 8 ms are kept by the middle of the estimate, not by its slow end.
    assert replicas("1", "8").startswith("1 to –")


def test_devices_count_every_kind_of_parallelism(tmp_path: Path) -> None:
    for row in rows_of(["plan", "model=qwen3_30b_a3b", "hardware=h200", "--devices", "4"], tmp_path):
        assert int(row["tp"]) * int(row["pp"]) * int(row["dp"]) <= 4
        assert int(row["ep"]) in (1, int(row["tp"]) * int(row["dp"]))
    asked = ["plan", "model=llama3_8b", "hardware=h200,l40s", "--devices", "1", "workload.pp=8"]
    assert main(asked) == 2


def test_prices_come_from_a_file_and_unpriced_devices_are_last(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("h200: 3.5\nb200: 5\n")
    assert main([*ASKED, "--prices", str(prices)]) == 0
    table = capsys.readouterr().out.split("Pareto")[0].splitlines()
    assert [line.split()[0] for line in table if line.startswith(("h200", "l40s"))] == ["h200", "l40s"]
    assert [line.split()[-1] == "–" for line in table if line.startswith(("h200", "l40s"))] == [False, True]


def test_the_launch_commands_say_what_was_planned(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "model=llama3_70b", "hardware=h100_sxm", "workload.tp=4", "workload.kv_dtype=fp8"]
    assert main([*asked, "workload.weight_dtype=fp8", "--ttft-ms", "2000", "--tpot-ms", "40"]) == 0
    out = capsys.readouterr().out
    batch = next(line.split()[6] for line in out.splitlines() if line.startswith("h100_sxm"))
    commands = out[out.index("vllm serve") : out.index("\n\nn:")].replace("\\\n", "")
    vllm, sglang = (" ".join(part.split()) for part in commands.split("python -m"))
    assert vllm == (
        f"vllm serve MODEL --tensor-parallel-size 4 --max-model-len 4096 --max-num-seqs {batch} "
        "--max-num-batched-tokens 8192 --gpu-memory-utilization 0.9 --quantization fp8 --kv-cache-dtype fp8"
    )
    assert sglang == (
        f"sglang.launch_server --model-path MODEL --tp-size 4 --context-length 4096 --max-running-requests {batch} "
        "--chunked-prefill-size 8192 --mem-fraction-static 0.9 --quantization fp8 --kv-cache-dtype fp8_e4m3"
    )


def test_prompts_and_decoding_apart_serve_a_demand_within_the_limits() -> None:
    """Long prompts, tight limits per token: steps that prompts hold up need many more devices together."""
    setting = Setting(
        model=preset_model("causal_lm/arch/llama3_8b"),
        dtypes=Dtypes.uniform("bf16"),
        hardware=load_catalogue(conf_dir() / "hardware")["h200"],
        engine="server",
    )
    load, limits = Load(prompt=8000, output=200), Limits(ttft_ms=2000, tpot_ms=10)
    found = best_pools([PoolOption(setting=setting, places=60)], load, limits, Demand(per_s=50), weight_dtype=None)
    assert found is not None
    prompt, step = prompt_ms(setting, load), token_ms(setting, load, batch=found.batch)
    assert prompt is not None and step is not None
    # Every device of the pool has no more to do than it can in the time.
    assert 50 * prompt / 1e3 < found.prompts < 50 * prompt / 1e3 * 1.4
    assert 50 * 199 * step / 1e3 / found.batch <= found.decoders
    assert step <= 10 < (token_ms(setting, load, batch=found.batch + 1) or 0) or found.batch == 60
    assert found.ttft_p95_ms <= 2000
    assert (
        best_pools(
            [PoolOption(setting=setting, places=60)],
            load,
            Limits(ttft_ms=100, tpot_ms=10),
            Demand(per_s=50),
            weight_dtype=None,
        )
        is None
    )


def test_without_a_limit_pools_answer_no_later_than_devices_that_do_both(capsys: pytest.CaptureFixture[str]) -> None:
    """Users who wait longer ask for less, so pools that answer late look cheap."""
    asked = ["plan", "model=llama3_70b", "hardware=h100_sxm", "workload.weight_dtype=fp8", "workload.tp=1,2"]
    assert main([*asked, "--users", "500", "--tpot-ms", "40"]) == 0
    out = capsys.readouterr().out
    assert "Prompts and decoding on different devices take no fewer devices here." in out


def test_a_quantised_checkpoint_is_planned_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    geometry = {**preset_geometry("causal_lm/arch/llama_tiny"), "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(geometry))
    asked = ["plan", f"model.path={tmp_path}", "hardware=h200", "--context", "256", "--output", "64", "--devices", "1"]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "bf16 wfp8" in out
    assert "--quantization" not in out and "checkpoint in bf16" not in out


def test_what_does_not_fit_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model=llama3_70b", "hardware=rtx4090", "--devices", "1"]) == 0
    assert "None fits into the memory: allow more devices (--devices)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tpot-ms", "fast"], "error: --tpot-ms: not a number from above 0 to 100,000,000 (got 'fast')"),
        (["--ttft-ms", "nan"], "error: --ttft-ms: not a number from above 0 to 100,000,000 (got 'nan')"),
        (["--context", "1e300"], "error: --context: not a number from above 0 to 100,000,000 (got '1e300')"),
        (["dataset=null"], "error: dataset: no such choice (got 'null')"),
        (["--output", "5000"], "error: --output: not less than --context (got 5000 of 4096)"),
        (["--rate", "fast"], "error: --rate: not a rate such as 20/s or 1200/min (got 'fast')"),
        (["--rate", "5/week"], "error: --rate: not a rate such as 20/s or 1200/min (got '5/week')"),
        (["--users", "1.5"], "error: --users: not a whole number (got '1.5')"),
        (["--users", "5", "--rate", "5"], "error: --users and --rate: mutually exclusive"),
        (["--headroom", "20%"], "error: --headroom: has no effect without --users or --rate"),
        (["workload.concurrency=5"], "error: workload.concurrency: is --users here"),
        (["--percentile", "99"], "error: --percentile: 50 or 95 (got '99')"),
        (["--prices", "/nowhere.yaml"], "error: --prices: /nowhere.yaml cannot be read"),
        (["workload.pp=8"], "error: --devices: the layouts asked for take at least 8 devices (got 2)"),
        (["model=org/name"], "are given as model.path=org/name"),
        (["--price", "h200"], "error: --price: not ENTRY=PRICE (got 'h200')"),
        (["--price", "h100_sxm=2"], "error: --price: 'h100_sxm' is not among the devices asked for, hardware="),
        (["--wide"], "error: --wide: not an override, allowed: key=value or --json, --ttft-ms"),
        (["--colour", "red"], "error: --colour: not an override"),
    ],
)
def test_bad_input_exits_with_2_and_names_it(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert main([*ASKED, *argv]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_cannot_be_planned_is_not_said_to_be_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "model=deepseek_ocr", "hardware=h200", "--devices", "1"]) == 0
    out = capsys.readouterr().out
    assert "Nothing could be estimated: plans are made for text models on GPUs" in out
    assert "None fits" not in out


def test_the_rows_of_a_plan_can_be_had_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ASKED, "--devices", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    assert found
    assert all(row["serving"]["tp"] == 1 for row in found)

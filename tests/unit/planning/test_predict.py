"""`llm-perf predict`: the table, JSON, bad input, and what it must never import."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from tests.support.schemas import valid
from tests.support.static_cases import SMALL, preset_geometry

pytestmark = pytest.mark.slow

ASKED = ["predict", "model=llama3_8b", "hardware=h200,rtx3090", "workload.prompt=1024", "workload.batch=1,8,64"]


@pytest.fixture(autouse=True)
def no_calibration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def predict_json(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict[str, Any]]:
    assert main(["predict", *argv, "--json"]) == 0
    rows: list[dict[str, Any]] = valid("predictions", json.loads(capsys.readouterr().out))["predictions"]
    return rows


def test_a_row_for_every_combination(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ASKED) == 0
    out = capsys.readouterr().out
    assert "llama3_8b: 8,030,261,248 parameters, 131,072 KV bytes a token" in out
    rows = [line.split()[:3] for line in out.splitlines() if line.startswith("llama3_8b ")]
    assert rows == [["llama3_8b", hardware, batch] for hardware in ("h200", "rtx3090") for batch in ("1", "8", "64")]
    assert "dtype bf16, engine eager, prompt 1024, context 1024" in out
    # 31 GB do not fit into 24: the row says so.
    assert [line for line in out.splitlines() if " ! " in line and line.startswith("llama3_8b  rtx3090")] != []
    assert max(len(line) for line in out.splitlines()) <= 80


def test_bounds_of_llama3_8b_on_an_h200_are_these(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = predict_json(capsys, "model=llama3_8b", "hardware=h200")
    prefill, decode = found["phases"]["prefill"], found["phases"]["decode"]
    assert found["workload"] == {
        "batch": 1,
        "prompt_tokens": 1024,
        "context": 1024,
        "views": [],
        "how": "as asked for",
    }
    assert prefill["flops"] == 14_844_457_648_128
    assert prefill["bound_ms"]["datasheet"] == pytest.approx(1e3 * prefill["flops_needed"] / 989.4e12)
    assert decode["bound_ms"]["datasheet"] == pytest.approx(1e3 * decode["bytes_needed"] / 4.8e12)
    assert decode["bound_ms"]["achievable"] == pytest.approx(1e3 * decode["bytes_needed"] / 4.514e12)
    assert decode["tokens_per_s"]["datasheet"] == pytest.approx(1e3 / decode["bound_ms"]["datasheet"])
    assert (prefill["limit"], decode["limit"]) == ("compute", "launch")
    low, mid, high = (decode["estimate_ms"][key] for key in ("low", "mid", "high"))
    assert decode["bound_ms"]["achievable"] < low < mid < high


def test_a_gpu_that_was_not_measured_has_an_estimate_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = predict_json(capsys, "model=llama3_8b", "hardware=a100_80gb", "workload.engine=graph")
    decode = found["phases"]["decode"]
    assert decode["bound_ms"]["datasheet"] == pytest.approx(1e3 * decode["bytes_needed"] / 2.039e12)
    assert decode["bound_ms"]["achievable"] is None
    assert decode["estimate_ms"]["label"] == "transferred"
    assert decode["bound_ms"]["datasheet"] <= decode["estimate_ms"]["low"] < decode["estimate_ms"]["mid"]


def test_every_workload_key_takes_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    found = predict_json(
        capsys,
        "model=llama3_8b",
        "hardware=h200",
        "workload.engine=eager,graph,server",
        "workload.weight_dtype=bf16,fp8",
        "workload.tp=1,2",
        "workload.output=64",
    )
    asked = [(r["serving"]["engine"], r["dtypes"]["weight"], r["serving"]["tp"]) for r in found]
    assert asked == [
        (engine, weight, tp) for weight in ("bf16", "fp8") for engine in ("eager", "graph", "server") for tp in (1, 2)
    ]
    for row in found:
        serving = row["serving"]
        assert serving["request_ms"] == pytest.approx(serving["ttft_ms"] + 63 * serving["tpot_ms"])
        for phase in row["phases"].values():
            assert phase["estimate_ms"]["low"] >= phase["bound_ms"]["datasheet"]


def test_no_pipeline_serves_more_than_the_bound_of_its_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    for row in predict_json(
        capsys,
        *("model=llama3_8b", "hardware=l40s", "workload.engine=server", "workload.batch=4,256"),
        *("workload.pp=1,4,8", "workload.prompt=4096", "workload.output=256"),
    ):
        # The first of a request's tokens comes with its prompt.
        most = 256 / 255 * row["phases"]["decode"]["tokens_per_s"]["datasheet"]
        assert row["serving"]["output_tokens_per_s"] <= row["serving"]["output_tokens_per_s_high"] <= most


def test_rows_can_be_sorted_and_written_as_csv_and_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    table, picture = tmp_path / "out.csv", tmp_path / "out.svg"
    asked = ["model=llama3_8b", "hardware=h200,l40s", "workload.output=128", "hardware.price_per_hour=2"]
    assert main(["predict", *asked, "--sort", "cost", "--csv", str(table), f"--plot={picture}"]) == 0
    rows = list(csv.DictReader(table.open()))
    assert [row["hardware"] for row in rows] == ["h200", "l40s"]
    assert float(rows[0]["cost"]) < float(rows[1]["cost"])
    # 2 an hour over the tokens of an hour.
    assert float(rows[0]["cost"]) == pytest.approx(2 / (float(rows[0]["throughput"]) * 3600) * 1e6)
    assert picture.read_text().count("<circle") == 2
    assert main(["predict", *asked, "--sort", "colour"]) == 2
    assert "--sort: no such column (got 'colour')" in capsys.readouterr().err


def test_peaks_of_your_own_count_on_a_machine_without_a_gpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    (found,) = predict_json(
        capsys,
        "model=llama3_8b",
        "hardware=auto",
        "hardware.peak_tflops.bf16=100",
        "hardware.memory_bandwidth_gb_s=1000",
        "hardware.memory_gb=24",
    )
    decode = found["phases"]["decode"]
    assert found["dtypes"]["compute"] == "bf16"
    assert decode["bound_ms"]["datasheet"] == pytest.approx(1e3 * decode["bytes_needed"] / 1e12)
    assert found["memory"]["capacity_bytes"] == 24e9


def test_a_prompt_beyond_the_positions_a_model_knows_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model=llama3_8b", "hardware=h200", "workload.prompt=10000"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "note: llama3_8b: 10,000 tokens are beyond its max_position_embeddings of 8,192" in said


def test_layers_that_predict_further_tokens_are_said_to_be_left_out(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = {**preset_geometry("causal_lm/arch/llama3_1b"), "num_nextn_predict_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    (found,) = predict_json(capsys, f"model.path={tmp_path}", "hardware=h200")
    assert any(
        "layers that predict further tokens (num_nextn_predict_layers) are not" in note for note in found["notes"]
    )


def test_a_wrapper_is_read_by_its_text_model_formats_and_positions_included(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "model_type": "llama", "vocab_size": 100, "max_position_embeddings": 64}
    text["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "wrapper", "text_config": text}))
    found = predict_json(capsys, f"model.path={tmp_path}", "hardware=h200", "workload.prompt=100")[0]
    assert found["dtypes"]["weight"] == "int4"
    assert any("100 tokens are beyond its max_position_embeddings of 64" in note for note in found["notes"])


def test_a_config_file_and_a_list_of_paths_are_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder, file = tmp_path / "One", tmp_path / "other.json"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(preset_geometry("causal_lm/arch/llama3_8b")))
    file.write_text(json.dumps(preset_geometry("causal_lm/arch/llama3_1b")))
    found = predict_json(capsys, f"model.path={folder},{file}", "hardware=h200")
    assert [(r["model"], r["parameters"]["total"]) for r in found] == [("One", 8_030_261_248), ("other", 1_235_814_400)]


def test_a_hub_name_is_not_looked_up_offline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["predict", "model.path=some/model", "hardware=h200"]) == 2
    assert "model.path: 'some/model' is not a file or folder here, and HF_HUB_OFFLINE" in capsys.readouterr().err


def test_a_folder_with_a_config_json_is_enough(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "My-Qwen3"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(preset_geometry("causal_lm/arch/qwen3_30b_a3b")))
    (found,) = predict_json(capsys, f"model.path={folder}", "hardware=h200", "workload.context=4096")
    assert (found["model"], found["parameters"]["total"], found["workload"]["context"]) == (
        "My-Qwen3",
        30_532_122_624,
        4096,
    )


def test_formats_of_weights_and_cache_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    plain, narrow = (
        predict_json(capsys, "model=llama3_8b", "hardware=h200", *extra)[0]
        for extra in ((), ("workload.weight_dtype=fp8", "workload.kv_dtype=fp8"))
    )
    assert narrow["kv_bytes_per_token"] == plain["kv_bytes_per_token"] / 2
    assert narrow["memory"]["weights_bytes"] < 0.6 * plain["memory"]["weights_bytes"]
    assert narrow["dtypes"] == {
        "compute": "bf16",
        "weight": "fp8",
        "kv": "fp8",
        "attention": None,
        "activation": None,
    }


def test_the_mode_of_latent_attention_can_be_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = predict_json(capsys, "model=deepseek_v2_lite", "hardware=h200", "workload.mla_mode=absorbed")
    modes = found["latent_attention"]["modes"]
    assert found["latent_attention"]["mode"] == "absorbed"
    assert found["phases"]["decode"]["flops"] == modes["absorbed"]["decode_flops"]


def test_needed_flops_are_those_of_the_mode_that_the_engine_runs(capsys: pytest.CaptureFixture[str]) -> None:
    def needed(*overrides: str) -> float:
        asked = ["model=deepseek_v2_lite", "hardware=h200", "workload.context=8192", *overrides]
        assert main(["predict", *asked, "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["predictions"]
        return float(found["phases"]["decode"]["flops_needed"])

    # transformers projects every cached latent up again, engines take scores on the latent itself.
    assert needed("workload.engine=eager") > 50 * needed("workload.engine=server")
    assert needed("workload.engine=server") == needed("workload.engine=server", "workload.mla_mode=absorbed")


def test_pages_of_deepseek_ocr_set_prompt_and_views(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = predict_json(capsys, "model=deepseek_ocr", "hardware=h200", "workload.batch=2")
    # A page of 1240 × 1754 is cut into 2 × 3 tiles: (10·2+1)·30 + (16+1)·16+1 tokens, and the prompt around them.
    assert found["workload"]["views"] == [{"size": 640, "count": 12}, {"size": 1024, "count": 2}]
    assert found["workload"]["prompt_tokens"] - (630 + 273) in range(5, 15)
    assert found["workload"]["context"] == found["workload"]["prompt_tokens"]
    assert found["workload"]["how"] == "a synthetic page of 1240 × 1754 pixels"
    (longer,) = predict_json(capsys, "model=deepseek_ocr", "hardware=h200", "workload.context=2000")
    assert (longer["workload"]["context"], longer["workload"]["how"]) == (
        2000,
        "a synthetic page of 1240 × 1754 pixels",
    )
    assert main(["predict", "model=deepseek_ocr", "hardware=h200", "workload.prompt=5"]) == 2


def test_own_peaks_replace_an_entrys(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = predict_json(capsys, "model=llama3_8b", "hardware=rtx3090", "hardware.peak_tflops.bf16=35.5")
    assert found["hardware"]["peak_tflops"]["bf16"] == 35.5
    assert found["hardware"]["memory_bandwidth_gb_s"] == 936.0


def test_the_memory_given_is_the_memory_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    (found,) = predict_json(capsys, "model=llama_tiny", "hardware=auto", "run.device=cpu", "hardware.memory_gb=1")
    assert found["memory"]["capacity_bytes"] == 1e9
    assert found["hardware"]["sources"]["memory_gb"] == "given in the configuration"


def test_a_cpu_without_calibration_says_how_to_get_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model=llama_tiny", "hardware=cpu"]) == 0
    out = capsys.readouterr().out
    assert "note: this CPU was not calibrated yet: `llm-perf profile experiment=demo` measures it" in " ".join(
        out.split()
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["model=lama3_8b"], "error: model: no such choice (got 'lama3_8b'), nearest: llama3_8b; allowed: causal_lm"),
        (["hardware=rtx4900"], "error: hardware: no such choice (got 'rtx4900'), nearest: rtx4090; allowed: a10"),
        (["workload.batch=0"], "error: workload.batch: not a whole number from 1 to 100,000,000 (got '0')"),
        (["workload.prompt=" + "9" * 5000], "error: workload.prompt: not a whole number from 1 to 100,000,000"),
        (["workload.batch="], "error: workload.batch: empty, allowed: numbers separated by commas"),
        (["workload.engine="], "error: workload.engine: empty, allowed: eager, graph, server"),
        (["workload.rate=fast"], "error: workload.rate: not a number above 0 and up to 100,000,000 (got 'fast')"),
        (["workload.rate=5"], "error: workload.rate: needs workload.output=…, the tokens of an answer"),
        (
            ["workload.rate=5", "workload.concurrency=4", "workload.output=8"],
            "error: workload.rate and workload.concurrency: mutually exclusive",
        ),
        (["workload.burstiness=2"], "error: workload.burstiness: has no effect without workload.rate"),
        (["workload.foo=3"], "error: workload.foo: unknown key (got '3'), nearest known key: model.…, hardware.…"),
        (["--csv", "/does/not/exist/a.csv"], "error: --csv: not a file in a folder that exists"),
        (["--plot", "a.png"], "error: --plot: the picture is an SVG (got 'a.png'), give a name that ends in .svg"),
        (["workload.promt=8"], "error: workload.promt: unknown key (got '8'), nearest known key: workload.prompt"),
        (["workload.kv_dtype=fp4"], "error: workload.kv_dtype: not one of the choices (got 'fp4')"),
        (["hardware=H100"], "nearest: h100_nvl, h100_pcie, h100_sxm; allowed: a10"),
        (["nonsense"], "error: nonsense: not an override, allowed: key=value or --json, --wide, --csv, --plot, --sort"),
        (["model.path=/does/not/exist"], "error: /does/not/exist/config.json: not found"),
    ],
)
def test_bad_input_exits_with_2_and_names_it(capsys: pytest.CaptureFixture[str], argv: list[str], message: str) -> None:
    assert main(["predict", "hardware=h200", *argv]) == 2
    assert message in capsys.readouterr().err


def test_results_without_room_are_named_with_the_way_to_see_them(capsys: pytest.CaptureFixture[str]) -> None:
    lists = ["engine=eager,server", "weight_dtype=bf16,int4", "tp=1,2", "batch=1,64", "output=8"]
    asked = ["predict", "model=llama3_1b,llama3_70b", "hardware=h200,l40s", *(f"workload.{text}" for text in lists)]
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert "request ms, max batch (--wide, --csv and --json have them)" in " ".join(out.split())
    assert max(len(line) for line in out.splitlines()) <= 80


def test_the_legend_explains_the_columns_shown_and_no_others(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model=llama_tiny", "hardware=h200", "workload.output=8"]) == 0
    served = " ".join(capsys.readouterr().out.split())
    assert "ttft, tpot, request ms: of one request among those in flight" in served
    assert "prefill, decode ms:" not in served


def test_all_problems_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model=x1", "hardware=y1", "workload.batch=-1"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 3


@pytest.mark.long
def test_a_type_transformers_cannot_build_is_named_with_a_way_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "rwkv9"}))
    assert main(["predict", f"model.path={tmp_path}", "hardware=h200"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: the closed form does not know the family 'rwkv9', and counting its operators with")
    assert said.endswith("; profile your own program that runs it (docs/your-own-program.md)")


@pytest.mark.long
def test_a_family_without_a_closed_form_is_counted_and_says_so(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = {"vocab_size": 100, "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 128, "rotary_dim": 8}
    (tmp_path / "config.json").write_text(json.dumps({**sizes, "model_type": "codegen"}))
    argv = ["predict", f"model.path={tmp_path}", "hardware=h200", "workload.prompt=16", "workload.tp=2", "--json"]
    assert main(argv) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    decode = found["phases"]["decode"]
    # Embeddings and the output matrix with its bias, and in each layer four projections, two matrices of a block with
    # biases, and a norm; one norm behind all.
    layer = 4 * 64 * 64 + 2 * 64 * 256 + 256 + 64 + 2 * 64
    assert found["parameters"]["total"] == 2 * 100 * 64 + 100 + 2 * layer + 2 * 64
    # Two devices read all weights but the table of the embedding once.
    read = (found["parameters"]["total"] - 100 * 64) * 2
    assert decode["bound_ms"]["datasheet"] == pytest.approx(read / (2 * 4800e9) * 1e3)
    assert decode["estimate_ms"]["mid"] > decode["bound_ms"]["datasheet"]
    notes = " ".join(found["notes"])
    assert "does not know the family 'codegen'" in notes and "several devices and of requests are not reckoned" in notes


def test_a_spread_no_engine_runs_has_bounds_and_a_reason_for_no_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    for spread, reason in (
        ("tp=3", "tp 3 does not divide its 32 attention heads"),
        ("ep=8", "ep 8: it has no experts to spread"),
    ):
        assert main(["predict", "model=llama3_8b", "hardware=h200", f"workload.{spread}", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["predictions"]
        decode = found["phases"]["decode"]
        assert decode["estimate_ms"]["mid"] is None and decode["bound_ms"]["datasheet"] > 0
        assert found["notes"] == [f"llama3_8b: no estimate, {reason}"]


def test_a_latent_cache_is_kept_by_every_tensor_parallel_device(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["predict", "model=deepseek_v2_lite,llama3_8b", "hardware=h200", "workload.tp=1,16", "--json"]
    assert main(argv) == 0
    found = json.loads(capsys.readouterr().out)["predictions"]
    one, many, whole, spread = (row["memory"]["kv_cache_bytes"] for row in found)
    assert many == 16 * one
    # Eight key heads on sixteen devices: each is kept twice.
    assert spread == 2 * whole


def test_a_data_sheet_without_the_format_bounds_by_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model=llama3_8b", "hardware=apple_m4_pro", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictions"]
    decode = found["phases"]["decode"]
    assert decode["bound_ms"]["datasheet"] == pytest.approx(decode["bytes_needed"] / 273e9 * 1e3)
    assert decode["estimate_ms"]["mid"] is None
    assert found["notes"] == [
        "the data sheet of apple_m4_pro gives no rate for bf16: bounds count memory traffic alone"
    ]


def test_sorting_by_a_figure_no_row_has_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "model=llama3_8b", "hardware=h200", "--sort", "cost"]) == 0
    assert capsys.readouterr().err == (
        "note: --sort cost: no row has this figure; it needs workload.output=… and hardware.price_per_hour=…\n"
    )


@pytest.mark.slow
def test_predicting_imports_neither_torch_nor_numpy(tmp_path: Path) -> None:
    code = (
        "import sys; from llm_perf_opt.cli import main; rc = main(sys.argv[1:]); "
        "print(sorted({'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules))); sys.exit(rc)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "predict", "model=llama3_8b", "hardware=h200"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", ["predict", "plan"])
def test_keys_of_runs_are_refused_with_their_names_here(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["infer.batch=8", "dataset.prompt_tokens=99"]
    assert main([command, "model=llama3_1b", "hardware=h200", *given]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: infer.batch: is of runs, here it is workload.batch=…",
        "error: dataset.prompt_tokens: is of runs, here it is workload.prompt=…",
    ]

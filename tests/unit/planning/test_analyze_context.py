"""What a user may say about a capture: model, hardware, clean times."""

import json
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from tests.support.nsys_builder import Export
from tests.support.report_runs import analyze_h200
from tests.support.schemas import valid_file


@pytest.fixture
def small(tmp_path: Path) -> Path:
    export = Export()
    export.range("decode_step", 0, 10_000)
    export.call(10, 20, 1)
    export.kernel("gemm_kernel", 100, 200, 1)
    return export.write(tmp_path / "run.sqlite")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["model=llama3_1b"], "model=llama3_1b: has no effect without -o DIR, where the report is written"),
        (["--clean-tpot-ms", "3"], "--clean-tpot-ms: has no effect without -o DIR, where the report is written"),
        (["-o", "out", "--clean-tpot-ms", "-3"], "--clean-tpot-ms: must be above 0 (got -3)"),
        (["-o", "out", "--clean-tpot-ms", "nan"], "--clean-tpot-ms: must be above 0 (got nan)"),
        (
            ["-o", "out", "model=llama3_1b", "hardware=h200,l4"],
            "analyze: 2 combinations of model, hardware and workload",
        ),
        (["-o", "out", "model=lama3_1b"], "model: no such choice (got 'lama3_1b'), nearest: llama3_1b"),
    ],
)
def test_what_makes_no_sense_is_refused(
    args: list[str], message: str, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["analyze", str(small), *args]) == 2
    assert f"error: {message}" in capsys.readouterr().err


def test_no_capture_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "model=llama3_1b", "-o", "out"]) == 2
    assert "error: analyze: no capture given" in capsys.readouterr().err


def test_a_capture_whose_name_holds_an_equals_sign_is_still_a_capture(small: Path, tmp_path: Path) -> None:
    odd = small.rename(tmp_path / "batch=1.sqlite")
    assert main(["analyze", "-v", str(odd), "-o", str(tmp_path / "out"), "--clean-tpot-ms", "0.02"]) == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert [stage["name"] for stage in manifest["stages"]] == ["given", "nsys"]
    assert manifest["stages"][0]["metrics"]["tpot_ms"] == {
        "value": 0.02,
        "unit": "ms",
        "how": "given as --clean-tpot-ms: median time per output token, no profiler",
        "per": None,
        "spread": None,
        "source": None,
        "reason": None,
    }


def test_what_was_said_is_recorded_in_the_run(tmp_path: Path) -> None:
    run = analyze_h200(tmp_path, ncu=False)
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["overrides"] == ["model=llama3_1b", "hardware=h200", "workload.prompt=1024"]
    static = valid_file("static", run / "static_analysis" / "static.json")
    assert (static["model"], static["hardware"]["name"], static["parameters"]["total"]) == (
        "llama3_1b",
        "h200",
        1_235_814_400,
    )

"""Many runs: filters, order, columns, the page of trends, and the report of a sweep."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest, write_manifest
from llm_perf_opt.core.records import Metric, Spread, StageRecord
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.index import index_run, parse_filter, sorted_runs, swept_keys
from llm_perf_opt.pipeline.sweep import SweptRun, build_sweep, is_near_front, pareto
from llm_perf_opt.report.draw import Chart, ChartPoint, chart_svg
from tests.support.report_runs import HOSTILE, write_run
from tests.support.schemas import valid, valid_file


def timed_run(folder: Path, tpot_ms: float, *, rate: float = 100.0, batch: int = 1, **parts: Any) -> Path:
    spread = Spread(p10=0.9 * tpot_ms, p90=1.1 * tpot_ms, n=9)
    metrics = {
        "tpot_ms": Metric(value=tpot_ms, unit="ms", how="clean pass, median of 9", spread=spread),
        "decode_tokens_per_s": Metric(value=rate, unit="tokens/s", how="clean pass, median of 9"),
        "device_name": Metric(value="NVIDIA H200", unit="", how="as torch names it"),
    }
    write_run(folder, StageRecord(name="direct_inference", status="ok", metrics=metrics))
    changes = {
        "run_id": folder.name,
        "config": {"model": {"name": "llama3_1b"}, "infer": {"batch": batch}},
        "overrides": (f"infer.batch={batch}", "run.device=cuda:0"),
        "environment": {"gpus": [{"name": "NVIDIA H200"}], "git": {"commit": "0123456789abcdef", "changed": False}},
        **parts,
    }
    write_manifest(folder, replace(read_manifest(folder), **changes))
    return folder


@pytest.fixture
def runs_dir(tmp_path: Path) -> Path:
    timed_run(tmp_path / "a", 10.0, batch=1)
    timed_run(tmp_path / "b", 30.0, batch=4, rate=300.0, created_at="2025-01-02T00:00:00+00:00")
    timed_run(tmp_path / "c", 20.0, batch=2, rate=90.0, created_at="2025-01-03T00:00:00+00:00")
    return tmp_path


def test_a_run_has_labels_numbers_and_keys(runs_dir: Path) -> None:
    run = index_run(runs_dir / "b")
    names = ("run", "model", "gpu", "commit", "tpot_ms", "infer.batch", "device_name", "unheard")
    assert [run.value(name) for name in names] == [
        "b", "llama3_1b", "NVIDIA H200", "0123456789ab", 30.0, "4", "NVIDIA H200", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("model=llama3_1b", "abc"), ("model!=llama3_1b", ""), ("tpot_ms<=20", "ac"), ("tpot_ms>20", "b"),
        ("infer.batch=4", "b"), ("tpot_ms=30", "b"), ("unheard=", "abc"), ("unheard<5", ""), ("gpu=NVIDIA H200", "abc"),
    ],
)  # fmt: skip
def test_filters_keep_what_they_say(text: str, kept: str, runs_dir: Path) -> None:
    runs = [index_run(runs_dir / name) for name in "abc"]
    assert "".join(run.run_id for run in runs if parse_filter(text).keeps(run)) == kept


@pytest.mark.parametrize("text", ["model", "=x", "tpot_ms<fast", "tpot_ms<nan", "tpot_ms>1e999"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--where: "):
        parse_filter(text)


def test_runs_are_sorted_by_number_and_those_without_come_last(runs_dir: Path) -> None:
    timed_run(runs_dir / "d", 1.0, stages=())
    runs = [index_run(runs_dir / name) for name in "dabc"]
    assert [run.run_id for run in sorted_runs(runs, "tpot_ms")] == ["a", "c", "b", "d"]
    assert [run.run_id for run in sorted_runs(runs, "tpot_ms", reverse=True)] == ["b", "c", "a", "d"]


def test_the_command_filters_sorts_and_writes_a_page(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = runs_dir / "trend.html"
    given = ["--where", "tpot_ms<25", "--sort", "tpot_ms", "--reverse", "--columns", "tpot_ms,infer.batch"]
    assert main(["runs", str(runs_dir), *given, "--html", str(page)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "run  date              model      device        tpot_ms  infer.batch",
        "---  ----------------  ---------  -----------  --------  -----------",
        "c    2025-01-03 00:00  llama3_1b  NVIDIA H200  20.00 ms            2",
        "a    2025-01-01 00:00  llama3_1b  NVIDIA H200  10.00 ms            1",
    ]
    text = page.read_text()
    assert text.count("<circle") == 2 and "b " not in text.partition("<tbody>")[2].partition("</tbody>")[0]
    assert main(["runs", str(runs_dir), "--json", "--columns", "tpot_ms", "--sort", "tpot_ms"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["run"], row["tpot_ms"]) for row in found] == [("a", 10.0), ("c", 20.0), ("b", 30.0)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["runs", "--where", "modle=llama3_1b"], "--where: no run has modle; did you mean model?"),
        (["runs", "--columns", "tpot_ms,tpot_mss"], "--columns: no run has tpot_mss; did you mean tpot_ms?"),
        (["runs", "--sort", "infer.bach"], "--sort: no run has infer.bach; did you mean infer.batch?"),
        (
            ["runs", "--columns", "xyzzy"],
            "--columns: no run has xyzzy; allowed: a label such as model, a number such as tpot_ms, or a key of the "
            "configuration in full",
        ),
        (["sweep", "report", "--objectives", "tpot_mss"], "--objectives: no run has tpot_mss; did you mean tpot_ms?"),
        (
            ["sweep", "report", "--objectives", "tpot_ms,xyzzy"],
            "--objectives: no run has xyzzy, allowed: decode_tokens_per_s, tpot_ms",
        ),
    ],
)
def test_a_name_no_run_knows_is_bad_input(
    words: list[str], said: str, runs_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, str(runs_dir)]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"
    assert not (runs_dir / "sweep.json").exists()


def test_a_number_is_compared_with_a_number(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(runs_dir), "--where", "tpot_ms=lt20"]) == 2
    assert capsys.readouterr().err == (
        "error: --where: tpot_ms is a number (got tpot_ms=lt20), allowed: such as 'tpot_ms<20'\n"
    )
    # A number that no run happens to have is one as well.
    assert main(["runs", str(runs_dir), "--where", "wall_ms=lt20"]) == 2
    assert "wall_ms is a number" in capsys.readouterr().err


def bench_run(folder: Path, **server: Any) -> Path:
    values = {
        "serve_ttft_ms": 50.0,
        "serve_tpot_ms": 9.0,
        "serve_ttft_p99_ms": 80.0,
        "serve_output_tokens_per_s": 400.0,
    }
    metrics = {name: Metric(value=value, unit="ms", how="8 requests") for name, value in values.items()}
    write_run(folder, StageRecord(name="bench", status="ok", metrics=metrics))
    environment = {"cpu": "EPYC", "gpus": [{"name": "NVIDIA L4"}]}
    config = {"server": {"name": "vllm", **server}}
    manifest = replace(read_manifest(folder), run_id=folder.name, environment=environment, config=config)
    write_manifest(folder, manifest)
    return folder


def test_runs_of_every_kind_show_their_numbers_and_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    timed_run(tmp_path / "model", 10.0)
    bench_run(tmp_path / "load", url="http://127.0.0.1:8000")
    bench_run(tmp_path / "remote", url="http://gpu7:8000")
    program = write_run(
        tmp_path / "program",
        StageRecord(name="torch_profiler", status="ok", metrics={"wall_ms": Metric(value=900.0, unit="ms", how="x")}),
    )
    write_manifest(program, replace(read_manifest(program), run_id="program"))
    # A dry run leaves a plan and is not a run.
    (tmp_path / "dry").mkdir()
    (tmp_path / "dry" / "plan.json").write_text("{}")
    assert main(["runs", str(tmp_path), "--json"]) == 0
    found = {row["run_id"]: row for row in json.loads(capsys.readouterr().out)}
    names = ("device", "ttft_ms", "tpot_ms", "tokens_per_s", "ttft_p99_ms", "wall_ms")
    assert {run: tuple(row[name] for name in names) for run, row in found.items()} == {
        "model": ("NVIDIA H200", None, 10.0, 100.0, None, None),
        "load": ("NVIDIA L4", 50.0, 9.0, 400.0, 80.0, None),
        "remote": ("", 50.0, 9.0, 400.0, 80.0, None),
        "program": ("", None, None, None, None, 900.0),
    }
    assert main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[5:-1] == ["TTFT", "TPOT", "tokens/s", "TTFT", "P99", "wall"]
    page = tmp_path / "trend.html"
    assert main(["runs", str(tmp_path), "--html", str(page), "--columns", "run,model,wall_ms"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["run", "date", "model", "device", "wall_ms"]
    assert main(["runs", str(tmp_path), "--html", str(page)]) == 0
    assert [name for name in ("tokens_per_s", "ttft_p99_ms", "wall_ms") if f">{name}<" in page.read_text()] == [
        "tokens_per_s", "ttft_p99_ms", "wall_ms",
    ]  # fmt: skip


def test_the_runs_of_a_sweep_are_named_by_what_was_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timed_run(tmp_path / "sweep" / "0", 10.0, batch=1)
    timed_run(tmp_path / "sweep" / "1", 20.0, batch=2)
    timed_run(tmp_path / "7", 30.0)
    for side in ("base", "candidate"):
        timed_run(tmp_path / side / "1", 10.0)
        timed_run(tmp_path / side / "2", 10.0)
    assert main(["runs", str(tmp_path), "--columns", "tpot_ms"]) == 0
    names = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines() if "llama3_1b" in line]
    passes = ["base/1", "base/2", "candidate/1", "candidate/2"]
    assert names == ["7", *passes, "0 batch=1", "1 batch=2"]


def test_a_known_name_without_a_value_is_none(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", str(runs_dir), "--columns", "ttft_ms", "--where", "workload.duration_s="]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 3
    assert main(["sweep", "report", str(runs_dir), "--objectives", "ttft_ms"]) == 0
    out = capsys.readouterr().out
    assert "★" not in out and "no run is on the Pareto front: none that succeeded has ttft_ms" in out


def test_the_front_holds_what_no_other_beats() -> None:
    points = [
        {"ms": 1.0, "rate": 10.0},
        {"ms": 2.0, "rate": 30.0},
        {"ms": 2.0, "rate": 20.0},
        {"ms": 1.0, "rate": 10.0},
    ]
    assert pareto(points, {"ms": True, "rate": False}) == (0, 1, 3)
    assert pareto([], {"ms": True}) == ()


def test_a_sweep_is_one_table_one_page_and_one_document(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timed_run(runs_dir / "d", 1.0, batch=8, status="failed")
    assert main(["sweep", "report", str(runs_dir)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "infer.batch", "tpot_ms", "decode_tokens_per_s", "front"]
    assert [line.split()[0] + line.split()[-1] for line in lines[2:6]] == ["a★", "b★", "ctokens/s", "dfailed"]
    found = valid_file("sweep", runs_dir / "sweep.json")
    assert (found["keys"], [run["on_front"] for run in found["runs"]]) == (["infer.batch"], [True, True, False, False])
    page = (runs_dir / "sweep.html").read_text()
    assert "tpot_ms against infer.batch" in page and "marked: the front" in page
    assert (
        (runs_dir / "sweep.md")
        .read_text()
        .startswith(
            "# Sweep\n\nBest in tpot_ms and decode_tokens_per_s (Pareto front): infer.batch=1; infer.batch=4. "
            "4 runs over infer.batch, 1 of them failed"
        )
    )
    assert main(["sweep", "report", str(runs_dir), "--json", "--objectives", "tpot_ms"]) == 0
    assert valid("sweep", json.loads(capsys.readouterr().out))["objectives"] == ["tpot_ms"]


def test_a_run_within_the_spread_of_the_best_is_not_called_worse(runs_dir: Path) -> None:
    found = build_sweep([index_run(runs_dir / name) for name in "abc"], objectives=("tpot_ms",))
    best, *others = found.runs

    def spread(run: SweptRun, p10: float, p90: float) -> SweptRun:
        return replace(run, numbers={"tpot_ms": replace(run.numbers["tpot_ms"], spread=Spread(p10=p10, p90=p90, n=9))})

    told = replace(found, runs=(spread(best, 9.0, 21.0), spread(others[0], 25.0, 35.0), spread(others[1], 18.0, 22.0)))
    assert [is_near_front(run, told) for run in told.runs] == [False, False, True]
    assert [is_near_front(run, found) for run in found.runs] == [False, False, False]


def test_a_sweep_of_failures_fails_and_no_sweep_is_bad_input(tmp_path: Path) -> None:
    timed_run(tmp_path / "s" / "0", 1.0, status="failed")
    assert main(["sweep", "report", str(tmp_path / "s")]) == 1
    assert main(["sweep", "report", str(tmp_path / "nowhere")]) == 2
    (tmp_path / "empty").mkdir()
    assert main(["sweep", "report", str(tmp_path / "empty")]) == 2


def test_only_keys_that_differ_were_swept(runs_dir: Path) -> None:
    runs = [index_run(runs_dir / name) for name in "abc"]
    assert swept_keys(runs) == ("infer.batch",)
    assert build_sweep(runs[:1]).keys == ()


def test_texts_of_others_are_no_markup_in_a_drawing() -> None:
    point = ChartPoint(x=HOSTILE, y=1.0, low=0.5, high=1.5, group=HOSTILE, text=HOSTILE)
    drawing = chart_svg(Chart(title=HOSTILE, x_label=HOSTILE, y_unit="ms", points=(point, replace(point, group="b"))))
    assert "<script>" not in drawing and drawing.count("<circle") == 2

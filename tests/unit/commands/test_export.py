"""A run for others: tables for notebooks, text for Prometheus, and what MLflow and Weights & Biases are reported."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt import plugin
from llm_perf_opt.cli import main
from llm_perf_opt.core.records import Metric, Spread
from llm_perf_opt.errors import ManifestError, ToolError
from llm_perf_opt.pipeline.loaded_run import RunTable
from llm_perf_opt.report.render.openmetrics import metric_name, render_openmetrics
from llm_perf_opt.sql.view_schema import VIEWS
from tests.support.report_runs import capture, stage, write_run
from tests.unit.commands.test_compare_command import STEADY, run_of
from tests.unit.pipeline.test_many_runs import timed_run
from tests.unit.sql.test_sql import nsys_capture


def test_a_run_is_loaded_as_tables(tmp_path: Path) -> None:
    run = plugin.load_run(run_of(tmp_path / "run", STEADY))
    assert run.samples.columns["tpot_ms"] == list(STEADY)
    assert run.samples.rows()[0] == {"sample_id": "a", "repeat": 0, "tpot_ms": 10.0, "ttft_ms": 50.0, "e2e_ms": 120.0}
    [row] = run.metrics.rows()
    assert (row["stage"], row["metric"], row["value"], row["unit"]) == (
        "direct_inference",
        "peak_memory_bytes",
        1000,
        "bytes",
    )
    assert (len(run.kernels), len(run.operators), len(run.ranges)) == (0, 0, 0)
    with pytest.raises(ManifestError, match="not found"):
        plugin.load_run(str(tmp_path / "nowhere"))


def test_kernels_of_a_capture_are_a_table(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, stage("nsys", run, {"analysis_json": ("analysis.json", capture(("gemm", 4, 400), ("add", 1, 10)))}))
    kernels = plugin.load_run(run).kernels
    assert (list(kernels.columns["name"]), list(kernels.columns["total_ns"])) == (["gemm", "add"], [400, 10])


def test_a_frame_without_its_package_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = plugin.load_run(run_of(tmp_path / "run", STEADY)).samples
    for name in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ToolError, match="pip install pandas"):
        table.to_pandas()
    with pytest.raises(ToolError, match="pip install polars"):
        table.to_polars()


def test_tables_become_frames_of_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    frame = plugin.load_run(run_of(tmp_path / "run", STEADY)).samples.to_pandas()
    assert frame["tpot_ms"].median() == 10.0


def test_tables_become_frames_of_polars(tmp_path: Path) -> None:
    pytest.importorskip("polars")
    run = plugin.load_run(run_of(tmp_path / "run", STEADY))
    assert (run.samples.to_polars()["tpot_ms"].median(), run.metrics.to_polars().height) == (10.0, 1)
    mixed = RunTable(columns={"value": [3, None, 0.5], "name": ["a", "b", "c"], "count": [1, 2, 3]}).to_polars()
    assert (mixed["value"].to_list(), str(mixed["count"].dtype)) == ([3.0, None, 0.5], "Int64")


def test_every_table_of_a_run_or_capture_becomes_a_parquet_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import duckdb

    capture_file, run = nsys_capture(tmp_path), run_of(tmp_path / "run", STEADY)
    assert main(["export", str(capture_file), "--to", "parquet", "-o", str(tmp_path / "a")]) == 0
    assert main(["export", str(run), "--to", "parquet", "-o", str(tmp_path / "b")]) == 0
    assert "the run holds no capture: kernels, launches, " in capsys.readouterr().err
    assert {path.stem for path in (tmp_path / "a").iterdir()} == {view.name for view in VIEWS}
    assert {path.stem for path in (tmp_path / "b").iterdir()} == {v.name for v in VIEWS if v.needs != "capture"}
    with duckdb.connect() as connection:
        for view in VIEWS:
            written = connection.from_parquet(str(tmp_path / "a" / f"{view.name}.parquet"))
            assert written.columns == list(view.names)
            assert [str(kind) for kind in written.types] == [column.type for column in view.columns]
        samples = connection.from_parquet(str(tmp_path / "b" / "samples.parquet"))
        assert samples.filter("metric = 'tpot_ms'").aggregate("median(value)").fetchall() == [(10.0,)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--to", "parquet"], "--to parquet: needs -o DIR"),
        (["--to", "parquet", "-o", "{}"], "is not an empty directory"),
    ],
)
def test_parquet_needs_a_directory_of_its_own(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = nsys_capture(tmp_path)
    assert main(["export", str(path), *(word.format(tmp_path) for word in words)]) == 2
    assert said in capsys.readouterr().err


NUMBERS = {
    "tpot_ms": Metric(value=20.0, unit="ms", how="clean\npass", spread=Spread(p10=18.0, p90=22.0, n=9)),
    "peak_memory_bytes": Metric(value=1000, unit="bytes", how="highest"),
    "device_name": Metric(value="H200", unit="", how="torch"),
}


def test_numbers_are_gauges_in_base_units() -> None:
    labels = {"run": 'a"b\\c\nd'}
    lines = [
        "# HELP llm_perf_peak_memory_bytes highest",
        "# TYPE llm_perf_peak_memory_bytes gauge",
        'llm_perf_peak_memory_bytes{run="a\\"b\\\\c\\nd",stat="value"} 1000',
        "# HELP llm_perf_tpot_seconds clean\\npass",
        "# TYPE llm_perf_tpot_seconds gauge",
        'llm_perf_tpot_seconds{run="a\\"b\\\\c\\nd",stat="median"} 0.02',
        'llm_perf_tpot_seconds{run="a\\"b\\\\c\\nd",stat="p10"} 0.018',
        'llm_perf_tpot_seconds{run="a\\"b\\\\c\\nd",stat="p90"} 0.022',
    ]
    assert render_openmetrics(NUMBERS, labels, strict=False).splitlines() == lines
    strict = render_openmetrics(NUMBERS, labels, strict=True).splitlines()
    assert strict[-1] == "# EOF" and strict[2] == "# UNIT llm_perf_peak_memory_bytes bytes"


def test_names_are_those_prometheus_allows() -> None:
    assert metric_name("decode_tokens_per_s", "tokens_per_second") == "llm_perf_decode_tokens_per_second"
    assert metric_name("my.stage/number", "") == "llm_perf_my_stage_number"


def test_openmetrics_is_read_by_the_parser_of_prometheus() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    text = render_openmetrics(NUMBERS, {"run": 'a"b\\c\nd'}, strict=True)
    found = {family.name: family for family in parser.text_string_to_metric_families(text)}
    assert [(s.labels["stat"], s.value) for s in found["llm_perf_tpot_seconds"].samples] == [
        ("median", 0.02), ("p10", 0.018), ("p90", 0.022),
    ]  # fmt: skip


def test_the_command_prints_or_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = timed_run(tmp_path / "run", 20.0)
    assert main(["export", str(run), "--to", "prometheus"]) == 0
    printed = capsys.readouterr().out
    labels = 'run="run",model="llama3_1b",device="NVIDIA H200",commit="0123456789ab"'
    assert f'llm_perf_tpot_seconds{{{labels},stat="median"}} 0.02' in printed
    assert main(["export", str(run), "--to", "openmetrics", "-o", str(tmp_path / "a.prom")]) == 0
    assert (tmp_path / "a.prom").read_text().endswith("# EOF\n")
    assert [p.name for p in tmp_path.glob(".*")] == []
    assert main(["export", str(run), "--to", "wandb", "-o", "x"]) == 2


class Told:
    """Takes the place of a package, and keeps what it was reported."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args[0] if args else kwargs))
            return self._opened() if name in ("start_run", "init") else None

        return call

    @contextmanager
    def _opened(self) -> Iterator["Told"]:
        yield self


class TrackerError(Exception):
    pass


def stand_in(name: str, told: Told) -> ModuleType:
    module = ModuleType(name)
    module.__getattr__ = told.__getattr__  # type: ignore[method-assign]
    module.Error = TrackerError  # type: ignore[attr-defined]
    module.exceptions = SimpleNamespace(MlflowException=TrackerError)  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_trackers_are_told_every_number(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    monkeypatch.setitem(sys.modules, name, stand_in(name, told))
    run = timed_run(tmp_path / "run", 20.0)
    (run / "report.html").write_text("page")
    assert main(["export", str(run), "--to", name, "--project", "mine"]) == 0
    numbers = {"tpot_ms": 20.0, "tpot_ms_p10": 18.0, "tpot_ms_p90": 22.0, "decode_tokens_per_s": 100.0}
    words = [word for word, _ in told.calls]
    if name == "mlflow":
        assert words == ["set_experiment", "start_run", "set_tags", "log_params", "log_metrics", *["log_artifact"] * 2]
        assert dict(told.calls)["log_params"] == {"model.name": "llama3_1b", "infer.batch": "1"}
        assert dict(told.calls)["log_metrics"] == numbers
    else:
        assert words == ["init", "log", "save", "save"]
        assert dict(told.calls)["log"] == numbers
        assert dict(told.calls)["init"]["project"] == "mine"


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_link_in_a_run_of_somebody_else_is_not_sent(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    monkeypatch.setitem(sys.modules, name, stand_in(name, told))
    run = timed_run(tmp_path / "run", 20.0)
    (tmp_path / "id_rsa").write_text("mine")
    (run / "report.html").symlink_to(tmp_path / "id_rsa")
    assert main(["export", str(run), "--to", name]) == 0
    sent = [what for word, what in told.calls if word in ("log_artifact", "save")]
    assert sent == [str(run / "manifest.json")]


def test_a_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Of the folder of a collector, which others may write to as well."""
    run = timed_run(tmp_path / "run", 20.0)
    (tmp_path / "mine").write_text("mine")
    for place in (".a.prom.tmp", "a.prom"):
        (tmp_path / place).symlink_to(tmp_path / "mine")
    assert main(["export", str(run), "--to", "prometheus", "-o", str(tmp_path / "a.prom")]) == 0
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "a.prom").is_symlink()


@pytest.mark.parametrize(("name", "call", "hint"), [
    ("mlflow", "set_experiment", "MLFLOW_TRACKING_URI"), ("wandb", "init", "WANDB_MODE=offline"),
])  # fmt: skip
def test_a_tracker_that_refuses_is_quoted_with_what_to_do(
    name: str,
    call: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise TrackerError("no store of this kind. See elsewhere.")

    module = stand_in(name, Told())
    setattr(module, call, refuse)
    monkeypatch.setitem(sys.modules, name, module)
    assert main(["export", str(timed_run(tmp_path / "run", 20.0)), "--to", name]) == 1
    error = capsys.readouterr().err
    assert f"--to {name}: no store of this kind; " in error and hint in error


def test_a_tracker_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main(["export", str(timed_run(tmp_path / "run", 20.0)), "--to", "mlflow"]) == 1
    assert "pip install 'llm-perf-opt[mlflow]'" in capsys.readouterr().err

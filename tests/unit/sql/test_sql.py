"""SQL views: the same rows from nsys, torch and rocpd, and statements that reach nothing else."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.api.load import open_any
from llm_perf_opt.cli import main
from llm_perf_opt.errors import ConfigError, ProfilingError
from llm_perf_opt.sql.database import SqlLimits
from llm_perf_opt.sql.view_schema import BY_NAME, VIEWS
from tests.support.fixtures_dir import REPO
from tests.support.nsys_builder import Export
from tests.support.rocpd_builder import Rocpd
from tests.support.trace_builder import event, step, write_trace


def nsys_capture(folder: Path) -> Path:
    """A step of 100 ns with two kernels and a copy, and a kernel that a graph launched after it."""
    export = Export()
    export.range("step", 0, 100)
    export.range("inner", 20, 60)
    export.call(5, 8, 1)
    export.kernel("gemm", 10, 20, 1)
    export.call(25, 28, 2)
    export.kernel("void add<float>(float*)", 30, 50, 2, device=1, stream=9)
    export.call(62, 64, 3, "cudaMemcpyAsync")
    export.copy(70, 80, 3, size_bytes=40)
    export.call(110, 112, 4, "cudaGraphLaunch")
    export.kernel("gemm", 120, 130, 4)
    return export.write(folder / "capture.sqlite")


def torch_capture(folder: Path) -> Path:
    return write_trace(folder / "trace.json.gz", step())


def rocpd_capture(folder: Path) -> Path:
    found = Rocpd()
    found.marker("step", 0, 100)
    found.call("hipLaunchKernel", 5, 8, 1)
    found.kernel("gemm.kd", 10, 20, 1)
    found.copy("MEMORY_COPY_HOST_TO_DEVICE", 70, 80, 2, 40)
    return found.write(folder / "results.db")


CAPTURES = {"nsys": nsys_capture, "torch": torch_capture, "rocpd": rocpd_capture}


@pytest.fixture(scope="module")
def nsys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nsys_capture(tmp_path_factory.mktemp("nsys"))


def ask(path: Path, sql: str, **limits: Any) -> list[dict[str, Any]]:
    return open_any(path, limits=SqlLimits(**limits)).query(sql).rows()


def test_kernels_have_their_place_and_their_launch(nsys: Path) -> None:
    sql = "SELECT short_name, class, start_ns, duration_ns, device, stream, range, operator, module, graph FROM kernels"
    nothing = {"operator": None, "module": None}
    assert ask(nsys, f"{sql} ORDER BY start_ns") == [
        dict(short_name="gemm", start_ns=10, duration_ns=10, device=0, stream=7, range="step", graph=None, **nothing)
        | {"class": "GEMM"},
        dict(short_name="add", start_ns=30, duration_ns=20, device=1, stream=9, range="inner", graph=None, **nothing)
        | {"class": "elementwise"},
        dict(short_name="gemm", start_ns=120, duration_ns=10, device=0, stream=7, range=None, graph=3, **nothing)
        | {"class": "GEMM"},
    ]
    joined = (
        "SELECT l.name, l.work_count, l.launches_work FROM kernels k JOIN launches l ON k.launch = l.id ORDER BY l.id"
    )
    assert [tuple(row.values()) for row in ask(nsys, joined)] == [
        ("cudaLaunchKernel", 1, True),
        ("cudaLaunchKernel", 1, True),
        ("cudaGraphLaunch", 1, True),
    ]


def test_ranges_count_the_kernels_inside_them_and_copies_what_is_exposed(nsys: Path) -> None:
    sql = "SELECT name, duration_ns, gpu_idle_ns, kernel_count, kernel_ns, depth, parent FROM ranges ORDER BY start_ns"
    assert [tuple(row.values()) for row in ask(nsys, sql)] == [
        ("step", 100, 70, 2, 30, 0, None),
        ("inner", 40, 20, 1, 20, 1, 0),
    ]
    sql = "SELECT name, duration_ns, exposed_ns, size_bytes, bytes_per_s, range FROM copies"
    assert [tuple(row.values()) for row in ask(nsys, sql)] == [("Copy Device-to-Host", 10, 10, 40, 4e9, "step")]


def test_idle_time_of_ranges_is_missing_where_no_gpu_work_was_recorded(tmp_path: Path) -> None:
    export = Export()
    export.range("step", 0, 100)
    found = ask(export.write(tmp_path / "capture.sqlite"), "SELECT duration_ns, gpu_idle_ns, kernel_count FROM ranges")
    assert [tuple(row.values()) for row in found] == [(100, None, 0)]


def test_gaps_add_up_to_the_idle_time_and_have_cause_owner_and_neighbours(nsys: Path) -> None:
    rows = ask(nsys, "SELECT start_ns, end_ns, cause, owner, before, after FROM gaps ORDER BY start_ns")
    assert [tuple(row.values()) for row in rows] == [
        (20, 30, "idle.launch", "inner", "gemm", "add"),
        (50, 120, "idle.launch", None, "add", "gemm"),
    ]
    parts = "host_ns + sync_ns + copy_ns + between_ns + unattributed_ns"
    (row,) = ask(nsys, f"SELECT sum({parts}) AS parts, sum(duration_ns) AS whole, sum(copy_ns) AS copied FROM gaps")
    assert row == {"parts": 80, "whole": 80, "copied": 10}
    idle = open_any(nsys).analysis
    assert idle is not None and idle.gpu.idle_ns == 80


def test_gaps_are_those_of_each_process(tmp_path: Path) -> None:
    export = Export()
    for pid, shift in ((0x1000000, 0), (0x2000000, 5_000_000)):
        # Start-up in each, and a wait of two milliseconds for the host.
        export.call(shift, shift + 9, 90 + shift, "cuModuleLoadData", tid=pid | 1)
        for number, at in enumerate((10, 2_000_000)):
            export.call(shift + at, shift + at + 3, shift + number + 1, tid=pid | 1)
            export.kernel("gemm", shift + at + 5, shift + at + 15, shift + number + 1, pid=pid)
    rows = ask(
        export.write(tmp_path / "two.sqlite"), "SELECT process, start_ns, duration_ns FROM gaps ORDER BY start_ns"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("process (1)", 25, 1_999_980),
        ("process (2)", 5_000_025, 1_999_980),
    ]


def test_operators_of_a_torch_trace_own_their_kernels(tmp_path: Path) -> None:
    path = torch_capture(tmp_path)
    rows = ask(path, "SELECT name, self_ns, kernel_ns, input_shapes, range FROM operators ORDER BY start_ns LIMIT 2")
    assert [tuple(row.values())[:3] for row in rows] == [("aten::linear", 9_750, 0), ("aten::addmm", 30_250, 20_500)]
    assert [row["range"] for row in rows] == ["decode", "decode"]
    (kernel,) = ask(path, "SELECT operator, range, stream FROM kernels")
    # The trace does not name the stream.
    assert kernel == {"operator": "aten::addmm", "range": "decode", "stream": None}


def test_names_are_values_whatever_characters_they_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "a\x00b'; DROP VIEW kernels; -- \" 🎉\x1b[31m"
    events = [
        event("cpu_op", f"aten::{name}", "10.000", "40.000"),
        event("cuda_runtime", "cudaLaunchKernel", "20.000", "5.000", correlation=1),
        event("kernel", name, "30.000", "5.000", pid=0, tid=7, correlation=1, device=0),
    ]
    path = write_trace(tmp_path / "trace.json", events)
    opened = open_any(path)
    assert opened.query("SELECT name, operator FROM kernels").rows() == [{"name": name, "operator": f"aten::{name}"}]
    assert opened.query("SELECT count(*) AS n FROM kernels").rows() == [{"n": 1}]
    opened.kernels.parquet(tmp_path / "kernels.parquet")
    for form in ("table", "csv", "json"):
        assert main(["query", str(path), "SELECT name FROM kernels", "--format", form]) == 0
        assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("kind", CAPTURES)
def test_every_view_has_its_columns_and_types_for_every_kind_of_capture(kind: str, tmp_path: Path) -> None:
    opened = open_any(CAPTURES[kind](tmp_path))
    for view in VIEWS:
        # The second time it was read.
        for sql in (f"DESCRIBE {view.name}", f"SELECT * FROM {view.name} LIMIT 3", f"DESCRIBE {view.name}"):
            found = opened.query(sql)
            names = [row["column_name"] for row in found.rows()] if "DESC" in sql else list(found.columns)
            assert names == list(view.names)
            if "DESC" in sql:
                assert [row["column_type"] for row in found.rows()] == [column.type for column in view.columns]
        assert opened.table(view.name).columns.keys() == opened.query(f"FROM {view.name}").columns.keys()
    counts = {name: len(opened.table(name)) for name in ("kernels", "launches", "copies", "ranges", "ledger")}
    assert min(counts.values()) > 0, counts


def test_the_documentation_lists_every_view_with_its_columns() -> None:
    text = (REPO / "docs" / "sql.md").read_text(encoding="utf-8")
    rows = {
        name: (meaning, tuple(re.findall(r"`(\w+)`", columns)))
        for name, meaning, columns in re.findall(r"^\| `(\w+)` \| ([^|]+) \| ((?:`\w+`(?:, )?)+) \|$", text, re.M)
    }
    assert rows == {view.name: (view.meaning, view.names) for view in VIEWS}


REFUSED = (
    # Files.
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "FROM read_text('/etc/passwd')",
    "FROM \"read_text\"('/etc/passwd')",
    "FROM system.main.read_blob /* files */ ('/etc/passwd')",
    "FROM glob('/*')",
    "FROM sniff_csv('/etc/passwd')",
    "FROM parquet_metadata('/etc/passwd')",
    "FROM read_duckdb('/tmp/x.db')",
    "COPY kernels TO '/tmp/stolen.csv'",
    "EXPORT DATABASE '/tmp/stolen'",
    "IMPORT DATABASE '/tmp/stolen'",
    "ATTACH '/tmp/x.db' AS x",
    "ATTACH ':memory:' AS x",
    # Network, extensions.
    "SELECT * FROM read_parquet('https://example.com/x.parquet')",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SELECT * FROM sqlite_scan('/tmp/x', 'y')",
    # The environment and other objects of the process.
    "SELECT getenv('HOME')",
    "SELECT * FROM nsys",
    "FROM pandas_scan(140000000000000)",
    "FROM arrow_scan(1, 2, 3)",
    "FROM python_map_function(1)",
    # Settings, writing, several statements.
    "SET memory_limit = '100GB'",
    "PRAGMA memory_limit = '100GB'",
    "PRAGMA enable_external_access = true",
    "PRAGMA enable_profiling",
    "RESET lock_configuration",
    "SET VARIABLE x = 1",
    "FROM enable_logging(storage = 'file', storage_path = '/tmp/stolen')",
    "CALL enable_logging()",
    "CHECKPOINT",
    "CREATE TABLE x AS SELECT 1",
    "CREATE OR REPLACE VIEW kernels AS SELECT 1",
    "DROP VIEW kernels",
    "INSERT INTO kernels VALUES (1)",
    "SELECT 1; DROP VIEW kernels",
    "PREPARE p AS SELECT 1",
    "BEGIN",
    "EXPLAIN ANALYZE SELECT 1",
    # Statements in texts, which hide what they read.
    "FROM query('SELECT * FROM ' || 'kernels')",
    "FROM query_table('ker' || 'nels')",
    "FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "",
    "-- nothing",
    "SELEC 1",
)


@pytest.fixture(scope="module")
def opened(nsys: Path) -> Any:
    return open_any(nsys)


@pytest.mark.parametrize("sql", REFUSED)
def test_a_statement_cannot_reach_anything_but_the_views(sql: str, opened: Any) -> None:
    with pytest.raises(ConfigError, match=r"^query: "):
        opened.query(sql)
    # And the next one is answered.
    assert opened.query("SELECT count(*) AS n FROM kernels").rows() == [{"n": 3}]


@pytest.mark.parametrize("setting", ["enable_external_access", "memory_limit", "lock_configuration", "threads"])
def test_the_lock_down_cannot_be_changed_even_by_statements_that_are_let_through(setting: str, opened: Any) -> None:
    import duckdb

    connection = opened._database._connected()
    with pytest.raises(duckdb.Error, match=r"locked|Cannot|cannot|disabled"):
        connection.execute(f"SET {setting} = '{'1GB' if setting == 'memory_limit' else 'true'}'")


def test_nothing_is_printed_while_a_statement_runs_in_an_interactive_session() -> None:
    # DuckDB takes a program without a file for one.
    code = (
        "from llm_perf_opt.sql.database import connect_locked\n"
        "print(*connect_locked().execute(\"SELECT current_setting('enable_progress_bar')\").fetchone())"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_view_that_was_not_read_can_be_described_and_gives_an_error_instead_of_rows(nsys: Path) -> None:
    connection = open_any(nsys)._database._connected()
    assert len(connection.execute("DESCRIBE kernels").fetchall()) == len(BY_NAME["kernels"].columns)
    import duckdb

    with pytest.raises(duckdb.Error, match="the view kernels was not read"):
        connection.execute("SELECT * FROM query_table('ker' || 'nels')").fetchall()


def test_statements_are_bounded_in_memory_and_time(nsys: Path) -> None:
    with pytest.raises(ProfilingError, match="needs more than 64 MiB"):
        ask(nsys, "SELECT list(a.range || b.range) FROM range(9000) a, range(9000) b", memory_bytes=64 << 20)
    endless = (
        "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c WHERE a.range + b.range = c.range"
    )
    with pytest.raises(ProfilingError, match=r"stopped after 0\.2 s"):
        ask(nsys, endless, timeout_s=0.2)


BIG_VALUE = "SELECT length(repeat('x', 1000000000) || repeat('y', 1000000000) || repeat('z', 1000000000))"


def test_the_command_bounds_its_own_address_space(nsys: Path) -> None:
    # A single value of a function is outside DuckDB's limit.
    words = [sys.executable, "-m", "llm_perf_opt.cli", "query", str(nsys), BIG_VALUE, "--memory", "64"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: query: needs more than 64 MiB; select or group fewer rows\n"


def test_results_keep_whole_numbers_whole_and_missing_values_missing(opened: Any) -> None:
    sql = (
        "SELECT sum(duration_ns) AS total, 1::HUGEINT << 70 AS large, NULL::BIGINT AS none, "
        "1.5::DECIMAL(9, 2) AS part, [1, NULL] AS parts, DATE '2026-01-02' AS day, 'nan'::DOUBLE AS nan FROM kernels"
    )
    found = opened.query(sql)
    (row,) = found.rows()
    assert (row["total"], row["none"], row["part"], row["parts"]) == (40, None, 1.5, [1, None])
    assert row["large"] == 2**70
    assert found.types["total"] == "BIGINT" and str(row["day"]) == "2026-01-02" and row["nan"] is None
    assert list(opened.query("SELECT 1 AS a, 2 AS a").rows()[0].items()) == [("a", 1), ("a_1", 2)]
    assert opened.query("SELECT stream FROM kernels WHERE false").rows() == []
    graphs = opened.query("SELECT graph FROM kernels ORDER BY start_ns")
    assert graphs["graph"].tolist() == [None, None, 3]


def test_the_command_prints_a_table_json_and_csv(
    nsys: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sql = "SELECT short_name, sum(duration_ns) AS ns, any_value(operator) AS op FROM kernels GROUP BY ALL ORDER BY 1"
    assert main(["query", str(nsys), sql, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"short_name": "add", "ns": 20, "op": None},
        {"short_name": "gemm", "ns": 20, "op": None},
    ]
    assert main(["query", str(nsys), sql, "--format", "csv"]) == 0
    assert capsys.readouterr().out == "short_name,ns,op\nadd,20,\ngemm,20,\n"
    assert main(["query", str(nsys), sql]) == 0
    assert capsys.readouterr().out.splitlines()[2].split() == ["add", "20"]
    assert main(["query", str(nsys), "SELECT 'a' AS a WHERE false", "--format", "json"]) == 0
    assert capsys.readouterr().out == "[]\n"
    # No operators in a capture of nsys.
    assert main(["query", str(nsys), "SELECT name, self_ns FROM operators"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()[::2]] == [["name", "self_ns"], ["no", "rows"]]
    out = tmp_path / "rows.json"
    assert main(["query", str(nsys), sql, "--format", "json", "-o", str(out)]) == 0
    assert [row["ns"] for row in json.loads(out.read_text())] == [20, 20]
    capsys.readouterr()
    assert main(["query", "--schema", "--format", "json"]) == 0
    assert [view["view"] for view in json.loads(capsys.readouterr().out)] == [view.name for view in VIEWS]
    assert main(["query", "--schema"]) == 0
    assert "duration_ns  BIGINT   end_ns - start_ns" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["query"], "a run or capture and a statement are needed"),
        (["query", "nowhere.sqlite", "SELECT 1"], "nowhere.sqlite: no such file or directory"),
        (["query", "{}", "SELECT x FROM kernels"], "column"),
        (["query", "{}", "SELECT 1", "--format", "parquet"], "needs -o FILE"),
        (["query", "{}", "SELECT 1", "-o", "x"], "has no effect with --format table"),
        (["query", "{}", "SELECT 1", "--memory", "1"], "--memory: too little (got 1)"),
        (["query", "{}", "SELECT 1", "--timeout", "0"], "--timeout: must be above 0 seconds (got 0)"),
    ],
)
def test_bad_input_is_refused(words: list[str], said: str, nsys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word.format(nsys) for word in words]) == 2
    assert said in capsys.readouterr().err


def test_rows_are_written_as_parquet_with_their_types(nsys: Path, tmp_path: Path) -> None:
    import duckdb

    out = tmp_path / "kernels' rows.parquet"
    assert main(["query", str(nsys), "FROM kernels", "--format", "parquet", "-o", str(out)]) == 0
    with duckdb.connect() as connection:
        written = connection.from_parquet(str(out))
        assert dict(zip(written.columns, map(str, written.types), strict=True)) == {
            column.name: column.type for column in BY_NAME["kernels"].columns
        }
        assert written.order("start_ns").project("short_name, graph, operator").fetchall() == [
            ("gemm", None, None),
            ("add", None, None),
            ("gemm", 3, None),
        ]
    assert [path.name for path in tmp_path.iterdir()] == [out.name]

"""The SQLite export of nsys: the real capture, other schemas, and files that are broken or hostile."""

import csv
import io
import os
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.nsys_summary import summarize_kernels
from llm_perf_opt.capture.timeline import CapturedGpu, PageFaults
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, GpuIdle, GraphTotals
from llm_perf_opt.errors import ParseError
from tests.support.answers import claim_of, scope_of
from tests.support.nsys_builder import OTHER_THREAD, Export, h200_export


@pytest.fixture(scope="module")
def h200(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return h200_export(tmp_path_factory.mktemp("h200"))


@pytest.fixture(scope="module")
def analysis(h200: Path) -> CaptureAnalysis:
    return analyze_timelines([read_nsys_sqlite(h200)])


def _small() -> Export:
    export = Export()
    export.range("decode", 0, 100)
    export.call(5, 8, 1)
    export.kernel("k", 20, 50, 1)
    return export


def test_the_capture_of_the_h200_has_its_known_totals(analysis: CaptureAnalysis) -> None:
    (source,) = analysis.sources
    assert (source.producer, source.schema, source.kernel_count) == ("nsys 2025.3.2.0", "3.20.3", 19_611)
    assert sum(k.instances for k in analysis.kernels) == 19_611
    assert sum(k.total_ns for k in analysis.kernels) == source.kernel_ns == 77_515_507
    assert analysis.notes == ()


def test_the_last_prefill_and_decode_of_the_h200_are_as_counted_by_hand(analysis: CaptureAnalysis) -> None:
    rows = {row.name: row for row in analysis.ranges}
    prefill, decode, step = rows["prefill"].last, rows["decode"].last, rows["decode_step"].last
    assert (prefill.kernel_count, prefill.gpu_busy_ns) == (661, 5_949_154)
    assert (decode.kernel_count, decode.gpu_busy_ns, decode.wall_ns) == (5_553, 15_602_626, 189_452_463)
    assert (step.kernel_count, step.gpu_busy_ns) == (694, 1_938_816)
    assert {name: row.instances for name, row in rows.items()} == {"prefill": 4, "decode": 4, "decode_step": 24}
    for row in rows.values():
        parts = row.idle
        assert parts is not None
        whole = parts.waiting_for_host_ns + parts.between_kernels_ns + parts.waiting_for_copy_or_sync_ns
        assert whole + parts.unattributed_ns == row.gpu_idle_ns


def test_decode_on_the_h200_is_found_launch_bound(analysis: CaptureAnalysis) -> None:
    finding = claim_of(analysis, "launch_bound")
    assert (finding.scope, scope_of(analysis).place) == ("steady", "decode_step")
    assert (finding.share, finding.max_gain) == (pytest.approx(0.896, abs=0.001), pytest.approx(9.637, abs=0.001))
    assert "CUDA graph" in finding.remedy
    decode = next(row for row in analysis.ranges if row.name == "decode")
    assert (decode.last.gpu_busy_ns, decode.last.wall_ns) == (15_602_626, pytest.approx(189.45e6, rel=1e-4))


# Twice: a prefill of 12 kernels, then 10 steps, each a graph of the same 12 and one kernel alongside it.
def test_kernels_of_a_cuda_graph_count_where_its_nodes_were_traced(tmp_path: Path) -> None:
    found = analyze_timelines([read_nsys_sqlite(h200_export(tmp_path, "graphs_node"))])
    rows = {r.name: (r.instances, r.kernel_count, r.gpu_busy_ns) for r in found.ranges}
    assert rows == {
        "prefill": (2, 24, 83_487),
        "decode": (2, 2 * 10 * 13, 865_850),
        "decode_step": (20, 2 * 10 * 13, 865_850),
    }
    assert (found.graphs.launches_traced_as_a_whole, found.notes) == (0, ())


def test_a_cuda_graph_traced_as_a_whole_is_busy_and_named(tmp_path: Path) -> None:
    found = analyze_timelines([read_nsys_sqlite(h200_export(tmp_path, "graphs_whole"))])
    rows = {r.name: (r.instances, r.kernel_count, r.gpu_busy_ns) for r in found.ranges}
    busy_ns = 918_941 + 25_600
    assert rows == {"prefill": (2, 24, 83_776), "decode": (2, 20, busy_ns), "decode_step": (20, 20, busy_ns)}
    assert found.graphs == GraphTotals(launches_traced_as_a_whole=20, total_ns=918_941)
    assert found.notes == (
        "graphs_whole.sqlite: 20 CUDA graph launches traced as a whole, without a list of kernels; capture "
        "with `nsys profile --cuda-graph-trace=node` (pipeline.nsys.cuda_graph_trace=node) to see them",
    )


def test_the_gpu_is_described_as_the_capture_describes_it(h200: Path) -> None:
    assert read_nsys_sqlite(h200).devices == (
        CapturedGpu(
            name="NVIDIA H200",
            sm_count=132,
            clock_hz=1_980_000_000,
            l2_bytes=62_914_560,
            memory_bytes=150_109_880_320,
            memory_bytes_per_s=4_814_304_000_000,
            compute_capability="9.0",
        ),
    )


@pytest.mark.real_nsys
def test_the_kernel_summary_equals_nsys_stats_to_the_nanosecond(h200: Path, analysis: CaptureAnalysis) -> None:
    done = subprocess.run(
        ["nsys", "stats", "--report", "gpukernsum", "--format", "csv", "--force-export=false", str(h200)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    if "Total Time (ns)" not in done.stdout:
        done = subprocess.run(
            ["nsys", "stats", "--report", "cuda_gpu_kern_sum", "--format", "csv", str(h200)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    table = done.stdout[done.stdout.index("Time (%)") :]
    theirs = defaultdict(list)
    for row in csv.DictReader(io.StringIO(table)):
        theirs[row["Name"]].append(row)
    assert {k.name for k in analysis.kernels} == set(theirs)
    compared = 0
    for kernel in analysis.kernels:
        rows = theirs[kernel.name]
        assert kernel.total_ns == sum(int(r["Total Time (ns)"]) for r in rows)
        assert kernel.instances == sum(int(r["Instances"]) for r in rows)
        assert kernel.min_ns == min(int(r["Min (ns)"]) for r in rows)
        assert kernel.max_ns == max(int(r["Max (ns)"]) for r in rows)
        # nsys 2022.4 lists a kernel once per launch shape; medians can be compared where there is one.
        if len(rows) == 1:
            compared += 1
            assert f"{kernel.avg_ns:.1f}" == rows[0]["Avg (ns)"]
            assert f"{kernel.med_ns:.1f}" == rows[0]["Med (ns)"]
            assert f"{kernel.stddev_ns:.1f}" == rows[0]["StdDev (ns)"]
    assert compared >= 20


@pytest.mark.real_nsys
def test_the_kernels_inside_ranges_equal_the_nvtx_summary_of_nsys(h200: Path, analysis: CaptureAnalysis) -> None:
    done = subprocess.run(
        ["nsys", "stats", "--report", "nvtxkernsum", "--format", "csv", "--force-export=false", str(h200)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    if "Kern Inst" not in done.stdout:
        pytest.skip("this nsys has no report nvtxkernsum")
    theirs = {}
    for line in csv.DictReader(io.StringIO(done.stdout[done.stdout.index("NVTX Range") :])):
        theirs[(line["NVTX Range"], line["Kernel Name"])] = (int(line["Kern Inst"]), int(line["Total Time (ns)"]))
    # nsys gives a kernel to the innermost range only.
    for row in analysis.ranges:
        if row.name in ("prefill", "decode_step"):
            assert row.kernels is not None
            ours = {(row.name, k.name): (k.instances, k.total_ns) for k in row.kernels}
            assert ours == {key: value for key, value in theirs.items() if key[0] == row.name}


def test_an_export_of_2022_is_read_under_its_own_table_names(tmp_path: Path) -> None:
    path = _small().write(tmp_path / "old.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA")
        connection.execute("UPDATE EXPORT_META_DATA SET value = '3.0.0' WHERE name = 'EXPORT_SCHEMA_VERSION'")
    connection.close()
    timeline = read_nsys_sqlite(path)
    assert (timeline.schema, len(timeline.kernels), timeline.notes) == ("3.0.0", 1, ())


@pytest.mark.parametrize(
    ("schema", "note"),
    [
        (
            "9.1.0",
            "schema version 9.1.0 is not among those this version knows (2.x to 3.25); it was tried all the same",
        ),
        (None, "the export does not name its schema version; it was read by its table and column names"),
        ("new", "schema version 'new' is not a version; the export was read by its table and column names"),
    ],
)
def test_an_unknown_schema_is_tried_and_said(tmp_path: Path, schema: str | None, note: str) -> None:
    export = _small()
    export.schema = schema
    timeline = read_nsys_sqlite(export.write(tmp_path / "new.sqlite"))
    assert (len(timeline.kernels), timeline.notes) == (1, (note,))


def test_registered_range_names_come_from_the_string_table(tmp_path: Path) -> None:
    export = _small()
    export.registered_range("registered", 10, 20)
    rows = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))]).ranges
    assert sorted(r.name for r in rows) == ["decode", "registered"]


def test_rows_that_cannot_be_are_left_out_counted_and_said(tmp_path: Path) -> None:
    export = _small()
    export.kernel("no end", 60, None, 2)
    export.kernel("backwards", 90, 80, 3)
    export.range("open", 10, None)
    export.range("backwards", 30, 20)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))])
    assert [(k.name, k.total_ns) for k in analysis.kernels] == [("k", 30)]
    assert [r.name for r in analysis.ranges] == ["decode"]
    assert analysis.notes == (
        "a.sqlite: left out: 1 row of CUPTI_ACTIVITY_KIND_KERNEL without a start or an end",
        "a.sqlite: left out: 1 row of CUPTI_ACTIVITY_KIND_KERNEL with an end before the start",
        "a.sqlite: left out: 1 range still open when the capture stopped",
        "a.sqlite: left out: 1 row of NVTX_EVENTS with an end before the start",
    )


def test_a_kernel_is_counted_once_when_two_calls_claim_it(tmp_path: Path) -> None:
    export = _small()
    export.call(200, 210, 1)
    export.range("later", 190, 300)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))])
    assert {r.name: r.kernel_count for r in analysis.ranges} == {"decode": 1, "later": 0}
    assert analysis.notes == (
        "a.sqlite: duplicate correlation ids within a process: 1 host call; the first of them is taken as the launch",
    )


def test_equal_correlation_ids_of_two_processes_are_not_confused(tmp_path: Path) -> None:
    export = _small()
    other = 5 * 0x1000000
    export.call(1005, 1008, 1, tid=other | 7)
    export.kernel("other", 1020, 1050, 1, pid=other)
    export.range("other decode", 1000, 1100, tid=other | 7)
    rows = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))]).ranges
    assert {r.name: (r.kernel_count, r.gpu_busy_ns) for r in rows} == {"decode": (1, 30), "other decode": (1, 30)}


def test_correlation_ids_that_lie_far_apart_are_still_joined(tmp_path: Path) -> None:
    export = _small()
    export.call(60, 62, 4_000_000_000)
    export.kernel("far", 70, 80, 4_000_000_000)
    (row,) = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))]).ranges
    assert row.kernel_count == 2


def test_sql_in_names_is_only_a_name(tmp_path: Path) -> None:
    name = "'; DROP TABLE StringIds; -- \" ${x} <script>"
    export = _small()
    export.kernel(name, 60, 70, 2)
    export.call(55, 57, 2)
    export.range(name, 50, 80)
    path = export.write(tmp_path / "it's a 'file'.sqlite")
    analysis = analyze_timelines([read_nsys_sqlite(path)])
    assert {k.name for k in analysis.kernels} == {"k", name}
    assert {r.name: r.kernel_count for r in analysis.ranges} == {"decode": 2, name: 1}
    assert {k.name for k in analyze_timelines([read_nsys_sqlite(path)]).kernels} == {"k", name}


def test_a_name_of_four_megabytes_is_cut(tmp_path: Path) -> None:
    export = _small()
    export.kernel("x" * (4 << 20), 60, 70, 2)
    export.range("y" * (4 << 20), 10, 20)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))])
    assert max(len(k.name) for k in analysis.kernels) == 4097
    assert max(len(r.name) for r in analysis.ranges) == 4097


def test_a_missing_string_leaves_a_kernel_nameless_but_counted(tmp_path: Path) -> None:
    path = _small().write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM StringIds WHERE value = 'k'")
    connection.close()
    (kernel,) = analyze_timelines([read_nsys_sqlite(path)]).kernels
    assert (kernel.name, kernel.total_ns) == ("(no name, string 2)", 30)


def test_a_renamed_column_is_named_in_the_error(tmp_path: Path) -> None:
    path = _small().write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN end TO finish")
    connection.close()
    with pytest.raises(ParseError, match=r"table CUPTI_ACTIVITY_KIND_KERNEL has no column end \(it has start, finish"):
        read_nsys_sqlite(path)


def test_text_where_a_time_belongs_is_an_error_not_a_traceback(tmp_path: Path) -> None:
    path = _small().write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'")
    connection.close()
    with pytest.raises(ParseError, match="could not be read"):
        read_nsys_sqlite(path)


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(h200: Path, tmp_path: Path, share: float) -> None:
    data = h200.read_bytes()
    path = tmp_path / "cut.sqlite"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ParseError, match=r"truncated \(\d+ of 3629056 bytes\)"):
        read_nsys_sqlite(path)


def test_damaged_pages_are_an_error(h200: Path, tmp_path: Path) -> None:
    data = bytearray(h200.read_bytes())
    data[4096 : len(data) // 2] = os.urandom(len(data) // 2 - 4096)
    path = tmp_path / "bad.sqlite"
    path.write_bytes(data)
    with pytest.raises(ParseError):
        read_nsys_sqlite(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"not a database, certainly not", "not a SQLite file"),
        (b"\x1f\x8b" + b"0" * 200, "not a SQLite file"),
    ],
)
def test_a_file_that_is_no_database_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.sqlite"
    path.write_bytes(content)
    with pytest.raises(ParseError, match=words):
        read_nsys_sqlite(path)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ParseError, match="No such file"):
        read_nsys_sqlite(tmp_path / "none.sqlite")
    with pytest.raises(ParseError, match="directory"):
        read_nsys_sqlite(tmp_path)


def test_another_database_is_not_taken_for_an_export(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    connection.close()
    with pytest.raises(ParseError, match="not an export of nsys"):
        read_nsys_sqlite(path)


def test_a_locked_file_is_said_to_be_locked(tmp_path: Path) -> None:
    path = _small().write(tmp_path / "a.sqlite")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(ParseError, match="locked by another program"):
            read_nsys_sqlite(path)
    finally:
        writer.close()


def _damage_row_id(path: Path, row: int, wrong: int) -> None:
    """Give one kernel of a file of many another row id, as a flipped byte on a disk does."""
    with sqlite3.connect(path) as connection:
        ((page,),) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        ).fetchall()
        ((size,),) = connection.execute("PRAGMA page_size").fetchall()
    connection.close()
    data = bytearray(path.read_bytes())
    root = (page - 1) * size
    assert data[root] == 13, "the table must lie on one page"
    pointer = root + 8 + 2 * (row - 1)
    cell = root + int.from_bytes(data[pointer : pointer + 2], "big")
    assert data[cell + 1] == row
    data[cell + 1] = wrong
    path.write_bytes(data)


@pytest.mark.parametrize(("row", "wrong"), [(20, 90), (50, 5)])
@pytest.mark.parametrize("read", [read_nsys_sqlite, summarize_kernels])
def test_a_row_id_out_of_order_is_an_error_and_not_fewer_kernels(
    tmp_path: Path, row: int, wrong: int, read: Callable[[Path], object]
) -> None:
    export = Export()
    for i in range(50):
        export.kernel("k", 10 * i, 10 * i + 5, i)
    path = export.write(tmp_path / "a.sqlite")
    _damage_row_id(path, row, wrong)
    with pytest.raises(ParseError, match=r"table CUPTI_ACTIVITY_KIND_KERNEL is damaged: only \d+ of its rows"):
        read(path)


def test_row_ids_with_gaps_are_no_damage(tmp_path: Path) -> None:
    export = _small()
    export.kernel("gone", 60, 70, 2)
    export.kernel("far", 80, 90, 3)
    path = export.write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid = 2")
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET rowid = 500000 WHERE rowid = 3")
    connection.close()
    assert {k.name for k in analyze_timelines([read_nsys_sqlite(path)]).kernels} == {"k", "far"}
    assert {k.name for k in summarize_kernels(path)[0]} == {"k", "far"}


def _both(path: Path) -> list[tuple[str, int, int, float | None]]:
    """Kernels of the full analysis, which those of the summary alone must equal."""
    full, alone = analyze_timelines([read_nsys_sqlite(path)]).kernels, summarize_kernels(path)[0]
    assert [replace(k, stddev_ns=0.0) for k in alone] == [replace(k, stddev_ns=0.0) for k in full]
    assert [k.stddev_ns for k in alone] == pytest.approx([k.stddev_ns for k in full])
    return [(k.name, k.instances, k.total_ns, k.med_ns) for k in full]


def test_two_ids_of_one_text_are_one_kernel_in_the_summary_too(tmp_path: Path) -> None:
    export = _small()
    export.kernel("again", 60, 64, 2)
    export.kernel("again", 70, 76, 2)
    path = export.write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE StringIds SET value = 'k' WHERE value = 'again'")
    connection.close()
    assert _both(path) == [("k", 3, 40, 6.0)]


def test_names_equal_where_they_are_cut_are_one_kernel_in_the_summary_too(tmp_path: Path) -> None:
    export = Export()
    export.kernel("x" * 5000, 0, 4, 1)
    export.kernel("x" * 5000 + "y", 10, 16, 2)
    assert _both(export.write(tmp_path / "a.sqlite")) == [("x" * 4096 + "…", 2, 10, 5.0)]


def test_an_export_without_strings_has_nameless_kernels_in_the_summary_too(tmp_path: Path) -> None:
    path = _small().write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE StringIds")
    connection.close()
    assert _both(path) == [("(no name, string 2)", 1, 30, 30.0)]


def test_string_ids_of_more_than_32_bits_keep_their_kernels_apart(tmp_path: Path) -> None:
    export = Export(strings={"one": 5_000_000_001, "two": 5_000_000_002, "cudaStreamSynchronize": 5_000_000_003})
    export.kernel("one", 0, 4, 1)
    export.kernel("two", 10, 16, 2)
    export.range("decode", 0, 100)
    export.call(1, 2, 1, "launch")
    export.call(30, 60, 3, "cudaStreamSynchronize")
    path = export.write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (start, end) VALUES (20, 21)")
    connection.close()
    assert _both(path) == [("two", 1, 6, 6.0), ("one", 1, 4, 4.0), ("(no name, string -1)", 1, 1, 1.0)]
    assert read_nsys_sqlite(path).calls.waits.tolist() == [False, True]


@pytest.mark.parametrize(
    ("device", "used"), [(None, [0]), (-1, [0]), (2**40, [0]), (2_000_000_000, [0, 2_000_000_000])]
)
def test_a_device_number_out_of_place_costs_neither_memory_nor_the_result(
    tmp_path: Path, device: int | None, used: list[int]
) -> None:
    path = _small().write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        row = (60, 70, device, 9, 0x1000000, 2, 7)
        connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    connection.close()
    analysis = analyze_timelines([read_nsys_sqlite(path)])
    assert (analysis.gpu.devices_used, analysis.gpu.kernel_ns) == (tuple(used), 40)
    said = "a.sqlite: some kernels do not say which device ran them"
    assert (said in analysis.notes) == (used == [0])


def _changed(path: Path, *statements: str) -> Path:
    with sqlite3.connect(_small().write(path)) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
    return path


def test_texts_that_are_not_utf8_are_read_with_replacement_characters(tmp_path: Path) -> None:
    path = _changed(
        tmp_path / "a.sqlite",
        "UPDATE NVTX_EVENTS SET text = CAST(x'70fffe' AS TEXT)",
        "UPDATE StringIds SET value = CAST(x'6bd6' AS TEXT) WHERE value = 'k'",
        "INSERT INTO META_DATA_EXPORT VALUES ('ZONE', CAST(x'd6e5edf2f0' AS TEXT))",
    )
    timeline = read_nsys_sqlite(path)
    named = {timeline.names[code] for code in (*timeline.ranges.name, *timeline.kernels.name)}
    assert {"p\ufffd\ufffd", "k\ufffd"} <= named
    assert timeline.producer == "nsys 2025.3.2"
    assert summarize_kernels(path)[0][0].name == "k\ufffd"


@pytest.mark.parametrize("change", [f"start = {-(2**63)}", f"end = {2**63 - 1}"])
@pytest.mark.parametrize("read", [read_nsys_sqlite, summarize_kernels])
def test_times_no_clock_can_have_are_an_error(tmp_path: Path, change: str, read: Callable[[Path], object]) -> None:
    path = _changed(tmp_path / "a.sqlite", f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {change}")
    with pytest.raises(ParseError, match=r"no clock can have|Overflow|Out of Range"):
        read(path)


@pytest.mark.parametrize("word", ["²", "9" * 5000, "many"])
def test_a_count_of_processors_that_is_none_is_unknown(tmp_path: Path, word: str) -> None:
    path = _changed(
        tmp_path / "a.sqlite",
        "CREATE TABLE TARGET_INFO_GPU (name TEXT, smCount TEXT, totalMemory INTEGER)",
        f"INSERT INTO TARGET_INFO_GPU VALUES ('X', '{word}', 5)",
    )
    assert read_nsys_sqlite(path).devices == (CapturedGpu(name="X", memory_bytes=5),)


def test_a_description_of_the_gpu_nested_too_deeply_is_only_a_note(tmp_path: Path) -> None:
    path = _changed(
        tmp_path / "a.sqlite",
        "CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)",
        f"INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('GpuInfo', '{'[' * 200_000}')",
    )
    (note,) = read_nsys_sqlite(path).notes
    assert note.startswith("the description of the GPU could not be understood (RecursionError")


def test_a_call_without_a_name_still_launches(tmp_path: Path) -> None:
    export = _small()
    export.call(1, 2, 77, "cudaGetDevice")
    path = export.write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET nameId = NULL WHERE correlationId = 1")
    connection.close()
    (row,) = analyze_timelines([read_nsys_sqlite(path)]).ranges
    assert (row.kernel_count, row.launch_calls) == (1, 1)


@pytest.mark.parametrize("table", ["ENUM_CUDA_MEMCPY_OPER", "StringIds"])
def test_an_id_that_is_no_number_is_the_id_of_nothing(
    tmp_path: Path, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_perf_opt.capture.readers.nsys_database.MANY_IDS", 0)
    export = Export()
    export.kernel("gemm", 10, 20, 1)
    export.copy(30, 40, 2)
    path = export.write(tmp_path / "x.sqlite")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE new (id, {'value' if table == 'StringIds' else 'name, label'})")
        connection.execute(f"DROP TABLE IF EXISTS {table}")
        connection.execute(f"ALTER TABLE new RENAME TO {table}")
        connection.execute(f"INSERT INTO {table} SELECT 'nan', {'1' if table == 'StringIds' else '1, 1'}")
    assert len(read_nsys_sqlite(path).kernels.start_ns) == 1


def test_a_copy_that_does_not_say_its_size_makes_the_sum_unknown_not_smaller(tmp_path: Path) -> None:
    export = _small()
    export.copy(60, 70, 2, size_bytes=100)
    export.copy(80, 90, 3, size_bytes=50, kind=1)
    path = export.write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY SELECT 95, 97, 0, 4, globalPid, NULL, 2 FROM "
            "CUPTI_ACTIVITY_KIND_MEMCPY LIMIT 1"
        )
    connection.close()
    analysis = analyze_timelines([read_nsys_sqlite(path)])
    assert {c.kind: (c.instances, c.size_bytes) for c in analysis.copies} == {
        "Copy Device-to-Host": (2, None),
        "Copy Host-to-Device": (1, 50),
    }
    assert "a.sqlite: 1 copies or sets do not say how many bytes; the sum of their kind is unknown" in analysis.notes


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_numpy_comes_without_threads_and_the_environment_stays_as_it_was() -> None:
    code = (
        "import os; from llm_perf_opt.system.arrays import load_numpy\n"
        "before = dict(os.environ); load_numpy(); assert dict(os.environ) == before\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    assert done.stdout.strip() == "1"


def test_page_migrations_of_unified_memory_are_a_kind_of_their_own_and_no_launch_without_a_call(tmp_path: Path) -> None:
    export = Export()
    export.call(90, 100, 1)
    export.copy(20, 30, 0, size_bytes=64, kind=11)
    export.copy(40, 60, 0, size_bytes=128, kind=11)
    export.kernel("k", 110, 150, 1)
    export.copy(180, 200, 0, size_bytes=32, kind=12)
    export.call(250, 260, 2, name="cudaFree")
    timeline = read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))
    analysis = analyze_timelines([timeline])
    assert [(row.kind, row.instances, row.total_ns, row.size_bytes) for row in analysis.copies] == [
        ("Page migration Host-to-Device", 2, 30, 192),
        ("Page migration Device-to-Host", 1, 20, 32),
    ]
    assert timeline.copies.by_driver is not None and timeline.copies.by_driver.tolist() == [True, True, True]
    # Before the launch returns at 100 and after the kernel the host works; the driver's copies are copying.
    assert analysis.gpu.idle == GpuIdle(
        waiting_for_host_ns=10 + 40 + 30,
        between_kernels_ns=10,
        waiting_for_copy_or_sync_ns=50,
        unattributed_ns=0,
    )
    assert timeline.lost_launches == 0 and timeline.page_faults is None


def test_page_faults_are_counted_where_they_were_recorded(tmp_path: Path) -> None:
    path = _changed(
        tmp_path / "a.sqlite",
        "CREATE TABLE CUDA_UM_CPU_PAGE_FAULT_EVENTS (start INTEGER, globalPid INTEGER, address INTEGER)",
        "INSERT INTO CUDA_UM_CPU_PAGE_FAULT_EVENTS VALUES (1, 1, 1), (2, 1, 2)",
        "CREATE TABLE CUDA_UM_GPU_PAGE_FAULT_EVENTS (start INTEGER, end INTEGER, numberOfPageFaults INTEGER)",
        "INSERT INTO CUDA_UM_GPU_PAGE_FAULT_EVENTS VALUES (1, 2, 7), (3, 4, 5)",
    )
    timeline = read_nsys_sqlite(path)
    assert timeline.page_faults == PageFaults(cpu_count=2, gpu_count=12)
    assert "unified memory: 2 page faults of the CPU, 12 of the GPU" in timeline.notes


def test_of_several_adapters_the_gpu_is_the_one_that_has_cuda(tmp_path: Path) -> None:
    path = _changed(
        tmp_path / "a.sqlite",
        "CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, smCount INTEGER, computeMajor INTEGER, cuDevice INTEGER)",
        "INSERT INTO TARGET_INFO_GPU VALUES (0, 'Microsoft Basic Render Driver', 0, 0, -1), "
        "(1, 'NVIDIA RTX 5000 Ada Generation Laptop GPU', 76, 8, 0), (2, 'Intel(R) Iris(R) Xe Graphics', 0, 0, -1)",
    )
    assert [device.name for device in read_nsys_sqlite(path).devices] == ["NVIDIA RTX 5000 Ada Generation Laptop GPU"]


def test_launches_without_a_kernel_are_counted_but_not_those_into_a_graph_that_is_being_captured(
    tmp_path: Path,
) -> None:
    export = Export()
    export.call(0, 5, 1)
    export.kernel("k", 10, 20, 1)
    export.call(30, 31, 2, name="cudaStreamBeginCapture_v10000")
    export.call(32, 34, 3)
    export.call(36, 37, 4, name="cudaStreamEndCapture_v10000")
    export.call(40, 44, 5, name="cudaGraphLaunch_v10000")
    export.call(50, 55, 6, name="cuLaunchKernelEx")
    # Another thread captures nothing.
    export.call(33, 34, 7, tid=OTHER_THREAD)
    # One call inside another: their one kernel is the inner one's.
    export.call(60, 70, 8)
    export.call(61, 69, 9, name="cuLaunchKernel")
    export.kernel("k", 75, 80, 9)
    export.call(90, 95, 10, name="cudaMemcpyAsync")
    timeline = read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))
    assert timeline.lost_launches == 3
    assert timeline.notes == (
        "3 of 5 calls that launch GPU work have no work in the capture: its records were lost, or the recording ended "
        "before the GPU ran it",
    )

"""Databases of rocprofv3: kernels, copies, calls and ranges in the same Timeline as those of other captures."""

import json
import sqlite3
from pathlib import Path

import pytest

from llm_perf_opt.capture.readers.kinds import NSYS, ROCPD, kind_of
from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.rocpd import read_rocpd
from llm_perf_opt.capture.timeline import CapturedGpu, LaunchShape
from llm_perf_opt.cli import main
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.diagnosis.diagnosis_document import GpuIdle
from llm_perf_opt.errors import ParseError
from tests.support.rocpd_builder import OTHER_GUID, Rocpd

MI300 = CapturedGpu(name="AMD Instinct MI300X", sm_count=304, clock_hz=2_100_000_000, memory_bytes=206_141_652_992)


def _small() -> Rocpd:
    rows = Rocpd()
    rows.marker("prefill", 0, 100)
    rows.call("hipLaunchKernel", 5, 8, 3)
    rows.kernel("void gemm<float>(int)", 20, 50, 3)
    rows.call("hipMemcpyAsync", 52, 54, 4)
    rows.copy("MEMORY_COPY_HOST_TO_DEVICE", 60, 70, 4, 64)
    rows.call("hipDeviceSynchronize", 55, 75, 5)
    return rows


def test_kernels_copies_calls_and_ranges_are_joined_by_the_number_of_the_stack(tmp_path: Path) -> None:
    timeline = read_rocpd(_small().write(tmp_path / "a.db"))
    assert (timeline.kind, timeline.producer, timeline.schema) == ("rocpd", "rocprofv3", "3")
    assert (timeline.devices, timeline.notes, timeline.lost_launches) == ((MI300,), (), 0)
    assert (timeline.origin.host, timeline.origin.processes) == ("node7", ("bmm (22)", "bmm (23)"))
    # 1,000 work items in blocks of 256 are four blocks.
    assert timeline.launch_shapes == (LaunchShape(grid=(4, 4, 1), block=(256, 1, 1), registers=128, shared_bytes=4096),)
    analysis = analyze_timelines([timeline])
    (row,) = analysis.ranges
    assert (row.name, row.kernel_count, row.kernel_ns, row.launch_calls) == ("prefill", 1, 30, 2)
    assert [(k.name, k.instances, k.total_ns) for k in analysis.kernels] == [("void gemm<float>(int)", 1, 30)]
    assert [(c.kind, c.instances, c.total_ns, c.size_bytes) for c in analysis.copies] == [
        ("Copy Host-to-Device", 1, 10, 64)
    ]
    assert analysis.gpu.idle == GpuIdle(
        waiting_for_host_ns=4, between_kernels_ns=6, waiting_for_copy_or_sync_ns=10, unattributed_ns=0
    )
    assert timeline.calls.launches.tolist() == [True, True, False]
    assert timeline.calls.waits.tolist() == [False, False, True]


def test_a_copy_whose_ends_are_not_named_is_not_taken_for_one_of_the_host(tmp_path: Path) -> None:
    rows = _small()
    rows.rows["memory_copies"] += [
        (OTHER_GUID, "copy", 80, 90, 0, 5, 4, 64, None, "GPU", 0, 0),
        (OTHER_GUID, "copy", 91, 95, 0, 5, 4, 64, "CPU", "GPU", 0, 0),
    ]
    timeline = read_rocpd(rows.write(tmp_path / "a.db"))
    names = [timeline.names[code] for code in timeline.copies.name.tolist()]
    assert names == ["Copy Host-to-Device", "Copy Unknown-to-Device", "Copy Host-to-Device"]


def test_two_processes_of_one_database_do_not_share_numbers(tmp_path: Path) -> None:
    rows = _small()
    rows.call("hipModuleLaunchKernel", 6, 9, 3, guid=OTHER_GUID, tid=23)
    rows.kernel("other", 25, 30, 3, guid=OTHER_GUID)
    timeline = read_rocpd(rows.write(tmp_path / "a.db"))
    called = [timeline.names[int(timeline.calls.name[call])] for call in timeline.kernels.call]
    assert called == ["hipLaunchKernel", "hipModuleLaunchKernel"]
    assert timeline.kernels.process.tolist() == [0, 1]
    assert timeline.thread_process.tolist() == [0, 1]


def test_records_without_a_call_have_none_and_broken_ones_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = _small()
    rows.call("hipLaunchKernel", 80, 82, 0)
    rows.kernel("alone", 90, 95, 0, stream=None)
    rows.kernel("backwards", 99, 90, 0)
    rows.kernel("endless", 99, None, 0)
    timeline = read_rocpd(rows.write(tmp_path / "a.db"))
    assert timeline.kernels.call.tolist() == [0, -1]
    assert timeline.kernels.stream.tolist() == [0, 5]
    assert timeline.notes[:2] == (
        "left out: 1 row of kernels without a start or an end",
        "left out: 1 row of kernels with an end before the start",
    )


def test_what_was_not_recorded_is_said_with_the_option_that_records_it(tmp_path: Path) -> None:
    rows = Rocpd()
    rows.call("hipMemcpy", 0, 5, 1)
    assert read_rocpd(rows.write(tmp_path / "a.db")).notes == (
        "no kernels were recorded; record with `rocprofv3 --sys-trace` (or --kernel-trace)",
        "copies were called and not recorded; record with `rocprofv3 --sys-trace` (or --memory-copy-trace)",
    )
    rows = Rocpd()
    rows.kernel("k", 0, 5, 1)
    (note,) = read_rocpd(rows.write(tmp_path / "b.db")).notes
    assert note.startswith("the host calls were not recorded")


def test_a_database_of_rocprofv3_is_known_by_its_tables_whatever_it_is_called(tmp_path: Path) -> None:
    for name in ("22_results.db", "results.sqlite", "results"):
        assert kind_of(_small().write(tmp_path / name)) == ROCPD
    other = tmp_path / "b.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE StringIds (id INTEGER)")
    connection.close()
    assert kind_of(other) == NSYS
    with pytest.raises(ParseError, match=r"a SQLite file of rocprofv3 \(rocpd\)"):
        read_nsys_sqlite(tmp_path / "results.sqlite")


def test_a_database_without_its_views_is_refused(tmp_path: Path) -> None:
    path = _small().write(tmp_path / "a.db")
    with sqlite3.connect(path) as connection:
        connection.execute("DROP VIEW regions")
    connection.close()
    with pytest.raises(ParseError, match="a rocpd database without the view regions"):
        read_rocpd(path)


def test_analyze_reads_it_and_keeps_the_environment_to_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = _small().write(tmp_path / "a.db"), tmp_path / "out"
    assert main(["analyze", "--json", "-o", str(out), str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sources"][0]["kind"], found["gpu"]["name"], found["gpu"]["kernel_ns"]) == ("rocpd", MI300.name, 30)
    written = b"".join(file.read_bytes() for file in out.rglob("*") if file.is_file())
    assert b"hf_abcdef" not in written and b"sekret" not in written


def test_a_shape_that_is_none_is_unknown(tmp_path: Path) -> None:
    rows = _small()
    rows.kernel("odd", 90, 95, 0)
    rows.rows["kernels"][-1] = (*rows.rows["kernels"][-1][:9], "wide", 1, 1, 0, 1, 1, 8, 0)
    timeline = read_rocpd(rows.write(tmp_path / "a.db"))
    assert timeline.kernels.shape is not None and timeline.kernels.shape.tolist() == [0, -1]

"""Kernel summaries as nsys prints them, ours in the same columns, and where old runs kept theirs."""

from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite
from llm_perf_opt.capture.readers.nsys_stats import (
    KernelSummary,
    SummaryRow,
    parse_stats,
    read_kernel_summary,
)
from llm_perf_opt.capture.readers.nsys_summary import (
    COLUMNS,
    find_kernel_summary,
    summary_notes,
    to_kernel_rows,
    write_kernel_summary,
)
from llm_perf_opt.diagnosis.analyze import analyze_timelines
from llm_perf_opt.errors import ParseError
from tests.support.fixtures_dir import shared_fixtures
from tests.support.nsys_builder import Export

HEAD = "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"


@pytest.mark.parametrize(
    ("name", "rows", "launches", "total_ms"),
    [("all", 113, 1_695_983, 4946.064742), ("decode", 46, 78_016, 179.07), ("prefill", 97, 6_660, 65.69)],
)
def test_published_summaries_have_their_known_totals(name: str, rows: int, launches: int, total_ms: float) -> None:
    shared = shared_fixtures()
    if shared is None:
        pytest.skip("the published captures are not alongside this checkout")
    found = read_kernel_summary(shared / "rtx5090" / f"nsys_kern_sum.{name}.csv")
    assert (len(found), sum(r.instances for r in found)) == (rows, launches)
    digits = len(str(total_ms).split(".")[1])
    assert round(sum(r.total_ns for r in found) / 1e6, digits) == total_ms


@pytest.mark.parametrize("name", ["all", "clip", "decode", "prefill", "projector", "sam"])
def test_every_published_summary_is_read_to_the_last_column(name: str) -> None:
    shared = shared_fixtures()
    if shared is None:
        pytest.skip("the published captures are not alongside this checkout")
    rows = read_kernel_summary(shared / "rtx5090" / f"nsys_kern_sum.{name}.csv")
    kernels = to_kernel_rows(rows, source=name)
    for row, kernel in zip(sorted(rows, key=lambda r: (-r.total_ns, r.name)), kernels, strict=True):
        assert (row.name, row.instances, row.total_ns) == (kernel.name, kernel.instances, kernel.total_ns)
        assert kernel.avg_ns == pytest.approx(row.avg_ns, abs=0.051)
        assert kernel.time_pct == pytest.approx(row.time_pct, abs=0.051)


def test_a_row_is_read_whole_also_when_its_name_holds_commas_and_quotes() -> None:
    row = '95.0,"33,696",1,33696.0,33696.0,33696,33696,0.0,"void f<1, ""x"">(int, T2)"'
    text = f"Processing [a.sqlite] with [gpukernsum.py]...\n{HEAD}\n{row}\n\n"
    assert parse_stats(text, source="a.csv").rows == (
        SummaryRow(
            name='void f<1, "x">(int, T2)',
            instances=1,
            total_ns=33_696,
            time_pct=95.0,
            avg_ns=33_696.0,
            med_ns=33_696.0,
            min_ns=33_696,
            max_ns=33_696,
            stddev_ns=0.0,
        ),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ID,Metric Name\n1,x\n", "not a kernel summary of nsys"),
        (f"{HEAD}\n1,2,3\n", "line 2: 3 columns instead of 9"),
        (f"{HEAD}\n1,x,3,4,5,6,7,8,name\n", r"line 2: Total Time \(ns\) is not a whole number of 0 or more"),
        (f"{HEAD}\n1,,3,4,5,6,7,8,name\n", "must be whole numbers"),
        (f"{HEAD}\n1,-600,3,4,5,6,7,8,name\n", r"Total Time \(ns\) is not a whole number of 0 or more \(got '-600'"),
        (f"{HEAD}\n1,600,²,4,5,6,7,8,name\n", "Instances is not a whole number of 0 or more"),
        (f"{HEAD}\n1,600.7,3,4,5,6,7,8,name\n", r"Total Time \(ns\) is not a whole number"),
        (f"{HEAD}\n1,{'9' * 5000},3,4,5,6,7,8,name\n", r"Total Time \(ns\) is not a whole number .*\(got '9{40}'"),
        (f"{HEAD}\n1,2,3,high,5,6,7,8,name\n", r"Avg \(ns\) is not a number of 0 or more \(got 'high'\)"),
        (f"{HEAD}\n1,2,3,4,inf,6,7,8,name\n", r"Med \(ns\) is not a number of 0 or more"),
        (f"{HEAD}\n1,2,3,4,1e400,6,7,8,name\n", r"Med \(ns\) is not a number of 0 or more"),
        (f"{HEAD}\n1,2,3,4,5,6,7,nan,name\n", r"StdDev \(ns\) is not a number of 0 or more"),
        (f"{HEAD}\n1,2,3,4,-5,6,7,8,name\n", r"Med \(ns\) is not a number of 0 or more"),
        (f'{HEAD}\n1,2,3,4,5,6,7,8,"na', "line 2: unexpected end of data; the file is damaged"),
    ],
)
def test_a_damaged_summary_is_refused_with_its_place(text: str, words: str) -> None:
    with pytest.raises(ParseError, match=words):
        parse_stats(text, source="a.csv")


ROW = SummaryRow(
    name="k<1, 2>",
    instances=2,
    total_ns=3_000,
    time_pct=100.0,
    avg_ns=1_500.0,
    med_ns=1_500.0,
    min_ns=1_000,
    max_ns=2_000,
    stddev_ns=707.0,
)
MICRO = HEAD.replace("(ns)", "(us)") + '\n100.0,3.000,2,1.500,1.500,1.000,2.000,0.707,"k<1, 2>"\n'
API = HEAD.replace("Instances", "Num Calls") + "\n1,2,3,4,5,6,7,8,cudaFree\n"
SAID = "Processing [a.sqlite] with [x.py]... \n"
BESIDE = (
    "next to the kernel summary it holds a summary of host calls (cuda_api_sum or osrt_sum), which were not read",
)
OBJECT = (
    '{"Time (%)": 100.0, "Total Time (ns)": 3000, "Instances": 2, "Avg (ns)": 1500.0, "Med (ns)": 1500.0, '
    '"Min (ns)": 1000, "Max (ns)": 2000, "StdDev (ns)": 707.0, "Name": "k<1, 2>"}'
)
ALL_WORK = (
    "Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Category,Operation\n"
    '99.0,3000,2,1500.0,1500.0,1000,2000,707.0,CUDA_KERNEL,"k<1, 2>"\n1.0,8,1,8,8,8,8,0,MEMORY_OPER,[CUDA memset]\n'
)


@pytest.mark.parametrize(
    ("text", "rows", "notes"),
    [
        (MICRO, (ROW,), ()),
        (MICRO.replace(",", "\t").replace("k<1\t", "k<1,"), (ROW,), ()),
        (f"{SAID}{API}\n{SAID}{MICRO}\n{SAID}{API}", (ROW,), BESIDE),
        (f"{API}\n{MICRO}", (ROW,), BESIDE),
        (f"[{OBJECT}]", (ROW,), ()),
        (f"{SAID}[\n  {OBJECT}\n]\n{SAID}[]\n", (ROW,), ()),
        (ALL_WORK, (replace(ROW, time_pct=99.0),), ()),
        (
            HEAD.replace("(ns)", "(ms)") + '\n100.0,0.0030,2,0.0015,0.0015,0.0010,0.0020,0.0007,"k<1, 2>"\n',
            (replace(ROW, stddev_ns=700.0),),
            ("its times are printed in ms, rounded to four decimals; with --timeunit nsec they are exact",),
        ),
    ],
)
def test_the_kernel_summary_is_read_in_any_unit_and_format_and_beside_other_reports(
    text: str, rows: tuple[SummaryRow, ...], notes: tuple[str, ...]
) -> None:
    found = parse_stats(text, source="a")
    assert found.notes == notes
    assert [
        replace(row, avg_ns=round(row.avg_ns or 0, 6), med_ns=round(row.med_ns or 0, 6)) for row in found.rows
    ] == list(rows)
    assert isinstance(found, KernelSummary)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (API, "of nsys stats, but no kernel summary: a summary of host calls"),
        ("Time (%),Total Time (ns),Instances,Avg (ns),Style,Range\n1,2,3,4,PushPop,a\n", "a summary of NVTX ranges"),
        ("Time (%),Total Time (ns),Count,Avg (ns),Operation\n1,2,3,4,[CUDA memset]\n", "a summary of copies and sets"),
        ("Start (ns),Duration (ns),CorrId,GrdX,Name\n1,2,3,4,k\n", "a trace of GPU work"),
        ('[{"Time (%)": 1, "Total Time (ns)": 2, "Num Calls": 3, "Name": "cudaFree"}]', "a summary of host calls"),
        (f"{MICRO}\n{SAID}{MICRO}", "holds 2 kernel summaries"),
        (HEAD.replace("Name", "Source,Name") + "\n1,2,3,4,5,6,7,8,P2P,MPI_Send\n", "a summary of MPI calls"),
        (f"{HEAD}\n1,2,3,4,5,6,7,8,Compute construct@jacobi.c:55\n", "a summary of OpenACC constructs"),
        (f"{HEAD}\n1,2,3,4,5,6,7,8,Parallel\n1,2,3,4,5,6,7,8,Sync Region Wait\n", "a summary of OpenMP events"),
    ],
)
def test_another_report_is_refused_by_its_name(text: str, words: str) -> None:
    with pytest.raises(ParseError, match=words):
        parse_stats(text, source="a")


def test_a_summary_of_2021_is_read_without_the_medians_it_does_not_have() -> None:
    text = "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n100.0,30,2,15.0,10,20,k\n"
    rows = parse_stats(text, source="a.csv").rows
    (kernel,) = to_kernel_rows(rows, source="a.csv")
    assert (kernel.instances, kernel.total_ns, kernel.avg_ns, kernel.med_ns, kernel.min_ns) == (2, 30, 15.0, None, 10)
    assert kernel.stddev_ns is None
    assert summary_notes(rows) == ["has no column of medians and deviations (nsys 2021 and older print none)"]


def test_a_kernel_without_its_longest_time_is_not_complete() -> None:
    text = "Time(%),Total Time (ns),Instances,Average,Minimum,Name\n100.0,30,2,15.0,10,k\n"
    with pytest.raises(ParseError, match="the row of 'k' is not complete"):
        to_kernel_rows(parse_stats(text, source="a.csv").rows, source="a.csv")


def test_a_summary_of_all_gpu_work_beside_that_of_kernels_counts_nothing_twice() -> None:
    assert parse_stats(f"{ALL_WORK}\n{SAID}{MICRO}", source="a").rows == parse_stats(MICRO, source="a").rows


def test_a_name_of_four_megabytes_is_cut() -> None:
    (row,) = parse_stats(f"{HEAD}\n1,2,3,4,5,6,7,8,{'x' * (4 << 20)}\n", source="a.csv").rows
    assert row.name == "x" * 4096 + "…"


def test_a_summary_by_launch_shape_is_put_together_by_name() -> None:
    rows = parse_stats(f"{HEAD}\n50,30,2,15,15,10,20,7.0710678,k\n50,40,1,40,40,40,40,0,k\n", source="a.csv").rows
    (kernel,) = to_kernel_rows(rows, source="a.csv")
    assert (kernel.instances, kernel.total_ns, kernel.min_ns, kernel.max_ns, kernel.med_ns) == (3, 70, 10, 40, None)
    # Of 10, 20 and 40.
    assert kernel.stddev_ns == pytest.approx(15.2752523)
    assert summary_notes(rows) == [
        "lists a kernel once per launch shape (nsys 2022 and older): put together here, without a median"
    ]


def test_what_we_write_reads_back_in_nsys_columns(tmp_path: Path) -> None:
    export = Export()
    for start, length in ((0, 10), (20, 30), (60, 50)):
        export.kernel("f<1, 2>(int)", start, start + length, 1)
    export.kernel("g", 200, 210, 2)
    analysis = analyze_timelines([read_nsys_sqlite(export.write(tmp_path / "a.sqlite"))])
    path = write_kernel_summary(tmp_path / "summary.csv", analysis.kernels)
    assert path.read_text().splitlines() == [
        ",".join(COLUMNS),
        '90.0,90,3,30.0,30.0,10,50,20.0,"f<1, 2>(int)"',
        "10.0,10,1,10.0,10.0,10,10,0.0,g",
    ]
    assert to_kernel_rows(read_kernel_summary(path), source="x") == analysis.kernels


@pytest.mark.parametrize(
    "place",
    [
        "nsys/summary_cuda_gpu_kern_sum.csv",
        "nsys/summary.csv",
        "nsys/run_gpukernsum.csv",
        "tmp/stage2/20250101-000000/nsys/summary_cuda_gpu_kern_sum.csv",
        "stage2/nsys/summary_gpukernsum.csv",
    ],
)
def test_the_summary_of_an_old_run_is_found_where_older_versions_put_it(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True)
    path.write_text(HEAD)
    assert find_kernel_summary(tmp_path) == path


def test_a_run_without_a_summary_has_none(tmp_path: Path) -> None:
    assert find_kernel_summary(tmp_path) is None

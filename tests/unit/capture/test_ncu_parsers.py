"""Reading what ncu writes: units, both CSV pages of several versions, reports, logs."""

import lzma
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from llm_perf_opt.capture.kernels.ncu_analysis import analyze_ncu
from llm_perf_opt.capture.kernels.ncu_records import NcuLaunch, NcuRule, NcuValue, base_unit, parse_number, parse_value
from llm_perf_opt.capture.readers import ncu_report
from llm_perf_opt.capture.readers.ncu_csv import (
    csv_table,
    merge_launches,
    metric_name,
    nvtx_names,
    parse_ncu_csv,
    section_tables,
)
from llm_perf_opt.capture.readers.ncu_log import parse_ncu_log
from llm_perf_opt.capture.readers.ncu_report import _value, load_ncu, load_ncu_dir, plain, read_report, report_module
from llm_perf_opt.errors import ParseError, ToolError
from tests.support.fixtures_dir import DATA, shared_fixtures

EXAMPLE = Path("/usr/share/doc/nsight-compute/examples/uncoalescedGlobalAccesses/addConstDouble.ncu-rep")
MET_BOTH = {
    "gpu__time_duration.sum",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes.sum.per_second",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "sm__maximum_warps_per_active_cycle_pct",
}


def page(name: str) -> str:
    return lzma.decompress((DATA / f"ncu_{name}.csv.xz").read_bytes()).decode()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("5.66", 5.66),
        ("1,024", 1024.0),
        ("5,785,310,734.46", 5785310734.46),
        ("-3", -3.0),
        ("1.5e+10", 1.5e10),
        ("12.5 (1; 2; 3)", 12.5),
        ("1,024; 1: 2", 1024.0),
        ("n/a", None),
        ("no data", None),
        ("", None),
        ("nan", None),
        ("PolicySpread", None),
        ("1,5", None),
        ("12,34,567", None),
        ("3 SMs", None),
    ],
)
def test_a_cell_is_a_number_or_none_never_a_guess(text: str, number: float | None) -> None:
    assert parse_number(text) == number


@pytest.mark.parametrize(
    ("unit", "factor", "base"),
    [
        ("byte", 1.0, "byte"),
        ("Kbyte", 1e3, "byte"),
        ("Mbyte", 1e6, "byte"),
        ("Tbyte/s", 1e12, "byte/s"),
        ("Gbyte/second", 1e9, "byte/s"),
        ("Kbyte/cycle", 1e3, "byte/cycle"),
        ("us", 1e3, "ns"),
        ("usecond", 1e3, "ns"),
        ("msecond", 1e6, "ns"),
        ("nsecond", 1.0, "ns"),
        ("s", 1e9, "ns"),
        ("Ghz", 1e9, "hz"),
        ("cycle/nsecond", 1e9, "hz"),
        ("cycle/usecond", 1e6, "hz"),
        ("cycle/second", 1.0, "hz"),
        ("sector/nsecond", 1e9, "sector/s"),
        ("inst/cycle", 1.0, "inst/cycle"),
        ("register/thread", 1.0, "register/thread"),
        ("%", 1.0, "%"),
        ("", 1.0, ""),
    ],
)
def test_units_of_every_version_come_to_one_base(unit: str, factor: float, base: str) -> None:
    assert base_unit(unit) == (factor, base)


def test_a_scaled_time_is_exact() -> None:
    assert parse_value("239.008", "usecond") == NcuValue(value=239008.0, unit="ns", text="239.008 usecond")


@pytest.mark.parametrize("text", ["nan", "-nan", "NaN", "inf", "-inf", "nan(ind)", "nan (1; 2)"])
def test_a_metric_that_is_not_a_number_has_no_value_and_says_so(text: str) -> None:
    assert parse_value(text, "%") == NcuValue(value=None, unit="%", text=f"{text} %", is_undefined=True)
    assert not parse_value("n/a", "%").is_undefined


def test_the_package_gives_no_nan_as_a_value() -> None:
    metric = SimpleNamespace(value=lambda: float("nan"), has_value=lambda: True, unit=lambda: "us")
    assert _value(metric) == NcuValue(value=None, unit="ns", text="nan", is_undefined=True)


def test_the_raw_page_holds_24_launches_with_their_ranges() -> None:
    launches = parse_ncu_csv(page("raw"), source="raw")
    first = launches[0]
    assert len(launches) == 24
    assert (first.launch_id, first.grid, first.block, first.device, first.compute_capability, first.nvtx) == (
        "0", "(8, 8, 1)", "(128, 1, 1)", "NVIDIA H200", "9.0", ("decode", "decode_step"),
    )  # fmt: skip
    assert first.number("gpu__time_duration.sum") == 5664.0
    assert first.number("derived__local_spilling_requests_pct") is None
    assert first.text("launch__func_cache_config") == "CachePreferNone"
    assert first.number("dram__bytes.sum.per_second") == pytest.approx(375.232e9, rel=1e-12)


def test_raw_and_details_pages_agree_metric_by_metric() -> None:
    raw, details = (parse_ncu_csv(page(name), source=name) for name in ("raw", "details"))
    assert [(r.launch_id, r.kernel) for r in raw] == [(d.launch_id, d.kernel) for d in details]
    compared: dict[str, int] = {}
    for launch, other in zip(raw, details, strict=True):
        for name, value in other.metrics.items():
            if "/" in name or value.value is None:
                continue
            # The details page prints at most two decimals in a scaled unit: that is all the two may differ by.
            printed = parse_number(value.text.split()[0])
            assert printed is not None
            unit_size = value.value / printed if printed else 1.0
            mine = launch.number(name)
            assert mine is not None, name
            assert abs(mine - value.value) <= 0.00501 * unit_size, (name, launch.launch_id)
            compared[name] = compared.get(name, 0) + 1
    assert set(compared) >= MET_BOTH
    assert all(count == 24 for count in compared.values())


def test_rules_of_the_details_page_come_with_their_estimates() -> None:
    rules = parse_ncu_csv(page("details"), source="details")[0].rules
    found = {(r.rule, r.section, r.kind, r.scope, r.speedup_pct) for r in rules}
    assert ("TheoreticalOccupancy", "Occupancy", "OPT", "global", 75.0) in found
    assert ("SOLFPRoofline", "SpeedOfLight_RooflineChart", "INF", None, None) in found
    assert len(rules) == 10


def test_the_same_label_means_another_metric_in_another_section() -> None:
    assert metric_name("GPU Speed Of Light Throughput", "Memory Throughput") == (
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
    )
    assert metric_name("Memory Workload Analysis", "Memory Throughput") == "dram__bytes.sum.per_second"
    assert metric_name("Command line profiler metrics", "dram__bytes_read.sum") == "dram__bytes_read.sum"
    assert metric_name("X", "{UNIT}: {NAME} (lts__d_sectors.avg.pct)") == "lts__d_sectors.avg.pct"
    assert metric_name("New Section", "New Label") == "New Section/New Label"


def test_an_old_long_page_without_speedup_columns_is_read() -> None:
    text = (
        "==PROF== Disconnected from process 12\n"
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context","Stream","Section Name",'
        '"Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description"\n'
        '"0","1","a","h","k(int, char *)","2022","1","7","GPU Speed Of Light Throughput","Memory [%]","%","91.75",\n'
        '"0","1","a","h","k(int, char *)","2022","1","7","Command line profiler metrics",'
        '"dram__bytes.sum","Mbyte","1,234.5",\n'
        '"0","1","a","h","k(int, char *)","2022","1","1","SpeedOfLight",'
        '"","","","SOLBottleneck","INF","The kernel, well"\n'
        "==WARNING== something\n"
    )
    assert parse_ncu_csv(text, source="old") == [
        NcuLaunch(
            launch_id="0",
            kernel="k(int, char *)",
            metrics={
                "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": NcuValue(
                    value=91.75, unit="%", text="91.75 %"
                ),
                "dram__bytes.sum": NcuValue(value=1234.5e6, unit="byte", text="1,234.5 Mbyte"),
            },
            rules=(NcuRule(rule="SOLBottleneck", section="SpeedOfLight", kind="INF", text="The kernel, well"),),
            source="old",
        )
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello\n",
        '"ID","Kernel Name","a__b"\n"","",""\n"0","k"\n',
        '"ID","Metric Name","Kernel Name"\n"0","a","b"\n',
    ],
)
def test_what_is_no_page_of_ncu_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError, match=r"^x\.csv: "):
        parse_ncu_csv(text, source="x.csv")


def test_a_page_cut_short_is_an_error_not_fewer_launches() -> None:
    with pytest.raises(ParseError):
        parse_ncu_csv(page("raw")[:200_000], source="cut")


def test_nvtx_names_survive_colons_in_them() -> None:
    cell = '12  "<default domain>:a:b:none:none:none:none:none:none"  "dom:step:none:none:none:none:none:none" '
    assert nvtx_names(cell) == ["a:b", "step"]


def test_a_details_page_is_split_into_its_sections() -> None:
    tables = section_tables(page("details"))
    assert {"SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats", "LaunchStats"} <= set(tables)
    occupancy = parse_ncu_csv(tables["Occupancy"], source="o")
    assert len(occupancy) == 24
    assert {rule.section for launch in occupancy for rule in launch.rules} == {"Occupancy"}
    assert csv_table("==PROF== x\nnoise\n") == ""


def test_merging_keeps_the_first_page_but_fills_its_gaps() -> None:
    def launch(grid: str | None, a: float | None, b: float | None) -> NcuLaunch:
        cells = {name: NcuValue(value=value, unit="", text=str(value)) for name, value in (("a", a), ("b", b))}
        return NcuLaunch(launch_id="0", kernel="k", grid=grid, metrics=cells)

    first, second = launch(None, 1.0, None), launch("(1, 1, 1)", 2.0, 3.0)
    (merged,) = merge_launches([[first], [second]])
    assert (merged.number("a"), merged.number("b"), merged.grid) == (1.0, 3.0, "(1, 1, 1)")


def test_launches_of_two_reports_are_not_taken_for_one_because_both_count_from_zero() -> None:
    def launch(duration_ns: float, source: str) -> NcuLaunch:
        value = NcuValue(value=duration_ns, unit="ns", text="")
        return NcuLaunch(launch_id="0", kernel="k", metrics={"gpu__time_duration.sum": value}, source=source)

    pages = [[launch(5664.0, "a/raw")], [launch(5660.0, "a/details")], [launch(9000.0, "b/raw")]]
    assert [one.number("gpu__time_duration.sum") for one in merge_launches(pages)] == [5664.0, 9000.0]


def test_a_published_folder_gives_one_kernel_with_intensity_from_bytes_with_their_units() -> None:
    shared = shared_fixtures()
    if shared is None:
        pytest.skip("the captures are not here")
    (folder,) = (shared / "rtx5090" / "ncu").glob("kernel_0001_*")
    (kernel,) = analyze_ncu(load_ncu_dir(folder)).kernels
    # (158.12 + 1.97) FLOP/cycle at 2.15 GHz for 6.75 us, over 2.33 Mbyte read and 0 byte written.
    assert kernel.dram_bytes == 2.33e6
    assert kernel.flop == pytest.approx(160.09 * 2.15e9 * 6.75e-6, rel=1e-9)
    assert kernel.intensity_flop_per_byte == pytest.approx(160.09 * 2.15e9 * 6.75e-6 / 2.33e6, rel=1e-9)
    assert (kernel.launches, kernel.duration_ns, kernel.bound, kernel.occupancy_limiter) == (
        1,
        6750.0,
        "latency",
        "registers",
    )
    folders = sorted((shared / "rtx5090" / "ncu").iterdir())
    assert [len(analyze_ncu(load_ncu_dir(f)).kernels) for f in folders] == [1] * len(folders)


@pytest.mark.real_ncu
def test_a_real_report_reads_the_same_through_ncu_and_from_its_csv() -> None:
    if not EXAMPLE.exists():
        pytest.skip("the example report of Debian's package is not here")
    (launch,) = load_ncu(EXAMPLE)
    (kernel,) = analyze_ncu([launch]).kernels
    assert launch.kernel == "addConstDouble(int, double *, double, double *)"
    assert (launch.grid, kernel.duration_ns, kernel.bound) == ("(12288, 1, 1)", 239008.0, "memory")
    assert kernel.dram_bytes_per_s == pytest.approx(204.358281e9, rel=1e-8)
    assert kernel.dram_bytes == 25170048.0 + 23673216.0
    assert next(iter(kernel.stalls_pct)) == "long_scoreboard"
    assert "Occupancy" in {a.rule for a in kernel.advice}


def test_the_package_reads_a_real_report_as_ncu_does() -> None:
    module = report_module()
    if module is None or not EXAMPLE.exists():
        pytest.skip("ncu-report and an example report are not here")
    (launch,) = read_report(EXAMPLE, module)
    (kernel,) = analyze_ncu([launch]).kernels
    assert (launch.kernel, launch.grid) == ("addConstDouble(int, double *, double, double *)", "(12288, 1, 1)")
    assert (launch.device, launch.compute_capability) == ("NVIDIA RTX A2000", "8.6")
    assert (kernel.duration_ns, kernel.dram_bytes, kernel.bound) == (239008.0, 48843264.0, "memory")
    assert {a.rule for a in kernel.advice} == {
        "FPInstructions", "Occupancy", "IssueSlotUtilization", "SOLFPRoofline", "CPIStall"
    }  # fmt: skip


def test_markup_of_rules_becomes_words() -> None:
    text = "use @url:fused:https://x.y/#z@ ones, see @section:Occupancy:Occupancy@ and @source:a.cu:3:line 3@"
    assert plain(text) == "use fused (https://x.y/#z) ones, see Occupancy and line 3"


def test_a_file_that_is_no_report_is_an_error_and_not_an_empty_result(tmp_path: Path) -> None:
    pytest.importorskip("ncu_report")
    path = tmp_path / "broken.ncu-rep"
    path.write_bytes(b"NVR\0 but nothing that follows makes sense")
    with pytest.raises(ParseError, match="ncu-report can read"):
        load_ncu(path)


def test_a_report_without_any_reader_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "r.ncu-rep"
    report.write_bytes(b"NVR\0")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(ncu_report, "report_module", lambda: None)
    with pytest.raises(ToolError, match=r"pip install 'llm-perf-opt\[ncu\]'"):
        load_ncu(report)
    with pytest.raises(ParseError, match="no such file"):
        load_ncu(tmp_path / "absent.csv")
    with pytest.raises(ParseError, match="neither a CSV page nor a report"):
        load_ncu_dir(tmp_path / "absent")


@pytest.mark.parametrize(
    ("says", "outcome", "problem"),
    [
        ("==WARNING== No kernels were profiled.", "nothing", "no kernel launch passed"),
        ("==WARNING== No ranges were profiled.", "nothing", "no kernel launch passed"),
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "failed", "ERR_NVGPUCTRPERM"),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like",
            "failed",
            "another profiler",
        ),
        ("==ERROR== The NVIDIA driver is not compatible with this version", "failed", "driver is too old"),
        ("==ERROR== Option '--section Nosuch' did not match any section.", "failed", "no section of that name"),
        (
            "==WARNING== No metrics to collect found in sections.\n==WARNING== No kernels were profiled.",
            "failed",
            "no metrics",
        ),
        ("==ERROR== Failed to find metric regex:foo", "failed", "no metric of that name"),
        ("the argument for option '--replay-mode' is invalid", "failed", "does not know an option"),
        (
            "==ERROR== The application returned an error code (3).\n==WARNING== No kernels were profiled.",
            "failed",
            "exit code 3",
        ),
        (
            "==WARNING== Note: Running with unmodified GPU clocks.\n  warnings.warn(\nSegmentation fault",
            "failed",
            "crashed under ncu (Segmentation fault)",
        ),
        ("nothing of it is known", "failed", "exit code 255, no message"),
    ],
)
def test_what_ncu_says_is_recognised_with_a_remedy(says: str, outcome: str, problem: str) -> None:
    log = parse_ncu_log(says, exit_code=255, has_report=False)
    assert log.outcome == outcome
    assert log.problem is not None and problem in log.problem
    assert log.remedy


def test_a_report_counts_even_when_the_program_failed_in_the_end() -> None:
    text = (
        '==PROF== Profiling "foo" - 0: 0%....50%....100% - 18 passes\n'
        "==ERROR== The application returned an error code (7).\n"
    )
    log = parse_ncu_log(text, exit_code=7, has_report=True)
    assert (log.outcome, log.application_exit_code, log.profiled, log.passes) == ("ok", 7, 1, 18)


@pytest.mark.parametrize(
    ("metric", "unit"),
    [("gpu__time_duration.sum", "fortnight"), ("dram__bytes.sum", "Kibyte"), ("sm__throughput.avg.pct_of_peak", "ppm")],
)
def test_a_unit_nobody_knows_is_refused_with_the_metric_it_stands_behind(metric: str, unit: str) -> None:
    text = f'"ID","Kernel Name","{metric}"\n"","","{unit}"\n"0","k","12"\n'
    with pytest.raises(
        ParseError, match=re.escape(f"a.csv: {metric} is '12 {unit}', in a unit that is not known here")
    ):
        parse_ncu_csv(text, source="a.csv")


def _page_of_2019(*rows: tuple[str, str, str]) -> str:
    head = "ID,Process ID,Process Name,Host Name,Kernel Name,Kernel Time,Context,Stream,Section Name,Metric Name,"
    lines = [
        f'0,1,vec,host,"vecAdd(float*)",now,1,7,GPU Speed Of Light,{label},{unit},{value}'
        for label, unit, value in rows
    ]
    return "\n".join([head + "Metric Unit,Metric Value", *lines])


def test_the_words_of_2019_are_those_of_today() -> None:
    rows = (("SM [%]", "%", "12.2"), ("SOL FB", "%", "61.2"), ("SOL L2", "%", "30"), ("Duration", "msecond", "4.98"))
    (kernel,) = analyze_ncu(parse_ncu_csv(_page_of_2019(*rows), source="a.csv")).kernels
    assert (kernel.compute_sol_pct, kernel.memory_sol_pct, kernel.bound) == (12.2, 61.2, "memory")
    assert kernel.duration_ns == pytest.approx(4_980_000)


def test_one_low_throughput_of_memory_does_not_stand_for_all() -> None:
    rows = (("SM [%]", "%", "12.2"), ("SOL FB", "%", "20"))
    (kernel,) = analyze_ncu(parse_ncu_csv(_page_of_2019(*rows), source="a.csv")).kernels
    assert (kernel.memory_sol_pct, kernel.bound) == (None, "unknown")

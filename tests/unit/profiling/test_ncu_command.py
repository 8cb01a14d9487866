"""The command line of ncu: flags, NVTX expressions, and what the real ncu makes of them."""

import shutil
import subprocess
from pathlib import Path

import pytest

from llm_perf_opt.capture.readers.ncu_report import build_ncu_import_cmd
from llm_perf_opt.errors import ConfigError, ToolError
from llm_perf_opt.profiling.ncu.ncu_capture import check_metrics, check_sections, check_set
from llm_perf_opt.profiling.ncu.select import everything_but, kernel_pattern, launch_numbers, summary_kernels
from llm_perf_opt.profiling.vendor.ncu import (
    build_ncu_cmd,
    metrics_csv,
    nvtx_expressions,
    parse_listing,
    pick_set,
)
from tests.support.fixtures_dir import DATA

SETS = (
    "---------- ------------- ------- -----------------\n"
    "Identifier Sections      Enabled Estimated Metrics\n"
    "---------- ------------- ------- -----------------\n"
    "basic      LaunchStats,  yes     45\n"
    "           Occupancy\n"
    "roofline   SpeedOfLight  no      6649\n"
)


def build(**changes: object) -> list[str]:
    keys: dict[str, object] = {
        "nvtx_expr": "decode*",
        "kernel_regex": None,
        "use_nvtx": True,
        "set_name": "roofline",
        "metrics": None,
        "sections": ["SpeedOfLight", "Occupancy"],
    }
    return build_ncu_cmd("out/decode", ["./bench", "--n", "1"], **{**keys, **changes})  # type: ignore[arg-type]


def test_the_whole_command_line() -> None:
    argv = build(
        kernel_regex="^foo$",
        metrics=["a__b.sum", "c__d.avg"],
        target_processes="application-only",
        replay_mode="application",
        kernel_name_base="function",
        launch_skip=200,
        launch_count=3,
        clock_control="base",
        extra_args=["--cache-control", "none"],
        ncu="/opt/ncu",
    )
    assert argv == [
        "/opt/ncu",
        "--target-processes", "application-only",
        "--nvtx", "--nvtx-include", "regex:decode.*/", "--nvtx-include", "regex:decode.*",
        "--set", "roofline",
        "--section", "SpeedOfLight", "--section", "Occupancy",
        "--metrics", "a__b.sum,c__d.avg",
        "--replay-mode", "application",
        "--kernel-name-base", "function", "--kernel-name", "regex:^foo$",
        "--launch-skip", "200", "--launch-count", "3",
        "--clock-control", "base",
        "--cache-control", "none",
        "--force-overwrite",
        "--export", "out/decode",
        "./bench", "--n", "1",
    ]  # fmt: skip


def test_without_filters_nothing_of_them_is_passed() -> None:
    argv = build(use_nvtx=False, set_name=None, sections=None, force_overwrite=False, target_processes=None)
    assert argv == [
        "ncu", "--replay-mode", "kernel", "--clock-control", "none", "--export", "out/decode", "./bench", "--n", "1"
    ]  # fmt: skip


def test_chosen_launches_become_a_kernel_id_without_a_colon_in_the_name() -> None:
    argv = build(kernel_regex="^void (?:a::)?b$", invocations="5|40")
    assert argv[argv.index("--kernel-id") + 1] == r"::regex:^void (a\x3a\x3a)?b$:5|40"
    assert "--kernel-name" not in argv
    every = build(invocations="5|40")
    assert every[every.index("--kernel-id") + 1] == "::regex:.*:5|40"


@pytest.mark.parametrize("metrics", ["a__b.sum, c__d.avg", ["a__b.sum", "c__d.avg"], ("a__b.sum ", "c__d.avg", "")])
def test_a_list_and_a_comma_string_of_metrics_are_equal(metrics: object) -> None:
    assert metrics_csv(metrics) == "a__b.sum,c__d.avg"  # type: ignore[arg-type]


@pytest.mark.parametrize("metrics", [None, "", [], " , "])
def test_no_metrics_give_no_flag(metrics: object) -> None:
    assert "--metrics" not in build(metrics=metrics)


@pytest.mark.parametrize(
    ("include", "expressions"),
    [
        ("decode", ["decode/", "decode"]),
        ("decode*", ["regex:decode.*/", "regex:decode.*"]),
        ("dec?de", ["regex:dec.de/", "regex:dec.de"]),
        ("my.range*", [r"regex:my\.range.*/", r"regex:my\.range.*"]),
        ("prefill", ["prefill/", "prefill"]),
        ("decode/decode_step", ["decode/decode_step"]),
        (["prefill", "decode"], ["prefill/", "prefill", "decode/", "decode"]),
        (["decode", "decode"], ["decode/", "decode"]),
        ("regex:decode.*/", ["regex:decode.*/"]),
        ("decode/", ["decode/"]),
        ("domain@decode", ["domain@decode"]),
        ("[outer", ["[outer"]),
        ("decode]", ["decode]"]),
        ("a/*/b", ["a/*/b"]),
        (None, []),
        ("", []),
        ([], []),
    ],
)
def test_what_a_person_writes_matches_push_pop_and_start_end_ranges(include: object, expressions: list[str]) -> None:
    assert nvtx_expressions(include) == expressions  # type: ignore[arg-type]


def test_a_glob_in_nested_ranges_is_refused_rather_than_never_matching() -> None:
    with pytest.raises(ConfigError, match="a glob inside nested ranges cannot be translated"):
        nvtx_expressions("decode*/decode_step")


def test_a_page_is_printed_with_all_its_digits() -> None:
    assert build_ncu_import_cmd(Path("a.ncu-rep"), page="raw") == [
        "ncu",
        "--import",
        "a.ncu-rep",
        "--page",
        "raw",
        "--csv",
    ]


def test_sets_are_found_under_their_name_in_this_version() -> None:
    assert parse_listing(SETS) == ["basic", "roofline"]
    assert pick_set("default", ["basic", "roofline"]) == "basic"
    assert pick_set("basic", ["default"]) == "default"
    assert pick_set("nosuch", ["basic"]) is None
    assert parse_listing("ncu: not found") == []


def test_what_this_ncu_has_not_is_said_with_the_nearest_name() -> None:
    assert check_set("default", lambda _: SETS) == ("basic", "the section set default is called basic in this ncu")
    assert check_set("roofline", lambda _: "") == ("roofline", None)
    with pytest.raises(ToolError, match=r"no section set 'nosuch'; it has basic, roofline"):
        check_set("nosuch", lambda _: SETS)
    with pytest.raises(ToolError, match=r"no section rooflin \(nearest: roofline\)"):
        check_sections(["basic", "rooflin", "regex:x.*"], lambda _: SETS)
    metrics = SETS.replace("basic ", "dram__bytes ")
    known = ["dram__bytes.sum.per_second", "launch__grid_size", "regex:sm__.*"]
    assert check_metrics(known, lambda _: metrics) == (known, ())
    assert check_metrics("dram__byte.sum,dram__bytes.sum", lambda _: metrics) == (
        "dram__bytes.sum",
        (
            "left out: this ncu has no metric dram__byte.sum (nearest: dram__bytes) for this GPU "
            "(`ncu --query-metrics`)",
        ),
    )
    assert check_metrics("dram__byte.sum", lambda _: "==ERROR== no device") == ("dram__byte.sum", ())


@pytest.mark.real_ncu
@pytest.mark.parametrize("exclude", [(), ("nccl.*", "ncclDevKernel.*")])
def test_the_real_ncu_takes_every_flag_we_give_it(tmp_path: Path, exclude: tuple[str, ...]) -> None:
    names = [k.name for k in summary_kernels(DATA / "ncu_decode_kern_sum.csv")]
    pattern, base = kernel_pattern(names, "demangled")
    ncu = shutil.which("ncu")
    assert ncu is not None
    argv = build_ncu_cmd(
        tmp_path / "out",
        ["/bin/true"],
        nvtx_expr=["decode*", "prefill", "decode/decode_step"],
        kernel_regex=everything_but(exclude) if exclude else pattern,
        use_nvtx=True,
        set_name="roofline",
        metrics=["gpu__time_duration.sum"],
        sections=["SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "SchedulerStats"],
        invocations="|".join(map(str, launch_numbers(2))),
        kernel_name_base=base,
        launch_count=10,
        ncu=ncu,
    )
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "==WARNING== No kernels were profiled." in done.stdout

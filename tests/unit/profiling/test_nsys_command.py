"""Command lines of nsys, the stage's configuration, and the reading of what nsys left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from llm_perf_opt.core.host import Gpu, Host, Tool
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.profiling.nsys.nsys_capture import without_nsys_lines
from llm_perf_opt.profiling.nsys.nsys_session import plan_captures
from llm_perf_opt.profiling.stages.nsys import STAGE, NsysConfig
from llm_perf_opt.profiling.vendor.nsys import (
    build_nsys_cmd,
    build_nsys_export_cmd,
    build_nsys_launch_cmd,
    find_reports,
    find_unimported,
    keep_exit_code,
    trace_of_window,
)
from llm_perf_opt.testing import plain_host

WORK = ["python", "serve.py", "--port", "8000"]


def _host(*, tool: Tool, gpus: tuple[Gpu, ...] = ()) -> Host:
    return plain_host(gpus=gpus, tools={"nsys": tool})


def _texts(config: NsysConfig) -> list[str]:
    return [f"{p.key}: {p.text}" for p in config.problems()]


def test_the_plain_command_passes_what_is_off_as_off() -> None:
    assert build_nsys_cmd(Path("/run/nsys/run"), WORK) == [
        "nsys",
        "profile",
        "--output=/run/nsys/run",
        "--force-overwrite=true",
        "--trace=cuda,nvtx,osrt",
        "--sample=none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",
        *WORK,
    ]


def test_gating_by_nvtx_lets_python_strings_match() -> None:
    argv = build_nsys_cmd(
        "base",
        WORK,
        nsys="/opt/nsys",
        trace="nvtx",
        sample="process-tree",
        cpuctxsw="process-tree",
        capture="nvtx",
        capture_end="repeat:3",
        nvtx_capture="decode@*",
        nvtx_domain_exclude="NCCL",
        extra_args=["--stats=false"],
    )
    assert argv == [
        "/opt/nsys",
        "profile",
        "--output=base",
        "--force-overwrite=true",
        "--trace=nvtx",
        "--sample=process-tree",
        "--cpuctxsw=process-tree",
        "--capture-range=nvtx",
        "--capture-range-end=repeat:3",
        "--nvtx-capture=decode@*",
        "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0",
        "--nvtx-domain-exclude=NCCL",
        "--stats=false",
        *WORK,
    ]


def test_the_end_of_the_range_is_not_passed_when_it_is_not_set() -> None:
    argv = build_nsys_cmd("base", WORK, capture="cudaProfilerApi")
    assert [a for a in argv if a.startswith("--capture")] == ["--capture-range=cudaProfilerApi"]


@pytest.mark.parametrize("name", [None, "", "  "])
def test_gating_without_a_name_is_refused_by_the_builder_too(name: str | None) -> None:
    with pytest.raises(ConfigError, match="nvtx_capture: needed"):
        build_nsys_cmd("base", WORK, capture="nvtx", nvtx_capture=name)


def test_an_export_never_reuses_what_is_stale() -> None:
    assert build_nsys_export_cmd("run.nsys-rep", "run.sqlite") == [
        "nsys",
        "export",
        "--type=sqlite",
        "--quiet=true",
        "--force-overwrite=true",
        "--output=run.sqlite",
        "run.nsys-rep",
    ]


def test_all_reports_of_a_repeat_capture_are_found_in_order(tmp_path: Path) -> None:
    for name in (
        "run.10.nsys-rep",
        "run.2.nsys-rep",
        "run.1.nsys-rep",
        "run.x.nsys-rep",
        "other.1.nsys-rep",
        "run.1.sqlite",
    ):
        (tmp_path / name).touch()
    assert [p.name for p in find_reports(tmp_path / "run")] == ["run.1.nsys-rep", "run.2.nsys-rep", "run.10.nsys-rep"]
    (tmp_path / "run.nsys-rep").touch()
    assert [p.name for p in find_reports(tmp_path / "run")] == ["run.nsys-rep"]
    (tmp_path / "run.qdstrm").touch()
    assert [p.name for p in find_unimported(tmp_path / "run")] == ["run.qdstrm"]


def test_the_workload_runs_under_a_shell_that_keeps_its_exit_code() -> None:
    argv = keep_exit_code(WORK, Path("/tmp/code"), tmp_dir="/scratch")
    assert (argv[:2], argv[3:]) == (["sh", "-c"], ["sh", "/tmp/code", "/scratch", *WORK])


@pytest.mark.parametrize("tmp_dir", [None, "/a b/tmp"])
def test_the_shell_writes_the_exit_code_and_gives_the_temporary_directory_back(
    tmp_path: Path, tmp_dir: str | None
) -> None:
    work = [sys.executable, "-c", "import os, sys; print(os.environ.get('TMPDIR')); sys.exit(7)"]
    argv = keep_exit_code(work, tmp_path / "the code", tmp_dir=tmp_dir)
    done = subprocess.run(argv, env={**os.environ, "TMPDIR": "/of/nsys"}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, (tmp_path / "the code").read_text()) == (7, f"{tmp_dir}\n", "7\n")


def test_percent_signs_in_the_output_reach_nsys_as_they_are() -> None:
    assert "--output=/runs/a%%p/run" in build_nsys_cmd("/runs/a%p/run", WORK)


def test_what_nsys_says_is_kept_apart_from_what_the_workload_says() -> None:
    tail = (
        "ValueError: no weights\nGenerating '/tmp/nsys-report-1.qdstrm'\n"
        "\r[1/1] [0%     ] run.nsys-rep\r[1/1] [==100%] run.nsys-rep\nGenerated:\n    /run/nsys/run.nsys-rep\n"
        "\r[ 9/12] [==100%] run.9.nsys-rep\nGenerated:\n\t/run/nsys/run.12.nsys-rep\n"
    )
    assert without_nsys_lines(tail).strip() == "ValueError: no weights"


@pytest.mark.parametrize("end", ["none", "stop", "stop-shutdown", "repeat", "repeat:3", "repeat-shutdown:2"])
def test_every_end_nsys_knows_is_accepted(end: str) -> None:
    assert _texts(NsysConfig(capture_range="nvtx", nvtx_capture="decode", capture_range_end=end)) == []


@pytest.mark.parametrize("end", ["repeat:", "repeat:0", "repeat-shutdown", "Stop", "stop-shutdown:2", "repeat:x"])
def test_an_end_nsys_does_not_know_is_refused(end: str) -> None:
    assert _texts(NsysConfig(capture_range="nvtx", nvtx_capture="decode", capture_range_end=end)) == [
        f"capture_range_end: not known to nsys (got {end!r}), allowed: none, stop, stop-shutdown, repeat, repeat:N or "
        "repeat-shutdown:N (N a whole number of at least 1)"
    ]


@pytest.mark.parametrize("name", ["decode*", "deco?e@*", "[d]ecode", "decode@my*"])
def test_a_pattern_nsys_can_never_match_is_refused_with_the_form_that_works(name: str) -> None:
    (text,) = _texts(NsysConfig(capture_range="nvtx", nvtx_capture=name))
    assert text.startswith(
        f"nvtx_capture: nsys never matches a pattern in a range's name (got {name!r}), allowed: the exact"
    )
    assert "@*" in text


@pytest.mark.parametrize("name", ["decode", "decode@*", "decode@domain", "batch=8 step", ("prefill", "decode")])
def test_names_nsys_matches_are_accepted(name: str | tuple[str, ...]) -> None:
    assert _texts(NsysConfig(capture_range="nvtx", nvtx_capture=name)) == []


def test_flags_that_contradict_each_other_are_refused() -> None:
    assert _texts(
        NsysConfig(
            trace="cuda, nvtx",
            sample="off",
            nvtx_domain_include="a",
            nvtx_domain_exclude="b",
            extra_args=("--output=x", "--stats=true"),
        )
    ) == [
        "sample: not one of the choices (got 'off'), allowed: none, process-tree, system-wide",
        "trace: not a list of APIs (got 'cuda, nvtx'), allowed: names with commas, no spaces",
        "nvtx_domain_exclude: nsys takes this or nvtx_domain_include, not both (got 'b'), allowed: null",
        "extra_args: --output is set by the stage itself (got '--output=x')",
    ]
    assert _texts(NsysConfig(trace="osrt", capture_range="nvtx", nvtx_capture="decode")) == [
        "trace: must contain nvtx because capture_range is nvtx (got 'osrt'), allowed: osrt,nvtx"
    ]
    listed = NsysConfig(trace=("cuda", "nvtx"), capture_range="nvtx", nvtx_capture="decode")
    assert (_texts(listed), listed.traced) == ([], "cuda,nvtx")


@pytest.mark.parametrize(
    "flag", ["-c=nvtx", "--capture-range-end=stop", "--nvtx-capture=a", "-p=a", "--cuda-graph-trace=graph", "-t=nvtx"]
)
def test_a_flag_the_stage_sets_may_not_be_given_again_because_nsys_refuses_it_twice(flag: str) -> None:
    name = flag.split("=")[0]
    assert _texts(NsysConfig(extra_args=(flag,))) == [f"extra_args: {name} is set by the stage itself (got {flag!r})"]


@pytest.mark.parametrize("flag", ["--env-var", "-e"])
def test_a_variable_for_the_workload_may_be_given_only_without_a_gate(flag: str) -> None:
    assert _texts(NsysConfig(extra_args=(f"{flag}=A=1",))) == []
    gated = NsysConfig(capture_range="nvtx", nvtx_capture="decode", extra_args=(f"{flag}=A=1",))
    assert _texts(gated) == [
        f"extra_args: {flag} is set by the stage itself when it gates by NVTX; set the variable in the workload"
    ]


def test_gating_off_turns_off_the_nvtx_gate_and_nothing_else() -> None:
    on = NsysConfig(
        capture_range="nvtx", nvtx_capture="decode", capture_range_end="stop", trace="nvtx", sample="process-tree"
    )
    off = NsysConfig(**{**on.__dict__, "gating_nvtx": False})
    ((base_on, gated),) = plan_captures(on, "nsys")
    ((base_off, free),) = plan_captures(off, "nsys")
    assert (base_on, base_off) == ("run", "run")
    assert (gated.capture_range, gated.nvtx_capture, gated.capture_range_end) == ("nvtx", "decode", "stop")
    assert (free.capture_range, free.nvtx_capture, free.capture_range_end) == ("none", None, None)
    assert (free.trace, free.sample) == (gated.trace, gated.sample)
    kept = NsysConfig(capture_range="cudaProfilerApi", gating_nvtx=False, capture_range_end="stop")
    ((_, api),) = plan_captures(kept, "nsys")
    assert (api.capture_range, api.capture_range_end) == ("cudaProfilerApi", "stop")


def test_several_ranges_are_captured_one_after_the_other_under_names_of_their_own() -> None:
    config = NsysConfig(capture_range="nvtx", nvtx_capture=("prefill", "decode@*", "decode *".strip(" *") + "@x"))
    assert [(base, o.nvtx_capture) for base, o in plan_captures(config, "nsys")] == [
        ("run-prefill", "prefill"),
        ("run-decode_", "decode@*"),
        ("run-decode_x", "decode@x"),
    ]


def test_preflight_blocks_without_nsys_and_warns_without_a_gpu() -> None:
    missing = STAGE.preflight(
        NsysConfig(), _host(tool=Tool(name="nsys", problem="nsys was not found", remedy="install it"))
    )
    assert [(f.what, f.blocking) for f in missing] == [
        ("nsys was not found; install it", True),
        ("this machine has no GPU: nsys will record NVTX ranges and OS calls, but no kernels", False),
    ]
    gpu = Gpu(index=0, name="NVIDIA H200", memory_bytes=1, driver="580")
    usable = _host(tool=Tool(name="nsys", path="/usr/bin/nsys", version="2025.3.2"), gpus=(gpu,))
    assert STAGE.preflight(NsysConfig(), usable) == ()
    idle_end = STAGE.preflight(NsysConfig(capture_range_end="stop"), usable)
    assert [(f.what, f.blocking) for f in idle_end] == [
        ("pipeline.nsys.capture_range_end=stop does nothing without a range", False)
    ]


def test_every_sample_is_captured_once_unless_ranges_or_phases_are_counted() -> None:
    assert NsysConfig().repeats == 1
    assert NsysConfig(stop_after_repeats=None).repeats is None
    assert NsysConfig(capture_range="nvtx", nvtx_capture="decode", capture_range_end="repeat:8").repeats is None
    assert NsysConfig(stop_after_phases=8).repeats is None


@pytest.mark.parametrize(
    ("version", "trace", "traced"),
    [
        (None, "cuda,nvtx", "cuda,nvtx"),
        ("2025.5.1", "cuda,nvtx", "cuda,nvtx"),
        ("2025.6.1", "cuda,nvtx", "cuda-sw,nvtx"),
        ("2026.3.1.157", "osrt,cuda-hw", "osrt,cuda-hw"),
    ],
)
def test_a_window_is_traced_in_software_where_nsys_would_trace_in_hardware(
    version: str | None, trace: str, traced: str
) -> None:
    assert trace_of_window(trace, version) == traced
    whole, gated = NsysConfig(trace=trace), NsysConfig(trace=trace, duration_s=5)
    ((_, to_its_end),) = plan_captures(whole, "nsys", version=version)
    ((_, window),) = plan_captures(gated, "nsys", version=version)
    ((_, program),) = plan_captures(whole, "nsys", version=version, is_own=False)
    assert (to_its_end.trace, window.trace, program.trace) == (trace, traced, traced)


def test_cuda_in_software_is_cuda_for_the_flags_that_need_it() -> None:
    assert "--cuda-graph-trace=node" in build_nsys_cmd("o", ["w"], trace="cuda-sw,nvtx")
    assert _texts(NsysConfig(capture_range="cudaProfilerApi", trace="cuda-sw")) == []
    assert build_nsys_launch_cmd("s", trace="cuda-sw") == [
        *("nsys", "launch", "--session-new=s", "--trace=cuda-sw", "--cuda-graph-trace=graph", "--wait=primary")
    ]
    assert "--cuda-graph-trace=graph" not in build_nsys_launch_cmd("s", trace="nvtx")

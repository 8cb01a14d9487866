"""Stage ncu from choice to files: with a stand-in that speaks ncu's words, and with the real ncu on the CPU."""

import csv
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.config.schema import AppConfig, InferSection
from llm_perf_opt.core.records import StageFile, StageRecord
from llm_perf_opt.errors import ToolError
from llm_perf_opt.pipeline.compose import compose_config, type_config
from llm_perf_opt.profiling.ncu import ncu_capture as ncu_capture
from llm_perf_opt.profiling.stages.ncu import STAGE, NcuCli, NcuConfig, NcuExport, NcuWorkload, NvtxFilter
from tests.support.fake_ncu import install
from tests.support.fixtures_dir import DATA, REPO
from tests.support.ncu_run import H200, Run, captures, host
from tests.support.nsys_builder import Export

SUMMARY = StageRecord(
    name="nsys", status="ok", files=(StageFile(role="kernel_summary", path=DATA / "ncu_decode_kern_sum.csv"),)
)
PROGRAM = (sys.executable, "-c", "print('the program ran')")


@pytest.fixture(scope="module")
def config() -> AppConfig:
    composed = compose_config(["model=llama_tiny", "dataset=synthetic", "pipeline.ncu.enable=true"])
    loaded = type_config(composed, user_dir=REPO)
    return replace(loaded, workload=replace(loaded.workload, command=PROGRAM))


@pytest.fixture
def fake(tmp_path: Path, config: AppConfig) -> Run:
    install(tmp_path / "bin")
    names = [row["Name"] for row in csv.DictReader((DATA / "ncu_decode_kern_sum.csv").open())]
    return Run(
        folder=tmp_path / "run",
        config=config,
        host=host(str(tmp_path / "bin" / "ncu"), H200),
        env={"FAKE_NCU_KERNELS": "|".join(names)},
        earlier={"nsys": SUMMARY},
    )


def test_a_capture_after_nsys_leaves_every_file_and_figure(fake: Run) -> None:
    output = fake.stage()
    files = {str(p.relative_to(fake.folder)) for p in fake.folder.rglob("*") if p.is_file()}
    assert files >= {
        "ncu/cmd.txt", "ncu/log.txt", "ncu/decode.ncu-rep", "ncu/raw.csv", "ncu/details.csv",
        "ncu/kernels.csv", "ncu/kernels.json", "ncu/roofline.svg", "ncu/roofline-decode.svg",
        "ncu/sections/SpeedOfLight.csv", "ncu/sections/Occupancy.csv",
    }  # fmt: skip
    assert not (fake.out / "cmd-rerun.txt").exists() and not (fake.out / "regions").exists()
    values = {name: metric.value for name, metric in output.metrics.items()}
    assert (values["ncu_plan_kernels"], values["ncu_plan_passes"]) == (17, 18)
    assert values["ncu_plan_coverage"] == pytest.approx(14086081 / 15608322)
    assert (values["ncu_kernels"], values["ncu_launches"], values["ncu_match_rate"]) == (16, 24, 1.0)
    assert values["ncu_coverage"] == pytest.approx(0.6724, abs=1e-4)
    assert {name for name, metric in output.metrics.items() if metric.reason is not None} == {
        "slowdown_prefill",
        "slowdown_decode",
    }
    assert {output.metrics[f"slowdown_{phase}"].unit for phase in ("prefill", "decode")} == {"x"}
    assert {f.role for f in output.files} == {
        "ncu_report", "ncu_raw", "ncu_details", "ncu_kernels_csv", "ncu_kernels_json", "roofline_svg",
    }  # fmt: skip
    written = json.loads((fake.out / "kernels.json").read_text())
    assert len(written["kernels"]) == 16
    assert written["plots"] == ["ncu/roofline.svg", "ncu/roofline-decode.svg"]
    assert written["joined_with"] == "nsys/ncu_decode_kern_sum.csv, whole run"


def test_a_program_of_the_user_s_own_starts_where_the_user_stood(fake: Run) -> None:
    home = fake.folder.parent / "home"
    home.mkdir()
    (home / "hello.py").write_text("print('hello')\n")
    fake.config = replace(
        fake.config, user_dir=home, workload=replace(fake.config.workload, command=(sys.executable, "hello.py"))
    )
    fake.stage()
    assert f"cd {home} && \\\n" in (fake.out / "cmd.txt").read_text()


@pytest.mark.parametrize(
    ("name", "include", "waits"), [("step", "decode*", False), ("decode_7", "decode*", True), ("step", "serve", True)]
)
def test_a_program_without_decode_ranges_is_not_waited_on_for_one(
    fake: Run, name: str, include: str, waits: bool
) -> None:
    export = Export()
    export.range(name, 0, 1000)
    for number in range(8):
        export.call(5 + 10 * number, 8 + 10 * number, number + 1)
        export.kernel("gemm", 100 * number + 20, 100 * number + 90, number + 1)
    file = StageFile(role="nsys_sqlite", path=export.write(fake.folder.parent / "run.sqlite"))
    fake.earlier = {"nsys": StageRecord(name="nsys", status="ok", files=(file,))}
    fake.env = {"FAKE_NCU_KERNELS": "gemm"}
    fake.stage(ncu_cli=NcuCli(nvtx=NvtxFilter(include=include)))
    (argv,) = captures(fake)
    assert ("--nvtx-include" in argv) == waits
    said = "ncu: nsys/run.sqlite has no kernel inside decode*: launches of the whole run are profiled"
    assert (said in fake.said) == (not waits)


def test_our_own_inference_starts_in_the_stage_s_scratch_directory(fake: Run) -> None:
    fake.config = replace(fake.config, workload=replace(fake.config.workload, command=None))
    fake.env = {"FAKE_NCU_SAYS": "==ERROR== it ends here", "FAKE_NCU_EXIT": "1"}
    with pytest.raises(ToolError, match="it ends here"):
        fake.stage()
    assert (fake.out / "cmd.txt").read_text().startswith(f"cd {fake.folder / 'tmp' / 'ncu'} &&")


def test_the_plan_is_said_before_ncu_starts(fake: Run) -> None:
    fake.stage(max_kernels=3)
    assert fake.said == [
        "ncu: 3 kernels chosen from nsys/ncu_decode_kern_sum.csv, whole run, 36.4 % of the GPU time",
        "ncu: plan: 3 kernels, up to 6 launches × 18 passes, about 10 s beyond the program's own time",
    ]


def test_the_chosen_kernels_and_launches_reach_ncu(fake: Run) -> None:
    fake.stage(max_kernels=2)
    (argv,) = captures(fake)
    assert argv[argv.index("--kernel-id") + 1] == (
        "::regex:^(nvjet_sm90_tst_64x8_64x16_2x1_v_bz_TNT|nvjet_sm90_tst_64x8_64x16_4x1_v_bz_splitK_TNT)$"
        ":5|40|320|2560|20480|163840"
    )
    assert argv[argv.index("--launch-count") + 1] == "8"
    assert [argv[i + 1] for i, a in enumerate(argv) if a == "--nvtx-include"] == ["regex:decode.*/", "regex:decode.*"]
    assert argv[-3:] == list(PROGRAM)


def test_a_name_base_that_cannot_be_used_is_said(fake: Run) -> None:
    output = fake.stage(ncu_cli=NcuCli(kernel_name_base="mangled"), max_kernels=1)
    assert (
        "kernels are matched by their demangled name, not the mangled one: a timeline has no mangled names"
        in output.notes
    )


def test_chosen_kernels_that_were_not_met_are_named(fake: Run) -> None:
    output = fake.stage(max_kernels=6)
    (note,) = [n for n in output.notes if "not met" in n]
    assert note.startswith("3 of the chosen kernels were not met: nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN; ")


def test_without_nsys_no_kernel_is_chosen_and_launches_are_limited(fake: Run) -> None:
    fake.earlier = {}
    output = fake.stage(max_kernels=7, exclude=())
    (argv,) = captures(fake)
    assert argv[argv.index("--kernel-id") + 1] == "::regex:.*:5|40|320|2560|20480|163840"
    assert argv[argv.index("--launch-count") + 1] == "7"
    assert output.metrics["ncu_plan_kernels"].value is None
    assert output.metrics["ncu_match_rate"].reason == "no nsys timeline to match with"
    assert json.loads((fake.out / "kernels.json").read_text())["match_rate"] is None


def test_collectives_are_excluded_without_nsys_too(fake: Run) -> None:
    fake.earlier = {}
    fake.stage()
    (argv,) = captures(fake)
    assert argv[argv.index("--kernel-id") + 1].startswith("::regex:^(?!.*(nccl.*|ncclDevKernel.*)):5|40")


def test_the_users_own_kernel_name_and_counts_win(fake: Run) -> None:
    fake.stage(ncu_cli=NcuCli(kernel_name="regex:nvjet.*", kernel_name_base="function", launch_skip=4, launch_count=2))
    (argv,) = captures(fake)
    start = argv.index("--kernel-name-base")
    assert argv[start : start + 8] == [
        "--kernel-name-base", "function", "--kernel-name", "regex:nvjet.*", "--launch-skip", "4", "--launch-count", "2"
    ]  # fmt: skip


def test_filters_that_let_nothing_through_give_one_rerun_without_them(fake: Run) -> None:
    fake.env = {**fake.env, "FAKE_NCU_NVTX": "another range/"}
    metrics = ("dram__bytes.sum",)
    output = fake.stage(ncu_cli=NcuCli(metrics=metrics, launch_count=9), max_kernels=4)
    first, second = captures(fake)
    dropped = {"--nvtx", "--nvtx-include", "--kernel-id"}
    assert dropped & set(first) and not dropped & set(second)
    assert second[second.index("--kernel-name") + 1] == "regex:^(?!.*(nccl.*|ncclDevKernel.*))"
    for flag in ("--metrics", "--launch-count", "--set"):
        assert second[second.index(flag) + 1] == first[first.index(flag) + 1]
    assert [a for a in second if a in ("SpeedOfLight", "Occupancy")] == ["SpeedOfLight", "Occupancy"]
    assert (fake.out / "cmd-rerun.txt").exists() and (fake.out / "kernels.ncu-rep").exists()
    assert any("rerun without NVTX gating and without the kernel filter" in note for note in output.notes)
    assert output.metrics["ncu_kernels"].how == "ncu, rerun without filters"
    said = json.loads((fake.out / "kernels.json").read_text())["capture_notes"]
    assert any("rerun without NVTX gating" in note for note in said)


@pytest.mark.parametrize(
    ("says", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==ERROR== Profiling failed because a driver resource was unavailable.", "another profiler holds"),
        ("==ERROR== The application returned an error code (3).", "exit code 3"),
    ],
)
def test_a_known_failure_is_not_rerun_and_names_its_remedy(fake: Run, says: str, words: str) -> None:
    fake.env = {"FAKE_NCU_SAYS": says, "FAKE_NCU_EXIT": "255"}
    with pytest.raises(ToolError, match=words.replace("(", r"\(")):
        fake.stage()
    assert len(captures(fake)) == 1


def test_an_older_report_is_neither_overwritten_unasked_nor_taken_for_the_new_one(fake: Run) -> None:
    fake.stage()
    with pytest.raises(ToolError, match="force_overwrite is false"):
        fake.stage(ncu_cli=NcuCli(force_overwrite=False))
    fake.env = {"FAKE_NCU_SAYS": "==WARNING== No kernels were profiled."}
    with pytest.raises(ToolError, match="no kernel was profiled"):
        fake.stage()


def test_nothing_twice_on_a_machine_with_a_gpu_points_to_the_program(fake: Run) -> None:
    fake.env = {"FAKE_NCU_SAYS": "==WARNING== No kernels were profiled."}
    with pytest.raises(ToolError, match="the program launched no CUDA kernel that ncu could see"):
        fake.stage()
    assert len(captures(fake)) == 2


def test_an_unknown_section_or_set_fails_before_the_workload_starts(fake: Run) -> None:
    with pytest.raises(ToolError, match=r"no section Occupanci \(nearest: Occupancy\)"):
        fake.stage(ncu_cli=NcuCli(sections=("Occupanci",)))
    with pytest.raises(ToolError, match="no section set 'nosuch'; it has basic, detailed, full, roofline"):
        fake.stage(ncu_cli=NcuCli(set="nosuch"))
    assert captures(fake) == []


def test_an_unknown_metric_is_left_out_with_a_note(fake: Run) -> None:
    output = fake.stage(ncu_cli=NcuCli(metrics=("dram__byts.sum", "dram__bytes.sum")))
    (argv,) = captures(fake)
    assert argv[argv.index("--metrics") + 1] == "dram__bytes.sum"
    assert [note for note in output.notes if note.startswith("left out: ")] == [
        "left out: this ncu has no metric dram__byts.sum (nearest: dram__bytes) for this GPU (`ncu --query-metrics`)"
    ]


def test_an_old_set_name_is_translated_and_said(fake: Run) -> None:
    output = fake.stage(ncu_cli=NcuCli(set="default"))
    (argv,) = captures(fake)
    assert argv[argv.index("--set") + 1] == "basic"
    assert "the section set default is called basic in this ncu" in output.notes


def test_a_hanging_ncu_is_ended_and_said(tmp_path: Path, config: AppConfig) -> None:
    sleeper = tmp_path / "ncu"
    sleeper.write_text('#!/bin/sh\ncase "$*" in *--list*) exit 0;; esac\nsleep 60\n')
    sleeper.chmod(0o755)
    run = Run(folder=tmp_path / "run", config=config, host=host(str(sleeper), H200))
    with pytest.raises(ToolError, match=r"did not end within 1 s \(pipeline.ncu.timeout_s\)"):
        run.stage(timeout_s=1.0)


# Output and behaviour of ncu 2025.3 after a signal: it ends the program and writes its report.
TOLD_TO_END = """#!/bin/sh
case "$*" in *--list*|*--import*) exec {fake} "$@";; esac
told() {{ echo "==PROF== Trying to shutdown target application"; exec {fake} "$@"; }}
trap 'told "$@"' TERM
echo '==PROF== Profiling "gemm": 0%....50%....100% - 18 passes'
sleep 60 & wait
"""


@pytest.fixture
def endless(tmp_path: Path, config: AppConfig) -> Run:
    install(tmp_path / "fake")
    script = tmp_path / "ncu"
    script.write_text(TOLD_TO_END.format(fake=tmp_path / "fake" / "ncu"))
    script.chmod(0o755)
    return Run(folder=tmp_path / "run", config=config, host=host(str(script), H200), env={"FAKE_NCU_KERNELS": "gemm"})


def test_what_was_profiled_until_the_limit_is_kept(endless: Run) -> None:
    output = endless.stage(timeout_s=1.0)
    assert output.metrics["ncu_launches"].value == 24
    said = "ncu was ended after 1 s (pipeline.ncu.timeout_s): these are the launches until then"
    assert said in output.notes


def test_a_program_that_does_not_end_is_ended_when_ncu_has_nothing_new(
    endless: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llm_perf_opt.profiling.ncu.ncu_capture.QUIET_S", 0.5)
    workload = replace(endless.config.workload, command=("python", "serve.py"), duration_s=0.5)
    run = replace(endless, config=replace(endless.config, workload=workload))
    output = run.stage(timeout_s=50.0)
    assert output.metrics["ncu_launches"].value == 24
    assert float(output.metrics["ncu_capture_s"].value or 99) < 40
    assert any(note.startswith("the program was ended after") for note in output.notes)


def test_a_program_under_ncu_is_over_when_ncu_says_nothing_more(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("==PROF== Connected to process 1\n")
    # Until the first launch it loads, three times as long as without ncu.
    loading = ncu_capture._Quiet(log, 20.0)
    assert [loading(at) for at in (1.0, 60.0, 89.0, 91.0)] == [False, False, False, True]
    quiet = ncu_capture._Quiet(log, 20.0)
    for at in range(0, 200, 25):
        # Launches of one kernel have one name, and what the program prints is not a sign of ncu's.
        with log.open("a") as file:
            file.write('==PROF== Profiling "gemm": 0%....50%....100% - 18 passes\nrequest served, 12 % of the cache\n')
        assert not quiet(at)
    with log.open("a") as file:
        file.write("request served, 12 % of the cache\n")
    assert [quiet(at) for at in (180.0, 204.0, 206.0)] == [False, False, True]
    # A sign that is written in two pieces.
    halves = ncu_capture._Quiet(log, 20.0)
    assert not halves(1.0)
    for moment, text in ((10.0, "==PROF== Prof"), (11.0, 'iling "gemm"'), (35.0, "128 forward passes done")):
        with log.open("a") as file:
            file.write(text)
        assert not halves(moment)
    assert [halves(moment) for moment in (40.0, 42.0)] == [False, True]


def test_range_replay_writes_a_page_for_every_measured_region(fake: Run) -> None:
    output = fake.stage(ncu_cli=NcuCli(replay_mode="range", nvtx=NvtxFilter(include="decode/decode_step")))
    (argv,) = captures(fake)
    assert "--kernel-id" not in argv and "--kernel-name" not in argv
    region = fake.out / "regions" / "decode_step"
    assert json.loads((region / "report.json").read_text())["label"] == "decode_step"
    assert (region / "report.md").read_text().startswith("# Region decode_step\n")
    assert [f.role for f in output.files].count("region") == 2


def test_a_second_run_prefers_kernels_far_from_their_roof(fake: Run) -> None:
    fake.stage(max_kernels=3)
    fake.stage(max_kernels=1)
    (argv,) = captures(fake)[1:]
    # 8.8 % of the time of unknown distance to the roofline count more than 17.8 % of the time at 59 % of it.
    assert "nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN" in argv[argv.index("--kernel-id") + 1]


def test_without_csv_exports_the_report_is_read_all_the_same(fake: Run) -> None:
    output = fake.stage(ncu_cli=NcuCli(export=NcuExport(csv=False)))
    assert not (fake.out / "raw.csv").exists() and not (fake.out / "sections").exists()
    assert output.metrics["ncu_launches"].value == 24


def test_kernels_of_a_graph_are_launched_one_by_one(config: AppConfig) -> None:
    def under_ncu(**asked: Any) -> InferSection:
        return NcuWorkload().applied(replace(config, infer=replace(config.infer, cache="static", **asked))).infer

    assert (under_ncu(compile="reduce-overhead").compile, under_ncu(cuda_graph=True).cuda_graph) == ("default", False)
    assert under_ncu(compile="max-autotune").compile == "max-autotune-no-cudagraphs"
    graph = replace(config, infer=replace(config.infer, cache="static", cuda_graph=True))
    assert NcuWorkload().sentence(graph).endswith("without the CUDA graph, its kernels one by one")
    assert "graph" not in NcuWorkload().sentence(config)


def test_the_workload_under_ncu_is_one_sample_with_the_whole_token_budget(config: AppConfig) -> None:
    used = NcuWorkload().applied(replace(config, infer=replace(config.infer, max_new_tokens=512)))
    assert (used.run.repeats, used.infer.max_new_tokens) == (1, 512)
    assert (used.dataset.sampling.num_epochs, used.dataset.sampling.num_samples_per_epoch) == (1, 1)


def test_preflight_names_what_is_missing() -> None:
    absent = STAGE.preflight(NcuConfig(), host(None))
    assert [(f.what, f.blocking, f.expects_failure) for f in absent] == [
        ("ncu was not found", True, False), ("no CUDA device on this machine", False, True)
    ]  # fmt: skip
    (unlisted,) = STAGE.preflight(NcuConfig(), replace(host("/usr/bin/ncu"), has_gpu_files=True))
    assert (unlisted.what, unlisted.expects_failure) == ("no CUDA device on this machine", False)
    assert absent[0].remedy == "install it"
    assert list(STAGE.preflight(NcuConfig(), host("/usr/bin/ncu", H200))) == []
    restricted = replace(host("/usr/bin/ncu", H200), counters_restricted=True)
    assert [(f.blocking, "ERR_NVGPUCTRPERM" in f.what) for f in STAGE.preflight(NcuConfig(), restricted)] == [
        (False, True)
    ]


def test_a_configuration_that_cannot_work_is_refused_with_its_key() -> None:
    cli = NcuCli(nvtx=NvtxFilter(include="decode*/step"), kernel_name="regex:(")
    found = NcuConfig(ncu_cli=cli, exclude=("nccl.*", "[")).problems()
    assert [p.key for p in found] == ["ncu_cli.nvtx.include", "exclude.1", "ncu_cli.kernel_name"]
    assert NcuConfig(ncu_cli=cli, gating_nvtx=False).problems()[0].key == "ncu_cli.kernel_name"


@pytest.mark.real_ncu
def test_the_real_ncu_on_the_cpu_reruns_once_and_says_why_it_failed(tmp_path: Path, config: AppConfig) -> None:
    run = Run(folder=tmp_path / "run", config=config, host=host(shutil.which("ncu")), earlier={"nsys": SUMMARY})
    with pytest.raises(ToolError) as caught:
        run.stage(ncu_cli=NcuCli(launch_count=5), max_kernels=12)
    assert str(caught.value) == (
        "no kernel was profiled, neither with the filters nor without them (ncu/cmd.txt, ncu/cmd-rerun.txt): no CUDA "
        "device on this machine — run the stage ncu where an NVIDIA GPU is"
    )
    first, second = ((run.out / name).read_text() for name in ("cmd.txt", "cmd-rerun.txt"))
    assert "--nvtx-include" in first and "--kernel-name" in first
    assert "--nvtx" not in second and "--kernel-id" not in second
    assert "--kernel-name 'regex:^(?!.*(nccl.*|ncclDevKernel.*))'" in second
    for kept in ("--set roofline", "--section Occupancy", "--launch-count 5"):
        assert kept in first and kept in second
    for log in ("log.txt", "log-rerun.txt"):
        assert "the program ran" in (run.out / log).read_text()
        assert "No kernels were profiled" in (run.out / log).read_text()

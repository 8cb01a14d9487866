"""What a run does: gating by cudaProfilerApi, outputs of a captured workload, the device it uses."""

from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.children.start import load_child_config
from llm_perf_opt.commands.profile import INFER_OVERRIDES
from llm_perf_opt.config.schema import DatasetSection
from llm_perf_opt.core.host import Gpu
from llm_perf_opt.core.stage import Stage
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.preflight import device_problem, fallback_note
from llm_perf_opt.profiling.nsys.nsys_capture import _too_long, workload_argv
from llm_perf_opt.profiling.nsys.nsys_session import plan_captures
from llm_perf_opt.profiling.stages import nsys, static_analysis
from llm_perf_opt.profiling.stages.nsys import NsysConfig
from llm_perf_opt.runners import direct_inference_runner
from llm_perf_opt.runners.deep_profile_runner import LEGACY_OVERRIDES as DEEP
from llm_perf_opt.testing import plain_host, scratch_context
from llm_perf_opt.workload.device import start_cuda_profiler, stop_cuda_profiler
from llm_perf_opt.workload.nvtx import RangeEmitter, around
from llm_perf_opt.workload.session import check_workload, first_good_sample, open_session, run_inference, synthetic_like
from tests.founding.composing import TINY, stage, typed
from tests.support.orchestrator import llm_perf, llm_perf_here
from tests.support.pixi import pixi_task
from tests.support.workload_fakes import FakeConfig, prompts

GPU = Gpu(index=0, name="GPU", memory_bytes=1 << 30, driver="1")


def test_029_the_calls_are_made_around_the_chosen_range_only() -> None:
    """000:121-122: cudaProfilerApi works with our own workload"""
    said: list[str] = []
    plain = RangeEmitter(push=lambda name: said.append(f"push {name}"), pop=lambda: said.append("pop"), backend="x")
    ranges = around(plain, "decode", lambda: said.append("start"), lambda: said.append("stop"))
    for name in ("prefill", "decode"):
        ranges.push(name)
        ranges.push("step")
        ranges.pop()
        ranges.pop()
    assert said == [
        *("push prefill", "push step", "pop", "pop"),
        *("start", "push decode", "push step", "pop", "pop", "stop"),
    ]


@pytest.mark.parametrize(("capture", "wanted"), [(None, "all"), ("decode", "decode")])
def test_029_the_workload_under_nsys_is_told_where_to_call(tmp_path: Path, capture: str | None, wanted: str) -> None:
    """000:121-122"""
    cfg = NsysConfig(enable=True, capture_range="cudaProfilerApi", nvtx_capture=capture)
    ((base, options),) = plan_captures(cfg, "nsys")
    ctx = scratch_context("nsys", tmp_path / "run", config=typed(*TINY))
    argv = workload_argv(ctx, cuda_profiler_range=options.cuda_profiler_range, output=options.output)
    child, out_dir = load_child_config([word for word in argv[3:] if not word.startswith("hydra.job.chdir")])
    assert (base, out_dir) == ("run", tmp_path / "run" / "tmp" / "workload" / "torch_profiler")
    assert stage(child, "direct_inference").cuda_profiler_range == wanted


def test_029_nobody_makes_the_calls_for_a_program_of_the_users_own() -> None:
    """000:121-122"""
    cfg = NsysConfig(enable=True, capture_range="cudaProfilerApi", nvtx_capture="decode")
    assert [options.nvtx_capture for _, options in plan_captures(cfg, "nsys", is_own=False)] == [None]


def test_098_nothing_but_inference_is_captured_by_default() -> None:
    """001:36"""
    output = stage(typed(*TINY, implied=DEEP), "nsys").output
    assert (output.prediction.enable, output.visualization.enable) == (False, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked", ["pipeline.torch_profiler.output.prediction.enable=true", "outputs.save_predictions=true"]
)
def test_181_stage2_leaves_predictions_and_gallery_under_the_workload_when_asked(tmp_path: Path, asked: str) -> None:
    """003:148"""
    config = typed(*TINY, asked, implied=DEEP)
    ctx = scratch_context("nsys", tmp_path / "run", config=config)
    argv = workload_argv(ctx, output=stage(config, "nsys").output)
    child, out_dir = load_child_config([word for word in argv[3:] if not word.startswith("hydra.job.chdir")])
    output = stage(child, "direct_inference").output
    assert out_dir.relative_to(tmp_path / "run").as_posix() == "tmp/workload/torch_profiler"
    assert (output.prediction.enable, output.visualization.enable) == (True, True)
    assert (output.prediction.save_dir, output.visualization.save_dir) == ("pred", "viz")


def test_187_pixi_direct_infer_is_llm_perf_infer(monkeypatch: pytest.MonkeyPatch) -> None:
    """003:18, and the quick start"""
    assert pixi_task("direct-infer") == ["llm_perf_opt.runners.direct_inference_runner"]
    called: list[object] = []

    def main(argv: list[str], implied: object) -> int:
        called.append((argv, implied))
        return 0

    monkeypatch.setattr("llm_perf_opt.commands.profile.main", main)
    assert direct_inference_runner.main(["run.seed=1"]) == 0
    assert called == [(["run.seed=1"], INFER_OVERRIDES)]
    assert stage(typed(*TINY, implied=INFER_OVERRIDES), "direct_inference").output.prediction.enable is True


@pytest.mark.slow
def test_003_a_gpu_that_is_not_there_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """000:96"""
    done = llm_perf_here("profile", "experiment=demo", "run.device=cuda:0", cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.code == 2
    assert done.err.startswith("error: run.device: not there (got 'cuda:0'): ")
    assert list((tmp_path / "tmp" / "runs").iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "changes", "environ", "problem"),
    [
        ("cuda:0", {}, {}, "this machine has no GPU"),
        ("cuda:0", {"has_gpu_files": True}, {}, None),
        ("cuda:0", {"gpus": (GPU,)}, {}, None),
        ("cuda:0", {"gpus": (GPU,)}, {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES hides every GPU"),
        ("cuda:0", {"gpus": (GPU,)}, {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES hides every GPU"),
        ("cuda:1", {"gpus": (GPU,)}, {}, "there are cuda:0 to cuda:0"),
        ("cuda:0", {"gpus": (GPU,), "packages": {"torch": "2.11+cpu"}}, {}, "this torch (2.11+cpu) is a CPU build"),
        ("cpu", {}, {}, None),
        ("auto", {}, {}, None),
    ],
)
def test_003_a_device_is_there_or_the_reason_is_said(
    tmp_path: Path, device: str, changes: dict[str, object], environ: dict[str, str], problem: str | None
) -> None:
    """000:96"""
    config = typed(*TINY, f"run.device={device}")
    found = device_problem(config, plain_host(**changes), environ)
    end = "; allowed: auto, cpu or a device that exists"
    assert found == (None if problem is None else f"run.device: not there (got {device!r}): {problem}{end}")


def test_003_a_run_that_falls_back_to_the_cpu_says_so() -> None:
    """000:96: the default is auto, so that a run works anywhere, and says what it means"""
    config = typed(*TINY)
    stages: list[Stage] = [static_analysis.STAGE, nsys.STAGE]
    nothing = dict[str, str]()
    said = "run.device=auto is the CPU here: "
    assert fallback_note(config, plain_host(), stages, nothing) == f"{said}this machine has no GPU"
    assert fallback_note(config, plain_host(gpus=(GPU,)), stages, nothing) is None
    for hidden in ("", "-1", "-1,0"):
        note = fallback_note(config, plain_host(gpus=(GPU,)), stages, {"CUDA_VISIBLE_DEVICES": hidden})
        assert note == f"{said}CUDA_VISIBLE_DEVICES hides every GPU"
    assert fallback_note(config, plain_host(gpus=(GPU,)), stages, {"CUDA_VISIBLE_DEVICES": "0"}) is None
    assert fallback_note(config, plain_host(), [], nothing) is None
    assert fallback_note(typed(*TINY, "run.device=cpu"), plain_host(), stages, nothing) is None


@pytest.mark.long
@pytest.mark.slow
def test_003_the_first_line_and_the_page_say_that_it_is_the_cpu(tmp_path: Path) -> None:
    """000:96"""
    only = ("pipeline.torch_profiler.enable=false", "artifacts.runs_dir=run")
    done = llm_perf("profile", "experiment=ocr_tiny", *only, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    said = "run.device=auto is the CPU here: "
    assert (done.code, said in done.err.splitlines()[0]) == (0, True), done.err
    assert [n for n in ("report.md", "report.html") if said not in (tmp_path / "run" / n).read_text()] == []


def test_029_the_calls_are_those_of_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """000:121-122: all that was started has run before either call"""
    torch = pytest.importorskip("torch")
    said: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: said.append("wait"))
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: said.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: said.append("stop"))
    start_cuda_profiler()
    stop_cuda_profiler()
    assert said == ["wait", "start", "wait", "stop"]


def test_036_a_capture_that_hangs_because_nsys_samples_names_the_key() -> None:
    """000:125: sample is passed on; nsys 2022.4 was seen to hang at its end with process-tree"""
    cfg = NsysConfig(enable=True, sample="process-tree", timeout_s=60)
    ((_, options),) = plan_captures(cfg, "nsys")
    assert _too_long(options, 0, Path("log.txt")) == (
        "nsys did not end within 60 s although the workload had, with exit code 0; it and all it started were ended "
        "(log: log.txt). nsys was seen to hang at its end in containers when it samples the CPU "
        "(pipeline.nsys.sample=process-tree, pipeline.nsys.cpuctxsw=none): set both to none"
    )


def test_029_a_workload_on_the_cpu_says_that_the_calls_need_a_gpu(tmp_path: Path) -> None:
    """000:121-122"""
    config = FakeConfig(dataset=prompts(tmp_path / "p.txt", ["1 2"])).build(tmp_path)
    with pytest.raises(ConfigError, match=r"cudaProfilerStart needs a GPU, and the model runs on cpu \(got 'decode'\)"):
        run_inference(config, tmp_path / "out", warmup_rounds=0, output=None, cuda_profiler_range="decode")


def test_214_the_made_up_page_of_a_warm_up_lies_in_the_scratch_directory(tmp_path: Path) -> None:
    """004:128"""
    dataset = DatasetSection(kind="synthetic", num_samples=1, page_width=40, page_height=40)
    config = FakeConfig(dataset=dataset, adapter="tests.support.workload_fakes:PAGES").build(tmp_path)
    session = open_session(check_workload(config, tmp_path / "torch_profiler"))
    page = synthetic_like(first_good_sample(session), session).image
    assert page == tmp_path / "tmp" / "torch_profiler" / "warmup.png"
    assert page.is_file()


@pytest.mark.parametrize(
    ("keys", "gate"),
    [
        ({}, "captures the whole workload: gating_nvtx has no effect without capture_range=nvtx"),
        (
            {"capture_range": "nvtx", "nvtx_capture": "decode"},
            "captures the NVTX range decode (capture_range=nvtx, gating_nvtx=true)",
        ),
        (
            {"capture_range": "nvtx", "gating_nvtx": False},
            "captures the whole workload: gating_nvtx=false switches capture_range=nvtx off",
        ),
        (
            {"capture_range": "cudaProfilerApi"},
            "captures what capture_range=cudaProfilerApi opens; gating_nvtx has no effect on it",
        ),
    ],
)
def test_028_the_plan_says_what_gates_the_capture(tmp_path: Path, keys: dict[str, Any], gate: str) -> None:
    """000:119, 000:197"""
    preview = nsys.STAGE.preview(NsysConfig(enable=True, **keys), scratch_context("nsys", tmp_path / "run"))
    assert preview.text == gate
    # The clean pass of a run without a stage that makes one comes first.
    clean, command = preview.commands
    assert clean[1:4] == ("-m", "llm_perf_opt.runners.direct_inference_runner", "--child")
    assert command[:3] == ("nsys", "profile", f"--output={tmp_path}/run/nsys/run")
    ranges = [word.partition("=")[2] for word in command if word.startswith("--capture-range=")]
    assert ranges == ([keys["capture_range"]] if gate.startswith("captures what") or "the NVTX range" in gate else [])

"""The orchestrator end to end: order, failures, interrupts, crashes, resume, provenance."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import yaml

from tests.support.orchestrator import (
    ALPHA,
    BETA,
    OFF,
    command,
    dry_code_of_ncu,
    environment,
    llm_perf,
    llm_perf_here,
    only_run,
    statuses,
    valid_manifest,
)
from tests.support.schemas import valid_file


def _ran(run_dir: Path) -> list[str]:
    """The stages in the order in which they started, each as often as it did."""
    lines = [line for path in run_dir.glob("tmp/*/ran.txt") for line in path.read_text().splitlines()]
    return [line.split()[1] for line in sorted(lines)]


def _inputs(run_dir: Path) -> list[str]:
    return [sample["sample_id"] for sample in yaml.safe_load((run_dir / "inputs.yaml").read_text())["samples"]]


def test_enabled_stages_run_in_order_and_everything_is_written_down(tmp_path: Path) -> None:
    done = llm_perf("profile", *OFF, BETA, ALPHA, cwd=tmp_path, HF_TOKEN="secret-4711", OMP_NUM_THREADS="2")
    assert done.code == 0, done.err
    run_dir = only_run(tmp_path)
    manifest = valid_manifest(run_dir)
    assert manifest["status"] == "ok"
    assert statuses(manifest) == {"alpha": "ok", "beta": "ok"}
    assert _ran(run_dir) == ["alpha", "beta"]
    alpha = manifest["stages"][0]
    assert alpha["files"] == [{"role": "out", "path": "alpha/out.txt"}]
    assert [(c["exit_code"], c["log"], c["timed_out"]) for c in alpha["commands"]] == [(0, "alpha/log.txt", False)]
    assert alpha["notes"] == ["it is only a recorder — nothing to do"]
    assert (run_dir / "beta/out.txt").read_text() == "alpha"
    assert sorted(p.name for p in run_dir.iterdir() if p.is_dir()) == ["alpha", "beta", "tmp"]
    assert yaml.safe_load((run_dir / "config.yaml").read_text())["model"]["name"] == "llama_tiny"
    assert _inputs(run_dir) == ["alpha", "beta"]
    env = json.loads((run_dir / "env.json").read_text())
    assert env["variables"]["OMP_NUM_THREADS"] == "2"
    assert env["packages"]["torch"] is not None
    assert [p for p in run_dir.rglob("*") if p.is_file() and b"secret-4711" in p.read_bytes()] == []
    assert done.err.splitlines()[0] == f"run {run_dir}: alpha → beta"
    assert f"report: {run_dir / 'report'}" in done.err


@pytest.mark.parametrize(
    ("fail", "reason"),
    [
        ("words", "the probe said no; see log.txt"),
        ("bug", "ZeroDivisionError: division by zero (traceback in alpha/error.txt)"),
        ("preflight", "the probe is missing — plug it in"),
    ],
)
def test_a_failed_stage_is_recorded_and_the_others_still_run(tmp_path: Path, fail: str, reason: str) -> None:
    done = llm_perf_here("profile", *OFF, ALPHA, BETA, f"pipeline.alpha.fail={fail}", cwd=tmp_path)
    assert done.code == 1
    run_dir = only_run(tmp_path)
    manifest = valid_manifest(run_dir)
    assert (manifest["status"], statuses(manifest)) == ("failed", {"alpha": "failed", "beta": "ok"})
    assert manifest["stages"][0]["reason"] == reason
    assert (run_dir / "report.md").exists()
    told = [line for line in done.err.splitlines() if line.startswith("alpha: failed in ")]
    assert [line.partition(" — ")[2] for line in told] == [reason]


def test_a_stage_with_nothing_to_do_is_skipped_and_the_run_is_ok(tmp_path: Path) -> None:
    done = llm_perf_here("profile", *OFF, ALPHA, BETA, "pipeline.alpha.fail=skip", cwd=tmp_path)
    assert done.code == 0
    manifest = valid_manifest(only_run(tmp_path))
    assert statuses(manifest) == {"alpha": "skipped", "beta": "ok"}
    assert manifest["stages"][0]["reason"] == "there is nothing to record"


def test_static_analysis_is_skipped_when_a_program_is_profiled_whose_model_nobody_named(tmp_path: Path) -> None:
    done = llm_perf_here(
        "profile", ALPHA, "pipeline.torch_profiler.enable=false", "workload.command=[python3,serve.py]", cwd=tmp_path
    )
    assert done.code == 0, done.err
    manifest = valid_manifest(only_run(tmp_path))
    assert statuses(manifest) == {"static_analysis": "skipped", "alpha": "ok"}
    reason = "no model is named that the program runs; model=<preset>, or model.path, gives its bounds"
    assert manifest["stages"][0]["reason"] == reason
    assert sorted(p.name for p in only_run(tmp_path).iterdir() if p.is_dir()) == ["alpha", "tmp"]


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ((), "model.path: no such folder (got '{cwd}/models/DeepSeek-OCR'), {download}"),
        (("model.weights=random", "dataset.root=data"), "dataset.root: no such folder (got '{cwd}/data'){rest}"),
        (
            ("model=llama_tiny", "dataset=prompts", "dataset.file=p.txt"),
            "dataset.file: {cwd}/p.txt cannot be read{rest}",
        ),
        (("model=llama_tiny", "dataset=omnidocbench"), "dataset.kind: holds pages, the model reads tokens{rest}"),
    ],
)
def test_a_missing_model_or_data_set_is_bad_input_before_anything_runs(
    tmp_path: Path, overrides: tuple[str, ...], problem: str
) -> None:
    done = llm_perf_here("profile", *overrides, cwd=tmp_path)
    assert done.code == 2
    expected = problem.format(cwd=tmp_path, download="download the snapshot there or set model.path", rest="")
    assert done.err.startswith(f"error: {expected}")
    assert list((tmp_path / "tmp" / "runs").iterdir()) == []


def test_on_failure_stop_skips_the_rest_with_a_reason(tmp_path: Path) -> None:
    done = llm_perf_here("profile", *OFF, ALPHA, BETA, "pipeline.alpha.fail=words", "run.on_failure=stop", cwd=tmp_path)
    manifest = valid_manifest(only_run(tmp_path))
    assert done.code == 1
    assert statuses(manifest) == {"alpha": "failed", "beta": "skipped"}
    assert manifest["stages"][1]["reason"] == "alpha failed and run.on_failure is stop"


def test_a_broken_plug_in_hurts_only_those_who_enable_it(tmp_path: Path) -> None:
    assert llm_perf_here("profile", *OFF, ALPHA, cwd=tmp_path).code == 0
    done = llm_perf_here("profile", *OFF, "+pipeline.broken.enable=true", cwd=tmp_path)
    assert done.code == 2
    assert done.err == (
        "error: pipeline.broken: the plug-in could not be loaded "
        "(no_such_module:STAGE: ModuleNotFoundError: No module named 'no_such_module')\n"
    )


def test_bad_input_is_code_2_says_everything_and_leaves_nothing(tmp_path: Path) -> None:
    done = llm_perf_here("profile", *OFF, ALPHA, "run.repeats=0", "+pipeline.alpha.settings=3", cwd=tmp_path)
    assert done.code == 2
    assert done.err.splitlines() == [
        "error: run.repeats: not allowed (got 0), allowed: a number ≥ 1 or 'auto'",
        "error: pipeline.alpha.settings: unknown key (got 3), nearest known key: pipeline.alpha.setting",
    ]
    assert list((tmp_path / "tmp" / "runs").iterdir()) == []


def test_no_stage_at_all_is_bad_input(tmp_path: Path) -> None:
    done = llm_perf_here("profile", *OFF, cwd=tmp_path)
    assert (done.code, done.err) == (
        2,
        "error: pipeline: no stage is enabled, allowed: at least one pipeline.<stage>.enable=true\n",
    )


def test_a_dry_run_leaves_nothing_but_the_plan_that_was_asked_for(tmp_path: Path) -> None:
    words = (*OFF, ALPHA, BETA, "pipeline.beta.fail=preflight", "run.dry_run=true")
    done = llm_perf_here("profile", *words, cwd=tmp_path)
    assert (done.code, [*tmp_path.iterdir()]) == (2, [])
    assert done.err.endswith("\nalpha: would run\nbeta: would run\nnothing was run; it cannot run as it is (beta)\n")
    done = llm_perf_here("profile", *words, "run.plan_file=out/plan.json", cwd=tmp_path)
    assert done.code == 2
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["plan.json"]
    plan = valid_file("plan", tmp_path / "out/plan.json")
    assert [(s["name"], [f["what"] for f in s["findings"]]) for s in plan["stages"]] == [
        ("alpha", ["it is only a recorder"]),
        ("beta", ["the probe is missing"]),
    ]
    assert "beta: cannot run: the probe is missing — plug it in" in done.err
    assert done.err.endswith("plan.json; it cannot run as it is (beta)\n")


def test_the_configuration_written_down_is_what_ran(tmp_path: Path) -> None:
    light = ("run.mode=light", "infer.max_new_tokens=99", "pipeline.ncu.max_launches_per_kernel=3")
    done = llm_perf_here("profile", *OFF, ALPHA, *light, cwd=tmp_path)
    assert done.code == 0, done.err
    run_dir = only_run(tmp_path)
    written = yaml.safe_load((run_dir / "config.yaml").read_text())
    assert written == valid_manifest(run_dir)["config"]
    assert (written["run"]["mode"], written["run"]["repeats"], written["infer"]["max_new_tokens"]) == ("light", 1, 16)
    assert written["dataset"]["sampling"] == {
        "num_epochs": 1,
        "num_samples_per_epoch": 1,
        "randomize": False,
        "seed": 0,
    }
    assert written["pipeline"]["alpha"] == {"enable": True}
    dry = llm_perf_here("profile", *OFF, *light, "pipeline.ncu.enable=true", "run.dry_run=true", cwd=tmp_path)
    (ncu,) = [line.split() for line in dry.err.splitlines() if " && " in line]
    assert ncu[:2] == ["mkdir", "-p"] and "++infer.max_new_tokens=16" in ncu


def test_two_runs_of_the_same_second_get_different_directories(tmp_path: Path) -> None:
    runs = [
        subprocess.Popen(command("profile", *OFF, ALPHA), cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [run.wait(60) for run in runs] == [0, 0]
    assert len(list((tmp_path / "tmp" / "runs").glob("*/manifest.json"))) == 2


def test_a_chosen_directory_is_used_and_never_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    assert llm_perf_here("profile", *OFF, ALPHA, "hydra.run.dir=mine", cwd=tmp_path).code == 0
    assert statuses(valid_manifest(target)) == {"alpha": "ok"}
    assert not (target / "mine").exists()
    done = llm_perf_here("profile", *OFF, ALPHA, "artifacts.runs_dir=mine", cwd=tmp_path)
    assert done.code == 2
    assert done.err == (
        f"error: artifacts.runs_dir: already holds a run (got '{target}'), "
        f"allowed: another directory, or run.resume={target} to continue it\n"
    )
    assert _ran(target) == ["alpha"]


def test_a_directory_with_files_of_the_users_own_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    mine = {"config.yaml": "mine: 1\n", "report.md": "# mine\n", ".scratch.tmp": "mine", "a": "", "b": ""}
    (tmp_path / "proj").mkdir()
    for name, text in mine.items():
        (tmp_path / "proj" / name).write_text(text)
    words = (
        f"error: artifacts.runs_dir: is not empty and holds no run (got '{tmp_path / 'proj'}' with .scratch.tmp, a, b "
        f"and 2 more), allowed: a new or an empty directory, such as artifacts.runs_dir={tmp_path / 'proj/run-1'}\n"
    )
    server = "server.url=http://127.0.0.1:9"
    for command_line in (
        ["profile", *OFF, ALPHA, "artifacts.runs_dir=proj"],
        ["bench", server, "artifacts.runs_dir=proj"],
    ):
        done = llm_perf_here(*command_line, cwd=tmp_path)
        assert (done.code, done.err) == (2, words)
    assert {path.name: path.read_text() for path in (tmp_path / "proj").iterdir()} == mine
    assert llm_perf_here("profile", *OFF, ALPHA, "artifacts.runs_dir=proj/run-1", cwd=tmp_path).code == 0


def test_what_a_plan_a_log_or_a_killed_run_left_is_no_obstacle(tmp_path: Path) -> None:
    words = ("hydra.run.dir=r", "run.dry_run=true", "run.plan_file=r/plan.json")
    assert llm_perf_here("profile", *OFF, ALPHA, *words, cwd=tmp_path).code == 0
    (tmp_path / "r/mine.log").write_text("")
    assert llm_perf_here("profile", *OFF, ALPHA, "hydra.run.dir=r", cwd=tmp_path).code == 0
    (tmp_path / "killed").mkdir()
    owner = {"pid": 1, "host": "elsewhere", "since_s": 1.0}
    (tmp_path / "killed/.lock").write_text(json.dumps(owner) + "\n")
    (tmp_path / "killed/config.yaml").write_text("")
    assert llm_perf_here("profile", *OFF, ALPHA, "hydra.run.dir=killed", cwd=tmp_path).code == 0


def _wait_for(path: Path, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupt_ends_the_whole_tree_and_leaves_a_valid_manifest(tmp_path: Path, number: signal.Signals) -> None:
    args = command("profile", *OFF, ALPHA, BETA, "pipeline.beta.seconds=120", "hydra.run.dir=r")
    # Under nohup it would be ignored, as it should be.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    run = subprocess.Popen(args, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGHUP, before)
    pid_file = tmp_path / "r/tmp/beta/pid"
    _wait_for(pid_file)
    run.send_signal(number)
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    manifest = valid_manifest(tmp_path / "r")
    assert (manifest["status"], statuses(manifest)) == ("interrupted", {"alpha": "ok", "beta": "skipped"})
    assert not psutil.pid_exists(int(pid_file.read_text()))
    assert err.splitlines()[-3:] == [
        f"report of what was measured: {tmp_path / 'r/report.html'}",
        f"to continue: llm-perf profile run.resume={tmp_path / 'r'}",
        "interrupted: every process of the run was ended, the manifest is complete",
    ]
    assert (tmp_path / "r/report.html").is_file()


@pytest.mark.parametrize("place", ["/proc/nobody", "a_file/run"])
def test_a_run_directory_that_cannot_be_made_is_bad_input(tmp_path: Path, place: str) -> None:
    (tmp_path / "a_file").write_text("in the way")
    done = llm_perf_here("profile", *OFF, ALPHA, f"hydra.run.dir={place}", cwd=tmp_path)
    assert done.code == 2
    assert "the run directory cannot be made" in done.err
    assert "hydra.run.dir" in done.err
    assert "Traceback" not in done.err


def test_after_a_crash_only_what_is_missing_is_run(tmp_path: Path) -> None:
    args = command("profile", *OFF, ALPHA, BETA, "pipeline.beta.seconds=20", "hydra.run.dir=r")
    run = subprocess.Popen(args, cwd=tmp_path, env=environment(), stderr=subprocess.DEVNULL)
    pid_file = tmp_path / "r/tmp/beta/pid"
    _wait_for(pid_file)
    orphans = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.wait(10)
    assert psutil.wait_procs(orphans, timeout=20)[1] == []
    assert not psutil.pid_exists(int(pid_file.read_text()))
    assert statuses(valid_manifest(tmp_path / "r")) == {"alpha": "ok"}

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = llm_perf("profile", "run.resume=../r", "pipeline.beta.seconds=0", cwd=elsewhere)
    assert done.code == 0, done.err
    assert _ran(tmp_path / "r") == ["alpha", "beta", "beta"]
    assert statuses(valid_manifest(tmp_path / "r")) == {"alpha": "ok", "beta": "ok"}
    assert "alpha: reused" in done.err
    assert "beta: runs because it was not run before" in done.err
    assert re.search(
        r"/r: its lock was left by process \d+ on .*, 0 min old, which has ended; it is taken over", done.err
    )


@pytest.mark.parametrize(
    ("override", "ran", "reason"),
    [
        pytest.param("run.top_n_kernels=5", "", None, marks=pytest.mark.long),
        ("pipeline.beta.timeout_s=77", "", None),
        ("pipeline.beta.setting=2", "beta", "its settings changed (pipeline.beta.setting: 1 -> 2)"),
        ("infer.top_k=9", "alpha beta", "the workload's settings changed (infer.top_k: 0 -> 9)"),
    ],
)
def test_a_stage_is_reused_only_if_nothing_that_matters_changed(
    tmp_path: Path, override: str, ran: str, reason: str | None
) -> None:
    first = ("pipeline.beta.setting=1", "pipeline.beta.timeout_s=60")
    assert llm_perf_here("profile", *OFF, ALPHA, BETA, *first, "hydra.run.dir=r", cwd=tmp_path).code == 0
    done = llm_perf_here("profile", "run.resume=r", override, cwd=tmp_path)
    assert done.code == 0, done.err
    assert _ran(tmp_path / "r") == ["alpha", "beta", *ran.split()]
    assert re.findall(r"beta: runs because (.*)", done.err) == ([reason] if reason else [])


def test_a_failed_stage_is_run_again_and_a_lost_file_too(tmp_path: Path) -> None:
    assert (
        llm_perf_here("profile", *OFF, ALPHA, BETA, "pipeline.beta.fail=words", "hydra.run.dir=r", cwd=tmp_path).code
        == 1
    )
    (tmp_path / "r/alpha/out.txt").unlink()
    done = llm_perf_here("profile", "run.resume=r", "pipeline.beta.fail=''", cwd=tmp_path)
    assert done.code == 0, done.err
    assert "alpha: runs because its file out.txt is gone" in done.err
    assert "beta: runs because it was failed before" in done.err


@pytest.mark.long
def test_a_disabled_stage_is_left_out_of_a_resumed_run_when_its_result_is_of_other_settings(tmp_path: Path) -> None:
    assert llm_perf_here("profile", *OFF, ALPHA, "hydra.run.dir=r", cwd=tmp_path).code == 0
    done = llm_perf_here("profile", "run.resume=r", "pipeline.alpha.enable=false", BETA, "infer.top_k=9", cwd=tmp_path)
    assert done.code == 0, done.err
    manifest = valid_manifest(tmp_path / "r")
    assert (manifest["status"], statuses(manifest)) == ("ok", {"beta": "ok"})
    reason = "the workload's settings changed (infer.top_k: 0 -> 9)"
    warning = f"alpha: left out of this run because {reason}; its files stay in alpha/"
    assert manifest["warnings"] == [warning]
    assert warning in done.err.splitlines()
    assert warning in (tmp_path / "r/report.md").read_text()
    assert (tmp_path / "r/alpha/out.txt").exists()
    assert (tmp_path / "r/beta/out.txt").read_text() == ""


def test_a_failed_stage_that_is_disabled_no_longer_fails_the_run(tmp_path: Path) -> None:
    first = llm_perf_here("profile", *OFF, ALPHA, BETA, "pipeline.alpha.fail=words", "hydra.run.dir=r", cwd=tmp_path)
    assert first.code == 1
    done = llm_perf_here("profile", "run.resume=r", "pipeline.alpha.enable=false", cwd=tmp_path)
    assert done.code == 0, done.err
    manifest = valid_manifest(tmp_path / "r")
    assert (manifest["status"], statuses(manifest)) == ("ok", {"beta": "ok"})
    assert manifest["warnings"] == [
        "alpha: left out of this run because it was failed before and is not enabled now; its files stay in alpha/"
    ]


def test_results_of_other_settings_do_not_survive_a_resumed_run_that_stops_early(tmp_path: Path) -> None:
    assert llm_perf_here("profile", *OFF, ALPHA, BETA, "hydra.run.dir=r", cwd=tmp_path).code == 0
    changed = ("infer.top_k=9", "pipeline.alpha.fail=words", "run.on_failure=stop")
    assert llm_perf_here("profile", "run.resume=r", *changed, cwd=tmp_path).code == 1
    assert statuses(valid_manifest(tmp_path / "r")) == {"alpha": "failed", "beta": "skipped"}


@pytest.mark.long
def test_a_stage_runs_again_when_a_stage_it_reads_from_did(tmp_path: Path) -> None:
    first = ("pipeline.alpha.setting=1", "pipeline.beta.reads=alpha", "hydra.run.dir=r")
    assert llm_perf_here("profile", *OFF, ALPHA, BETA, *first, cwd=tmp_path).code == 0
    assert llm_perf_here("profile", "run.resume=r", cwd=tmp_path).code == 0
    assert _ran(tmp_path / "r") == ["alpha", "beta"]
    done = llm_perf_here("profile", "run.resume=r", "pipeline.alpha.setting=2", cwd=tmp_path)
    assert done.code == 0, done.err
    assert _ran(tmp_path / "r") == ["alpha", "beta", "alpha", "beta"]
    assert "beta: runs because it reads the result of alpha, which was run again" in done.err
    assert list(statuses(valid_manifest(tmp_path / "r"))) == ["alpha", "beta"]
    assert _inputs(tmp_path / "r") == ["alpha", "beta"]


def test_a_disabled_stage_and_its_inputs_stay_in_a_resumed_run_as_long_as_they_belong_to_it(tmp_path: Path) -> None:
    assert llm_perf_here("profile", *OFF, ALPHA, "hydra.run.dir=r", cwd=tmp_path).code == 0
    done = llm_perf_here("profile", "run.resume=r", "pipeline.alpha.enable=false", BETA, cwd=tmp_path)
    assert done.code == 0, done.err
    manifest = valid_manifest(tmp_path / "r")
    assert (manifest["status"], statuses(manifest), manifest["warnings"]) == ("ok", {"alpha": "ok", "beta": "ok"}, [])
    assert (tmp_path / "r/beta/out.txt").read_text() == "alpha"
    assert _inputs(tmp_path / "r") == ["alpha", "beta"]
    assert llm_perf_here("profile", "run.resume=r", "infer.top_k=9", cwd=tmp_path).code == 0
    assert _inputs(tmp_path / "r") == ["beta"]


def test_resuming_what_is_no_run_is_bad_input(tmp_path: Path) -> None:
    done = llm_perf_here("profile", "run.resume=nowhere", cwd=tmp_path)
    assert (done.code, done.err) == (
        2,
        "error: run.resume: no manifest.json in it (got 'nowhere'), "
        "allowed: the directory of a run (`llm-perf runs` lists them)\n",
    )


def test_a_bare_comma_is_part_of_the_value_outside_a_sweep(tmp_path: Path) -> None:
    done = llm_perf_here("profile", *OFF, ALPHA, "pipeline.nsys.trace=cuda,nvtx", "dataset.seed=3", cwd=tmp_path)
    assert done.code == 0, done.err
    assert valid_manifest(only_run(tmp_path))["config"]["pipeline"]["nsys"]["trace"] == "cuda,nvtx"


def test_a_sweep_makes_one_run_per_job(tmp_path: Path) -> None:
    done = llm_perf("profile", "-m", *OFF, ALPHA, "run.seed=1,2", cwd=tmp_path)
    assert done.code == 0, done.err
    (sweep,) = (tmp_path / "tmp" / "runs").iterdir()
    seeds = [valid_manifest(sweep / job)["config"]["run"]["seed"] for job in ("0", "1")]
    assert seeds == [1, 2]


def test_a_sweep_with_a_failed_job_runs_the_others_and_says_so(tmp_path: Path) -> None:
    done = llm_perf_here("profile", "-m", *OFF, ALPHA, "pipeline.alpha.fail=words,''", cwd=tmp_path)
    assert done.code == 1
    (sweep,) = (tmp_path / "tmp" / "runs").iterdir()
    assert [valid_manifest(sweep / job)["status"] for job in ("0", "1")] == ["failed", "ok"]


@pytest.mark.parametrize(
    ("module", "stages"),
    [("llm_profile_runner", {"alpha"}), ("deep_profile_runner", {"alpha", "nsys", "ncu"})],
)
def test_old_entry_points_plan_the_same_orchestrator_with_one_notice(
    tmp_path: Path, module: str, stages: set[str]
) -> None:
    args = [command()[0], "-m", f"llm_perf_opt.runners.{module}", *OFF, ALPHA, "run.dry_run=true", "device=cpu"]
    args.append("run.plan_file=plan.json")
    done = subprocess.run(
        args, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == (dry_code_of_ncu() if "ncu" in stages else 0), done.stderr
    plan = valid_file("plan", tmp_path / "plan.json")
    assert {stage["name"] for stage in plan["stages"]} == stages
    assert len(re.findall("^deprecated: ", done.stderr, re.MULTILINE)) == 1
    assert "INFO: old keys translated (see docs/migration.md): device -> run.device" in done.stderr

"""The jobs of a sweep: how each is, what is resumed, and turns on a device."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.commands.sweep import main
from llm_perf_opt.core.manifest import read_manifest, write_manifest
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.compose import ConfigEntry, compose_config, first_bad_job
from llm_perf_opt.pipeline.jobs.device_lock import devices_of, turn
from llm_perf_opt.pipeline.jobs.launchers import describe, wait
from llm_perf_opt.pipeline.jobs.record import JobEntry, JobsDocument, read_jobs, require_own, write_jobs
from llm_perf_opt.pipeline.jobs.states import JobState, SchedulerQueue, ask_slurm, job_states
from llm_perf_opt.system.lock import locked
from tests.support.report_runs import write_run
from tests.support.schemas import valid_file

SUBMITTED = "2026-01-01T00:00:00+00:00"
LATER, EARLIER = "2026-01-01T00:10:00+00:00", "2025-12-31T00:00:00+00:00"


def sweep_of(folder: Path, *jobs: JobEntry, launcher: str = "submitit_slurm") -> JobsDocument:
    document = JobsDocument(
        created_at=SUBMITTED, launcher=launcher, arguments=("-m", "run.seed=1,2"), user_dir=str(folder), jobs=jobs
    )
    write_jobs(folder, document)
    return document


def job(number: int, **parts: Any) -> JobEntry:
    known = {"submitted_at": SUBMITTED, "scheduler_id": f"7_{number}", **parts}
    return JobEntry(number=number, folder=str(number), overrides=(f"run.seed={number}",), **known)


def run_with(folder: Path, status: Any, created_at: str = LATER) -> None:
    stage = StageRecord(name="nsys", status="failed" if status == "failed" else "ok", reason="no agent")
    write_run(folder, stage)
    manifest = replace(read_manifest(folder), status=status, created_at=created_at, environment={"hostname": "n1"})
    write_manifest(folder, manifest)


def stands(folder: Path, entry: JobEntry, queue: SchedulerQueue | None) -> JobState:
    (found,) = job_states(folder, sweep_of(folder, entry), queue)
    return found


GONE = SchedulerQueue(states={})


@pytest.mark.parametrize(
    ("status", "created_at", "queue", "state"),
    [
        ("ok", LATER, GONE, "ok"),
        ("ok", EARLIER, GONE, "ok"),
        ("failed", LATER, GONE, "failed"),
        ("interrupted", LATER, GONE, "failed"),
        ("running", LATER, GONE, "failed"),
        ("running", LATER, SchedulerQueue(states={"7_0": "RUNNING"}), "running"),
        ("ok", LATER, SchedulerQueue(states={"7_0": "COMPLETING"}), "ok"),
        # A failure of an earlier attempt does not count while the new one waits, runs, or cannot be queried.
        ("failed", EARLIER, SchedulerQueue(states={"7_0": "PENDING"}), "queued"),
        ("failed", EARLIER, SchedulerQueue(states={}, problem="squeue could not be queried (no)"), "unknown"),
        (None, LATER, SchedulerQueue(states={"7_0": "RUNNING"}), "running"),
        (None, LATER, GONE, "failed"),
    ],
)
def test_the_state_of_a_job_comes_from_its_directory_and_from_the_queue(
    tmp_path: Path, status: str | None, created_at: str, queue: SchedulerQueue, state: str
) -> None:
    if status is not None:
        run_with(tmp_path / "0", status, created_at)
    found = stands(tmp_path, job(0), queue)
    assert (found.state, found.where) == (state, None if status is None else "n1")


def test_a_job_that_is_gone_without_a_manifest_says_so(tmp_path: Path) -> None:
    assert stands(tmp_path, job(0), GONE).text == (
        "failed: job 7_0 is gone from the queue and left no result; its log is below .submitit/"
    )


def test_a_job_of_nobody_is_missing_and_one_of_a_living_submitter_is_queued(tmp_path: Path) -> None:
    entry = job(0, scheduler_id=None)
    assert stands(tmp_path, entry, None).text == "missing: it never began"
    with locked(tmp_path, print):
        assert stands(tmp_path, entry, None).state == "queued"


def test_a_run_whose_process_lives_is_running(tmp_path: Path) -> None:
    run_with(tmp_path / "0", "running")
    with locked(tmp_path / "0", print):
        assert stands(tmp_path, job(0, scheduler_id=None), None).state == "running"
    assert stands(tmp_path, job(0, scheduler_id=None), None).state == "failed"


def test_bad_input_of_one_job_is_the_reason_it_failed(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "error.txt").write_text("run.device: not a device\n")
    assert stands(tmp_path, job(0), GONE).text == "failed: run.device: not a device"


@pytest.mark.parametrize(
    ("script", "queue"),
    [
        ("echo '7_0|RUNNING'; echo '7_1|PENDING'", SchedulerQueue(states={"7_0": "RUNNING", "7_1": "PENDING"})),
        ("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1", GONE),
        (
            "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1",
            SchedulerQueue(
                states={},
                problem="squeue could not be queried (slurm_load_jobs error: Unable to contact slurm controller)",
            ),
        ),
    ],
)
def test_squeue_is_believed_only_when_it_answers(tmp_path: Path, script: str, queue: SchedulerQueue) -> None:
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\n{script}\n")
    squeue.chmod(0o755)
    assert ask_slurm(["7_0", "7_1"], {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}) == queue


def test_waiting_ends_when_no_job_can_give_a_result_any_more(tmp_path: Path, capsys: Any) -> None:
    run_with(tmp_path / "0", "ok")
    sweep_of(tmp_path, job(0), job(1), launcher="submitit_local")
    states = wait(tmp_path, [0, 1], poll_s=0.01, grace_s=0.05)
    assert describe(states) == "1 ok, 1 failed"
    assert capsys.readouterr().out == f"{tmp_path.name}: 1 ok, 1 failed\n"


def test_the_record_of_a_sweep_is_believed_only_as_this_user_wrote_it(tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    write_jobs(tmp_path, sweep_of(tmp_path, job(0)), env)
    valid_file("jobs", tmp_path / "jobs.json")
    document = read_jobs(tmp_path)
    assert document is not None
    require_own(tmp_path, document, env)
    changed = document.with_jobs([replace(job(0), overrides=("workload.command=[rm]",))])
    for one, whose in ((changed, env), (document, {"XDG_STATE_HOME": str(tmp_path / "other")})):
        with pytest.raises(ConfigError, match="was not started by you"):
            require_own(tmp_path, one, whose)


def test_a_report_has_a_row_for_every_job_also_for_those_that_did_not_begin(tmp_path: Path, capsys: Any) -> None:
    run_with(tmp_path / "0", "ok")
    sweep_of(tmp_path, job(0), job(1, scheduler_id=None), launcher="basic")
    assert main(["report", str(tmp_path)]) == 0
    assert "1 ok, 1 missing; `llm-perf sweep resume" in capsys.readouterr().out
    valid_file("sweep", tmp_path / "sweep.json")
    runs = json.loads((tmp_path / "sweep.json").read_text())["runs"]
    assert [(run["state"], run["where"], run["job"], run["problem"]) for run in runs] == [
        ("ok", "n1", "7_0", None),
        ("missing", None, None, "missing: it never began"),
    ]


def test_the_job_of_a_sweep_that_does_not_compose_is_the_one_explained() -> None:
    assert first_bad_job(["run.seed=1,2", "model=llama_tiny,none_such"], ConfigEntry()) == [
        "run.seed=1",
        "model=none_such",
    ]


@pytest.mark.parametrize("name", ["slurm", "slurm_h200", "slurm_ncu", "local", "joblib"])
def test_every_preset_of_a_launcher_composes(name: str) -> None:
    composed = compose_config([f"launcher={name}"])
    assert composed.hydra.runtime.choices["hydra/launcher"] == {"local": "submitit_local", "joblib": "joblib"}.get(
        name, "submitit_slurm"
    )
    assert composed.run.exclusive == (None if name.startswith("slurm") else "device")


@pytest.mark.parametrize(
    ("device", "visible", "gpus", "devices"),
    [
        ("cpu", None, ("0", "1"), ("cpu",)),
        ("auto", None, (), ("cpu",)),
        ("auto", None, ("0", "1"), ("0",)),
        ("cuda:1", None, ("0", "1"), ("1",)),
        ("cuda:0", "GPU-aa,GPU-bb", ("0", "1"), ("GPU-aa",)),
        ("cuda:1", "3,5", ("0", "1"), ("5",)),
        ("auto", "", ("0",), ("cpu",)),
    ],
)
def test_a_run_waits_for_the_device_it_will_be_on(
    device: str, visible: str | None, gpus: tuple[str, ...], devices: tuple[str, ...]
) -> None:
    assert devices_of(device, visible, gpus) == devices


def test_turns_on_one_device_follow_each_other(tmp_path: Path) -> None:
    env, said = {"TMPDIR": str(tmp_path)}, []

    def would_wait(text: str) -> None:
        said.append(text)
        raise InterruptedError

    with turn("device", ("0",), print, env):
        with turn("device", ("1",), print, env), turn(None, ("0",), print, env):
            pass
        for kind, name in (("device", "device 0"), ("node", "node")):
            with pytest.raises(InterruptedError), turn(kind, ("0",), would_wait, env):  # type: ignore[arg-type]
                pytest.fail("it should wait")
            assert said.pop() == f"waiting for another run on this machine to leave the {name} (run.exclusive)"
    with turn("node", ("0",), would_wait, env):
        assert said == []

"""Two runs together, a full disk, a closed terminal, and absurd input: a run says so and loses nothing."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from llm_perf_opt.children.start import run_child
from llm_perf_opt.cli import main
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.profiling.baseline import last_words
from llm_perf_opt.system.files import write_whole
from tests.support.fake_server import fake_server
from tests.support.orchestrator import (
    ALPHA,
    BETA,
    OFF,
    command,
    environment,
    llm_perf,
    llm_perf_here,
    statuses,
    valid_manifest,
)


def _wait_for(path: Path, timeout_s: float = 60) -> None:
    end = time.monotonic() + timeout_s
    while not path.exists() or not path.read_text():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.05)


def _start(tmp_path: Path, *args: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command("profile", *args), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.long
def test_of_two_starts_in_one_new_directory_one_gets_the_next_name(tmp_path: Path) -> None:
    slow = (*OFF, ALPHA, "pipeline.alpha.seconds=8", "hydra.run.dir=mine")
    runs = [_start(tmp_path, *slow) for _ in range(2)]
    said = [run.communicate(timeout=120)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "mine-2"]
    assert [statuses(valid_manifest(tmp_path / name)) for name in ("mine", "mine-2")] == [{"alpha": "ok"}] * 2
    assert sum("another run has just started there" in text for text in said) == 1
    assert list(tmp_path.rglob(".lock")) == []


def test_a_directory_in_use_is_neither_resumed_nor_reported(tmp_path: Path) -> None:
    run = _start(tmp_path, *OFF, ALPHA, BETA, "pipeline.beta.seconds=20", "hydra.run.dir=r")
    try:
        _wait_for(tmp_path / "r/tmp/beta/pid")
        resumed = llm_perf_here("profile", "run.resume=r", cwd=tmp_path)
        reported = llm_perf_here("report", "r", cwd=tmp_path)
    finally:
        run.terminate()
        run.communicate(timeout=60)
    for outcome in (resumed, reported):
        assert outcome.code == 2
        assert f"in use by process {run.pid} on " in outcome.err
        assert "wait until it has ended, or end it" in outcome.err
    assert llm_perf_here("report", "r", cwd=tmp_path).code == 0


@pytest.mark.long
def test_a_comparison_that_is_ended_leaves_neither_processes_nor_checkouts(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    slow = (*OFF, "pipeline.direct_inference.enable=false", BETA, "pipeline.beta.seconds=120")
    args = ["compare", "--interleave", "2", "-o", "out", "--", *slow, "candidate.overrides=run.seed=2", "base.ref=HEAD"]
    run = subprocess.Popen(command(*args), cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True)
    _wait_for(tmp_path / "out/base/1/tmp/beta/pid")
    started = psutil.Process(run.pid).children(recursive=True)
    run.terminate()
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    folder = tmp_path / "out"
    last = f"interrupted: all processes were ended; continue: llm-perf compare --resume {folder}"
    assert err.splitlines()[-1] == last
    assert psutil.wait_procs(started, timeout=20)[1] == []
    assert valid_manifest(folder / "base/1")["status"] == "interrupted"
    checkouts = subprocess.run([*git, "worktree", "list"], check=True, capture_output=True, text=True).stdout
    assert len(checkouts.splitlines()) == 1 and not (folder / "base-checkout").exists()


@pytest.mark.parametrize(
    ("manifests", "done"), [(0, {"alpha": "skipped", "beta": "skipped"}), (2, {"alpha": "ok", "beta": "ok"})]
)
def test_a_full_disk_is_recorded_and_the_run_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manifests: int, done: dict[str, str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(environment()["PYTHONPATH"].split(os.pathsep)[0])
    real: Callable[[Path, bytes], Path] = write_whole
    room = {"left": manifests}

    def full(path: Path, data: bytes) -> Path:
        is_final = b'"status": "failed"' in data
        room["left"] -= path.name == "manifest.json"
        if room["left"] < 0 and not is_final:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return real(path, data)

    monkeypatch.setattr("llm_perf_opt.core.manifest.write_whole", full)
    assert main(["profile", *OFF, ALPHA, BETA, "hydra.run.dir=r"]) == 1
    monkeypatch.setattr("llm_perf_opt.core.manifest.write_whole", real)
    manifest = valid_manifest(tmp_path / "r")
    reason = f"the run could not continue: No space left on device ({tmp_path / 'r/manifest.json'})"
    assert (manifest["status"], statuses(manifest), manifest["warnings"]) == ("failed", done, [reason])
    assert [path for path in (tmp_path / "r").rglob("*") if path.name.startswith(".")] == []
    assert main(["profile", "run.resume=r"]) == 0
    manifest = valid_manifest(tmp_path / "r")
    assert (statuses(manifest), manifest["warnings"]) == ({"alpha": "ok", "beta": "ok"}, [])


def test_a_disk_too_full_to_say_so_leaves_no_files_of_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(environment()["PYTHONPATH"].split(os.pathsep)[0])

    def full(path: Path, data: bytes) -> Path:
        if path.name == "manifest.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_whole(path, data)

    monkeypatch.setattr("llm_perf_opt.core.manifest.write_whole", full)
    assert main(["profile", *OFF, ALPHA, "hydra.run.dir=r"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: the run could not continue: No space left on device, and the failure could not be recorded; "
        "free disk space, then start again"
    )
    assert not (tmp_path / "r").exists()


LOAD = ("load.requests=4", "load.output_tokens=2", "dataset.prompt_tokens=4", "artifacts.runs_dir=r")


def test_a_load_test_on_a_full_disk_says_so_and_keeps_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    left = [2]

    def full(path: Path, data: bytes) -> Path:
        left[0] -= path.name == "requests.jsonl"
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_whole(path, data)

    monkeypatch.setattr("llm_perf_opt.pipeline.bench.bench_run.write_whole", full)
    with fake_server() as server:
        assert main(["bench", f"server.url={server.url}", *LOAD, "load.concurrency=1,2"]) == 1
    reason = "the run could not continue: No space left on device"
    run_dir = tmp_path / "r"
    assert capsys.readouterr().err.splitlines()[-1] == f"error: {reason}; what was measured before is in {run_dir}"
    manifest = valid_manifest(run_dir)
    assert (manifest["status"], manifest["stages"][0]["status"], manifest["stages"][0]["reason"]) == (
        "failed",
        "failed",
        reason,
    )
    assert len((run_dir / "bench/requests.jsonl").read_text().splitlines()) == 4
    assert [path for path in run_dir.rglob("*") if path.name.startswith(".")] == []


def test_a_load_test_beside_another_one_gets_the_next_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r").mkdir()
    with (tmp_path / "r/.lock").open("w") as other, fake_server() as server:
        fcntl.flock(other, fcntl.LOCK_EX)
        assert main(["bench", f"server.url={server.url}", *LOAD]) == 0
    said = f"{tmp_path / 'r'}: another run has just started there; this one goes to {tmp_path / 'r-2'}"
    assert said in capsys.readouterr().err.splitlines()
    assert [path.name for path in (tmp_path / "r").iterdir()] == [".lock"]
    assert valid_manifest(tmp_path / "r-2")["status"] == "ok"


@pytest.mark.parametrize(
    "closed",
    [
        "0<&- 1>&- 2>&-",
        "1>/dev/full 2>/dev/full",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("1>&-", "2>&-", "2>/dev/full")),
    ],
)
def test_a_run_nobody_listens_to_ends_as_it_should(tmp_path: Path, closed: str) -> None:
    words = " ".join(f"'{word}'" for word in command("profile", *OFF, ALPHA, "hydra.run.dir=r"))
    done = subprocess.run(["sh", "-c", f"{words} {closed}"], cwd=tmp_path, env=environment(), check=False, timeout=120)
    assert done.returncode == 0
    assert (valid_manifest(tmp_path / "r")["status"], statuses(valid_manifest(tmp_path / "r"))) == (
        "ok",
        {"alpha": "ok"},
    )
    assert (tmp_path / "r/report.html").is_file()


DEMO = ("experiment=demo", "run.dry_run=true")


@pytest.mark.parametrize(
    ("words", "start"),
    [
        (("model=null",), "model: no such choice (got 'null'), allowed: causal_lm, "),
        (("dataset=null",), "dataset: no such choice (got 'null'), allowed: omnidocbench, "),
        (("hardware=null",), "hardware: no such choice (got 'null'), allowed: "),
        (("pipeline=null",), "pipeline: missing (got None), allowed: a mapping of stages"),
        (("~pipeline",), "pipeline: no stage is enabled, allowed: at least one pipeline.<stage>.enable=true"),
        (("=1",), "=1: not an override, allowed: key=value"),
        (("--resolve",), "command line: The --resolve flag can only be used in conjunction with --cfg or --help"),
        (("--experiment", "demo"), "--experiment: no such flag; "),
        (("--experimental-rerun", "config.pickle"), "--experimental-rerun: refused, it runs what a pickled file holds"),
        (("--experimental-rerun=config.pickle",), "--experimental-rerun: refused, it runs what a pickled file holds"),
        (("model.name=${oc.env:NOT_SET_HERE}", *DEMO), "model.name: could not be resolved (KeyError raised while"),
        (
            (*DEMO, "workload.command=['${oc.env:NOT_SET_HERE}']"),
            "workload.command[0]: could not be resolved (KeyError raised",
        ),
        (("run.seed=${run.seed}", *DEMO), "run.seed: could not be resolved (Recursive interpolation detected)"),
        (("run.repeats=" + "9" * 10_000, *DEMO), "run.repeats: Exceeds the limit (4300 digits)"),
        (("model.geometry=" + "[" * 3000 + "]" * 3000, *DEMO), "model.geometry: maximum recursion depth exceeded"),
        (
            ("infer.temperature=nan", *DEMO),
            "infer.temperature: not a finite number (got nan)",
        ),
        (
            ("infer.temperature=inf", *DEMO),
            "infer.temperature: not a finite number (got inf)",
        ),
        (
            ("run.top_n_kernels=99999999999", *DEMO),
            "run.top_n_kernels: not allowed (got 99999999999), allowed: a number ≤ 2",
        ),
        (("model.adapter=os:path", *DEMO), "model.adapter: os:path is not an adapter, it has no config_cls"),
        (("model.adapter=':'", *DEMO), "model.adapter: cannot be imported (Empty module name)"),
        (("hydra.run.dir=/proc", *DEMO), "/proc: cannot be locked, .lock cannot be written there ("),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, tuple) else "",
)
def test_odd_input_is_one_line_and_exit_code_2(
    words: tuple[str, ...],
    start: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *words]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {start}")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("argv", "start"),
    [
        (["bench", "server=null"], "server: no such choice (got 'null'), allowed: openai, "),
        (["bench", "=1"], "=1: not an override, allowed: key=value"),
        (["bench", "load.seed=" + "9" * 10_000], "load.seed: Exceeds the limit (4300 digits)"),
        (["predict", "dataset=null"], "dataset: no such choice (got 'null'), allowed: "),
        (["plan", "model=llama3_8b", "hardware=h200", "--context", "inf"], "--context: not a number from above 0 to "),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_odd_input_to_other_commands_is_one_line_too(
    argv: list[str], start: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {start}")
    assert len(err.splitlines()) == 1


def test_an_error_nobody_foresaw_is_one_line_and_a_file_with_its_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def surprise(argv: list[str]) -> int:
        raise ZeroDivisionError("token=abcdef123456 by zero\nsecond line")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("llm_perf_opt.commands.runs.main", surprise)
    assert main(["runs"]) == 1
    (trace,) = tmp_path.iterdir()
    assert capsys.readouterr().err == (
        f"error: ZeroDivisionError: token=(redacted) by zero second line (unexpected; the traceback is in {trace})\n"
    )
    assert "ZeroDivisionError: token=(redacted) by zero" in trace.read_text()


def test_a_child_of_a_run_ends_with_one_line_below_its_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def surprise(config: AppConfig, out_dir: Path) -> None:
        raise ZeroDivisionError("token=abcdef123456 by zero")

    argv = ["--child", "experiment=demo", f"hydra.run.dir={tmp_path}", f"artifacts.runs_dir={tmp_path}"]
    assert run_child(surprise, argv) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == [
        "ZeroDivisionError: token=(redacted) by zero",
        "error: ZeroDivisionError: token=(redacted) by zero (unexpected; the traceback is above)",
    ]
    assert last_words("\n".join(lines)) == lines[-1].removeprefix("error: ")


@pytest.mark.parametrize(
    "module",
    [
        "runners.direct_inference_runner",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("runners.llm_profile_runner", "children.static_counts")
        ),
        pytest.param("runners.deep_profile_runner", marks=pytest.mark.long),
    ],
)
def test_every_entry_of_ours_ends_in_words(module: str, tmp_path: Path) -> None:
    """A closed output and an unknown word, together: no traceback, exit code 2."""
    # Never a child: the old command of the second stage.
    child = "" if module == "runners.deep_profile_runner" else "--child "
    done = subprocess.run(
        f"{sys.executable} -m llm_perf_opt.{module} {child}nonsense.key=1 >&-",
        shell=True, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "nonsense" in done.stderr


@pytest.mark.parametrize("locale", ["C", pytest.param("C.UTF-8", marks=pytest.mark.long)])
def test_letters_of_any_alphabet_work_on_the_command_line(tmp_path: Path, locale: str) -> None:
    done = llm_perf("profile", *OFF, ALPHA, "hydra.run.dir=läufe/試験 1", cwd=tmp_path, LC_ALL=locale)
    assert done.code == 0, done.err
    assert statuses(valid_manifest(tmp_path / "läufe/試験 1")) == {"alpha": "ok"}

"""Running other programs: logs, environments, timeouts and the end of whole process trees."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from llm_perf_opt.core.records import STEPS_FILE, CommandStep, Progress, begin_step, read_steps
from llm_perf_opt.errors import ToolError
from llm_perf_opt.system import process
from llm_perf_opt.system.process import Service, allowed_environment, run_command, run_quick
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.testing import scratch_context

pytestmark = pytest.mark.slow

ENV = {"PATH": os.environ["PATH"]}

# Starts a grandchild in its own session, with an empty environment, and lets its parent die: the hardest to find.
ESCAPEE = """
import subprocess, sys, time
code = '''
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True, env={})
open(sys.argv[1], "a").write(str(child.pid) + chr(10))
'''
subprocess.run([sys.executable, "-c", code, sys.argv[1]], start_new_session=True)
same = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
open(sys.argv[1], "a").write(str(same.pid) + chr(10))
time.sleep(float(sys.argv[2]))
"""


def _pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()]


def test_output_goes_to_the_log_and_the_exit_code_comes_back(tmp_path: Path) -> None:
    result = run_command(
        [sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"],
        env=ENV,
        timeout_s=30,
        log=tmp_path / "log.txt",
    )
    assert (result.exit_code, result.timed_out, result.ok, result.leftovers) == (3, False, False, 0)
    assert sorted((tmp_path / "log.txt").read_text().split()) == ["err", "out"]
    assert sorted(result.tail.split()) == ["err", "out"]


def test_stdin_is_empty(tmp_path: Path) -> None:
    result = run_command(
        [sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"],
        env=ENV,
        timeout_s=30,
        log=tmp_path / "log.txt",
    )
    assert result.tail == "''\n"


def test_a_program_that_does_not_exist_is_a_tool_error(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"^no-such-program: could not be started \(No such file or directory\)$"):
        run_command(["no-such-program"], env=ENV, timeout_s=5, log=tmp_path / "log.txt")


@pytest.mark.slow
def test_the_timeout_ends_the_whole_tree(tmp_path: Path) -> None:
    # On a busy machine the program takes longer until it has started all of it.
    for timeout_s in (2, 30):
        pids = tmp_path / f"pids{timeout_s}"
        start = time.monotonic()
        result = run_command(
            [sys.executable, "-c", ESCAPEE, str(pids), "300"], env=ENV, timeout_s=timeout_s, log=tmp_path / "log.txt"
        )
        assert time.monotonic() - start < timeout_s + 3 * 5
        assert (result.exit_code, result.timed_out) == (None, True)
        if pids.is_file() and len(_pids(pids)) == 2:
            break
    assert len(_pids(pids)) == 2
    assert [pid for pid in _pids(pids) if psutil.pid_exists(pid)] == []


def test_what_a_finished_command_left_running_is_ended_and_counted(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    result = run_command(
        [sys.executable, "-c", ESCAPEE, str(pids), "0"], env=ENV, timeout_s=30, log=tmp_path / "log.txt"
    )
    assert (result.exit_code, result.timed_out, result.leftovers) == (0, False, 2)
    assert [pid for pid in _pids(pids) if psutil.pid_exists(pid)] == []


@pytest.mark.parametrize(("name", "seconds", "leftovers"), [("nsys-agent", "0.3", 0), ("server", "60", 1)])
def test_of_what_is_left_running_only_an_agent_of_nsys_may_end_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seconds: str, leftovers: int
) -> None:
    """If we were killed while we wait for another one, it would not be ended."""
    monkeypatch.setattr(process, "SETTLE_S", 40.0)
    shutil.copy(shutil.which("sleep") or "", tmp_path / name)
    code = "import subprocess, sys; subprocess.Popen(sys.argv[1:])"
    argv = [sys.executable, "-c", code, str(tmp_path / name), seconds]
    start = time.monotonic()
    result = run_command(argv, env=ENV, timeout_s=30, log=tmp_path / "log.txt")
    assert (result.exit_code, result.leftovers) == (0, leftovers)
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_a_gigabyte_of_output_does_not_grow_our_memory(tmp_path: Path) -> None:
    code = "import os\nblock = b'x' * (1 << 20)\nfor _ in range(1024): os.write(1, block)"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = run_command([sys.executable, "-c", code], env=ENV, timeout_s=120, log=tmp_path / "log.txt")
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    size = (tmp_path / "log.txt").stat().st_size
    (tmp_path / "log.txt").unlink()
    assert result.exit_code == 0
    assert size == 1 << 30
    assert grown_kib < 20 * 1024


def test_cmd_txt_runs_the_same_command_again(tmp_path: Path) -> None:
    work = tmp_path / "a dir"
    work.mkdir()
    argv = [
        sys.executable,
        "-c",
        "import os,sys; print(sys.argv[1:], os.environ['EXTRA'], os.getcwd())",
        "a b",
        "$x'\"",
    ]
    first = run_command(
        argv,
        env={**ENV, "EXTRA": "1 2"},
        timeout_s=30,
        log=tmp_path / "log.txt",
        cmd_file=tmp_path / "cmd.txt",
        cwd=work,
    )
    code, again = run_quick(["sh", str(tmp_path / "cmd.txt")], env=ENV)
    assert (code, again) == (0, first.tail)
    assert first.tail == f"['a b', '$x\\'\"'] 1 2 {work}\n"


def test_ticks_tell_the_progress_a_child_of_ours_told_last_and_no_words_of_others(tmp_path: Path) -> None:
    seen: list[Progress | None] = []
    code = (
        "import time\nprint('llm-perf 1/2: step', 'USDT: profiler_start', sep='\\n', flush=True); time.sleep(0.7)\n"
        "print('llm-perf: done', '==PROF== Connected', sep='\\n', flush=True); time.sleep(0.7)"
    )
    run_command(
        [sys.executable, "-c", code],
        env=ENV,
        timeout_s=30,
        log=tmp_path / "log.txt",
        on_tick=lambda elapsed, told: seen.append(told),
    )
    assert [told for told in dict.fromkeys(seen) if told] == [
        Progress(text="step", done=1, of=2),
        Progress(text="done"),
    ]


def test_only_allowed_variables_pass_and_no_secret_does() -> None:
    environ = {
        "PATH": "/bin",
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_TOKEN": "secret-1",
        "AWS_SECRET_ACCESS_KEY": "secret-2",
        "TORCH_API_KEY": "secret-3",
        "SLURM_JWT_TOKEN": "secret-4",
        "MY_OWN": "1",
        "OMP_NUM_THREADS": "2",
    }
    kept = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "OMP_NUM_THREADS": "2"}
    assert allowed_environment(environ) == kept
    assert allowed_environment(environ, ["MY_OWN"]) == {**kept, "MY_OWN": "1"}


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_JWT", "NVIDIA_NGC_KEY", "NVIDIA_API_KEYS", "TORCH_HUB_PASS", "CUDA_PASSWD", "SLURM_DB_PWD"),
        *("PYTHON_KEYRING_PASSPHRASE", "XDG_COOKIE", "NCCL_AUTHORIZATION", "TRITON_AUTH_HEADER", "TORCH_GITHUB_PAT"),
        *("TRANSFORMERS_CREDENTIALS", "LLM_PERF_TOKENS", "XDG_SESSION_ID", "torch_secret"),
    ],
)
def test_a_name_that_looks_like_a_secret_passes_only_when_the_user_names_it(name: str) -> None:
    environ = {"PATH": "/bin", name: "planted"}
    assert allowed_environment(environ) == {"PATH": "/bin"}
    assert allowed_environment(environ, [name]) == environ


def test_harmless_names_that_only_resemble_secrets_pass() -> None:
    names = (
        *("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"),
        *("NSYS_SESSION_ID", "NV_TPS_LAUNCH_TOKEN", "NCCL_DEBUG", "OMP_NUM_THREADS", "PYTHONPATH", "PYTHONHASHSEED"),
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_BYPASS_CACHE"),
        *("TRITON_PASS_PLUGIN_PATH", "TRITON_MAX_PASSES", "TRANSFORMERS_TOKENIZER_PARALLELISM", "XDG_CACHE_HOME"),
        *("SLURM_JOB_ID", "SLURM_TASKS_PER_NODE", "PYTORCH_CUDA_ALLOC_CONF", "HF_HOME", "SSL_CERT_FILE"),
    )
    environ = dict.fromkeys(names, "1")
    assert allowed_environment(environ) == environ


def test_a_question_that_is_not_answered_in_time_says_so() -> None:
    code, text = run_quick([sys.executable, "-c", "import time; time.sleep(60)"], env=ENV, timeout_s=0.5)
    assert (code, text) == (None, "no answer within 0.5 s")


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(120)
"""
RUNS_IT = """
import sys
from pathlib import Path
from llm_perf_opt.system.process import run_command
run_command([sys.executable, "-c", sys.argv[2], sys.argv[1]], env={}, timeout_s=100, log=Path(sys.argv[1] + ".log"))
"""


@pytest.mark.slow
def test_a_second_interrupt_does_not_leave_the_command_running(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    run = subprocess.Popen([sys.executable, "-c", RUNS_IT, str(pid_file), STUBBORN], stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not pid_file.exists() or not pid_file.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    run.send_signal(signal.SIGINT)
    time.sleep(0.7)
    run.send_signal(signal.SIGINT)
    assert run.wait(60) != 0
    assert not psutil.pid_exists(int(pid_file.read_text()))


TALKS = """
import sys, time
print("known", sys.argv[1], "shape hf_" + "AbCdEfGhIjKlMnOpQrStUvWx", flush=True)
time.sleep(120)
"""
RUNS_A_TALKER = """
import sys
from pathlib import Path
from llm_perf_opt.system.process import run_command
from llm_perf_opt.system.redact import Redactor
log, program, secret = sys.argv[1:]
redactor = Redactor.of({}, more=[secret])
run_command([sys.executable, "-c", program, secret], env={}, timeout_s=100, log=Path(log), redactor=redactor)
"""


@pytest.mark.slow
def test_a_log_holds_no_secret_either_when_we_are_killed(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    run = subprocess.Popen([sys.executable, "-c", RUNS_A_TALKER, str(log), TALKS, "speak-friend"])
    end = time.monotonic() + 60
    while not log.exists() or not log.read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    run.kill()
    run.wait(20)
    while "speak-friend" in log.read_text() and time.monotonic() < end:
        time.sleep(0.05)
    assert log.read_text() == "known (redacted) shape (redacted)\n"
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]


def test_the_last_words_of_a_service_hold_no_secret_while_its_log_still_does(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys; print('bad key', sys.argv[1])", "speak-friend"]
    redactor = Redactor.of({}, more=["speak-friend"])
    log, cmd_file = tmp_path / "server.log", tmp_path / "cmd.txt"
    with Service(argv, env=ENV, log=log, cmd_file=cmd_file, redactor=redactor) as service:
        assert service.wait(20)
        assert service.tail() == "bad key (redacted)\n"
    assert log.read_text() == "bad key (redacted)\n"


NOTES_STEPS = """
import sys, time
from llm_perf_opt.core.records import LAST_STEP, begin_step
for name in ("imports", "loading", "imports", LAST_STEP):
    begin_step(name)
    time.sleep(0.01)
"""


def test_a_command_that_notes_its_steps_is_recorded_with_their_times(tmp_path: Path) -> None:
    ctx = scratch_context("nsys", tmp_path)
    ctx.run_command([sys.executable, "-c", NOTES_STEPS], timeout_s=60, label="the workload")
    ctx.run_command([sys.executable, "-c", ""], timeout_s=60, log="second.txt")
    first, second = ctx.run_command.records
    assert first.label == "the workload"
    assert [step.name for step in first.steps] == ["start", "imports", "loading", "end"]
    assert sum(step.duration_s for step in first.steps) == pytest.approx(first.duration_s, abs=0.01)
    assert all(step.duration_s >= 0.01 for step in first.steps)
    assert (second.label, second.steps) == ("nsys", ())
    assert STEPS_FILE not in (tmp_path / "nsys" / "cmd.txt").read_text()


def test_of_several_ranks_the_first_one_notes_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    for rank in ("1", "0", "2"):
        begin_step(f"rank {rank}", {STEPS_FILE: str(path), "RANK": rank})
    begin_step("nobody asked", {})
    steps = read_steps(path, start_ns=0, end_ns=time.monotonic_ns())
    assert [step.name for step in steps] == ["start", "rank 0"]


def test_a_step_that_was_not_written_to_its_end_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(b'{"name":"imports","at_ns":3000000000}\n{"name":"load')
    steps = read_steps(path, start_ns=1_000_000_000, end_ns=7_500_000_000)
    assert steps == (CommandStep(name="start", duration_s=2.0), CommandStep(name="imports", duration_s=4.5))

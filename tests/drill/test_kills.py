"""SIGKILL at thirty moments of a run: nothing stays alive, the manifest is valid, and nothing is done twice."""

import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.support.orchestrator import ALPHA, BETA, OFF, command, environment, llm_perf, statuses, valid_manifest

pytestmark = pytest.mark.drill
MOMENTS = 30
SLOW = ("pipeline.alpha.seconds=3", "pipeline.beta.seconds=3")


def _ran(run_dir: Path, stage: str) -> int:
    path = run_dir / "tmp" / stage / "ran.txt"
    return len(path.read_text().splitlines()) if path.is_file() else 0


def _marked(state: str) -> list[int]:
    """Processes that live with this drill's own environment, wherever they went."""
    environments = ((p.pid, p.info["environ"] or {}) for p in psutil.process_iter(["environ"]))
    return [pid for pid, environ in environments if environ.get("XDG_STATE_HOME") == state]


def _wait_for(run: "subprocess.Popen[bytes]", path: Path) -> None:
    end = time.monotonic() + 120
    while not path.exists() and run.poll() is None and time.monotonic() < end:
        time.sleep(0.02)


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_kill_leaves_nothing_alive_and_loses_nothing(moment: int, tmp_path: Path) -> None:
    """A third before the first stage, a third inside it, a third after it has finished."""
    args = command("profile", *OFF, ALPHA, BETA, *SLOW, "hydra.run.dir=r")
    environ = environment(XDG_STATE_HOME=str(tmp_path / "state"))
    run = subprocess.Popen(args, cwd=tmp_path, env=environ, stderr=subprocess.DEVNULL)
    run_dir = tmp_path / "r"
    part, step = moment % 3, moment // 3
    if part:
        _wait_for(run, run_dir / "tmp" / ("alpha" if part == 1 else "beta") / "ran.txt")
    time.sleep(0.3 * step)
    tree = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    run.wait(20)
    assert psutil.wait_procs(tree, timeout=20)[1] == []
    # One that was just being started learns of our end when it looks for the first time.
    end = time.monotonic() + 20
    while (left := _marked(environ["XDG_STATE_HOME"])) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []
    if not (run_dir / "manifest.json").exists():
        assert part == 0
        return
    before = statuses(valid_manifest(run_dir))
    assert "alpha" in before or part < 2
    counted = {stage: _ran(run_dir, stage) for stage in before}
    done = llm_perf("profile", "run.resume=r", cwd=tmp_path, timeout_s=120, XDG_STATE_HOME=environ["XDG_STATE_HOME"])
    assert done.code == 0, done.err
    assert statuses(valid_manifest(run_dir)) == {"alpha": "ok", "beta": "ok"}
    assert {stage: _ran(run_dir, stage) for stage in before} == counted

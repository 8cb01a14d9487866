"""The lock of a run directory: it dies with its owner, and what such an owner left can be removed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from llm_perf_opt.system.lock import LOCK_FILE, is_locked, remove_left_lock

HOLD = """
import sys, time
from pathlib import Path
from llm_perf_opt.system.lock import take_lock
take_lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_only_the_lock_file_of_an_owner_that_was_killed_is_removed(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == "held\n"
        remove_left_lock(tmp_path)
        assert is_locked(tmp_path) and (tmp_path / LOCK_FILE).exists()
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        owner.stdout.close()
    assert not is_locked(tmp_path) and (tmp_path / LOCK_FILE).exists()
    remove_left_lock(tmp_path)
    assert not (tmp_path / LOCK_FILE).exists()

"""The real nsys started by a test itself, with the patience the stage has."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from llm_perf_opt.profiling.nsys.live_sessions import AGENT_FAILED, LOST_AGENT, MOST_TRIES, one_capture
from llm_perf_opt.profiling.vendor.vendor_tools import probe_nsys


def capture(argv: Sequence[str], report: Path, *, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """The exit code and all that was printed; started again where a busy machine lost the agent, as the stage does.

    Not where the shared memory was damaged: that is a defect of what started them together.
    """
    code, said = 1, ""
    for _ in range(MOST_TRIES):
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120
        )
        code, said = done.returncode, done.stdout.decode(errors="replace")
        if report.is_file() or AGENT_FAILED in said or not LOST_AGENT.search(said):
            break
    return code, said


def capture_alone(argv: Sequence[str], report: Path, *, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """As `capture`, while no other capture of this nsys runs on the machine."""
    with one_capture(probe_nsys(os.environ).version, print, limit_s=120):
        return capture(argv, report, env=env)

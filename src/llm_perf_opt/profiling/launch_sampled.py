"""Runs a sampler that starts a program, and writes down how the program ended: `python … FILE SAMPLER …`.

A sampler ends well whatever its program does. So this looks at the program from outside, in /proc: a process between
the two would be sampled first, and the program's first tenths of a second would be missed. It needs the standard
library alone.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.02
TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name: state; processor time, own and of children that ended; start; exit status.
STATE, CPU, START, STATUS = 0, slice(11, 15), 19, 49


def main() -> int:
    file, *command = sys.argv[1:]
    sampler = subprocess.Popen(command)
    seen: dict[str, float] = {}
    while True:
        ended = sampler.poll() is not None
        if "exit_code" not in seen and (child := _child(sampler.pid)) is not None:
            seen.update(_look(child))
        if ended:
            break
        time.sleep(POLL_S)
    Path(file).write_text(json.dumps(seen, allow_nan=False), encoding="ascii")
    return sampler.returncode


def _child(pid: int) -> int | None:
    """The first process another one has started."""
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found = Path(f"/proc/{pid}/task/{task}/children").read_text(encoding="ascii").split()
            if found:
                return int(found[0])
    except OSError:
        # It has ended meanwhile.
        return None
    return None


def _look(pid: int) -> dict[str, float]:
    """Processor time and age of a process; of one that has ended and is not waited for yet, its exit code too."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return {}
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    seen: dict[str, float] = {
        "cpu_s": sum(int(text) for text in fields[CPU]) / TICKS,
        "wall_s": max(0.0, now - int(fields[START]) / TICKS),
    }
    if fields[STATE] == "Z":
        status = int(fields[STATUS])
        seen["exit_code"] = os.waitstatus_to_exitcode(status)
    return seen


if __name__ == "__main__":
    sys.exit(main())

"""Runs a program to be sampled, and writes down how it ended: `python … FILE MODE …`.

behind SAMPLER…            the sampler starts the program, so it may read its memory as its parent
attach SAMPLER… -- PROGRAM…  starts the program, and the sampler on its process once that runs Python
alone PROGRAM…             starts the program, which samples itself

A sampler exits with 0 even if its program fails. So `behind` looks at the program from outside, in /proc: a process
between the two would be sampled first, and the program's first tenths of a second would be missed. It needs the
standard library alone.
"""

import json
import os
import re
import select
import subprocess
import sys
import time
from pathlib import Path

POLL_S = 0.02
TICKS = os.sysconf("SC_CLK_TCK")
# A program that has not become Python after this long is sampled as it is.
WAIT_FOR_PYTHON_S = 10.0
# Fields of /proc/PID/stat after the name: state; processor time, own and of children that ended; start; exit status.
STATE, CPU, START, STATUS = 0, slice(11, 15), 19, 49
PYTHON = re.compile(r"^python[\d.]*t?$")


def main() -> int:
    file, mode, *command = sys.argv[1:]
    seen: dict[str, float] = {}
    if mode == "behind":
        code = _behind(command, seen)
    elif mode == "attach":
        end = command.index("--")
        code = _own(command[end + 1 :], command[:end], seen)
    else:
        code = _own(command, [], seen)
    Path(file).write_text(json.dumps(seen, allow_nan=False), encoding="ascii")
    return code


def _behind(command: list[str], seen: dict[str, float]) -> int:
    sampler = subprocess.Popen(command)
    program: select.poll | None = None
    while True:
        ended = sampler.poll() is not None
        if "exit_code" not in seen and (children := _children(sampler.pid)):
            program = program or _watch(children[0])
            seen.update(_look(children[0]))
        if ended:
            return sampler.returncode
        if program is None or "exit_code" in seen:
            time.sleep(POLL_S)
        else:
            # The sampler waits for the program as soon as it ends, and its exit code is gone then: be there first.
            program.poll(POLL_S * 1e3)


def _watch(pid: int) -> "select.poll | None":
    """What returns from a wait the moment a process ends; None where this kernel has no such thing."""
    try:
        number = os.pidfd_open(pid)
    except OSError:
        return None
    watched = select.poll()
    watched.register(number, select.POLLIN)
    return watched


def _own(command: list[str], sampler: list[str], seen: dict[str, float]) -> int:
    """The program as our own child: what it used is known exactly when it ends."""
    start = time.monotonic()
    program = subprocess.Popen(command)
    watcher: subprocess.Popen[bytes] | None = None
    while True:
        pid, status, used = os.wait4(program.pid, os.WNOHANG)
        if pid:
            seen.update(
                pid=pid,
                cpu_s=used.ru_utime + used.ru_stime,
                wall_s=time.monotonic() - start,
                exit_code=os.waitstatus_to_exitcode(status),
            )
            program.returncode = os.waitstatus_to_exitcode(status)
            return program.returncode if watcher is None else watcher.wait()
        # Of threads that have ended nothing is left to read: the longest wait that was seen counts.
        seen["cpu_wait_s"] = max(seen.get("cpu_wait_s", 0.0), _waited(program.pid))
        is_late = time.monotonic() - start > WAIT_FOR_PYTHON_S
        if sampler and watcher is None and (is_late or _runs_python(program.pid)):
            watcher = subprocess.Popen([*sampler, "--pid", str(program.pid)])
        if watcher is not None and watcher.poll() is not None:
            # Its time is up, or it may not: who started us ends the program.
            seen.update(_look(program.pid))
            return watcher.returncode
        time.sleep(POLL_S)


def _waited(pid: int) -> float:
    """For how long the threads of a process had no processor though they wanted one."""
    waited_ns = 0
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            waited_ns += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        # It has ended meanwhile, or this kernel does not count it.
        return waited_ns / 1e9
    return waited_ns / 1e9


def _runs_python(pid: int) -> bool:
    """Whether a process or one below it is an interpreter by now: a shell may have to find it first."""
    try:
        if PYTHON.match(Path(os.readlink(f"/proc/{pid}/exe")).name):
            return True
    except OSError:
        return False
    return any(_runs_python(child) for child in _children(pid))


def _children(pid: int) -> list[int]:
    """The processes another one has started and that still run."""
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text("ascii").split()]
    except OSError:
        # It has ended meanwhile.
        return found
    return found


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

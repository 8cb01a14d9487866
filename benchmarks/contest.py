"""Runs commands side by side: medians of whole-process time, then one more run of each for its memory.

CPU seconds are those of the process and all it started and waited for: on a busy machine wall time says more about the
neighbours. On one core (`taskset`) no tool gains from parallel work.
"""

import ast
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

LOOK_EVERY_S = 0.01
NAME, BASE = "llm-perf", "llm-perf before"
# How much processor time this version may take of what an older one took.
AIM_OF_BASE = 1.1
# As installed: what pip installs is compiled once, and so must be what runs from a checkout.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Seconds on the clock and on the processor."""

    wall: float
    cpu: float


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a contender took and what it printed; `one_core` is the same on one core, where that was requested."""

    seconds: float
    cpu_seconds: float
    one_core: "Spent | None"
    peak_mb: float
    out: str
    failed: bool


def contest(
    entries: dict[str, list[str]], rounds: int, *, one_core: bool = False, peers_once: bool = False
) -> dict[str, Outcome]:
    """Every command once in each round, so that a slow spell of the machine meets all of them.

    With `peers_once` the others run once on one core, and their time on all is that of the run for their memory.
    """
    times: dict[str, list[Spent]] = {name: [] for name in entries}
    alone: dict[str, list[Spent]] = {name: [] for name in entries}
    for number in range(rounds):
        for name, argv in entries.items():
            once = peers_once and not name.startswith(NAME)
            if not once:
                times[name].append(spent_by(argv))
            if one_core and not (once and number):
                alone[name].append(spent_by(on_one_core(argv)))
    return {
        name: _outcome(
            argv,
            _median(times[name]) if times[name] else None,
            _median(alone[name]) if alone[name] else None,
        )
        for name, argv in entries.items()
    }


def on_one_core(argv: list[str]) -> list[str]:
    """The command kept on one core, the last this process may use."""
    return ["taskset", "-c", str(max(os.sched_getaffinity(0))), *argv]


def spent_by(argv: list[str]) -> Spent:
    """The time of a whole process, unobserved: on a small machine observing takes time from it."""
    quiet = subprocess.DEVNULL
    start = time.perf_counter()
    process = subprocess.Popen(argv, stdin=quiet, stdout=quiet, stderr=quiet, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    return Spent(wall=wall, cpu=usage.ru_utime + usage.ru_stime)


def rows_of(found: dict[str, Outcome]) -> list[dict[str, Any]]:
    """The times and the memory of each, as results files hold them."""
    return [
        {
            "how": name,
            "seconds": round(outcome.seconds, 3),
            "cpu_seconds": round(outcome.cpu_seconds, 3),
            **(
                {}
                if outcome.one_core is None
                else {
                    "one_core_seconds": round(outcome.one_core.wall, 3),
                    "one_core_cpu_seconds": round(outcome.one_core.cpu, 3),
                }
            ),
            "peak_mb": round(outcome.peak_mb),
            **({"failed": True} if outcome.failed else {}),
        }
        for name, outcome in found.items()
    ]


def chosen(entries: dict[str, list[str]], only: list[str] | None) -> dict[str, list[str]]:
    """Ours, and of the others those in whose names one of the words is; all where none is given."""
    return {
        name: argv
        for name, argv in entries.items()
        if name.startswith(NAME) or only is None or any(word in name for word in only)
    }


def times_faster(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, float]:
    """How many times faster one row is than another, in each measure both have."""
    keys = [key for key in ours if key.endswith("seconds") and key in theirs and ours[key]]
    return {key: round(theirs[key] / ours[key], 1) for key in keys}


def as_before(base: Path, benchmark: str, script: str) -> list[str]:
    """The command for what a checkout of an older version did in the same benchmark, by its own script."""
    for node in ast.parse((base / "benchmarks" / benchmark).read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name) and name.id == script:
            return ["env", f"PYTHONPATH={base / 'src'}", sys.executable, "-c", str(ast.literal_eval(node.value))]
    raise SystemExit(f"{base}: its benchmarks/{benchmark} has no {script}, allowed: a checkout of this project")


def share_of_base(rows: list[dict[str, Any]]) -> dict[str, float] | None:
    """The times of this version as parts of those of the older one; None where that did not run, or failed."""
    ours = next(row for row in rows if row["how"].startswith(NAME))
    base = next((row for row in rows if row["how"].startswith(BASE)), None)
    if base is None or "failed" in base:
        return None
    return {key: round(ours[key] / base[key], 2) for key in ours if key.endswith("seconds") and base[key]}


def keeps_pace(share: dict[str, float] | None) -> bool:
    """Whether this version takes no more processor time than it may, where an older one ran alongside it."""
    return share is None or all(part <= AIM_OF_BASE for key, part in share.items() if key.endswith("cpu_seconds"))


def peak_mb_of(argv: list[str]) -> float:
    return outcome_of(argv).peak_mb


def outcome_of(argv: list[str]) -> Outcome:
    """One run of a command: its time, its memory and what it printed. Looking at it takes a little time from it."""
    return _outcome(argv, None, None)


def _median(spent: list[Spent]) -> Spent:
    return Spent(wall=statistics.median(s.wall for s in spent), cpu=statistics.median(s.cpu for s in spent))


def _outcome(argv: list[str], spent: Spent | None, one_core: Spent | None) -> Outcome:
    """The largest memory of the command with all it starts: what the kernel noted, or the sum over the tree if more."""
    with tempfile.TemporaryFile("w+") as out:
        start = time.perf_counter()
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL, env=ENVIRONMENT
        )
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            watched = pool.submit(_largest_sum, process.pid, done)
            _, status, usage = os.wait4(process.pid, 0)
            taken = Spent(wall=time.perf_counter() - start, cpu=usage.ru_utime + usage.ru_stime)
            done.set()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        peak = max(watched.result(), usage.ru_maxrss << 10)
        return Outcome(
            seconds=(spent or taken).wall,
            cpu_seconds=(spent or taken).cpu,
            one_core=one_core,
            peak_mb=peak / 2**20,
            out=out.read(),
            failed=process.returncode != 0,
        )


def _largest_sum(pid: int, done: threading.Event) -> int:
    peak = 0
    while not done.wait(LOOK_EVERY_S):
        try:
            root = psutil.Process(pid)
            peak = max(peak, sum(p.memory_info().rss for p in (root, *root.children(recursive=True))))
        except psutil.NoSuchProcess:
            continue
    return peak

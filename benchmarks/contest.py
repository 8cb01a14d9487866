"""Runs commands side by side: medians of whole-process time, then one more run of each for its memory."""

import os
import statistics
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil

LOOK_EVERY_S = 0.01


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a contender took and what it printed."""

    seconds: float
    peak_mb: float
    out: str
    failed: bool


def contest(entries: dict[str, list[str]], rounds: int) -> dict[str, Outcome]:
    """Every command once in each round, so that a slow spell of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in entries}
    for _ in range(rounds):
        for name, argv in entries.items():
            times[name].append(seconds_of(argv))
    return {name: _outcome(argv, statistics.median(times[name])) for name, argv in entries.items()}


def seconds_of(argv: list[str]) -> float:
    """The time of a whole process, with nobody looking: on a small machine looking takes time from it."""
    start = time.perf_counter()
    subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - start


def peak_mb_of(argv: list[str]) -> float:
    return _outcome(argv, 0.0).peak_mb


def _outcome(argv: list[str], seconds: float) -> Outcome:
    """The largest memory of the command with all it starts: what the kernel noted, or the sum over the tree if more."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.DEVNULL)
        done = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            watched = pool.submit(_largest_sum, process.pid, done)
            _, status, usage = os.wait4(process.pid, 0)
            done.set()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        peak = max(watched.result(), usage.ru_maxrss << 10)
        return Outcome(seconds=seconds, peak_mb=peak / 2**20, out=out.read(), failed=process.returncode != 0)


def _largest_sum(pid: int, done: threading.Event) -> int:
    peak = 0
    while not done.wait(LOOK_EVERY_S):
        try:
            root = psutil.Process(pid)
            peak = max(peak, sum(p.memory_info().rss for p in (root, *root.children(recursive=True))))
        except psutil.NoSuchProcess:
            continue
    return peak

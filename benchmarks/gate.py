"""False alarms and misses of a gate on this machine, as noisy as it is: one program twice, then once made 5 % slower.

    .venv/bin/python benchmarks/gate.py [--trials 40] [--out FILE]

The program is a loop of known length in a process of its own; its slower version does 5 % more of the same work. A pass
starts it and takes REPEATS times. A trial asks the comparison of `llm-perf compare` whether candidate and base differ:

interleaved      pairs base, candidate, candidate, base, …; asked after each number of pairs in LOOKS, with the level
                 shared among the looks, until there is an answer; the pairs it took are counted
not interleaved  LOOKS[1] passes of the base, then as many of the candidate, asked once

Targets, of 40 trials interleaved: at most 1 false alarm, and at least 38 slowdowns found. The result is kept in
benchmarks/results/gate.json with the load of the machine, because that is what it is about.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.analysis.compare.stability import RepeatedValue
from llm_perf_opt.analysis.compare.statistics import estimate, judge

TRIALS, REPEATS, SLOWER = 40, 41, 1.05
LOOKS = (6, 12, 24, 48)
# Half a millisecond to one: on a busy machine most longer loops are interrupted, and then so is the median.
STEPS = 15_000
PROGRAM = """
import sys, time
steps, repeats = int(sys.argv[1]), int(sys.argv[2])
def work():
    total = 0
    for number in range(steps):
        total ^= number * number
    return total
work()
for _ in range(repeats):
    start = time.perf_counter_ns()
    work()
    print(time.perf_counter_ns() - start)
"""
RESULT = Path(__file__).with_name("results") / "gate.json"
Passes = list[list[RepeatedValue]]


def one_pass(factor: float) -> list[RepeatedValue]:
    argv = [sys.executable, "-S", "-c", PROGRAM, str(round(STEPS * factor)), str(REPEATS)]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [RepeatedValue(sample_id="loop", repeat=n, value=int(v) / 1e6) for n, v in enumerate(text.split())]


def ask(base: Passes, candidate: Passes, *, paired: bool, looks: int) -> str:
    found = estimate(base, candidate, paired=paired)
    p = found.p_value
    return judge(found, None if p is None else min(1.0, looks * p), lower_is_better=True)


def interleaved(factor: float) -> tuple[str, int]:
    """The verdict, and the pairs it took."""
    base: Passes = []
    candidate: Passes = []
    for wanted in LOOKS:
        while len(base) < wanted:
            order = [(base, 1.0), (candidate, factor)]
            for side, speed in order if len(base) % 2 == 0 else reversed(order):
                side.append(one_pass(speed))
        verdict = ask(base, candidate, paired=True, looks=len(LOOKS))
        if verdict != "inconclusive":
            break
    return verdict, len(base)


def one_after_the_other(factor: float) -> tuple[str, int]:
    base = [one_pass(1.0) for _ in range(LOOKS[1])]
    candidate = [one_pass(factor) for _ in range(LOOKS[1])]
    return ask(base, candidate, paired=False, looks=1), LOOKS[1]


def summary(answers: Sequence[tuple[str, int]]) -> dict[str, object]:
    verdicts = [verdict for verdict, _ in answers]
    took = [pairs for verdict, pairs in answers if verdict != "inconclusive"]
    return {
        "verdicts": {name: verdicts.count(name) for name in ("better", "worse", "same", "inconclusive")},
        "median_pairs_to_an_answer": statistics.median(took) if took else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    start, load = time.monotonic(), os.getloadavg()
    ways = {"interleaved": interleaved, "not_interleaved": one_after_the_other}
    found = {
        name: {
            "same": summary([way(1.0) for _ in range(args.trials)]),
            "5_percent_slower": summary([way(SLOWER) for _ in range(args.trials)]),
        }
        for name, way in ways.items()
    }
    result = {
        "trials": args.trials,
        "repeats_in_a_pass": REPEATS,
        "looks_at_pairs": LOOKS,
        "cpu_count": os.cpu_count(),
        "load_average": {"before": load, "after": os.getloadavg()},
        "seconds": round(time.monotonic() - start, 1),
        "targets_of_40_interleaved": {"false_alarms_at_most": 1, "slowdowns_found_at_least": 38},
        **found,
    }
    args.out.parent.mkdir(exist_ok=True)
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=2))
    same, slower = (found["interleaved"][key]["verdicts"] for key in ("same", "5_percent_slower"))
    assert isinstance(same, dict) and isinstance(slower, dict)
    alarms, hits = same["better"] + same["worse"], slower["worse"]
    return 0 if alarms <= args.trials / 40 and hits >= args.trials * 38 / 40 else 1


if __name__ == "__main__":
    sys.exit(main())

"""False alarms and misses of a gate on this machine, as noisy as it is: one program twice, then once made 5 % slower.

    .venv/bin/python benchmarks/gate.py [--trials 40] [--out FILE] [--minutes 12]

The program is a loop of known length in its own process; its slower version does 5 % more of the same work. A pass
starts it and takes REPEATS times. A trial asks the comparison of `llm-perf compare` whether candidate and base differ:

interleaved      pairs base, candidate, candidate, base, …; asked after each number of pairs in LOOKS, as
                 `--interleave auto` does, until there is an answer; the pairs it took are counted
not interleaved  PASSES passes of the base, then as many of the candidate, asked once

Targets, of 40 trials interleaved: at most 1 false alarm, and at least 38 slowdowns found. The result is kept in
benchmarks/results/gate.json with the load of the machine, because that is what it is about. Each trial is written
down when it is done (FILE with `.partial` behind its name): a run that was ended, or that `--minutes` ended, continues
where it stopped when it is started again, and only a complete one writes the result. The four kinds of trials take
turns, so that what the machine does meanwhile hits all of them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.comparison.statistics import estimate, judge, shared_among

TRIALS, REPEATS, SLOWER = 40, 41, 1.05
LOOKS = (6, 12, 24, 48, 96)
PASSES = 12
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
SETTINGS = {"repeats_in_a_pass": REPEATS, "looks_at_pairs": list(LOOKS), "passes_not_interleaved": PASSES}
Passes = list[list[RepeatedValue]]
Answer = tuple[str, int]


def one_pass(factor: float) -> list[RepeatedValue]:
    argv = [sys.executable, "-S", "-c", PROGRAM, str(round(STEPS * factor)), str(REPEATS)]
    text = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    return [RepeatedValue(sample_id="loop", repeat=n, value=int(v) / 1e6) for n, v in enumerate(text.split())]


def ask(base: Passes, candidate: Passes, *, paired: bool, spent: float) -> str:
    found = estimate(base, candidate, paired=paired)
    return judge(found, found.p_value, lower_is_better=True, spent=spent)


def interleaved(factor: float) -> Answer:
    """The verdict, and the pairs it took."""
    base: Passes = []
    candidate: Passes = []
    for wanted, spent in zip(LOOKS, shared_among(LOOKS), strict=True):
        while len(base) < wanted:
            order = [(base, 1.0), (candidate, factor)]
            for side, speed in order if len(base) % 2 == 0 else reversed(order):
                side.append(one_pass(speed))
        verdict = ask(base, candidate, paired=True, spent=spent)
        if verdict != "inconclusive":
            break
    return verdict, len(base)


def one_after_the_other(factor: float) -> Answer:
    base = [one_pass(1.0) for _ in range(PASSES)]
    candidate = [one_pass(factor) for _ in range(PASSES)]
    return ask(base, candidate, paired=False, spent=1.0), PASSES


WAYS = {"interleaved": interleaved, "not_interleaved": one_after_the_other}
FACTORS = {"same": 1.0, "5_percent_slower": SLOWER}
KINDS = [(way, factor) for way in WAYS for factor in FACTORS]


def trials(count: int, kept: Path) -> Iterator[None]:
    """Make what is missing, a trial of each kind in turn, and write each down."""
    done = read_trials(kept)
    for number in range(count):
        for way, factor in KINDS:
            if len(done[way, factor]) > number:
                continue
            start, load = time.monotonic(), os.getloadavg()[0]
            verdict, pairs = WAYS[way](FACTORS[factor])
            done[way, factor].append((verdict, pairs))
            line = {"way": way, "factor": factor, "verdict": verdict, "pairs": pairs, "load": load}
            line |= {"seconds": round(time.monotonic() - start, 2), "settings": SETTINGS}
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            yield


def lines_of(kept: Path) -> list[dict[str, object]]:
    """The trials of an earlier start that were made in the same way."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.is_file() else []
    return [line for line in map(json.loads, lines) if line["settings"] == SETTINGS]


def read_trials(kept: Path) -> dict[tuple[str, str], list[Answer]]:
    found: dict[tuple[str, str], list[Answer]] = {kind: [] for kind in KINDS}
    for line in lines_of(kept):
        found[str(line["way"]), str(line["factor"])].append((str(line["verdict"]), int(str(line["pairs"]))))
    return found


def summary(answers: Sequence[Answer]) -> dict[str, object]:
    verdicts = [verdict for verdict, _ in answers]
    took = [pairs for verdict, pairs in answers if verdict != "inconclusive"]
    return {
        "verdicts": {name: verdicts.count(name) for name in ("better", "worse", "same", "inconclusive")},
        "median_pairs_to_an_answer": statistics.median(took) if took else None,
        "most_pairs_to_an_answer": max(took, default=None),
    }


def result_of(count: int, kept: Path) -> dict[str, object]:
    lines, found = lines_of(kept), read_trials(kept)
    loads = [float(str(line["load"])) for line in lines]
    return {
        "trials": count,
        **SETTINGS,
        "cpu_count": os.cpu_count(),
        "load_average": {"median": statistics.median(loads), "least": min(loads), "most": max(loads)},
        "seconds": round(sum(float(str(line["seconds"])) for line in lines), 1),
        "targets_of_40_interleaved": {"false_alarms_at_most": 1, "slowdowns_found_at_least": 38},
        **{way: {factor: summary(found[way, factor][:count]) for factor in FACTORS} for way in WAYS},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--minutes", type=float, help="stop after this time; the next start continues")
    args = parser.parse_args()
    args.out.parent.mkdir(exist_ok=True)
    kept = args.out.with_name(args.out.name + ".partial")
    start = time.monotonic()
    for _ in trials(args.trials, kept):
        if args.minutes is not None and time.monotonic() - start > 60 * args.minutes:
            made = sum(min(len(answers), args.trials) for answers in read_trials(kept).values())
            print(f"{made} of {len(KINDS) * args.trials} trials are done; start again to continue ({kept})")
            return 3
    result = result_of(args.trials, kept)
    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    kept.unlink()
    print(json.dumps(result, indent=2))
    found = result["interleaved"]
    assert isinstance(found, dict)
    same, slower = (found[key]["verdicts"] for key in FACTORS)
    alarms, hits = same["better"] + same["worse"], slower["worse"]
    return 0 if alarms <= args.trials / 40 and hits >= args.trials * 38 / 40 else 1


if __name__ == "__main__":
    sys.exit(main())

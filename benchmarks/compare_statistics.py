"""What `llm-perf compare` says of simulated passes whose truth is known: coverage, false verdicts, power.

    .venv/bin/python benchmarks/compare_statistics.py [--trials 600] [--out FILE]

Passes are lognormal: starts differ by one deviation, repeats inside a start by another. Each case asks the functions
of the package (`estimate`, `judge`) and counts

coverage   how often the 95 % interval contains the true ratio
decided    how often the verdict is better or worse
wrong      how often it is better or worse although the true change is within the threshold of 2 %

`one_run_each` is the case of two runs without any other knowledge: nothing may be decided there. In `given` the user
states the start-to-start deviation, in `earlier_5` it comes from five earlier runs, in `5_against_1` from the passes of
the other side. `boundary` has a true change of exactly the threshold: a verdict "worse" there is wrong.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llm_perf_opt.commands.compare import AUTO_LOOKS
from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.comparison.statistics import (
    GIVEN,
    THRESHOLD,
    StartVariation,
    estimate,
    judge,
    shared_among,
    start_variation,
)

RESULT = Path(__file__).with_name("results") / "compare_statistics.json"
TRIALS = 600
Side = list[list[RepeatedValue]]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """How far starts and repeats spread, as deviations of the logarithm."""

    starts: float
    repeats: float

    def side(self, random: np.random.Generator, passes: int, repeats: int, *, factor: float = 1.0) -> Side:
        found = []
        for _ in range(passes):
            level = factor * np.exp(random.normal(0, self.starts))
            values = level * np.exp(random.normal(0, self.repeats, repeats))
            found.append([RepeatedValue(sample_id="a", repeat=n, value=float(v)) for n, v in enumerate(values)])
        return found


@dataclass(frozen=True, kw_only=True)
class Case:
    """Passes and repeats of each side, and what is known of starts."""

    machine: Machine
    passes: tuple[int, int]
    repeats: int
    factor: float = 1.0
    paired: bool = False
    known: str = ""
    looks: tuple[int, ...] = ()


def variation_of(case: Case, random: np.random.Generator) -> StartVariation | None:
    if case.known == "given":
        return StartVariation(share=case.machine.starts, freedom=GIVEN, source="given")
    if case.known.startswith("earlier"):
        earlier = case.machine.side(random, int(case.known.partition("_")[2]), case.repeats)
        medians = [float(np.median([item.value for item in one])) for one in earlier]
        return start_variation(medians, source="earlier")
    return None


def verdict_of(case: Case, random: np.random.Generator) -> tuple[str, bool]:
    """The verdict, and whether the interval contains the truth."""
    base = case.machine.side(random, case.passes[0], case.repeats)
    candidate = case.machine.side(random, case.passes[1], case.repeats, factor=case.factor)
    looks = case.looks or (max(case.passes),)
    variation = variation_of(case, random)
    for count, spent in zip(looks, shared_among(looks), strict=True):
        found = estimate(base[:count], candidate[:count], paired=case.paired, variation=variation)
        verdict = judge(found, found.p_beyond(THRESHOLD), lower_is_better=True, spent=spent)
        if verdict != "inconclusive":
            break
    interval = found.interval
    return verdict, interval is not None and interval[0] <= case.factor <= interval[1]


def result_of(case: Case, trials: int) -> dict[str, object]:
    random = np.random.default_rng(1)
    answers = [verdict_of(case, random) for _ in range(trials)]
    decided = [verdict for verdict, _ in answers if verdict in ("better", "worse")]
    right = "worse" if case.factor > 1 + THRESHOLD * 1.000001 else "better" if case.factor < 1 - THRESHOLD else ""
    verdicts = sorted({verdict for verdict, _ in answers})
    return {
        "coverage": round(sum(held for _, held in answers) / trials, 3),
        "decided": round(len(decided) / trials, 3),
        "wrong": round(sum(verdict != right for verdict in decided) / trials, 3),
        "verdicts": {name: round(sum(v == name for v, _ in answers) / trials, 3) for name in verdicts},
    }


QUIET, USUAL, LOUD = (
    Machine(starts=0.01, repeats=0.01),
    Machine(starts=0.03, repeats=0.01),
    Machine(starts=0.05, repeats=0.01),
)
CASES: dict[str, Case] = {
    "one_run_each_3%": Case(machine=USUAL, passes=(1, 1), repeats=3),
    "one_run_each_5%": Case(machine=LOUD, passes=(1, 1), repeats=5),
    "one_run_each_+20%": Case(machine=USUAL, passes=(1, 1), repeats=5, factor=1.2),
    "given_3%": Case(machine=USUAL, passes=(1, 1), repeats=3, known="given"),
    "given_3%_+20%": Case(machine=USUAL, passes=(1, 1), repeats=3, known="given", factor=1.2),
    "earlier_5_3%": Case(machine=USUAL, passes=(1, 1), repeats=5, known="earlier_5"),
    "earlier_5_3%_+20%": Case(machine=USUAL, passes=(1, 1), repeats=5, known="earlier_5", factor=1.2),
    "5_against_1_3%": Case(machine=USUAL, passes=(5, 1), repeats=5),
    "5_passes_3%": Case(machine=USUAL, passes=(5, 5), repeats=5),
    **{
        f"{pairs}_pairs_3%_{100 * (factor - 1):+.0f}%": Case(
            machine=USUAL, passes=(pairs, pairs), repeats=5, factor=factor, paired=True
        )
        for pairs in (3, 5, 10)
        for factor in (1.0, 1.02, 1.05, 1.1)
    },
    **{
        f"auto_{name}_{100 * (factor - 1):+.0f}%": Case(
            machine=machine, passes=(24, 24), repeats=3, factor=factor, paired=True, looks=AUTO_LOOKS
        )
        for name, machine in (("1%", QUIET), ("3%", USUAL), ("5%", LOUD))
        for factor in (1.0, 1.02, 1.05, 1.1)
    },
}


def results(trials: int, names: Sequence[str] = (), say: Callable[[str], None] = print) -> dict[str, dict[str, object]]:
    found = {}
    for name in names or CASES:
        found[name] = result_of(CASES[name], trials)
        say(f"{name:24} {json.dumps(found[name])}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    found = {"trials": args.trials, "threshold": THRESHOLD, "cases": results(args.trials)}
    args.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

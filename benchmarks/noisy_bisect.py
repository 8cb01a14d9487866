"""How often `llm-perf bisect` finds the right commit when every measurement is noisy, and with how many comparisons.

    .venv/bin/python benchmarks/noisy_bisect.py [--trials 200] [--out FILE]

The search of the package (`comparison/bisect/bisect_search.py`) on a simulated runner: a pass takes a lognormal time,
and the culprit and all commits after it are slower by a known change. Target of the first two cases (64 commits, 10 %
noise): the right commit in at least 19 of 20 with at most 2.5 log2(64) = 15 comparisons (median), and "no regression"
in 20 of 20 without a change. The others: disturbed runs, harmless differences between all commits, commits that fail.
"""

import argparse
import json
import math
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llm_perf_opt.comparison.bisect.bisect_search import BisectSearch

RESULT = Path(__file__).with_name("results") / "noisy_bisect.json"
TRIALS = 200


@dataclass(frozen=True, kw_only=True)
class Case:
    """`disturbed` is the share of passes that take longer by an exponential time, on average half of the pass.
    `harmless` is the deviation between commits that change nothing on purpose, `broken` the share that does not run.
    """

    commits: int = 64
    change: float = 0.05
    noise: float = 0.10
    disturbed: float = 0.0
    harmless: float = 0.0
    broken: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How one search ended."""

    outcome: str
    is_right: bool
    comparisons: int
    pairs: int


def search_once(case: Case, seed: int) -> Trial:
    """One search; the culprit is any commit after the first."""
    random = np.random.default_rng(seed)
    culprit = int(random.integers(1, case.commits + 1))
    offsets = random.normal(0, case.harmless, case.commits + 1)
    is_broken = random.random(case.commits + 1) < case.broken
    search = BisectSearch(last=case.commits)

    def passes(point: int, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        slower = math.log1p(case.change) if point >= culprit else 0.0
        late = np.where(random.random(count) < case.disturbed, random.exponential(0.5, count), 0.0)
        return np.asarray(slower + offsets[point] + random.normal(0, case.noise, count) + late)

    while (request := search.next_request()) is not None:
        if is_broken[request.point] and request.point not in (0, case.commits):
            search.skip(request.point)
            continue
        ratios = passes(request.point, request.pairs) - passes(0, request.pairs)
        search.add(request.point, [float(one) for one in ratios])
    answer = search.answer
    assert answer is not None
    right = culprit in answer.culprits if case.change else answer.outcome == "no regression"
    return Trial(
        outcome=answer.outcome,
        is_right=right and answer.outcome != "inconclusive",
        comparisons=search.comparisons,
        pairs=len(search.own) + sum(map(len, search.values.values())),
    )


def result_of(case: Case, trials: int) -> dict[str, object]:
    found = [search_once(case, seed) for seed in range(trials)]
    outcomes = [one.outcome for one in found]
    return {
        "right": round(sum(one.is_right for one in found) / trials, 3),
        "outcomes": {name: outcomes.count(name) for name in dict.fromkeys(outcomes)},
        "comparisons_median": statistics.median(one.comparisons for one in found),
        "comparisons_most": max(one.comparisons for one in found),
        "pairs_median": statistics.median(one.pairs for one in found),
        "pairs_most": max(one.pairs for one in found),
    }


CASES = {
    "64 commits, +5 %, noise 10 %": Case(),
    "64 commits, no change, noise 10 %": Case(change=0.0),
    "8 commits, +5 %, noise 10 %": Case(commits=8),
    "64 commits, +5 %, noise 2 %": Case(noise=0.02),
    "64 commits, +20 %, noise 10 %": Case(change=0.20),
    "64 commits, +5 %, noise 10 %, 5 % of the runs disturbed": Case(disturbed=0.05),
    "64 commits, +5 %, noise 10 %, commits differ by 0.5 %": Case(harmless=0.005),
    "64 commits, +5 %, noise 10 %, one of five does not run": Case(broken=0.2),
    "64 commits, no change, noise 10 %, commits differ by 0.5 %": Case(change=0.0, harmless=0.005),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    cases = {}
    for name, case in CASES.items():
        cases[name] = result_of(case, args.trials)
        print(f"{name}: {json.dumps(cases[name])}", flush=True)
    args.out.write_text(json.dumps({"trials": args.trials, "cases": cases}, indent=2) + "\n", encoding="utf-8")
    first, none = (cases[name] for name in list(CASES)[:2])
    enough = [one["right"] for one in (first, none)]
    return 0 if enough[0] >= 0.95 and enough[1] == 1 and first["comparisons_median"] <= 15 else 1  # type: ignore[operator]


if __name__ == "__main__":
    raise SystemExit(main())

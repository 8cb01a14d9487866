"""Compare the last release with a commit on our own benchmarks, interleaved; fail on a significant regression.

    python scripts/nightly.py [--base REF] [--candidate REF] [--limit 5] [--pairs auto] [-o DIR] [NAME ...]

The base is the newest tag v*. Each benchmark is one `llm-perf compare --interleave` of both commits with a gate on its
wall time, so only a significant slowdown on this machine fails. Exit codes: 0 no regression (a benchmark
without an answer is named), 1 a regression or a benchmark that failed, 2 bad input.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
BENCHMARKS = REPO / "benchmarks"
OK, REGRESSION, BAD_INPUT, INCONCLUSIVE = range(4)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is compared, and how."""

    base: str
    candidate: str
    limit_percent: float
    pairs: str
    out: Path


def last_release() -> str | None:
    """The newest release tag that the current commit contains."""
    argv = ["git", "-C", str(REPO), "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    found = subprocess.run(argv, capture_output=True, text=True, check=False)
    return found.stdout.strip() or None


def build_compare_cmd(name: str, plan: Plan, *, inputs: Path) -> list[str]:
    """The comparison of one benchmark."""
    return [
        *(sys.executable, "-m", "llm_perf_opt.cli", "compare"),
        *("--interleave", plan.pairs),
        *("--gate", f"wall_ms<=+{plan.limit_percent:g}%"),
        *("-o", str(plan.out / name)),
        *("--", f"base.ref={plan.base}", f"candidate.ref={plan.candidate}"),
        *("--", sys.executable, str(BENCHMARKS / "nightly_work.py"), name, str(inputs)),
    ]


def summary(codes: dict[str, int]) -> tuple[list[str], int]:
    """A line for each benchmark, and the exit code of all."""
    words = {OK: "no regression", REGRESSION: "REGRESSION", INCONCLUSIVE: "no answer: too noisy, or too few pairs"}
    lines = [f"{name}: {words.get(code, f'could not be compared (exit code {code})')}" for name, code in codes.items()]
    return lines, OK if all(code in (OK, INCONCLUSIVE) for code in codes.values()) else REGRESSION


def main(argv: Sequence[str] | None = None) -> int:
    sys.path.insert(0, str(BENCHMARKS))
    work = import_module("nightly_work")

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(work.WORK)} (default: all)")
    parser.add_argument("--base", default=last_release(), metavar="REF", help="default: the newest tag v*")
    parser.add_argument("--candidate", default="HEAD", metavar="REF")
    parser.add_argument("--limit", type=float, default=5.0, metavar="PERCENT", help="slower by more fails (default 5)")
    parser.add_argument("--pairs", default="auto", metavar="N")
    parser.add_argument("-o", "--output", type=Path, default=Path("tmp/nightly"), metavar="DIR")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.names) - set(work.WORK))
    if unknown or args.base is None:
        what = (
            f"no such benchmark (got {', '.join(unknown)}), allowed: {', '.join(work.WORK)}"
            if unknown
            else ("--base: no release is tagged in this history; give a commit, and fetch tags (git fetch --tags)")
        )
        print(f"error: {what}", file=sys.stderr)
        return BAD_INPUT
    args.output.mkdir(parents=True, exist_ok=True)
    plan = Plan(
        base=args.base,
        candidate=args.candidate,
        limit_percent=args.limit,
        pairs=args.pairs,
        out=args.output.resolve(),
    )
    with tempfile.TemporaryDirectory() as folder:
        work.prepare(Path(folder))
        codes = {
            name: subprocess.run(build_compare_cmd(name, plan, inputs=Path(folder)), cwd=REPO, check=False).returncode
            for name in args.names or work.WORK
        }
    lines, code = summary(codes)
    print(f"{plan.base} against {plan.candidate}, at most {plan.limit_percent:g} % slower:", *lines, sep="\n")
    return code


if __name__ == "__main__":
    sys.exit(main())

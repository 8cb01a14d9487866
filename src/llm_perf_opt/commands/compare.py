"""`llm-perf compare`: did it help, by how much, how certain is that, and where did the time go?"""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.commands.entry import command_parser
from llm_perf_opt.comparison.gate import Condition, exit_code, gate_metrics, parse_condition
from llm_perf_opt.config.arguments import written_by
from llm_perf_opt.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, ConfigError, did_you_mean
from llm_perf_opt.system.files import write_page

if TYPE_CHECKING:
    from llm_perf_opt.comparison.comparison import CompareDocument
    from llm_perf_opt.pipeline.compare.interleave import Experiment
    from llm_perf_opt.pipeline.compare.sides import ReadSide

DEFAULT_DIR = Path("tmp/compare")
AUTO = "auto"
# Kernels on the terminal with -v.
TOP = 15
# After this many pairs `auto` checks whether the result is conclusive.
AUTO_LOOKS = (3, 6, 12, 24)
JSON_FILE, MARKDOWN_FILE, PAGE_FILE = "compare.json", "compare.md", "compare.html"
EXAMPLES = (
    "llm-perf compare --interleave 5 -- experiment=demo \\\n      candidate.overrides=model.attention=eager",
    "llm-perf compare --interleave auto --gate 'tpot_ms<=+5%' -- experiment=demo \\\n"
    "      base.ref=main candidate.ref=HEAD",
    "llm-perf compare --interleave 5 -- workload.repeats=3 \\\n      base.ref=main candidate.ref=HEAD -- python gen.py",
    "llm-perf compare tmp/runs/base tmp/runs/candidate",
    "llm-perf compare tmp/runs/base tmp/runs/candidate --gate 'tpot_ms<=+5%' \\\n      --start-variation 3",
    "llm-perf compare base.sqlite candidate.sqlite",
)
EPILOG = """\
exit codes: 0 compared, or every gate passed; 1 a gate failed or a run measured
nothing; 2 bad input, or runs that cannot be compared; 3 a gate is inconclusive
"""


def main(argv: Sequence[str]) -> int:
    """Entry point of the subcommand."""
    given, words = list(argv), []
    if "--" in given:
        cut = given.index("--")
        given, words = given[:cut], given[cut + 1 :]
    args = _parser().parse_args(given)
    experiment: Experiment | None = None
    if args.resume is not None:
        args, experiment = _resumed(args, given, words)
    conditions = [parse_condition(text) for text in args.gate]
    threshold = _percent("--threshold", args.threshold)
    stated = None if args.start_variation is None else _percent("--start-variation", args.start_variation)
    experiment = experiment or _experiment(args, words)
    looks: tuple[int, ...] = AUTO_LOOKS if args.interleave == AUTO else (args.interleave or 1,)
    # numpy is imported only now, so that --help and a wrong condition answer at once.
    from llm_perf_opt.pipeline.compare.compared import Question, compare_paths, is_answered
    from llm_perf_opt.pipeline.compare.interleave import write_plan

    out_dir: Path | None = args.output
    question = Question(
        conditions=conditions,
        threshold=threshold,
        looks=looks,
        is_paired=args.pairs or experiment is not None,
        start_variation=stated,
        meant=frozenset() if experiment is None else experiment.meant,
        is_forced=args.force,
    )
    if experiment is not None:
        # A slip in the name of a metric should not cost an hour; plug-ins may have metrics of their own.
        _refuse_slips(conditions)
        out_dir = args.resume or _new_folder(out_dir)
        args.sides = [out_dir / "base", out_dir / "candidate"]
        if args.resume is None:
            experiment = experiment.fixed()
            write_plan(out_dir, given, experiment)
        if not _measure(experiment, looks, out_dir, lambda look: is_answered(args.sides, question, look)):
            return EXIT_INTERRUPTED
    found, base, candidate = compare_paths(args.sides, question)
    _print(found, args)
    if out_dir is not None:
        with written_by("-o", out_dir):
            _write(found, base, candidate, out_dir)
    return _gated(found, args)


def _gated(found: "CompareDocument", args: argparse.Namespace) -> int:
    """What a CI system reads: JUnit, annotations and the exit code."""
    if args.junit is not None:
        from llm_perf_opt.report.compare.gates import junit_xml

        with written_by("--junit", args.junit):
            write_page(args.junit, junit_xml(found))
    if args.github:
        from llm_perf_opt.report.compare.gates import github_annotations

        print("\n".join(github_annotations(found)), file=sys.stderr)
    if found.gates:
        return exit_code(found.gates)
    return EXIT_FAILED if found.verdict == "failed" else EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "compare",
        "Compare two runs, two directories of runs (the passes of each side), two captures, or two results of a load "
        "generator. One run of each side shows a difference; several, best interleaved, show whether it is "
        "statistically significant.",
        EXAMPLES,
        epilog=EPILOG,
    )
    parser.usage = (
        "llm-perf compare --interleave N [OPTION ...] -- OVERRIDE ... [-- PROGRAM ...]\n"
        "       llm-perf compare BASE CANDIDATE [OPTION ...]\n       llm-perf compare --resume DIR"
    )
    parser.add_argument(
        "sides", nargs="*", type=Path, metavar="BASE CANDIDATE", help="run, directory of runs, or capture"
    )
    parser.add_argument(
        "--gate", action="append", default=[], metavar="CONDITION", help="such as 'tpot_ms<=+5%%' or 'ttft_ms<=50'"
    )
    parser.add_argument(
        "--threshold", type=float, default=2.0, metavar="PERCENT", help="smaller differences are ignored (default 2)"
    )
    parser.add_argument("--pairs", action="store_true", help="the n-th passes of both sides were run interleaved")
    parser.add_argument(
        "--interleave",
        type=_pairs,
        metavar="N",
        help="make N runs of each side, interleaved, with the overrides after --; auto: until the result "
        "is conclusive, at most "
        f"{AUTO_LOOKS[-1]}",
    )
    parser.add_argument("--resume", type=Path, metavar="DIR", help="continue an interrupted --interleave")
    parser.add_argument(
        "--start-variation",
        type=float,
        metavar="PERCENT",
        help="standard deviation of a run's median from one start to the next, for sides that were started once",
    )
    parser.add_argument("--force", action="store_true", help="compare different work anyway; marks every output")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write the gates as a JUnit report")
    parser.add_argument("--github", action="store_true", help="print annotations for GitHub Actions on standard error")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help=f"write {JSON_FILE}, {MARKDOWN_FILE}, {PAGE_FILE}"
    )
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--json", action="store_true", help="print the document as JSON (docs/schemas/compare.schema.json)"
    )
    shown.add_argument("--markdown", action="store_true", help="print markdown, for a pull request")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also print kernels, copies, ranges and idle time that changed"
    )
    parser.add_argument("--top", type=int, metavar="N", help=f"-v with N kernels (default {TOP})")
    return parser


def _percent(option: str, percent: float) -> float:
    if not 0 <= percent < 100:
        raise ConfigError(f"{option}: must be between 0 and 100 (got {percent:g})")
    return percent / 100


def _refuse_slips(conditions: Sequence[Condition]) -> None:
    from llm_perf_opt.comparison.comparison import KNOWN_METRICS

    near = [one for one in conditions if did_you_mean(one.metric, KNOWN_METRICS)]
    gate_metrics(near, known=KNOWN_METRICS)


def _resumed(
    args: argparse.Namespace, given: Sequence[str], words: Sequence[str]
) -> "tuple[argparse.Namespace, Experiment]":
    """The options of the comparison in this directory with those given now, and its experiment."""
    if words or args.sides or args.interleave is not None:
        raise ConfigError(
            "compare --resume: continues the sides stored in the directory; only options such as --junit are allowed"
        )
    from llm_perf_opt.pipeline.compare.interleave import read_plan

    folder = args.resume.resolve()
    planned = read_plan(folder)
    again = _parser().parse_args([*planned.options, *given])
    again.resume = folder
    again.output = folder
    if args.junit is not None:
        again.junit = args.junit.resolve()
    # Overrides and refs were given where the user was then.
    with written_by("--resume", Path(planned.user_dir)):
        os.chdir(planned.user_dir)
    return again, planned.experiment


def _experiment(args: argparse.Namespace, words: list[str]) -> "Experiment | None":
    if args.interleave is None:
        if words or len(args.sides) != 2:
            raise ConfigError(
                f"compare: two sides are needed (got {len(args.sides)}), allowed: BASE CANDIDATE or --interleave N -- …"
            )
        return None
    if args.sides or (args.interleave != AUTO and args.interleave < 2):
        raise ConfigError(
            "compare --interleave: needs a number of pairs (at least 2) or auto, and what to run after --"
        )
    from llm_perf_opt.pipeline.compare.interleave import check_sides, parse_experiment

    experiment = parse_experiment(words)
    check_sides(experiment)
    return experiment


def _pairs(text: str) -> int | str:
    return text if text == AUTO else int(text)


def _new_folder(out_dir: Path | None) -> Path:
    folder = (out_dir or DEFAULT_DIR / datetime.now().strftime("%Y%m%d-%H%M%S")).resolve()
    with written_by("-o", folder):
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"-o: {folder} is not empty, allowed: a new directory")
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _measure(experiment: "Experiment", looks: Sequence[int], folder: Path, is_settled: Callable[[int], bool]) -> bool:
    """Make the runs; False when that was interrupted."""
    from llm_perf_opt.commands.profile import terminate_like_interrupt
    from llm_perf_opt.pipeline.compare.interleave import run_pairs

    with terminate_like_interrupt():
        try:
            run_pairs(experiment, looks, folder, lambda text: print(text, file=sys.stderr, flush=True), is_settled)
        except KeyboardInterrupt:
            print(_after_interruption(folder), file=sys.stderr)
            return False
    return True


def _after_interruption(folder: Path) -> str:
    from llm_perf_opt.pipeline.compare.sides import whole_pairs

    sides = folder / "base", folder / "candidate"
    whole = len(whole_pairs(*sides))
    text = f"interrupted: all processes were ended; continue: llm-perf compare --resume {shlex.quote(str(folder))}"
    if not whole:
        return text
    given = " ".join(shlex.quote(str(side)) for side in sides)
    pairs = "1 pair" if whole == 1 else f"{whole} pairs"
    return f"{text}\nfinished so far: {pairs}; compare them: llm-perf compare --pairs {given}"


def _print(found: "CompareDocument", args: argparse.Namespace) -> None:
    from llm_perf_opt.report.compare.compare_text import has_tables, render_markdown, render_terminal

    if args.json:
        import msgspec

        from llm_perf_opt.system.json_output import print_json

        print_json(msgspec.to_builtins(found))
    elif args.markdown:
        print(render_markdown(found), end="")
    else:
        top = max(1, args.top) if args.top is not None else TOP if args.verbose else None
        print(render_terminal(found, top=top))
        if top is None and has_tables(found):
            print("next: the same command with -v  # kernels, copies, ranges and idle time that changed")


def _write(found: "CompareDocument", base: "ReadSide", candidate: "ReadSide", out_dir: Path) -> None:
    from llm_perf_opt.core.manifest import write_json
    from llm_perf_opt.report.compare.compare_page import render_page
    from llm_perf_opt.report.compare.compare_text import render_markdown

    out_dir.mkdir(parents=True, exist_ok=True)
    write_json(out_dir / JSON_FILE, found)
    write_page(out_dir / MARKDOWN_FILE, render_markdown(found))
    page = write_page(out_dir / PAGE_FILE, render_page(found, (base.timeline, candidate.timeline)))
    print(f"written: {page}", file=sys.stderr)

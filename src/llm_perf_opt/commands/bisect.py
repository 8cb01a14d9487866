"""`llm-perf bisect`: which commit, version or setting made a program slower, on a noisy machine."""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.commands.entry import CommandParser, command_parser
from llm_perf_opt.comparison.gate import EXIT_INCONCLUSIVE, parse_condition
from llm_perf_opt.config.arguments import written_by
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, ConfigError

if TYPE_CHECKING:
    from llm_perf_opt.comparison.bisect.bisect_document import BisectDocument, Neighbours
    from llm_perf_opt.pipeline.bisect.bisect_session import BisectSession
    from llm_perf_opt.pipeline.bisect.line import Line

DEFAULT_DIR = Path("tmp/bisect")
JSON_FILE, MARKDOWN_FILE = "bisect.json", "bisect.md"
EXAMPLES = (
    "llm-perf bisect v1.2 HEAD -- python prog.py",
    "llm-perf bisect v1.2 HEAD --gate '<=+3%' --metric tpot_ms -- python gen.py",
    "llm-perf bisect --versions transformers==5.10..5.17 --with torch \\\n      -- python gen.py",
    "llm-perf bisect --flags flags.yaml -- python gen.py",
    "llm-perf bisect --resume tmp/bisect/20260101-120000",
)
EPILOG = """\
exit codes: 0 found, or no regression; 1 GOOD or BAD fails; 2 bad input;
3 inconclusive: too noisy for the pairs allowed
"""


def main(argv: Sequence[str]) -> int:
    given, program = list(argv), []
    if "--" in given:
        cut = given.index("--")
        given, program = given[:cut], given[cut + 1 :]
    args = _parser().parse_intermixed_args(given)
    if args.resume is not None:
        return _resume(args, given, program)
    folder = _new_folder(args.output)
    return _bisect(args, program, folder, argv=tuple(argv), labels=None)


def _parser() -> CommandParser:
    parser = command_parser(
        "bisect",
        "Find the commit, version or setting that made a program slower. Each comparison is a number of interleaved "
        "runs, so noise does not point at the wrong one.",
        EXAMPLES,
        epilog=EPILOG,
    )
    parser.usage = (
        "llm-perf bisect GOOD BAD [OPTION ...] [OVERRIDE ...] -- PROGRAM ...\n"
        "       llm-perf bisect --versions PACKAGE==GOOD..BAD [OPTION ...] -- PROGRAM ...\n"
        "       llm-perf bisect --flags FILE [OPTION ...] -- PROGRAM ...\n"
        "       llm-perf bisect --resume DIR"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="GOOD BAD OVERRIDE",
        help="commits, then overrides as in llm-perf run, for metrics other than wall_ms and for the last comparison",
    )
    parser.add_argument("--repo", type=Path, metavar="DIR", help="the git repository; default: the current directory")
    parser.add_argument("--setup", metavar="COMMAND", help="shell command that builds a checkout, such as 'make'")
    parser.add_argument("--versions", metavar="RANGE", help="releases of a package, such as transformers==5.10..5.17")
    parser.add_argument(
        "--with", dest="extra", action="append", default=[], metavar="PACKAGE", help="also install this package"
    )
    parser.add_argument("--flags", type=Path, metavar="FILE", help="a YAML list of settings (docs/bisect.md)")
    parser.add_argument(
        "--metric", default="wall_ms", help="the metric that regressed (default wall_ms: the program's time)"
    )
    parser.add_argument(
        "--gate", metavar="CONDITION", help="the smallest change that counts as a regression, such as '<=+3%%' (2 %%)"
    )
    parser.add_argument("--max-pairs", type=int, default=400, metavar="N", help="pairs of one comparison (default 400)")
    parser.add_argument(
        "--confidence", type=float, default=97.0, metavar="PERCENT", help="probability of the answer (default 97)"
    )
    parser.add_argument("--env", action="append", default=[], metavar="NAME", help="pass this variable to the program")
    parser.add_argument("--timeout", type=float, default=4 * 3600.0, metavar="S", help="seconds of one run")
    parser.add_argument("--no-neighbours", action="store_true", help="do not profile the answer and its predecessor")
    parser.add_argument("--json", action="store_true", help="print one JSON object (docs/schemas/bisect.schema.json)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="continue an interrupted search")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=f"where results go (default {DEFAULT_DIR}/…)")
    return parser


def _new_folder(given: Path | None) -> Path:
    folder = (given or DEFAULT_DIR / datetime.now().strftime("%Y%m%d-%H%M%S")).resolve()
    with written_by("-o", folder):
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"-o: {folder} is not empty, allowed: a new directory")
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _resume(args: argparse.Namespace, given: Sequence[str], program: Sequence[str]) -> int:
    if program or args.words:
        raise ConfigError(
            "bisect --resume: continues the range stored in the directory; only options such as --json are allowed"
        )
    from llm_perf_opt.pipeline.bisect.bisect_journal import read_bisect_plan

    folder = args.resume.resolve()
    plan = read_bisect_plan(folder)
    with written_by("--resume", Path(plan.user_dir)):
        os.chdir(plan.user_dir)
    words = list(plan.argv)
    cut = words.index("--") if "--" in words else len(words)
    again = _parser().parse_intermixed_args([*words[:cut], *given])
    return _bisect(again, words[cut + 1 :], folder, argv=plan.argv, labels=plan.labels)


def _bisect(
    args: argparse.Namespace,
    program: Sequence[str],
    folder: Path,
    *,
    argv: tuple[str, ...],
    labels: tuple[str, ...] | None,
) -> int:
    # The search imports numpy, and --help should answer at once.
    from llm_perf_opt.comparison.bisect.bisect_document import bisect_document
    from llm_perf_opt.comparison.bisect.bisect_search import BisectSearch
    from llm_perf_opt.pipeline.bisect.bisect_journal import BisectPlan, PairJournal, write_bisect_plan
    from llm_perf_opt.pipeline.bisect.bisect_session import BisectSession
    from llm_perf_opt.pipeline.bisect.measure import Measure

    overrides = _check(args, program)
    limit = _limit(args)
    line = _line(args, program, folder)
    found = tuple(name.label for name in line.names)
    if labels is None:
        write_bisect_plan(folder, BisectPlan(argv=_fixed(argv, args, found), user_dir=str(Path.cwd()), labels=found))
    elif labels != found:
        raise ConfigError(f"--resume: the range has changed ({len(labels)} points then, {len(found)} now)")
    points = count_of(len(found) - 1, line.kind.removesuffix("s"))
    _say(f"bisect: {points} from {found[0]} to {found[-1]}; results go to {folder}")
    measure = Measure(metric=args.metric, overrides=overrides, timeout_s=args.timeout, logs=folder / "runs")
    session = BisectSession(
        search=BisectSearch(
            last=len(found) - 1, limit=limit, most_pairs=args.max_pairs, confidence=args.confidence / 100
        ),
        line=line,
        journal=PairJournal(folder),
        metric=args.metric,
        value=measure.value,
        say=_say,
    )
    neighbours = _run(session, args, overrides, folder)
    if session.search.answer is None:
        _say(f"interrupted: all processes were ended; continue: llm-perf bisect --resume {shlex.quote(str(folder))}")
        return EXIT_INTERRUPTED
    document = bisect_document(
        session.search,
        kind=line.kind,
        metric=args.metric,
        command=tuple(program),
        names=tuple((name.label, name.title) for name in line.names),
        neighbours=neighbours,
        notes=session.notes,
    )
    _show(document, folder, as_json=args.json)
    if session.search.skipped & {0, session.search.last}:
        return EXIT_FAILED
    return EXIT_INCONCLUSIVE if document.outcome == "inconclusive" else EXIT_OK


def _check(args: argparse.Namespace, program: Sequence[str]) -> tuple[str, ...]:
    """Refuse what cannot be meant; the overrides."""
    kinds = [name for name, value in (("--versions", args.versions), ("--flags", args.flags)) if value is not None]
    ends = [word for word in args.words if "=" not in word]
    problems = []
    if len(kinds) > 1:
        problems.append("bisect: --versions and --flags exclude each other")
    if (len(ends) != 2 and not kinds) or (ends and kinds):
        problems.append(
            f"bisect: nothing to search (got {' '.join(ends) or 'nothing'}), allowed: GOOD BAD, --versions or --flags"
        )
    if not program and args.metric == "wall_ms":
        problems.append("bisect: no program given, put it after `--`: llm-perf bisect GOOD BAD -- python prog.py")
    if args.max_pairs < 8:
        problems.append(f"--max-pairs: must be at least 8 (got {args.max_pairs})")
    if not 50 <= args.confidence < 100:
        problems.append(f"--confidence: not allowed (got {args.confidence:g}), allowed: 50 to below 100 percent")
    if args.timeout <= 0:
        problems.append(f"--timeout: must be above 0 (got {args.timeout:g})")
    if kinds and (args.repo is not None or args.setup is not None):
        problems.append(f"bisect: --repo and --setup belong to commits, not to {kinds[0]}")
    if problems:
        raise ConfigError(problems)
    from llm_perf_opt.comparison.comparison import KNOWN_METRICS
    from llm_perf_opt.errors import did_you_mean

    near = "" if args.metric in KNOWN_METRICS else did_you_mean(args.metric, KNOWN_METRICS)
    if near:
        raise ConfigError(f"--metric: unknown metric {args.metric!r}{near}")
    return tuple(word for word in args.words if "=" in word)


def _limit(args: argparse.Namespace) -> float:
    """The change, as a share for the worse, from which on it matters."""
    if args.gate is None:
        return 0.02
    text = args.gate if args.gate.lstrip().startswith(args.metric) else f"{args.metric}{args.gate}"
    condition = parse_condition(text)
    share = condition.limit - 1 if condition.at_most else 1 / condition.limit - 1
    if not condition.is_relative or share <= 0:
        raise ConfigError(f"--gate: not a regression limit (got {args.gate!r}); use e.g. '<=+3%' or '>=-3%'")
    return share


def _line(args: argparse.Namespace, program: Sequence[str], folder: Path) -> "Line":
    from llm_perf_opt.system.process import allowed_environment

    env = allowed_environment(os.environ, args.env)
    if args.flags is not None:
        from llm_perf_opt.pipeline.bisect.flags import flag_line

        return flag_line(args.flags, command=program, env=env, metric=args.metric)
    if args.versions is not None:
        from llm_perf_opt.pipeline.bisect.versions import version_line

        return version_line(args.versions, extra=args.extra, command=program, folder=folder, env=env)
    from llm_perf_opt.pipeline.bisect.commits import commit_line

    good, bad = [word for word in args.words if "=" not in word]
    return commit_line(good, bad, repo=args.repo, command=program, folder=folder, setup=args.setup, env=env)


def _fixed(argv: tuple[str, ...], args: argparse.Namespace, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The arguments with commits instead of names such as HEAD, which may move before a resumption."""
    ends = [word for word in args.words if "=" not in word]
    cut = argv.index("--") if "--" in argv else len(argv)
    replaced = (
        dict(zip(ends, (labels[0], labels[-1]), strict=False)) if args.versions is None and args.flags is None else {}
    )
    return (*(replaced.get(word, word) for word in argv[:cut]), *argv[cut:])


def _run(
    session: "BisectSession", args: argparse.Namespace, overrides: tuple[str, ...], folder: Path
) -> "Neighbours | None":
    """The search and the comparison of the two neighbours; an interruption leaves the search without an answer."""
    from llm_perf_opt.commands.profile import terminate_like_interrupt
    from llm_perf_opt.pipeline.bisect.neighbours import compare_neighbours

    with terminate_like_interrupt():
        try:
            session.run()
            answer = session.search.answer
            if answer is None or answer.outcome != "regression" or args.no_neighbours:
                return None
            before, after = answer.culprits[0] - 1, answer.culprits[-1]
            _say(f"neighbours: {session.line.names[before].label} and {session.line.names[after].label}")
            with session.line.opened():
                return compare_neighbours(
                    session.line,
                    before,
                    after,
                    overrides=overrides,
                    folder=folder / "neighbours",
                    timeout_s=args.timeout,
                )
        except KeyboardInterrupt:
            session.search.answer = None
            return None


def _show(document: "BisectDocument", folder: Path, *, as_json: bool) -> None:
    from llm_perf_opt.core.manifest import write_json
    from llm_perf_opt.report.compare.bisect_page import render_markdown, render_terminal
    from llm_perf_opt.system.files import write_page

    write_json(folder / JSON_FILE, document)
    write_page(folder / MARKDOWN_FILE, render_markdown(document))
    if as_json:
        import msgspec

        from llm_perf_opt.system.json_output import print_json

        print_json(msgspec.to_builtins(document))
    else:
        print(render_terminal(document))
    _say(f"written: {folder / JSON_FILE}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)

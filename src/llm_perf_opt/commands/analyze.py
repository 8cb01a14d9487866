"""`llm-perf analyze`: existing captures, read on any machine.

nsys reports (.nsys-rep, needs nsys to export), exports (.sqlite) and kernel summaries (.csv); torch profiler traces
(.json, .json.gz); databases of rocprofv3 (.db); ncu reports and CSV pages; memory snapshots of torch (.pickle); results
of `vllm bench serve` and aiperf (.json); the run directory of `llm-perf bench`, whose slowest requests are explained.

What a capture cannot say of itself: the model and hardware behind it, and its times without a profiler.
"""

import argparse
import shlex
import tempfile
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path

from llm_perf_opt.capture.readers.kinds import LOAD, NSYS, SNAPSHOT, capture_files, kind_of, require_one_story
from llm_perf_opt.commands.entry import command_parser
from llm_perf_opt.errors import EXIT_OK, ConfigError
from llm_perf_opt.planning.capture_context import CLEAN, CaptureContext, context_stages
from llm_perf_opt.system.arrays import load_numpy
from llm_perf_opt.system.json_output import print_json

# Rows of a table where --top gives no number.
TOP = 15


def split_context(args: argparse.Namespace) -> CaptureContext:
    """Separate captures from overrides: an override has a `=` and is not a file."""
    given = [str(path) for path in args.files]
    overrides = tuple(text for text in given if "=" in text and not Path(text).exists())
    files = tuple(Path(text) for text in given if text not in overrides)
    values = {"prefill": args.clean_prefill_ms, "tpot": args.clean_tpot_ms}
    clean = {name: value for name, value in values.items() if value is not None}
    wrong = {name: ms for name, ms in clean.items() if not (isfinite(ms) and ms > 0)}
    problems = [f"--clean-{name}-ms: must be above 0 (got {ms:g})" for name, ms in wrong.items()]
    if (overrides or clean) and args.output is None:
        named = overrides[0] if overrides else f"--clean-{next(iter(clean))}-ms"
        problems.append(f"{named}: has no effect without -o DIR, where the report is written")
    if not files:
        problems.append("analyze: no capture given, allowed: at least one file")
    if problems:
        raise ConfigError(problems)
    return CaptureContext(files=files, overrides=overrides, clean_ms=clean)


def main(argv: list[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_intermixed_args(argv)
    context = split_context(args)
    if len(context.files) == 1 and context.files[0].is_dir():
        from llm_perf_opt.pipeline.analyze.slow import analyze_load_run, is_load_run

        if is_load_run(context.files[0]):
            analyze_load_run(context.files[0], args.output, as_json=args.json)
            return EXIT_OK
    args.files = tuple(file for path in context.files for file in capture_files(path))
    kinds = [kind_of(path) for path in args.files]
    require_one_story(kinds)
    if LOAD in kinds:
        from llm_perf_opt.pipeline.analyze.served_analysis import analyze_results

        analyze_results(args.files, args.output, as_json=args.json)
        return EXIT_OK
    if SNAPSHOT in kinds:
        load_numpy()
        from llm_perf_opt.pipeline.analyze.snapshots import analyze_snapshots

        analyze_snapshots(args.files, args.output, as_json=args.json, top=_top(args))
        return EXIT_OK
    if args.kernels_only:
        from llm_perf_opt.pipeline.analyze.kernel_files import print_kernels

        if args.output is not None or set(kinds) != {NSYS}:
            raise ConfigError("analyze --kernels-only: takes exactly one .sqlite export of nsys, and no -o")
        return print_kernels(args.files, as_json=args.json, top=_top(args))
    load_numpy()
    with tempfile.TemporaryDirectory(prefix="llm-perf-analyze-") as scratch:
        return _analyze(args, kinds, context, Path(scratch))


def _top(args: argparse.Namespace) -> int:
    return TOP if args.top is None else max(1, int(args.top))


def _next_steps(args: argparse.Namespace) -> list[str]:
    """The commands that show the tables, and the page."""
    files = shlex.join(str(file) for file in args.files)
    page = (
        f"llm-perf open {shlex.quote(str(args.output))}" if args.output else f"llm-perf analyze {files} -o DIR --open"
    )
    return [f"llm-perf analyze {files} -v  # all tables", f"{page}  # the report"]


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "analyze",
        "Analyze existing captures. Several files of one kind are the ranks of one job where the files "
        "identify themselves as ranks, and repetitions of one run otherwise; ncu files given with an nsys capture are "
        "joined with its kernels.",
        [
            "llm-perf analyze capture.sqlite",
            "llm-perf analyze trace.json.gz --top 5",
            "llm-perf analyze capture.sqlite -o report model=llama3_1b hardware=h200",
        ],
    )
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help=".nsys-rep, .sqlite, kernel summary .csv, trace.json[.gz], rocprofv3's .db, .ncu-rep, ncu CSV page, "
        "snapshot.pickle of torch's memory, "
        "results of `vllm bench serve` or aiperf, a run of `llm-perf bench` for its slowest requests, a directory with "
        "the captures of a job, or the directory of an old run with a kernel summary; with -o also overrides as in "
        "`llm-perf predict` (model=llama3_8b hardware=h200 workload.prompt=1024), for bounds",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write a run directory with manifest and reports"
    )
    parser.add_argument("--open", action="store_true", help="with -o: show the report afterwards")
    for name, what in CLEAN.items():
        parser.add_argument(f"--clean-{name}-ms", type=float, metavar="MS", help=f"{what}, measured without a profiler")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--kernels-only", action="store_true", help="only the kernel summary of one .sqlite: the fastest answer"
    )
    parser.add_argument(
        "--detail",
        action="store_true",
        help="shapes, sizes of collectives, memory and Python frames also of a long trace (short ones and -o: always)",
    )
    parser.add_argument(
        "--graphs-from",
        type=Path,
        metavar="TRACE",
        help="torch trace of the capture of a CUDA or HIP graph, or of a run without graphs: names the operators and "
        "modules of kernels that graphs replay",
    )
    parser.add_argument(
        "--as",
        dest="files_are",
        choices=("ranks", "repeats"),
        help="treat several captures as the ranks of one job or as repetitions of one run (default: as the files say)",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print every table, not only the findings")
    parser.add_argument(
        "--top",
        type=int,
        metavar="N",
        help=f"-v with N rows per table, a third of that in detail tables (default {TOP})",
    )
    return parser


def _analyze(args: argparse.Namespace, kinds: list[str], context: CaptureContext, scratch: Path) -> int:
    # numpy is imported only now, so that --help and a wrong file name answer at once.
    import msgspec

    from llm_perf_opt.pipeline.analyze.read import read_captures

    if args.output is not None:
        from llm_perf_opt.pipeline.analyze.analyze_run import require_free, write_run

        require_free(args.output)
    found = read_captures(
        args.files,
        kinds,
        scratch,
        files_are=args.files_are,
        detailed=args.detail or args.output is not None,
        graphs_from=args.graphs_from,
    )
    analysis = replace(found.analysis, notes=(*found.notes, *found.analysis.notes))
    if args.output is not None:
        write_run(
            args.output,
            args.files,
            replace(found, analysis=analysis),
            overrides=context.overrides,
            context=partial(context_stages, context),
        )
    if args.json:
        print_json(msgspec.to_builtins(analysis))
        return EXIT_OK
    from llm_perf_opt.report.render.capture_text import render_analysis, render_answer
    from llm_perf_opt.system.terminal import show

    if args.verbose or args.top is not None:
        show(render_analysis(analysis, top=_top(args)))
    else:
        show(render_answer(analysis, top=TOP, next_steps=_next_steps(args)))
    if args.output is not None:
        print(f"\nwritten: {args.output / 'report.html'}")
        if args.open:
            from llm_perf_opt.commands.report import PAGE, show_page

            show_page(args.output / PAGE)
    return EXIT_OK

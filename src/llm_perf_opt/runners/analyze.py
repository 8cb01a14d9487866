"""`llm-perf analyze`: captures made elsewhere, read on any machine.

nsys reports (.nsys-rep, needs nsys to export), exports (.sqlite) and kernel summaries (.csv); torch profiler traces
(.json, .json.gz); ncu reports and CSV pages.
"""

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from llm_perf_opt.errors import EXIT_OK, ConfigError
from llm_perf_opt.runners.analyze_context import CLEAN, CaptureContext, split_context
from llm_perf_opt.runners.analyze_json import print_json
from llm_perf_opt.runners.analyze_kinds import NCU, NSYS, SUMMARY, TORCH, capture_file, kind_of


def main(argv: list[str]) -> int:
    """Entry point of the subcommand."""
    args = _parser().parse_intermixed_args(argv)
    context = split_context(args)
    args.files = tuple(capture_file(path) for path in context.files)
    kinds = [kind_of(path) for path in args.files]
    _require_one_story(kinds)
    if args.kernels_only:
        from llm_perf_opt.runners.analyze_kernels import print_kernels

        if args.output is not None or set(kinds) != {NSYS}:
            raise ConfigError("analyze --kernels-only: takes exactly one .sqlite export of nsys, and no -o")
        return print_kernels(args.files, as_json=args.json, top=max(1, args.top))
    with tempfile.TemporaryDirectory(prefix="llm-perf-analyze-") as scratch:
        return _analyze(args, kinds, context, Path(scratch))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llm-perf analyze",
        description="Analyse captures made elsewhere. Several files of one kind are taken as repetitions of one run; "
        "ncu files given with an nsys capture are joined with its kernels.",
    )
    parser.add_argument(
        "files",
        nargs="+",
        type=Path,
        metavar="FILE",
        help=".nsys-rep, .sqlite, kernel summary .csv, trace.json[.gz], .ncu-rep, ncu CSV page, or the directory of an "
        "old run, whose kernel summary is found; with -o also what "
        "ran, in the words of `llm-perf predict` (model=llama3_8b hardware=h200 workload.prompt=1024), for bounds",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="write a run directory with manifest and reports"
    )
    for name, what in CLEAN.items():
        parser.add_argument(f"--clean-{name}-ms", type=float, metavar="MS", help=f"{what}, measured without a profiler")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument(
        "--kernels-only", action="store_true", help="only the kernel summary of one .sqlite: the fastest answer"
    )
    parser.add_argument("--top", type=int, default=15, metavar="N", help="rows per table on the terminal (default 15)")
    return parser


def _require_one_story(kinds: list[str]) -> None:
    """Files that count the same kernels twice are refused."""
    timelines = {kind for kind in kinds if kind != NCU}
    if len(timelines) > 1:
        words = {NSYS: "nsys captures", TORCH: "torch traces", SUMMARY: "nsys kernel summaries"}
        named = " and ".join(sorted(words[kind] for kind in timelines))
        raise ConfigError(f"analyze: {named} together would count kernels twice; give them to separate calls")
    if kinds.count(SUMMARY) > 1:
        raise ConfigError(
            "analyze: kernel summaries cannot be added up (medians are lost); give them to separate calls"
        )


def _analyze(args: argparse.Namespace, kinds: list[str], context: CaptureContext, scratch: Path) -> int:
    # numpy and duckdb are imported only now, so that --help and a wrong file name answer at once.
    import msgspec

    from llm_perf_opt.runners.analyze_read import read_captures
    from llm_perf_opt.runners.analyze_text import render_analysis

    if args.output is not None:
        from llm_perf_opt.runners.analyze_run import require_free, write_run

        require_free(args.output)
    found = read_captures(args.files, kinds, scratch)
    analysis = replace(found.analysis, notes=(*found.notes, *found.analysis.notes))
    if args.output is not None:
        write_run(args.output, args.files, replace(found, analysis=analysis), context)
    if args.json:
        print_json(msgspec.to_builtins(analysis))
        return EXIT_OK
    print(render_analysis(analysis, top=max(1, args.top)))
    if args.output is not None:
        print(f"\nwritten: {args.output / 'report.md'}")
    return EXIT_OK

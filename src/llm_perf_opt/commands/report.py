"""`llm-perf report RUN_DIR` renders a run's reports again, without GPU, torch or Nsight; `llm-perf open` shows one."""

import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from llm_perf_opt.commands.entry import command_parser
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import EXIT_OK, ConfigError
from llm_perf_opt.system.files import real_path
from llm_perf_opt.system.json_output import print_json, text_to_stderr

PAGE = "report.html"
RUNS_DIR = Path("tmp/runs")
JSON_HELP = "print the run's stages, numbers and diagnosis as one JSON object (docs/schemas/run_result.schema.json)"
# Variables that a Linux desktop sets; without one there is no browser to open.
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


def main(argv: Sequence[str]) -> int:
    parser = command_parser("report", "Render the reports of a run again.", ["llm-perf report tmp/runs/demo"])
    parser.add_argument("run_dir", type=Path, help="the directory of a run, with its manifest.json")
    parser.add_argument("--open", action="store_true", help="show the report afterwards")
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    args = parser.parse_args(argv)
    from llm_perf_opt.core.manifest import read_manifest
    from llm_perf_opt.report.write import write_view
    from llm_perf_opt.system.lock import locked

    read_manifest(args.run_dir)
    with locked(args.run_dir, partial(print, file=sys.stderr)):
        view, paths = write_view(args.run_dir)
    for text in view.damage:
        print(f"warning: {text}", file=sys.stderr)
    if not args.json:
        for path in paths:
            print(path)
    if args.open:
        with text_to_stderr(args.json):
            show_page(args.run_dir / PAGE)
    if args.json:
        _print_result(args.run_dir)
    return EXIT_OK


def main_open(argv: Sequence[str]) -> int:
    """`llm-perf open [RUN_DIR]`."""
    parser = command_parser(
        "open",
        "Show the report of a run in the browser; without a directory that of the newest run.",
        ["llm-perf open --print", "llm-perf open tmp/runs/demo --print"],
    )
    parser.add_argument("run_dir", nargs="?", type=Path, help=f"a run, or a folder of runs (default: {RUNS_DIR})")
    parser.add_argument("--print", action="store_true", help="only print where it is")
    parser.add_argument("--json", action="store_true", help=f"only that: {JSON_HELP}")
    args = parser.parse_args(argv)
    page = newest_page(args.run_dir or RUNS_DIR)
    if args.json:
        _print_result(page.parent)
        return EXIT_OK
    if args.print:
        print(page)
        return EXIT_OK
    show_page(page)
    return EXIT_OK


def _print_result(run_dir: Path) -> None:
    from llm_perf_opt.pipeline.run_result import read_run_result

    print_json(read_run_result(run_dir))


def newest_page(place: Path) -> Path:
    """The report of a run, or of the newest run in a folder of runs or of sweeps."""
    if (place / MANIFEST_FILE).is_file():
        page = place / PAGE
        if not page.is_file():
            raise ConfigError(f"{page}: not written; `llm-perf report {place}` writes it")
        return page
    pages = [page for pattern in (f"*/{PAGE}", f"*/*/{PAGE}") for page in place.glob(pattern)]
    if not pages:
        raise ConfigError(
            f"{place}: no run with a report; give the directory of a run, or make one: llm-perf profile experiment=demo"
        )
    return max(pages, key=lambda page: page.stat().st_mtime)


def show_page(page: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Open a page in the browser, or say where it is when there is none to open it in."""
    import webbrowser

    address = real_path(page).as_uri()
    has_display = sys.platform == "darwin" or any(environ.get(name) for name in DISPLAYS)
    if has_display and webbrowser.open(address):
        print(f"opened: {page}", file=sys.stderr)
    else:
        print(f"no browser here; copy the file to where one is, it needs nothing else: {real_path(page)}")

"""`llm-perf report RUN_DIR`: renders a run's reports again, without GPU, torch or Nsight."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from llm_perf_opt.core.manifest import read_manifest
from llm_perf_opt.pipeline.lock import locked
from llm_perf_opt.report.write import write_reports


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="llm-perf report", description="Render the reports of a run again.")
    parser.add_argument("run_dir", type=Path, help="the directory of a run, with its manifest.json")
    run_dir = parser.parse_args(argv).run_dir
    read_manifest(run_dir)
    with locked(run_dir, partial(print, file=sys.stderr)):
        paths = write_reports(run_dir)
    for path in paths:
        print(path)
    return 0

"""`llm-perf report RUN_DIR`: renders a run's reports again, without GPU, torch or Nsight."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.report.write import write_reports


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="llm-perf report", description="Render the reports of a run again.")
    parser.add_argument("run_dir", type=Path, help="the directory of a run, with its manifest.json")
    for path in write_reports(parser.parse_args(argv).run_dir):
        print(path)
    return 0

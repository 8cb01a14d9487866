"""Child of the torch_profiler stage."""

import sys
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.children.start import run_child
from llm_perf_opt.commands.entry import run_safely
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.names import TORCH_PROFILER


def main(argv: Sequence[str]) -> int:
    return run_child(_work, argv)


def _work(config: AppConfig, out_dir: Path) -> None:
    """Both passes; with the stage switched off, as under another profiler, the plain inference alone."""
    from llm_perf_opt.children.inference import infer
    from llm_perf_opt.profiling.stages.torch_profiler import run_in_child

    if TORCH_PROFILER in config.stages:
        run_in_child(config, out_dir)
    else:
        infer(config, out_dir)


if __name__ == "__main__":
    sys.exit(run_safely(main, sys.argv[1:]))

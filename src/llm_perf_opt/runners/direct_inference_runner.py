"""`python -m llm_perf_opt.runners.direct_inference_runner` is `llm-perf infer`, and the child that measures."""

import sys
from collections.abc import Sequence

from llm_perf_opt.commands.entry import run_safely
from llm_perf_opt.profiling.vendor.launch import CHILD_FLAG


def main(argv: Sequence[str]) -> int:
    if CHILD_FLAG in argv:
        from llm_perf_opt.children.inference import main as run
    else:
        from llm_perf_opt.commands.infer import main as run
    return run(argv)


if __name__ == "__main__":
    sys.exit(run_safely(main, sys.argv[1:]))

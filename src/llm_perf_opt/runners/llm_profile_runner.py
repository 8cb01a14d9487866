"""A deprecated name for `llm-perf profile` without nsys and ncu, and the child of the torch_profiler stage."""

import sys
from collections.abc import Sequence

from llm_perf_opt.commands.entry import run_safely
from llm_perf_opt.profiling.vendor.launch import CHILD_FLAG

LEGACY_OVERRIDES = ("pipeline.nsys.enable=false", "pipeline.ncu.enable=false")


def main(argv: Sequence[str]) -> int:
    if CHILD_FLAG in argv:
        from llm_perf_opt.children.torch_profile import main as run

        return run(argv)
    from llm_perf_opt.commands.profile import main as profile

    print(
        "deprecated: `python -m llm_perf_opt.runners.llm_profile_runner` is now `llm-perf profile` "
        "(static analysis and torch profiler; see docs/migration.md)",
        file=sys.stderr,
    )
    return profile(argv, implied=LEGACY_OVERRIDES)


if __name__ == "__main__":
    sys.exit(run_safely(main, sys.argv[1:]))

"""A deprecated name for the orchestrator with nsys and ncu alone."""

import sys
from collections.abc import Sequence

from llm_perf_opt.commands.entry import run_safely

LEGACY_OVERRIDES = ("runner=stage2",)


def main(argv: Sequence[str]) -> int:
    from llm_perf_opt.commands.profile import main as profile

    print(
        "deprecated: `python -m llm_perf_opt.runners.deep_profile_runner` is now "
        "`llm-perf profile runner=stage2` (nsys and ncu alone; see docs/migration.md)",
        file=sys.stderr,
    )
    return profile(argv, implied=LEGACY_OVERRIDES)


if __name__ == "__main__":
    sys.exit(run_safely(main, sys.argv[1:]))

"""A deprecated name for the orchestrator with nsys and ncu on."""

import sys
from collections.abc import Sequence

LEGACY_OVERRIDES = ("pipeline.nsys.enable=true", "pipeline.ncu.enable=true")


def main(argv: Sequence[str]) -> int:
    from llm_perf_opt.runners.profile_orchestrator import main as orchestrate

    print(
        "deprecated: `python -m llm_perf_opt.runners.deep_profile_runner` is now "
        "`llm-perf profile pipeline.nsys.enable=true pipeline.ncu.enable=true` (see docs/migration.md)",
        file=sys.stderr,
    )
    return orchestrate([*LEGACY_OVERRIDES, *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Child of the torch_profiler stage. As a command it is a deprecated name for the orchestrator without nsys and ncu."""

import sys
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.commands.entry import run_safely
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.names import TORCH_PROFILER
from llm_perf_opt.profiling.vendor.launch import CHILD_FLAG
from llm_perf_opt.runners.child import run_child

LEGACY_OVERRIDES = ("pipeline.nsys.enable=false", "pipeline.ncu.enable=false")


def _work(config: AppConfig, out_dir: Path) -> None:
    """Both passes; with the stage switched off, as under another profiler, the plain inference alone."""
    from llm_perf_opt.profiling.stages.torch_profiler import run_in_child
    from llm_perf_opt.runners.direct_inference_runner import infer

    if TORCH_PROFILER in config.stages:
        run_in_child(config, out_dir)
    else:
        infer(config, out_dir)


def main(argv: Sequence[str]) -> int:
    if CHILD_FLAG in argv:
        return run_child(_work, argv)
    from llm_perf_opt.runners.profile_orchestrator import main as orchestrate

    print(
        "deprecated: `python -m llm_perf_opt.runners.llm_profile_runner` is now `llm-perf profile` "
        "(static analysis and torch profiler; see docs/migration.md)",
        file=sys.stderr,
    )
    return orchestrate(argv, implied=LEGACY_OVERRIDES)


if __name__ == "__main__":
    sys.exit(run_safely(main, sys.argv[1:]))

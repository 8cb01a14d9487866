"""Plain inference with NVTX ranges: the program that nsys and ncu watch. As a command: `llm-perf infer`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.profiling.vendor.launch import CHILD_FLAG
from llm_perf_opt.runners.child import run_child


def _work(config: AppConfig, out_dir: Path) -> None:
    from llm_perf_opt.profiling.stages.direct_inference import DirectInferenceConfig
    from llm_perf_opt.workload.session import run_inference

    stage = config.stages.get("direct_inference", DirectInferenceConfig())
    assert isinstance(stage, DirectInferenceConfig)
    run_inference(config, out_dir, warmup_rounds=stage.warmup_rounds, output=stage.output)


def main(argv: Sequence[str]) -> int:
    if CHILD_FLAG in argv:
        return run_child(_work, argv)
    from llm_perf_opt.runners.profile_orchestrator import INFER_OVERRIDES
    from llm_perf_opt.runners.profile_orchestrator import main as orchestrate

    return orchestrate([*INFER_OVERRIDES, *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

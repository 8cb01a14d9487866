"""Plain inference with NVTX ranges and no profiler: what nsys and ncu watch, and the clean pass."""

import sys
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.children.start import run_child
from llm_perf_opt.commands.entry import run_safely
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.names import DIRECT_INFERENCE


def main(argv: Sequence[str]) -> int:
    return run_child(infer, argv)


def infer(config: AppConfig, out_dir: Path) -> None:
    """Run the model over the samples; the section of the stage may be missing."""
    from llm_perf_opt.profiling.stages.direct_inference import DirectInferenceConfig
    from llm_perf_opt.workload.session import Shortened, run_inference

    stage = config.stages.get(DIRECT_INFERENCE, DirectInferenceConfig())
    assert isinstance(stage, DirectInferenceConfig)
    run_inference(
        config,
        out_dir,
        warmup_rounds=stage.warmup_rounds,
        output=stage.output,
        cuda_profiler_range=stage.cuda_profiler_range,
        shortened=Shortened(tokens=stage.stop_after_tokens, repeats=stage.stop_after_repeats),
    )


if __name__ == "__main__":
    sys.exit(run_safely(main, sys.argv[1:]))

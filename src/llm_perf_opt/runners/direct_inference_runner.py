"""Plain inference with NVTX ranges: the program that nsys and ncu watch. As a command: `llm-perf infer`."""

import sys
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.commands.entry import run_safely
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.names import DIRECT_INFERENCE
from llm_perf_opt.errors import EXIT_OK
from llm_perf_opt.profiling.vendor.launch import CHILD_FLAG
from llm_perf_opt.runners.child import run_child

HELP = """\
llm-perf infer [OVERRIDE ...] [--open] [HYDRA FLAG ...]

Runs the model over the data set without any profiler; writes predictions,
latencies and a report.

examples:
  llm-perf infer model=deepseek_ocr_tiny dataset=synthetic
  llm-perf infer model=llama_tiny dataset=synthetic infer.max_new_tokens=8

Your own model: model=causal_lm model.path=FOLDER, with prompts of your
own: dataset=prompts dataset.file=FILE. --json prints the result
(docs/schemas/run_result.schema.json). It is `llm-perf profile` with
pipeline.direct_inference alone, and predictions switched on.
"""


def infer(config: AppConfig, out_dir: Path) -> None:
    """The work of the child: no profiler, and no word of the stage is needed."""
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


def main(argv: Sequence[str]) -> int:
    if CHILD_FLAG in argv:
        return run_child(infer, argv)
    if "--help" in argv or "-h" in argv:
        print(HELP, end="")
        return EXIT_OK
    from llm_perf_opt.runners.profile_orchestrator import INFER_OVERRIDES
    from llm_perf_opt.runners.profile_orchestrator import main as orchestrate

    return orchestrate(argv, implied=INFER_OVERRIDES)


if __name__ == "__main__":
    sys.exit(run_safely(main, sys.argv[1:]))

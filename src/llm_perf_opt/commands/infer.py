"""`llm-perf infer`: plain inference without a profiler."""

from collections.abc import Sequence

from llm_perf_opt.errors import EXIT_OK

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


def main(argv: Sequence[str]) -> int:
    if "--help" in argv or "-h" in argv:
        print(HELP, end="")
        return EXIT_OK
    from llm_perf_opt.commands.profile import INFER_OVERRIDES
    from llm_perf_opt.commands.profile import main as profile

    return profile(argv, implied=INFER_OVERRIDES)

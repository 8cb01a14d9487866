"""A run of the workload without a profiler: check, load, warm up, and time the clean pass."""

from dataclasses import replace
from pathlib import Path

from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.device import start_cuda_profiler, stop_cuda_profiler
from llm_perf_opt.workload.nvtx import around
from llm_perf_opt.workload.outputs import open_outputs
from llm_perf_opt.workload.passes import run_clean_pass, warm_up
from llm_perf_opt.workload.setup import check_workload, open_journal, open_session, say

# In place of a range's name: around all that is measured.
WHOLE_PASS = "all"
KEY = "pipeline.direct_inference.cuda_profiler_range"


def run_inference(
    config: AppConfig,
    out_dir: Path,
    *,
    warmup_rounds: int,
    output: OutputConfig | None,
    cuda_profiler_range: str | None = None,
) -> None:
    """A clean pass with NVTX ranges; writes metrics.json, samples.jsonl, inputs.json and the outputs asked for.

    Around each range of the name `cuda_profiler_range` (`all`: around the pass) a profiler that waits for it is told to
    start and to stop.
    """
    outputs = open_outputs(output, out_dir, adapter=config.model.adapter)
    session = open_session(check_workload(config, out_dir))
    if cuda_profiler_range is not None and not session.model.device.startswith("cuda"):
        raise ConfigError(
            f"{KEY}: cudaProfilerStart needs a GPU, and the model runs on {session.model.device} "
            f"(got {cuda_profiler_range!r}), allowed: null; for nsys, pipeline.nsys.capture_range=nvtx gates anywhere"
        )
    with open_journal(session, out_dir, warmup_rounds=warmup_rounds) as journal:
        warm_up(session, rounds=warmup_rounds, synthetic=False)
        if cuda_profiler_range == WHOLE_PASS:
            start_cuda_profiler()
        elif cuda_profiler_range is not None:
            ranges = around(session.ranges, cuda_profiler_range, start_cuda_profiler, stop_cuda_profiler)
            session = replace(session, ranges=ranges)
        run_clean_pass(session, journal, outputs)
        if cuda_profiler_range == WHOLE_PASS:
            stop_cuda_profiler()
    say(f"done: {len(journal.clean)} sample(s) measured")

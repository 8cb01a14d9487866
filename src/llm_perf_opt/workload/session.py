"""A run of the workload without a profiler: check, load, warm up, and time the clean pass."""

from pathlib import Path

from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.workload.outputs import open_outputs
from llm_perf_opt.workload.passes import run_clean_pass, warm_up
from llm_perf_opt.workload.setup import check_workload, open_journal, open_session, say


def run_inference(config: AppConfig, out_dir: Path, *, warmup_rounds: int, output: OutputConfig | None) -> None:
    """A clean pass with NVTX ranges; writes metrics.json, samples.jsonl, inputs.json and the outputs asked for."""
    outputs = open_outputs(output, out_dir, adapter=config.model.adapter)
    session = open_session(check_workload(config, out_dir))
    with open_journal(session, out_dir, warmup_rounds=warmup_rounds) as journal:
        warm_up(session, rounds=warmup_rounds, synthetic=False)
        run_clean_pass(session, journal, outputs)
    say(f"done: {len(journal.clean)} sample(s) measured")

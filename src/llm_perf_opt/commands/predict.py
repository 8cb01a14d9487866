"""`llm-perf predict`: what hardware allows for a model, from its configuration; torch counts unknown families only."""

import sys
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.errors import EXIT_OK

HELP = """\
llm-perf predict [OVERRIDE ...] [--wide] [--sort COLUMN] [--csv FILE]
                 [--plot FILE.svg] [--json]

Lower bounds and expected times of a model on given hardware, from its
configuration alone: no weights, no torch. For a family without a closed form the
operators are counted with torch, and so are the parameters of image and
audio encoders; that takes seconds.

examples:
  llm-perf predict model=llama3_8b hardware=h200,rtx3090 workload.batch=1,8,64
  llm-perf predict model=qwen3_8b hardware=l40s workload.weight_dtype=fp8 --wide
  llm-perf predict model=llama3_8b hardware=h200 --csv predictions.csv

  model=llama3_8b,qwen3_8b            presets; model.path=… takes folders, config.json files, hub names
  hardware=h200,rtx3090               entries of conf/hardware; auto: this machine
  workload.prompt=1024,8192           tokens of the prompt
  workload.batch=1,8,64               sequences per batch
  workload.context=4096               tokens in the cache at the decode step (default: the prompt)
  workload.output=512                 tokens of the answer: request latency, throughput, cost
  workload.engine=eager,graph,server  stock transformers in eager mode, a CUDA graph, a serving engine
  workload.tp=1,2,4,8                 tensor parallel; also pp, ep, dp
  workload.weight_dtype=fp8,int4      weights of the layers: bf16, fp16, fp32, fp8, int8, int4, nvfp4, mxfp4
  workload.kv_dtype=fp8               the KV cache; workload.activation_dtype: the other operand of the layers' GEMMs
  workload.mla_mode=absorbed          latent attention: cached, latent-expand (what transformers does), absorbed
  workload.concurrency=32             requests in flight over all replicas (default: the batch of each)
  workload.rate=20                    or requests that arrive per second; workload.burstiness=1: Poisson
  workload.prefill_chunk=2048         chunked prefill; workload.prefix_hit=0.5: share of the prompt cached
  workload.acceptance=0.7             speculative decoding: share of drafts kept; workload.draft_tokens=4
                                      (a draft costs a tenth of a step and of the memory)
  dataset.page_width=… page_height=…  the page of a model that reads pages
  hardware.peak_tflops.bf16=…         your own peaks, with hardware.memory_bandwidth_gb_s
  hardware.price_per_hour=…           of one device, for the cost of a million tokens

Every workload key takes a list separated by commas; there is one row for each
combination. Columns to sort by are the names in the header of the CSV file.
"""
SERVED_NEEDS = "; it needs workload.output=…"
SORT_NEEDS = {
    "cost": f"{SERVED_NEEDS} and hardware.price_per_hour=…",
    **dict.fromkeys(("ttft_ms", "tpot_ms", "request_ms", "throughput", "output"), SERVED_NEEDS),
}


def main(argv: Sequence[str]) -> int:
    if "-h" in argv or "--help" in argv:
        print(HELP, end="")
        return EXIT_OK
    # They take longer to import than the help to print.
    from llm_perf_opt.config.paths import conf_dir
    from llm_perf_opt.planning.planning_document import predictions_document
    from llm_perf_opt.planning.planning_rows import predict_rows
    from llm_perf_opt.planning.predict_request import parse_request
    from llm_perf_opt.planning.predicted_rows import BY_KEY, sorted_rows
    from llm_perf_opt.planning.prediction_files import write_csv, write_plot
    from llm_perf_opt.planning.prediction_table import WIDTH, render_table
    from llm_perf_opt.system.json_output import print_json
    from llm_perf_opt.system.terminal import screen_width

    request = parse_request(argv, conf=conf_dir())
    key = request.options.get("--sort")
    rows = sorted_rows(predict_rows(request), key)
    if key is not None and all(BY_KEY[key].value(row) is None for row in rows):
        print(f"note: --sort {key}: no row has this figure{SORT_NEEDS.get(key, '')}", file=sys.stderr)
    if "--csv" in request.options:
        write_csv(rows, Path(request.options["--csv"]).expanduser())
    if "--plot" in request.options:
        write_plot(rows, Path(request.options["--plot"]).expanduser())
    if "--json" in request.flags:
        print_json(predictions_document(rows))
    else:
        print(render_table(rows, is_wide="--wide" in request.flags, width=screen_width() or WIDTH), end="")
    return EXIT_OK

"""`llm-perf bench`: a server under load."""

import sys
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from llm_perf_opt.system.json_output import asks_for_json, print_interrupted, print_json, text_to_stderr, without_json

HELP = """\
llm-perf bench [URL] [OVERRIDE ...] [ARGUMENTS OF vllm bench serve]

Puts a server under load and writes what a client sees: TTFT, TPOT, ITL,
end-to-end latency, throughput, goodput.

examples:
  llm-perf bench server.url=http://127.0.0.1:8000 load.concurrency=1,8,32
  llm-perf bench server=vllm 'server.args=[/models/Qwen3-8B]' load.rate=1,2,4
  llm-perf bench http://127.0.0.1:8000 --model M --request-rate 4
      --max-concurrency 64 --num-prompts 200 --random-input-len 512

  server=vllm              start one: vllm, sglang, transformers, tensorrt_llm
  server.url=http://…      or use one that runs (server=openai, the default)
  load.rate=1,2,4          requests per second, Poisson; several are a sweep
  load.concurrency=1,8     or a constant number in flight
  load.duration_s=60       a level ends after this long, or after load.requests
  load.slo.ttft_ms=200     SLOs for goodput; also tpot_ms, e2el_ms
  dataset.prompt_tokens=…  synthetic prompts of about this many tokens, or
  dataset=prompts          your own: dataset.file=prompts.jsonl
  traffic.format=sharegpt  recorded: sharegpt, mooncake, otel, jsonl with
  traffic.path=F           load.arrival=recorded for the recorded times
  load.output_tokens=128   length of the answers; load.ignore_eos=true
  capture.tool=nsys        start the server again under nsys, with a window
  capture.tool=engine      the server's own /start_profile
  capture.requests=slowest why the slowest requests were slow
  capture.startup=true     where the time until the server is ready goes
  --json                   print the results (docs/schemas/bench.schema.json)

Requests go to the given address only. Every key: docs/serving.md.
"""


def main(argv: Sequence[str]) -> int:
    if "-h" in argv or "--help" in argv:
        print(HELP, end="")
        return EXIT_OK
    # What reads a configuration takes longer to import than the help to print.
    from llm_perf_opt.pipeline.bench.bench_config import read_config

    as_json = asks_for_json(argv)
    config = read_config(without_json(argv), user_dir=Path.cwd())
    from llm_perf_opt.commands.profile import terminate_like_interrupt
    from llm_perf_opt.pipeline.bench.bench_run import run_bench

    with terminate_like_interrupt():
        try:
            with text_to_stderr(as_json):
                done = run_bench(config)
        except KeyboardInterrupt:
            print("interrupted: the server was ended, the results so far are kept", file=sys.stderr)
            if as_json:
                print_interrupted()
            return EXIT_INTERRUPTED
    if as_json:
        import msgspec

        print_json(msgspec.to_builtins(done.document()))
    return EXIT_FAILED if done.problems else EXIT_OK

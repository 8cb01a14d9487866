"""`llm-perf plan`: which device, how many, which batch: the cheapest that meets the limits. Never imports torch."""

from collections.abc import Sequence

from llm_perf_opt.errors import EXIT_OK

HELP = """\
llm-perf plan [OVERRIDE ...] [--ttft-ms MS] [--tpot-ms MS] [--context TOKENS]
              [--output TOKENS] [--devices N] [--users N | --rate N/s]
              [--price ENTRY=PRICE,...] [--prices FILE] [--csv FILE]
              [--plot FILE.svg] [--json] [--calibrate-from RUN]

Which device, how many of them, which batch and dtype: the cheapest that meets
the limits, by the estimates of `llm-perf predict` (see there for model=,
hardware= and workload.*).

examples:
  llm-perf plan model=llama3_8b hardware=h200,l40s --ttft-ms 500 --tpot-ms 30
  llm-perf plan model=qwen3_8b hardware=h200 --rate 20/s --ttft-ms 1000
  llm-perf plan model=llama3_70b hardware=h100_sxm --users 500 --tpot-ms 40

  --ttft-ms 500    SLO of the time to first token, 95th percentile
  --tpot-ms 30     SLO of the time per output token
  --percentile 50  apply --ttft-ms to the median instead
  --context 8192   prompt and answer together
  --output 256     tokens of the answer
  --devices 8      most devices per replica: tp × pp × dp of its experts
  --users 500      requests in flight, in a steady state: how many replicas
  --rate 20/s      arrivals: how many replicas (also 1200/min)
  --burstiness 1   1: Poisson arrivals, below 1: bursts
  --headroom 20%    capacity beyond the demand
  --calibrate-from RUN  answer by a run of llm-perf bench (or its bench.json)
                   with load.concurrency=1,4,16: that server, those lengths
  --price h200=3.5,l40s=1   per hour and device
  --prices FILE    the same as YAML, one `entry: price` a line

Searched: requests in flight up to what fits, tensor, pipeline, expert and data
parallelism within --devices (or the values given as workload.tp, pp, ep, dp),
dtypes bf16 and fp8 (or workload.weight_dtype), the engine `server` (or the one
given). With --users or --rate also prefill and decode on different devices.
Without prices the fewest devices win. Files and --json have all that meet the
SLOs; with a demand, the best of each device, dtype and layout.
"""


def main(argv: Sequence[str]) -> int:
    if "-h" in argv or "--help" in argv:
        print(HELP, end="")
        return EXIT_OK
    # What searches takes longer to import than the help to print.
    from llm_perf_opt.commands.plan_answer import answer

    return answer(argv)

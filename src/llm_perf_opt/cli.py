"""The command llm-perf: finds the subcommand and imports no other."""

import importlib
import sys
from collections.abc import Sequence

from llm_perf_opt import __version__
from llm_perf_opt.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, EXIT_OK, ProfilingError, print_error
from llm_perf_opt.runners.program import run_safely

HELP = """\
llm-perf: where did the time of an LLM inference go, and what should change first?

  llm-perf profile [OVERRIDE ...]     profile a model through the enabled stages, one report
  llm-perf run -- PROGRAM ...         any program through every stage, one report
  llm-perf bench [OVERRIDE ...]       a server under load: vllm, sglang, transformers, tensorrt_llm, or any address
  llm-perf infer [OVERRIDE ...]       plain inference: predictions and gallery, no profiler
  llm-perf predict [OVERRIDE ...]     what the hardware allows, from the configuration alone
  llm-perf plan [OVERRIDE ...]        which device, how many, which batch meets limits of latency
  llm-perf analyze FILE ...           captures made elsewhere: nsys, ncu, torch traces
  llm-perf compare BASE CANDIDATE     did it help? runs or captures; --gate for CI, --interleave for noisy machines
  llm-perf report RUN_DIR             render a run's reports again
  llm-perf runs [DIR]                 list, filter and sort runs; --html draws them over time
  llm-perf export RUN_DIR --to WHERE  numbers for Prometheus, OpenMetrics, MLflow, Weights & Biases
  llm-perf sweep report|resume DIR    one table and page of a sweep's runs; run what is missing or failed
  llm-perf doctor [--json]            what this machine can do, and how to mend what it cannot

Each command explains itself with --help. First steps: llm-perf profile experiment=demo
"""


# Each module has `main(argv) -> exit code`; only the chosen one is imported.
COMMANDS = {
    "profile": "profile_orchestrator",
    "run": "run_program",
    "bench": "bench.cli",
    "infer": "direct_inference_runner",
    "predict": "predict.cli",
    "plan": "plan.cli",
    "analyze": "analyze.cli",
    "compare": "compare.cli",
    "report": "report",
    "runs": "runs",
    "sweep": "sweep",
    "export": "export",
    "doctor": "doctor",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; our own errors become one line each and an exit code."""
    return run_safely(_run, sys.argv[1:] if argv is None else argv)


def _run(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(HELP, end="")
        return EXIT_OK
    if args[0] == "--version":
        print(f"llm-perf {__version__}")
        return EXIT_OK
    if args[0] not in COMMANDS:
        print(f"error: {args[0]!r}: no such command, allowed: {', '.join(COMMANDS)}", file=sys.stderr)
        return EXIT_BAD_INPUT
    try:
        module = importlib.import_module(f"llm_perf_opt.runners.{COMMANDS[args[0]]}")
        return int(module.main(args[1:]))
    except ProfilingError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())

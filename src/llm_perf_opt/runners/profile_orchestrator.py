"""`python -m llm_perf_opt.runners.profile_orchestrator` is `llm-perf profile`."""

import sys

from llm_perf_opt.commands.entry import run_safely
from llm_perf_opt.commands.profile import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(run_safely(main, sys.argv[1:]))

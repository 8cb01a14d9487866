"""The command llm-perf: finds the subcommand and imports no other."""

import importlib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from llm_perf_opt import __version__
from llm_perf_opt.commands.entry import run_safely
from llm_perf_opt.errors import EXIT_INTERRUPTED, EXIT_OK, ConfigError, ProfilingError, did_you_mean, print_error
from llm_perf_opt.system.json_output import asks_for_json, print_failure, print_interrupted


class Command(NamedTuple):
    """A subcommand: the module whose `function(argv)` gives the exit code, what it takes, and what it is for.

    `config` is the entry of conf/ whose keys it takes, `groups` the folders of conf/ it takes choices of.
    """

    module: str
    takes: str
    summary: str
    config: str | None = None
    groups: tuple[str, ...] = ()
    function: str = "main"


_RUN = ("config", ("model", "dataset", "hardware", "experiment"))
_PREDICT = ("config", ("model", "hardware"))
# In the order a reader needs them; only the chosen one's module is imported.
COMMANDS = {
    "run": Command("commands.run", "-- PROGRAM ...", "profile any program: cause, function, line", *_RUN),
    "profile": Command("commands.profile", "[OVERRIDE ...]", "profile a model through all stages", *_RUN),
    "bench": Command(
        "commands.bench", "[OVERRIDE ...]", "load a server, started or running", "bench", ("server", "dataset")
    ),
    "infer": Command("commands.infer", "[OVERRIDE ...]", "run a model without a profiler", *_RUN),
    "predict": Command("commands.predict", "[OVERRIDE ...]", "lower bounds and estimates without a run", *_PREDICT),
    "plan": Command("commands.plan", "[OVERRIDE ...]", "cheapest deployment that meets SLOs", *_PREDICT),
    "analyze": Command("commands.analyze", "FILE ...", "existing captures: nsys, ncu, torch, ROCm"),
    "query": Command("commands.query", "RUN|CAPTURE SQL", "query a capture or a run with SQL"),
    "compare": Command("commands.compare", "BASE CANDIDATE", "did it help? gates for CI"),
    "bisect": Command("commands.bisect", "GOOD BAD -- PROGRAM", "find the commit or version that regressed"),
    "optimize": Command("commands.optimize", "[OVERRIDE ...]", "try the fixes, verify gain and outputs", *_RUN),
    "open": Command("commands.report", "[RUN_DIR]", "open a report, by default the newest", function="main_open"),
    "report": Command("commands.report", "RUN_DIR", "render a run's reports again"),
    "runs": Command("commands.runs", "[DIR]", "list, filter, sort and draw runs"),
    "sweep": Command("commands.sweep", "report|resume DIR", "show or resume a sweep"),
    "mcp": Command("commands.mcp", "[--root DIR]", "serve findings to coding agents (MCP)"),
    "export": Command("commands.export", "RUN_DIR --to WHERE", "export to Prometheus, MLflow, Parquet, …"),
    "doctor": Command("commands.doctor", "[--json]", "check this machine, with fixes"),
}
OPTIONS = {
    "--install-completion": "complete keys and choices in bash, zsh, fish",
    "--show-completion": "print the completion script",
    "--version": "print the version",
    "--help": "print this help",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; our own errors become one line each and an exit code."""
    return run_safely(_run, sys.argv[1:] if argv is None else argv)


def help_text() -> str:
    lines = [f"  {name + ' ' + command.takes:<26}  {command.summary}" for name, command in COMMANDS.items()]
    options = [f"  {name:<26}  {text}" for name, text in OPTIONS.items()]
    head = "llm-perf COMMAND ...: where did the time of an LLM inference go, and why?"
    tail = (
        "llm-perf COMMAND --help: options and examples. First steps:\n\n  llm-perf run -- python my_script.py"
        "\n  llm-perf profile model=llama3_8b\n  llm-perf open"
    )
    return "\n".join([head, "", *lines, "", *options, "", tail, ""])


def _run(args: list[str]) -> int:
    try:
        return _dispatch(args)
    except ProfilingError as error:
        print_error(error)
        if asks_for_json(args):
            print_failure(error)
        return error.exit_code
    except KeyboardInterrupt:
        if asks_for_json(args):
            print_interrupted()
        return EXIT_INTERRUPTED


def _dispatch(args: list[str]) -> int:
    name, rest = (args[0], args[1:]) if args else ("--help", [])
    if name in ("-h", "--help", "help"):
        print(help_text(), end="")
        return EXIT_OK
    if name == "--version":
        print(f"llm-perf {__version__}")
        return EXIT_OK
    if name in ("--install-completion", "--show-completion", "--complete"):
        completion = importlib.import_module("llm_perf_opt.completion")
        return int(completion.main(name, rest))
    if name not in COMMANDS:
        hint = did_you_mean(name, [*COMMANDS, *OPTIONS]) or _as_setting(name, rest)
        raise ConfigError(f"{name!r}: no such command{hint}, allowed: {', '.join(COMMANDS)}")
    command = COMMANDS[name]
    module = importlib.import_module(f"llm_perf_opt.{command.module}")
    return int(getattr(module, command.function)(rest))


def _as_setting(name: str, rest: Sequence[str]) -> str:
    """What a setting in the place of a command was probably meant for."""
    key, sign, value = name.partition("=")
    if name.startswith("--"):
        value = value if sign else next(iter(rest), "…")
        return f"; settings have no dashes: llm-perf profile {key.removeprefix('--').replace('-', '_')}={value}"
    return f"; a setting needs one: llm-perf profile {name}" if sign else ""


if __name__ == "__main__":
    sys.exit(main())

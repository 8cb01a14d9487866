"""The command line of a search over a server's settings, from words to a search."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from llm_perf_opt.comparison.gate import Condition
from llm_perf_opt.config.arguments import written_by
from llm_perf_opt.errors import EXIT_OK, ConfigError
from llm_perf_opt.optimize.server.server_document import (
    SERVER_OBJECTIVES,
    SERVER_UNITS,
    OptimizeServerDocument,
    ServerObjective,
)
from llm_perf_opt.optimize.server.server_search import ServerSearch
from llm_perf_opt.optimize.server.space import (
    ServerSpace,
    packaged_engines,
    packaged_space,
    read_space,
)
from llm_perf_opt.pipeline.bench.bench_config import BenchConfig, read_config
from llm_perf_opt.pipeline.bench.warm_up import read_traffic
from llm_perf_opt.pipeline.console import make_console
from llm_perf_opt.pipeline.optimize.server.evaluate import ServerEvaluator
from llm_perf_opt.pipeline.optimize.server.server_journal import StartJournal, digest_of, read_reference
from llm_perf_opt.pipeline.optimize.server.server_run import PAGE_FILE, STARTS_DIR, ServerOptimizer
from llm_perf_opt.profiling.vendor.vendor_tools import probe_host
from llm_perf_opt.report.optimize.server_text import render_server_terminal
from llm_perf_opt.serving.engine import with_program
from llm_perf_opt.system.lock import locked
from llm_perf_opt.system.process import allowed_environment
from llm_perf_opt.system.redact import Redactor, given_secrets
from llm_perf_opt.system.secrets.secret_shapes import is_secret

# Each start is put under load, so levels are shorter than those of `bench`.
DEFAULTS = ("load.duration_s=15",)


def optimize_server(
    args: argparse.Namespace, *, budget_s: float, constraints: Sequence[Condition], folder: Path, resumes: bool
) -> int:
    """Search, print, and say where the pages are."""
    began = time.monotonic()
    config = read_config([*DEFAULTS, *args.words], user_dir=Path.cwd())
    problems = [*_problems(args, config), *_unknown_limits(constraints)]
    if problems:
        raise ConfigError(problems)
    space = _space(args.space, config)
    objective = _objective(args.objective, config)
    if args.dry_run:
        print(plan_text(space))
        return EXIT_OK
    recorded = read_traffic(config)
    program = config.server.command[0]
    section = with_program(config.server, os.environ)
    digest = digest_of(section, config.load, config.traffic, config.dataset, objective, space)
    config = replace(config, server=section)
    host = probe_host(env=allowed_environment(os.environ), disk=Path.cwd())
    redactor = _redactor(config, space)
    with written_by("-o", folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, partial(print, file=sys.stderr)):
        console = make_console()
        journal = StartJournal(folder, digest, redactor, resumes=resumes)
        evaluator = ServerEvaluator(
            config=config,
            space=space,
            objective=objective,
            folder=folder / STARTS_DIR,
            redactor=redactor,
            console=console,
            recorded=recorded,
            gpus=tuple(gpu.index for gpu in host.gpus),
            min_top1=args.min_top1,
            constraints=tuple(constraints),
            reference=read_reference(folder) if resumes else None,
        )
        document = ServerOptimizer(
            evaluator=evaluator,
            space=space,
            search=ServerSearch(objective=objective, most_starts=args.max_experiments),
            journal=journal,
            folder=folder,
            console=console,
            redactor=redactor,
            budget_s=budget_s,
            constraints=tuple(one.text for one in constraints),
            has_gpu=bool(host.gpus),
            lossless=args.lossless,
            program=program,
            began=began,
        ).run()
    _print(document, args, folder)
    return EXIT_OK


def plan_text(space: ServerSpace) -> str:
    """What could be tried, and what has to be seen for it."""
    lines = [f"{space.engine}: the baseline is measured first; the result selects among", ""]
    for option in space.options:
        lines.append(f"{option.flag or option.variable}: {option.title}".rstrip(": "))
        for choice in option.choices:
            lossy = ", lossy" if choice.lossy else ""
            lines.append(f"  {choice.text}: {', '.join(choice.when) or 'always'}{lossy}")
    return "\n".join(lines)


def _space(path: Path | None, config: BenchConfig) -> ServerSpace:
    if path is not None:
        return read_space(path)
    found = packaged_space(config.server.name)
    if found is None:
        raise ConfigError(
            f"--space: needed, nothing is known of what can be set of {config.server.name!r}; allowed: a YAML file "
            f"with options, or server={', '.join(packaged_engines())}"
        )
    return found


def _objective(asked: str | None, config: BenchConfig) -> ServerObjective:
    default: ServerObjective = "goodput" if config.load.slo.is_set else "tokens_per_s"
    found = next((one for one in SERVER_OBJECTIVES if one == (asked or default)), None)
    if found is None:
        raise ConfigError(
            f"--objective: not an objective of servers (got {asked!r}), allowed: {', '.join(SERVER_OBJECTIVES)}"
        )
    return found


def _problems(args: argparse.Namespace, config: BenchConfig) -> list[str]:
    found = []
    objective = args.objective
    if config.server.url is not None:
        found.append(
            "server.url: a server that runs cannot be started with other settings, allowed: server=vllm "
            "server.args=[…] or server.command=[…]"
        )
    if objective == "goodput" and not config.load.slo.is_set:
        found.append("--objective: goodput counts requests that keep limits, allowed: with load.slo.ttft_ms, tpot_ms …")
    if config.load.search != "none":
        found.append("load.search: has no effect, optimize finds the load itself; leave it out")
    if config.capture.tool != "none":
        found.append("capture.tool: nothing is captured while settings are compared, allowed: none")
    if args.experiments is not None:
        found.append("--experiments: for models and programs; for a server use --space")
    if args.max_kl is not None:
        found.append("--max-kl: whole distributions are not sent over HTTP, allowed: --min-top1")
    levels = len(config.load.rate or config.load.concurrency or ())
    if levels > 1 and objective in ("ttft_ms", "tpot_ms", "e2el_ms"):
        found.append(f"load: latencies are compared at one load (got {levels} levels), allowed: one level")
    return found


def _unknown_limits(constraints: Sequence[Condition]) -> list[str]:
    names = [one.metric for one in constraints if one.metric not in SERVER_UNITS]
    return [f"--constraint: no such number (got {name!r}), allowed: {', '.join(SERVER_UNITS)}" for name in names]


def _redactor(config: BenchConfig, space: ServerSpace) -> Redactor:
    """Secrets of our environment and the server's, of its words, and of variables that the space sets."""
    server = config.server
    values = [
        choice.text
        for option in space.options
        for choice in option.choices
        if option.variable is not None and is_secret(option.variable, choice.text)
    ]
    given = given_secrets([*server.command, *server.args])
    key = [] if server.api_key_env is None else [os.environ.get(server.api_key_env, "")]
    return Redactor.of({**os.environ, **server.env}, more=[*given, *values, *key])


def _print(document: OptimizeServerDocument, args: argparse.Namespace, folder: Path) -> None:
    if args.json:
        from llm_perf_opt.system.json_output import print_json

        print_json(msgspec.to_builtins(document))
    else:
        print(render_server_terminal(document))
    print(f"written: {folder / PAGE_FILE}", file=sys.stderr)

"""`llm-perf optimize`: try what the findings advise, keep what is faster and right, and say what to set."""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from llm_perf_opt.commands.entry import CommandParser
from llm_perf_opt.comparison.gate import parse_condition
from llm_perf_opt.config.arguments import written_by
from llm_perf_opt.errors import EXIT_INTERRUPTED, EXIT_OK, ConfigError
from llm_perf_opt.optimize.optimize_document import OBJECTIVES, UNITS, Objective, OptimizeDocument
from llm_perf_opt.optimize.server.server_document import SERVER_OBJECTIVES
from llm_perf_opt.system.files import real_path

if TYPE_CHECKING:
    from llm_perf_opt.comparison.gate import Condition
    from llm_perf_opt.diagnosis.experiments import Remedy
    from llm_perf_opt.optimize.experiment_plan import ExperimentPlan
    from llm_perf_opt.pipeline.optimize.optimize_run import OptimizeOptions

DEFAULT_DIR = Path("tmp/optimize")
SERVER_WORDS = ("server=", "server.")
EPILOG = """\
examples:
  llm-perf optimize experiment=demo --budget 3m
  llm-perf optimize model=llama3_1b dataset.prompt_tokens=1024 --budget 10m
  llm-perf optimize run=tmp/runs/RUN --objective tokens_per_s \\
      --constraint 'peak_gb<=80'
  llm-perf optimize run=tmp/runs/RUN --dry-run
  llm-perf optimize --experiments mine.yaml model=llama3_1b
  llm-perf optimize --experiments mine.yaml --objective wall_ms -- \\
      python my_script.py
  llm-perf optimize server=vllm 'server.args=[MODEL]' load.slo.ttft_ms=200 \\
      --objective goodput --budget 20m
  llm-perf optimize server=sglang 'server.args=[--model-path,MODEL]' --dry-run

A finding of the profile names what could help; each is tried in a process of
its own, its passes interleaved with those of what it is compared with, and counts
only if its outputs match. Every key: docs/optimize.md.
exit codes: 0 done, also when nothing helped; 1 the baseline could not be run;
2 bad input; 130 interrupted
"""


def main(argv: Sequence[str]) -> int:
    """Entry point of the subcommand."""
    given, command = list(argv), []
    if "--" in given:
        cut = given.index("--")
        given, command = given[:cut], given[cut + 1 :]
    args = _parser().parse_intermixed_args(given)
    if is_of_a_server(args) and not command:
        return _optimize_server(args)
    options = _options(args, is_program=bool(command))
    # Hydra and numpy are imported only now, so that --help and a wrong option answer at once.
    from llm_perf_opt.commands.profile import terminate_like_interrupt

    with terminate_like_interrupt():
        try:
            return _optimize_program(args, options, command) if command else _optimize_model(args, options)
        except KeyboardInterrupt:
            print("interrupted: every process was ended, what was measured is in optimize.json", file=sys.stderr)
            return EXIT_INTERRUPTED


def is_of_a_server(args: argparse.Namespace) -> bool:
    """Whether the settings of a server are searched, and not those of our own model."""
    return args.space is not None or any(word.startswith(SERVER_WORDS) for word in args.words)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="llm-perf optimize",
        usage="llm-perf optimize [OPTION ...] [run=DIR] [OVERRIDE ...]\n"
        "       llm-perf optimize --experiments FILE [OPTION ...] -- PROGRAM ...\n"
        "       llm-perf optimize server=NAME [OPTION ...] [OVERRIDE of bench ...]",
        description="Try the fixes a profile's findings name, verify them, and recommend\nwhat helped.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="OVERRIDE", help="as in profile; run=DIR uses the profile of a run")
    parser.add_argument(
        "--objective",
        choices=tuple(dict.fromkeys((*OBJECTIVES, *SERVER_OBJECTIVES))),
        help="what to improve (default tpot_ms; of a program wall_ms; of a server goodput or tokens_per_s)",
    )
    parser.add_argument(
        "--budget",
        default="10m",
        metavar="TIME",
        help="for all of it, profile included: 90s, 10m, 1h (default 10m)",
    )
    parser.add_argument(
        "--max-experiments", type=int, metavar="N", help="at most N experiments; with server=: at most N starts"
    )
    parser.add_argument(
        "--constraint",
        action="append",
        default=[],
        metavar="CONDITION",
        help="such as 'peak_gb<=80', 'ttft_ms<=+10%%' (against the baseline) or 'compile_s<=60'",
    )
    parser.add_argument(
        "--lossless", action="store_true", help="leave out fixes that change outputs by more than rounding"
    )
    parser.add_argument(
        "--max-kl",
        type=float,
        default=None,
        metavar="NATS",
        help="KL divergence of lossy fixes, mean of the samples (default 0.05)",
    )
    parser.add_argument(
        "--min-top1", type=float, default=None, metavar="SHARE", help="top-1 agreement, lossy fixes (default 0.9)"
    )
    parser.add_argument("--experiments", type=Path, metavar="FILE", help="YAML with your own experiments")
    parser.add_argument("--space", type=Path, metavar="FILE", help="of a server: its options as YAML")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="of a server: continue an interrupted search")
    parser.add_argument("--dry-run", action="store_true", help="show the plan; profiles first where no run= is given")
    parser.add_argument("--config-dir", "-cd", type=Path, metavar="DIR", help="with your own presets, as in profile")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help=f"default {DEFAULT_DIR}/<date>-<time>")
    parser.add_argument("--json", action="store_true", help="print the document (docs/schemas/optimize.schema.json)")
    return parser


def _options(args: argparse.Namespace, *, is_program: bool) -> "OptimizeOptions":
    """Every problem of the options at once."""
    from llm_perf_opt.optimize.experiment_verdict import MAX_KL, MIN_TOP1, LossLimits
    from llm_perf_opt.pipeline.optimize.optimize_run import OptimizeOptions

    budget_s = _seconds(args.budget)
    problems, conditions = _limits(args)
    default = "wall_ms" if is_program else "tpot_ms"
    objective: Objective | None = next((one for one in OBJECTIVES if one == (args.objective or default)), None)
    if objective is None:
        problems.append(f"--objective: only with server= (got {args.objective!r}), allowed: {', '.join(OBJECTIVES)}")
    if args.resume is not None:
        problems.append("--resume: only with server=; to reuse a profile: run=DIR")
    unknown = [c.metric for c in conditions if c.metric not in UNITS]
    problems += [f"--constraint: no such number (got {name!r}), allowed: {', '.join(UNITS)}" for name in unknown]
    if problems or budget_s is None or objective is None:
        raise ConfigError(problems)
    return OptimizeOptions(
        objective=objective,
        budget_s=budget_s,
        most=args.max_experiments,
        constraints=tuple(conditions),
        limits=LossLimits(
            max_kl=MAX_KL if args.max_kl is None else args.max_kl,
            min_top1=MIN_TOP1 if args.min_top1 is None else args.min_top1,
        ),
    )


def _seconds(text: str) -> float | None:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h)?\s*", text)
    if match is None or float(match[1]) <= 0:
        return None
    return float(match[1]) * {"s": 1.0, None: 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}[match[2]]


def _optimize_server(args: argparse.Namespace) -> int:
    problems, conditions = _limits(args)
    budget_s = _seconds(args.budget)
    if args.resume is not None and args.output is not None:
        problems.append("--resume: continues in its own directory; leave out -o")
    if args.resume is not None and not args.resume.is_dir():
        problems.append(f"--resume: no such directory (got {str(args.resume)!r}), allowed: that of an earlier search")
    if problems or budget_s is None:
        raise ConfigError(problems)
    folder = _folder(args) if args.resume is None else real_path(args.resume.expanduser())
    from llm_perf_opt.commands.profile import terminate_like_interrupt
    from llm_perf_opt.pipeline.optimize.server.server_arguments import optimize_server

    with terminate_like_interrupt():
        try:
            return optimize_server(
                args, budget_s=budget_s, constraints=conditions, folder=folder, resumes=args.resume is not None
            )
        except KeyboardInterrupt:
            print(
                f"interrupted: every server was ended, what was measured is in {folder}; --resume {folder} continues",
                file=sys.stderr,
            )
            return EXIT_INTERRUPTED


def _limits(args: argparse.Namespace) -> "tuple[list[str], list[Condition]]":
    """What is wrong with the limits of time, number and outputs, and the constraints."""
    problems = []
    if _seconds(args.budget) is None:
        problems.append(f"--budget: invalid duration (got {args.budget!r}): use 90s, 10m or 1h")
    if args.max_experiments is not None and args.max_experiments < 1:
        problems.append(f"--max-experiments: must be at least 1 (got {args.max_experiments})")
    if args.max_kl is not None and args.max_kl < 0:
        problems.append(f"--max-kl: must be at least 0 (got {args.max_kl:g})")
    if args.min_top1 is not None and not 0 <= args.min_top1 <= 1:
        problems.append(f"--min-top1: must be between 0 and 1 (got {args.min_top1:g})")
    conditions = []
    for text in args.constraint:
        try:
            conditions.append(parse_condition(text, "--constraint"))
        except ConfigError as error:
            problems += error.problems
    return problems, conditions


def _optimize_model(args: argparse.Namespace, options: "OptimizeOptions") -> int:
    import os
    from functools import partial

    from llm_perf_opt.pipeline.console import StageTurn, make_console
    from llm_perf_opt.pipeline.optimize.metered import require_counter
    from llm_perf_opt.pipeline.optimize.optimize_run import ENERGY, Optimizer
    from llm_perf_opt.pipeline.optimize.setup import (
        PROFILE_DIR,
        ModelBench,
        make_profile,
        problems_of,
        read_profile,
        read_subject,
    )
    from llm_perf_opt.pipeline.optimize.situation import plan_for, situation_of
    from llm_perf_opt.pipeline.optimize.user_experiments import secrets_of
    from llm_perf_opt.pipeline.provenance import make_redactor
    from llm_perf_opt.report.optimize.optimize_text import render_terminal
    from llm_perf_opt.system.lock import locked
    from llm_perf_opt.system.nvml import gpu_index

    began = time.monotonic()
    # Hydra may go back to where the run was started, and so may relative names.
    folder = _folder(args)
    remedies = _given(args)
    subject = read_subject(args.words, config_dir=args.config_dir)
    problems = problems_of(subject.config)
    if problems:
        raise ConfigError(problems)
    gpu = gpu_index(subject.config.run.device, os.environ)
    if options.objective == ENERGY:
        require_counter(gpu)
    if args.dry_run and subject.run_dir is not None:
        profile = read_profile(subject.run_dir)
        situation = situation_of(subject, profile, options.objective, lossless=args.lossless)
        _show_plan(plan_for(subject, profile, situation, given=remedies), args, options)
        return EXIT_OK
    _make(folder)
    console = make_console()
    with locked(folder, partial(print, file=sys.stderr)):
        profile_s = None
        if subject.run_dir is not None:
            profile = read_profile(subject.run_dir)
        else:
            before = time.monotonic()
            console.say(f"profiling into {folder / PROFILE_DIR}")
            console.stage_started(StageTurn(name="profile"))
            try:
                profile = make_profile(
                    subject,
                    folder / PROFILE_DIR,
                    timeout_s=options.budget_s,
                    tick=console.tick,
                    log=folder / "profile.log",
                )
            finally:
                console.close()
            profile_s = time.monotonic() - before
        situation = situation_of(subject, profile, options.objective, lossless=args.lossless)
        plan = plan_for(subject, profile, situation, given=remedies)
        if args.dry_run:
            _show_plan(plan, args, options)
            return EXIT_OK
        redactor = make_redactor(subject.config, os.environ, more=secrets_of(remedies))
        optimizer = Optimizer(
            bench=ModelBench(subject=subject, redactor=redactor),
            profile=profile,
            plan=plan,
            situation=situation,
            options=options,
            folder=folder,
            console=console,
            redactor=redactor,
            began=began,
            gpu=gpu,
            profile_s=profile_s,
        )
        document = optimizer.run()
    _print(document, args, render_terminal(document), folder)
    return EXIT_OK


def _optimize_program(args: argparse.Namespace, options: "OptimizeOptions", command: list[str]) -> int:
    import os
    import shutil
    from functools import partial

    from llm_perf_opt.optimize.experiment_plan import Costs, Situation, build_plan
    from llm_perf_opt.pipeline.console import make_console
    from llm_perf_opt.pipeline.optimize.optimize_run import Optimizer
    from llm_perf_opt.pipeline.optimize.program_experiments import ProgramBench
    from llm_perf_opt.pipeline.optimize.user_experiments import read_experiments, secrets_of
    from llm_perf_opt.profiling.vendor.vendor_tools import probe_host
    from llm_perf_opt.report.optimize.optimize_text import render_terminal
    from llm_perf_opt.system.lock import locked
    from llm_perf_opt.system.process import allowed_environment
    from llm_perf_opt.system.redact import Redactor, given_secrets

    problems = []
    if args.experiments is None:
        problems.append("--experiments: needed for your own program: a YAML file with what to try")
    if args.words:
        problems.append(f"optimize: overrides are for our own model (got {args.words[0]!r}), allowed: options and `--`")
    if shutil.which(command[0]) is None:
        problems.append(f"optimize: no program of this name can be run (got {command[0]!r})")
    if problems:
        raise ConfigError(problems)
    began = time.monotonic()
    given = read_experiments(args.experiments)
    folder = _folder(args)
    host = probe_host(env=allowed_environment(os.environ), disk=Path.cwd())
    situation = Situation(
        objective=options.objective,
        is_cpu=not host.gpus,
        own_loop=False,
        reads_pages=False,
        dtype=None,
        settings={},
        lossless=args.lossless,
    )
    plan = build_plan((), None, situation, Costs(start_s=0.0, pass_s=0.0), given=given.remedies)
    if args.dry_run:
        _show_plan(plan, args, options)
        return EXIT_OK
    _make(folder)
    redactor = Redactor.of(os.environ, more=[*given_secrets(command), *secrets_of(given.remedies)])
    bench = ProgramBench(
        command=tuple(command), outputs=given.outputs, user_dir=Path.cwd(), host=host, redactor=redactor
    )
    with locked(folder, partial(print, file=sys.stderr)):
        document = Optimizer(
            bench=bench,
            profile=None,
            plan=plan,
            situation=situation,
            options=options,
            folder=folder,
            console=make_console(),
            redactor=redactor,
            began=began,
        ).run()
    _print(document, args, render_terminal(document), folder)
    return EXIT_OK


def _folder(args: argparse.Namespace) -> Path:
    output: Path = args.output or DEFAULT_DIR / datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = real_path(output.expanduser())
    with written_by("-o", folder):
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"-o: {folder} is not empty, allowed: a new directory")
    return folder


def _make(folder: Path) -> None:
    with written_by("-o", folder):
        folder.mkdir(parents=True, exist_ok=True)


def _given(args: argparse.Namespace) -> "tuple[Remedy, ...]":
    if args.experiments is None:
        return ()
    from llm_perf_opt.pipeline.optimize.user_experiments import read_experiments

    return read_experiments(args.experiments).remedies


def _show_plan(plan: "ExperimentPlan", args: argparse.Namespace, options: "OptimizeOptions") -> None:
    """What a dry run prints."""
    if args.json:
        from llm_perf_opt.optimize.dry_run import optimize_plan_document
        from llm_perf_opt.system.json_output import print_json

        print_json(optimize_plan_document(plan, budget_s=options.budget_s))
        return
    from llm_perf_opt.report.optimize.optimize_text import render_plan

    print(render_plan(plan, budget_s=options.budget_s))


def _print(document: OptimizeDocument, args: argparse.Namespace, text: str, folder: Path) -> None:
    if args.json:
        import msgspec

        from llm_perf_opt.system.json_output import print_json

        print_json(msgspec.to_builtins(document))
    else:
        print(text)
    print(f"written: {folder / 'optimize.html'}", file=sys.stderr)

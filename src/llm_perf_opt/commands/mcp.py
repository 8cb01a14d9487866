"""`llm-perf mcp`: an MCP server over stdio, so that a coding agent can ask captures and runs."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.commands.entry import command_parser
from llm_perf_opt.errors import EXIT_OK, ToolError
from llm_perf_opt.mcp_server.clients import CLIENTS, skill

EXTRA = "pip install 'llm-perf-opt[mcp]'"


def main(argv: Sequence[str]) -> int:
    """Entry point of the subcommand."""
    parser = command_parser(
        "mcp",
        "Answer a coding agent's questions about captures and runs over the Model Context Protocol, on the standard "
        "streams. Reads files below the given folders only; runs programs only with --allow-run.",
        ["llm-perf mcp --print-config claude-code", "llm-perf mcp --print-skill"],
    )
    parser.add_argument(
        "--root", action="append", type=Path, metavar="DIR", help="folder to read from, also several times (default: .)"
    )
    parser.add_argument("--allow-run", action="store_true", help="also offer the tool `capture`, which runs programs")
    parser.add_argument("--print-config", choices=CLIENTS, metavar="CLIENT", help=f"print that of {', '.join(CLIENTS)}")
    parser.add_argument(
        "--print-skill", action="store_true", help="print SKILL.md, which explains how to use the tools"
    )
    args = parser.parse_args(argv)
    folders: list[Path] = args.root or [Path()]
    if args.print_skill:
        print(skill(), end="")
        return EXIT_OK
    if args.print_config is not None:
        where, render = CLIENTS[args.print_config]
        print(f"goes into {where}", file=sys.stderr)
        print(render(_command(folders, allows_run=args.allow_run)), end="")
        return EXIT_OK
    try:
        from llm_perf_opt.mcp_server.server import serve
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise ToolError(f"mcp needs the package mcp, which is not installed: {EXTRA}") from error
    serve(folders, allows_run=args.allow_run)
    return EXIT_OK


def _command(folders: Sequence[Path], *, allows_run: bool) -> list[str]:
    """What a client starts: by full paths, since it starts somewhere else."""
    program = shutil.which("llm-perf")
    words = [sys.executable, "-m", "llm_perf_opt.cli"] if program is None else [program]
    roots = [word for folder in folders for word in ("--root", str(folder.resolve()))]
    return [*words, "mcp", *roots, *(["--allow-run"] if allows_run else [])]

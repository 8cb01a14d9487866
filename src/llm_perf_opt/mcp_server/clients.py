"""Configuration of the server for common clients, and the SKILL.md that ships with the package."""

import json
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files

SKILL_FILE = "SKILL.md"


def claude(argv: Sequence[str]) -> str:
    """Also what Cursor reads."""
    return _json({"mcpServers": {"llm-perf": {"command": argv[0], "args": list(argv[1:])}}})


def vscode(argv: Sequence[str]) -> str:
    return _json({"servers": {"llm-perf": {"type": "stdio", "command": argv[0], "args": list(argv[1:])}}})


def codex(argv: Sequence[str]) -> str:
    """TOML; a JSON string is one of TOML's too."""
    words = ", ".join(json.dumps(word, allow_nan=False) for word in argv[1:])
    return f"[mcp_servers.llm-perf]\ncommand = {json.dumps(argv[0], allow_nan=False)}\nargs = [{words}]\n"


# Client to the file its configuration goes into, and what goes there.
CLIENTS: Mapping[str, tuple[str, Callable[[Sequence[str]], str]]] = {
    "claude-code": (".mcp.json in the project", claude),
    "claude-desktop": ("claude_desktop_config.json", claude),
    "cursor": (".cursor/mcp.json in the project", claude),
    "vscode": (".vscode/mcp.json in the project", vscode),
    "codex": ("~/.codex/config.toml", codex),
}


def skill() -> str:
    """The text of the shipped SKILL.md."""
    return files("llm_perf_opt.mcp_server").joinpath(SKILL_FILE).read_text(encoding="utf-8")


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(value, indent=2, allow_nan=False) + "\n"

"""A scripted client of `llm-perf mcp`: the official SDK over stdio, or in memory for tests that start nothing."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from mcp import Client, StdioServerParameters

from llm_perf_opt.mcp_server.allowed_paths import Roots
from llm_perf_opt.mcp_server.server import make_server
from tests.support.orchestrator import environment

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Reply:
    """The answer to one call; `text` is all a client is sent."""

    text: str
    is_error: bool

    @property
    def data(self) -> Any:
        return json.loads(self.text)


class ScriptedClient:
    """Calls tools by name."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def call(self, tool: str, /, **arguments: Any) -> Reply:
        done = await self._client.call_tool(tool, arguments)
        assert done.structured_content is None, "the text would be sent twice"
        (content,) = done.content
        assert content.type == "text"
        return Reply(text=content.text, is_error=bool(done.is_error))

    async def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in (await self._client.list_tools()).tools}

    async def instructions(self) -> str:
        return self._client.instructions or ""


def over_stdio(folder: Path, script: Callable[[ScriptedClient], Awaitable[T]], *options: str) -> T:
    """Start the real command as a client does, and run a script against it."""
    args = ["-m", "llm_perf_opt.cli", "mcp", "--root", str(folder), *options]

    async def run() -> T:
        server = StdioServerParameters(command=sys.executable, args=args, env=environment())
        async with Client(server) as client:
            return await script(ScriptedClient(client))

    return asyncio.run(run())


def in_memory(
    folders: Path | Sequence[Path], script: Callable[[ScriptedClient], Awaitable[T]], *, allows_run: bool = False
) -> T:
    """The same server inside this process."""
    roots = Roots.of([folders] if isinstance(folders, Path) else folders)

    async def run() -> T:
        async with Client(make_server(roots, allows_run=allows_run)) as client:
            return await script(ScriptedClient(client))

    return asyncio.run(run())


def ask(root: Path, tool: str, /, **arguments: Any) -> Reply:
    """One call."""

    async def script(client: ScriptedClient) -> Reply:
        return await client.call(tool, **arguments)

    return in_memory(root, script)

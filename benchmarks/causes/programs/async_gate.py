"""Sixteen requests at a time to a server, one of which a semaphore lets through."""

import asyncio
import os

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))
REQUESTS = 16


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    await asyncio.sleep(SECONDS / REQUESTS)
    writer.write(b"ok\n")
    await writer.drain()
    writer.close()


class Client:
    def __init__(self, port: int) -> None:
        self.port = port
        self.gate = asyncio.Semaphore(1)

    async def ask(self) -> bytes:
        async with self.gate:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(b"hello\n")
            line = await reader.readline()
            writer.close()
            return line


async def main() -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    client = Client(server.sockets[0].getsockname()[1])
    await asyncio.gather(*(client.ask() for _ in range(REQUESTS)))
    server.close()


asyncio.run(main())

"""One share of a load in its own process: nothing but sending, reading and timing runs on its event loop.

Records go to the parent in small batches, written by a thread, so a busy parent does not hold up the loop.
"""

import asyncio
import gc
import queue
import resource
import signal
import threading
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import aiohttp
import uvloop

from llm_perf_opt.serving.client.exchange import open_session
from llm_perf_opt.serving.client.lag import LagMeter
from llm_perf_opt.serving.client.protocol import ENDED, GO, READY, RECORDS, Share, ShareSummary, frame, read_start
from llm_perf_opt.serving.client.request import Exchange, RequestTemplate, Sender
from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.traffic.sessions import Turn

WATCH_S = 0.2
BATCH = 64
BATCH_S = 0.25
# The longest pause of one stream of a closed loop after failures, and after Retry-After.
LONGEST_PAUSE_S = 0.25
LONGEST_RETRY_S = 60.0
# Requests started in one turn of the event loop. More of them would wait for each other, and that time would be in
# their TTFT: 1,000 concurrent ones had a median TTFT of 130 ms instead of 102 (aiohttp 3.14, true value 100).
STARTS_PER_TURN = 2


def work(share: Share, taken: Any, connection: Connection) -> None:
    """The process: wait for the start, send the share, report. `taken` counts sessions and requests of all."""
    # An interrupt of the terminal reaches every process of the group; the parent says when to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    allow_open_files()
    gc.collect()
    gc.freeze()
    # A full collection takes as long as many tokens.
    gc.set_threshold(50_000, 50, 1000)
    uvloop.run(_Worker(share, taken, connection).run())


def allow_open_files() -> None:
    """As many open files as the hard limit allows: every stream needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def sleep_until(moment: float) -> None:
    """Not earlier than the moment: a timer of libuv is in whole milliseconds and may end before it."""
    await asyncio.sleep(max(0.0, moment - time.perf_counter()))
    while time.perf_counter() < moment:
        await asyncio.sleep(0)


class StartGate:
    """Lets few requests start in one turn of the event loop, in the order they ask."""

    def __init__(self, per_turn: int = STARTS_PER_TURN) -> None:
        self._free = per_turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def turn(self) -> None:
        loop = asyncio.get_running_loop()
        if self._free:
            self._free -= 1
        else:
            waiting = loop.create_future()
            self._waiting.append(waiting)
            await waiting
        loop.call_soon(self._next)

    def _next(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return
        self._free += 1


class _Outbox:
    """Writes frames from a thread."""

    def __init__(self, connection: Connection) -> None:
        self._frames: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._connection = connection
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        self._frames.put(data)

    def close(self) -> None:
        self._frames.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (data := self._frames.get()) is not None:
            try:
                self._connection.send_bytes(data)
            except OSError:
                # The parent, the only reader, has ended.
                return


class _Worker:
    def __init__(self, share: Share, taken: Any, connection: Connection) -> None:
        self._share, self._taken, self._connection = share, taken, connection
        self._load = share.load
        self._most_turns = share.traffic.most_turns
        self._batch: list[RequestRecord] = []
        self._failures = 0
        self._lag = LagMeter()
        self._gate = StartGate()

    async def run(self) -> None:
        self._stop = asyncio.Event()
        self._go = asyncio.get_running_loop().create_future()
        self._outbox = _Outbox(self._connection)
        threading.Thread(target=self._listen, args=(asyncio.get_running_loop(),), daemon=True).start()
        async with open_session(self._share.headers, traces=[sent_trace()]) as session:
            await rehearse(self._share.template)
            self._outbox.put(frame(READY))
            start = await self._go
            if start is not None:
                self._outbox.put(frame(ENDED, await self._work(session, start)))
        self._outbox.close()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """In a thread: the parent's messages; its end is a message too."""
        while True:
            try:
                data = self._connection.recv_bytes()
            except (EOFError, OSError):
                data = b""
            with suppress(RuntimeError):
                # The loop is closed: the share has ended, and its parent has closed the connection.
                loop.call_soon_threadsafe(self._receive, data)
            if data[:1] != GO:
                return

    def _receive(self, data: bytes) -> None:
        if data[:1] == GO:
            self._go.set_result(read_start(data))
            return
        self._stop.set()
        if not self._go.done():
            self._go.set_result(None)

    async def _work(self, session: aiohttp.ClientSession, start: float) -> ShareSummary:
        share, load = self._share, self._load
        self._start = start
        self._end = load.ramp_up_s + load.duration_s
        limit = load.max_concurrency
        # Every process has its part of the limit.
        self._slots = (
            None if limit is None else asyncio.Semaphore(max(1, len(range(share.number, limit, share.processes))))
        )
        self._sender = Sender(
            session=session, url=share.url, template=share.template, clean=share.redactor.text, start=start
        )
        await sleep_until(start)
        cpu = time.process_time()
        sending = asyncio.create_task(self._closed() if share.level.rate is None else self._open())
        background = [asyncio.create_task(one) for one in (self._watch(), self._lag.run(), self._flush())]
        stop = asyncio.create_task(self._stop.wait())
        await asyncio.wait([sending, stop], timeout=self._end + load.drain_s, return_when=asyncio.FIRST_COMPLETED)
        worked_s, cpu_s = time.perf_counter() - start, time.process_time() - cpu
        is_over_time = not sending.done() and not stop.done()
        left = self._leave()
        for task in (*background, stop, sending):
            task.cancel()
        results = await asyncio.gather(sending, *background, stop, return_exceptions=True)
        error = next((one for one in results if isinstance(one, Exception)), None)
        self._send_batch()
        return ShareSummary(
            worked_s=worked_s,
            cpu_s=cpu_s,
            lag=self._lag.result(),
            left=left,
            is_over_time=is_over_time,
            error=None if error is None else f"{type(error).__name__}: {error}",
        )

    async def _closed(self) -> None:
        share = self._share

        async def stream(number: int) -> None:
            await asyncio.sleep(self._load.ramp_up_s * number / (share.level.concurrency or 1))
            while (session := self._take()) is not None:
                pause_s = await self._session(session, None)
                if pause_s:
                    await asyncio.sleep(min(pause_s, max(0.0, self._end - self._elapsed())))

        numbers = range(share.number, share.level.concurrency or 1, share.processes)
        await asyncio.gather(*(stream(number) for number in numbers))

    def _take(self) -> int | None:
        """The number of the next session, or None when all requests were taken or the time is over."""
        if self._elapsed() >= self._end:
            return None
        with self._taken.get_lock():
            sessions, requests = self._taken
            if requests >= self._load.requests:
                return None
            self._taken[0] = sessions + 1
            if self._elapsed() >= self._load.ramp_up_s:
                self._taken[1] = requests + len(self._share.traffic.session(sessions).turns)
            return int(sessions)

    async def _open(self) -> None:
        tasks: set[asyncio.Task[float]] = set()
        try:
            for number, at in self._share.arrivals:
                planned = self._start + at
                await sleep_until(planned)
                task = asyncio.create_task(self._limited(number, planned))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            if tasks:
                await asyncio.gather(*tasks)
        finally:
            for task in tuple(tasks):
                task.cancel()

    async def _limited(self, number: int, planned: float) -> float:
        if self._slots is None:
            return await self._session(number, planned)
        async with self._slots:
            # Lateness is the client's own: waiting for a slot is what the user asked for.
            return await self._session(number, max(planned, time.perf_counter()))

    async def _session(self, number: int, planned: float | None) -> float:
        """All turns of a session; the seconds to wait before the next request of this stream."""
        session = self._share.traffic.session(number)
        before = [] if session.system is None else [("system", session.system)]
        for place, turn in enumerate(session.turns):
            if place:
                await asyncio.sleep(turn.think_s)
                planned = None
                if self._elapsed() >= self._end:
                    return 0.0
            await self._gate.turn()
            index = number * self._most_turns + place
            is_last = place == len(session.turns) - 1
            record, text, retry_s = await self._sender.send(
                turn, index=index, before=before, keep_text=not is_last, planned=planned, number=place
            )
            self._keep(record)
            if record.status != "ok":
                self._failures += 1
                # A server that refuses connections is not asked as fast as it refuses.
                pause_s = min(self._failures * 0.01, LONGEST_PAUSE_S) if self._failures > 1 else 0.0
                return pause_s if retry_s is None else max(pause_s, min(retry_s, LONGEST_RETRY_S))
            self._failures = 0
            before += [("user", turn.text), ("assistant", text)]
        return 0.0

    def _elapsed(self) -> float:
        return time.perf_counter() - self._start

    def _keep(self, record: RequestRecord) -> None:
        self._batch.append(record)
        if len(self._batch) >= BATCH:
            self._send_batch()

    def _send_batch(self) -> None:
        if self._batch:
            self._outbox.put(frame(RECORDS, self._batch))
            self._batch = []

    async def _flush(self) -> None:
        while True:
            await asyncio.sleep(BATCH_S)
            self._send_batch()

    async def _watch(self) -> None:
        """End requests that were silent for too long: one pass over all of them instead of a timer for each packet."""
        while True:
            await asyncio.sleep(WATCH_S)
            now = time.perf_counter()
            for exchange in tuple(self._sender.under_way.values()):
                why = exchange.why_late(now, self._load.stall_s)
                if why is not None:
                    exchange.end(why)

    def _leave(self) -> int:
        """Record what is under way when the load ends: neither a success nor a failure of the server."""
        under_way = sorted(self._sender.under_way.items())
        for index, exchange in under_way:
            record = RequestRecord(
                index=index,
                started_s=exchange.began - self._start,
                status="unfinished",
                error="under way when the load ended",
                turn=index % self._most_turns,
                request_id=self._share.template.request_id(index),
            )
            self._keep(record)
        return len(under_way)


def sent_trace() -> aiohttp.TraceConfig:
    """Notes when a request has been written, which separates connection from answer time, and whether it was new."""

    async def sent(session: aiohttp.ClientSession, context: Any, params: aiohttp.TraceRequestChunkSentParams) -> None:
        exchange: Exchange = context.trace_request_ctx
        exchange.is_sent = True

    async def reused(
        session: aiohttp.ClientSession, context: Any, params: aiohttp.TraceConnectionReuseconnParams
    ) -> None:
        context.trace_request_ctx.is_reused = True

    trace = aiohttp.TraceConfig()
    trace.on_request_chunk_sent.append(sent)
    trace.on_connection_reuseconn.append(reused)
    return trace


async def rehearse(template: RequestTemplate) -> None:
    """Send one request to our own server: the first one through any code takes some 20 ms more than the next."""
    event = b'data: {"choices": [{"text": "a", "finish_reason": "length"}]}\n\ndata: [DONE]\n\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(event)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head + event)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, open_session({}, traces=[sent_trace()]) as session:
        port = server.sockets[0].getsockname()[1]
        sender = Sender(session=session, url=f"http://127.0.0.1:{port}", template=template, clean=str)
        await sender.send(Turn(text="a"))

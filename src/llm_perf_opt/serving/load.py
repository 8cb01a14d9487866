"""Sends many requests: at a rate whatever the server does (open loop), or so many at once (closed loop).

What came of each request is kept in `LoadRun.records` as soon as it ended, so that an interrupt, a dead server or an
error loses nothing.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from llm_perf_opt.serving.client import Ask, open_client, send
from llm_perf_opt.serving.config import LoadSection
from llm_perf_opt.serving.counters import CounterSample, parse_counters
from llm_perf_opt.serving.prompts import LoadPrompts
from llm_perf_opt.serving.records import LoadRun, RequestRecord
from llm_perf_opt.serving.schedule import arrival_times

WATCH_S = 0.25
DYING_S = 0.3
COUNTERS_S = 1.0
COUNTERS_TIMEOUT_S = 10.0
# So many failures in a row with nothing between them: the server is gone or refuses everything.
FAILURES_IN_A_ROW = 50
LARGEST_PAGE = 8 << 20


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go. `trouble` says why the server can answer no more, or None."""

    url: str
    headers: dict[str, str]
    metrics_path: str | None
    trouble: Callable[[], str | None]


def run_level(
    run: LoadRun,
    target: Target,
    ask: Ask,
    prompts: LoadPrompts,
    load: LoadSection,
    *,
    on_tick: Callable[[float, int], None] = lambda elapsed_s, done: None,
) -> LoadRun:
    """Drive one level to its end; bounded by count and time whatever the server does."""
    asyncio.run(_Driver(run, target, ask, prompts, load, on_tick).drive())
    return run


def send_one_by_one(target: Target, ask: Ask, texts: list[str], *, stall_s: float) -> list[RequestRecord]:
    """Requests one after the other, as for warming up; ends at the first that fails."""

    async def work() -> list[RequestRecord]:
        records: list[RequestRecord] = []
        async with open_client(target.url, stall_s=stall_s, headers=target.headers) as client:
            for index, text in enumerate(texts):
                records.append(await send(client, ask, text, index=index))
                if records[-1].status != "ok":
                    break
        return records

    return asyncio.run(work())


class _Driver:
    def __init__(
        self,
        run: LoadRun,
        target: Target,
        ask: Ask,
        prompts: LoadPrompts,
        load: LoadSection,
        on_tick: Callable[[float, int], None],
    ) -> None:
        self._run, self._target, self._ask = run, target, ask
        self._prompts, self._load, self._on_tick = prompts, load, on_tick
        self._start = 0.0
        self._cpu_start = 0.0
        self._sent: dict[int, float] = {}
        self._failures = 0
        self._next = 0

    async def drive(self) -> None:
        headers, stall_s = self._target.headers, self._load.stall_s
        async with open_client(self._target.url, stall_s=stall_s, headers=headers) as client:
            self._start, self._cpu_start = time.perf_counter(), time.process_time()
            work = asyncio.create_task(self._open(client) if self._run.level.rate is not None else self._closed(client))
            counters = asyncio.create_task(self._count(client))
            work.add_done_callback(self._stop_clock)
            try:
                await self._watch(work)
            finally:
                await _ended(work)
                await _ended(counters)
                self._close_books()

    def _stop_clock(self, work: "asyncio.Task[None]") -> None:
        self._run.duration_s = time.perf_counter() - self._start
        self._run.client_cpu_s = time.process_time() - self._cpu_start

    async def _watch(self, work: "asyncio.Task[None]") -> None:
        """Until the work is done, its time is over, or the server is."""
        limit = self._load.duration_s + self._load.drain_s
        while not work.done():
            await asyncio.wait([work], timeout=WATCH_S)
            elapsed = time.perf_counter() - self._start
            self._on_tick(elapsed, len(self._run.records))
            if work.done():
                break
            self._run.stopped = self._trouble(elapsed, limit)
            if self._run.stopped is not None:
                work.cancel()
                return
        # An error of ours must not be lost.
        work.result()
        if self._failures:
            # Connections are lost a moment before the process is seen to be gone.
            await asyncio.sleep(DYING_S)
            self._run.stopped = self._target.trouble()

    def _trouble(self, elapsed_s: float, limit_s: float) -> str | None:
        dead = self._target.trouble()
        if dead is not None:
            return dead
        if self._failures >= FAILURES_IN_A_ROW:
            return f"the last {self._failures} requests all failed ({self._run.records[-1].error})"
        if elapsed_s > limit_s:
            left = len(self._sent)
            return f"{left} request(s) had not ended {self._load.drain_s:g} s (load.drain_s) after the last was sent"
        return None

    async def _open(self, client: httpx.AsyncClient) -> None:
        level, load = self._run.level, self._load
        assert level.rate is not None
        times = arrival_times(
            level.rate, arrival=load.arrival, requests=load.requests, duration_s=load.duration_s, seed=load.seed
        )
        tasks: set[asyncio.Task[None]] = set()
        try:
            for at in times:
                await asyncio.sleep(max(0.0, self._start + at - time.perf_counter()))
                task = asyncio.create_task(self._one(client))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
            if tasks:
                await asyncio.gather(*tasks)
        finally:
            for task in tuple(tasks):
                task.cancel()

    async def _closed(self, client: httpx.AsyncClient) -> None:
        async def worker() -> None:
            while self._next < self._load.requests and time.perf_counter() - self._start < self._load.duration_s:
                await self._one(client)

        await asyncio.gather(*(worker() for _ in range(self._run.level.concurrency or 1)))

    async def _one(self, client: httpx.AsyncClient) -> None:
        index, self._next = self._next, self._next + 1
        self._sent[index] = time.perf_counter() - self._start
        record = await send(client, self._ask, self._prompts.text(index), index=index, start=self._start)
        del self._sent[index]
        self._run.records.append(record)
        self._failures = 0 if record.status == "ok" else self._failures + 1
        if self._failures > 1:
            # Not as fast as a dead server refuses.
            await asyncio.sleep(min(self._failures * 0.01, WATCH_S))

    async def _count(self, client: httpx.AsyncClient) -> None:
        """Look at the server's counters once a second; a server without them is asked once."""
        path = self._target.metrics_path
        while path is not None:
            at = time.perf_counter() - self._start
            try:
                response = await client.get(path, timeout=COUNTERS_TIMEOUT_S)
            except httpx.HTTPError:
                response = None
            if response is None or response.status_code != httpx.codes.OK or len(response.content) > LARGEST_PAGE:
                values = {}
            else:
                values = parse_counters(response.text)
            if values:
                self._run.counters.append(CounterSample(at_s=at, values=values))
            elif not self._run.counters:
                return
            await asyncio.sleep(COUNTERS_S)

    def _close_books(self) -> None:
        """What was under way is neither a success nor a failure of the server's own, and is shown as what it is."""
        for index, started_s in sorted(self._sent.items()):
            text = "under way when the load ended"
            self._run.records.append(RequestRecord(index=index, started_s=started_s, status="unfinished", error=text))
        self._sent.clear()


async def _ended(task: "asyncio.Task[None]") -> None:
    """Wait for a task's end; what it was cancelled by or failed with is told elsewhere."""
    if not task.done():
        task.cancel()
    await asyncio.wait([task])

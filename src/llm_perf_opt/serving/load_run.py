"""Drive one level of a load: start the client processes, collect their records, watch the server and the time.

Every record is kept in `LoadRun.records` soon after its request ended, so an interrupt, a dead server or an error loses
nothing. The server's metrics are read and parsed here, apart from the event loops that take times.
"""

import asyncio
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import Any

from llm_perf_opt.errors import ToolError
from llm_perf_opt.serving.client.exchange import NoAnswer, exchange, open_session
from llm_perf_opt.serving.client.lag import LoopLag, joined
from llm_perf_opt.serving.client.protocol import (
    ENDED,
    GO,
    READY,
    RECORDS,
    STOP,
    Share,
    ShareSummary,
    frame,
    read_records,
    read_summary,
)
from llm_perf_opt.serving.client.request import RequestTemplate, Sender
from llm_perf_opt.serving.client.worker import sent_trace, work
from llm_perf_opt.serving.counters import CounterSample, parse_counters
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.schedule import session_arrivals
from llm_perf_opt.serving.serving_config import LoadSection
from llm_perf_opt.serving.traffic.sessions import Traffic, Turn
from llm_perf_opt.system.redact import Redactor

WATCH_S = 0.25
DYING_S = 0.3
START_S = 60.0
# How long a process may take to send its last records after it was asked to stop.
STOPPING_S = 3.0
LEAD_S = 0.05
COUNTERS_S = 1.0
DECIDED_S = 1.0
COUNTERS_TIMEOUT_S = 10.0
LAST_PAGE_S = 2.0
LARGEST_PAGE = 8 << 20
# Consecutive failures: the server has gone or refuses everything.
FAILURES_IN_A_ROW = 50
# One process reads 20,000 to 30,000 events a second; 1,000 streams of 20 tokens a second are as many.
STREAMS_PER_PROCESS = 512
REQUESTS_PER_S_PER_PROCESS = 200.0


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where requests go. `trouble` says why the server can no longer answer, or None."""

    url: str
    headers: dict[str, str]
    metrics_path: str | None
    trouble: Callable[[], str | None]
    redactor: Redactor = field(default_factory=Redactor)


def run_level(
    run: LoadRun,
    target: Target,
    template: RequestTemplate,
    traffic: Traffic,
    load: LoadSection,
    *,
    on_tick: Callable[[float, int], None] = lambda elapsed_s, done: None,
    is_decided: Callable[[LoadRun], str | None] = lambda run: None,
) -> LoadRun:
    """Drive one level to its end; bounded by count and time regardless of the server.

    `is_decided` is called once a second; where it gives a reason the level ends there.
    """
    run.processes = load.processes or processes_for(run, load)
    arrivals = session_arrivals(load, run.level.rate, traffic) if run.level.rate is not None else ()
    shares = [
        Share(
            number=number,
            processes=run.processes,
            url=target.url.rstrip("/"),
            headers=target.headers,
            template=template,
            traffic=traffic,
            load=load,
            level=run.level,
            arrivals=arrivals[number :: run.processes],
            redactor=target.redactor,
        )
        for number in range(run.processes)
    ]
    _Driver(run, target, load, on_tick, is_decided).drive(shares)
    return run


def processes_for(run: LoadRun, load: LoadSection) -> int:
    """Client processes for a level: more than one where one core is not enough, and never all cores."""
    cores = len(os.sched_getaffinity(0))
    streams = (run.level.concurrency or 0) / STREAMS_PER_PROCESS
    needed = max(streams, (run.level.rate or 0.0) / REQUESTS_PER_S_PER_PROCESS)
    return max(1, min(math.ceil(needed), cores - 1))


def send_one_by_one(
    target: Target,
    template: RequestTemplate,
    turns: Sequence[Turn],
    *,
    stall_s: float,
    most_s: float,
) -> list[RequestRecord]:
    """Requests one after the other, as for warming up, of at most `most_s` each; ends at the first that fails."""

    async def work() -> list[RequestRecord]:
        records: list[RequestRecord] = []
        async with open_session(target.headers, traces=[sent_trace()]) as session:
            sender = Sender(session=session, url=target.url.rstrip("/"), template=template, clean=target.redactor.text)
            for index, turn in enumerate(turns):
                watch = asyncio.create_task(_watch_one(sender, stall_s, most_s))
                record, _, _ = await sender.send(turn, index=index)
                watch.cancel()
                records.append(record)
                if record.status != "ok":
                    break
        return records

    return asyncio.run(work())


async def _watch_one(sender: Sender, stall_s: float, most_s: float) -> None:
    begun = time.perf_counter()
    while True:
        await asyncio.sleep(WATCH_S / 5)
        now = time.perf_counter()
        for one in tuple(sender.under_way.values()):
            why = one.why_late(now, stall_s)
            if why is None and now - begun > most_s:
                why = f"the request had not ended after {most_s:g} s (load.duration_s + load.drain_s)"
            if why is not None:
                one.end(why)


class _Driver:
    def __init__(
        self,
        run: LoadRun,
        target: Target,
        load: LoadSection,
        on_tick: Callable[[float, int], None],
        is_decided: Callable[[LoadRun], str | None],
    ) -> None:
        self._run, self._target, self._load, self._on_tick = run, target, load, on_tick
        self._is_decided = is_decided
        self._failures = 0
        self._begun = 0.0
        self._summaries: list[ShareSummary] = []
        self._open: dict[Connection, multiprocessing.process.BaseProcess] = {}

    def drive(self, shares: Sequence[Share]) -> None:
        context = multiprocessing.get_context("spawn")
        taken = context.Array("q", 2)
        scraper: _Scraper | None = None
        try:
            for share in shares:
                self._start(context, share, taken)
            self._await_ready()
            self._begun = time.perf_counter() + LEAD_S
            for connection in self._open:
                connection.send_bytes(frame(GO, self._begun))
            scraper = _Scraper(self._run, self._target, self._begun)
            self._watch()
        finally:
            if scraper is not None:
                scraper.close()
            self._close()
            self._sum_up()
        if self._failures and self._run.stopped is None:
            # Connections are lost a moment before the process is seen to be gone.
            time.sleep(DYING_S)
            self._run.stopped = self._target.trouble()

    def _start(self, context: Any, share: Share, taken: Any) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(share, taken, theirs), daemon=True, name="llm-perf-load")
        process.start()
        theirs.close()
        self._open[ours] = process

    def _await_ready(self) -> None:
        end = time.monotonic() + START_S
        waiting = set(self._open)
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, end - time.monotonic()))
            if not ready:
                raise ToolError(f"the load client's processes did not start within {START_S:g} s")
            for connection in ready:
                assert isinstance(connection, Connection)
                try:
                    data = connection.recv_bytes()
                except EOFError as error:
                    process = self._open[connection]
                    process.join(STOPPING_S)
                    raise ToolError(f"a process of the load client ended with exit code {process.exitcode}") from error
                if data[:1] == READY:
                    waiting.discard(connection)

    def _watch(self) -> None:
        """Until all shares have ended, their time is over, or the server has."""
        load = self._load
        limit_s = load.ramp_up_s + load.duration_s + load.drain_s + STOPPING_S
        due = ask = 0.0
        while self._open:
            self._receive(WATCH_S)
            elapsed = time.perf_counter() - self._begun
            if elapsed < due:
                continue
            due = elapsed + WATCH_S
            self._on_tick(elapsed, len(self._run.records))
            if self._open and self._run.stopped is None:
                self._run.stopped = self._trouble()
                if self._run.stopped is not None:
                    return
            if elapsed >= ask:
                ask = elapsed + DECIDED_S
                self._run.cut_short = self._is_decided(self._run)
                if self._run.cut_short is not None:
                    return
            if elapsed > limit_s:
                self._run.stopped = f"the load client did not end {load.drain_s:g} s (load.drain_s) after its time"
                return

    def _trouble(self) -> str | None:
        dead = self._target.trouble()
        if dead is None and self._failures >= FAILURES_IN_A_ROW:
            return f"the last {self._failures} requests all failed ({self._run.records[-1].error})"
        return dead

    def _receive(self, timeout_s: float) -> None:
        for connection in wait(list(self._open), timeout=timeout_s):
            assert isinstance(connection, Connection)
            try:
                data = connection.recv_bytes()
            except (EOFError, OSError):
                self._lost(connection)
                continue
            if data[:1] == RECORDS:
                self._keep(read_records(data))
            elif data[:1] == ENDED:
                self._summaries.append(read_summary(data))
                self._forget(connection)

    def _keep(self, records: Sequence[RequestRecord]) -> None:
        ramp_s = self._load.ramp_up_s
        for record in records:
            self._failures = self._failures + 1 if record.status == "failed" else 0
            self._run.records.append(replace(record, is_ramp=True) if record.started_s < ramp_s else record)

    def _lost(self, connection: Connection) -> None:
        process = self._open[connection]
        process.join(STOPPING_S)
        if self._run.stopped is None:
            self._run.stopped = f"a process of the load client ended with exit code {process.exitcode}"
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        process = self._open.pop(connection)
        connection.close()
        process.join(STOPPING_S)
        if process.is_alive():
            process.kill()

    def _close(self) -> None:
        """Ask what still runs to stop, keep its last records, then end it."""
        for connection in self._open:
            try:
                connection.send_bytes(frame(STOP))
            except OSError:
                continue
        end = time.monotonic() + STOPPING_S
        while self._open and time.monotonic() < end:
            self._receive(WATCH_S)
        for connection, process in tuple(self._open.items()):
            process.kill()
            process.join()
            connection.close()
        self._open.clear()

    def _sum_up(self) -> None:
        run, load = self._run, self._load
        ended = self._summaries
        run.begun_s = self._begun or None
        run.duration_s = max((one.worked_s for one in ended), default=time.perf_counter() - self._begun)
        run.ended_s, run.duration_s = run.duration_s, max(0.0, run.duration_s - load.ramp_up_s)
        run.client_cpu_s = max((one.cpu_s for one in ended), default=0.0)
        lags: list[LoopLag] = [one.lag for one in ended if one.lag is not None]
        run.lag = joined(lags)
        run.records.sort(key=lambda record: record.started_s)
        error = next((one.error for one in ended if one.error is not None), None)
        if error is not None and run.stopped is None:
            run.stopped = f"the load client failed ({error})"
        left = sum(one.left for one in ended)
        if run.stopped is None and any(one.is_over_time for one in ended):
            run.stopped = f"{left} requests had not ended {load.drain_s:g} s (load.drain_s) after the last was sent"


class _Scraper:
    """Reads the server's counters once a second, in a thread; a server without them is queried once."""

    def __init__(self, run: LoadRun, target: Target, begun: float) -> None:
        self._run, self._target, self._begun = run, target, begun
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        if target.metrics_path is not None:
            self._thread.start()

    def close(self) -> None:
        """Read the page once more, so that the totals are those of the whole level, and end."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(LAST_PAGE_S)

    def _work(self) -> None:
        url = self._target.url.rstrip("/") + (self._target.metrics_path or "")
        is_last = False
        # Before the start of the load there is nothing to sample.
        self._stop.wait(self._begun - time.perf_counter())
        while not is_last:
            is_last = self._stop.is_set()
            at = time.perf_counter() - self._begun
            values = self._values(url)
            if values:
                self._run.counters.append(CounterSample(at_s=at, values=values))
            elif not self._run.counters:
                return
            self._stop.wait(COUNTERS_S)

    def _values(self, url: str) -> dict[str, float]:
        try:
            answer = exchange(url, headers=self._target.headers, timeout_s=COUNTERS_TIMEOUT_S, most_bytes=LARGEST_PAGE)
        except NoAnswer:
            return {}
        return parse_counters(answer.body.decode("utf-8", "replace")) if answer.status == 200 else {}

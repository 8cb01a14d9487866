"""A server with continuous batching in simulated time: its capacity under limits is known, and a load takes no time.

Every step takes `STEP_S`, `SEQUENCE_S` more for each sequence in the batch and `PREFILL_S` more for each that joins it.
A sequence leaves after `TOKENS` steps. At most `MOST_SEQUENCES` run; the others wait in the order they came. Steps vary
by a tenth.
"""

import random
from collections import deque

from llm_perf_opt.serving.counters import CounterSample
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.schedule import arrival_times
from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection

STEP_S, SEQUENCE_S, PREFILL_S = 0.010, 0.0004, 0.004
TOKENS = 32
MOST_SEQUENCES = 48


def simulate(level: LoadLevel, load: LoadSection, *, seed: int) -> LoadRun:
    """One level: what a client would have recorded."""
    draw = random.Random(seed)
    arrivals: deque[float] = deque()
    if level.rate is not None:
        arrivals.extend(
            arrival_times(level.rate, arrival="poisson", requests=load.requests, duration_s=load.duration_s, seed=seed)
        )
    else:
        arrivals.extend([0.0] * min(level.concurrency or 1, load.requests))
    total = len(arrivals) if level.rate is not None else load.requests
    sent = len(arrivals)
    run = LoadRun(level=level)
    waiting: deque[tuple[int, float]] = deque()
    # Those that joined in one step leave in one step: when that is, when their first token came, and who they are.
    running: deque[tuple[int, float, list[tuple[int, float]]]] = deque()
    now, index, step, batch, seen_at = 0.0, 0, 0, 0, -1.0
    while len(run.records) < total:
        while arrivals and arrivals[0] <= now:
            waiting.append((index, arrivals.popleft()))
            index += 1
        if not waiting and not running:
            now = arrivals[0]
            continue
        joining = [waiting.popleft() for _ in range(min(len(waiting), MOST_SEQUENCES - batch))]
        batch += len(joining)
        if now - seen_at >= 1.0:
            seen_at = now
            values = {"running": float(batch), "waiting": float(len(waiting)), "KV cache use": batch / 64}
            run.counters.append(CounterSample(at_s=now, values=values))
        now += (STEP_S + SEQUENCE_S * batch + PREFILL_S * len(joining)) * draw.uniform(0.9, 1.1)
        step += 1
        if joining:
            running.append((step + TOKENS - 1, now, joining))
        if not running or running[0][0] != step:
            continue
        _, first_s, leaving = running.popleft()
        batch -= len(leaving)
        for number, sent_s in leaving:
            run.records.append(_record(number, sent_s, first_s, now))
            if level.rate is None and sent < total and now < load.duration_s:
                arrivals.append(now)
                sent += 1
            elif level.rate is None and now >= load.duration_s:
                total = sent
    run.duration_s = now
    run.records.sort(key=lambda record: record.started_s)
    return run


def _record(index: int, sent_s: float, first_s: float, now: float) -> RequestRecord:
    return RequestRecord(
        index=index,
        started_s=sent_s,
        status="ok",
        ttft_s=first_s - sent_s,
        latency_s=now - sent_s,
        prompt_tokens=100,
        output_tokens=TOKENS,
        counted_by="usage",
        late_s=0.0,
    )

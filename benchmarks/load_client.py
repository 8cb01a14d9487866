"""What `llm-perf bench`'s client costs and adds: itself against a bare asyncio client, on one server, interleaved.

    python benchmarks/load_client.py [--streams 1,64,256,1000,2000] [--rounds 3]

The server (uvloop, its own process) answers every request after TTFT_S with TOKENS events, one each GAP_S, like
an engine whose step takes as long. Two clients load it interleaved, both in a closed loop of N streams with
REQUESTS_PER_STREAM requests each and with the same number of processes: ours as `llm-perf bench` runs it (worker
process, synthetic prompts, records), and 40 lines of asyncio streams. With root and `chrt` all three run with real-time
priority, so that whatever else the machine does is not in the difference.

Printed and written to benchmarks/results/load_client.json: median and p99 of TTFT, ITL and E2E of both, and CPU per
request. Exit code 1 where a median or p99 of ours is above the bare client's by more than 5 % and 3 ms, or our CPU per
request is more than twice the bare client's. A time of ours below the bare client's is not a failure: the server's own
times are known, and are the smallest possible. Takes about five minutes.
"""

import argparse
import asyncio
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "src"))

RESULTS = Path(__file__).parent / "results" / "load_client.json"
TTFT_S, TOKENS = 0.1, 16
REQUESTS_PER_STREAM = 4
LEAST_REQUESTS = 20
# Both clients keep within one core: 2,000 streams of ten tokens a second are 20,000 events a second.
GAPS_S = {1: 0.02, 64: 0.05, 256: 0.05, 1000: 0.1, 2000: 0.2}
AIM, AIM_MS, AIM_CPU = 0.05, 3.0, 2.0
BODY = {"model": "m", "prompt": "time year people way " * 8, "max_tokens": TOKENS, "stream": True}


class Served(asyncio.Protocol):
    """One connection of the server."""

    HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    def __init__(self, gap_s: float) -> None:
        self.gap_s, self.rest = gap_s, b""
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.rest += data
        at = self.rest.find(b"\r\n\r\n")
        if at < 0:
            return
        head = self.rest[:at].lower()
        if head.startswith(b"get "):
            self.rest = b""
            answer = b'{"data": [{"id": "m"}]}'
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer))
            return
        size = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(self.rest) < at + 4 + size:
            return
        self.rest, self.begun, self.sent = b"", self.loop.time(), 0
        self.loop.call_at(self.begun + TTFT_S, self.token)

    def token(self) -> None:
        if self.transport.is_closing():
            return
        self.sent += 1
        if self.sent < TOKENS:
            self.transport.write((self.HEAD if self.sent == 1 else b"") + EVENT)
            self.loop.call_at(self.begun + TTFT_S + self.sent * self.gap_s, self.token)
        else:
            self.transport.write(LAST)


def chunk(event: str) -> bytes:
    data = f"data: {event}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(data), data)


EVENT = chunk('{"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": " word"}]}')
LAST = (
    chunk('{"id": "cmpl-1", "choices": [{"index": 0, "text": " word", "finish_reason": "length"}]}')
    + chunk(f'{{"choices": [], "usage": {{"prompt_tokens": 32, "completion_tokens": {TOKENS}}}}}')
    + chunk("[DONE]")
    + b"0\r\n\r\n"
)


def serve(port: int, gap_s: float) -> None:
    import uvloop

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Served(gap_s), "127.0.0.1", port, backlog=4096)
        await server.serve_forever()

    uvloop.run(run())


def bare(port: int, streams: int, requests: int) -> dict[str, Any]:
    """The bare client: asyncio streams, a connection for each stream."""
    body = json.dumps(BODY).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    times: list[tuple[float, list[float]]] = []
    left = requests

    async def stream() -> None:
        nonlocal left
        reader = writer = None
        while left > 0:
            left -= 1
            sent = time.perf_counter()
            if reader is None or writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head % len(body) + body)
            await reader.readuntil(b"\r\n\r\n")
            arrived: list[float] = []
            while size := int(await reader.readline(), 16):
                event = (await reader.readexactly(size + 2))[6:-4]
                if event != b"[DONE]" and json.loads(event)["choices"]:
                    arrived.append(time.perf_counter())
            await reader.readline()
            times.append((sent, arrived))

    async def run() -> None:
        await asyncio.gather(*(stream() for _ in range(streams)))

    cpu = time.process_time()
    asyncio.run(run())
    cpu = time.process_time() - cpu
    ttft = [arrived[0] - sent for sent, arrived in times]
    itl = [after - before for _, arrived in times for before, after in pairwise(arrived)]
    e2e = [arrived[-1] - sent for sent, arrived in times]
    return {"cpu_ms": 1e3 * cpu / requests, **figures(ttft, itl, e2e)}


def ours(port: int, streams: int, requests: int) -> dict[str, Any]:
    from llm_perf_opt.serving.client.request import RequestTemplate
    from llm_perf_opt.serving.load_records import LoadRun
    from llm_perf_opt.serving.load_run import Target, run_level
    from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection
    from llm_perf_opt.serving.traffic.synthetic import SyntheticTraffic

    template = RequestTemplate(
        model="m", api="completions", output_tokens=TOKENS, temperature=0, seed=0, ignore_eos=False
    )
    load = LoadSection(concurrency=(streams,), requests=requests, duration_s=600, processes=1)
    target = Target(url=f"http://127.0.0.1:{port}", headers={}, metrics_path=None, trouble=lambda: None)
    run = LoadRun(level=LoadLevel(concurrency=streams))
    run_level(run, target, template, SyntheticTraffic(words=32), load)
    good = [record for record in run.records if record.status == "ok"]
    if len(good) != requests or run.lag is None:
        raise SystemExit(f"{len(good)} of {requests} requests succeeded ({run.stopped})")
    found = figures(
        [record.ttft_s or 0.0 for record in good],
        [gap for record in good for gap in record.gaps_s],
        [record.latency_s or 0.0 for record in good],
    )
    return {"cpu_ms": 1e3 * run.client_cpu_s / requests, "lag_mean_ms": 1e3 * run.lag.mean_s, **found}


def figures(ttft: list[float], itl: list[float], e2e: list[float]) -> dict[str, float]:
    found = {}
    for name, values in (("ttft", ttft), ("itl", itl), ("e2e", e2e)):
        ordered = sorted(1e3 * value for value in values)
        found[f"{name}_median_ms"] = statistics.median(ordered)
        found[f"{name}_p99_ms"] = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return found


SIDES = {"bare": bare, "ours": ours}


def realtime(command: list[str]) -> list[str]:
    return ["chrt", "-r", "1", *command] if shutil.which("chrt") and os.geteuid() == 0 else command


def measure(streams: int, rounds: int) -> dict[str, Any]:
    """Both sides interleaved against one server; of each figure the median of the rounds."""
    gap_s = GAPS_S.get(streams, 0.1)
    requests = max(
        LEAST_REQUESTS, REQUESTS_PER_STREAM * streams if streams > 256 else 3 * REQUESTS_PER_STREAM * streams
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__]
    server = subprocess.Popen(realtime([*command, "--serve", str(port), "--gap", str(gap_s)]))
    try:
        await_port(port)
        seen: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for number in range(rounds):
            for side in sorted(SIDES, reverse=bool(number % 2)):
                words = [*command, "--side", side, str(port), str(streams), str(requests)]
                done = subprocess.run(realtime(words), capture_output=True, text=True, check=True, timeout=600)
                seen[side].append(json.loads(done.stdout))
    finally:
        server.kill()
        server.wait()
    sides = {
        side: {name: round(statistics.median(one[name] for one in found), 3) for name in found[0]}
        for side, found in seen.items()
    }
    true = {"ttft": 1e3 * TTFT_S, "itl": 1e3 * gap_s, "e2e": 1e3 * (TTFT_S + (TOKENS - 1) * gap_s)}
    return {"streams": streams, "requests": requests, "server_ms": true, **sides}


def await_port(port: int) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit("the server did not start")


def misses(level: dict[str, Any]) -> list[str]:
    ours, bare = level["ours"], level["bare"]
    found = [
        f"{level['streams']} streams, {name}: {ours[name]} against {bare[name]}"
        for name in bare
        if name != "cpu_ms" and ours[name] - bare[name] > max(AIM_MS, AIM * bare[name])
    ]
    if ours["cpu_ms"] > AIM_CPU * bare["cpu_ms"]:
        found.append(f"{level['streams']} streams, CPU per request: {ours['cpu_ms']} ms against {bare['cpu_ms']} ms")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default=",".join(map(str, GAPS_S)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--gap", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--side", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if args.serve is not None:
        serve(args.serve, args.gap)
        return 0
    if args.side is not None:
        side, *numbers = args.side
        print(json.dumps(SIDES[side](*map(int, numbers))))
        return 0
    levels = []
    for streams in map(int, args.streams.split(",")):
        levels.append(measure(streams, args.rounds))
        print(json.dumps(levels[-1]), file=sys.stderr, flush=True)
    found = [text for level in levels for text in misses(level)]
    document = {"ttft_ms": 1e3 * TTFT_S, "tokens": TOKENS, "rounds": args.rounds, "misses": found, "levels": levels}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=2))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

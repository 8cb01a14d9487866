"""An OpenAI-compatible server that behaves as configured: in a thread for quick tests, or as its own program.

`python fake_server.py --port N --host H [--fault F]`; faults: never_ready, dies_on_start, dies_under_load,
every_tenth_500, stalls, busy, echoes, ignores_sigterm, tells_all, slow_start.
"""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

METRICS = """\
# HELP vllm:num_requests_running Requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="fake"} 3.0
vllm:num_requests_running{engine="1",model_name="fake"} 2.0
vllm:num_requests_waiting{engine="0",model_name="fake"} 1.0
vllm:kv_cache_usage_perc{engine="0",model_name="fake"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="fake"} 0.75
vllm:num_preemptions_total{engine="0",model_name="fake"} 7.0
"""


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0, *, fault: str = "", gap_s: float = 0.002, usage: bool = True) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.fault, self.gap_s, self.usage = fault, gap_s, usage
        self.asked: list[dict[str, Any]] = []
        self.connections = 0
        self.lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not news."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # As real servers do: else a token waits up to 40 ms for the client's acknowledgement of the one before.
    disable_nagle_algorithm = True
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(503 if self.server.fault == "never_ready" else 200, b"")
        elif self.path == "/v1/models":
            self._answer(200, json.dumps({"data": [{"id": "fake"}]}).encode())
        elif self.path == "/version":
            self._answer(200, b'{"version": "0.1-fake"}')
        elif self.path == "/metrics":
            self._answer(200, METRICS.encode())
        else:
            self._answer(404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append(
                {
                    "path": self.path,
                    "auth": self.headers.get("Authorization"),
                    "id": self.headers.get("X-Request-Id"),
                    **body,
                }
            )
            number = len(self.server.asked)
        if self.path in ("/start_profile", "/stop_profile"):
            refuses = self.path == "/stop_profile" and self.server.fault == "no_stop_profile"
            self._answer(404 if self.server.fault == "no_profiler" else 500 if refuses else 200, b"")
            return
        fault = self.server.fault
        # The first three are the probe and the warm-up.
        if fault == "every_tenth_500" and number > 3 and number % 10 == 0:
            self._answer(500, b'{"error": "out of luck"}')
            return
        if fault == "tells_all" and number > 3:
            self._answer(401, json.dumps({"error": f"wrong key: {self.headers['Authorization']}"}).encode())
            return
        if fault == "busy" and number == 1:
            self._answer(429, b'{"error": "busy"}', retry_after_s=1)
            return
        if fault == "echoes":
            self._answer(401, f"{body['prompt']} wrong key: {self.headers['Authorization']}".encode())
            return
        if fault == "dies_under_load" and number > 20:
            print("fake: RuntimeError: out of memory", file=sys.stderr, flush=True)
            os._exit(3)
        if fault == "redirects":
            self.send_response(307)
            self.send_header("Location", "http://127.0.0.2:1/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self._stream(body, stalls=fault == "stalls" and number > 3)

    def _stream(self, body: dict[str, Any], *, stalls: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        is_chat = "messages" in body
        text = body["messages"][0]["content"] if is_chat else body["prompt"]
        if is_chat:
            self._event({"choices": [{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        for number in range(body["max_tokens"]):
            time.sleep(self.server.gap_s)
            if stalls and number == 2:
                time.sleep(30)
                return
            choice = {"delta": {"content": "a "}} if is_chat else {"text": "a "}
            self._event({"choices": [choice]})
        if self.server.usage:
            # Two tokens a word: what the client must find out by itself.
            counts = {"prompt_tokens": 2 * len(text.split()), "completion_tokens": body["max_tokens"]}
            self._event({"choices": [], "usage": counts})
        self._chunk(b"data: [DONE]\n\n")
        if self.server.fault == "stays_open":
            time.sleep(30)
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        try:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
        except OSError:
            self.close_connection = True

    def _answer(self, status: int, data: bytes, *, retry_after_s: int | None = None) -> None:
        self.send_response(status)
        if retry_after_s is not None:
            self.send_header("Retry-After", str(retry_after_s))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def fake_server(*, fault: str = "", gap_s: float = 0.002, usage: bool = True) -> Iterator[FakeServer]:
    server = FakeServer(fault=fault, gap_s=gap_s, usage=usage)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def load_model() -> None:
    """What a server does before it answers."""
    time.sleep(2.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--fault", default="")
    args = parser.parse_args()
    if args.fault == "dies_on_start":
        print("fake: ValueError: no such model", file=sys.stderr)
        sys.exit(4)
    if args.fault == "tells_all":
        print(dict(os.environ), flush=True)
    if args.fault == "slow_start":
        load_model()
    if args.fault == "ignores_sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # Its own child, as engines have.
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN if args.fault == "ignores_sigterm" else signal.SIG_DFL)
        time.sleep(300)
        os._exit(0)
    FakeServer(args.port, fault=args.fault).serve_forever()


if __name__ == "__main__":
    main()

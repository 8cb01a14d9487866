"""An OpenAI-compatible server whose speed hangs on two flags that interact, to be started by a search.

`python tuned_server.py --port N --host H [--tokens T] [--sequences S] [--mode fast|wrong|dies]`. A token takes least at
8 tokens and 4 sequences; `--mode fast` halves it, `wrong` halves it with other tokens, `dies` ends at once. It leaves a
child running, as engines do.
"""

import argparse
import json
import math
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STEP_S = 0.004
WORDS = ("a", "b", "c", "d")


class TunedServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], *, step_s: float, first_word: int) -> None:
        super().__init__(address, _Handler)
        self.step_s, self.first_word = step_s, first_word

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is not news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: TunedServer

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        pages = {"/health": b"", "/v1/models": b'{"data": [{"id": "tuned"}]}'}
        self._answer(200 if self.path in pages else 404, pages.get(self.path, b""))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = [WORDS[(number + self.server.first_word) % len(WORDS)] for number in range(body["max_tokens"])]
        if body.get("stream"):
            self._stream(body, words)
            return
        logprobs = {
            "tokens": words,
            "token_logprobs": [-0.5] * len(words),
            "top_logprobs": [{word: -0.5, "z": -3.0} for word in words],
        }
        choice = {"text": " ".join(words), "logprobs": logprobs if body.get("logprobs") else None}
        self._answer(200, json.dumps({"choices": [choice]}).encode())

    def _stream(self, body: dict[str, Any], words: list[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for word in words:
            time.sleep(self.server.step_s)
            self._event({"choices": [{"text": word}]})
        counts = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": len(words)}
        self._event({"choices": [], "usage": counts})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, event: dict[str, Any]) -> None:
        self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        try:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()
        except OSError:
            self.close_connection = True

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--tokens", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--mode", default="plain")
    args = parser.parse_args()
    if args.mode == "dies":
        print("tuned: ValueError: this mode needs a GPU with more memory", file=sys.stderr)
        sys.exit(4)
    if os.fork() == 0:
        time.sleep(300)
        os._exit(0)
    tokens, sequences = math.log2(args.tokens) - 3, math.log2(args.sequences) - 2
    step_s = STEP_S * math.exp(0.25 * (tokens - sequences) ** 2 + 0.15 * (tokens + sequences) ** 2)
    step_s /= 2 if args.mode in ("fast", "wrong") else 1
    first_word = 1 if args.mode == "wrong" else 0
    TunedServer((args.host, args.port), step_s=step_s, first_word=first_word).serve_forever()


if __name__ == "__main__":
    main()

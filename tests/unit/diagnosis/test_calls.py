"""What a line of source code does is named with imports, assignments and seen types resolved."""

import pytest

from llm_perf_opt.diagnosis.host.calls import read_source

SOURCE = """\
import numpy as np
import zlib
from copy import deepcopy as clone
from threading import Lock

table = [1, 2]
guard = Lock()


class Packer:
    def __init__(self):
        self.lock = Lock()
        self.rows = []

    def pack(self, data: bytes, rng: np.random.Generator):
        with self.lock:
            return zlib.compress(data)
        rng.normal(size=4)
        self.rows.sort(key=len)


def search(text, x, w):
    out = ""
    for word in text.split():
        out += word
        if word in table:
            clone(table)
    total = x @ w
    return [row[0] for row in x]


def fetch(client):
    return client.recv(64)
"""


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (16, ("with threading.Lock()",)),
        (17, ("zlib.compress",)),
        (18, ("numpy.random.Generator().normal",)),
        (19, ("list.sort",)),
        (24, ("for text.split()", "text.split", "loop")),
        (25, ("+= str", "loop")),
        (26, ("in list", "loop")),
        (27, ("copy.deepcopy", "loop")),
        (28, ("@",)),
        (29, ("loop", "[] row")),
        (33, ("client.recv",)),
        (300, ()),
    ],
)
def test_a_line_is_named_by_what_it_calls(line: int, names: tuple[str, ...]) -> None:
    source = read_source(SOURCE)
    assert source is not None
    assert source.names(line) == names


def test_types_seen_in_the_running_program_go_before_the_source() -> None:
    source = read_source(SOURCE)
    assert source is not None
    types = {"client": "socket.socket ('10.0.0.1', 80)", "x": "numpy.ndarray float32 16 elements (4, 4)"}
    assert source.names(33, types) == ("socket.socket().recv", "arg socket.socket ('10.0.0.1', 80)")
    assert source.names(28, types) == ("@", "arg numpy.ndarray float32 16 elements (4, 4)")


def test_the_expression_that_was_seen_stands_for_its_line() -> None:
    source = read_source("import json, zlib\n\ndef pack(x):\n    return zlib.compress(json.dumps(x).encode())\n")
    assert source is not None
    assert source.names(4) == ("zlib.compress", "json.dumps().encode", "json.dumps")
    assert source.names(4, span=(25, 38)) == ("json.dumps",)


def test_what_is_no_python_has_no_names() -> None:
    assert read_source("def (:\n") is None


def test_a_frame_without_a_name_does_what_is_inside_its_expression_alone() -> None:
    source = read_source("print(sum(look(i) for i in range(4)))\n")
    assert source is not None
    assert "print" in source.names(1)
    assert "print" not in source.names(1, inside="<genexpr>")
    assert "look" in source.names(1, inside="<genexpr>")
    by_key = read_source("queue = []\nqueue.sort(key=lambda one: -one.priority)\n")
    assert by_key is not None and "list.sort" in by_key.names(2, inside="<lambda>")


@pytest.mark.parametrize(
    ("loop", "spins"),
    [
        ("while not job.done:\n    pass\n", True),
        ("while time.monotonic() < end:\n    if event.is_set():\n        break\n", True),
        ("while not job.done:\n    time.sleep(0.1)\n", False),
        ("while queue.get():\n    pass\n", False),
        ("while i < n:\n    i += 1\n", False),
    ],
)
def test_a_loop_that_only_looks_whether_it_may_continue_is_a_busy_wait(loop: str, spins: bool) -> None:
    source = read_source(f"import time\n{loop}")
    assert source is not None
    assert all(("busy wait" in source.names(line)) is spins for line in (2, 3))


def test_what_a_call_returns_is_unpacked() -> None:
    source = read_source(
        "import asyncio\nasync def ask():\n    r, w = await asyncio.open_connection()\n    await r.read()\n"
    )
    assert source is not None
    assert source.names(4) == ("asyncio.open_connection()[].read",)

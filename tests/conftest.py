"""Fixtures every test may use."""

import os
import shutil
import signal
from pathlib import Path

import pytest

WHOLE_COMMANDS = tuple(Path(__file__).parent / name for name in ("system", "stages", "fuzz", "drill"))
REQUIRE_TOOLS = os.environ.get("LLM_PERF_REQUIRE_TOOLS") == "1"
_NEEDS = {"real_nsys": "nsys", "real_ncu": "ncu", "browser": "chromium"}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Tests with the real nsys share a worker: theirs are times as well, and some end an nsys while it starts.

    What needs a tool or starts whole commands is slow; other slow tests say so themselves. The groups are set here and
    not when all items are known: xdist has read them by then.
    """
    if any(map(item.path.is_relative_to, WHOLE_COMMANDS)) or any(item.get_closest_marker(marker) for marker in _NEEDS):
        item.add_marker(pytest.mark.slow)
    if item.get_closest_marker("real_nsys"):
        item.add_marker(pytest.mark.xdist_group("nsys"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests with the real nsys begin first: theirs is the longest line of tests."""
    items.sort(key=lambda item: "nsys" not in _groups(item))


def _groups(item: pytest.Item) -> list[str]:
    return [str(mark.args[0]) for mark in item.iter_markers("xdist_group")]


def pytest_configure() -> None:
    """A shell starts what it puts into the background with interrupts ignored, and what we start inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that needs a tool skips without it; with LLM_PERF_REQUIRE_TOOLS=1 (CI) it fails instead."""
    for marker, tool in _NEEDS.items():
        if item.get_closest_marker(marker) and shutil.which(tool) is None:
            if REQUIRE_TOOLS:
                pytest.fail(f"{tool} is required here and is not installed")
            pytest.skip(f"{tool} is not installed")

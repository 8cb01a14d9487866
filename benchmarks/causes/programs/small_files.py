"""Reads a prompt from many small files."""

import os
import tempfile
import time
from pathlib import Path

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def load(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8")) for path in sorted(folder.iterdir()))


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for number in range(300):
            (folder / f"{number}.txt").write_text("a prompt", encoding="utf-8")
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            load(folder)


main()

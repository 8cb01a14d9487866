"""Memory counters of a torch trace: how many bytes were allocated when, per device, inside one window of time."""

import re
from collections.abc import Iterator
from decimal import Decimal
from io import TextIOWrapper
from pathlib import Path

from llm_perf_opt.profiling.parsers.trace_chunks import open_gzip

CHUNK_CHARS = 4 << 20
# An event is far shorter than this, so a chunk's last piece of this size is looked at again with the next chunk.
OVERLAP_CHARS = 2048
MAX_POINTS = 5_000
_EVENT = re.compile(
    r'"name":\s*"\[memory\]"[^{}]*?"ts":\s*([\d.]+)[^{}]*?"args":\s*\{[^{}]*?"Total Allocated":\s*(\d+)'
    r'[^{}]*?"Device Type":\s*(-?\d+)'
)
CPU_TYPE = 0


def memory_counters(trace: Path, window_ns: tuple[int, int]) -> dict[str, list[list[int]]]:
    """`[time since the window began, bytes]` by device, thinned to a drawable number; empty without memory events."""
    start, end = window_ns
    found: dict[str, list[list[int]]] = {}
    for ts, total, kind in _events(trace):
        at = int(Decimal(ts) * 1000)
        if start <= at <= end:
            found.setdefault("CPU" if int(kind) == CPU_TYPE else "GPU", []).append([at - start, int(total)])
    return {device: _thin(sorted(points)) for device, points in found.items()}


def _events(trace: Path) -> Iterator[tuple[str, str, str]]:
    """Time in µs as written, bytes and device type of each memory event, each once."""
    with TextIOWrapper(open_gzip(trace, "rb"), encoding="utf-8", errors="replace") as file:
        held = ""
        while chunk := file.read(CHUNK_CHARS):
            held += chunk
            last = 0
            for match in _EVENT.finditer(held):
                last = match.end()
                yield match[1], match[2], match[3]
            held = held[max(last, len(held) - OVERLAP_CHARS) :]


def _thin(points: list[list[int]]) -> list[list[int]]:
    """Of too many points the highest of each stretch, so that no peak is lost."""
    if len(points) <= MAX_POINTS:
        return points
    size = -(-len(points) // MAX_POINTS)
    return [max(points[i : i + size], key=lambda p: p[1]) for i in range(0, len(points), size)]

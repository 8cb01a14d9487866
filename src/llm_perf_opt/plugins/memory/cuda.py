"""The CUDA allocator's own history, recorded by torch, as blocks.

`torch.cuda.memory._record_memory_history` keeps every allocation and free with its Python stack; `_dump_snapshot`
writes the pickle that pytorch.org/memory_viz opens. Nothing here reads such a pickle: the snapshot is that of this
process.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from llm_perf_opt.plugins.memory.blocks import MemoryBlock

SNAPSHOT = "snapshot.pickle"
DEEPEST_STACK = 40
BORN, FREED, SEGMENT_BORN, SEGMENT_FREED = "alloc", "free_completed", "segment_alloc", "segment_free"
MAPPED, UNMAPPED = "segment_map", "segment_unmap"


@dataclass(frozen=True, kw_only=True)
class Reserved:
    """Bytes the allocator held from the device, from a moment on."""

    at_us: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True)
class FailedAllocation:
    """An allocation that failed: what was requested and what the device still had."""

    at_us: int
    asked_bytes: int
    device_free_bytes: int | None
    stack: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class History:
    """What a snapshot says of one device. `is_cut`: older entries were dropped, `max_entries` was too small."""

    blocks: tuple[MemoryBlock, ...]
    reserved: tuple[Reserved, ...]
    failures: tuple[FailedAllocation, ...]
    is_cut: bool


def start_history(max_entries: int) -> None:
    """From now on every allocation is kept with its Python stack."""
    import torch

    record = torch.cuda.memory._record_memory_history
    # A free that was requested is reported again when it is done; not every torch can leave the first one out.
    known = "skip_actions" in inspect.signature(record).parameters
    fewer: dict[str, Any] = {"skip_actions": ["free_requested"]} if known else {}
    record("all", context="alloc", stacks="python", max_entries=max_entries, **fewer)


def write_snapshot(path: Path) -> None:
    """The pickle for memory_viz, as torch writes it."""
    import torch

    torch.cuda.memory._dump_snapshot(str(path))


def take_history(device_index: int, max_entries: int) -> History:
    """The history of this process's device so far."""
    import torch

    return history_of(torch.cuda.memory._snapshot(), device_index, max_entries)


def history_of(snapshot: Mapping[str, Any], device_index: int, max_entries: int) -> History:
    """A snapshot's entries as blocks; what is alive at its end but has no birth in it is from before."""
    traces: Sequence[Sequence[Mapping[str, Any]]] = snapshot["device_traces"]
    entries = traces[device_index] if device_index < len(traces) else ()
    segments = [s for s in snapshot["segments"] if s.get("device", device_index) == device_index]
    blocks: list[MemoryBlock] = []
    open_at: dict[int, MemoryBlock] = {}
    failures: list[FailedAllocation] = []
    changes: list[tuple[int, int]] = []
    for entry in entries:
        action, at_us = entry["action"], int(entry.get("time_us", 0))
        if action == BORN:
            block = _born(entry, at_us)
            open_at[block.address] = block
        elif action == FREED:
            address = entry["addr"]
            block = open_at.pop(address) if address in open_at else _older(address, entry["size"])
            blocks.append(replace(block, died_us=at_us))
        elif action in (SEGMENT_BORN, MAPPED):
            changes.append((at_us, entry["size"]))
        elif action in (SEGMENT_FREED, UNMAPPED):
            changes.append((at_us, -entry["size"]))
        elif action == "oom":
            failures.append(
                FailedAllocation(
                    at_us=at_us,
                    asked_bytes=int(entry["size"]),
                    device_free_bytes=entry.get("device_free"),
                    stack=_stack(entry.get("frames", ())),
                )
            )
    blocks += open_at.values()
    blocks += _from_before(segments, open_at)
    return History(
        blocks=tuple(blocks),
        reserved=_reserved(segments, changes),
        failures=tuple(failures),
        is_cut=len(entries) >= max_entries,
    )


def _born(entry: Mapping[str, Any], at_us: int) -> MemoryBlock:
    return MemoryBlock(
        address=entry["addr"],
        size_bytes=entry["size"],
        born_us=at_us,
        died_us=None,
        stack=_stack(entry.get("frames", ())),
    )


def _older(address: int, size: int) -> MemoryBlock:
    return MemoryBlock(address=address, size_bytes=size, born_us=0, died_us=None)


def _from_before(segments: Sequence[Mapping[str, Any]], known: Mapping[int, MemoryBlock]) -> list[MemoryBlock]:
    """Blocks in use at the end whose birth is not in the history."""
    found = []
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"].startswith("active") and block["address"] not in known:
                size = int(block.get("requested_size") or block["size"])
                stack = _stack(block.get("frames", ()))
                found.append(
                    MemoryBlock(address=block["address"], size_bytes=size, born_us=0, died_us=None, stack=stack)
                )
    return found


def _reserved(segments: Sequence[Mapping[str, Any]], changes: Sequence[tuple[int, int]]) -> tuple[Reserved, ...]:
    """Backwards from what is held at the end, since a history may begin in the middle."""
    held = sum(int(segment["total_size"]) for segment in segments)
    start = held - sum(size for _, size in changes)
    found = [Reserved(at_us=0, size_bytes=start)]
    for at_us, size in changes:
        found.append(Reserved(at_us=at_us, size_bytes=found[-1].size_bytes + size))
    return tuple(found)


def _stack(frames: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Innermost first, as torch has them; the many equal ones of a long history are one."""
    return _kept(tuple((f["filename"], f["line"], f["name"]) for f in frames[:DEEPEST_STACK]))


@lru_cache(maxsize=65536)
def _kept(frames: tuple[tuple[str, int, str], ...]) -> tuple[str, ...]:
    return tuple(f"{file}:{line} {name}" for file, line, name in frames)

"""A memory snapshot of torch, analysed: memory over time, the live blocks at the peak by owner, and fragmentation.

Sizes of blocks are those requested. What was live before the first event is known from the frees without an allocation
and from the blocks at the end that no event allocated, so the curve needs no complete history.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from llm_perf_opt.capture.intervals import Ints
from llm_perf_opt.core.units import count_of

CURVE_POINTS = 600
OWNERS_KEPT = 200
BEFORE = "(allocated before the recording)"
NO_STACK = "(no stack recorded)"


@dataclass(frozen=True, kw_only=True)
class SnapshotEvent:
    """One event of the allocator. `site` indexes the snapshot's sites (-1: no stack); old files have no `time_us`."""

    action: str
    address: int
    size_bytes: int
    site: int
    time_us: int | None


@dataclass(frozen=True, kw_only=True)
class SnapshotBlock:
    """A block that was allocated when the snapshot was taken."""

    address: int
    requested_bytes: int
    size_bytes: int
    site: int


@dataclass(frozen=True, kw_only=True)
class AllocationSite:
    """Where memory was requested: the innermost line of the user's own code, and the innermost frame of all."""

    owner: str
    leaf: str


@dataclass(frozen=True, kw_only=True)
class DeviceSnapshot:
    """What a snapshot says of one device. `free_bytes` lists the sizes of the free blocks in reserved segments."""

    device: int
    events: tuple[SnapshotEvent, ...]
    live: tuple[SnapshotBlock, ...]
    reserved_bytes: int
    free_bytes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class OwnerRow:
    """Blocks that were live at the peak, by the line that owns them and the frame that allocated them."""

    owner: str
    leaf: str
    blocks: int
    size_bytes: int
    largest_bytes: int


@dataclass(frozen=True, kw_only=True)
class OutOfMemoryRow:
    """An allocation that failed: its size, what was allocated then, and who asked."""

    at_ns: int | None
    requested_bytes: int
    allocated_bytes: int
    owner: str


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """One device. Times count from the first event and are None where the file has none.

    `fragmentation` is the part of the free memory in reserved segments that lies outside of its largest free block, at
    the end; None where nothing is free. `rounding_bytes` is what blocks at the end hold beyond what was requested.
    `points` are `(time in ns, or number of the event, allocated, reserved)`, thinned; every peak of allocated stays.
    """

    device: int
    events: int
    length_ns: int | None
    allocations: int
    frees: int
    segment_allocations: int
    segment_frees: int
    first_allocated_bytes: int
    last_allocated_bytes: int
    last_reserved_bytes: int
    peak_allocated_bytes: int
    peak_at_ns: int | None
    peak_event: int
    reserved_at_peak_bytes: int
    peak_reserved_bytes: int
    free_bytes: int
    largest_free_bytes: int
    fragmentation: float | None
    rounding_bytes: int
    owners: tuple[OwnerRow, ...]
    owners_left_out: int
    ran_out: tuple[OutOfMemoryRow, ...]
    points: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True)
class MemorySnapshot:
    """One file. A device without memory and events is left out."""

    path: str
    devices: tuple[DeviceMemory, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SnapshotDocument:
    """What `llm-perf analyze --json` prints of memory snapshots, and `memory_snapshot.json` holds."""

    schema_version: Literal[1] = 1
    snapshots: tuple[MemorySnapshot, ...]


@dataclass(kw_only=True)
class _Life:
    """A block from the event that allocated it (-1: before all) to the one that freed it (None: none did)."""

    size_bytes: int
    site: int | None
    begin: int
    end: int | None


def measure_device(found: DeviceSnapshot, sites: Sequence[AllocationSite]) -> tuple[DeviceMemory, list[str]]:
    """The figures of one device, and what a reader must know about them."""
    events = found.events
    lives = _lives(found)
    change, reserved_change = np.zeros(len(events) + 1, np.int64), np.zeros(len(events) + 1, np.int64)
    for life in lives:
        change[life.begin + 1] += life.size_bytes
        if life.end is not None:
            change[life.end + 1] -= life.size_bytes
    for index, event in enumerate(events):
        reserved_change[index + 1] = _SEGMENTS.get(event.action, 0) * event.size_bytes
    # Place 0 is before the first event.
    allocated = np.cumsum(change)
    reserved = found.reserved_bytes - int(reserved_change.sum()) + np.cumsum(reserved_change)
    peak = int(np.argmax(allocated))
    live = [life for life in lives if life.begin < peak and (life.end is None or life.end >= peak)]
    owners = _owners(live, sites)
    times = _times_ns(events)
    counts = Counter(event.action for event in events)
    free, rounding = sum(found.free_bytes), sum(b.size_bytes - b.requested_bytes for b in found.live)
    largest = max(found.free_bytes, default=0)
    notes = []
    if before := sum(life.begin < 0 for life in lives):
        notes.append(f"device {found.device}: {count_of(before, 'block')} allocated before the recording began")
    if int(reserved.min()) < 0:
        notes.append(f"device {found.device}: its segments do not add up over the events; reserved is not exact")
    return DeviceMemory(
        device=found.device,
        events=len(events),
        length_ns=None if times is None or not times else times[-1],
        allocations=counts["alloc"],
        frees=counts[_freeing(events)],
        segment_allocations=counts["segment_alloc"] + counts["segment_map"],
        segment_frees=counts["segment_free"] + counts["segment_unmap"],
        first_allocated_bytes=int(allocated[0]),
        last_allocated_bytes=int(allocated[-1]),
        last_reserved_bytes=found.reserved_bytes,
        peak_allocated_bytes=int(allocated[peak]),
        peak_at_ns=None if times is None else (times[peak - 1] if peak else 0),
        peak_event=peak,
        reserved_at_peak_bytes=int(reserved[peak]),
        peak_reserved_bytes=int(reserved.max()),
        free_bytes=free,
        largest_free_bytes=largest,
        fragmentation=1.0 - largest / free if free else None,
        rounding_bytes=rounding,
        owners=owners[:OWNERS_KEPT],
        owners_left_out=max(len(owners) - OWNERS_KEPT, 0),
        ran_out=tuple(
            OutOfMemoryRow(
                at_ns=None if times is None else times[index],
                requested_bytes=event.size_bytes,
                allocated_bytes=int(allocated[index]),
                owner=sites[event.site].owner if event.site >= 0 else NO_STACK,
            )
            for index, event in enumerate(events)
            if event.action == "oom"
        ),
        points=_points(times, allocated, reserved),
    ), notes


# What segments add to the reserved memory and take from it; expandable ones are mapped and unmapped.
_SEGMENTS: Mapping[str, int] = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def _freeing(events: Iterable[SnapshotEvent]) -> str:
    """The event that ends a block's life: the program's wish, where it is recorded."""
    return "free_requested" if any(e.action == "free_requested" for e in events) else "free_completed"


def _lives(found: DeviceSnapshot) -> list[_Life]:
    """Every block the snapshot knows of. A free takes the size of its allocation, so that sums never drift."""
    lives: list[_Life] = []
    held: dict[int, _Life] = {}
    freeing = _freeing(found.events)
    for index, event in enumerate(found.events):
        if event.action == "alloc":
            if (old := held.pop(event.address, None)) is not None:
                old.end = index
            held[event.address] = _Life(size_bytes=event.size_bytes, site=event.site, begin=index, end=None)
            lives.append(held[event.address])
        elif event.action == freeing:
            known = held.pop(event.address, None)
            if known is not None:
                known.end = index
            else:
                lives.append(_Life(size_bytes=event.size_bytes, site=None, begin=-1, end=index))
    for block in found.live:
        if block.address not in held:
            site = block.site if block.site >= 0 else None
            lives.append(_Life(size_bytes=block.requested_bytes, site=site, begin=-1, end=None))
    return lives


def _owners(live: Sequence[_Life], sites: Sequence[AllocationSite]) -> tuple[OwnerRow, ...]:
    """The largest first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for life in live:
        if life.site is None:
            key = (BEFORE, BEFORE)
        elif life.site < 0:
            key = (NO_STACK, NO_STACK)
        else:
            key = (sites[life.site].owner, sites[life.site].leaf)
        groups.setdefault(key, []).append(life.size_bytes)
    rows = [
        OwnerRow(owner=owner, leaf=leaf, blocks=len(sizes), size_bytes=sum(sizes), largest_bytes=max(sizes))
        for (owner, leaf), sizes in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.size_bytes, row.owner, row.leaf)))


def _times_ns(events: Sequence[SnapshotEvent]) -> list[int] | None:
    """Since the first event; None where one of them has no time."""
    times = [event.time_us for event in events]
    known = [time for time in times if time is not None]
    if len(known) != len(times):
        return None
    return [1000 * (time - known[0]) for time in known]


def _points(times: Sequence[int] | None, allocated: Ints, reserved: Ints) -> tuple[tuple[int, int, int], ...]:
    """The curve at this many points that it can be drawn: of each stretch the one with most allocated."""
    count = len(allocated)
    size = -(-count // CURVE_POINTS)
    chosen = [start + int(np.argmax(allocated[start : start + size])) for start in range(0, count, size)]
    at = [index if times is None else (times[index - 1] if index else 0) for index in chosen]
    return tuple((x, int(allocated[index]), int(reserved[index])) for x, index in zip(at, chosen, strict=True))

"""Pieces of memory with a birth and a death: their kinds, their sum over time, and the peak. Pure.

Kinds: weights (parameters and buffers of the model), KV cache (reachable from the state a step returns), workspace
(made during a request and still there after it: library workspaces, graphs), loading (made while the model was loaded,
and not weights), activations (everything else).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

Kind = Literal["weights", "kv_cache", "activations", "workspace", "loading"]
WEIGHTS: Final = "weights"
KV_CACHE: Final = "kv_cache"
ACTIVATIONS: Final = "activations"
WORKSPACE: Final = "workspace"
LOADING: Final = "loading"
# From the bottom of the chart up: what stays longest first.
KINDS: tuple[Kind, ...] = (WEIGHTS, KV_CACHE, WORKSPACE, LOADING, ACTIVATIONS)
MOST_POINTS = 2000


@dataclass(frozen=True, kw_only=True)
class MemoryBlock:
    """One piece. `born_us` 0: before all that was recorded; `died_us` None: it is still there.

    `stack` has the innermost frame first.
    """

    address: int
    size_bytes: int
    born_us: int
    died_us: int | None
    stack: tuple[str, ...] = ()
    operator: str = ""
    module: str = ""


@dataclass(frozen=True, kw_only=True)
class CacheNote:
    """The addresses and sizes of the tensors a step's state holds, right after that step."""

    at_us: int
    storages: Mapping[int, int]

    @property
    def size_bytes(self) -> int:
        return sum(self.storages.values())


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the watcher knows besides the blocks: where weights lie, what caches held, when requests began.

    `loaded_us` is when the model was in memory, `ended_us` when the last request was over, `failed_start_us` when the
    one began that ran out of memory.
    """

    weights: Mapping[int, int]
    caches: tuple[CacheNote, ...]
    request_starts_us: tuple[int, ...]
    loaded_us: int
    ended_us: int
    failed_start_us: int | None = None


def kinds_of(blocks: Sequence[MemoryBlock], seen: Seen) -> list[Kind]:
    """The kind of each block."""
    weights = _Ranges(seen.weights)
    # The addresses of all notes by moment: a block is cache if a note taken while it lived names an address inside it.
    notes: dict[int, list[int]] = {}
    for note in seen.caches:
        for address in note.storages:
            notes.setdefault(address, []).append(note.at_us)
    addresses = sorted(notes)
    starts = sorted(seen.request_starts_us)
    found: list[Kind] = []
    for block in blocks:
        if block.born_us <= seen.loaded_us and weights.touches(block):
            found.append(WEIGHTS)
        elif _is_cache(block, addresses, notes):
            found.append(KV_CACHE)
        elif block.born_us <= seen.loaded_us:
            found.append(LOADING)
        else:
            later = bisect_right(starts, block.born_us)
            until = starts[later] if later < len(starts) else seen.ended_us
            # A request that failed holds what it was working on; its error does.
            has_failed = later > 0 and starts[later - 1] == seen.failed_start_us
            stays = not has_failed and (block.died_us is None or block.died_us > until)
            found.append(WORKSPACE if stays else ACTIVATIONS)
    return found


class _Ranges:
    """Storages by address; whether one of them begins inside a block."""

    def __init__(self, storages: Mapping[int, int]) -> None:
        self._starts = sorted(storages)

    def touches(self, block: MemoryBlock) -> bool:
        index = bisect_right(self._starts, block.address + max(block.size_bytes, 1) - 1)
        return index > 0 and self._starts[index - 1] >= block.address


def _is_cache(block: MemoryBlock, addresses: Sequence[int], notes: Mapping[int, Sequence[int]]) -> bool:
    low = bisect_right(addresses, block.address - 1)
    high = bisect_right(addresses, block.address + max(block.size_bytes, 1) - 1)
    for address in addresses[low:high]:
        at = notes[address]
        index = bisect_right(at, block.born_us - 1)
        if index < len(at) and (block.died_us is None or at[index] <= block.died_us):
            return True
    return False


@dataclass(frozen=True, kw_only=True)
class Course:
    """Bytes of each kind over time: `bytes_by_kind[kind][i]` from `at_us[i]` on."""

    at_us: tuple[int, ...]
    bytes_by_kind: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, kw_only=True)
class PeakOf:
    """The moment with the most bytes: what was there by kind, and the block whose birth made it."""

    at_us: int
    total_bytes: int
    by_kind: Mapping[str, int]
    maker: MemoryBlock | None
    alive: tuple[tuple[MemoryBlock, str], ...] = field(default=())


def course_of(
    blocks: Sequence[MemoryBlock], kinds: Sequence[str], most_points: int = MOST_POINTS
) -> tuple[Course, PeakOf]:
    """The sums over time, thinned out so that each stretch keeps its highest moment, and the peak of all moments."""
    import numpy as np

    if not blocks:
        return Course(at_us=(), bytes_by_kind=dict.fromkeys(KINDS, ())), PeakOf(
            at_us=0, total_bytes=0, by_kind=dict.fromkeys(KINDS, 0), maker=None
        )
    dead = [index for index, block in enumerate(blocks) if block.died_us is not None]
    which = np.concatenate([np.arange(len(blocks)), np.asarray(dead, dtype=np.int64)])
    is_birth = np.concatenate([np.ones(len(blocks), dtype=np.int64), np.zeros(len(dead), dtype=np.int64)])
    at_us = np.asarray([*(b.born_us for b in blocks), *(blocks[i].died_us for i in dead)], dtype=np.int64)
    sizes = np.asarray([block.size_bytes for block in blocks], dtype=np.int64)[which] * (2 * is_birth - 1)
    # A death at the same moment as a birth made room for it.
    order = np.lexsort((is_birth, at_us))
    which, at_us, sizes = which[order], at_us[order], sizes[order]
    of_kind = np.asarray([KINDS.index(cast(Kind, kind)) for kind in kinds])[which]
    sums = np.cumsum(np.where(of_kind[:, None] == np.arange(len(KINDS)), sizes[:, None], 0), axis=0)
    total = sums.sum(axis=1)
    top = int(total.argmax())
    kept = _thin(at_us, total, most_points)
    course = Course(
        at_us=tuple(int(at) for at in at_us[kept]),
        bytes_by_kind={kind: tuple(int(v) for v in sums[kept, i]) for i, kind in enumerate(KINDS)},
    )
    peak_us = int(at_us[top])
    alive = sorted(
        ((b, k) for b, k in zip(blocks, kinds, strict=True) if _lives(b, peak_us)), key=lambda one: -one[0].size_bytes
    )
    peak = PeakOf(
        at_us=peak_us,
        total_bytes=int(total[top]),
        by_kind={kind: int(sums[top, i]) for i, kind in enumerate(KINDS)},
        maker=blocks[int(which[top])],
        alive=tuple(alive),
    )
    return course, peak


def _lives(block: MemoryBlock, at_us: int) -> bool:
    return block.born_us <= at_us and (block.died_us is None or block.died_us > at_us)


def _thin(at_us: Any, total: Any, most: int) -> list[int]:
    """Of moments that are one the last, of each group of the rest the highest, and the first and the last of all."""
    last_of_moment = [i for i in range(len(at_us)) if i + 1 == len(at_us) or at_us[i] != at_us[i + 1]]
    if len(last_of_moment) <= most:
        return last_of_moment
    step = -(-len(last_of_moment) // (most - 2))
    groups = [last_of_moment[i : i + step] for i in range(0, len(last_of_moment), step)]
    return sorted({last_of_moment[0], *(max(g, key=lambda i: int(total[i])) for g in groups), last_of_moment[-1]})


def most_of(blocks: Sequence[MemoryBlock], kinds: Sequence[str], kind: str) -> int:
    """The most bytes of one kind at once."""
    only = [block for block, one in zip(blocks, kinds, strict=True) if one == kind]
    return course_of(only, [kind] * len(only))[1].total_bytes


def sites_of(alive: Iterable[tuple[MemoryBlock, str]], most: int) -> list[tuple[str, str, str, int, int]]:
    """What was alive by kind, module and place in the code: kind, module, place, how many, bytes; the most first."""
    found: dict[tuple[str, str, str], list[int]] = {}
    for block, kind in alive:
        place = next((frame for frame in block.stack if "/torch/" not in frame), block.stack[0] if block.stack else "")
        sums = found.setdefault((kind, block.module, place or block.operator), [0, 0])
        sums[0] += 1
        sums[1] += block.size_bytes
    rows = [(*key, count, size) for key, (count, size) in found.items()]
    return sorted(rows, key=lambda row: -row[4])[:most]

"""The call tree of Python in a torch trace: which function called which, how long, and the GPU work started inside.

Calls with the same callers are one node. Recorded with `with_stack`; under the profiler every call of Python is slower
than without it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Ints, Nesting, innermost, nest
from llm_perf_opt.capture.timeline import HostEvents, Timeline, distinct

# What is narrower than a pixel or two of a page is left out.
LEAST_SHARE = 0.002
MOST_NODES = 1_200
MOST_FRAMES = 100
_ADDRESS = re.compile(r" at 0x[0-9a-f]+", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class FlameNode:
    """`parent` is the index of the caller, -1 at the top; callers come before those they call."""

    name: str
    parent: int
    calls: int
    total_ns: int
    self_ns: int
    gpu_ns: int


@dataclass(frozen=True, kw_only=True)
class FrameRow:
    """One function over all callers; its total counts it once where it calls itself."""

    name: str
    calls: int
    total_ns: int
    self_ns: int
    gpu_ns: int


@dataclass(frozen=True, kw_only=True)
class PythonTree:
    """`total_ns` is the time of the outermost frames of all threads; `left_out` nodes are too small to be drawn.

    GPU time is that of kernels and copies launched by a frame itself and, in `nodes`, by those it called.
    """

    source: str
    total_ns: int
    nodes: tuple[FlameNode, ...]
    left_out: int
    frames: tuple[FrameRow, ...]


def python_tree(timeline: Timeline, frames: HostEvents) -> PythonTree | None:
    """None where no frame was recorded."""
    if not len(frames):
        return None
    names_of, name = _merged_names(timeline.names, frames.name)
    tree = nest(frames.thread, frames.start_ns, frames.end_ns)
    length = frames.end_ns - frames.start_ns
    own = length.copy()
    child = np.flatnonzero(tree.parent >= 0)
    np.subtract.at(own, tree.parent[child], length[child])
    gpu = _gpu_time(timeline, frames, tree)
    below = tree.sum_up(gpu)
    node, names, parents = _nodes(name, tree.parent, tree.levels)
    count = len(names)

    def total(values: Ints) -> Ints:
        return np.bincount(node, weights=values, minlength=count).astype(np.int64)

    calls, times, selves, work = np.bincount(node, minlength=count), total(length), total(own), total(below)
    top = int(times[parents < 0].sum())
    kept = _kept(times, parents, top)
    place = {old: new for new, old in enumerate(kept)}
    return PythonTree(
        source=timeline.source,
        total_ns=top,
        nodes=tuple(
            FlameNode(
                name=names_of[int(names[i])],
                parent=place.get(int(parents[i]), -1),
                calls=int(calls[i]),
                total_ns=int(times[i]),
                self_ns=int(selves[i]),
                gpu_ns=int(work[i]),
            )
            for i in kept
        ),
        left_out=count - len(kept),
        frames=_frames(names_of, name, length, own, gpu, tree.repeats_ancestor(name)),
    )


def _merged_names(names: Sequence[str], code: Ints) -> tuple[list[str], Ints]:
    """Names without the addresses of objects, and the codes of the frames among them: `append of list object`."""
    used = distinct(code)
    merged: dict[str, int] = {}
    place = np.zeros(int(used[-1]) + 1, np.int64)
    for old in used.tolist():
        place[old] = merged.setdefault(_ADDRESS.sub("", names[old]), len(merged))
    return list(merged), place[code]


def _gpu_time(timeline: Timeline, frames: HostEvents, tree: Nesting) -> Ints:
    """The GPU time launched by each frame itself."""
    columns = (frames.thread, frames.start_ns, frames.end_ns)
    found = np.zeros(len(frames), np.int64)
    for work in (timeline.kernels, timeline.copies):
        known = np.flatnonzero(work.call >= 0)
        call = work.call[known]
        owner = innermost(tree, *columns, timeline.calls.thread[call], timeline.calls.start_ns[call])
        inside = owner >= 0
        np.add.at(found, owner[inside], (work.end_ns - work.start_ns)[known[inside]])
    return found


def _nodes(name: Ints, parent: Ints, levels: tuple[Ints, ...]) -> tuple[Ints, Ints, Ints]:
    """The node of each frame; of each node its name and its caller's node. Callers have lower numbers."""
    node = np.full(len(name), -1, np.int64)
    names: list[Ints] = []
    parents: list[Ints] = []
    count, width = 0, int(name.max()) + 1
    for depth, level in enumerate(levels):
        caller = node[parent[level]] if depth else np.full(len(level), -1, np.int64)
        keys, index = np.unique((caller + 1) * width + name[level], return_inverse=True)
        node[level] = count + index
        names.append(keys % width)
        parents.append(keys // width - 1)
        count += len(keys)
    return node, np.concatenate(names), np.concatenate(parents)


def _kept(times: Ints, parents: Ints, total: int) -> list[int]:
    """The nodes large enough to be drawn, callers first; the caller of one that is kept is larger, and kept too."""
    large = np.flatnonzero(times >= max(LEAST_SHARE * total, 1))
    if len(large) > MOST_NODES:
        order = np.lexsort((large, -times[large]))
        large = np.sort(large[order[:MOST_NODES]])
    kept: list[int] = []
    seen = {-1}
    for node in large.tolist():
        if int(parents[node]) in seen:
            seen.add(node)
            kept.append(node)
    return kept


def _frames(
    names: Sequence[str], name: Ints, length: Ints, own: Ints, gpu: Ints, repeats: Flags
) -> tuple[FrameRow, ...]:
    """The functions of most own time."""
    codes, index = np.unique(name, return_inverse=True)

    def total(values: Ints) -> Ints:
        return np.bincount(index, weights=values, minlength=len(codes)).astype(np.int64)

    calls, times, selves, work = np.bincount(index), total(length * ~repeats), total(own), total(gpu)
    order = np.lexsort((codes, -selves))[:MOST_FRAMES]
    return tuple(
        FrameRow(
            name=names[int(codes[i])],
            calls=int(calls[i]),
            total_ns=int(times[i]),
            self_ns=int(selves[i]),
            gpu_ns=int(work[i]),
        )
        for i in order
    )

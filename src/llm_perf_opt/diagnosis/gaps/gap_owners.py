"""Who owns a time of the host: the Python functions it was spent in, from the leaf to the user's own code."""

from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.intervals import Ints, union
from llm_perf_opt.capture.timeline import HostEvents, grouped
from llm_perf_opt.diagnosis.gaps.gap_verdict import is_library, means, readable

# A function that takes this part of a time owns it, in one call or in many.
OWNS = 0.5
# At most this many names of a chain are kept: the leaf, what called it, and the user's own code.
LONGEST_CHAIN = 4
# Deeper stacks are loops in the record.
DEEPEST = 200


@dataclass(frozen=True, kw_only=True)
class HostOwner:
    """`chain` is leaf first and ends with the user's code where there is any; `user_code` is its innermost function."""

    chain: tuple[str, ...] = ()
    user_code: str | None = None


def owner_of(names: tuple[str, ...], frames: HostEvents, index: Ints, start: int, end: int) -> HostOwner:
    """The functions in which most of a time was spent; `index` are the frames of one thread that may overlap it.

    From the outermost frame inwards: of the calls inside the function reached so far, the function that takes most
    of the time, as long as it takes half of all of it. So ten calls of one function own what one long call would.
    """
    begun = np.maximum(frames.start_ns[index], start)
    ended = np.minimum(frames.end_ns[index], end)
    inside = ended > begun
    index, begun, ended = index[inside], begun[inside], ended[inside]
    stack: list[str] = []
    # Who has no other around it among those left is the next caller inwards.
    order = np.lexsort((-frames.end_ns[index], frames.start_ns[index]))
    index, begun, ended = index[order], begun[order], ended[order]
    while len(index) and len(stack) < DEEPEST:
        reach = np.concatenate(([np.iinfo(np.int64).min], np.maximum.accumulate(frames.end_ns[index])[:-1]))
        outer = frames.end_ns[index] > reach
        outer &= frames.start_ns[index] >= reach
        if not outer.any():
            outer[0] = True
        codes, place = grouped(frames.name[index[outer]])
        time = np.bincount(place, weights=(ended - begun)[outer], minlength=len(codes))
        most = int(np.argmax(time))
        mine = np.flatnonzero(outer)[place == most]
        if union(begun[mine], ended[mine]).total < OWNS * (end - start):
            break
        stack.append(names[int(codes[most])])
        inner = ~outer
        opened, closed = frames.start_ns[index[mine]], frames.end_ns[index[mine]]
        at = np.searchsorted(opened, frames.start_ns[index], side="right") - 1
        inner &= (at >= 0) & (frames.end_ns[index] <= closed[np.maximum(at, 0)])
        index, begun, ended = index[inner], begun[inner], ended[inner]
    return _chain(stack[::-1])


def _chain(stack: list[str]) -> HostOwner:
    """The leaf, its callers and the user's innermost function, of a stack that begins with the leaf."""
    readable_names = [readable(name) for name in stack if not means(name, "marks_module")]
    named = [name for i, name in enumerate(readable_names) if i == 0 or not means(name, "is_built_in")]
    users = [name for name in named if not is_library(name)]
    user = users[0] if users else None
    chain = named[:LONGEST_CHAIN]
    if user is not None and user not in chain:
        chain = [*named[: LONGEST_CHAIN - 1], user]
    return HostOwner(chain=tuple(chain), user_code=user)

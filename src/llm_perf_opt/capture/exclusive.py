"""Exclusive kernel time: every instant in which a GPU is busy belongs to one kernel.

Compute owns an instant before communication does, so the time of a communication kernel is its exposed time. Among
several of one kind the one that started first owns it, until it ends. The times of all kernels of a GPU add up to the
time in which it ran any of them, in whole nanoseconds: they can be the cells of a ledger.
"""

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Intervals, Ints, union
from llm_perf_opt.capture.timeline import Activities, distinct


def exclusive_ns(start: Ints, end: Ints, communication: Flags) -> Ints:
    """For each kernel of a GPU the time in which it owns it; `communication` marks the kernels that communicate."""
    if not communication.any():
        return owned_ns(start, end)
    out = np.zeros(len(start), np.int64)
    compute = ~communication
    out[compute] = owned_ns(start[compute], end[compute])
    busy = union(start[compute], end[compute])
    out[communication] = owned_ns(start[communication], end[communication], beside=busy)
    return out


def alone_ns(kernels: Activities) -> Ints:
    """For each kernel the time in which no other kernel ran on its GPU."""
    out = np.zeros(len(kernels), np.int64)
    gpu = gpu_of(kernels)
    for one in distinct(gpu).tolist():
        mine = np.flatnonzero(gpu == one)
        count, numbers = len(mine), np.arange(len(mine))
        at = np.concatenate((kernels.start_ns[mine], kernels.end_ns[mine]))
        order = np.argsort(at, kind="stable")
        change = np.concatenate((np.ones(count, np.int64), np.full(count, -1, np.int64)))[order]
        # Where one kernel runs, the sum of the numbers of those that run is its own.
        running = np.cumsum(np.concatenate((numbers, -numbers))[order])[:-1]
        single = np.flatnonzero(np.cumsum(change)[:-1] == 1)
        length = np.diff(at[order])[single]
        # Sums of whole numbers up to 2**53 are exact as floats: 104 days.
        out[mine] = np.bincount(running[single], weights=length, minlength=count).astype(np.int64)
    return out


def gpu_of(work: Activities) -> Ints:
    """One number for each GPU of each process: processes may number their GPUs differently."""
    numbers: Ints = (work.process.astype(np.int64) << 32) + work.device
    return numbers


def owned_ns(start: Ints, end: Ints, *, beside: Intervals | None = None) -> Ints:
    """What each interval covers that none before it does, nor the set `beside`.

    The owner of an instant is the first interval, by start, that covers it. So one interval owns what follows the
    latest end of all before it. Of those that start together the shortest comes first, whatever their order is.
    """
    if not len(start):
        return np.zeros(0, np.int64)
    order: Ints | None = None
    if not bool(np.all(start[1:] > start[:-1])):
        order = np.lexsort((end, start))
        start, end = start[order], end[order]
    begin = start.astype(np.int64)
    np.maximum(begin[1:], np.maximum.accumulate(end)[:-1], out=begin[1:])
    # One that lies inside those before it owns nothing.
    np.minimum(begin, end, out=begin)
    owned: Ints = end - begin
    if beside is not None:
        owned -= beside.covered_before(end) - beside.covered_before(begin)
    if order is None:
        return owned
    out = np.empty_like(owned)
    out[order] = owned
    return out

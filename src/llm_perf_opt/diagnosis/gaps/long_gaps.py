"""The longest gaps of a capture, what ran around them, and what the host did in them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from llm_perf_opt.capture.idle import LONG_GAP_NS, IdleMap
from llm_perf_opt.capture.intervals import Flags, Intervals, Ints, intersect, union
from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.timeline import Activities, Timeline, distinct, join, take
from llm_perf_opt.diagnosis.gaps.gap_verdict import (
    START_UP,
    HostCost,
    Verdict,
    compiles,
    is_built,
    is_built_per_shape,
    is_launch,
    is_tuning,
    means,
    readable,
)
from llm_perf_opt.diagnosis.gaps.host_gaps import CALL, KERNEL, NOTHING, OPERATOR, RANGE, HostActivity, HostRecord
from llm_perf_opt.diagnosis.gaps.startup_gaps import RECURRING, StartUp, find_start_up, goes_on

# This many of the longest gaps are inspected, and a sample of this many others that represents the rest.
MAX_LOOKED_INTO, SAMPLED = 200, 100
SHOWN = 20
# Set-up is over where less than this part of what follows is set-up again: some is met in the middle of things. Where
# there is little of it in all, what lies in this first part of a capture is cut off, and the rest is left alone.
LITTLE_SETUP, LEADING = 0.06, 0.1
# Start-up that fills this part of a gap explains all of it, from this part on its own share.
MOSTLY, SOME = 0.75, 0.25
# A kernel built by a compiler is among so many that follow on the gap in which its code was loaded.
SOON = 8
# Compiled again: this many gaps are followed by kernels half of which followed on an earlier such gap too.
COMPILED_AGAIN, SAME_KERNELS, LOOKED_AHEAD = 3, 0.5, 16
# An operator that stalls once in the later part of the work uses nothing for the first time.
EARLY = 0.5
# A gap of which this part lies after the launch is not the host's.
HELD = 0.5
# What start-up may be taken for.
REFINED: tuple[Verdict, ...] = ("host_work", "unknown", "allocation", "stalls", "compilation")
BEFORE_FIRST = "the time before the first kernel"
ALLOCATION: Verdict = "allocation"
# Set-up work that recurs.
GOING_ON: tuple[Verdict, ...] = ("recompilation", "stalls")

# What the host did, and when.
_Piece = tuple[HostActivity, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A time without any kernel; the causes add up to its length. `long_ns` is of `host_ns`, see `IdleMap.long`.

    `start_ns` counts from the first GPU work of the process. `before` and `after` are the kernels around it, `activity`
    is what the host did until it launched what ended the gap (in all of it, where it had launched that already).
    `waited_in` is the synchronisation call that holds most of the gap's waiting.
    """

    source: int
    start_ns: int
    length_ns: int
    host_ns: int
    long_ns: int
    sync_ns: int
    copy_ns: int
    between_ns: int
    before: str | None
    after: str | None
    activity: HostActivity
    waited_in: str | None = None

    @property
    def is_first(self) -> bool:
        return self.before is None and self.start_ns == 0

    @property
    def is_last(self) -> bool:
        return self.after is None and self.before is not None

    @property
    def is_held(self) -> bool:
        is_late = self.length_ns >= LONG_GAP_NS and self.between_ns >= HELD * self.length_ns
        return is_late and self.activity.verdict != "profiler"


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Gaps for which the host had the same reason: how many, and how long the GPU waited for the host in them.

    `where` is the range around the longest of them, `owner` and `user_code` are those of the longest. `recurs`: they
    come again and again to the end of the capture, before kernels that had run already. `shared` of the gaps are
    reported with another reason first, which fills more of them.
    """

    verdict: Verdict
    name: str | None
    kind: str | None
    where: str | None
    gaps: int
    host_ns: int
    recurs: bool = False
    shared: int = 0
    cost: HostCost = "unknown"
    owner: tuple[str, ...] = ()
    user_code: str | None = None


@dataclass(frozen=True, kw_only=True)
class LongGaps:
    """All gaps counted by length, the longest by themselves, and the reasons of the long ones, the costliest first.

    `held_count` and `held_ns` are about long gaps that lie mostly after the return of the launch: something other than
    the host held the work back. `setup_end_ns`: from when on there is little set-up any more, on the capture's own
    clock, in the process that launched most; None where there was none, or several captures. `long_from_ns`: gaps are
    long from this length on. `long_host_ns` of `long_ns` waited for the host: the reasons add up to it.
    """

    short_count: int
    long_count: int
    long_ns: int
    held_count: int
    held_ns: int
    longest: tuple[Gap, ...]
    reasons: tuple[Reason, ...]
    setup_end_ns: int | None = None
    long_from_ns: int = LONG_GAP_NS
    long_host_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class _Looked:
    """A gap that was inspected, how many gaps it stands for, and what the host did in it.

    `parts` add up to the gap's `long_ns`; the first is of its own activity. A sample stands for others as well.
    """

    gap: Gap
    weight: float
    parts: tuple[tuple[HostActivity, int], ...]
    is_sample: bool = False


def find_long_gaps(
    timeline: Timeline,
    maps: Mapping[int, IdleMap],
    *,
    source: int = 0,
    startup: StartUp | None = None,
    shown: int = SHOWN,
) -> LongGaps:
    """Inspect the longest gaps of each process; `startup` is that of the timeline where it is known already.

    Of the gaps inspected, the `shown` longest are returned.
    """
    startup = find_start_up(timeline, maps) if startup is None else startup
    compute = join([timeline.kernels, timeline.graphs])
    short = long = long_ns = host_ns = 0
    gaps: list[Gap] = []
    reasons: list[Reason] = []
    held_count = held_ns = 0.0
    setup_end_ns, main = None, _main_process(compute)
    for code, one in maps.items():
        once: list[Gap] = []
        own_threads = timeline.thread_process == code
        length = _lengths_of_gaps(one)
        chosen = np.flatnonzero(length >= one.long_from_ns)
        short += int(((length > 0) & (length < one.long_from_ns)).sum())
        long += len(chosen)
        long_ns += int(length[chosen].sum())
        if len(chosen):
            chosen = chosen[np.argsort(-length[chosen], kind="stable")]
            rest = chosen[MAX_LOOKED_INTO:]
            sample = rest[:: -(-len(rest) // SAMPLED)] if len(rest) else rest
            chosen = np.concatenate((chosen[:MAX_LOOKED_INTO], sample))
            weights = [1.0] * (len(chosen) - len(sample)) + [len(rest) / max(len(sample), 1)] * len(sample)
            others = _gaps(one, rest)
            rest_ns = int(one.split(others.start, others.end).long_ns.sum()) if len(rest) else 0
            own = compute if len(maps) == 1 else take(compute, np.flatnonzero(compute.process == code))
            picked = _gaps(one, chosen)
            # Of a long capture this is large.
            del length
            around = _Neighbours(timeline, own)
            seen = _look_into(timeline, around, one, picked, weights, source, startup, own_threads)
            looked = _judge_by_spread(seen, around, one)
            found = [each.gap for each in looked]
            gaps += found
            once = _one_time(found, around, one)
            added = _reasons(looked, around, one, rest_ns)
            host_ns += sum(reason.host_ns for reason in added)
            reasons += added
            held_count += sum(each.weight for each in looked if each.gap.is_held)
            held_ns += sum(each.weight * each.gap.between_ns for each in looked if each.gap.is_held)
        if code == main:
            setup_end_ns = _setup_end(once, one, startup.until_work(own_threads, one.busy))
    gaps.sort(key=lambda gap: (-gap.length_ns, gap.start_ns))
    return LongGaps(
        short_count=short,
        long_count=long,
        long_ns=long_ns,
        held_count=round(held_count),
        held_ns=round(held_ns),
        longest=tuple(gaps[:shown]),
        reasons=_merged(reasons),
        setup_end_ns=setup_end_ns,
        long_from_ns=min((one.long_from_ns for one in maps.values()), default=LONG_GAP_NS),
        long_host_ns=host_ns,
    )


def _main_process(compute: Activities) -> int | None:
    """The process most kernels and graphs are of: a compiler's workers touch the GPU too."""
    return int(np.argmax(np.bincount(compute.process))) if len(compute) else None


def _one_time(gaps: Sequence[Gap], around: "_Neighbours", one: IdleMap) -> list[Gap]:
    """Gaps of set-up; building kernels for new shapes is none where new shapes come to the end of the capture."""
    shapes = [gap for gap in gaps if gap.activity.verdict == "new_shapes" and gap.long_ns > 0]
    found = [gap for gap in gaps if gap.activity.verdict == "compilation" and gap.long_ns > 0]
    return found if around.goes_on(_ends(shapes, one)) else found + shapes


def _setup_end(gaps: Sequence[Gap], one: IdleMap, startup: Intervals) -> int | None:
    """The end of the start-up after which there is little more of it, in gaps and alongside kernels (autotuning)."""
    begin_ns, end_ns = one.span
    known = [(begin_ns + gap.start_ns, begin_ns + gap.start_ns + gap.length_ns) for gap in gaps]
    known += list(zip(startup.start.tolist(), startup.end.tolist(), strict=True))
    inside = [(max(start, begin_ns), min(end, end_ns)) for start, end in known if start < end_ns and end > begin_ns]
    if not inside:
        return None
    parts = union(np.array([start for start, _ in inside]), np.array([end for _, end in inside]))
    length = parts.end - parts.start
    # What is left of it after each of its parts.
    later = length.sum() - np.cumsum(length)
    if int(length.sum()) <= LITTLE_SETUP * (end_ns - begin_ns):
        leading = parts.end[parts.end - begin_ns <= LEADING * (end_ns - begin_ns)]
        return int(leading[-1]) if len(leading) else None
    return int(parts.end[np.argmax(later <= LITTLE_SETUP * (end_ns - parts.end))])


def merge_long_gaps(parts: Sequence[LongGaps], *, single: frozenset[str] = frozenset()) -> LongGaps:
    """Those of several captures together; host work in `single` ranges is that of single instances, or a stall.

    Where such gaps come to the end of the capture, single instances stall again and again.
    """

    def judged(reason: Reason) -> Verdict:
        if reason.verdict != "host_work" or reason.kind != RANGE or reason.name not in single:
            return reason.verdict
        return "stalls" if reason.recurs else "single_instances"

    longest = sorted((gap for part in parts for gap in part.longest), key=lambda gap: -gap.length_ns)
    return LongGaps(
        short_count=sum(part.short_count for part in parts),
        long_count=sum(part.long_count for part in parts),
        long_ns=sum(part.long_ns for part in parts),
        held_count=sum(part.held_count for part in parts),
        held_ns=sum(part.held_ns for part in parts),
        longest=tuple(longest[:SHOWN]),
        reasons=tuple(
            replace(reason, verdict=judged(reason))
            for reason in _merged(reason for part in parts for reason in part.reasons)
        ),
        setup_end_ns=parts[0].setup_end_ns if len(parts) == 1 else None,
        long_from_ns=min((part.long_from_ns for part in parts), default=LONG_GAP_NS),
        long_host_ns=sum(part.long_host_ns for part in parts),
    )


def _lengths_of_gaps(one: IdleMap) -> Ints:
    """The lengths of the times without a kernel, from the first GPU work to the last."""
    length = np.empty(len(one.busy.start) + 1, np.int64)
    length[1:] = one.busy.end
    length[0] = one.span[0]
    np.subtract(one.busy.start, length[:-1], out=length[:-1])
    length[-1] = one.span[1] - length[-1]
    return length


def _gaps(one: IdleMap, index: Ints) -> Intervals:
    """Some of these times, by their places."""
    start, end = np.full(len(index), one.span[0], np.int64), np.full(len(index), one.span[1], np.int64)
    behind, before = index > 0, index < len(one.busy.start)
    start[behind] = one.busy.end[index[behind] - 1]
    end[before] = one.busy.start[index[before]]
    return Intervals(start=start, end=end)


def _look_into(
    timeline: Timeline,
    around: "_Neighbours",
    one: IdleMap,
    gaps: Intervals,
    weights: Sequence[float],
    source: int,
    startup: StartUp,
    own_threads: Flags,
) -> list[_Looked]:
    split = one.split(gaps.start, gaps.end)
    calls = timeline.calls
    # What is requested is a part of a gap, alongside the waiting in it.
    record = HostRecord(timeline, one.long_from_ns // 2)
    starts = _StartUps(timeline, one, startup, own_threads)
    waits = _WaitsInside(timeline, own_threads)
    found = []
    for i, (start, end) in enumerate(zip(gaps.start.tolist(), gaps.end.tolist(), strict=True)):
        before, after, call = around.of(start, end)
        long_ns = int(split.long_ns[i])
        activity = host_activity = NOTHING
        pieces: list[_Piece] = []
        since, until = start, end
        if call >= 0:
            # What the host does alongside copies, waits, and the start of what it launched is what keeps the GPU idle.
            since, until = _longest_part(one.long, start, end) if long_ns > 0 else (start, end)
            thread = int(calls.thread[call])
            host_activity = record.during(since, until, thread)
            rests = record.rests(host_activity, since, until, thread, one.long_from_ns)
            pieces = [(record.during(*rest, thread), rest) for rest in rests]
            activity = _by_neighbours(
                host_activity, record, around, gap=(start, end), part=(since, until), thread=thread, after=after
            )
        tuner = next((name for name in (before, after) if is_tuning(name)), None)
        if tuner is not None and activity.verdict in ("host_work", "unknown"):
            activity = replace(activity, verdict="compilation", cost="autotuning", kind=KERNEL, name=tuner)
        # What the kernels around a gap show is true of all of it.
        pieces = pieces if activity is host_activity else []
        pieces.insert(0, (activity, _without_ends((since, until), [rest for _, rest in pieces])))
        if call >= 0 and long_ns > 0:
            refined = [starts.refine(piece, int(calls.thread[call])) for piece in pieces]
            shares = [share for some in refined for share in some]
        else:
            shares = [(what, until - since) for what, (since, until) in pieces]
        amounts = _scaled([ns for _, ns in shares], long_ns)
        parts = tuple((what, ns) for (what, _), ns in zip(shares, amounts, strict=True))
        if before is None and split.copy_ns[i] > 0 and parts[0][0].verdict in ("host_work", "unknown"):
            parts = ((_loading(parts[0][0]), parts[0][1]), *parts[1:])
        gap = Gap(
            source=source,
            start_ns=start - one.span[0],
            length_ns=end - start,
            host_ns=int(split.host_ns[i]),
            long_ns=long_ns,
            sync_ns=int(split.sync_ns[i]),
            copy_ns=int(split.copy_ns[i]),
            between_ns=int(split.between_ns[i]),
            before=before,
            after=after,
            activity=parts[0][0],
            waited_in=waits.longest(start, end) if split.sync_ns[i] > 0 else None,
        )
        found.append(_Looked(gap=gap, weight=weights[i], parts=parts, is_sample=i >= MAX_LOOKED_INTO))
    return found


def _by_neighbours(
    activity: HostActivity,
    record: HostRecord,
    around: "_Neighbours",
    *,
    gap: tuple[int, int],
    part: tuple[int, int],
    thread: int,
    after: str | None,
) -> HostActivity:
    """What the host did in a part of a gap, corrected by the kernels around it: it built or compiled the next one."""
    start, end = gap
    is_silent = activity.verdict == "unknown" or record.is_only_inside(activity, *part, thread)
    if is_silent and record.has_loaded(start, end, thread):
        # Where nothing else says what the host did before it loaded such a kernel, it built it.
        built = around.built_soon(end)
        if built is not None:
            activity = replace(activity, verdict="compilation", cost="jit_compilation", kind=KERNEL, name=built)
    is_shape = activity.verdict in ("compilation", "stalls") and is_built_per_shape(after)
    if is_shape and not record.is_warming_up(*part, thread):
        activity = replace(activity, verdict="new_shapes", cost="new_shapes", kind=KERNEL, name=after)
    if activity.verdict == "host_work" and means(activity.name, "runs_compiled") and around.runs_first(end):
        activity = replace(activity, verdict="compilation", cost="jit_compilation")
    return activity


def _without_ends(window: tuple[int, int], ends: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """What is left of a time without some that lie at its ends."""
    since, until = window
    for begun, ended in ends:
        since, until = (ended, until) if begun == since else (since, begun)
    return since, until


class _StartUps:
    """How much of the waiting for the host is start-up, and of what."""

    def __init__(self, timeline: Timeline, one: IdleMap, startup: StartUp, own_threads: Flags) -> None:
        self._timeline, self._one, self._startup, self._own = timeline, one, startup, own_threads
        self._covered: dict[int, Intervals] = {}

    def refine(self, piece: _Piece, thread: int) -> list[tuple[HostActivity, int]]:
        """A piece of a gap with its start-up apart, where that is more than a small part of it.

        What is known to be something else that blocks the host (loading data, another rank, the profiler) stays that.
        """
        activity, (start, end) = piece
        whole = [(activity, end - start)]
        if not len(self._startup) or activity.verdict not in REFINED:
            return whole
        # Where nothing of the thread is known, another of its process may have started something up.
        thread = thread if activity.verdict != "unknown" else -1
        threads = self._threads(thread)
        inside = self._inside(thread, threads)
        first = int(inside.end.searchsorted(start, "right"))
        if first == len(inside.start) or inside.start[first] >= end:
            return whole
        window = np.array([start, end])
        start_ns = int(np.diff(inside.covered_before(window))[0])
        if not start_ns:
            return whole
        long_ns = int(np.diff(self._one.long.covered_before(window))[0])
        most = self._startup.costliest(start, end, threads) if start_ns >= SOME * long_ns else None
        if most is None:
            return whole
        cost, name = most
        if activity.verdict == "compilation":
            return [(replace(activity, cost=cost), end - start)] if activity.cost == "first_use" else whole
        kind, called = CALL if cost != "autotuning" else OPERATOR, readable(self._timeline.names[name])
        started = replace(activity, verdict="compilation", cost=cost, kind=kind, name=called)
        if start_ns >= MOSTLY * long_ns:
            return [(started, end - start)]
        both = [(started, start_ns), (activity, end - start - start_ns)]
        return both if 2 * start_ns >= long_ns else both[::-1]

    def _threads(self, thread: int) -> Flags:
        """One thread, or all of the process (-1)."""
        if thread < 0:
            return self._own
        alone = np.zeros(len(self._own), np.bool_)
        alone[thread] = True
        return alone

    def _inside(self, thread: int, threads: Flags) -> Intervals:
        if thread not in self._covered:
            once = self._startup.once(threads)
            self._covered[thread] = intersect(once.start, once.end, self._one.long)
        return self._covered[thread]


class _WaitsInside:
    """The synchronisation calls of one process."""

    def __init__(self, timeline: Timeline, own_threads: Flags) -> None:
        calls = timeline.calls
        waits = np.flatnonzero(calls.waits & own_threads[calls.thread] & (calls.name >= 0))
        waits = waits[np.argsort(calls.start_ns[waits], kind="stable")]
        self._names, self._calls, self._waits = timeline.names, calls, waits
        self._reach = np.maximum.accumulate(calls.end_ns[waits]) if len(waits) else waits

    def longest(self, start: int, end: int) -> str | None:
        """The name with most time inside a window."""
        calls = self._calls
        first = int(self._reach.searchsorted(start, side="right"))
        last = int(np.searchsorted(calls.start_ns[self._waits], end, side="left"))
        mine = self._waits[first:last]
        spent: dict[int, int] = {}
        for index in mine.tolist():
            overlap = min(int(calls.end_ns[index]), end) - max(int(calls.start_ns[index]), start)
            spent[int(calls.name[index])] = spent.get(int(calls.name[index]), 0) + max(overlap, 0)
        return readable(self._names[max(spent, key=spent.__getitem__)]) if spent else None


def _judge_by_spread(looked: list[_Looked], around: "_Neighbours", one: IdleMap) -> list[_Looked]:
    """The gaps, with recurring ones separated from set-up: compiling again, stalls, and allocations."""
    ends = {
        verdict: _ends([each.gap for each in looked if _may_recur(each.gap.activity) == verdict], one)
        for verdict in (*GOING_ON, ALLOCATION)
    }
    recurring = {
        "recompilation": around.compiles_again(ends["recompilation"]),
        "stalls": around.goes_on(ends["stalls"]),
        # Memory that is all allocated in the first half of the work is kept from then on.
        ALLOCATION: not ends[ALLOCATION] or not around.is_early(max(ends[ALLOCATION])),
    }

    def judged(activity: HostActivity, end_ns: int) -> HostActivity:
        recurrence = _may_recur(activity)
        if recurrence is None:
            return activity
        if recurring[recurrence] and recurrence == ALLOCATION:
            return activity
        if recurring[recurrence]:
            return replace(
                activity, verdict=recurrence, cost="recompilation" if recurrence == "recompilation" else "stall"
            )
        if activity.verdict == "stalls" and not around.is_early(end_ns):
            return replace(activity, verdict="host_work")
        return replace(
            activity, verdict="compilation", cost=activity.cost if activity.cost in START_UP else "first_use"
        )

    done = []
    for each in looked:
        end_ns = one.span[0] + each.gap.start_ns + each.gap.length_ns
        if all(_may_recur(activity) is None for activity, _ in each.parts):
            done.append(each)
            continue
        parts = tuple((judged(activity, end_ns), ns) for activity, ns in each.parts)
        done.append(replace(each, gap=replace(each.gap, activity=parts[0][0]), parts=parts))
    return done


def _may_recur(activity: HostActivity) -> Verdict | None:
    """What set-up is, if it is none."""
    if activity.verdict == ALLOCATION:
        return ALLOCATION
    if activity.verdict == "compilation" and (activity.cost == "jit_compilation" or compiles(activity.name)):
        return "recompilation"
    # A launch that takes long loads what it launches, once.
    is_launching = activity.verdict == "compilation" and is_launch(activity.name)
    return "stalls" if activity.verdict == "stalls" or is_launching else None


def _loading(activity: HostActivity) -> HostActivity:
    """Before its first kernel a program that copies to the device loads what it needs."""
    if activity.name is None:
        return replace(activity, verdict="compilation", cost="first_use", kind="time", name=BEFORE_FIRST)
    return replace(activity, verdict="compilation", cost="first_use")


def _longest_part(parts: Intervals, start: int, end: int) -> tuple[int, int]:
    """The longest of some intervals inside a time."""
    inside = slice(int(parts.end.searchsorted(start, side="right")), int(parts.start.searchsorted(end, side="left")))
    begins, ends = np.maximum(parts.start[inside], start), np.minimum(parts.end[inside], end)
    if not len(begins):
        return start, end
    longest = int(np.argmax(ends - begins))
    return int(begins[longest]), int(ends[longest])


class _Neighbours:
    """What ran before and after a gap, and the call that launched the latter."""

    def __init__(self, timeline: Timeline, compute: Activities) -> None:
        self._names = timeline.names
        self._short_names: dict[int, str] = {}
        self._start, self._end, self._name, self._call = compute.start_ns, compute.end_ns, compute.name, compute.call
        if not bool(np.all(self._start[1:] >= self._start[:-1])):
            order = np.argsort(self._start, kind="stable")
            self._start, self._end = self._start[order], self._end[order]
            self._name, self._call = self._name[order], self._call[order]
        self._reach = np.maximum.accumulate(self._end) if len(self._end) else self._end

    def of(self, start: int, end: int) -> tuple[str | None, str | None, int]:
        following = int(self._start.searchsorted(end, side="left"))
        before = after = None
        call = -1
        if following < len(self._start):
            after, call = self._short(following), int(self._call[following])
        if following > 0 and int(self._reach[following - 1]) <= start:
            # The first position where the reach is what it is before the gap is the kernel that ended last.
            before = self._short(int(np.searchsorted(self._reach[:following], self._reach[following - 1], side="left")))
        return before, after, call

    def built_soon(self, end: int) -> str | None:
        """The first kernel that is built while a program runs, among those that follow on a gap."""
        following = int(self._start.searchsorted(end, side="left"))
        built = self._built[self._name[following : following + SOON]]
        return self._short(following + int(np.argmax(built))) if built.any() else None

    def runs_first(self, end: int) -> bool:
        """Whether the kernel that follows on a gap is the first of its name."""
        following = int(self._start.searchsorted(end, side="left"))
        return following < len(self._start) and int(self._first[self._name[following]]) == following

    def is_early(self, at: int) -> bool:
        """Whether less than half of the work lies before a moment."""
        return int(self._start.searchsorted(at)) < EARLY * len(self._start)

    def goes_on(self, ends: Sequence[int]) -> bool:
        """Whether gaps that end at these times are spread over the work to its end, before kernels that ran already."""
        following = self._start.searchsorted(np.array(ends, np.int64))
        following = following[following < len(self._start)]
        again = following[self._first[self._name[following]] < following]
        return goes_on(again, len(self._start), often=RECURRING)

    def compiles_again(self, ends: Sequence[int]) -> bool:
        """Whether gaps that end at these times are spread over the work to its end, before the same kernels as others.

        What is compiled again for a new shape runs kernels of the same names but for a few that a library picks.
        """
        following = distinct(self._start.searchsorted(np.array(ends, np.int64)))
        following = following[following < len(self._start)]
        if len(following) <= COMPILED_AGAIN:
            return False
        bounds = [*following[1:].tolist(), len(self._start)]
        seen: list[frozenset[int]] = []
        again = []
        for first, last in zip(following.tolist(), bounds, strict=True):
            names = frozenset(self._name[first : min(last, first + LOOKED_AHEAD)].tolist())
            if any(len(names & other) >= SAME_KERNELS * len(names) for other in seen):
                again.append(first)
            seen.append(names)
        return goes_on(np.array(again, np.int64), len(self._start), often=COMPILED_AGAIN)

    @cached_property
    def _built(self) -> Flags:
        """By name: whether it is that of a kernel built while the program runs."""
        found = np.zeros(len(self._names), np.bool_)
        for code in distinct(self._name).tolist():
            found[code] = is_built(short_kernel_name(self._names[code]))
        return found

    @cached_property
    def _first(self) -> Ints:
        """By name: which kernel of it ran first."""
        found = np.zeros(len(self._names), np.int64)
        # The last of several that are written to one place stays.
        found[self._name[::-1]] = np.arange(len(self._name))[::-1]
        return found

    def _short(self, index: int) -> str:
        code = int(self._name[index])
        if code not in self._short_names:
            self._short_names[code] = short_kernel_name(self._names[code])
        return self._short_names[code]


def _ends(gaps: Sequence[Gap], one: IdleMap) -> list[int]:
    return [one.span[0] + gap.start_ns + gap.length_ns for gap in gaps]


def _reasons(looked: Sequence[_Looked], around: "_Neighbours", one: IdleMap, rest_ns: int) -> list[Reason]:
    """Those of one process; they add up to its waiting for the host in long gaps.

    `rest_ns` is the waiting in the gaps that the samples stand for: their parts are scaled to it.
    """
    counted = [(each, activity, ns) for each in looked if not each.is_sample for activity, ns in each.parts]
    sampled = [(each, activity, ns) for each in looked if each.is_sample for activity, ns in each.parts]
    scaled = _scaled([ns for _, _, ns in sampled], rest_ns)
    counted += [(each, activity, ns) for (each, activity, _), ns in zip(sampled, scaled, strict=True)]
    totals: dict[tuple[str, HostCost, str | None, str | None], list[tuple[_Looked, HostActivity, int]]] = {}
    for each, activity, ns in counted:
        if ns > 0:
            key = (activity.verdict, activity.cost, activity.name, activity.kind)
            totals.setdefault(key, []).append((each, activity, ns))
    found = []
    for same in totals.values():
        _, longest, _ = max(same, key=lambda entry: entry[2])
        goes_on = around.goes_on(_ends([each.gap for each, _, _ in same], one))
        found.append(
            Reason(
                verdict=longest.verdict,
                cost=longest.cost,
                name=longest.name,
                kind=longest.kind,
                where=longest.where,
                owner=longest.owner,
                user_code=longest.user_code,
                gaps=round(sum(each.weight for each, _, _ in same)),
                host_ns=sum(ns for _, _, ns in same),
                recurs=longest.verdict in GOING_ON or goes_on,
                shared=round(sum(each.weight for each, activity, _ in same if activity is not each.gap.activity)),
            )
        )
    return found


def _scaled(parts: Sequence[int], total: int) -> list[int]:
    """Parts in proportion that add up to a total; the last that is none takes what rounding leaves."""
    whole = sum(parts)
    if not parts or not whole:
        return list(parts)
    scaled = [part * total // whole for part in parts]
    scaled[max(i for i, part in enumerate(parts) if part)] += total - sum(scaled)
    return scaled


def _merged(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The reasons of several processes or captures together, the costliest first."""
    totals: dict[tuple[str, HostCost, str | None, str | None], list[Reason]] = {}
    for reason in reasons:
        totals.setdefault((reason.verdict, reason.cost, reason.name, reason.kind), []).append(reason)
    merged = [
        replace(
            same[0],
            gaps=sum(reason.gaps for reason in same),
            host_ns=sum(reason.host_ns for reason in same),
            recurs=any(reason.recurs for reason in same),
            shared=sum(reason.shared for reason in same),
        )
        for same in totals.values()
    ]
    return tuple(sorted(merged, key=lambda reason: (-reason.host_ns, reason.name or "")))

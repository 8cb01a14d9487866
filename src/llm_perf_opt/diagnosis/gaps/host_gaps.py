"""What a host thread did during a time."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Ints
from llm_perf_opt.capture.timeline import HostEvents, Timeline, grouped, is_warmup
from llm_perf_opt.diagnosis.gaps.gap_owners import LONGEST_CHAIN, HostOwner, owner_of
from llm_perf_opt.diagnosis.gaps.gap_verdict import HostCost, Judged, Verdict, flags_of, judge, judge_overhead, readable

CALL, OPERATOR, FRAME, SYSTEM, RANGE = "runtime call", "operator", "Python frame", "system call", "range"
OVERHEAD, KERNEL = "overhead", "kernel"
# What is this much of a time explains it.
COVERS = 0.5
# What it leaves is another user's from this part on.
SMALL = 0.25
# At most this many calls explain a time together.
SEVERAL = 8
# What is longer than this many times does more than that.
NEAR = 3
# An operator that takes this many times its median, of at least a few calls, and this long, does something once; of its
# first calls less is enough: there it loads code, chooses kernels, fills caches.
UNUSUAL, FEW, FIRST_USE_NS = 20, 5, 5_000_000
FIRST_CALLS, UNUSUAL_FIRST = 3, 5
# Where later calls take this part of it as well, the first ones are nothing special.
AGAIN = 0.5
# Frames of the interpreter itself are less informative than their caller.
_BUILT_IN = "<built-in"
FIRST_USE = Judged(verdict="compilation", cost="first_use")
STALLS = Judged(verdict="stalls", cost="stall")


@dataclass(frozen=True, kw_only=True)
class HostActivity:
    """The work that explains a time: what it is called, what kind of thing that is, and the range around it.

    `cost` is the finer kind of work. `owner` are the Python functions the time was spent in, leaf first, the user's own
    code last; where no frame names it, the operators around it, innermost first. `user_code` is the innermost function
    of the user's own, None where none is known.
    """

    verdict: Verdict
    cost: HostCost = "unknown"
    kind: str | None
    name: str | None
    where: str | None
    owner: tuple[str, ...] = ()
    user_code: str | None = None


NOTHING = HostActivity(verdict="unknown", kind=None, name=None, where=None)


@dataclass(frozen=True, kw_only=True)
class _Usual:
    """What an operator usually takes (None: too few calls), when its first calls had ended, and the longest of
    all later ones.
    """

    median_ns: float | None
    until_ns: int
    later_ns: int


class HostRecord:
    """The host events of a capture that last long enough to explain one of some times."""

    def __init__(self, timeline: Timeline, shortest_ns: int) -> None:
        self._names = timeline.names
        self._process = timeline.thread_process
        calls, ranges = timeline.calls, timeline.ranges
        all_calls = HostEvents(start_ns=calls.start_ns, end_ns=calls.end_ns, name=calls.name, thread=calls.thread)
        self._sources = {
            CALL: all_calls,
            OPERATOR: timeline.operators,
            FRAME: timeline.frames,
            SYSTEM: timeline.system,
            RANGE: ranges.as_events,
        }
        self._shortest_ns = shortest_ns
        # Picked when first asked for: who wants a place asks for no calls, and those are the most.
        self._long: dict[tuple[str, int], HostEvents] = {}
        self._operators = timeline.operators
        self._pauses = timeline.pauses
        self._calls, self._ranges = calls, ranges
        # Found when first asked for: most captures never ask.
        self._usual: dict[str, _Usual] = {}
        self._by_start: Ints | None = None
        self._starts: Ints = np.zeros(0, np.int64)
        # Of the time asked about last: several questions are about the same.
        self._covers: tuple[tuple[int, int, int], dict[tuple[str, bool, float], Ints]] = ((0, 0, 0), {})

    def during(self, start: int, end: int, thread: int) -> HostActivity:
        """What the thread did; where nothing of it is recorded, what another of its process did.

        A pause of the profiler comes first: what the host did in it, it would have done in no time.
        """
        found = (
            self._paused(start, end, thread)
            or self._found_in(start, end, thread, own=True)
            or self._found_in(start, end, thread, own=False)
            or self._calls_of(CALL, start, end, thread)
            or self._calls_of(SYSTEM, start, end, thread)
            or self._operators_of(start, end, thread)
            or NOTHING
        )
        owner = self._owner(start, end, thread)
        return replace(found, owner=owner.chain, user_code=owner.user_code) if owner.chain else found

    def _found_in(self, start: int, end: int, thread: int, *, own: bool) -> HostActivity | None:
        """What a thread was in; of a range of the program that says nothing of it, several calls that do."""
        found = self._find(start, end, thread, own=own)
        if found is None or found.kind != RANGE or found.cost != "host_work":
            return found
        judged = self._calls_of(CALL, start, end, thread, own=own)
        return found if judged is None or judged.cost == "host_work" else replace(judged, where=found.name)

    def _owner(self, start: int, end: int, thread: int) -> HostOwner:
        """By Python frames, else by operators."""
        # All there are: many short calls of one function may own a time together.
        frames = self._sources[FRAME]
        if len(frames):
            index = frames.near(start, end)
            found = owner_of(self._names, frames, index[frames.thread[index] == thread], start, end)
            if found.chain:
                return found
        if not len(self._operators):
            return HostOwner()
        around = dict.fromkeys(name for name, _ in self._covering(OPERATOR, start, end, thread, own=True))
        return HostOwner(chain=tuple(readable(name) for name in [*around][:LONGEST_CHAIN]))

    def rests(self, activity: HostActivity, start: int, end: int, thread: int, least_ns: int) -> list[tuple[int, int]]:
        """The times before and after the one event of the thread that explains a time, where they last that long.

        None where they are a small part together.
        """
        if activity.kind not in self._sources:
            return []
        events, covering = self._cover(activity.kind, start, end, thread, own=True, share=COVERS)
        named = [i for i in covering.tolist() if readable(self._names[int(events.name[i])]) == activity.name]
        if not named:
            return []
        begun, ended = int(events.start_ns[named[0]]), int(events.end_ns[named[0]])
        if max(begun - start, 0) + max(end - ended, 0) < SMALL * (end - start):
            return []
        return [(since, until) for since, until in ((start, begun), (ended, end)) if until - since >= least_ns]

    def _calls_of(self, kind: str, start: int, end: int, thread: int, *, own: bool = True) -> HostActivity | None:
        """The call with most time among several of one kind that fill half of a time together."""
        events = self._long_ones(kind, self._shortest_ns // SEVERAL)
        index = events.near(start, end)
        overlap = np.minimum(events.end_ns[index], end) - np.maximum(events.start_ns[index], start)
        inside = (overlap > 0) & (events.name[index] >= 0) & self._fits(events.thread[index], thread, own=own)
        index, overlap = index[inside], overlap[inside]
        if not len(index) or int(overlap.sum()) < COVERS * (end - start):
            return None
        names, place = grouped(events.name[index])
        name = self._names[int(names[np.argmax(np.bincount(place, weights=overlap))])]
        judged = judge([name], [name])
        return HostActivity(verdict=judged.verdict, cost=judged.cost, kind=kind, name=readable(name), where=None)

    def _operators_of(self, start: int, end: int, thread: int) -> HostActivity | None:
        """The operator with most time among many short ones that fill half of a time together."""
        name = self._busiest(start, end, thread)
        if name is None:
            return None
        judged = judge([name], [name])
        return HostActivity(verdict=judged.verdict, cost=judged.cost, kind=OPERATOR, name=readable(name), where=None)

    def _paused(self, start: int, end: int, thread: int) -> HostActivity | None:
        """The profiler, or the driver that loads code, if their pauses fill half of a time."""
        pauses = self._pauses
        if not len(pauses):
            return None
        spent: dict[tuple[Verdict, HostCost], dict[str, int]] = {}
        for index in pauses.near(start, end).tolist():
            overlap = min(int(pauses.end_ns[index]), end) - max(int(pauses.start_ns[index]), start)
            name = self._names[int(pauses.name[index])]
            judged = judge_overhead(name)
            is_ours = self._process[pauses.thread[index]] == self._process[thread]
            if judged is not None and overlap > 0 and is_ours:
                names = spent.setdefault((judged.verdict, judged.cost), {})
                names[name] = names.get(name, 0) + overlap
        for (verdict, cost), names in spent.items():
            if sum(names.values()) >= COVERS * (end - start):
                most = max(names, key=names.__getitem__)
                return HostActivity(verdict=verdict, cost=cost, kind=OVERHEAD, name=most, where=None)
        return None

    def place(self, start: int, end: int, thread: int) -> str | None:
        """The innermost operator (else frame) around a time, and the innermost range around that."""
        found = {
            kind: self._covering(kind, start, end, thread, own=True, share=1.0) for kind in (OPERATOR, FRAME, RANGE)
        }
        inner = (found[OPERATOR] or found[FRAME])[:1]
        return " in ".join(name for name, _ in (*inner, *found[RANGE][:1])) or None

    def has_loaded(self, start: int, end: int, thread: int) -> bool:
        """Whether the thread loaded code onto the GPU in a time."""
        begun, threads = self._loads
        inside = slice(*begun.searchsorted((start, end)))
        return bool((threads[inside] == thread).any())

    def is_only_inside(self, activity: HostActivity, start: int, end: int, thread: int) -> bool:
        """Whether all that is known of a time is a range around it, which continues when the time is over."""
        if activity.kind != RANGE or activity.cost != "host_work":
            return False
        around = self._covering(RANGE, start, end, thread, own=True, share=1.0)
        return any(readable(name) == activity.name for name, _ in around)

    def is_warming_up(self, start: int, end: int, thread: int) -> bool:
        """Whether a range of the thread around a time is a warm-up, by its name."""
        return any(is_warmup(name) for name, _ in self._covering(RANGE, start, end, thread, own=True))

    @cached_property
    def _loads(self) -> tuple[Ints, Ints]:
        """Starts and threads of the calls that load code, in time."""
        picked = np.flatnonzero(flags_of(self._names, "loads_code")[self._calls.name])
        picked = picked[np.argsort(self._calls.start_ns[picked], kind="stable")]
        return self._calls.start_ns[picked], self._calls.thread[picked]

    def _unusual(self, name: str, start: int, end: int) -> Judged | None:
        """Of an operator that took many times what it usually takes: its first calls load, compile or tune something.

        A later one that takes so long stalls: whether for new shapes or for something else, its neighbours show.
        """
        if name not in self._usual:
            same = np.flatnonzero(self._operators.name == self._names.index(name))
            begun, ended = self._operators.start_ns[same], self._operators.end_ns[same]
            order = np.argsort(begun, kind="stable")
            first, later = order[:FIRST_CALLS], order[FIRST_CALLS:]
            self._usual[name] = _Usual(
                median_ns=float(np.median(ended - begun)) if len(same) >= FEW else None,
                until_ns=int(ended[first].max()),
                later_ns=int((ended - begun)[later].max()) if len(later) else 0,
            )
        usual = self._usual[name]
        if usual.median_ns is None:
            return None
        is_first = start < usual.until_ns and usual.later_ns < AGAIN * (end - start)
        if end - start >= max(FIRST_USE_NS, UNUSUAL * usual.median_ns):
            return FIRST_USE if is_first else STALLS
        return FIRST_USE if is_first and end - start >= UNUSUAL_FIRST * usual.median_ns else None

    def _find(self, start: int, end: int, thread: int, *, own: bool) -> HostActivity | None:
        stacks = {
            kind: self._covering(kind, start, end, thread, own=own)
            for kind, events in self._sources.items()
            # Other threads sleep in system calls all the time.
            if len(events) and (own or kind != SYSTEM)
        }
        inner = [event for kind in (CALL, OPERATOR, FRAME, SYSTEM, RANGE) for event in stacks.get(kind, [])]
        if not inner:
            return None
        near = [name for name, length_ns in inner if length_ns <= NEAR * (end - start)]
        judged = judge([name for name, _ in inner], near)
        kind, name = self._named(stacks, judged.said)
        if kind == RANGE and judged.said is None and own:
            busiest = self._busiest(start, end, thread)
            kind, name = (OPERATOR, busiest) if busiest is not None else (kind, name)
        if judged.cost == "host_work" and kind == OPERATOR:
            judged = self._unusual(name, start, end) or judged
        warms_up = judged.verdict in ("host_work", "host_wait", "stalls")
        if warms_up and any(is_warmup(around) for around, _ in stacks.get(RANGE, [])):
            judged = FIRST_USE
        where = next((around for around, _ in stacks.get(RANGE, []) if around != name), None)
        return HostActivity(
            verdict=judged.verdict,
            cost=judged.cost,
            kind=kind,
            name=readable(name),
            where=where,
        )

    def _named(self, stacks: dict[str, list[tuple[str, int]]], said: str | None) -> tuple[str, str]:
        """The name that decided the verdict, or else the innermost one, by the most informative kind."""
        named = [(kind, name) for kind in (CALL, OPERATOR, FRAME, SYSTEM, RANGE) for name, _ in stacks.get(kind, [])]
        if said is not None:
            return next(pair for pair in named if pair[1] == said)
        return next((pair for pair in named if not pair[1].startswith(_BUILT_IN)), named[0])

    @cached_property
    def _is_program(self) -> Flags:
        """Threads that launch or open ranges run the program; others wait for work all the time."""
        found = np.zeros(len(self._process), np.bool_)
        found[self._calls.thread[self._calls.launches]] = True
        found[self._ranges.thread] = True
        return found

    def _fits(self, threads: Ints, thread: int, *, own: bool) -> Flags:
        """Which of some threads are the thread itself, or else run the program in its process."""
        found: Flags = threads == thread
        if not own:
            found = self._is_program[threads] & (self._process[threads] == self._process[thread])
        return found

    def _long_ones(self, kind: str, shortest_ns: int) -> HostEvents:
        """The events of one kind that can cover half of such a time."""
        if (kind, shortest_ns) not in self._long:
            events = self._sources[kind]
            pick: Ints = np.flatnonzero(events.end_ns - events.start_ns >= COVERS * shortest_ns)
            self._long[kind, shortest_ns] = events.take(pick)
        return self._long[kind, shortest_ns]

    def _covering(
        self, kind: str, start: int, end: int, thread: int, *, own: bool, share: float = COVERS
    ) -> list[tuple[str, int]]:
        """Names and lengths of the events of one kind that cover a time, the shortest (innermost) first."""
        events, index = self._cover(kind, start, end, thread, own=own, share=share)
        if not len(index):
            return []
        length = events.end_ns[index] - events.start_ns[index]
        return [(self._names[code], ns) for code, ns in zip(events.name[index].tolist(), length.tolist(), strict=True)]

    def _cover(
        self, kind: str, start: int, end: int, thread: int, *, own: bool, share: float
    ) -> tuple[HostEvents, Ints]:
        """The long events of one kind, and which of them cover a time, the shortest first."""
        events = self._long_ones(kind, self._shortest_ns)
        if self._covers[0] != (start, end, thread):
            self._covers = ((start, end, thread), {})
        known = self._covers[1]
        if (kind, own, share) not in known:
            known[kind, own, share] = self._find_cover(events, start, end, thread, own=own, share=share)
        return events, known[kind, own, share]

    def _find_cover(self, events: HostEvents, start: int, end: int, thread: int, *, own: bool, share: float) -> Ints:
        index = events.near(start, end)
        if not len(index):
            return index
        overlap = np.minimum(events.end_ns[index], end) - np.maximum(events.start_ns[index], start)
        index = index[overlap >= max(share * (end - start), 1)]
        if not len(index):
            return index
        index = index[self._fits(events.thread[index], thread, own=own) & (events.name[index] >= 0)]
        length = events.end_ns[index] - events.start_ns[index]
        return index[np.argsort(length, kind="stable")] if len(index) > 1 else index

    def _busiest(self, start: int, end: int, thread: int) -> str | None:
        """The operator with most time in many short ones, if they fill half of the time."""
        events = self._operators
        if not len(events):
            return None
        if self._by_start is None:
            self._by_start = np.argsort(events.start_ns, kind="stable")
            self._starts = events.start_ns[self._by_start]
        inside = self._by_start[slice(*np.searchsorted(self._starts, (start, end)))]
        inside = inside[(events.end_ns[inside] <= end) & (events.thread[inside] == thread)]
        reach = np.concatenate(([start], np.maximum.accumulate(events.end_ns[inside])[:-1]))
        outer = inside[events.start_ns[inside] >= reach[: len(inside)]]
        time = events.end_ns[outer] - events.start_ns[outer]
        if not len(outer) or time.sum() < COVERS * (end - start):
            return None
        names, index = grouped(events.name[outer])
        return self._names[int(names[np.argmax(np.bincount(index, weights=time))])]

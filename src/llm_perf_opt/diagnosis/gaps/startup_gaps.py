"""Start-up, recognised by what the runtime does: libraries that begin, code that is loaded, algorithms that are timed.

A call that does this on an idle GPU and takes many times what it takes later pays once: the first heavy `cudaFree` of a
library (its CUDA context and handles), the loading of modules, the first launch of a kernel. The operator that holds
such calls, in one of its first instances, is start-up as a whole; so is one in which a library times its algorithms
(`cudnn.benchmark`). What repeats until the end of a capture is recurring work, not start-up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llm_perf_opt.capture.idle import IdleMap, idle_in
from llm_perf_opt.capture.intervals import Flags, Intervals, Ints, innermost, nest, union
from llm_perf_opt.capture.timeline import Calls, HostEvents, Timeline, distinct, grouped, join
from llm_perf_opt.diagnosis.gaps.gap_verdict import HostCost, codes_of, flags_of, readable

# Shorter calls start nothing up that matters; one that is only called for the first time takes this long on an
# H200 and an RTX 4090 where it loads a module (0.2 to 20 ms), and 1 to 20 µs later.
LONG_CALL_NS = 200_000
# An allocation that makes the CUDA context takes 80 to 300 ms; one of the allocator 0.1 to 1 ms.
CONTEXT_NS = 10_000_000
# A heavy cudaFree at the start of a library takes 1.9 to 1,000 ms in available captures; others 0.1 to 0.3 ms. Calls
# that only ask or prepare take less than that too, but where they load something.
HEAVY_CALL_NS = 1_000_000
# The first calls take this many times the median of all of them, where there are a few to compare with.
UNUSUAL, FEW, FIRST_CALLS = 20, 5, 3
# The GPU has nothing to do for this part of a call that starts something up.
IDLE = 0.9
# Calls that fill this part of the operator they are in make all of it start-up. What is around that operator needs
# more, and is start-up until the last of them returns.
FILLS, FILLS_OUTER = 0.25, 0.5
# A library that times its algorithms waits for each of them.
TIMED = 2
# Where steps are marked, a search in this many of them is one for every new shape.
SEARCHED_STEPS = 3
# What happens this often, with a share of it in every later quarter of the work, continues.
RECURRING, QUARTERS, LEAST_SHARE = 5, 4, 0.5
# A median is that of this many calls.
SAMPLE = 10_000
SHOWN = 20
AUTOTUNING: HostCost = "autotuning"
NONE: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class StartUpRow:
    """Calls or operators of one name and cost. `gpu_idle_ns` is the part of their time in which no kernel ran.

    `first_ns` and `last_ns` are the start of the first and the end of the last, from the first GPU work of the capture
    on (negative before it). `recurs`: they come to the end of the capture and are not start-up. `place` is the operator
    around the longest.
    """

    cost: HostCost
    name: str
    count: int
    total_ns: int
    gpu_idle_ns: int
    first_ns: int
    last_ns: int
    recurs: bool
    place: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StartUp:
    """The start-up of one capture in columns, one entry per call or operator; they may lie in each other.

    `call` is the index of the call, -1 for an operator. `name` indexes the timeline's names. `calls` are all calls that
    belong to it, those inside of such operators too; `memory` are the calls that allocate or free memory and do not.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    name: Ints
    call: Ints
    cost: tuple[HostCost, ...]
    recurs: Flags
    calls: Flags
    memory: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    def once(self, threads: Flags) -> Intervals:
        """When some threads were in start-up that does not recur."""
        mine = ~self.recurs & threads[self.thread]
        return union(self.start_ns[mine], self.end_ns[mine])

    def until_work(self, threads: Flags, busy: Intervals) -> Intervals:
        """As `once`, each call until the kernel that follows it begins; a search for algorithms runs kernels itself."""
        searches = np.array([cost == AUTOTUNING for cost in self.cost], np.bool_)
        mine = ~self.recurs & threads[self.thread] & (searches | (self.call >= 0))
        start, end = self.start_ns[mine], self.end_ns[mine]
        following = np.append(busy.start, np.iinfo(np.int64).max)[np.searchsorted(busy.start, start, side="right")]
        return union(start, np.where(searches[mine], end, np.minimum(end, following)))

    def costliest(self, start: int, end: int, threads: Flags) -> tuple[HostCost, int] | None:
        """The cost with most time of some threads inside a window, and the name of its longest entry."""
        overlap = np.minimum(self.end_ns, end) - np.maximum(self.start_ns, start)
        mine = np.flatnonzero((overlap > 0) & ~self.recurs & threads[self.thread])
        if not len(mine):
            return None
        longest = int(mine[np.lexsort((self.call[mine] < 0, -overlap[mine]))[0]])
        # An operator is named for the call in it that says what it starts up.
        if self.call[longest] < 0 and self.cost[longest] != AUTOTUNING:
            calls = mine[self.call[mine] >= 0]
            longest = int(calls[np.argmax(overlap[calls])]) if len(calls) else longest
        return self.cost[longest], int(self.name[longest])


def find_start_up(timeline: Timeline, maps: Mapping[int, IdleMap]) -> StartUp:
    """Find the calls and operators of one capture that start something up."""
    found = _Found()
    tuned = _tuned(timeline)
    found.add_operators(timeline.operators, tuned, timeline.operators.end_ns[tuned], AUTOTUNING)
    calls = _calls(timeline, maps, _inside(timeline, timeline.operators, tuned))
    found.add_calls(timeline.calls, calls)
    found.add_operators(timeline.operators, *_holding(timeline, [index for index, _ in calls]), "first_use")
    return found.made(timeline)


def start_up_rows(captures: Sequence[tuple[Timeline, Mapping[int, IdleMap], StartUp]]) -> tuple[StartUpRow, ...]:
    """The start-up of captures by cost and name, the costliest first; calls inside a tuned operator are part of it."""
    rows = []
    for timeline, maps, found in captures:
        begins_ns = min((one.span[0] for one in maps.values() if one.span[1]), default=0)
        groups: dict[tuple[HostCost, int, bool], list[int]] = {}
        for i, cost in enumerate(found.cost):
            if found.call[i] >= 0 or cost == AUTOTUNING:
                groups.setdefault((cost, int(found.name[i]), bool(found.recurs[i])), []).append(i)
        for (cost, name, recurs), same in groups.items():
            index = np.array(same)
            start, end = found.start_ns[index], found.end_ns[index]
            idle_ns = idle_in(timeline, maps, found.thread[index], start, end)
            longest = int(index[np.argmax(end - start)])
            rows.append(
                StartUpRow(
                    cost=cost,
                    name=readable(timeline.names[name]),
                    count=len(same),
                    total_ns=int((end - start).sum()),
                    gpu_idle_ns=int(idle_ns.sum()),
                    first_ns=int(start.min()) - begins_ns,
                    last_ns=int(end.max()) - begins_ns,
                    recurs=recurs,
                    place=_place(timeline, found, longest),
                )
            )
    return tuple(sorted(rows, key=lambda row: (-row.total_ns, row.name))[:SHOWN])


class _Found:
    """Start-up while it is collected."""

    def __init__(self) -> None:
        self.start: list[int] = []
        self.end: list[int] = []
        self.thread: list[int] = []
        self.cost: list[HostCost] = []
        self.name: list[int] = []
        self.call: list[int] = []

    def add_calls(self, calls: Calls, found: Sequence[tuple[int, HostCost]]) -> None:
        picked = np.array([index for index, _ in found], np.int64)
        self.start += calls.start_ns[picked].tolist()
        self.end += calls.end_ns[picked].tolist()
        self.thread += calls.thread[picked].tolist()
        self.name += calls.name[picked].tolist()
        self.call += picked.tolist()
        self.cost += [cost for _, cost in found]

    def add_operators(self, events: HostEvents, picked: Ints, end_ns: Ints, cost: HostCost) -> None:
        self.start += events.start_ns[picked].tolist()
        self.end += end_ns.tolist()
        self.thread += events.thread[picked].tolist()
        self.name += events.name[picked].tolist()
        self.call += [-1] * len(picked)
        self.cost += [cost] * len(picked)

    def made(self, timeline: Timeline) -> StartUp:
        columns = [np.array(c, np.int64) for c in (self.start, self.end, self.thread, self.name, self.call)]
        start, end, thread, name, call = columns
        recurs = np.zeros(len(start), np.bool_)
        pairs = list(zip(self.cost, self.name, strict=True))
        row = _Row(timeline) if pairs else None
        groups: dict[tuple[HostCost, int], list[int]] = {}
        for i, pair in enumerate(pairs):
            groups.setdefault(pair, []).append(i)
        for key, same in groups.items():
            recurs[same] = row is not None and row.goes_on(end[same])
            if key[0] == AUTOTUNING:
                steps = _steps_of(timeline, start[same])
                recurs[same] &= steps is None or steps >= SEARCHED_STEPS
        inside = np.zeros(len(timeline.calls), np.bool_)
        inside[call[call >= 0]] = True
        calls = timeline.calls
        for i in np.flatnonzero(call < 0).tolist():
            if self.cost[i] == AUTOTUNING:
                inside |= (calls.thread == thread[i]) & (calls.start_ns >= start[i]) & (calls.end_ns <= end[i])
        memory = np.flatnonzero(flags_of(timeline.names, "allocates")[timeline.calls.name])
        return StartUp(
            start_ns=start,
            end_ns=end,
            thread=thread,
            name=name,
            call=call,
            cost=tuple(self.cost),
            recurs=recurs,
            calls=inside,
            memory=memory[~inside[memory]],
        )


class _Row:
    """The work of a capture in time."""

    def __init__(self, timeline: Timeline) -> None:
        work = join([timeline.kernels, timeline.graphs])
        self._start, self._name = work.start_ns, work.name
        order = _in_time(self._start)
        if order is not None:
            self._start, self._name = self._start[order], self._name[order]
        self._first = np.zeros(len(timeline.names), np.int64)
        # The last of several that are written to one place stays: the earliest.
        self._first[self._name[::-1]] = np.arange(len(self._name))[::-1]

    def goes_on(self, ends: Ints) -> bool:
        """Whether what ends at these times comes to the end, before kernels that ran already."""
        following = np.searchsorted(self._start, ends)
        following = following[following < len(self._start)]
        return goes_on(following[self._first[self._name[following]] < following], len(self._start))


def _in_time(start: Ints) -> Ints | None:
    """The order by time; None where they are in it, as captures mostly list their work."""
    if bool((start[1:] >= start[:-1]).all()):
        return None
    return np.argsort(start, kind="stable")


def _steps_of(timeline: Timeline, at: Ints) -> int | None:
    """In how many marked steps some moments lie, None where none are marked."""
    ranges = timeline.ranges
    marked = np.flatnonzero(flags_of(timeline.names, "marks_step")[ranges.name]) if len(ranges) else NONE
    if not len(marked):
        return None
    begun = np.sort(ranges.start_ns[marked])
    return len(distinct(np.searchsorted(begun, at, side="right")))


def goes_on(places: Ints, count: int, *, often: int = RECURRING) -> bool:
    """Whether places in a sequence of work are many and spread over it to its end."""
    places = places[places < count]
    if len(places) < often:
        return False
    spread = np.bincount(QUARTERS * places // count, minlength=QUARTERS)
    # In the first quarter they may be taken for first uses.
    return bool(spread[1:].min() >= LEAST_SHARE * len(places) / QUARTERS)


def _calls(timeline: Timeline, maps: Mapping[int, IdleMap], apart: Flags) -> list[tuple[int, HostCost]]:
    """The calls that start something up, in the capture's order; `apart` are in a search for the fastest algorithm."""
    calls, names = timeline.calls, timeline.names
    if not len(calls) or int(calls.name.max()) < 0:
        return []
    length = calls.end_ns - calls.start_ns
    by_name: dict[int, HostCost] = dict.fromkeys(codes_of(names, "loads_code"), "module_loading")
    by_name.update((code, "context") for code in codes_of(names, "creates_context"))
    wanted = length >= LONG_CALL_NS
    if by_name:
        named = np.zeros(len(names) + 1, np.bool_)
        named[list(by_name)] = True
        wanted |= named[calls.name] & (length > 0)
    picked = np.flatnonzero(wanted)
    picked = picked[(calls.name[picked] >= 0) & ~apart[picked]]
    if not len(picked):
        return []
    idle_ns = idle_in(timeline, maps, calls.thread[picked], calls.start_ns[picked], calls.end_ns[picked])
    idle = idle_ns / np.maximum(length[picked], 1)
    frees, allocates = set(codes_of(names, "frees_device")), set(codes_of(names, "allocates"))
    never = set(codes_of(names, "copies_or_sets")) | set(codes_of(names, "waits_for_gpu"))
    usual = _Usual(timeline)
    # Most are launches as long as others.
    plain = calls.launches[picked] & (length[picked] < HEAVY_CALL_NS)
    plain &= ~np.isin(calls.name[picked], [*by_name, *frees, *allocates])
    plain[plain] = ~usual.are_unusual(picked[plain])
    picked, idle = picked[~plain], idle[~plain]
    found: list[tuple[int, HostCost]] = []
    columns = (picked, idle, calls.name[picked], length[picked])
    for index, share, code, long_ns in zip(*(column.tolist() for column in columns), strict=True):
        if code in by_name:
            found.append((index, by_name[code]))
        elif share < IDLE or code in never:
            continue
        elif code in frees:
            if long_ns >= HEAVY_CALL_NS and usual.is_followed(index) and not usual.recurs(code):
                found.append((index, "context"))
        elif code in allocates:
            is_first = long_ns >= CONTEXT_NS and usual.is_early(index) and not usual.is_preceded(index)
            if is_first and usual.is_unusual(index, few=2):
                found.append((index, "context"))
        elif calls.launches[index]:
            is_unusual = usual.is_unusual(index)
            is_new = (is_unusual or long_ns >= HEAVY_CALL_NS) and usual.launches_new(index)
            if is_new or (is_unusual and usual.is_early(index)):
                found.append((index, "module_loading"))
        elif not calls.waits[index] and long_ns >= HEAVY_CALL_NS and usual.is_first_use(index):
            is_context = long_ns >= CONTEXT_NS and not usual.is_preceded(index)
            found.append((index, "context" if is_context else "first_use"))
    return found


@dataclass(frozen=True, kw_only=True)
class _OneName:
    """The calls of one name; the first of them began until `early_ns`."""

    count: int
    early_ns: int
    median_ns: float


class _Usual:
    """What calls of one name usually take, looked up for those that took long."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._calls = timeline.calls
        self._names: dict[int, _OneName] = {}
        self._edges: list[tuple[int, int]] = []
        self._recurs: dict[int, bool] = {}
        self._work = join([timeline.kernels, timeline.graphs])
        self._new: set[int] | None = None

    def _of(self, index: int) -> _OneName:
        """What is known of the calls of a call's name."""
        return self._named(int(self._calls.name[index]))

    def _named(self, code: int) -> _OneName:
        if code not in self._names:
            calls = self._calls
            same = np.flatnonzero(calls.name == code)
            some = same[:: max(1, len(same) // SAMPLE)].copy()
            count, last, half = len(same), min(FIRST_CALLS, len(same)) - 1, (len(some) - 1) // 2
            begun = calls.start_ns[same]
            # Of a long capture each of these is large.
            del same
            begun.partition(last)
            self._names[code] = _OneName(
                count=count,
                early_ns=int(begun[last]),
                # The lower one of two: the first of two calls must not be its own measure.
                median_ns=float(np.partition(calls.end_ns[some] - calls.start_ns[some], half)[half]),
            )
        return self._names[code]

    def is_early(self, index: int) -> bool:
        """Whether a call is among the first of its name, on any thread."""
        return int(self._calls.start_ns[index]) <= self._of(index).early_ns

    def is_unusual(self, index: int, *, few: int = FEW) -> bool:
        """Whether a call took many times what others of its name take, where there are a few."""
        known = self._of(index)
        length = int(self._calls.end_ns[index] - self._calls.start_ns[index])
        return known.count < few or length >= UNUSUAL * known.median_ns

    def are_unusual(self, index: Ints) -> Flags:
        """The same of several calls."""
        names, place = grouped(self._calls.name[index])
        known = [self._named(code) for code in names.tolist()]
        few = np.array([one.count < FEW for one in known], np.bool_)
        least = np.array([UNUSUAL * one.median_ns for one in known])
        found: Flags = few[place] | (self._calls.end_ns[index] - self._calls.start_ns[index] >= least[place])
        return found

    def is_first_use(self, index: int) -> bool:
        """Whether a call is among the first of its name, takes longer than later ones, and work follows."""
        return self.is_early(index) and self.is_unusual(index) and self.is_followed(index)

    def is_followed(self, index: int) -> bool:
        """Whether its thread gives the GPU work after it: what ends a program frees much too."""
        _, last = self._launched(int(self._calls.thread[index]))
        return last >= int(self._calls.end_ns[index])

    def is_preceded(self, index: int) -> bool:
        """Whether its thread gave the GPU work before it."""
        first, _ = self._launched(int(self._calls.thread[index]))
        return first < int(self._calls.start_ns[index])

    def _launched(self, thread: int) -> tuple[int, int]:
        """When a thread began to launch its first and its last work; no time at all where it launched none."""
        if not self._edges:
            calls, call = self._calls, self._work.call[self._work.call >= 0]
            count = int(calls.thread.max()) + 1
            first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
            np.minimum.at(first, calls.thread[call], calls.start_ns[call])
            np.maximum.at(last, calls.thread[call], calls.start_ns[call])
            self._edges = list(zip(first.tolist(), last.tolist(), strict=True))
        return self._edges[thread]

    def recurs(self, code: int) -> bool:
        """Whether heavy calls of a name come to the end of the capture."""
        if code not in self._recurs:
            same = np.flatnonzero(self._calls.name == code)
            heavy = same[self._calls.end_ns[same] - self._calls.start_ns[same] >= HEAVY_CALL_NS]
            order = np.sort(self._work.start_ns)
            places = np.searchsorted(order, self._calls.end_ns[heavy])
            self._recurs[code] = goes_on(places, len(order))
        return self._recurs[code]

    def launches_new(self, index: int) -> bool:
        """Whether a launch is the first of its kernel."""
        if self._new is None:
            name, order = self._work.name, _in_time(self._work.start_ns)
            first = np.full(len(self._timeline.names), -1, np.int64)
            # The last of several that are written to one place stays: the earliest.
            if order is None:
                first[name[::-1]] = np.arange(len(name))[::-1]
            else:
                first[name[order][::-1]] = order[::-1]
            self._new = set(self._work.call[first[first >= 0]].tolist())
        return index in self._new


def _tuned(timeline: Timeline) -> Ints:
    """The operators in which a library waits for the events of kernel after kernel: it times them."""
    events, calls = timeline.operators, timeline.calls
    waits = np.flatnonzero(flags_of(timeline.names, "waits_for_event")[calls.name]) if len(events) else NONE
    if len(waits) < TIMED:
        return NONE
    picked = np.flatnonzero(flags_of(timeline.names, "tuned_operators")[events.name])
    owner, _ = _around(events, picked, calls.thread[waits], calls.start_ns[waits])
    timed = np.bincount(owner[owner >= 0], minlength=len(events))
    found: Ints = np.flatnonzero(timed >= TIMED)
    return found


def _holding(timeline: Timeline, index: Sequence[int]) -> tuple[Ints, Ints]:
    """The operators around start-up calls that fill a part of them, among the first of their name, and until when."""
    events, calls = timeline.operators, timeline.calls
    if not len(events) or not len(index):
        return NONE, NONE
    call = np.array(index)
    inside: dict[int, list[int]] = {}
    nearest, parent = _around(events, np.arange(len(events)), calls.thread[call], calls.start_ns[call])
    for one, holder in zip(index, nearest.tolist(), strict=True):
        while holder >= 0:
            inside.setdefault(holder, []).append(one)
            holder = parent.get(holder, -1)
    direct = set(nearest.tolist())
    found, until = [], []
    started: dict[int, Ints] = {}
    for holder, inner in inside.items():
        is_direct, last_ns = holder in direct, int(events.end_ns[holder])
        last_ns = last_ns if is_direct else min(last_ns, int(calls.end_ns[inner].max()))
        filled = union(calls.start_ns[inner], calls.end_ns[inner]).total
        if filled < (FILLS if is_direct else FILLS_OUTER) * (last_ns - int(events.start_ns[holder])):
            continue
        name = int(events.name[holder])
        if name not in started:
            started[name] = np.sort(events.start_ns[events.name == name])
        if int(np.searchsorted(started[name], events.start_ns[holder])) < FIRST_CALLS:
            found.append(holder)
            until.append(last_ns)
    return np.array(found, np.int64), np.array(until, np.int64)


def _around(events: HostEvents, picked: Ints, thread: Ints, at: Ints) -> tuple[Ints, dict[int, int]]:
    """The innermost of some events around each moment of a thread, or -1; and what is around those that hold any."""
    ordered = np.sort(at)
    # Few events hold any of the moments: only those are nested.
    holds = np.searchsorted(ordered, events.end_ns[picked]) > np.searchsorted(ordered, events.start_ns[picked])
    picked = picked[holds]
    if not len(picked):
        return np.full(len(at), -1, np.int64), {}
    columns = (events.thread[picked], events.start_ns[picked], events.end_ns[picked])
    tree = nest(*columns)
    found = innermost(tree, *columns, thread, at)
    up = np.where(tree.parent >= 0, picked[tree.parent], -1)
    return np.where(found >= 0, picked[found], -1), dict(zip(picked.tolist(), up.tolist(), strict=True))


def _inside(timeline: Timeline, events: HostEvents, picked: Ints) -> Flags:
    """The calls that lie in some events of their thread."""
    calls = timeline.calls
    inside = np.zeros(len(calls), np.bool_)
    for i in picked.tolist():
        of_thread = calls.thread == events.thread[i]
        inside |= of_thread & (calls.start_ns >= events.start_ns[i]) & (calls.end_ns <= events.end_ns[i])
    return inside


def _place(timeline: Timeline, found: StartUp, index: int) -> str | None:
    """The innermost operator around an entry, without itself."""
    events = timeline.operators
    if not len(events):
        return None
    around = (events.thread == found.thread[index]) & (events.start_ns <= found.start_ns[index])
    around &= (events.end_ns >= found.end_ns[index]) & (events.name != found.name[index])
    inner = np.flatnonzero(around)
    return readable(timeline.names[events.name[inner[np.argmax(events.start_ns[inner])]]]) if len(inner) else None

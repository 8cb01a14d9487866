"""What each named range cost: its kernels by the call that launched them, GPU busy and idle time, launch-call time.

A range owns the work it causes: what its thread launches while it is open, what other threads launch for it meanwhile,
and work without a recorded launch that ran between two of its launches (see `ownership`). So for push/pop ranges that
nest, the kernels of a range are its own and those of all ranges directly inside it; busy time is a union and does not
add up. GPU work and host calls are kept in launch order: what a range's own thread launched is one slice, and what
others launched for it another.

Ranges that differ only by numbers, ids, sizes or steps are one range: `ProfilerStep#7` and `ProfilerStep#8`. A program
that numbers its ranges writes as many names as instances. What varies is taken out of a name, and names that become the
same are one; a name that occurs once keeps its numbers. Numbers that are words of their own always vary; those that are
part of a word (`conv1`, `fp16`) only where they are too many or too long to be a name.

Of a program that marks no phases its own ranges, by pattern, count as prefill, decode_step or any other phase.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from llm_perf_opt.capture.idle import IdleMap, IdleSplit
from llm_perf_opt.capture.intervals import Flags, Ints, expand, repeats_ancestor, segment_union
from llm_perf_opt.capture.ownership import Ownership, Unlaunched, find_ownership, place_unlaunched
from llm_perf_opt.capture.timeline import Activities, Ranges, Timeline, distinct, grouped, is_warmup
from llm_perf_opt.core.names import DECODE_STEP, MODULE_PREFIX, PREFILL
from llm_perf_opt.core.units import count_of

VARIABLE = "N"
# More names than this that differ only in a number inside a word are numbered, not named.
FEW_NAMES = 8
LONG_NUMBER = 3
# What torch's autograd appends to an operator's name.
_AUTOGRAD = re.compile(r", (?:seq|op_id|sizes|input_op_ids|stashed_seq|fwd_thread_id) = .*$", re.DOTALL)
_HEX = re.compile(r"\b0x[0-9a-fA-F]+\b|\b(?=[0-9a-f-]*[0-9])(?=[0-9a-f-]*[a-f])[0-9a-f]{6,}(?:-[0-9a-f]{4,})*\b")
_NUMBERS = re.compile(r"(?<![A-Za-z0-9])\d+(?:\.\d+)*(?![A-Za-z0-9])")
_LIST = re.compile(r"\[[\s,\[\]()N]*\]|\((?=[^)]*,)[\s,\[\]()N]*\)")
DIGITS = re.compile(r"\d+")


class _Order:
    """Things that happened at a time on a thread, sorted so that those inside a range are one slice.

    Two orders are kept: by thread for push/pop ranges, by process for start/end ranges.
    """

    def __init__(self, timeline: Timeline, thread: Ints, at: Ints) -> None:
        self._process_of = timeline.thread_process
        self._by_thread = _sorted(thread, at)
        one_thread = len(thread) == 0 or bool((thread == thread[0]).all())
        owner = thread if one_thread else self._process_of[thread]
        self._by_process = self._by_thread if one_thread else _sorted(owner, at)
        self._one_thread = one_thread

    def slices(self, ranges: Ranges) -> tuple[Ints, Ints, Flags]:
        """First position and count of what lies in each range (its end excluded), and which order is meant."""
        first = np.zeros(len(ranges), np.int64)
        count = np.zeros(len(ranges), np.int64)
        wide = ranges.process_wide
        for group, (_, owner, at) in ((~wide, self._by_thread), (wide, self._by_process)):
            index = np.flatnonzero(group)
            if not len(index) or not len(at):
                continue
            of_process = bool(wide[index[0]])
            if of_process and self._one_thread:
                here = self._process_of[ranges.thread[index]] == self._process_of[owner[0]]
                who = np.where(here, owner[0], -1)
            else:
                who = self._process_of[ranges.thread[index]] if of_process else ranges.thread[index]
            for code in distinct(who).astype(who.dtype):
                mine = index[who == code]
                lo, hi = np.searchsorted(owner, code, "left"), np.searchsorted(owner, code, "right")
                first[mine] = lo + np.searchsorted(at[lo:hi], ranges.start_ns[mine], "left")
                stop = lo + np.searchsorted(at[lo:hi], ranges.end_ns[mine], "left")
                count[mine] = np.maximum(stop - first[mine], 0)
        return first, count, wide

    def arrange(self, column: Ints, *, by_process: bool) -> Ints:
        order = (self._by_process if by_process else self._by_thread)[0]
        return column if order is None else column[order]

    def forget_times(self) -> None:
        """Keep the orders alone: of a long capture the times are a column as large as its own."""
        none = np.zeros(0, np.int64)
        self._by_thread = (self._by_thread[0], none, none)
        self._by_process = (self._by_process[0], none, none)

    @property
    def same_order(self) -> bool:
        return self._one_thread


def _sorted(owner: Ints, at: Ints) -> tuple[Ints | None, Ints, Ints]:
    """The order by owner and time (None: as it is), and both columns in it."""
    one = len(owner) == 0 or bool((owner == owner[0]).all())
    if one and bool(np.all(at[1:] >= at[:-1])):
        return None, owner, at
    order = np.argsort(at, kind="stable") if one else np.lexsort((at, owner))
    return order, owner[order], at[order]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Caused:
    """What ranges own besides the launches of their own threads: the rows of `index`, those of a range one slice."""

    index: Ints
    first: Ints
    count: Ints


def _caused(ownership: Ownership, row: Ints, owner: Ints, keep: Ints) -> _Caused:
    """Rows that the chosen ranges own, by the innermost owner of each: a range owns also what those inside it own."""
    position, range_index = ownership.with_ancestors(owner)
    order = np.argsort(range_index, kind="stable")
    ordered = range_index[order]
    first = np.searchsorted(ordered, keep, "left")
    return _Caused(index=row[position[order]], first=first, count=np.searchsorted(ordered, keep, "right") - first)


class _Launched:
    """The GPU work of one table that the chosen ranges own: first and count of what their own threads launched."""

    def __init__(self, timeline: Timeline, work: Activities, ownership: Ownership, keep: Ints) -> None:
        known = work.call >= 0
        pick = slice(None) if bool(known.all()) else np.flatnonzero(known)
        call = work.call[pick]
        calls = timeline.calls
        none = np.zeros(0, np.int64)
        thread = calls.thread[call] if len(calls) else none
        at = calls.start_ns[call] if len(calls) else none
        self._order = _Order(timeline, thread, at)
        self.work = work
        self._pick = pick if len(calls) else none
        self._start, self._end, self._name = work.start_ns[pick], work.end_ns[pick], work.name[pick]
        if not len(calls):
            self._start = self._end = self._name = none
        self._views: dict[bool, tuple[Ints, Ints, Ints]] = {}
        chosen = _take(timeline.ranges, keep)
        self._first, self._count, self._wide = self._order.slices(chosen)
        self._order.forget_times()
        self.unlaunched = place_unlaunched(timeline, work, ownership)
        row, owner = self.unlaunched.index, self.unlaunched.owner
        if ownership.cause is not None:
            mine = np.flatnonzero(known)
            row, owner = np.concatenate((mine, row)), np.concatenate((ownership.cause[work.call[mine]], owner))
        self._caused = _caused(ownership, row, owner, keep) if bool((owner >= 0).any()) else None
        self.count = self._count if self._caused is None else self._count + self._caused.count

    def _view(self, by_process: bool) -> tuple[Ints, Ints, Ints]:
        """Start, end and name in the order the slices index."""
        key = by_process and not self._order.same_order
        if key not in self._views:
            self._views[key] = (
                self._order.arrange(self._start, by_process=key),
                self._order.arrange(self._end, by_process=key),
                self._order.arrange(self._name, by_process=key),
            )
        return self._views[key]

    def total(self, value: Ints) -> Ints:
        """The sum of a column of the table over the work of each range."""
        out = np.zeros(len(self._first), np.int64)
        for by_process in (False, True):
            mine = self._wide == by_process
            if not mine.any():
                continue
            key = by_process and not self._order.same_order
            before = _sums_before(self._order.arrange(value[self._pick], by_process=key))
            out[mine] = before[(self._first + self._count)[mine]] - before[self._first[mine]]
        if self._caused is not None:
            before = _sums_before(value[self._caused.index])
            out += before[self._caused.first + self._caused.count] - before[self._caused.first]
        return out

    def pieces(self, part: Ints, *, by_process: bool) -> tuple[Ints, Ints, Ints, Ints]:
        """The work of some ranges of one style: the position of the range in `part`, start, end and name."""
        view = self._view(by_process)
        index = expand(self._first[part], self._count[part])
        owner = np.repeat(np.arange(len(part)), self._count[part])
        start, end, name = (column[index] for column in view)
        if self._caused is None or not self._caused.count[part].any():
            return owner, start, end, name
        more = self._caused.index[expand(self._caused.first[part], self._caused.count[part])]
        return (
            np.concatenate((owner, np.repeat(np.arange(len(part)), self._caused.count[part]))),
            np.concatenate((start, self.work.start_ns[more])),
            np.concatenate((end, self.work.end_ns[more])),
            np.concatenate((name, self.work.name[more])),
        )


class _LaunchCalls:
    """Host calls that started GPU work, each counted once however much it started."""

    def __init__(self, timeline: Timeline, ownership: Ownership) -> None:
        calls = timeline.calls
        self._ownership = ownership
        # Nearly all calls kept of a capture launch: the others count nothing, which is cheaper than to leave them out.
        self._order = _Order(timeline, calls.thread, calls.start_ns)
        self._calls = calls

    def inside(self, ranges: Ranges, keep: Ints) -> tuple[Ints, Ints]:
        """How many calls each range made or had made for it, and their summed time, also where several threads call."""
        first, among, wide = self._order.slices(ranges)
        count, time = np.zeros(len(first), np.int64), np.zeros(len(first), np.int64)
        for by_process in (False, True):
            mine = wide == by_process
            if mine.any():
                low, high = first[mine], (first + among)[mine]
                for column, out in ((self._launches, count), (self._lengths, time)):
                    before = _sums_before(self._order.arrange(column(), by_process=by_process))
                    out[mine] = before[high] - before[low]
                    del before
        if self._ownership.cause is not None:
            row = np.flatnonzero(self._ownership.cause >= 0)
            caused = _caused(self._ownership, row, self._ownership.cause[row], keep)
            for column, out in ((self._launches, count), (self._lengths, time)):
                before = _sums_before(column()[caused.index])
                out += before[caused.first + caused.count] - before[caused.first]
        return count, time

    def _launches(self) -> Ints:
        return self._calls.launches.view(np.int8)

    def _lengths(self) -> Ints:
        """Computed where it is needed: of a long capture it is as large as one of its columns."""
        length: Ints = self._calls.end_ns - self._calls.start_ns
        length[~self._calls.launches] = 0
        return length


def _sums_before(column: Ints) -> Ints:
    """The sum of all before each entry, and of all; counts of calls need no wide numbers."""
    is_count = column.dtype == np.int8 and len(column) < 2**31
    out: Ints = np.zeros(len(column) + 1, np.int32) if is_count else np.zeros(len(column) + 1, np.int64)
    np.cumsum(column, out=out[1:])
    return out


# Pairs of range and kernel inspected in one go: bounds the memory, regardless of the capture's length.
BATCH_PAIRS = 250_000


@dataclass(frozen=True, kw_only=True, eq=False)
class RangeInstances:
    """Columns, one entry per counted range instance; `name` indexes the timeline's names, -1 in `parent_name`: none.

    `unlaunched` is about the capture's kernels without a recorded launch; `ambiguous_launches` counts the launch calls
    of threads that may have worked for ranges of several others. `devices_by_key` is None where one GPU did it all.
    """

    name: Ints
    parent_name: Ints
    process_wide: Flags
    process: Ints
    start_ns: Ints
    wall_ns: Ints
    kernel_count: Ints
    kernel_ns: Ints
    graph_launches: Ints
    gpu_busy_ns: Ints
    launch_calls: Ints
    launch_ns: Ints
    idle: IdleSplit
    warmup_left_out: int
    repeats_left_out: int
    kernels_by_key: dict[int, tuple[Ints, Ints, Ints]]
    devices_by_key: dict[int, int] | None
    unlaunched: Unlaunched
    ambiguous_launches: int

    def __len__(self) -> int:
        return len(self.name)

    @property
    def notes(self) -> list[str]:
        """What to say about kernels of which it is not certain which range launched them."""
        found, notes = self.unlaunched, []
        unowned = len(found.index) - found.placed
        if unowned:
            part = "all" if found.queued_before == unowned else f"{found.queued_before}"
            queued = f", {part} of them queued before the first recorded launch of their stream"
            notes.append(
                f"{count_of(unowned, 'kernel')} without a recorded launch and without a range"
                + (queued if found.queued_before else "")
            )
        if found.placed:
            notes.append(
                f"{count_of(found.placed, 'kernel')} without a recorded launch, counted in the range that launched the "
                "work before and after them on their stream"
            )
        if self.ambiguous_launches:
            notes.append(
                f"{count_of(self.ambiguous_launches, 'launch')} of a thread without ranges could belong to ranges of "
                "several threads and are counted in none of them"
            )
        return notes


def measure_ranges(timeline: Timeline, maps: Mapping[int, IdleMap], *, detailed_names: int = 32) -> RangeInstances:
    """Measure every range that is neither warm-up nor inside its own range name."""
    ranges = timeline.ranges
    ownership = find_ownership(timeline)
    warm = _inherited(warmup_ranges(timeline), ownership)
    parent = ownership.parent
    parent_name = np.where(parent >= 0, ranges.name[np.maximum(parent, 0)], -1) if len(ranges) else parent
    repeats = repeats_ancestor(parent, ranges.name)
    keep = np.flatnonzero(~warm & ~repeats)
    chosen = _take(ranges, keep)
    kernels = _Launched(timeline, timeline.kernels, ownership, keep)
    graphs = _Launched(timeline, timeline.graphs, ownership, keep)
    kernel_ns = kernels.total(timeline.kernels.end_ns - timeline.kernels.start_ns)
    detailed = _most_expensive(range_keys(chosen.name, chosen.process_wide), kernel_ns, detailed_names)
    busy, by_name = _busy(timeline, kernels, graphs, chosen, detailed)
    launch_calls, launch_ns = _LaunchCalls(timeline, ownership).inside(chosen, keep)
    return RangeInstances(
        name=chosen.name,
        parent_name=parent_name[keep],
        process_wide=chosen.process_wide,
        process=timeline.thread_process[chosen.thread] if len(keep) else keep,
        start_ns=chosen.start_ns,
        wall_ns=chosen.end_ns - chosen.start_ns,
        kernel_count=kernels.count,
        kernel_ns=kernel_ns,
        graph_launches=graphs.count,
        gpu_busy_ns=busy,
        launch_calls=launch_calls,
        launch_ns=launch_ns,
        idle=_idle(timeline, chosen, maps),
        warmup_left_out=int(warm.sum()),
        repeats_left_out=int((repeats & ~warm).sum()),
        kernels_by_key=by_name,
        devices_by_key=_devices(range_keys(chosen.name, chosen.process_wide), (kernels, graphs)),
        unlaunched=kernels.unlaunched,
        ambiguous_launches=ownership.ambiguous,
    )


def _inherited(warm: Flags, ownership: Ownership) -> Flags:
    """Ranges of a thread that works for a warm-up are part of it."""
    if ownership.cause is None or not warm.any():
        return warm
    position, around = ownership.with_ancestors(np.arange(len(warm)))
    return np.bincount(position, weights=warm[around], minlength=len(warm)) > 0


def warmup_ranges(timeline: Timeline) -> Flags:
    """Ranges that are warm-up or lie inside one on their thread (or, for a start/end one, in their process)."""
    ranges = timeline.ranges
    codes = [code for code in distinct(ranges.name).tolist() if is_warmup(timeline.names[code])]
    is_warm = np.isin(ranges.name, codes)
    out = is_warm.copy()
    process = timeline.thread_process[ranges.thread] if len(ranges) else ranges.thread
    for wide, owner in ((False, ranges.thread), (True, process)):
        source = is_warm & (ranges.process_wide == wide)
        for code in distinct(owner[source]).tolist():
            mine = source & (owner == code)
            out |= (owner == code) & _inside_one(ranges.start_ns[mine], ranges.end_ns[mine], ranges)
    return out


def _inside_one(start: Ints, end: Ints, ranges: Ranges) -> Flags:
    """Whether each range lies wholly inside one of some intervals, which may overlap."""
    order = np.argsort(start, kind="stable")
    reach = np.maximum.accumulate(end[order])
    index = np.searchsorted(start[order], ranges.start_ns, side="right") - 1
    return (index >= 0) & (reach[np.maximum(index, 0)] >= ranges.end_ns)


def _take(ranges: Ranges, index: Ints) -> Ranges:
    return Ranges(
        start_ns=ranges.start_ns[index],
        end_ns=ranges.end_ns[index],
        name=ranges.name[index],
        thread=ranges.thread[index],
        process_wide=ranges.process_wide[index],
    )


def range_keys(name: Ints, process_wide: Flags) -> Ints:
    """One number for a range's name and style."""
    return name * 2 + process_wide


def _most_expensive(key: Ints, time_ns: Ints, limit: int) -> Ints:
    """The range keys with the most kernel time."""
    names, index = grouped(key)
    total = np.bincount(index, weights=time_ns, minlength=len(names)) if len(names) else np.zeros(0)
    return names[np.argsort(-total, kind="stable")[:limit]]


def _busy(
    timeline: Timeline, kernels: _Launched, graphs: _Launched, ranges: Ranges, detailed: Ints
) -> tuple[Ints, dict[int, tuple[Ints, Ints, Ints]]]:
    """The union of each range's kernels and whole graphs, and the kernels of the detailed ranges by name."""
    busy = np.zeros(len(ranges), np.int64)
    tally = _Tally(detailed, timeline)
    pairs = kernels.count + graphs.count
    for by_process in (False, True):
        mine = np.flatnonzero((ranges.process_wide == by_process) & (pairs > 0))
        if not len(mine):
            continue
        batch = np.cumsum(pairs[mine]) // BATCH_PAIRS
        for part in np.split(mine, np.flatnonzero(np.diff(batch)) + 1):
            owner, start, end, name = kernels.pieces(part, by_process=by_process)
            keys = range_keys(ranges.name[part], ranges.process_wide[part])
            tally.add(keys[owner], name, end - start)
            if graphs.count[part].any():
                graph_owner, graph_start, graph_end, _ = graphs.pieces(part, by_process=by_process)
                owner = np.concatenate((owner, graph_owner))
                start, end = np.concatenate((start, graph_start)), np.concatenate((end, graph_end))
            busy[part] = segment_union(owner, start, end, len(part))
    return busy, tally.result()


def _devices(key: Ints, tables: Sequence[_Launched]) -> dict[int, int] | None:
    """On how many GPUs the work of each range key ran, those of each process by themselves; None where there is one."""
    if all(_is_one(column) for t in tables for column in (t.work.process, t.work.device)):
        works = {(int(t.work.process[0]), int(t.work.device[0])) for t in tables if len(t.work)}
        if len(works) < 2:
            return None
    codes = [(t.work.process.astype(np.int64) << 32) + t.work.device for t in tables]
    gpus = distinct(np.concatenate(codes))
    if len(gpus) < 2:
        return None
    found: Counter[int] = Counter()
    for gpu in gpus.tolist():
        ran = np.add.reduce([t.total((c == gpu).astype(np.int8)) for t, c in zip(tables, codes, strict=True)])
        found.update(distinct(key[ran > 0]).tolist())
    return dict(found)


def _is_one(column: Ints) -> bool:
    return not len(column) or int(column.min()) == int(column.max())


class _Tally:
    """Kernel instances and time by kernel name, for a few range keys."""

    def __init__(self, detailed: Ints, timeline: Timeline) -> None:
        self._rows = {int(code): row for row, code in enumerate(detailed)}
        self._lookup = np.full(2 * len(timeline.names), -1, np.int64)
        self._lookup[detailed] = np.arange(len(detailed))
        self._names = int(timeline.kernels.name.max()) + 1 if len(timeline.kernels) else 1
        self._count = np.zeros(len(detailed) * self._names, np.int64)
        self._time = np.zeros(len(detailed) * self._names, np.int64)

    def add(self, range_key: Ints, kernel_name: Ints, time_ns: Ints) -> None:
        row = self._lookup[range_key]
        wanted = row >= 0
        key = row[wanted] * self._names + kernel_name[wanted]
        size = len(self._count)
        self._count += np.bincount(key, minlength=size)
        # Sums of whole nanoseconds stay exact in float64 up to 104 days.
        self._time += np.bincount(key, weights=time_ns[wanted], minlength=size).astype(np.int64)

    def result(self) -> dict[int, tuple[Ints, Ints, Ints]]:
        """Per range key: kernel names, instances and times."""
        out: dict[int, tuple[Ints, Ints, Ints]] = {}
        for code, row in self._rows.items():
            part = slice(row * self._names, (row + 1) * self._names)
            name = np.flatnonzero(self._count[part])
            out[code] = (name, self._count[part][name], self._time[part][name])
        return out


def _idle(timeline: Timeline, ranges: Ranges, maps: Mapping[int, IdleMap]) -> IdleSplit:
    """The idle split inside each range's wall time, against the GPU work of the range's own process."""
    columns = {k: np.zeros(len(ranges), np.int64) for k in IdleSplit.__dataclass_fields__}
    process = timeline.thread_process[ranges.thread] if len(ranges) else ranges.thread
    for code in distinct(process):
        mine = np.flatnonzero(process == code)
        split = maps[int(code)].split(ranges.start_ns[mine], ranges.end_ns[mine])
        for key, column in columns.items():
            column[mine] = split.__dict__[key]
    return IdleSplit(**columns)


def merge_range_names(timeline: Timeline) -> Timeline:
    """The timeline with one name for ranges that are one."""
    codes = [int(code) for code in distinct(timeline.ranges.name)]
    if len(codes) < 2:
        return timeline
    merged = merged_names([timeline.names[code] for code in codes])
    if all(timeline.names[code] == name for code, name in zip(codes, merged, strict=True)):
        return timeline
    names = list(dict.fromkeys((*timeline.names, *merged)))
    place = {name: code for code, name in enumerate(names)}
    recode = np.arange(len(timeline.names), dtype=np.int64)
    recode[codes] = [place[name] for name in merged]
    ranges = replace(timeline.ranges, name=recode[timeline.ranges.name])
    return replace(timeline, names=tuple(names), ranges=ranges)


def merged_names(names: list[str]) -> list[str]:
    """For each name the one it is counted under."""
    plain = [name if name.startswith(MODULE_PREFIX) else _without_numbers(name) for name in names]
    families: dict[str, set[str]] = defaultdict(set)
    for name in plain:
        families[DIGITS.sub(VARIABLE, name)].add(name)
    numbered = {family for family, members in families.items() if _is_numbered(members)}
    found = [
        family if not name.startswith(MODULE_PREFIX) and (family := DIGITS.sub(VARIABLE, name)) in numbered else name
        for name in plain
    ]
    alone: dict[str, set[str]] = defaultdict(set)
    for name, family in zip(names, found, strict=True):
        alone[family].add(name)
    return [
        name if len(alone[family]) == 1 and not _AUTOGRAD.search(name) else family
        for name, family in zip(names, found, strict=True)
    ]


def _without_numbers(name: str) -> str:
    """What stays of a name when numbers, ids and lists of sizes are taken out."""
    name = _AUTOGRAD.sub("", name)
    name = _NUMBERS.sub(VARIABLE, _HEX.sub(VARIABLE, name))
    return _LIST.sub(f"[{VARIABLE}]", name)


def _is_numbered(members: set[str]) -> bool:
    """Whether names that differ in numbers inside words are too many, or their numbers too long, to be names."""
    if len(members) < 2:
        return False
    columns = zip(*(DIGITS.findall(name) for name in sorted(members)), strict=True)
    longest = max((max(map(len, column)) for column in columns if len(set(column)) > 1), default=0)
    return len(members) > FEW_NAMES or longest >= LONG_NUMBER


# What the engines call one forward, under nsys or in a torch trace. A step with prompts in it counts as prefill.
# Of vLLM 0.32 seen; the others as their sources have them.
PRESETS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # execute_context_1(1024)_generation_0(0); with detailed annotations execute_1024_context_1(sq1024sk…
    "vllm": {
        PREFILL: ("execute_context_[1-9]*", "execute_*_context_[1-9]*"),
        # Steps of no request at all are neither.
        DECODE_STEP: ("execute_context_0(*_generation_[1-9]*", "execute_*_context_0(*_generation_[1-9]*"),
    },
    # step[EXTEND bs=1 toks=107], step[DECODE bs=4]
    "sglang": {PREFILL: ("step?EXTEND *", "step?MIXED *"), DECODE_STEP: ("step?DECODE *",)},
    # [Executor] _forward_step 12: 0 ctx reqs, 4 gen reqs
    "tensorrt_llm": {
        PREFILL: ("*_forward_step *: [1-9]* ctx reqs*",),
        DECODE_STEP: ("*_forward_step *: 0 ctx reqs*",),
    },
    # XlaModule:#hlo_module=jit_decode_step,program_id=3#, as the jitted function is called
    "jax": {PREFILL: ("*hlo_module=jit_*prefill*",), DECODE_STEP: ("*hlo_module=jit_*decode*",)},
}


# Frameworks whose range names are unique, so that they are recognised without a setting.
UNMISTAKABLE = ("vllm", "sglang", "tensorrt_llm")


def chosen_phases(preset: str | None, given: Mapping[str, str | tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The patterns of each phase: a preset's, and what the user gave in their place."""
    own = {phase: (pattern,) if isinstance(pattern, str) else pattern for phase, pattern in given.items()}
    return {**(PRESETS[preset] if preset is not None else {}), **own}


def with_phases(timeline: Timeline, phases: Mapping[str, tuple[str, ...]]) -> Timeline:
    """The same timeline, with every range that a pattern matches called by its phase; the first match counts.

    Without patterns those of a serving engine are taken, where it has ranges of one.
    """
    if phases:
        return _renamed(timeline, phases, said="workload.phases")
    names = [timeline.names[int(code)] for code in distinct(timeline.ranges.name) if code >= 0]
    engines = (e for e in UNMISTAKABLE if any(_phase_of(name, PRESETS[e]) is not None for name in names))
    engine = next(engines, None)
    return timeline if engine is None else _renamed(timeline, PRESETS[engine], said=f"names of {engine}")


def _renamed(timeline: Timeline, phases: Mapping[str, tuple[str, ...]], *, said: str) -> Timeline:
    names = list(timeline.names)
    codes = {phase: len(names) + number for number, phase in enumerate(phases)}
    changed = {
        int(code): codes[phase]
        for code in distinct(timeline.ranges.name)
        if code >= 0 and (phase := _phase_of(names[int(code)], phases)) is not None
    }
    if not changed:
        return timeline
    moved = np.array([changed.get(int(code), int(code)) for code in timeline.ranges.name], dtype=np.int64)
    return replace(
        timeline,
        names=(*names, *phases),
        ranges=replace(timeline.ranges, name=moved.astype(timeline.ranges.name.dtype)),
        notes=(*timeline.notes, *_notes(names, changed, codes, said)),
    )


def _phase_of(name: str, phases: Mapping[str, tuple[str, ...]]) -> str | None:
    return next((p for p, patterns in phases.items() if any(fnmatchcase(name, pattern) for pattern in patterns)), None)


def _notes(names: list[str], changed: Mapping[int, int], codes: Mapping[str, int], said: str) -> list[str]:
    """What counts as what, with one name as an example."""
    found = []
    for phase, code in codes.items():
        kinds = [names[old] for old, new in changed.items() if new == code]
        if kinds:
            found.append(f"counted as {phase}: {count_of(len(kinds), 'range name')} such as {kinds[0]!r} ({said})")
    return found

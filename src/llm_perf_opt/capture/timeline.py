"""One capture as columns: what ran on the GPU, the host calls that started it, and the named ranges around them.

Both parsers (nsys SQLite, torch trace) fill these; every figure is computed from them and from nothing else. Times are
nanoseconds of the capture's own clock.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np

from llm_perf_opt.capture.intervals import Flags, Ints, innermost, nest
from llm_perf_opt.core.units import count_of

K = TypeVar("K")

_WARMING_UP = re.compile(r"warm(ing)?[ _-]?up")
# Words after which a name means "after the warm-up" or "without warm-up".
_NOT_IN_IT = frozenset({"after", "post", "no", "non", "without", "skip"})


@lru_cache(maxsize=1 << 14)
def is_warmup(name: str) -> bool:
    """Whether a range is a warm-up, by its name: what happens there is a one-time cost."""
    words = set(re.split(r"[^a-z]+", _WARMING_UP.sub("warmup", name.lower())))
    return "warmup" in words and not words & _NOT_IN_IT


# Of the runtime and the driver of CUDA and HIP.
_LAUNCHES = re.compile(
    r"(cuda|hip)(Ext|ExtModule|Module)?Launch(Cooperative)?(Kernel|KernelExC)\w*$|cuLaunch(Cooperative)?Kernel\w*$"
    r"|(cuda|cu|hip)GraphLaunch\w*$|hip(Ext)?ModuleLaunch\w*Kernel\w*$"
)
# Work that is still queued when a recording ends is in no capture.
MOST_LOST_UNSAID = 0.01


class Codes(dict[K, int]):
    """Numbers for names or ids, each new one the next; in the order of their numbers when iterated."""

    def __missing__(self, key: K) -> int:
        code = self[key] = len(self)
        return code


@dataclass(frozen=True, kw_only=True, eq=False)
class Activities:
    """Work on the GPU. `name` indexes the timeline's names, `call` its calls (-1: the launch is not recorded).

    `device`, `stream` and `size_bytes` are -1 where the capture does not say; `shape` indexes the timeline's launch
    shapes (-1: not known), None where none were read. `by_driver` marks page migrations of unified memory, which the
    driver starts by itself: no call launched them. None where there are none.
    """

    start_ns: Ints
    end_ns: Ints
    name: Ints
    call: Ints
    process: Ints
    device: Ints
    stream: Ints
    size_bytes: Ints | None = None
    shape: Ints | None = None
    by_driver: Flags | None = None

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def distinct_names(self) -> Ints:
        """The distinct codes of names, in order; asked for again and again."""
        return distinct(self.name)


@dataclass(frozen=True, kw_only=True, eq=False)
class Calls:
    """Host calls that started GPU work (`launches`) or waited for it (`waits`).

    `name` indexes the timeline's names; it is -1 where the capture does not say. `correlation` is the capture's own
    number of a call, None where it was not kept.
    """

    start_ns: Ints
    end_ns: Ints
    thread: Ints
    name: Ints
    launches: Flags
    waits: Flags
    correlation: Ints | None = None

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranges:
    """Named ranges. `process_wide` ones (start/end) belong to all threads of their process, others to one thread."""

    start_ns: Ints
    end_ns: Ints
    name: Ints
    thread: Ints
    process_wide: Flags

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def as_events(self) -> "HostEvents":
        return HostEvents(start_ns=self.start_ns, end_ns=self.end_ns, name=self.name, thread=self.thread)


@dataclass(frozen=True, kw_only=True, eq=False)
class HostEvents:
    """Named host intervals; `name` and `thread` index the timeline's lists."""

    start_ns: Ints
    end_ns: Ints
    name: Ints
    thread: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    def take(self, index: Ints | Flags) -> "HostEvents":
        """Some of them, by their positions or by flags."""
        columns = (self.start_ns, self.end_ns, self.name, self.thread)
        start_ns, end_ns, name, thread = (column[index] for column in columns)
        return HostEvents(start_ns=start_ns, end_ns=end_ns, name=name, thread=thread)

    def since(self, at_ns: int) -> "HostEvents":
        """Those that ended after a moment; of what began before it the rest."""
        kept = self.take(self.end_ns > at_ns)
        return replace(kept, start_ns=np.maximum(kept.start_ns, at_ns))

    def near(self, start: int, end: int) -> Ints:
        """Those that may overlap a time, in the capture's order, found without scanning all of them."""
        order, starts, reach = self._in_time
        found = order[reach.searchsorted(start, "right") : starts.searchsorted(end)]
        return np.sort(found) if len(found) > 1 else found

    @cached_property
    def _in_time(self) -> tuple[Ints, Ints, Ints]:
        """The order of the starts, the starts in it, and how far those up to each of them reach."""
        order = np.argsort(self.start_ns, kind="stable")
        return order, self.start_ns[order], np.maximum.accumulate(self.end_ns[order])

    def name_around(self, thread: Ints, at: Ints) -> Ints:
        """The name of the innermost of them around each moment of a thread, or -1."""
        if not len(self):
            return np.full(len(at), -1, np.int64)
        tree = nest(self.thread, self.start_ns, self.end_ns)
        found = innermost(tree, self.thread, self.start_ns, self.end_ns, thread, at)
        return np.where(found >= 0, self.name[np.maximum(found, 0)], -1)


def join_events(parts: Sequence[HostEvents]) -> HostEvents:
    """Several tables of host events as one."""
    return HostEvents(
        start_ns=np.concatenate([part.start_ns for part in parts]),
        end_ns=np.concatenate([part.end_ns for part in parts]),
        name=np.concatenate([part.name for part in parts]),
        thread=np.concatenate([part.thread for part in parts]),
    )


def no_host_events() -> HostEvents:
    none = np.zeros(0, np.int64)
    return HostEvents(start_ns=none, end_ns=none, name=none, thread=none)


@dataclass(frozen=True, kw_only=True)
class LaunchShape:
    """How a kernel was launched; None where the capture does not say. Shared memory is that of one block."""

    grid: tuple[int, ...]
    block: tuple[int, ...]
    registers: int | None = None
    shared_bytes: int | None = None


def positive_or_none(value: object) -> int | None:
    """A whole number above 0, where that is what a file holds."""
    return value if type(value) is int and value > 0 else None


@dataclass(frozen=True, kw_only=True)
class CapturedGpu:
    """What the capture says about a GPU; None where it says nothing."""

    name: str
    sm_count: int | None = None
    clock_hz: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    memory_bytes_per_s: int | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where in a job a capture was made; None where it does not say. `processes[p]` names process p.

    `base_ns` added to a capture's times gives times that can be compared with those of another.
    """

    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    processes: tuple[str, ...] = ()
    base_ns: int = 0


@dataclass(frozen=True, kw_only=True)
class PageFaults:
    """Accesses to unified memory whose pages were elsewhere, as far as the capture was asked to record them."""

    cpu_count: int
    gpu_count: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """One capture. `thread_process[t]` is the process of thread t; `notes` says what was left out and why.

    `thread_names[t]` names it, where threads have names. `launch_shapes` are those of its kernels; captures of very
    many kernels are read without them.

    `operators` are those of a framework; `frames` (of Python) and `system` (calls of the operating system) hold only
    what took long enough to explain a gap, `pauses` when the profiler itself held the program up. `gil_held` is when
    threads held the lock of the Python interpreter; that they waited for it is among `system`. `kept_share` is the
    part of what ran that is still in a capture from which events were removed. `lost_launches` counts launch calls
    whose kernels were not recorded; `may_lack_gpu_work`: the profiler says that it lost some. `page_faults` is None
    where the capture did not record them.
    """

    source: str
    kind: str
    producer: str | None
    schema: str | None
    names: tuple[str, ...]
    kernels: Activities
    copies: Activities
    graphs: Activities
    calls: Calls
    ranges: Ranges
    thread_process: Ints
    devices: tuple[CapturedGpu, ...] = ()
    notes: tuple[str, ...] = ()
    operators: HostEvents = field(default_factory=no_host_events)
    frames: HostEvents = field(default_factory=no_host_events)
    system: HostEvents = field(default_factory=no_host_events)
    pauses: HostEvents = field(default_factory=no_host_events)
    gil_held: HostEvents = field(default_factory=no_host_events)
    origin: Origin = Origin()
    launch_shapes: tuple[LaunchShape, ...] = ()
    thread_names: tuple[str, ...] = ()
    kept_share: float | None = None
    lost_launches: int = 0
    may_lack_gpu_work: bool = False
    page_faults: PageFaults | None = None

    @property
    def has_gpu_work(self) -> bool:
        """Whether any GPU work was recorded; without it busy and idle times would be made up."""
        return bool(len(self.kernels) or len(self.copies) or len(self.graphs))

    @property
    def gpu_was_traced(self) -> bool:
        """Whether the profiler recorded GPU activity: with CUPTI its overhead and calls of the runtime show it."""
        seen = {"nsys": len(self.calls), "torch": len(self.calls) + len(self.pauses)}
        return self.has_gpu_work or bool(seen.get(self.kind))

    @cached_property
    def names_of_replays(self) -> Flags:
        """Which names are those of calls that launch a graph; the last entry is of the code -1, an unknown name."""
        return np.array([*("GraphLaunch" in name for name in self.names), False])

    @property
    def replayed_count(self) -> int:
        """How many kernels were launched by replays of graphs."""
        if not self.names_of_replays.any():
            return 0
        known = self.kernels.call[self.kernels.call >= 0]
        return int(self.names_of_replays[self.calls.name[known]].sum())


def gpu_names(timelines: Sequence[Timeline]) -> str | None:
    """The GPUs that captures name, each once."""
    return ", ".join(dict.fromkeys(device.name for t in timelines for device in t.devices)) or None


def no_activities() -> Activities:
    none = np.zeros(0, np.int64)
    return Activities(start_ns=none, end_ns=none, name=none, call=none, process=none, device=none, stream=none)


def no_calls() -> Calls:
    none, flags = np.zeros(0, np.int64), np.zeros(0, np.bool_)
    return Calls(start_ns=none, end_ns=none, thread=none, name=none, launches=flags, waits=flags)


def join(parts: list[Activities]) -> Activities:
    """Several tables of activities as one."""
    parts = [p for p in parts if len(p)]
    if not parts:
        return no_activities()
    if len(parts) == 1:
        return parts[0]
    return Activities(
        start_ns=np.concatenate([p.start_ns for p in parts]),
        end_ns=np.concatenate([p.end_ns for p in parts]),
        name=np.concatenate([p.name for p in parts]),
        call=np.concatenate([p.call for p in parts]),
        process=np.concatenate([p.process for p in parts]),
        device=np.concatenate([p.device for p in parts]),
        stream=np.concatenate([p.stream for p in parts]),
        size_bytes=_joined([p.size_bytes for p in parts], parts),
        shape=_joined([p.shape for p in parts], parts),
        by_driver=_flagged([p.by_driver for p in parts], parts),
    )


def _joined(columns: Sequence[Ints | None], parts: Sequence[Activities]) -> Ints | None:
    """A column some tables have; -1 for the others."""
    if all(column is None for column in columns):
        return None
    filled = [np.full(len(p), -1, np.int64) if c is None else c for c, p in zip(columns, parts, strict=True)]
    return np.concatenate(filled)


def _flagged(columns: Sequence[Flags | None], parts: Sequence[Activities]) -> Flags | None:
    """A mark some tables have; False for the others."""
    if all(column is None for column in columns):
        return None
    return np.concatenate([np.zeros(len(p), np.bool_) if c is None else c for c, p in zip(columns, parts, strict=True)])


def take(work: Activities, index: Ints) -> Activities:
    """Some rows of a table of activities."""
    return Activities(
        start_ns=work.start_ns[index],
        end_ns=work.end_ns[index],
        name=work.name[index],
        call=work.call[index],
        process=work.process[index],
        device=work.device[index],
        stream=work.stream[index],
        size_bytes=None if work.size_bytes is None else work.size_bytes[index],
        shape=None if work.shape is None else work.shape[index],
        by_driver=None if work.by_driver is None else work.by_driver[index],
    )


def since(timeline: Timeline, at_ns: int, *, before_ns: int = 0) -> Timeline:
    """A timeline of the GPU work that began at a moment or later, and of what the host did from its first launch on.

    That launch may have begun `before_ns` earlier at most: what ends a set-up is often a call that held it. Of calls
    and ranges that began earlier the rest is kept, so that what is inside of them stays inside.
    """
    work = [take(w, np.flatnonzero(w.start_ns >= at_ns)) for w in (timeline.kernels, timeline.copies, timeline.graphs)]
    calls, ranges = timeline.calls, timeline.ranges
    launching = np.concatenate([w.call[w.call >= 0] for w in work])
    begun_ns = int(calls.start_ns[launching].min()) if len(launching) else at_ns
    first_ns = min(at_ns, max(begun_ns, at_ns - before_ns))
    keeps = calls.end_ns > first_ns
    keeps[launching] = True
    kept = np.flatnonzero(keeps)
    # The last place is that of work without a call, which has -1.
    place = np.full(len(calls) + 1, -1, np.int64)
    place[kept] = np.arange(len(kept))
    kernels, copies, graphs = (replace(w, call=place[w.call]) for w in work)
    inside = np.flatnonzero(ranges.end_ns > first_ns)
    return replace(
        timeline,
        kernels=kernels,
        copies=copies,
        graphs=graphs,
        calls=Calls(
            start_ns=np.maximum(calls.start_ns[kept], first_ns),
            end_ns=np.maximum(calls.end_ns[kept], first_ns),
            thread=calls.thread[kept],
            name=calls.name[kept],
            launches=calls.launches[kept],
            waits=calls.waits[kept],
            correlation=None if calls.correlation is None else calls.correlation[kept],
        ),
        ranges=Ranges(
            start_ns=np.maximum(ranges.start_ns[inside], first_ns),
            end_ns=ranges.end_ns[inside],
            name=ranges.name[inside],
            thread=ranges.thread[inside],
            process_wide=ranges.process_wide[inside],
        ),
    )


def distinct(values: Ints) -> Ints:
    """The distinct values of a column, in order; fast where they are small codes."""
    if not len(values):
        return np.zeros(0, np.int64)
    low, high = int(values.min()), int(values.max())
    if low == high:
        return values[:1].astype(np.int64)
    if low >= 0 and high < 4 * len(values) + 1024:
        return np.flatnonzero(np.bincount(values))
    # Not by `unique`, which loads numpy's masked arrays.
    ordered = np.sort(values)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]


def grouped(values: Ints) -> tuple[Ints, Ints]:
    """The distinct values of a column, in order, and for each row the index of its own."""
    found = distinct(values)
    return found, np.searchsorted(found, values)


def int_percentile(values: Ints, percent: float) -> float:
    """As numpy's, between two values in proportion; that one loads masked arrays too."""
    place = percent / 100 * (len(values) - 1)
    at = int(place)
    nearest = (at, min(at + 1, len(values) - 1))
    low, high = (float(v) for v in np.partition(values, nearest)[list(nearest)])
    part = place - at
    # From the nearer one, as numpy rounds.
    return low + (high - low) * part if part < 0.5 else high - (high - low) * (1 - part)


@dataclass(frozen=True, kw_only=True)
class Links:
    """For each table of GPU work the index of the launching call, and how many calls had an id already taken."""

    calls: tuple[Ints, ...]
    duplicates: int

    @property
    def notes(self) -> list[str]:
        """What to say about ids that are not unique."""
        if not self.duplicates:
            return []
        return [
            f"duplicate correlation ids within a process: {count_of(self.duplicates, 'host call')}; "
            "the first of them is taken as the launch"
        ]


def join_calls(correlation: Ints, process: Ints, work: Sequence[tuple[Ints, Ints]]) -> Links:
    """Find each piece of GPU work's call by correlation id inside its process (a code). The first call wins."""
    processes = sorted({int(p) for column in (process, *(owner for _, owner in work)) for p in distinct(column)})
    found = [np.full(len(ids), -1, np.int32) for ids, _ in work]
    duplicates = 0
    for pid in processes:
        mine = slice(None) if len(processes) == 1 else np.flatnonzero(process == pid)
        keys = correlation[mine]
        index = np.arange(len(correlation), dtype=np.int32)[mine]
        lookup = _Lookup(keys[keys >= 0], index[keys >= 0])
        duplicates += lookup.duplicates
        for out, (ids, owner) in zip(found, work, strict=True):
            rows = slice(None) if len(processes) == 1 else np.flatnonzero(owner == pid)
            out[rows] = lookup.find(ids[rows])
    return Links(calls=tuple(found), duplicates=duplicates)


def count_lost_launches(names: Sequence[str], calls: Calls) -> int:
    """Calls that launch a kernel or a graph of which no GPU work was recorded.

    Launches into a stream that is being captured run nothing, one call inside another launches what that launches, and
    of calls with one id the first has the work.
    """
    used = distinct(calls.name)
    kinds = {int(code): names[code] for code in used if code >= 0}
    launching = [code for code, name in kinds.items() if _LAUNCHES.match(name)]
    launch = np.flatnonzero(np.isin(calls.name, launching))
    lost = launch[~calls.launches[launch]]
    if not len(lost):
        return 0
    keep = np.ones(len(lost), np.bool_)
    for thread in distinct(calls.thread[lost]).tolist():
        mine = np.flatnonzero(calls.thread[lost] == thread)
        at = calls.start_ns[lost[mine]]
        others = launch[(calls.thread[launch] == thread) & calls.launches[launch]]
        # Calls of one thread are nested or apart: only the one before or the one after can hold it or lie in it.
        order = others[np.argsort(calls.start_ns[others], kind="stable")]
        after = np.searchsorted(calls.start_ns[order], at, side="left")
        inside = np.zeros(len(at), np.bool_)
        if len(order):
            before, behind = order[np.maximum(after - 1, 0)], order[np.minimum(after, len(order) - 1)]
            inside |= (after > 0) & (calls.end_ns[before] >= calls.end_ns[lost[mine]])
            inside |= (after < len(order)) & (calls.end_ns[behind] <= calls.end_ns[lost[mine]])
        if calls.correlation is not None:
            inside |= np.isin(calls.correlation[lost[mine]], calls.correlation[others])
        keep[mine] = ~(inside | _captured(kinds, calls, thread, at))
    return int(keep.sum())


def lost_notes(lost: int, calls: Calls, *, is_empty: bool = False) -> list[str]:
    """What to say about launches without GPU work, where they are more than the capture's last few.

    `is_empty`: GPU activity was recorded, and there was none.
    """
    launched = lost + int(calls.launches.sum())
    if is_empty and not launched:
        return ["GPU activity was recorded, and nothing was launched in the recorded window"]
    if lost <= MOST_LOST_UNSAID * launched:
        return []
    return [
        f"{lost:,} of {launched:,} calls that launch GPU work have no work in the capture: its records were lost, or "
        "the recording ended before the GPU ran it"
    ]


def _captured(kinds: dict[int, str], calls: Calls, thread: int, at_ns: Ints) -> Flags:
    """Which moments lie between the begin and the end of a stream capture that this thread made."""
    marks = [[code for code, name in kinds.items() if word in name] for word in ("BeginCapture", "EndCapture")]
    begins, ends = (np.sort(calls.start_ns[np.isin(calls.name, codes) & (calls.thread == thread)]) for codes in marks)
    found: Flags = np.searchsorted(begins, at_ns) > np.searchsorted(ends, at_ns)
    return found


class _Lookup:
    """Id to index: a plain table where the ids are dense, a sorted list where they are not."""

    def __init__(self, keys: Ints, index: Ints) -> None:
        self._low, self._high = (int(keys.min()), int(keys.max())) if len(keys) else (0, -1)
        span = self._high - self._low + 1
        self._dense = span <= 8 * len(keys) + 1024
        if self._dense:
            self._table = np.full(span, -1, np.int32)
            # Written backwards, so that the first of several equal ids stays.
            self._table[keys[::-1] - self._low] = index[::-1]
            self.duplicates = len(keys) - int((self._table >= 0).sum())
        else:
            order = np.argsort(keys, kind="stable")
            self._keys, self._index = keys[order], index[order]
            self.duplicates = int((self._keys[1:] == self._keys[:-1]).sum())

    def find(self, ids: Ints) -> Ints:
        if self._dense:
            inside = (ids >= self._low) & (ids <= self._high)
            # Where none is inside, the lowest id may be one that the type of the others cannot hold.
            if not inside.any():
                return np.full(len(ids), -1, np.int32)
            return np.where(inside, self._table[np.where(inside, ids - self._low, 0)], -1)
        place = np.minimum(np.searchsorted(self._keys, ids), len(self._keys) - 1)
        return np.where(self._keys[place] == ids, self._index[place], -1)

"""What happened in captures as columns of the views: kernels, launches, copies, graphs, operators, memory."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from llm_perf_opt.capture.allocator_memory import CPU_TYPE
from llm_perf_opt.capture.idle import IdleMap, map_idle
from llm_perf_opt.capture.intervals import Flags, Ints, Nesting, innermost, nest
from llm_perf_opt.capture.kernels.names import classify_kernel, distinct_short_names
from llm_perf_opt.capture.ownership import Ownership, find_ownership, place_unlaunched
from llm_perf_opt.capture.timeline import Activities, HostEvents, Timeline, distinct, no_host_events
from llm_perf_opt.core.names import MODULE_PREFIX
from llm_perf_opt.diagnosis.analyze import RecordedCapture
from llm_perf_opt.diagnosis.gaps.startup_gaps import StartUp, find_start_up
from llm_perf_opt.sql.view_schema import BY_NAME, MISSING

Values = npt.NDArray[Any]
ViewRows = Mapping[str, Values]
# As torch names the ranges of modules it records itself.
TORCH_MODULE = "nn.Module: "
_GRAPH_LAUNCH = ("cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch")


class CaptureEvents:
    """One capture, and what its views share. `first_call` and the like number its rows among those of all captures."""

    def __init__(
        self, recorded: RecordedCapture, *, first_call: int = 0, first_range: int = 0, first_operator: int = 0
    ) -> None:
        self.recorded, self.timeline = recorded, recorded.timeline
        self.first_call, self.first_range, self.first_operator = first_call, first_range, first_operator

    @cached_property
    def operators(self) -> HostEvents:
        """Those of a torch trace, all of them where it was read so."""
        return self.recorded.operators if self.recorded.operators is not None else self.timeline.operators

    @cached_property
    def modules(self) -> HostEvents:
        return self.recorded.modules if self.recorded.modules is not None else no_host_events()

    @cached_property
    def idle(self) -> dict[int, IdleMap]:
        return map_idle(self.timeline)

    @cached_property
    def startup(self) -> StartUp:
        """What CUDA, its libraries and first uses start up, in all processes."""
        return find_start_up(self.timeline, self.idle)

    @cached_property
    def ownership(self) -> Ownership:
        return find_ownership(self.timeline)

    @cached_property
    def operator_tree(self) -> Nesting:
        return nest(self.operators.thread, self.operators.start_ns, self.operators.end_ns)

    @cached_property
    def range_of_call(self) -> Ints:
        """The innermost range that owns each call, or -1."""
        return self.ownership.innermost(self.timeline, np.arange(len(self.timeline.calls)))

    @cached_property
    def operator_of_call(self) -> Ints:
        """The innermost operator open when each call began, or -1."""
        calls, events = self.timeline.calls, self.operators
        columns = (events.thread, events.start_ns, events.end_ns)
        return innermost(self.operator_tree, *columns, calls.thread, calls.start_ns)

    @cached_property
    def is_module(self) -> Flags:
        """Which names are those of ranges around modules."""
        return np.array([name.startswith((MODULE_PREFIX, TORCH_MODULE)) for name in self.timeline.names], np.bool_)

    @cached_property
    def names(self) -> Values:
        """The names by code; the last, which -1 means, is not a name."""
        return texts([*self.timeline.names, None])

    def range_of(self, work: Activities) -> Ints:
        """The innermost range that caused each piece of GPU work, or -1."""
        found = np.where(work.call >= 0, picked(self.range_of_call, work.call), -1)
        if bool((work.call < 0).any()) and len(self.timeline.ranges):
            unlaunched = place_unlaunched(self.timeline, work, self.ownership)
            found[unlaunched.index] = unlaunched.owner
        return found

    def operator_of(self, work: Activities) -> Ints:
        return np.where(work.call >= 0, picked(self.operator_of_call, work.call), -1)

    def named_range(self, index: Ints) -> Values:
        """The names of ranges, modules left out: those have their own column."""
        ranges, above = self.timeline.ranges, index.copy()
        if not len(ranges):
            return self.names[above]
        if self.is_module.any():
            while (inside := (above >= 0) & self.is_module[ranges.name[above]]).any():
                above[inside] = self.ownership.parent[above[inside]]
        return self.names[np.where(above >= 0, ranges.name[above], -1)]

    def named_operator(self, index: Ints) -> Values:
        return self.names[np.where(index >= 0, picked(self.operators.name, index), -1)]

    def module_of(self, thread: Ints, at: Ints, range_index: Ints) -> Values:
        """The innermost module: of the ranges of modules, else as torch recorded modules itself."""
        ranges, above = self.timeline.ranges, range_index.copy()
        if len(ranges):
            while (outside := (above >= 0) & ~self.is_module[ranges.name[above]]).any():
                above[outside] = self.ownership.parent[above[outside]]
        code = np.where(above >= 0, picked(ranges.name, above), -1)
        events = self.modules
        if len(events):
            columns = (events.thread, events.start_ns, events.end_ns)
            found = innermost(nest(*columns), *columns, thread, at)
            code = np.where((code < 0) & (found >= 0), picked(events.name, found), code)
        return self._module_names[code]

    @cached_property
    def _module_names(self) -> Values:
        plain = (name.removeprefix(MODULE_PREFIX).removeprefix(TORCH_MODULE) for name in self.timeline.names)
        return texts([*plain, None])

    def threads(self, thread: Ints) -> Values:
        known = self.timeline.thread_names
        count = len(self.timeline.thread_process)
        return texts([known[t] if t < len(known) else str(t) for t in range(count)] + [None])[thread]

    def processes(self, process: Ints) -> Values:
        known = self.timeline.origin.processes
        most = int(process.max()) + 1 if len(process) else 0
        return texts([known[p] if p < len(known) else None for p in range(most)] + [None])[process]

    def source(self, count: int) -> Values:
        return np.full(count, self.timeline.source, object)

    def calls_as_ids(self, call: Ints) -> Ints:
        return np.where(call >= 0, call + self.first_call, MISSING)

    def busy_in(self, process: Ints, start: Ints, end: Ints) -> Ints:
        """The part of each time in which a kernel of the process ran."""
        found = np.zeros(len(start), np.int64)
        for code in distinct(process).tolist():
            mine = process == code
            busy = self.idle[code].busy
            found[mine] = busy.covered_before(end[mine]) - busy.covered_before(start[mine])
        return found


def texts(values: Sequence[str | None]) -> Values:
    """Texts by index; numpy would make an array of fixed width of them."""
    found = np.empty(len(values), object)
    found[:] = values
    return found


def picked(column: Ints, index: Ints) -> Ints:
    """Values by index, any where the index is -1 or the column is empty."""
    return column[np.maximum(index, 0)] if len(column) else np.full(len(index), -1, np.int64)


def events_of(captures: Sequence[RecordedCapture]) -> tuple[CaptureEvents, ...]:
    """Captures with the numbers of their first rows."""
    found: list[CaptureEvents] = []
    calls = ranges = operators = 0
    for one in captures:
        events = CaptureEvents(one, first_call=calls, first_range=ranges, first_operator=operators)
        found.append(events)
        calls += len(one.timeline.calls)
        ranges += len(one.timeline.ranges)
        operators += len(events.operators)
    return tuple(found)


def stacked(view: str, parts: Sequence[ViewRows]) -> ViewRows:
    """The rows of several captures under each other; of none, columns without rows."""
    columns = BY_NAME[view].columns
    if len(parts) == 1:
        return {column.name: parts[0][column.name] for column in columns}
    kinds = {"BIGINT": np.int64, "INTEGER": np.int64, "DOUBLE": np.float64, "BOOLEAN": np.bool_}
    if not parts:
        return {column.name: np.zeros(0, kinds.get(column.type, object)) for column in columns}
    return {column.name: np.concatenate([part[column.name] for part in parts]) for column in columns}


def kernel_rows(one: CaptureEvents) -> ViewRows:
    timeline, work = one.timeline, one.timeline.kernels
    used = distinct(work.name)
    short, kinds = texts([None] * len(timeline.names)), texts([None] * len(timeline.names))
    names = [timeline.names[code] for code in used.tolist()]
    short[used], kinds[used] = texts(list(distinct_short_names(names))), texts([classify_kernel(n) for n in names])
    ranges, operators = one.range_of(work), one.operator_of(work)
    calls = timeline.calls
    module = one.module_of(picked(calls.thread, work.call), picked(calls.start_ns, work.call), ranges)
    module[work.call < 0] = None
    return {
        **_work(one, work, ranges, operators),
        "short_name": short[work.name],
        "class": kinds[work.name],
        "module": module,
        "graph": np.where(_replays(timeline, work.call), one.calls_as_ids(work.call), MISSING),
    }


def graph_rows(one: CaptureEvents) -> ViewRows:
    work = one.timeline.graphs
    return _work(one, work, one.range_of(work), one.operator_of(work))


def copy_rows(one: CaptureEvents) -> ViewRows:
    work = one.timeline.copies
    length = work.end_ns - work.start_ns
    sizes = np.full(len(work), MISSING) if work.size_bytes is None else work.size_bytes
    known = (sizes >= 0) & (length > 0)
    rate = np.full(len(work), np.nan)
    rate[known] = sizes[known] / length[known] * 1e9
    return {
        **_work(one, work, one.range_of(work), one.operator_of(work)),
        "exposed_ns": length - one.busy_in(work.process, work.start_ns, work.end_ns),
        "size_bytes": np.where(sizes >= 0, sizes, MISSING),
        "bytes_per_s": rate,
    }


def launch_rows(one: CaptureEvents) -> ViewRows:
    timeline, calls = one.timeline, one.timeline.calls
    count = np.zeros(len(calls), np.int64)
    for work in (timeline.kernels, timeline.copies, timeline.graphs):
        count += np.bincount(work.call[work.call >= 0], minlength=len(calls))
    return {
        "id": np.arange(len(calls)) + one.first_call,
        "name": one.names[calls.name],
        **_times(calls.start_ns, calls.end_ns),
        "launches_work": calls.launches,
        "waits": calls.waits,
        "work_count": count,
        "range": one.named_range(one.range_of_call),
        "operator": one.named_operator(one.operator_of_call),
        "thread": one.threads(calls.thread),
        "process": one.processes(timeline.thread_process[calls.thread]),
        "capture": one.source(len(calls)),
    }


def operator_rows(one: CaptureEvents) -> ViewRows:
    timeline, events, tree = one.timeline, one.operators, one.operator_tree
    length = events.end_ns - events.start_ns
    own, inner = length.copy(), np.flatnonzero(tree.parent >= 0)
    np.subtract.at(own, tree.parent[inner], length[inner])
    kernels = timeline.kernels
    launched, owner = np.zeros(len(events), np.int64), one.operator_of(kernels)
    np.add.at(launched, owner[owner >= 0], (kernels.end_ns - kernels.start_ns)[owner >= 0])
    ranges = _ranges_around(one, events)
    return {
        "id": np.arange(len(events)) + one.first_operator,
        "name": one.names[events.name],
        **_times(events.start_ns, events.end_ns),
        "self_ns": own,
        "kernel_ns": launched,
        "input_shapes": _shapes(one, len(events)),
        "parent": np.where(tree.parent >= 0, tree.parent + one.first_operator, MISSING),
        "module": one.module_of(events.thread, events.start_ns, ranges),
        "range": one.named_range(ranges),
        "thread": one.threads(events.thread),
        "process": one.processes(timeline.thread_process[events.thread]),
        "capture": one.source(len(events)),
    }


def memory_rows(one: CaptureEvents) -> ViewRows | None:
    """None where the capture was read without memory events."""
    if one.recorded.detail is None:
        return None
    memory, events = one.recorded.detail.memory, one.operators
    columns = (events.thread, events.start_ns, events.end_ns)
    around = innermost(one.operator_tree, *columns, memory.thread, memory.at_ns)
    return {
        "at_ns": memory.at_ns,
        "device": texts(["CPU", "GPU"])[(memory.device_type != CPU_TYPE).astype(np.int64)],
        "changed_bytes": memory.changed_bytes,
        "allocated_bytes": np.where(memory.allocated_bytes >= 0, memory.allocated_bytes, MISSING),
        "operator": one.named_operator(around),
        "thread": one.threads(memory.thread),
        "capture": one.source(len(memory)),
    }


def _work(one: CaptureEvents, work: Activities, ranges: Ints, operators: Ints) -> dict[str, Values]:
    """The columns that kernels, graphs and copies share."""
    return {
        "name": one.names[work.name],
        **_times(work.start_ns, work.end_ns),
        "device": work.device,
        "stream": work.stream,
        "range": one.named_range(ranges),
        "operator": one.named_operator(operators),
        "launch": one.calls_as_ids(work.call),
        "process": one.processes(work.process),
        "capture": one.source(len(work)),
    }


def _times(start: Ints, end: Ints) -> dict[str, Values]:
    return {"start_ns": start, "end_ns": end, "duration_ns": end - start}


def _replays(timeline: Timeline, call: Ints) -> Flags:
    """Whether each call launched a graph."""
    launches = np.array([name.startswith(_GRAPH_LAUNCH) for name in timeline.names], np.bool_)
    code = picked(timeline.calls.name, call)
    return np.where((call >= 0) & (code >= 0), launches[np.maximum(code, 0)], False) if len(launches) else call > call


def _ranges_around(one: CaptureEvents, events: HostEvents) -> Ints:
    """The innermost push/pop range around the begin of each event, or -1."""
    ranges = one.timeline.ranges
    pushed = np.flatnonzero(~ranges.process_wide)
    if not len(pushed):
        return np.full(len(events), -1, np.int64)
    columns = (ranges.thread[pushed], ranges.start_ns[pushed], ranges.end_ns[pushed])
    found = innermost(nest(*columns), *columns, events.thread, events.start_ns)
    return np.where(found >= 0, pushed[np.maximum(found, 0)], -1)


def _shapes(one: CaptureEvents, count: int) -> Values:
    detail = one.recorded.detail
    if detail is None or len(detail.shape) != count:
        return texts([None] * count)
    return texts([text or None for text in detail.shapes])[detail.shape]

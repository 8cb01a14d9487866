"""Times without a kernel as rows of the view `gaps`: how long, why, and what the host was in.

The parts of a gap are those of the idle time of its process, so over all gaps they sum to it. The cause of a long gap
is what the host did in it; of many long ones only the longest and a sample are inspected.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from llm_perf_opt.capture.idle import IdleMap
from llm_perf_opt.capture.intervals import Intervals, Ints
from llm_perf_opt.capture.kernels.names import distinct_short_names
from llm_perf_opt.capture.timeline import Activities, distinct, join, take
from llm_perf_opt.diagnosis import ledger as cells
from llm_perf_opt.diagnosis.gaps.long_gaps import MAX_LOOKED_INTO, SAMPLED, Gap, Reason, find_long_gaps
from llm_perf_opt.diagnosis.scope import cell_of
from llm_perf_opt.sql.events import CaptureEvents, Values, ViewRows, picked, stacked, texts

# A gap too long for a launch, of a capture with many of them: it was not inspected.
NOT_EXAMINED = "idle.not_examined"
# In the order of the parts of a gap; the first of equals counts.
_CAUSES = (cells.LAUNCH, cells.SYNC, cells.COPY, cells.DEVICE_GAPS, cells.UNRECORDED_LAUNCH)
_PARTS = ("host_ns", "sync_ns", "copy_ns", "between_ns", "unattributed_ns")
_HOST = 0


def gap_rows(one: CaptureEvents) -> ViewRows:
    """All gaps of all processes of a capture, each process's in order."""
    compute = join([one.timeline.kernels, one.timeline.graphs])
    parts = [
        _of_process(one, code, idle, take(compute, np.flatnonzero(compute.process == code)))
        for code, idle in one.idle.items()
        if idle.span[1] > idle.span[0]
    ]
    return stacked("gaps", parts)


def _of_process(one: CaptureEvents, code: int, idle: IdleMap, compute: Activities) -> ViewRows:
    start = np.concatenate(([idle.span[0]], idle.busy.end))
    end = np.concatenate((idle.busy.start, [idle.span[1]]))
    real = end > start
    start, end = start[real], end[real]
    parts = _parts(idle, start, end)
    before, after = _neighbours(compute, start, end)
    short = _short_names(one, compute)
    cause, owner = _causes(one, code, idle, parts, (start, end), compute, after)
    return {
        "start_ns": start,
        "end_ns": end,
        "duration_ns": end - start,
        "cause": cause,
        "owner": owner,
        **parts,
        "before": short[np.where(before >= 0, picked(compute.name, before), -1)],
        "after": short[np.where(after >= 0, picked(compute.name, after), -1)],
        "process": one.processes(np.full(len(start), code, np.int64)),
        "capture": one.source(len(start)),
    }


def _parts(idle: IdleMap, start: Ints, end: Ints) -> dict[str, Ints]:
    """The idle time of each gap by cause, as `IdleMap.split` has it; in a gap no kernel runs."""

    def inside(part: Intervals) -> Ints:
        return part.covered_before(end) - part.covered_before(start) if len(part.start) else np.zeros_like(start)

    sync, copy, between = inside(idle.waiting), inside(idle.copying), inside(idle.queued)
    unattributed = inside(idle.unknown)
    host = end - start - sync - copy - between - unattributed
    return dict(zip(_PARTS, (host, sync, copy, between, unattributed), strict=True))


def _neighbours(compute: Activities, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """The kernel that ended last before each gap and the first after it, or -1."""
    if not len(compute):
        none = np.full(len(start), -1, np.int64)
        return none, none
    order = np.argsort(compute.start_ns, kind="stable")
    begins, reach = compute.start_ns[order], np.maximum.accumulate(compute.end_ns[order])
    following = np.searchsorted(begins, end, side="left")
    after = np.where(following < len(order), order[np.minimum(following, len(order) - 1)], -1)
    last = np.maximum(following - 1, 0)
    # The first place where the reach is what it is before the gap is the kernel that ended last.
    before = order[np.searchsorted(reach, reach[last], side="left")]
    return np.where((following > 0) & (reach[last] <= start), before, -1), after


def _short_names(one: CaptureEvents, compute: Activities) -> Values:
    found = texts([None] * (len(one.timeline.names) + 1))
    used = distinct(compute.name)
    found[used] = texts(list(distinct_short_names([one.timeline.names[i] for i in used.tolist()])))
    return found


def _causes(
    one: CaptureEvents,
    code: int,
    idle: IdleMap,
    parts: Mapping[str, Ints],
    gaps: tuple[Ints, Ints],
    compute: Activities,
    after: Ints,
) -> tuple[Values, Values]:
    """Cause and owner of each gap: of short ones the largest part and the operator or range that ended it."""
    largest, most = np.zeros(len(after), np.int64), parts[_PARTS[0]]
    for number, name in enumerate(_PARTS[1:], 1):
        more = parts[name] > most
        largest[more], most = number, np.maximum(most, parts[name])
    cause = texts(_CAUSES)[largest]
    following = np.where(after >= 0, picked(compute.call, after), -1)
    known = following >= 0
    operator = one.named_operator(np.where(known, picked(one.operator_of_call, following), -1))
    in_range = one.named_range(np.where(known, picked(one.range_of_call, following), -1))
    owner = np.where(operator == None, in_range, operator)  # noqa: E711 - each element is compared
    start, end = gaps
    cause[(end - start >= idle.long_from_ns) & (largest == _HOST)] = NOT_EXAMINED
    found = find_long_gaps(one.timeline, {code: idle}, startup=one.startup, shown=MAX_LOOKED_INTO + SAMPLED)
    for gap in found.longest:
        at = int(np.searchsorted(start, idle.span[0] + gap.start_ns))
        if largest[at] == _HOST:
            cause[at] = _cell(gap, found.reasons)
        owner[at] = _owner(gap) or owner[at]
    return cause, owner


def _cell(gap: Gap, reasons: Sequence[Reason]) -> str:
    """The ledger's cell of what the host did in most of a gap."""
    if 2 * gap.long_ns < gap.host_ns:
        return cells.LAUNCH
    seen = gap.activity
    reason = Reason(verdict=seen.verdict, cost=seen.cost, name=None, kind=None, where=None, gaps=1, host_ns=gap.host_ns)
    return cell_of(reason, reasons)


def _owner(gap: Gap) -> str | None:
    activity = gap.activity
    name = gap.waited_in if gap.sync_ns > gap.host_ns else activity.name
    chain = dict.fromkeys(part for part in (name, *activity.owner, activity.user_code) if part is not None)
    return " < ".join(chain) or None

"""The longest gaps of a capture, what ran around them, and what the host did in them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from llm_perf_opt.analysis.gaps.host import KERNEL, NOTHING, HostActivity, HostRecord
from llm_perf_opt.analysis.gaps.verdict import Verdict, compiles, is_built, is_built_per_shape, is_launch, is_tuning
from llm_perf_opt.analysis.kernels.names import short_kernel_name
from llm_perf_opt.analysis.timeline.idle import LONG_GAP_NS, IdleMap
from llm_perf_opt.analysis.timeline.intervals import Intervals, Ints
from llm_perf_opt.analysis.timeline.timeline import Activities, Timeline, join, take

# So many of the longest are looked into, and so many of the rest, which stand for all of it: each is a search.
MAX_LOOKED_INTO, SAMPLED = 200, 100
SHOWN = 20
# Set-up is over where less than this part of what follows is set-up again: some is met in the middle of things.
LITTLE_SETUP = 0.1
# A gap of which this part lies after the launch is not the host's.
HELD = 0.5
# Gaps go on to the end of a capture where so many of them are spread over its work: each later quarter of the kernels
# has half its share of them. Set-up dies out, and where what a gap ends with is new, the gap may be for that.
RECURRING, QUARTERS, LEAST_SHARE = 5, 4, 0.5
BEFORE_FIRST = "before the first kernel"
# What set-up is that does not die out.
GOING_ON: tuple[Verdict, ...] = ("recompilation", "stalls")


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A time without any kernel; the causes add up to its length. `long_ns` is of `host_ns`, see `IdleMap.long`.

    `start_ns` counts from the first GPU work of the process. `before` and `after` are the kernels around it, `activity`
    is what the host did until it launched what ended the gap (in all of it, where it had launched that already).
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

    @property
    def is_first(self) -> bool:
        return self.before is None and self.start_ns == 0

    @property
    def is_held(self) -> bool:
        is_late = self.length_ns >= LONG_GAP_NS and self.between_ns >= HELD * self.length_ns
        return is_late and self.activity.verdict != "profiler"


@dataclass(frozen=True, kw_only=True)
class Reason:
    """Gaps for which the host had the same reason: how many, and how long the GPU waited for the host in them.

    `where` is the range around the longest of them. `recurs`: they come again and again to the end of the capture,
    before kernels that had run already. `shared` of the gaps are told with another reason first, which
    fills more of them.
    """

    verdict: Verdict
    name: str | None
    kind: str | None
    where: str | None
    gaps: int
    host_ns: int
    recurs: bool = False
    shared: int = 0


@dataclass(frozen=True, kw_only=True)
class LongGaps:
    """All gaps counted by length, the longest by themselves, and the reasons of the long ones, the costliest first.

    `held_count` and `held_ns` are about long gaps that lie mostly after the return of the launch: something other than
    the host held the work back. `setup_end_ns`: from when on there is little set-up any more, on the capture's own
    clock, in the process that launched most; None where there was none, or several captures. `long_from_ns`: gaps are
    long from this length on.
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


@dataclass(frozen=True, kw_only=True)
class _Looked:
    """A gap that was looked into, how many gaps it stands for, and what else the host did in which shares of it."""

    gap: Gap
    weight: float
    others: tuple[tuple[HostActivity, float], ...]


def find_long_gaps(timeline: Timeline, maps: Mapping[int, IdleMap], *, source: int = 0) -> LongGaps:
    """Look into the longest gaps of each process."""
    compute = join([timeline.kernels, timeline.graphs])
    short = long = long_ns = 0
    gaps: list[Gap] = []
    reasons: list[Reason] = []
    held_count = held_ns = 0.0
    setup_end_ns, main = None, _main_process(compute)
    for code, one in maps.items():
        edges = _gaps(one)
        length = edges.end - edges.start
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
            own = compute if len(maps) == 1 else take(compute, np.flatnonzero(compute.process == code))
            picked = Intervals(start=edges.start[chosen], end=edges.end[chosen])
            around = _Neighbours(timeline, own)
            looked = _judge_by_spread(_look_into(timeline, around, one, picked, weights, source), around, one)
            found = [each.gap for each in looked]
            gaps += found
            reasons += _reasons(looked, around, one)
            held_count += sum(each.weight for each in looked if each.gap.is_held)
            held_ns += sum(each.weight * each.gap.between_ns for each in looked if each.gap.is_held)
            if code == main:
                setup_end_ns = _setup_end(found, one)
    gaps.sort(key=lambda gap: (-gap.length_ns, gap.start_ns))
    return LongGaps(
        short_count=short,
        long_count=long,
        long_ns=long_ns,
        held_count=round(held_count),
        held_ns=round(held_ns),
        longest=tuple(gaps[:SHOWN]),
        reasons=_merged(reasons),
        setup_end_ns=setup_end_ns,
        long_from_ns=min((one.long_from_ns for one in maps.values()), default=LONG_GAP_NS),
    )


def _main_process(compute: Activities) -> int | None:
    """The process most kernels and graphs are of: a compiler's workers touch the GPU too."""
    return int(np.argmax(np.bincount(compute.process))) if len(compute) else None


def _setup_end(gaps: Sequence[Gap], one: IdleMap) -> int | None:
    """The earliest end of such a gap after which they are few."""
    known = sorted(
        (g.start_ns, g.start_ns + g.length_ns)
        for g in gaps
        if g.activity.verdict in ("compilation", "new_shapes") and g.long_ns > 0
    )
    length_ns = one.span[1] - one.span[0]
    for i, (_, end_ns) in enumerate(known):
        later_ns = sum(end - start for start, end in known[i + 1 :])
        if later_ns <= LITTLE_SETUP * (length_ns - end_ns):
            return one.span[0] + end_ns
    return None


def merge_long_gaps(parts: Sequence[LongGaps]) -> LongGaps:
    """Those of several captures together."""
    longest = sorted((gap for part in parts for gap in part.longest), key=lambda gap: -gap.length_ns)
    return LongGaps(
        short_count=sum(part.short_count for part in parts),
        long_count=sum(part.long_count for part in parts),
        long_ns=sum(part.long_ns for part in parts),
        held_count=sum(part.held_count for part in parts),
        held_ns=sum(part.held_ns for part in parts),
        longest=tuple(longest[:SHOWN]),
        reasons=_merged(reason for part in parts for reason in part.reasons),
        setup_end_ns=parts[0].setup_end_ns if len(parts) == 1 else None,
        long_from_ns=min((part.long_from_ns for part in parts), default=LONG_GAP_NS),
    )


def _gaps(one: IdleMap) -> Intervals:
    """Times without a kernel from the first GPU work to the last."""
    return Intervals(
        start=np.concatenate(([one.span[0]], one.busy.end)), end=np.concatenate((one.busy.start, [one.span[1]]))
    )


def _look_into(
    timeline: Timeline,
    around: "_Neighbours",
    one: IdleMap,
    gaps: Intervals,
    weights: Sequence[float],
    source: int,
) -> list[_Looked]:
    split = one.split(gaps.start, gaps.end)
    calls = timeline.calls
    # What is asked for is a part of a gap, beside the waiting in it.
    record = HostRecord(timeline, one.long_from_ns // 2)
    found = []
    for i, (start, end) in enumerate(zip(gaps.start.tolist(), gaps.end.tolist(), strict=True)):
        before, after, call = around.of(start, end)
        activity = told = NOTHING
        others: tuple[tuple[HostActivity, float], ...] = ()
        if call >= 0:
            # What the host does beside copies, waits, and the start of what it launched is what keeps the GPU idle.
            since, until = _longest_part(one.long, start, end) if split.long_ns[i] > 0 else (start, end)
            thread = int(calls.thread[call])
            activity = told = record.during(since, until, thread)
            others = tuple(
                (record.during(*rest, thread), (rest[1] - rest[0]) / (until - since))
                for rest in record.rests(told, since, until, thread, one.long_from_ns)
            )
            if activity.verdict == "unknown" and is_built(after) and record.has_loaded(start, end, thread):
                # Where nothing else says what the host did before it loaded such a kernel, it built it.
                activity = HostActivity(verdict="compilation", kind=KERNEL, name=after, where=activity.where)
            is_shape = activity.verdict in ("compilation", "stalls") and is_built_per_shape(after)
            if is_shape and not record.is_warming_up(since, until, thread):
                activity = replace(activity, verdict="new_shapes", kind=KERNEL, name=after)
        tuner = next((name for name in (before, after) if is_tuning(name)), None)
        if tuner is not None and activity.verdict in ("host_work", "unknown"):
            activity = HostActivity(verdict="compilation", kind=KERNEL, name=tuner, where=activity.where)
        if before is None and split.copy_ns[i] > 0 and activity.verdict in ("host_work", "unknown"):
            activity = _loading(activity)
        gap = Gap(
            source=source,
            start_ns=start - one.span[0],
            length_ns=end - start,
            host_ns=int(split.host_ns[i]),
            long_ns=int(split.long_ns[i]),
            sync_ns=int(split.sync_ns[i]),
            copy_ns=int(split.copy_ns[i]),
            between_ns=int(split.between_ns[i]),
            before=before,
            after=after,
            activity=activity,
        )
        # What is told by the kernels around a gap is true of all of it.
        found.append(_Looked(gap=gap, weight=weights[i], others=others if activity is told else ()))
    return found


def _judge_by_spread(looked: list[_Looked], around: "_Neighbours", one: IdleMap) -> list[_Looked]:
    """The gaps with those that recur told from set-up, which dies out: compiling again, and stalls."""
    recurring = {
        verdict
        for verdict in GOING_ON
        if around.goes_on(_ends([each.gap for each in looked if _may_recur(each.gap.activity) == verdict], one))
    }

    def judged(activity: HostActivity) -> HostActivity:
        told = _may_recur(activity)
        return activity if told is None else replace(activity, verdict=told if told in recurring else "compilation")

    return [
        replace(
            each,
            gap=replace(each.gap, activity=judged(each.gap.activity)),
            others=tuple((judged(activity), share) for activity, share in each.others),
        )
        for each in looked
    ]


def _may_recur(activity: HostActivity) -> Verdict | None:
    """What set-up is, if it is none."""
    if activity.verdict == "compilation" and compiles(activity.name):
        return "recompilation"
    # A launch that takes long loads what it launches, once.
    is_launching = activity.verdict == "compilation" and is_launch(activity.name)
    return "stalls" if activity.verdict == "stalls" or is_launching else None


def _loading(activity: HostActivity) -> HostActivity:
    """Before its first kernel a program that copies to the device loads what it needs."""
    if activity.name is None:
        return HostActivity(verdict="compilation", kind="time", name=BEFORE_FIRST, where=activity.where)
    return replace(activity, verdict="compilation")


def _longest_part(parts: Intervals, start: int, end: int) -> tuple[int, int]:
    """The longest of some intervals inside a time."""
    inside = slice(
        int(np.searchsorted(parts.end, start, side="right")), int(np.searchsorted(parts.start, end, side="left"))
    )
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
        following = int(np.searchsorted(self._start, end, side="left"))
        before = after = None
        call = -1
        if following < len(self._start):
            after, call = self._short(following), int(self._call[following])
        if following > 0 and int(self._reach[following - 1]) <= start:
            # The first position where the reach is what it is before the gap is the kernel that ended last.
            before = self._short(int(np.searchsorted(self._reach[:following], self._reach[following - 1], side="left")))
        return before, after, call

    def goes_on(self, ends: Sequence[int]) -> bool:
        """Whether gaps that end at these times are spread over the work to its end, before kernels that ran already."""
        following = np.searchsorted(self._start, np.array(ends, np.int64))
        following = following[following < len(self._start)]
        again = following[self._first[self._name[following]] < following]
        if len(again) < RECURRING:
            return False
        spread = np.bincount(QUARTERS * again // len(self._start), minlength=QUARTERS)
        # In the first quarter they may be taken for first uses.
        return bool(spread[1:].min() >= LEAST_SHARE * len(again) / QUARTERS)

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


def _reasons(looked: Sequence[_Looked], around: "_Neighbours", one: IdleMap) -> list[Reason]:
    """Those of one process. Each gap counts as often as it stands for others, with each reason by its share."""
    totals: dict[tuple[str, str | None, str | None], list[tuple[_Looked, HostActivity, float]]] = {}
    for each in looked:
        if each.gap.long_ns > 0:
            rest = 1.0 - sum(share for _, share in each.others)
            for activity, share in ((each.gap.activity, rest), *each.others):
                totals.setdefault((activity.verdict, activity.name, activity.kind), []).append((each, activity, share))
    return [
        Reason(
            verdict=same[0][1].verdict,
            name=same[0][1].name,
            kind=same[0][1].kind,
            where=same[0][1].where,
            gaps=round(sum(each.weight for each, _, _ in same)),
            host_ns=round(sum(each.weight * share * each.gap.long_ns for each, _, share in same)),
            recurs=around.goes_on(_ends([each.gap for each, _, _ in same], one)),
            shared=round(sum(each.weight for each, activity, _ in same if activity is not each.gap.activity)),
        )
        for same in totals.values()
    ]


def _merged(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The reasons of several processes or captures together, the costliest first."""
    totals: dict[tuple[str, str | None, str | None], list[Reason]] = {}
    for reason in reasons:
        totals.setdefault((reason.verdict, reason.name, reason.kind), []).append(reason)
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

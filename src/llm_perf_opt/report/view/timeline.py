"""Timeline: launches and kernels of one prefill and a few decode steps, packed for the browser."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llm_perf_opt.analysis.findings.facts import Unknown
from llm_perf_opt.analysis.timeline.window import TimelineWindow
from llm_perf_opt.core.names import DECODE, DECODE_STEP, PHASE_RANGE
from llm_perf_opt.report.run_files import Found, RunFiles


@dataclass(frozen=True, kw_only=True)
class Track:
    """One row of the timeline. `data` packs `[start - previous start, length, name, class]` as base64 of varints."""

    label: str
    kind: str
    depth: int
    count: int
    data: str


@dataclass(frozen=True, kw_only=True)
class Jump:
    """A phase the page can jump to."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class TimelineView:
    """Times in ns since the window began."""

    length_ns: int
    names: tuple[str, ...]
    classes: tuple[str, ...]
    tracks: tuple[Track, ...]
    jumps: tuple[Jump, ...]
    notes: tuple[str, ...]
    source: str
    missing: Unknown | None = None


EMPTY = TimelineView(length_ns=0, names=(), classes=(), tracks=(), jumps=(), notes=(), source="")
PHASE_RANGES = tuple(PHASE_RANGE.values())


def timeline_view(files: RunFiles) -> TimelineView:
    """Of several the one with kernels, nsys's first because it slows the host less; without kernels the fullest."""
    found = sorted(files.timelines, key=lambda f: _preference(f.content))
    if not found:
        reason = "no stage recorded a timeline"
        return TimelineView(**{**vars(EMPTY), "missing": Unknown(reason=reason, enable="pipeline.nsys.enable=true")})
    return _view(found[0])


def _preference(file: TimelineWindow) -> tuple[bool, bool, int]:
    has_kernels = len(file.kernels) > 0
    return (not has_kernels, has_kernels and file.kind != "nsys", -len(file.calls))


def _view(found: Found[TimelineWindow]) -> TimelineView:
    file = found.content
    tracks = [*_ranges(file), *_calls(file), *_kernels(file)]
    notes = list(file.notes)
    if file.left_out:
        notes.append(f"{file.left_out:,} event(s) after the window are not shown.")
    notes.append("Recorded under a profiler: order and gaps are real, the host is slower than in the clean pass.")
    return TimelineView(
        length_ns=file.window_ns[1] - file.window_ns[0],
        names=file.names,
        classes=file.classes,
        tracks=tuple(track for track in tracks if track.count),
        jumps=_jumps(file),
        notes=tuple(notes),
        source=found.source,
    )


def _jumps(file: TimelineWindow) -> tuple[Jump, ...]:
    """The prefill and the second decode step (the first one often pays for what is done once)."""
    jumps = []
    for name in PHASE_RANGES:
        # One that begins with the window is the cut end of something before it.
        spans = sorted((s, e) for s, e, _, index in file.ranges if s > 0 and file.names[index] == name)
        if spans:
            start, end = spans[min(1, len(spans) - 1)] if name == DECODE_STEP else spans[0]
            jumps.append(Jump(name=DECODE if name == DECODE_STEP else name, start=start, end=end))
    return tuple(jumps)


def _ranges(file: TimelineWindow) -> list[Track]:
    """Ranges of one thread by depth, so that nested ones lie below each other."""
    rows: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    open_: dict[int, list[int]] = {}
    for start, end, thread, name in sorted(file.ranges, key=lambda r: (r[2], r[0], -r[1])):
        stack = open_.setdefault(thread, [])
        while stack and stack[-1] <= start:
            stack.pop()
        rows.setdefault((thread, len(stack)), []).append((start, end, name, 0))
        stack.append(end)
    return [_track("ranges", "range", depth, events) for (_, depth), events in sorted(rows.items())]


def _calls(file: TimelineWindow) -> list[Track]:
    """Calls of one thread; nested ones (operators) by depth."""
    rows: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
    open_: dict[int, list[int]] = {}
    for start, end, thread, name in sorted(file.calls, key=lambda r: (r[2], r[0], -r[1])):
        stack = open_.setdefault(thread, [])
        while stack and stack[-1] <= start:
            stack.pop()
        rows.setdefault((thread, len(stack)), []).append((start, end, name, 0))
        stack.append(end)
    return [
        _track(f"CPU {file.threads[thread]}", "call", depth, events) for (thread, depth), events in sorted(rows.items())
    ]


def _kernels(file: TimelineWindow) -> list[Track]:
    rows: dict[int, list[tuple[int, int, int, int]]] = {}
    for start, end, stream, name, kind in file.kernels:
        rows.setdefault(stream, []).append((start, end, name, kind))
    return [_track(f"GPU {file.streams[s]}", "kernel", 0, events) for s, events in sorted(rows.items())]


def _track(label: str, kind: str, depth: int, events: Sequence[tuple[int, int, int, int]]) -> Track:
    return Track(label=label, kind=kind, depth=depth, count=len(events), data=pack(events))


def pack(events: Iterable[tuple[int, int, int, int]]) -> str:
    """Varints of start differences, lengths, names and classes, event by event, as base64."""
    out = bytearray()
    previous = 0
    for start, end, name, kind in sorted(events):
        for number in (start - previous, end - start, name, kind):
            while number > 127:
                out.append(number & 127 | 128)
                number >>= 7
            out.append(number)
        previous = start
    return base64.b64encode(bytes(out)).decode("ascii")

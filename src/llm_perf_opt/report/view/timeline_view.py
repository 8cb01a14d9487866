"""Timeline: launches and kernels of one prefill and a few decode steps, packed for the browser."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.capture.kernels.names import short_kernel_name
from llm_perf_opt.capture.timeline import LaunchShape
from llm_perf_opt.capture.window import Event, TimelineWindow
from llm_perf_opt.core.names import DECODE, DECODE_STEP, PHASE_RANGE
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.diagnosis.facts import Unknown
from llm_perf_opt.report.run_files import Found, RunFiles


@dataclass(frozen=True, kw_only=True)
class Track:
    """One row of the timeline. `data` packs `[start - previous start, length, name, class]` as base64 of varints.

    The class of a call is what it is (launch, wait, other call, operator). `links`, of a row of kernels, packs
    `[ns since its launch began + 1, place in the view's links]`, 0 for what is not known.
    """

    label: str
    kind: str
    depth: int
    count: int
    data: str
    links: str = ""


@dataclass(frozen=True, kw_only=True)
class Jump:
    """A phase the page can jump to."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class TimelineView:
    """Times in ns since the window began.

    `links` are `(row of a launch, operator + 1, module + 1, launch shape + 1)`, each once, because kernels share them.
    """

    length_ns: int
    names: tuple[str, ...]
    classes: tuple[str, ...]
    tracks: tuple[Track, ...]
    jumps: tuple[Jump, ...]
    notes: tuple[str, ...]
    source: str
    shapes: tuple[str, ...] = ()
    links: tuple[tuple[int, int, int, int], ...] = ()
    missing: Unknown | None = None


EMPTY = TimelineView(length_ns=0, names=(), classes=(), tracks=(), jumps=(), notes=(), source="")
PHASE_RANGES = tuple(PHASE_RANGE.values())


def timeline_view(files: RunFiles) -> TimelineView:
    """Of several the one with kernels, nsys's first because it slows the host less; without kernels the fullest."""
    found = sorted(files.timelines, key=lambda f: _preference(f.content))
    if not found:
        # Where a profiler ran and failed, to enable it would not help.
        why = files.capture if isinstance(files.capture, Unknown) else Unknown(reason="no stage recorded a timeline")
        return replace(EMPTY, missing=why)
    view = _view(found[0])
    if not view.tracks:
        return replace(view, missing=Unknown(reason=f"{view.source} holds no event with a time"))
    return view


def _preference(file: TimelineWindow) -> tuple[bool, bool, int]:
    has_kernels = len(file.kernels) > 0
    return (not has_kernels, has_kernels and file.kind != "nsys", -len(file.calls))


def _view(found: Found[TimelineWindow]) -> TimelineView:
    file = found.content
    names = _PageNames(file)
    ranges, (calls, places) = _ranges(file, names), _calls(file, names)
    # Rows are numbered over all of them: launches lie below the ranges.
    places = {call: (row + len(ranges), start) for call, (row, start) in places.items()}
    links: dict[tuple[int, int, int, int], int] = {}
    tracks = (*ranges, *calls, *_kernels(file, names, places, links))
    notes = list(file.notes)
    if file.left_out:
        notes.append(f"Events after the window that are not shown: {file.left_out:,}.")
    notes.append("Recorded under a profiler: order and gaps are real, the host is slower than in the clean pass.")
    return TimelineView(
        length_ns=file.window_ns[1] - file.window_ns[0],
        tracks=tracks,
        names=names.all,
        classes=file.classes,
        jumps=_jumps(file),
        notes=tuple(notes),
        source=found.source,
        shapes=tuple(shape_text(shape) for shape in file.launch_shapes),
        links=tuple(links),
    )


def shape_text(shape: LaunchShape) -> str:
    grid, block = ("×".join(str(n) for n in part) for part in (shape.grid, shape.block))
    registers = "" if shape.registers is None else f", {shape.registers} registers"
    shared = f", {format_bytes(shape.shared_bytes)} shared memory" if shape.shared_bytes else ""
    return f"grid {grid}, block {block}{registers}{shared}"


class _PageNames:
    """The names a page needs, kernels under their short ones."""

    def __init__(self, file: TimelineWindow) -> None:
        self._file = file
        self._codes: dict[str, int] = {}
        self._found: dict[tuple[int, bool], int] = {}

    def code(self, index: int, *, is_kernel: bool = False) -> int:
        key = (index, is_kernel)
        if key not in self._found:
            text = self._file.names[index]
            self._found[key] = self._codes.setdefault(short_kernel_name(text) if is_kernel else text, len(self._codes))
        return self._found[key]

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(self._codes)


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


def _by_depth(events: Sequence[Event]) -> tuple[dict[tuple[int, int], list[int]], dict[int, tuple[int, int]]]:
    """Events of each thread by depth, so that nested ones lie below each other; and where each one went."""
    rows: dict[tuple[int, int], list[int]] = {}
    place: dict[int, tuple[int, int]] = {}
    open_: dict[int, list[int]] = {}
    for index in sorted(range(len(events)), key=lambda i: (events[i][2], events[i][0], -events[i][1])):
        start, end, thread, _ = events[index]
        stack = open_.setdefault(thread, [])
        while stack and stack[-1] <= start:
            stack.pop()
        place[index] = (thread, len(stack))
        rows.setdefault(place[index], []).append(index)
        stack.append(end)
    return rows, place


def _ranges(file: TimelineWindow, names: _PageNames) -> list[Track]:
    rows, _ = _by_depth(file.ranges)
    return [
        _track(
            "ranges",
            "range",
            depth,
            [(*file.ranges[i][:2], names.code(file.ranges[i][3]), 0) for i in rows[thread, depth]],
        )
        for thread, depth in sorted(rows)
    ]


def _calls(file: TimelineWindow, names: _PageNames) -> tuple[list[Track], dict[int, tuple[int, int]]]:
    """Calls of each thread, nested ones (operators) by depth; and the row and start of each call."""
    rows, place = _by_depth(file.calls)
    number = {key: row for row, key in enumerate(sorted(rows))}
    tracks = [
        _track(
            f"CPU {file.threads[thread]}",
            "call",
            depth,
            [
                (*file.calls[i][:2], names.code(file.calls[i][3]), file.call_kinds[i] if file.call_kinds else 0)
                for i in rows[thread, depth]
            ],
        )
        for thread, depth in sorted(rows)
    ]
    return tracks, {i: (number[key], file.calls[i][0]) for i, key in place.items()}


def _kernels(
    file: TimelineWindow,
    names: _PageNames,
    places: Mapping[int, tuple[int, int]],
    links: dict[tuple[int, int, int, int], int],
) -> list[Track]:
    rows: dict[int, list[int]] = {}
    for index, kernel in enumerate(file.kernels):
        rows.setdefault(kernel[2], []).append(index)
    tracks = []
    for stream, chosen in sorted(rows.items()):
        # In the order they are packed.
        chosen = sorted(chosen, key=lambda i: (file.kernels[i][:2], names.code(file.kernels[i][3], is_kernel=True)))
        events = [
            (*file.kernels[i][:2], names.code(file.kernels[i][3], is_kernel=True), file.kernels[i][4]) for i in chosen
        ]
        track = _track(f"GPU {file.streams[stream]}", "kernel", 0, events)
        tracks.append(replace(track, links=_links(file, names, places, chosen, links)) if file.launches else track)
    return tracks


def _links(
    file: TimelineWindow,
    names: _PageNames,
    places: Mapping[int, tuple[int, int]],
    chosen: Sequence[int],
    links: dict[tuple[int, int, int, int], int],
) -> str:
    numbers: list[int] = []
    for i in chosen:
        row, start = places.get(file.launches[i], (0, -1))
        # A launch that began before the window is cut at its edge.
        lag = max(file.kernels[i][0] - start, 0) + 1 if start >= 0 else 0
        operator, module = (
            names.code(column[i]) + 1 if column and column[i] >= 0 else 0 for column in (file.operators, file.modules)
        )
        link = (row, operator, module, file.shapes[i] + 1 if file.shapes else 0)
        numbers += [lag, links.setdefault(link, len(links))]
    return varints(numbers)


def _track(label: str, kind: str, depth: int, events: Sequence[tuple[int, int, int, int]]) -> Track:
    return Track(label=label, kind=kind, depth=depth, count=len(events), data=pack(events))


def pack(events: Iterable[tuple[int, int, int, int]]) -> str:
    """Start differences, lengths, names and classes, event by event."""
    numbers: list[int] = []
    previous = 0
    for start, end, name, kind in sorted(events):
        numbers += [start - previous, end - start, name, kind]
        previous = start
    return varints(numbers)


def varints(numbers: Iterable[int]) -> str:
    """Seven bits a byte, the lowest first, as base64."""
    out = bytearray()
    for number in numbers:
        if number < 0:
            raise ArithmeticError(f"a time or a place that is negative: {number}")
        while number > 127:
            out.append(number & 127 | 128)
            number >>= 7
        out.append(number)
    return base64.b64encode(bytes(out)).decode("ascii")

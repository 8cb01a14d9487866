"""Stacks of a run for flame graph viewers: speedscope's file format, and collapsed stacks.

Three sources: sampled stacks of the host (samples), Python frames of a torch trace (ns), and operators of the CPU in
the windows a report draws (ns of each operator alone).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal

import msgspec
from msgspec import UNSET

from llm_perf_opt import __version__
from llm_perf_opt.capture.frames import PythonTree
from llm_perf_opt.capture.window import OPERATOR, TimelineWindow
from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.names import HOST_SAMPLES
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis
from llm_perf_opt.diagnosis.host.stacks import Frame, Stack, read_stacks
from llm_perf_opt.report.run_files import Found, RunFiles
from llm_perf_opt.system.files import read_limited, real_path

LARGEST_STACKS = 256 << 20
SCHEMA = "https://www.speedscope.app/file-format-schema.json"
StackSource = Literal["host", "python", "operators"]
# In the order one is chosen in where a file holds a single unit.
SOURCES: tuple[StackSource, ...] = ("host", "python", "operators")
NONE_FOUND = (
    "no stacks: the host was not sampled (pipeline.host_samples.enable=true), and no torch trace with operators or "
    "frames was recorded"
)

NONE_RECORDED = "no stacks: it is not a torch trace with operators or Python frames (with_stack=True records these)"


@dataclass(frozen=True, kw_only=True)
class WeightedStack:
    """Frames from the outermost in, and what they weigh in the unit of their profile."""

    frames: tuple[str, ...]
    weight: int


@dataclass(frozen=True, kw_only=True)
class StackProfile:
    """The stacks of one thread or trace."""

    name: str
    source: StackSource
    unit: Literal["none", "nanoseconds"]
    stacks: tuple[WeightedStack, ...]


@dataclass(frozen=True, kw_only=True)
class SpeedscopeFrame:
    """A frame by its name."""

    name: str


@dataclass(frozen=True, kw_only=True)
class SpeedscopeShared:
    """What all profiles of a file index."""

    frames: tuple[SpeedscopeFrame, ...]


@dataclass(frozen=True, kw_only=True)
class SpeedscopeProfile:
    """A profile of the type `sampled`, in speedscope's own words."""

    type: Literal["sampled"] = "sampled"
    name: str
    unit: Literal["none", "nanoseconds"]
    startValue: int = 0
    endValue: int
    samples: tuple[tuple[int, ...], ...]
    weights: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class SpeedscopeFile:
    """The file speedscope.app opens."""

    name: str
    exporter: str = f"llm-perf {__version__}"
    activeProfileIndex: int = 0
    shared: SpeedscopeShared
    profiles: tuple[SpeedscopeProfile, ...]


def stacks_of_run(files: RunFiles, host: Sequence[Stack]) -> tuple[StackProfile, ...]:
    """Every profile of a run; `host` are its sampled stacks."""
    trace = files.trace.content if isinstance(files.trace, Found) else None
    found = (*_host_profiles(host), *stacks_of_capture(trace, [one.content for one in files.timelines]))
    return tuple(profile for profile in found if profile.stacks)


def stacks_of_capture(trace: CaptureAnalysis | None, windows: Sequence[TimelineWindow]) -> tuple[StackProfile, ...]:
    """The frames of a torch trace, and the operators of the windows a report draws."""
    trees = () if trace is None or trace.python is UNSET else trace.python
    found = [*map(_python_profile, trees), *(profile for one in windows for profile in _operator_profiles(one))]
    return tuple(profile for profile in found if profile.stacks)


def host_stacks(manifest: RunManifest, run_dir: Path) -> tuple[Stack, ...]:
    """The sampled stacks of a run; none where the host was not sampled."""
    stage = manifest.stage(HOST_SAMPLES)
    files = () if stage is None else tuple(file.path for file in stage.files if file.role == "host_stacks")
    inside = [path for path in files if real_path(path).is_relative_to(real_path(run_dir)) and path.is_file()]
    found = (read_stacks(read_limited(path, LARGEST_STACKS).decode("utf-8", "replace")) for path in inside)
    return tuple(stack for stacks in found for stack in stacks)


def speedscope(profiles: Sequence[StackProfile], *, name: str) -> bytes:
    """All profiles as one file."""
    names = dict.fromkeys(frame for profile in profiles for stack in profile.stacks for frame in stack.frames)
    numbers = {frame: number for number, frame in enumerate(names)}
    document = SpeedscopeFile(
        name=name,
        shared=SpeedscopeShared(frames=tuple(SpeedscopeFrame(name=frame) for frame in names)),
        profiles=tuple(
            SpeedscopeProfile(
                name=profile.name,
                unit=profile.unit,
                endValue=sum(stack.weight for stack in profile.stacks),
                samples=tuple(tuple(numbers[frame] for frame in stack.frames) for stack in profile.stacks),
                weights=tuple(stack.weight for stack in profile.stacks),
            )
            for profile in profiles
        ),
    )
    return msgspec.json.encode({"$schema": SCHEMA, **msgspec.to_builtins(document)})


def collapsed(profiles: Sequence[StackProfile]) -> str:
    """One line per stack, `outer;inner weight`; the profile's name is the outermost frame where there are several."""
    lines = []
    for profile in profiles:
        root = (profile.name,) if len(profiles) > 1 else ()
        for stack in profile.stacks:
            lines.append(f"{';'.join(_in_line(frame) for frame in (*root, *stack.frames))} {stack.weight}")
    return "\n".join(lines) + "\n"


def _in_line(frame: str) -> str:
    return " ".join(frame.replace(";", ":").split())


def _merged(stacks: Iterable[tuple[tuple[str, ...], int]]) -> tuple[WeightedStack, ...]:
    total: defaultdict[tuple[str, ...], int] = defaultdict(int)
    for frames, weight in stacks:
        total[frames] += weight
    return tuple(WeightedStack(frames=frames, weight=weight) for frames, weight in total.items() if weight > 0)


def _host_profiles(stacks: Sequence[Stack]) -> Iterator[StackProfile]:
    threads: dict[tuple[int, str], list[Stack]] = {}
    for stack in stacks:
        threads.setdefault((stack.process, stack.thread), []).append(stack)
    busiest = sorted(threads.items(), key=lambda item: -sum(stack.samples for stack in item[1]))
    for (process, thread), own in busiest:
        yield StackProfile(
            name=f"{thread} of process {process} (samples)",
            source="host",
            unit="none",
            stacks=_merged((tuple(map(_frame_name, stack.frames)), stack.samples) for stack in own if stack.frames),
        )


def _frame_name(frame: Frame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})" if frame.file else frame.function


def _python_profile(tree: PythonTree) -> StackProfile:
    paths: list[tuple[str, ...]] = []
    for node in tree.nodes:
        # Callers come before those they call.
        paths.append((*(paths[node.parent] if node.parent >= 0 else ()), node.name))
    return StackProfile(
        name=f"Python frames of {PurePath(tree.source).name}",
        source="python",
        unit="nanoseconds",
        stacks=_merged((path, node.self_ns) for path, node in zip(paths, tree.nodes, strict=True)),
    )


def _operator_profiles(window: TimelineWindow) -> Iterator[StackProfile]:
    """Calls of each thread by what they lie in; windows without operators, as those of nsys, give none."""
    if OPERATOR not in window.call_kinds:
        return
    lanes: dict[int, list[tuple[int, int, str]]] = {}
    for start, end, lane, name in window.calls:
        lanes.setdefault(lane, []).append((start, end, window.names[name]))
    for lane, calls in sorted(lanes.items()):
        yield StackProfile(
            name=f"Operators of {window.threads[lane]}, {PurePath(window.source).name}",
            source="operators",
            unit="nanoseconds",
            stacks=_merged(_nested(calls)),
        )


def _nested(calls: Sequence[tuple[int, int, str]]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Each call's own time under the calls around it; what partly overlaps is cut at the end of what it began in."""
    open_calls: list[tuple[int, tuple[str, ...]]] = []
    at = 0
    for start, end, name in sorted(calls, key=lambda call: (call[0], -call[1])):
        while open_calls and open_calls[-1][0] <= start:
            ended, path = open_calls.pop()
            yield path, ended - at
            at = ended
        if open_calls:
            yield open_calls[-1][1], start - at
            end = min(end, open_calls[-1][0])
        at = start
        open_calls.append((end, (*(open_calls[-1][1] if open_calls else ()), name)))
    while open_calls:
        ended, path = open_calls.pop()
        yield path, ended - at
        at = ended

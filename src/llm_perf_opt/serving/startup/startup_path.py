"""The critical path of a start: at each moment the process that works, and for which the others wait.

A server starts processes that start processes, and waits for each. So of the processes whose main thread works, the one
furthest down the tree is the one that counts; where main threads only wait, another thread of theirs may work. While
all wait and a process has its first sample soon, it is being created.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from llm_perf_opt.serving.startup.purposes import does_wait, purpose_of
from llm_perf_opt.serving.startup.startup_records import Purpose, StartupPart, StartupSpan
from llm_perf_opt.serving.startup.startup_stacks import SampledFrame, SampledProcess

STEP_S = 0.02
# A process has its first sample this much after it was started at most: Python starts, and the sampler has to notice.
CREATION_S = 3.0
START = "the first process"
# What is in front of a module's own path.
_SITE = re.compile(r"^.*/(?:site-packages|dist-packages|lib/python[0-9.]+)/")


@dataclass(frozen=True, kw_only=True)
class _Moment:
    """Who worked at a moment, for what, and in which function."""

    purpose: Purpose
    process: str
    where: str = ""


def critical_path(processes: Sequence[SampledProcess], *, ready_s: float) -> tuple[StartupSpan, ...]:
    """The path from 0 to `ready_s`, on the sampler's clock, in stretches of one purpose and process."""
    spans: list[StartupSpan] = []
    for start_s, moment in _moments(processes, ready_s):
        end_s = min(start_s + STEP_S, ready_s)
        last = spans[-1] if spans else None
        if last is not None and (last.purpose, last.process) == (moment.purpose, moment.process):
            spans[-1] = StartupSpan(purpose=last.purpose, process=last.process, start_s=last.start_s, end_s=end_s)
        else:
            spans.append(StartupSpan(purpose=moment.purpose, process=moment.process, start_s=start_s, end_s=end_s))
    return tuple(spans)


def startup_parts(processes: Sequence[SampledProcess], *, ready_s: float) -> tuple[StartupPart, ...]:
    """The path's time by purpose, most first; parts sum to `ready_s`."""
    times: defaultdict[Purpose, float] = defaultdict(float)
    who: defaultdict[Purpose, Counter[str]] = defaultdict(Counter)
    where: defaultdict[Purpose, Counter[str]] = defaultdict(Counter)
    for start_s, moment in _moments(processes, ready_s):
        time_s = min(STEP_S, ready_s - start_s)
        times[moment.purpose] += time_s
        who[moment.purpose][moment.process] += 1
        where[moment.purpose][moment.where] += 1
    return tuple(
        StartupPart(
            purpose=purpose,
            time_s=time_s,
            processes=tuple(name for name, _ in who[purpose].most_common()),
            where=where[purpose].most_common(1)[0][0],
        )
        for purpose, time_s in sorted(times.items(), key=lambda item: -item[1])
    )


def _moments(processes: Sequence[SampledProcess], ready_s: float) -> Iterator[tuple[float, _Moment]]:
    births = [process.first_s for process in processes]
    count = 0
    while count * STEP_S < ready_s:
        at = count * STEP_S
        yield at, _at(processes, births, at)
        count += 1


def _at(processes: Sequence[SampledProcess], births: Sequence[float], at: float) -> _Moment:
    stacks = {process.pid: stack for process in processes if (stack := _stack(process, at)) is not None}
    working = [process for process in processes if stacks.get(process.pid) and not does_wait(stacks[process.pid])]
    if working:
        deepest = max(working, key=lambda process: (len(process.ancestors), process.first_s))
        above = [stacks[pid] for pid in deepest.ancestors if pid in stacks]
        frames = stacks[deepest.pid]
        return _Moment(purpose=purpose_of(frames, above), process=_name(deepest), where=_where(frames))
    if not stacks or any(at < birth <= at + CREATION_S for birth in births):
        return _Moment(purpose="process creation", process=START if not stacks else "child process")
    return _Moment(purpose="waiting", process=_name(processes[-1]))


def _stack(process: SampledProcess, at: float) -> tuple[SampledFrame, ...] | None:
    """The stack of the main thread; while it waits, that of another thread that works."""
    found = next((stack for thread in process.main if (stack := thread.at(at)) is not None), None)
    if found is None or not does_wait(found):
        return found
    others = (thread.at(at) for thread in process.threads if not thread.is_main)
    return next((stack for stack in others if stack and not does_wait(stack) and purpose_of(stack) != "other"), found)


def _name(process: SampledProcess) -> str:
    return f"{process.title} ({process.pid})"


def _where(frames: Sequence[SampledFrame]) -> str:
    """The innermost function outside of Python's import system."""
    inner = next((frame for frame in reversed(frames) if "importlib" not in frame.file), None)
    return "" if inner is None else f"{inner.name} ({_SITE.sub('', inner.file)})"

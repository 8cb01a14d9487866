"""Samples a program's stacks and describes them: all threads and child processes, function and line.

By py-spy, from outside; where it may not read the program, by a thread inside it.
"""

import json
import linecache
import math
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.core.documents import HostDocument, HostGil, HostObserved, HostRow, HostThread
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.core.units import format_bytes
from llm_perf_opt.diagnosis.host.environment import flag_effects, variable_effects
from llm_perf_opt.diagnosis.host.owners import (
    IMPORTS,
    INTERPRETER,
    Lines,
    Names,
    busiest,
    host_rows,
    owned,
    place_of,
    top_place,
)
from llm_perf_opt.diagnosis.host.stacks import Frame, Stack, of_program, read_stacks, with_command_code, without_parent
from llm_perf_opt.errors import CommandFailed
from llm_perf_opt.profiling.injection import INJECT_DIR
from llm_perf_opt.profiling.observed import (
    ALONE_RATE_HZ,
    LineNames,
    ProcessLook,
    first_look,
    observing_environment,
    read_looks,
    stacks_of,
    stacks_of_places,
    summarise_look,
)
from llm_perf_opt.profiling.user_program import phase_limit
from llm_perf_opt.system.process import CommandResult, program_title
from llm_perf_opt.system.py_spy import find_sampler
from llm_perf_opt.system.redact import Redactor

LAUNCHER = Path(__file__).with_name("launch_sampled.py")
# Stacks are written after the program's time is up.
WRITE_S = 30.0
# The sampler ends the program (SIGKILL) when its time is up, and counts from its own start, which takes a moment.
SAMPLER_STARTS_S = 1.0
# Threads that work for a smaller part of the pass cannot hold up the main thread.
BUSY_SHARE = 0.1
THREADS_KEPT = 8
LINE_LENGTH = 100
NO_EXIT_CODE = "the exit code of the sampled program was not seen: it may have failed while its stacks were sampled"
# From this part of the pass on, waiting for a processor is worth a note, and memory from this many bytes on.
CROWDED, GROWN_BYTES = 0.25, 100 << 20
# With a smaller part of the samples that were due, a sampler's answer is that of the moments it could read.
SPARSE = 0.4
IDLE_LOOP = "host.wait.other"
# What py-spy says when it got no processor in time.
BEHIND = "behind in sampling"
OURS = str(INJECT_DIR)
LOCK, PROCESS, EXIT = "host.wait.lock", "host.wait.process", "host.exit"
# Data that is loaded in this process, and the wait for those that load it.
PICKLING, PASSING = "host.work.json", "host.wait.process.pickle"
STARTING, START_UP = "host.wait.process.start", (INTERPRETER, IMPORTS)
LOADING, WORKERS = "host.data_loading", "host.data_loading.workers"


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One run of the program while its stacks were sampled: its first `process` and the stacks of it and its children.

    `cpu_s` is None where it did not end by itself; `note` says why it was not sampled as usual. `end_unseen`: it ended
    within its time, and its exit code was not seen.
    """

    process: int
    stacks: tuple[Stack, ...]
    duration_s: float
    cpu_s: float | None
    end_unseen: bool
    sampler: str
    look: ProcessLook | None = None
    fell_behind: bool = False
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class SampleJob:
    """What all passes share: how often to look, and for how long at most."""

    ctx: StageContext
    rate_hz: int
    timeout_s: float

    @property
    def limit_s(self) -> float:
        return self.ctx.config.workload.duration_s or self.timeout_s


class SamplerFailed(CommandFailed):
    """The sampler gave no samples; what was measured before stays, and the times `ran` of a pass that ended."""

    def __init__(self, text: str, *, ran: "Launched | None" = None) -> None:
        super().__init__(text)
        self.ran = ran


class NothingSampled(CommandFailed):
    """One way to sample gave nothing; `saw_no_python` where the sampler looked before the program was Python."""

    def __init__(self, text: str, *, saw_no_python: bool = False, ran: "Launched | None" = None) -> None:
        super().__init__(text)
        self.saw_no_python = saw_no_python
        self.ran = ran


def sample_program(ctx: StageContext, *, rate_hz: int, timeout_s: float, holds_gil: bool) -> HostDocument:
    """The document of one pass; where several threads work, of a second one that looks at who holds the GIL."""
    job = SampleJob(ctx=ctx, rate_hz=rate_hz, timeout_s=timeout_s)
    sampler = find_sampler()
    looked = _sample(job, sampler)
    looked = replace(looked, stacks=with_command_code(looked.stacks))
    mine = [stack for stack in looked.stacks if stack.is_main and stack.process == looked.process]
    others = [
        without_parent(stack) if stack.process != looked.process else stack
        for stack in looked.stacks
        if stack not in mine and not any(frame.file.startswith(OURS) for frame in stack.frames)
    ]
    main = [kept for stack in mine if (kept := _without_ours(stack)) is not None]
    is_sparse = _is_sparse(main, looked, rate_hz)
    if is_sparse and looked.look is not None:
        main = list(stacks_of_places(looked.look, rate_hz=rate_hz))
    total = sum(stack.samples for stack in main)
    # What our modules took to start is not a time of the program.
    ours_s = 0.0 if is_sparse else (sum(stack.samples for stack in mine) - total) / rate_hz
    lines, names = _lines(ctx), LineNames(folder=ctx.config.user_dir, look=looked.look)
    threads = tuple(
        HostThread(name=name, samples=samples, owner=owner)
        for name, (samples, owner) in sorted(busiest(others, lines, names).items(), key=lambda item: -item[1][0])
    )
    notes = tuple(note for note in (looked.note, NO_EXIT_CODE if looked.end_unseen else "") if note)
    if is_sparse:
        notes += (f"{looked.sampler} lost most samples of the main thread: its lines are those a thread inside it saw",)
    gil = None
    beside = {f"{stack.process}/{stack.thread}" for stack in others if stack.process == looked.process}
    compete = any(t.name in beside and t.samples >= BUSY_SHARE * total for t in threads)
    if holds_gil and compete and sampler is not None and looked.sampler == sampler[1]:
        try:
            gil = _gil(job, sampler)
        except CommandFailed as error:
            notes += (f"who holds the GIL is not known: {error}",)
    waits_for = _other_side(others, lines, names, looked.process)
    rows = [_explained(row, names, waits_for, total) for row in host_rows(main, lines, names)]
    rows = _ends(_awaited(rows, looked.look, lines, names), looked)
    clean = ctx.run_command.redactor.text
    seen = None if looked.look is None else summarise_look(looked.look, clean)
    return HostDocument(
        sampler=looked.sampler,
        rate_hz=rate_hz,
        wall_s=max(0.0, looked.duration_s - ours_s),
        samples=total,
        cpu_s=looked.cpu_s,
        rows=tuple(replace(row, detail=clean(row.detail)) for row in rows),
        threads=threads[:THREADS_KEPT],
        gil=gil,
        observed=seen,
        fell_behind=looked.fell_behind,
        notes=(*notes, *live_notes(seen, wall_s=looked.duration_s)),
    )


@dataclass(frozen=True, kw_only=True)
class OtherSide:
    """The thread or child process that was busiest while the main thread waited."""

    owner: str
    samples: int
    is_process: bool
    cell: str
    row: HostRow


def _other_side(others: Sequence[Stack], lines: Lines, names: Names, process: int) -> OtherSide | None:
    """By samples of work; where no thread worked, of waits that are not for one another."""
    found: dict[tuple[bool, int, str], list[Stack]] = {}
    starting: list[Stack] = []
    for stack in others:
        cell = owned(stack, lines, names)[0] if stack.frames else INTERPRETER
        if cell in START_UP and stack.process != process:
            starting.append(stack)
        elif cell not in (LOCK, PROCESS, EXIT, *START_UP):
            found.setdefault((not cell.startswith("host.wait"), stack.process, stack.thread), []).append(stack)
    # Children that end soon do little else than start, and there may be many of them.
    start_up = sum(stack.samples for stack in starting)
    if start_up > sum(stack.samples for (works, *_), stacks in found.items() if works for stack in stacks):
        first = host_rows(starting, lines, names)[0]
        what = f"importing {place_of(first.function, first.file, first.line)}" if first.cell == IMPORTS else "starting"
        return OtherSide(owner=what, samples=start_up, is_process=True, cell=STARTING, row=first)
    if not found:
        return None
    key, stacks = max(found.items(), key=lambda item: (item[0][0], sum(stack.samples for stack in item[1])))
    row = host_rows(stacks, lines, names)[0]
    return OtherSide(
        owner=place_of(row.function, row.file, row.line),
        samples=sum(stack.samples for stack in stacks),
        is_process=key[1] != process,
        cell=row.cell,
        row=row,
    )


def _explained(row: HostRow, names: LineNames, waits_for: OtherSide | None, total: int) -> HostRow:
    """A row with what was seen of its values; a wait with what it waits for, which may be another process."""
    if row.cell not in (LOCK, PROCESS, LOADING) or waits_for is None or waits_for.samples < BUSY_SHARE * total:
        return replace(row, detail=names.detail(row.file, row.line))
    if row.cell == LOADING and not waits_for.is_process:
        return row
    if row.cell == LOADING:
        # What the workers do is what takes the time.
        awaited = f"awaited in {place_of(row.function, row.file, row.line)}"
        does = waits_for.row
        return replace(does, cell=WORKERS, samples=row.samples, text="", leaf=awaited, detail="")
    meanwhile_text = f"meanwhile {'a child process' if waits_for.is_process else 'another thread'}: {waits_for.owner}"
    cell = PROCESS if waits_for.is_process else row.cell
    if cell == PROCESS and waits_for.cell in (PICKLING, STARTING):
        cell = PASSING if waits_for.cell == PICKLING else STARTING
    return replace(row, cell=cell, detail=meanwhile_text)


def live_notes(seen: HostObserved | None, *, wall_s: float) -> tuple[str, ...]:
    """What only the in-process sampler knows: variables, switches, a busy machine, memory."""
    if seen is None:
        return ()
    threads, memory = seen.threads, seen.memory
    notes = [*variable_effects(seen.environment, threads.processors), *flag_effects(seen.flags)]
    if threads.waited_s > CROWDED * wall_s and threads.python <= threads.processors:
        notes.append(
            f"its threads waited {threads.waited_s:.1f} s for a processor in the {wall_s:.1f} s of the sampled pass: "
            "other programs use this machine, or it has too many threads; times vary"
        )
    large = [one for one in memory.grew if one.grown_bytes >= GROWN_BYTES]
    if large:
        where = ", ".join(f"{format_bytes(one.grown_bytes)} in {one.owner}" for one in large[:3])
        notes.append(f"host memory peaked at {format_bytes(memory.peak_bytes)} resident; it grew most by {where}")
    return tuple(notes)


def _is_sparse(main: Sequence[Stack], looked: Pass, rate_hz: int) -> bool:
    """Whether py-spy lost most samples, as with deep, changing stacks, and the in-process sampler did not."""
    kept = sum(stack.samples for stack in main if stack.frames)
    # Samples without a frame are none that were lost: the interpreter starts or ends.
    looked_at = sum(stack.samples for stack in main)
    seen_s = sum(place.weight_s for place in looked.look.places) if looked.look is not None else 0.0
    return looked_at < SPARSE * looked.duration_s * rate_hz and seen_s > max(0.5 * looked.duration_s, kept / rate_hz)


def _ends(rows: list[HostRow], looked: Pass) -> list[HostRow]:
    """Samples of the interpreter without Python: those before the program's first line, and those of its exit."""
    look = looked.look
    if look is None or not look.ended:
        return rows
    after_s = max(0.0, looked.duration_s - look.age_s - look.elapsed_s)
    part = after_s / max(after_s + look.age_s, 1e-9)
    found: list[HostRow] = []
    for row in rows:
        at_exit = round(part * row.samples) if row.cell == INTERPRETER else 0
        found += [replace(row, samples=row.samples - at_exit)] if row.samples > at_exit else []
        found += [replace(row, cell=EXIT, samples=at_exit)] if at_exit else []
    return sorted(found, key=lambda row: -row.samples)


def _awaited(rows: list[HostRow], look: ProcessLook | None, lines: Lines, names: Names) -> list[HostRow]:
    """The wait of an idle event loop as that of the coroutines it waits for."""
    awaits = look.awaits if look is not None else ()
    whole = sum(weight for *_, weight in awaits)
    kept = [row for row in rows if row.cell != IDLE_LOOP or "selectors.py" not in row.leaf]
    idle = sum(row.samples for row in rows if row not in kept)
    if not whole or not idle:
        return rows
    found = []
    for file, function, line, weight in awaits:
        frame = Frame(function=function, file=file, line=line)
        stack = Stack(processes=(), thread="", is_main=True, frames=(frame,), samples=round(idle * weight / whole))
        (row,) = host_rows([stack], lines, names)
        cell = row.cell if row.cell.startswith("host.wait") else IDLE_LOOP
        found.append(replace(row, cell=cell, detail="awaited by an idle event loop"))
    return sorted((*kept, *found), key=lambda row: -row.samples)


def _without_ours(stack: Stack) -> Stack | None:
    """A stack without what our modules put on its end; None where they are the start of the program."""
    first = next((n for n, frame in enumerate(stack.frames) if frame.file.startswith(OURS)), None)
    if first is None:
        return stack
    is_start = any("importlib" in frame.file for frame in stack.frames[:first])
    return None if is_start or not first else replace(stack, frames=stack.frames[:first])


def _sample(job: SampleJob, sampler: tuple[str, str] | None) -> Pass:
    """By py-spy as the program's parent, else attached to it, else by a thread inside the program."""
    why = "py-spy is not installed (pip install py-spy)"
    if sampler is not None:
        try:
            return _run(job, sampler, "stacks.txt", mode="behind")
        except NothingSampled as error:
            why = str(error)
            if error.saw_no_python:
                try:
                    return _run(job, sampler, "stacks.txt", mode="attach")
                except NothingSampled as again:
                    why = str(again)
    try:
        return _run_alone(job, f"{why}; so a thread inside the program sampled it, {ALONE_RATE_HZ} times a second")
    except NothingSampled as error:
        raise SamplerFailed(why if str(error) in why else f"{why}; {error}", ran=error.ran) from error


def _gil(job: SampleJob, sampler: tuple[str, str]) -> HostGil:
    held = _run(job, sampler, "gil.txt", mode="behind", only_gil=True)
    looks = max(held.duration_s * job.rate_hz, 1.0)
    ours = [stack for stack in held.stacks if stack.process == held.process]
    others = [stack for stack in ours if not stack.is_main]
    return HostGil(
        main_share=min(1.0, sum(stack.samples for stack in ours if stack.is_main) / looks),
        others_share=min(1.0, sum(stack.samples for stack in others) / looks),
        holder=top_place(others, _lines(job.ctx)) if others else "",
        source=f"{job.ctx.out_dir.name}/gil.txt",
    )


def _run(job: SampleJob, sampler: tuple[str, str], name: str, *, mode: str, only_gil: bool = False) -> Pass:
    """One pass with py-spy and the in-process sampler, which is left out where the GIL is requested."""
    ctx, raw = job.ctx, job.ctx.out_dir / name
    raw.unlink(missing_ok=True)
    argv = [sampler[0], "record", "--format", "raw", "--threads", "--subprocesses", "--nonblocking"]
    argv += ["--full-filenames", "--gil" if only_gil else "--idle", "--rate", str(job.rate_hz)]
    argv += ["--duration", str(math.ceil(job.limit_s)), "--output", str(raw)]
    argv += ["--", *(ctx.config.workload.command or ())]
    launched = _launch(job, [mode, *argv], suffix="-gil" if only_gil else "", observes=not only_gil)
    result = launched.result
    process, stacks = of_program(read_stacks(_text(raw)))
    if not stacks:
        saw_none = "No python processes found" in result.tail
        raise NothingSampled(_why_nothing(result.tail, result.exit_code), saw_no_python=saw_none)
    look = first_look(launched.looks, process)
    return Pass(
        process=process,
        stacks=stacks,
        duration_s=launched.duration_s,
        cpu_s=launched.cpu_s,
        end_unseen=launched.end_unseen and not (look is not None and look.ended and not look.raised),
        sampler=sampler[1],
        look=look,
        fell_behind=BEHIND in result.tail,
    )


def _run_alone(job: SampleJob, note: str) -> Pass:
    """One pass in which a thread of the program samples it: Python that is given our modules alone has one."""
    command = job.ctx.config.workload.command or ()
    launched = _launch(job, ["alone", *command], suffix="-inside", observes=True, keeps_stacks=True)
    look = first_look(launched.looks, launched.process)
    if look is None or not look.stacks:
        raise NothingSampled(
            "the program showed no Python to a thread inside it either: it is not Python, was started with -S, -I or "
            "-E, or ended within a few samples",
            saw_no_python=True,
            ran=launched,
        )
    return Pass(
        process=look.pid,
        stacks=stacks_of(look, rate_hz=job.rate_hz),
        duration_s=launched.duration_s,
        cpu_s=launched.cpu_s,
        end_unseen=launched.end_unseen,
        sampler="a thread inside the program",
        look=look,
        note=note,
    )


@dataclass(frozen=True, kw_only=True)
class Launched:
    """How a pass ended: the program's first process, its times, and what looked on from inside."""

    result: CommandResult
    process: int
    duration_s: float
    cpu_s: float | None
    cpu_wait_s: float
    end_unseen: bool
    looks: Mapping[int, ProcessLook]


def _launch(
    job: SampleJob, words: Sequence[str], *, suffix: str, observes: bool, keeps_stacks: bool = False
) -> "Launched":
    """Run the program through the launcher; how it ended, and what looked on from inside."""
    ctx, workload = job.ctx, job.ctx.config.workload
    ending, folder = ctx.tmp_dir / f"ended{suffix}.json", ctx.tmp_dir / f"looks{suffix}"
    ending.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # The in-process sampler needs our modules on the program's path.
    inside = observing_environment(folder, stacks=keeps_stacks, environ=ctx.run_command.environment) if observes else {}
    result = ctx.run_command(
        [sys.executable, "-I", "-S", str(LAUNCHER), str(ending), *words],
        timeout_s=job.limit_s + (0.0 if keeps_stacks else WRITE_S),
        log=f"log{suffix}.txt",
        cmd_file=f"cmd{suffix}.txt",
        cwd=ctx.config.user_dir,
        env={**phase_limit(workload.stop_after_phases), **inside},
        label="who holds the GIL" if suffix == "-gil" else "sampling its stacks",
    )
    ended: dict[str, Any] = json.loads(ending.read_text(encoding="ascii")) if ending.is_file() else {}
    code = ended.get("exit_code")
    duration_s = float(ended.get("wall_s", min(result.duration_s, job.limit_s)))
    is_over = duration_s > job.limit_s - SAMPLER_STARTS_S
    if code and not (is_over and code == -signal.SIGKILL):
        last = " ".join(result.tail.strip().splitlines()[-1:])
        raise SamplerFailed(
            f"{program_title(workload.command or ())} ended with exit code {code} while its stacks were sampled: "
            f"{last} (log: {result.log})"
        )
    return Launched(
        result=result,
        process=int(ended.get("pid", 0)),
        duration_s=duration_s,
        end_unseen=code is None and not is_over,
        cpu_s=ended.get("cpu_s"),
        cpu_wait_s=float(ended.get("cpu_wait_s", 0.0)),
        looks=read_looks(folder),
    )


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _why_nothing(tail: str, exit_code: int | None) -> str:
    """What py-spy said, in words that help."""
    if "ermission" in tail or "ptrace" in tail or "EPERM" in tail:
        return (
            "py-spy may not read the program's memory: allow ptrace (container: --cap-add SYS_PTRACE; host: "
            "kernel.yama.ptrace_scope=1 or less)"
        )
    if exit_code == 0:
        return "py-spy saw no Python at work: the program is not Python, or ended within a few samples"
    last = " ".join(line for line in tail.strip().splitlines() if line.strip())[-200:]
    return f"py-spy gave no samples: {last or 'it was ended after its time was up'}"


class SourceLines:
    """Lines of source code, without secrets; nothing where the file cannot be read."""

    def __init__(self, folder: Path, clean: Redactor) -> None:
        self._clean, self._folder = clean, folder

    def __call__(self, file: str, number: int) -> str:
        if not file or file.startswith("<"):
            return ""
        text = linecache.getline(str(self._folder / file), number).strip()
        return self._clean.text(text)[:LINE_LENGTH]


def _lines(ctx: StageContext) -> SourceLines:
    return SourceLines(ctx.config.user_dir, ctx.run_command.redactor)

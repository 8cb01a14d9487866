"""Runs a program behind py-spy and describes its stacks: all threads and child processes, function and line."""

import json
import linecache
import math
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from llm_perf_opt.core.documents import HostDocument, HostGil, HostThread
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.diagnosis.host.owners import busiest, host_rows, top_place
from llm_perf_opt.diagnosis.host.stacks import Stack, of_program, read_stacks
from llm_perf_opt.errors import CommandFailed
from llm_perf_opt.profiling.program import phase_limit
from llm_perf_opt.system.process import program_title

LAUNCHER = Path(__file__).with_name("launch_sampled.py")
SAMPLER = "py-spy"
# Stacks are written after the program's time is up.
WRITE_S = 30.0
# Threads that work for a smaller part of the pass cannot hold up the main thread.
BUSY_SHARE = 0.1
THREADS_KEPT = 8
LINE_LENGTH = 100
NO_EXIT_CODE = "the exit code of the sampled program was not seen: it may have failed while its stacks were sampled"


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One run of the program behind the sampler: its first `process` and the stacks of it and its children.

    `cpu_s` is None where it did not end by itself. `end_unseen`: it ended within its time, and nobody saw how.
    """

    process: int
    stacks: tuple[Stack, ...]
    duration_s: float
    cpu_s: float | None
    end_unseen: bool


class SamplerFailed(CommandFailed):
    """The sampler gave no samples; what was measured before stays."""


def find_sampler() -> tuple[str, str] | None:
    """py-spy's program and version: that of its package first, else the one on PATH."""
    try:
        package = distribution(SAMPLER)
    except PackageNotFoundError:
        found = shutil.which(SAMPLER)
        return None if found is None else (found, SAMPLER)
    for file in package.files or ():
        path = Path(str(file.locate()))
        if file.name == SAMPLER and path.is_file():
            return str(path.resolve()), f"{SAMPLER} {package.version}"
    return None


def sample_program(ctx: StageContext, *, rate_hz: int, timeout_s: float, holds_gil: bool) -> HostDocument:
    """The document of one pass; where several threads work, of a second one that looks at who holds the GIL."""
    sampler = find_sampler()
    if sampler is None:
        raise SamplerFailed("py-spy is not installed: pip install py-spy")
    looked = _run(ctx, sampler[0], "stacks.txt", rate_hz=rate_hz, timeout_s=timeout_s, only_gil=False)
    main = [stack for stack in looked.stacks if stack.is_main and stack.process == looked.process]
    others = [stack for stack in looked.stacks if stack not in main]
    total = sum(stack.samples for stack in main)
    lines = _lines(ctx)
    threads = tuple(
        HostThread(name=name, samples=samples, owner=owner)
        for name, (samples, owner) in sorted(busiest(others, lines).items(), key=lambda item: -item[1][0])
    )
    notes = (NO_EXIT_CODE,) if looked.end_unseen else ()
    gil = None
    beside = {f"{stack.process}/{stack.thread}" for stack in others if stack.process == looked.process}
    if holds_gil and any(t.name in beside and t.samples >= BUSY_SHARE * total for t in threads):
        try:
            gil = _gil(ctx, sampler[0], rate_hz=rate_hz, timeout_s=timeout_s)
        except CommandFailed as error:
            notes = (*notes, f"who holds the GIL is not known: {error}")
    return HostDocument(
        sampler=sampler[1],
        rate_hz=rate_hz,
        wall_s=looked.duration_s,
        samples=total,
        cpu_s=looked.cpu_s,
        rows=host_rows(main, lines),
        threads=threads[:THREADS_KEPT],
        gil=gil,
        notes=notes,
    )


def _gil(ctx: StageContext, program: str, *, rate_hz: int, timeout_s: float) -> HostGil:
    held = _run(ctx, program, "gil.txt", rate_hz=rate_hz, timeout_s=timeout_s, only_gil=True)
    looks = max(held.duration_s * rate_hz, 1.0)
    ours = [stack for stack in held.stacks if stack.process == held.process]
    others = [stack for stack in ours if not stack.is_main]
    return HostGil(
        main_share=min(1.0, sum(stack.samples for stack in ours if stack.is_main) / looks),
        others_share=min(1.0, sum(stack.samples for stack in others) / looks),
        holder=top_place(others, _lines(ctx)) if others else "",
        source=f"{ctx.out_dir.name}/gil.txt",
    )


def _run(ctx: StageContext, program: str, name: str, *, rate_hz: int, timeout_s: float, only_gil: bool) -> Pass:
    workload = ctx.config.workload
    raw, ending = ctx.out_dir / name, ctx.tmp_dir / f"ended-{name}.json"
    for old in (raw, ending):
        old.unlink(missing_ok=True)
    limit_s = workload.duration_s or timeout_s
    argv = [sys.executable, "-I", "-S", str(LAUNCHER), str(ending), program, "record", "--format", "raw", "--threads"]
    argv += ["--subprocesses", "--nonblocking", "--full-filenames", "--gil" if only_gil else "--idle"]
    argv += ["--rate", str(rate_hz), "--duration", str(math.ceil(limit_s)), "--output", str(raw)]
    argv += ["--", *(workload.command or ())]
    suffix = "-gil" if only_gil else ""
    result = ctx.run_command(
        argv,
        timeout_s=limit_s + WRITE_S,
        log=f"log{suffix}.txt",
        cmd_file=f"cmd{suffix}.txt",
        cwd=ctx.config.user_dir,
        env=phase_limit(workload.stop_after_phases),
        label="who holds the GIL" if only_gil else "sampling its stacks",
    )
    ended: dict[str, Any] = json.loads(ending.read_text(encoding="ascii")) if ending.is_file() else {}
    code = ended.get("exit_code")
    if code:
        last = " ".join(result.tail.strip().splitlines()[-1:])
        raise SamplerFailed(
            f"{program_title(workload.command or ())} ended with exit code {code} while its stacks were sampled: "
            f"{last} (log: {result.log})"
        )
    process, stacks = of_program(read_stacks(_text(raw)))
    if not stacks:
        raise SamplerFailed(_why_nothing(result.tail, result.exit_code))
    duration_s = float(ended.get("wall_s", min(result.duration_s, limit_s)))
    return Pass(
        process=process,
        stacks=stacks,
        duration_s=duration_s,
        cpu_s=ended.get("cpu_s"),
        end_unseen=code is None and duration_s < limit_s,
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


def _lines(ctx: StageContext) -> "_Source":
    return _Source(ctx)


class _Source:
    """Lines of source code, without secrets; nothing where the file cannot be read."""

    def __init__(self, ctx: StageContext) -> None:
        self._clean, self._folder = ctx.run_command.redactor, ctx.config.user_dir

    def __call__(self, file: str, number: int) -> str:
        if not file or file.startswith("<"):
            return ""
        path = str(self._folder / file)
        text = linecache.getline(path, number).strip()
        return self._clean.text(text)[:LINE_LENGTH]

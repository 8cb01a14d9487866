"""What ncu said while it profiled: whether anything came of it, and what to do when not."""

import re
from dataclasses import dataclass, replace
from typing import Literal

from llm_perf_opt.core.records import Progress

Outcome = Literal["ok", "nothing", "failed"]

_PROGRESS = re.compile(r'==PROF== Profiling "(?P<name>[^"]*)".*?(?P<passes>\d+) pass', re.DOTALL)
# 2025.3 has no number, and in a capture by name the context, the stream and the number of the launch in the name.
_KERNEL = re.compile(r'==PROF== Profiling "(?:\d+:\d+:)?(?P<name>[^"]*?)(?::\d+)?"(?: - (?P<number>\d+))?')
_NOTHING = re.compile(r"No (?:kernels|ranges|workloads?) were profiled")
# The shell's and glibc's words for a program that was ended by a signal.
_CRASH = re.compile(
    r"^.{0,80}\b(?:Segmentation fault|Bus error|Illegal instruction|Aborted|Floating point exception)\b.{0,40}$",
    re.MULTILINE,
)
_MESSAGE = re.compile(r"^==(?:ERROR|WARNING)== .*$", re.MULTILINE)

# (what ncu prints, what it means, what to do)
_FAILURES = (
    (
        r"ERR_NVGPUCTRPERM",
        "the driver keeps GPU performance counters for the administrator (ERR_NVGPUCTRPERM)",
        "run as root, give the container CAP_SYS_ADMIN, or load the driver with NVreg_RestrictProfilingToAdminUsers=0",
    ),
    (
        r"driver resource was unavailable|no other tool \(like DCGM\)|ProfilerUnavailable|already (?:in use|profiling)"
        r"|another (?:tool|profil\w+)",
        "another profiler holds the GPU's counters",
        "stop it first: DCGM (`dcgmi profile --pause`, or its exporter), another ncu or nsys with GPU metrics",
    ),
    (
        r"driver.{0,60}(?:not compatible|not supported|does not support|too old|insufficient|unsupported)"
        r"|(?:InsufficientDriver|UnsupportedDriver)|requires? .{0,40}driver",
        "the NVIDIA driver is too old for this ncu",
        "update the driver, or use the ncu that came with the driver's CUDA version",
    ),
    (
        r"Profiling is not supported on (?:this )?device|UnsupportedGpu",
        "this ncu does not know the GPU",
        "use a newer ncu (`ncu --list-chips` names what it knows), or an older one for a GPU it has dropped",
    ),
    (
        r"Option '--section [^']*' did not match any section",
        "this ncu has no section of that name",
        "`ncu --list-sections` names those it has; set pipeline.ncu.ncu_cli.sections",
    ),
    (
        r"No metrics to collect found in sections|section set .{0,40}(?:not found|does not exist)",
        "the section set or sections asked for hold no metrics in this ncu",
        "`ncu --list-sets` and `ncu --list-sections` name what it has; set pipeline.ncu.ncu_cli.set or .sections",
    ),
    (
        r"Failed to find metric|Invalid metric|(?:metric|counter).{0,60}(?:not found|could not be found|is not valid)",
        "this ncu has no metric of that name for this GPU",
        "`ncu --query-metrics` names those it has; set pipeline.ncu.ncu_cli.metrics",
    ),
    (
        r"cannot be specified more than once|unrecognised option|argument for option '[^']*' is invalid",
        "this ncu does not know an option it was given",
        "see pipeline.ncu.ncu_cli.extra_args and replay_mode; `ncu --help` lists its options",
    ),
    (
        r"Unable to (?:bind|connect)|Failed to (?:bind|connect)|port.{0,30}in use",
        "ncu could not reach the program it started",
        "another ncu may use its ports: pass another one with pipeline.ncu.ncu_cli.extra_args=[--port,'50152']",
    ),
    (
        r"out of memory|OutOfMemory",
        "the GPU's memory was not enough to save and restore it between passes",
        "use pipeline.ncu.ncu_cli.replay_mode=application, fewer sections, or a smaller model or batch",
    ),
)


@dataclass(frozen=True, kw_only=True)
class NcuLog:
    """The result of a run. `problem` and `remedy` are set unless the outcome is ok."""

    outcome: Outcome
    problem: str | None = None
    remedy: str | None = None
    application_exit_code: int | None = None
    profiled: int = 0
    passes: int | None = None
    messages: tuple[str, ...] = ()


def read_ncu_progress(line: str) -> Progress | None:
    """Which kernel ncu measures, by the line it prints when it begins with one; kernels are counted from 0."""
    found = _KERNEL.match(line)
    if found is None:
        return None
    number = "kernel" if found["number"] is None else f"kernel {int(found['number']) + 1},"
    return Progress(text=f"{number} {found['name']}")


def parse_ncu_log(text: str, *, exit_code: int | None, has_report: bool) -> NcuLog:
    """Judge a run by its words and by its report, never by the exit code alone: ncu ends with 0 when it saw nothing."""
    progress = [int(m["passes"]) for m in _PROGRESS.finditer(text)]
    messages = tuple(dict.fromkeys(line.strip() for line in _MESSAGE.findall(text)))
    application = re.search(r"The application returned an error code \((-?\d+)\)", text)
    found = NcuLog(
        outcome="ok",
        application_exit_code=int(application[1]) if application else None,
        profiled=len(progress),
        passes=max(progress, default=None),
        messages=messages,
    )
    if has_report:
        return found
    for pattern, problem, remedy in _FAILURES:
        if re.search(pattern, text, re.IGNORECASE):
            return replace(found, outcome="failed", problem=problem, remedy=remedy)
    if application:
        problem = f"the program ended with exit code {application[1]} under ncu and nothing was profiled"
        return replace(found, outcome="failed", problem=problem, remedy="see ncu/log.txt for its own words")
    crash = _CRASH.search(text)
    if crash:
        problem = f"the program crashed under ncu ({crash[0].strip()}) and nothing was profiled"
        remedy = "see whether it runs without ncu; ncu/cmd.txt repeats it"
        return replace(found, outcome="failed", problem=problem, remedy=remedy)
    if _NOTHING.search(text):
        remedy = "check pipeline.ncu.ncu_cli.nvtx.include and the kernel filter"
        return replace(found, outcome="nothing", problem="no kernel launch passed the filters", remedy=remedy)
    last = messages[-1] if messages else f"exit code {exit_code}, no message"
    return replace(found, outcome="failed", problem=f"ncu left no report ({last})", remedy="see ncu/log.txt")

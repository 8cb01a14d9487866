"""Runs ncu on the workload, and once more without filters when they let nothing through.

Whether this ncu has the set, the sections and the metrics a configuration asks for.
"""

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.capture.readers.ncu_log import NcuLog, parse_ncu_log, read_ncu_progress
from llm_perf_opt.core.records import read_progress
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.errors import ToolError
from llm_perf_opt.profiling.nsys.nsys_capture import workload_cwd
from llm_perf_opt.profiling.user_program import phase_limit
from llm_perf_opt.profiling.vendor.ncu import (
    REPORT_SUFFIX,
    build_ncu_cmd,
    filter_metrics,
    metrics_csv,
    parse_listing,
    pick_set,
)
from llm_perf_opt.system.process import CommandResult

# A program that is to be ended after this many seconds is done when ncu has printed nothing for that long again. Until
# its first launch it may take several times as long as without ncu.
QUIET_S = 30.0
LOADING = 3
# What ncu prints when it begins with a launch and while it replays it; the program writes to the same log.
SIGN_OF_LIFE = re.compile(rb"==PROF== Profiling|\d+%\.\.\.\.")
LONGEST_SIGN = 32
# When ncu gets a signal to end, it ends the program and writes its report, seen with 43 MB within two seconds.
REPORT_GRACE_S = 20.0
# Files of a second capture have these in their names: by place, by name.
WINDOW = "-window"
NAMED = "-named"


@dataclass(frozen=True, kw_only=True)
class LaunchFilter:
    """Which launches are profiled: kernels whose name (in the form `kernel_name_base`) fits, numbers of invocations.

    Of what fits, `launch_skip` launches are passed over and `launch_count` profiled at most. `spared_regex` fits all
    kernels but those that must never be profiled, whatever else is dropped.
    """

    kernel_regex: str | None
    kernel_name_base: str
    invocations: str | None
    launch_skip: int | None
    launch_count: int
    spared_regex: str | None


@dataclass(frozen=True, kw_only=True)
class Capture:
    """What to profile and how. The filters are apart from the rest because the rerun drops them and nothing else."""

    name: str
    nvtx: str | Sequence[str] | None
    launches: LaunchFilter
    set_name: str | None
    sections: Sequence[str] | None
    metrics: str | Sequence[str] | None
    replay_mode: str
    target_processes: str
    clock_control: str
    force_overwrite: bool
    extra_args: Sequence[str]
    ncu: str

    def without_filters(self) -> "Capture":
        """The same without NVTX gating and kernel filter; excluded kernels, metrics, sections and the limit stay."""
        launches = replace(self.launches, kernel_regex=self.launches.spared_regex, invocations=None, launch_skip=None)
        return replace(self, name="kernels", nvtx=None, launches=launches)

    def window(self, start: int, width: int) -> "Capture":
        """The same for consecutive launches inside the NVTX ranges, of every name but the excluded ones."""
        every = replace(self.launches, kernel_regex=self.launches.spared_regex, invocations=None)
        return replace(self, launches=replace(every, launch_skip=start, launch_count=width))

    def argv(self, out_dir: Path, work_argv: Sequence[str]) -> list[str]:
        return build_ncu_cmd(
            out_dir / self.name,
            work_argv,
            nvtx_expr=self.nvtx,
            kernel_regex=self.launches.kernel_regex,
            use_nvtx=self.nvtx is not None,
            set_name=self.set_name,
            metrics=self.metrics,
            sections=self.sections,
            target_processes=self.target_processes,
            invocations=self.launches.invocations,
            kernel_name_base=self.launches.kernel_name_base,
            replay_mode=self.replay_mode,
            launch_skip=self.launches.launch_skip,
            launch_count=self.launches.launch_count,
            clock_control=self.clock_control,
            force_overwrite=self.force_overwrite,
            extra_args=self.extra_args,
            ncu=self.ncu,
        )


@dataclass(frozen=True, kw_only=True)
class NcuCaptured:
    """The report of a capture. `rerun`: the filters were dropped to get it, `ended` why it was cut short."""

    report: Path
    log: NcuLog
    rerun: bool
    duration_s: float
    ended: str | None = None


class _Quiet:
    """Whether a program that does not end by itself has shown all it will: ncu says nothing more, whoever else does."""

    def __init__(self, log: Path, after_s: float) -> None:
        self.is_over = False
        self._log, self._after_s = log, after_s
        self._read, self._tail = 0, b""
        self._since_s: float | None = None

    def __call__(self, elapsed_s: float) -> bool:
        with self._log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        if text and SIGN_OF_LIFE.search(self._tail + text):
            self._since_s = elapsed_s
        # One that was cut in two; a whole one must not count again.
        self._tail = SIGN_OF_LIFE.sub(b"", self._tail + text)[-LONGEST_SIGN:]
        if self._since_s is None:
            self.is_over = elapsed_s >= LOADING * self._after_s + QUIET_S
        else:
            self.is_over = elapsed_s >= self._after_s and elapsed_s - self._since_s >= QUIET_S
        return self.is_over


def capture(plan: Capture, work_argv: Sequence[str], ctx: StageContext, timeout_s: float) -> NcuCaptured:
    """Profile the workload, or raise ToolError with what went wrong and what to do about it."""
    found = _attempt(plan, work_argv, ctx, timeout_s)
    if found is not None:
        return found
    ctx.say(
        "ncu: the filters let no kernel through; one rerun without NVTX gating and without the kernel filter, excluded "
        "kernels still left out"
    )
    found = _attempt(plan.without_filters(), work_argv, ctx, timeout_s, suffix="-rerun")
    if found is None:
        raise ToolError(_nothing(ctx))
    return replace(found, rerun=True)


def capture_window(plan: Capture, work_argv: Sequence[str], ctx: StageContext, timeout_s: float) -> NcuCaptured | None:
    """Profile consecutive launches; None, with a message, if there were none. Other failures are raised."""
    found = _attempt(plan, work_argv, ctx, timeout_s)
    if found is None:
        ctx.say("ncu: there is no kernel at that place; the chosen ones are requested by name")
    return found


def capture_again(
    plan: Capture, work_argv: Sequence[str], ctx: StageContext, timeout_s: float, *, suffix: str
) -> NcuCaptured | None:
    """A second capture; None, with a message to the user, when it has no result: the first capture remains."""
    why = "no kernel in it"
    try:
        found = _attempt(replace(plan, name=f"{plan.name}{suffix}"), work_argv, ctx, timeout_s, suffix=suffix)
    except ToolError as error:
        found, why = None, str(error)
    if found is None:
        ctx.say(f"ncu: the second capture has no result ({why})")
    return found


def _attempt(
    plan: Capture, work_argv: Sequence[str], ctx: StageContext, timeout_s: float, *, suffix: str = ""
) -> NcuCaptured | None:
    """One run under ncu: its report, or None where no launch passed the filters. Raises ToolError for all else."""
    log, result, ended = _run(plan, work_argv, ctx, timeout_s, suffix=suffix)
    if log.outcome == "failed":
        raise ToolError(f"{log.problem} — {log.remedy}", log=ctx.out_dir / f"log{suffix}.txt")
    if log.outcome == "nothing":
        return None
    report = _report(plan, ctx)
    return NcuCaptured(report=report, log=log, rerun=False, duration_s=result.duration_s, ended=ended)


def _nothing(ctx: StageContext) -> str:
    tried = "no kernel was profiled, neither with the filters nor without them (ncu/cmd.txt, ncu/cmd-rerun.txt)"
    if not ctx.host.gpus:
        return f"{tried}: no CUDA device on this machine — run the stage ncu where an NVIDIA GPU is"
    return (
        f"{tried}: the program launched no CUDA kernel that ncu could see — check run.device, and that the program's "
        "own children are profiled (pipeline.ncu.ncu_cli.target_processes=all)"
    )


def _run(
    plan: Capture, work_argv: Sequence[str], ctx: StageContext, timeout_s: float, *, suffix: str
) -> tuple[NcuLog, CommandResult, str | None]:
    """What ncu said, how it ended, and why it was cut short if it was."""
    report = _report(plan, ctx)
    # A report left by an earlier attempt must not be taken for this one's.
    if report.exists() and not plan.force_overwrite:
        raise ToolError(f"{report} exists and pipeline.ncu.ncu_cli.force_overwrite is false — move it away or allow it")
    report.unlink(missing_ok=True)
    log_name = f"log{suffix}.txt"
    duration_s = ctx.config.workload.duration_s
    quiet = None if duration_s is None else _Quiet(ctx.out_dir / log_name, duration_s)
    result = ctx.run_command(
        plan.argv(ctx.out_dir, work_argv),
        timeout_s=timeout_s,
        log=log_name,
        cmd_file=f"cmd{suffix}.txt",
        cwd=workload_cwd(ctx.config),
        env={**phase_limit(ctx.config.workload.stop_after_phases), **_alone(ctx)},
        reads=lambda line: read_ncu_progress(line) or read_progress(line),
        is_over=quiet,
        grace_s=REPORT_GRACE_S,
    )
    if result.timed_out and not report.is_file():
        raise ToolError(
            f"ncu did not end within {timeout_s:.0f} s (pipeline.ncu.timeout_s) — profile fewer kernels "
            "(pipeline.ncu.max_kernels), fewer sections, or allow more time"
        )
    text = (ctx.out_dir / log_name).read_text(encoding="utf-8", errors="replace")
    ended = None
    if result.timed_out:
        ended = f"ncu was ended after {timeout_s:.0f} s (pipeline.ncu.timeout_s): these are the launches until then"
    elif quiet is not None and quiet.is_over:
        ended = (
            f"the program was ended after {result.duration_s:.0f} s (workload.duration_s), when ncu had nothing new "
            f"for {QUIET_S:.0f} s: these are the launches until then"
        )
    return parse_ncu_log(text, exit_code=result.exit_code, has_report=report.is_file()), result, ended


def _alone(ctx: StageContext) -> dict[str, str]:
    """Keep a compiled model in one process: next to one that compiles, every replay takes four times as long."""
    return {} if ctx.config.infer.compile == "none" else {"TORCHINDUCTOR_COMPILE_THREADS": "1"}


def _report(plan: Capture, ctx: StageContext) -> Path:
    return ctx.out_dir / f"{plan.name}{REPORT_SUFFIX}"


Ask = Callable[[Sequence[str]], str]


def check_set(wanted: str | None, ask: Ask) -> tuple[str | None, str | None]:
    """The set's name in this version and, where it differs from the one asked for, a note."""
    if wanted is None:
        return None, None
    available = parse_listing(ask(["--list-sets"]))
    if not available:
        return wanted, None
    found = pick_set(wanted, available)
    if found is None:
        raise ToolError(
            f"pipeline.ncu.ncu_cli.set: this ncu has no section set {wanted!r}; it has {', '.join(available)} "
            "(`ncu --list-sets`)"
        )
    return found, None if found == wanted else f"the section set {wanted} is called {found} in this ncu"


def check_sections(wanted: Sequence[str] | None, ask: Ask) -> None:
    """Raise when a section is not known; `regex:` patterns are ncu's to judge."""
    names = [name for name in wanted or () if not name.startswith("regex:")]
    available = parse_listing(ask(["--list-sections"])) if names else []
    unknown = [name for name in names if available and name not in available]
    if unknown:
        raise ToolError(
            f"pipeline.ncu.ncu_cli.sections: this ncu has no section {_with_nearest(unknown, available)} "
            "(`ncu --list-sections`)"
        )


def check_metrics(wanted: str | Sequence[str] | None, ask: Ask) -> tuple[str | Sequence[str] | None, tuple[str, ...]]:
    """The metrics known for the GPU of this machine, and a note for each left out. Without a GPU all are kept."""
    if metrics_csv(wanted) is None:
        return None, ()
    available = parse_listing(ask(["--query-metrics"]))
    kept, unknown = filter_metrics(wanted, available)
    return kept, tuple(
        f"left out: this ncu has no metric {_with_nearest([name], available)} for this GPU (`ncu --query-metrics`)"
        for name in unknown
    )


def _with_nearest(unknown: Sequence[str], available: Sequence[str]) -> str:
    described = []
    for name in unknown:
        nearest = difflib.get_close_matches(name.partition(".")[0], available, n=1, cutoff=0.5)
        described.append(f"{name} (nearest: {nearest[0]})" if nearest else name)
    return ", ".join(described)

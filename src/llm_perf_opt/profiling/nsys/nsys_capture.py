"""Runs a workload under nsys and describes the result."""

import os
import re
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from llm_perf_opt.capture.readers.nsys_log import import_notes, lost_strings
from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.schema import AppConfig, RunSection
from llm_perf_opt.core.names import DIRECT_INFERENCE, TORCH_PROFILER
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.errors import CommandFailed, ProfilingError, ToolError
from llm_perf_opt.profiling.baseline import last_words, quiet_inference
from llm_perf_opt.profiling.nsys.live_sessions import LOST_AGENT, MOST_TRIES, lost_agent, one_capture
from llm_perf_opt.profiling.nsys.scrub import RawFolder, export_report
from llm_perf_opt.profiling.user_program import phase_limit
from llm_perf_opt.profiling.vendor.launch import (
    INFERENCE_RUNNER,
    build_work_argv,
    launch_ranks,
    stage_overrides,
    workload_overrides,
)
from llm_perf_opt.profiling.vendor.nsys import (
    build_nsys_cmd,
    find_reports,
    find_unimported,
    keep_exit_code,
    start_in_turn,
)
from llm_perf_opt.system.process import CommandResult, read_tail, write_cmd_file
from llm_perf_opt.workload.session import WHOLE_PASS

LOOK_SECONDS = 120
RANGES_NAMED = 20
LONG_TAIL_BYTES = 1 << 20
# The workload under nsys works in `tmp/workload/torch_profiler/`, as prescribed (docs/founding.md, row 103).
WORK_DIR = TORCH_PROFILER
_NSYS_LINE = re.compile(
    r"Generating '|Generated:|\[\s*\d+/\d+\] \[|\s+/.*\.(nsys-rep|qdstrm|sqlite)$|Capture range |Collecting data"
)


@dataclass(frozen=True, kw_only=True)
class CaptureOptions:
    """What one capture does; `capture_range` and `nvtx_capture` are those in force, after `gating_nvtx`."""

    nsys: str
    trace: str
    sample: str
    cpuctxsw: str
    capture_range: str
    nvtx_capture: str | None
    capture_range_end: str | None
    nvtx_domain_include: str | None
    nvtx_domain_exclude: str | None
    cuda_graph_trace: str
    extra_args: tuple[str, ...]
    output: OutputConfig
    timeout_s: float
    delay_s: int = 0
    duration_s: int | None = None
    stop_after_phases: int | None = None
    repeats: int | None = None

    @property
    def cuda_profiler_range(self) -> str | None:
        """What our own workload makes its calls of cudaProfilerStart and Stop around."""
        return (self.nvtx_capture or WHOLE_PASS) if self.capture_range == "cudaProfilerApi" else None

    @property
    def ends_workload(self) -> bool:
        """Whether nsys ends the program when the capture is complete (also its default when no end is given)."""
        end = self.capture_range_end or "stop-shutdown"
        return self.capture_range != "none" and end.split(":")[0] in ("stop-shutdown", "repeat-shutdown")


@dataclass(frozen=True, kw_only=True)
class NsysCaptured:
    """The reports of one capture. `workload_exit_code` is None when nsys ended the workload, as requested.

    `torn_by_ranges`: nsys could not import all of it because of names of ranges; without ranges it would be whole.
    """

    reports: tuple[Path, ...]
    workload_exit_code: int | None
    nsys_exit_code: int | None
    notes: tuple[str, ...]
    torn_by_ranges: bool = False


def workload_argv(
    ctx: StageContext,
    *,
    cuda_profiler_range: str | None = None,
    output: OutputConfig | None = None,
    repeats: int | None = None,
) -> list[str]:
    """The user's own command, or our plain inference without profiler, and without outputs unless asked for."""
    if ctx.config.workload.command is not None:
        return list(ctx.config.workload.command)
    asked: dict[str, Any] = {}
    if cuda_profiler_range is not None:
        asked["cuda_profiler_range"] = cuda_profiler_range
    if repeats is not None:
        asked["stop_after_repeats"] = repeats
    if output is not None and (output.prediction.enable or output.visualization.enable):
        asked["output"] = asdict(output)
    quiet = quiet_inference(warmup_rounds=1)
    return build_work_argv(
        INFERENCE_RUNNER,
        [*workload_overrides(ctx.config), *quiet, *(stage_overrides(DIRECT_INFERENCE, asked) if asked else ())],
        hydra_run_dir=ctx.workload_dir / WORK_DIR,
    )


def workload_cwd(config: AppConfig) -> Path | None:
    """A user's command runs where the user was; ours in the scratch directory."""
    return config.user_dir if config.workload.command is not None else None


def run_capture(ctx: StageContext, options: CaptureOptions, raw: RawFolder, base: str) -> NsysCaptured:
    """One capture into `<raw>/<base>*.nsys-rep`; raises with the reason and the fix when there is none."""
    out_base = raw.reports / base
    code_file = ctx.tmp_dir / f"{base}.exit_code"
    for old in (code_file, *code_file.parent.glob(f"{code_file.name}.*")):
        old.unlink(missing_ok=True)
    argv = workload_argv(
        ctx, cuda_profiler_range=options.cuda_profiler_range, output=options.output, repeats=options.repeats
    )
    work = keep_exit_code(argv, code_file, tmp_dir=os.environ.get("TMPDIR"))
    suffix = "" if base == "run" else f"-{base}"
    cwd = workload_cwd(ctx.config)
    # For people: the same command with the report where it will lie, since the raw folder goes.
    by_hand = _command(options, ctx.out_dir / base, work, ctx.config.run)
    write_cmd_file(
        ctx.out_dir / f"cmd{suffix}.txt", by_hand, cwd=cwd or ctx.tmp_dir, env={}, redactor=ctx.run_command.redactor
    )
    limit = options.stop_after_phases or ctx.config.workload.stop_after_phases
    command = _command(options, out_base, work, ctx.config.run)
    capture = partial(
        ctx.run_command,
        timeout_s=options.timeout_s,
        log=f"log{suffix}.txt",
        cmd_file=None,
        cwd=cwd,
        env={"TMPDIR": str(raw.scratch), **phase_limit(limit)},
        remove=[raw.scratch],
        label="nsys" if options.nvtx_capture is None else f"nsys {options.nvtx_capture}",
    )
    with one_capture(ctx.host.tool("nsys").version, ctx.say, limit_s=options.timeout_s):
        result = capture([*raw.wrapper, *command])
        for _ in range(MOST_TRIES - 1):
            has_begun = result.timed_out or find_reports(out_base) or code_file.exists()
            lost = None if has_begun else lost_agent(result.tail, isolated=raw.isolated)
            if lost is None:
                break
            ctx.say(f"nsys lost its agent ({lost}); trying again")
            result = capture([*raw.wrapper, *command])
    # What ends a program because the window is over is not a failure of the program.
    is_over = options.duration_s is not None and result.duration_s >= options.delay_s + options.duration_s
    code = None if is_over else _read_code(code_file)
    reports = find_reports(out_base)
    _require_reports(ctx, options, result, code, reports, raw, out_base)
    return NsysCaptured(
        reports=tuple(reports),
        workload_exit_code=code,
        nsys_exit_code=result.exit_code,
        notes=_capture_notes(options, result, code),
        torn_by_ranges=lost_strings(_whole_tail(result)),
    )


def command_line(ctx: StageContext, options: CaptureOptions, base: str) -> list[str]:
    """The capture as a person would start it, its report in the stage's directory."""
    work = workload_argv(
        ctx, cuda_profiler_range=options.cuda_profiler_range, output=options.output, repeats=options.repeats
    )
    return _command(options, ctx.out_dir / base, work, ctx.config.run)


def without_nsys_lines(tail: str) -> str:
    """What the workload printed: nsys writes its own lines into the same stream."""
    lines = re.split(r"[\r\n]+", tail)
    return "\n".join(line for line in lines if not _NSYS_LINE.match(line))


def _command(options: CaptureOptions, out_base: Path, work: list[str], run: RunSection) -> list[str]:
    """nsys around the workload; of several ranks each has its own nsys, all started by torchrun."""
    argv = build_nsys_cmd(
        out_base,
        work,
        nsys=options.nsys,
        trace=options.trace,
        sample=options.sample,
        cpuctxsw=options.cpuctxsw,
        capture=options.capture_range,
        capture_end=options.capture_range_end,
        nvtx_capture=options.nvtx_capture,
        nvtx_domain_include=options.nvtx_domain_include,
        nvtx_domain_exclude=options.nvtx_domain_exclude,
        cuda_graph_trace=options.cuda_graph_trace,
        delay_s=options.delay_s,
        duration_s=options.duration_s,
        extra_args=options.extra_args,
        per_rank=run.ranks is not None,
    )
    return argv if run.ranks is None else launch_ranks(start_in_turn(argv), run)


def _read_code(path: Path) -> int | None:
    """The exit code of the workload; of several ranks the first that is not 0, None while one of them has none."""
    paths = sorted(path.parent.glob(f"{path.name}.*")) or [path]
    texts = [p.read_text(encoding="ascii", errors="replace").strip() if p.is_file() else "" for p in paths]
    codes = [int(text) for text in texts if text.isdigit()]
    return next((code for code in codes if code != 0), 0) if len(codes) == len(paths) else None


def _require_reports(
    ctx: StageContext,
    options: CaptureOptions,
    result: CommandResult,
    code: int | None,
    reports: list[Path],
    raw: RawFolder,
    out_base: Path,
) -> None:
    """Judge by what was written, never by the exit code alone: nsys exits with 0 when it captured nothing."""
    log = result.log
    said = last_words(without_nsys_lines(_whole_tail(result))) or "it printed nothing"
    if result.timed_out:
        raise ToolError(_too_long(options, code, log))
    if code is not None and code != 0:
        raise CommandFailed(
            f"the workload failed under nsys with exit code {code} (nsys itself: {result.exit_code}): {said}; "
            "run it without nsys first",
            log=log,
        )
    if reports:
        return
    left = find_unimported(out_base)
    if left or "QdstrmImporter" in result.tail:
        name = left[0].name if left else "a .qdstrm"
        raise ToolError(
            f"nsys left {name} and no report: it found no working QdstrmImporter. On Debian fix it with `ln -s "
            "/usr/lib/nsight-systems/host-linux-x64 /usr/lib/x86_64-linux-gnu/nsight-systems/host-linux-x64`, "
            "elsewhere install the host part of Nsight Systems",
            log=log,
        )
    refused = _refusal(log)
    if refused is not None:
        raise ToolError(
            f"nsys refused its command line: {refused}; look at pipeline.nsys.trace and pipeline.nsys.extra_args",
            log=log,
        )
    if options.capture_range != "none" and (code == 0 or result.exit_code == 0):
        raise ProfilingError(_never_opened(ctx, options, raw))
    text = f"nsys ended with exit code {result.exit_code} and wrote no report: {said}"
    raise ToolError(f"{text.rstrip('.')}. {_agent_remedy(raw)}" if LOST_AGENT.search(said) else text, log=log)


def _agent_remedy(raw: RawFolder) -> str:
    """What to do where nsys lost its agent: an isolated one shares no memory with others."""
    if raw.isolated:
        return "A machine that is busy with other programs can do that: run the stage again when they have ended"
    return (
        "Another nsys on this machine can do that: run the stage again when it has ended; one of another user "
        "that was killed can leave /dev/shm/NSys-* locked, which may be removed while no nsys runs"
    )


def _whole_tail(result: CommandResult) -> str:
    """More of the log than a result carries: nsys's progress bars alone can fill that."""
    return result.tail if result.log is None else read_tail(result.log, LONG_TAIL_BYTES)


def _too_long(options: CaptureOptions, code: int | None, log: Path | None) -> str:
    text = f"nsys did not end within {options.timeout_s:g} s"
    ended = f"it and all it started were ended (log: {log})"
    if code is None:
        return (
            f"{text}, and neither had the workload; {ended}. Raise pipeline.nsys.timeout_s, or capture less with "
            "pipeline.nsys.capture_range=nvtx"
        )
    if (options.sample, options.cpuctxsw) != ("none", "none"):
        return (
            f"{text} although the workload had, with exit code {code}; {ended}. nsys was seen to hang at its end in "
            f"containers when it samples the CPU (pipeline.nsys.sample={options.sample}, "
            f"pipeline.nsys.cpuctxsw={options.cpuctxsw}): set both to none"
        )
    return (
        f"{text} although the workload had, with exit code {code}; {ended}. A process it left behind keeps nsys "
        "waiting: end it in the workload, or let nsys wait for the workload alone with "
        "'pipeline.nsys.extra_args=[\"--wait=primary\"]'"
    )


def _refusal(log: Path | None) -> str | None:
    """What nsys objected to, where it printed its usage instead of running."""
    text = log.read_text(encoding="utf-8", errors="replace")[:LONG_TAIL_BYTES] if log is not None else ""
    if not re.search(r"^usage: nsys", text, re.MULTILINE):
        return None
    return next((line.strip() for line in text.splitlines() if line.strip()), None)


def _never_opened(ctx: StageContext, options: CaptureOptions, raw: RawFolder) -> str:
    if options.capture_range == "cudaProfilerApi":
        return (
            f"the capture never started: cudaProfilerStart was not called{_around(ctx, options)}; call it "
            "(torch.cuda.profiler.start()), or set pipeline.nsys.capture_range=none"
        )
    if options.capture_range == "hotkey":
        return "the capture never started: the hotkey was not pressed; set pipeline.nsys.capture_range=none"
    try:
        seen = _look(ctx, options, raw)
    except ProfilingError as error:
        found = f"which ranges it opens could not be found out ({error})"
    else:
        named = ", ".join(seen[:RANGES_NAMED]) + (
            f" and {len(seen) - RANGES_NAMED} more" if len(seen) > RANGES_NAMED else ""
        )
        found = (
            f"ranges seen in an ungated look: {named}. Set pipeline.nsys.nvtx_capture to one of them (NAME for the "
            "default domain, NAME@* for any)"
            if seen
            else (
                "an ungated look saw no NVTX range at all; the program must emit them (torch.cuda.nvtx, or the package "
                "nvtx<0.2.12 for nsys 2022.4 and 2023.4)"
            )
        )
    return f"the NVTX range {options.nvtx_capture!r} never opened, so nsys captured nothing; {found}"


def _around(ctx: StageContext, options: CaptureOptions) -> str:
    own = ctx.config.workload.command is None and options.nvtx_capture is not None
    return f": the workload opened no range {options.nvtx_capture!r} (pipeline.nsys.nvtx_capture)" if own else ""


def _look(ctx: StageContext, options: CaptureOptions, raw: RawFolder) -> list[str]:
    """The names of the ranges the workload opens, from a short capture without a gate."""
    from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite

    ctx.say(f"nsys: the range {options.nvtx_capture!r} never opened; looking which ranges there are")
    base = raw.reports / "look"
    limit = min(options.timeout_s, LOOK_SECONDS)
    argv = build_nsys_cmd(base, workload_argv(ctx), nsys=options.nsys, trace="nvtx", duration_s=max(1, int(limit)))
    result = ctx.run_command(
        argv,
        timeout_s=limit + 60,
        log="look.log",
        cmd_file=None,
        cwd=workload_cwd(ctx.config),
        env={"TMPDIR": str(raw.scratch)},
        remove=[raw.scratch],
        label="nsys look",
    )
    reports = find_reports(base)
    if result.timed_out or not reports:
        raise ToolError("the ungated look wrote no report")
    timeline = read_nsys_sqlite(export_report(ctx, options.nsys, reports[0], base.with_suffix(".sqlite"), limit))
    return sorted({timeline.names[int(code)] for code in timeline.ranges.name})


def _capture_notes(options: CaptureOptions, result: CommandResult, code: int | None) -> tuple[str, ...]:
    notes = []
    if options.duration_s is not None and result.duration_s >= options.delay_s + options.duration_s:
        notes.append(
            f"the window of {options.duration_s} s was over before the program ended, so nsys ended it; times and "
            "counts are those of the window"
        )
    elif code is None and options.ends_workload:
        notes.append(
            "nsys ended the workload when the capture was complete (capture_range_end="
            f"{options.capture_range_end or 'stop-shutdown, its default'}); the workload's own results are not complete"
        )
    elif code is None:
        notes.append(f"the workload's exit code is not known (nsys ended with {result.exit_code})")
    if code == 0 and result.exit_code not in (0, None):
        warning = re.sub(r"\s+", " ", last_words(result.tail))
        notes.append(f"the workload succeeded, nsys ended with exit code {result.exit_code}: {warning}")
    return (*notes, *import_notes(_whole_tail(result)))

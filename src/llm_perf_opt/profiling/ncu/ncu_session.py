"""One ncu capture from choice to files: select kernels, print the plan, profile, analyse, write.

ncu 2025.3 was seen to name some library kernels (cuBLASLt, cuDNN) after another one while it filters, though its report
has them right; a filter by name then misses them. Their place in the order of launches is known from the timeline: few
consecutive launches that hold the kernels that matter are profiled where there are such, else the kernels are requested
by name. What the one way did not find gets a second capture the other way.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from llm_perf_opt.capture.kernels.match import normalise
from llm_perf_opt.capture.kernels.ncu_analysis import analyze_ncu, join_nsys
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis, NcuLaunch, NsysKernel
from llm_perf_opt.config.schema import InferSection
from llm_perf_opt.core.names import DECODE, DECODE_RANGES, NSYS, PREFILL
from llm_perf_opt.core.records import StageFile, StageOutput
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.diagnosis.facts import GRAPH_MODES
from llm_perf_opt.profiling.baseline import own_clean_pass
from llm_perf_opt.profiling.ncu.ncu_capture import (
    NAMED,
    WINDOW,
    Capture,
    LaunchFilter,
    NcuCaptured,
    capture,
    capture_again,
    capture_window,
)
from llm_perf_opt.profiling.ncu.ncu_results import (
    plan_metrics,
    read_capture,
    result_metrics,
    safe_name,
    slowdown_metrics,
    write_kernels,
    write_regions,
    write_rooflines,
)
from llm_perf_opt.profiling.ncu.select import (
    LONG_ENOUGH,
    LaunchSpan,
    NcuPlan,
    Selection,
    earlier_headroom,
    everything_but,
    expected_launches,
    fewest_numbers,
    kernel_pattern,
    launch_numbers,
    launch_sequence,
    launch_spans,
    plan_capture,
    range_filter,
    select_kernels,
    timeline_kernels,
)

if TYPE_CHECKING:
    from llm_perf_opt.profiling.stages.ncu import NcuConfig, NcuWorkload


# About as many launches as a layer of a model has, so that one window can hold every kernel of a layer.
MAX_WIDTH = 64
# A window is searched in the second and third step, and the workload ends there: every launch costs under ncu.
WINDOW_STEPS = 3
# Captures by name mostly need a second capture, which runs the program again: this many more launches are worth one
# run.
WORTH = 2
# A window that met less of the time it was to meet was elsewhere than on the timeline.
LEAST_MET = 0.85
# Replaying a graph takes a few launches more or fewer than its kernels one by one; seen: two in three steps.
GRAPH_SLACK = 3
# Kernels with this share of the time are searched at their few launches too, which others then have profiled as well.
MIN_RARE = 0.1


@dataclass(frozen=True, kw_only=True)
class Window:
    """Launches `start` to `start + width` of a sequence; `names` are the wanted kernels among them."""

    start: int
    width: int
    names: frozenset[str]

    def wider(self, by: int) -> "Window":
        start = max(0, self.start - by)
        return replace(self, start=start, width=self.start + self.width + by - start)


def best_window(
    sequence: Sequence[str], weights: Mapping[str, float], *, first: int, last: int, width: int = MAX_WIDTH
) -> Window | None:
    """The shortest window in `sequence[first:last]`, of at most `width`, with the most weight of distinct names."""
    counts: Counter[str] = Counter()
    best: Window | None = None
    best_weight, weight, start = 0.0, 0.0, first
    for end in range(first, min(last, len(sequence))):
        name = sequence[end]
        if name in weights:
            weight += 0.0 if counts[name] else weights[name]
            counts[name] += 1
        # Give up at the front what is too far away, unwanted, or is again further on.
        while end - start + 1 > width or (start < end and (counts[sequence[start]] != 1)):
            if counts[sequence[start]] == 1:
                weight -= weights[sequence[start]]
            if sequence[start] in weights:
                counts[sequence[start]] -= 1
            start += 1
        found = Window(start=start, width=end - start + 1, names=frozenset(n for n, c in counts.items() if c))
        is_shorter = best is not None and found.width < best.width
        if weight > best_weight * (1 + 1e-9) or (weight > best_weight * (1 - 1e-9) and is_shorter):
            best, best_weight = found, weight
    return best if best is not None and best.names else None


def covering_window(
    sequence: Sequence[str], weights: Mapping[str, float], need: float, *, first: int, last: int
) -> Window | None:
    """The shortest window in `sequence[first:last]` whose distinct names weigh `need`; None: it would be too long."""
    counts: Counter[str] = Counter()
    best: Window | None = None
    weight, start = 0.0, first
    for end in range(first, min(last, len(sequence))):
        name = sequence[end]
        if not counts[name]:
            weight += weights.get(name, 0.0)
        counts[name] += 1
        while start < end:
            front = sequence[start]
            without = weight - (weights.get(front, 0.0) if counts[front] == 1 else 0.0)
            if without < need:
                break
            weight = without
            counts[front] -= 1
            start += 1
        if weight >= need and (best is None or end - start + 1 < best.width):
            held = frozenset(n for n, c in counts.items() if c and n in weights)
            best = Window(start=start, width=end - start + 1, names=held)
    return best if best is not None and best.width <= MAX_WIDTH else None


# ncu's own count of a kernel's launches may start earlier than ours: room for more than the plan expects.
LAUNCH_ROOM = 2
MESSAGES_NOTED = 3


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What will be profiled and why. `window`: consecutive launches instead of those `capture` asks for by name."""

    timeline: tuple[NsysKernel, ...]
    source: str | None
    selection: Selection | None
    plan: NcuPlan
    capture: Capture
    window: Capture | None
    workload: "NcuWorkload"
    notes: tuple[str, ...]


def profile(
    cfg: "NcuConfig",
    ctx: StageContext,
    *,
    ncu: str,
    work_argv: "Callable[[NcuWorkload], list[str]]",
    notes: Sequence[str],
) -> StageOutput:
    """Run the stage. `work_argv` is what ncu starts for so much of the workload."""
    prepared = prepare(cfg, ctx, ncu)
    for line in (*prepared.notes, prepared.plan.sentence()):
        ctx.say(f"ncu: {line}")
    captured = None
    if prepared.window is not None:
        captured = capture_window(prepared.window, work_argv(prepared.workload), ctx, cfg.timeout_s)
    met_window = captured is not None
    captured = captured or capture(prepared.capture, work_argv(cfg.workload), ctx, cfg.timeout_s)
    launches, files = read_capture(captured.report, ctx, ncu=ncu, keep_csv=cfg.ncu_cli.export.csv)
    analysis = _analyze(launches, prepared)
    second = _second_look(cfg, ctx, prepared, captured, analysis, met_window=met_window)
    again = None
    if second is not None:
        plan, suffix = second
        again = capture_again(plan, work_argv(cfg.workload), ctx, cfg.timeout_s, suffix=suffix)
        if again is not None:
            more, more_files = read_capture(again.report, ctx, ncu=ncu, keep_csv=cfg.ncu_cli.export.csv, suffix=suffix)
            launches, files = [*launches, *named_alike(more, launches)], [*files, *more_files]
            analysis = _analyze(launches, prepared)
    said = (*notes, *prepared.notes, prepared.plan.sentence(), *_capture_notes(cfg, captured, prepared, analysis))
    if again is not None and again.ended is not None:
        said = (*said, f"the second capture: {again.ended}")
    plots = write_rooflines(analysis, launches, ctx.out_dir)
    names = tuple(plot.path.relative_to(ctx.run_dir).as_posix() for plot in plots)
    analysis = replace(analysis, capture_notes=said, plots=names)
    reports = [c.report for c in (captured, again) if c is not None]
    files = [
        *(StageFile(role="ncu_report", path=r) for r in reports),
        *files,
        *write_kernels(analysis, ctx.out_dir),
        *plots,
    ]
    if cfg.ncu_cli.replay_mode in ("range", "app-range"):
        files += write_regions(launches, ctx.out_dir)
    slowdown = slowdown_metrics(ctx, cfg.timeout_s)
    clean, clean_files = own_clean_pass(ctx)
    metrics = {
        **clean,
        **plan_metrics(prepared.plan, prepared.selection),
        **result_metrics(analysis, captured, again),
        **slowdown,
    }
    return StageOutput(metrics=metrics, files=(*files, *clean_files), notes=(*said, *analysis.notes))


def _analyze(launches: Sequence[NcuLaunch], prepared: Prepared) -> NcuAnalysis:
    analysis = analyze_ncu(launches)
    return join_nsys(analysis, prepared.timeline, source=prepared.source) if prepared.timeline else analysis


def named_alike(launches: Sequence[NcuLaunch], first: Sequence[NcuLaunch]) -> list[NcuLaunch]:
    """These launches under the names the first capture has: ncu drops other namespaces from one report to the next."""
    names = {normalise(launch.kernel): launch.kernel for launch in first}
    return [replace(launch, kernel=names.get(normalise(launch.kernel), launch.kernel)) for launch in launches]


def _second_look(
    cfg: "NcuConfig",
    ctx: StageContext,
    prepared: Prepared,
    captured: NcuCaptured,
    analysis: NcuAnalysis,
    *,
    met_window: bool,
) -> tuple[Capture, str] | None:
    """How the chosen kernels that were not found are captured the other way, and the suffix of its files."""
    # One that was cut short would be so again.
    absent = [] if captured.rerun or captured.ended else _not_met(prepared, analysis)
    if not absent or prepared.selection is None:
        return None
    if met_window:
        if sum(k.total_ns for k in absent) <= (1 - LEAST_MET) * prepared.selection.covered_ns:
            return None
        ctx.say(f"ncu: {len(absent)} chosen kernels not found at their position; second capture by name")
        return prepared.capture, NAMED
    if not _tells_places(cfg, ctx):
        return None
    sequence, first, last = _places(cfg, ctx, cfg.workload)
    window = best_window(sequence, {k.name: k.total_ns for k in absent}, first=first, last=last)
    if window is None:
        return None
    ctx.say(
        f"ncu: {len(absent)} chosen kernels not found by name; second capture of {window.width} consecutive launches"
    )
    return prepared.capture.window(window.start, window.width), WINDOW


def _tells_places(cfg: "NcuConfig", ctx: StageContext) -> bool:
    """Whether the launches under ncu are known one by one: those of our own model, and the user does not count them."""
    return ctx.config.workload.command is None and cfg.ncu_cli.launch_count is None and cfg.ncu_cli.launch_skip is None


def _places(cfg: "NcuConfig", ctx: StageContext, workload: "NcuWorkload") -> tuple[list[str], int, int]:
    """The launches inside the wanted range, and between which of them a window may lie.

    The workload may be shorter under ncu; its first third is left out, where things are still being set up.
    """
    include = cfg.ncu_cli.nvtx.include if cfg.gating_nvtx else None
    # Excluded kernels are filtered away, so ncu does not count them.
    sequence = [
        name
        for name in launch_sequence(ctx.earlier.get(NSYS), include)
        if not any(re.search(pattern, name) for pattern in cfg.exclude)
    ]
    wanted = range_filter(include)
    last = len(sequence)
    if wanted is not None and not wanted(PREFILL):
        tokens = ctx.config.infer.max_new_tokens
        last = last * (min(tokens, workload.tokens(ctx.config)) - 1) // max(tokens - 1, 1)
    return sequence, last // 3, last


def _not_met(prepared: Prepared, analysis: NcuAnalysis) -> list[NsysKernel]:
    """The chosen kernels of which no launch was profiled."""
    seen = {name for kernel in analysis.kernels for name in kernel.nsys_names}
    chosen = prepared.selection.kernels if prepared.selection is not None else ()
    return [kernel for kernel in chosen if kernel.name not in seen]


def prepare(cfg: "NcuConfig", ctx: StageContext, ncu: str) -> Prepared:
    """Choose kernels and launches, from the timeline where there is one."""
    cli = cfg.ncu_cli
    include = cli.nvtx.include if cfg.gating_nvtx else None
    own = ctx.config.workload.command is None
    kernels, file, inside = timeline_kernels(ctx.earlier.get(NSYS), include)
    ungated: tuple[str, ...] = ()
    if not own and inside is False and include == DECODE_RANGES:
        # Ranges were not requested, and the program has none such: to wait for one would cost a run of it.
        ungated = (f"{file} has no kernel inside {include}: launches of the whole run are profiled",)
        include = None
    source = None if file is None else file + (f" inside {_said(include)}" if inside else ", whole run")
    headroom, passes = earlier_headroom(ctx.out_dir / "kernels.json")
    selection = None
    by_range = cli.replay_mode in ("range", "app-range")
    if kernels and source is not None and cli.kernel_name is None and not by_range:
        selection = select_kernels(
            kernels,
            source=source,
            max_kernels=cfg.max_kernels,
            coverage=cfg.coverage,
            exclude=cfg.exclude,
            headroom=headroom,
            leave_out_initialisation=not inside,
        )
    steps = cfg.workload.tokens(ctx.config) - 1 if own else LONG_ENOUGH
    if selection is not None and not selection.kernels:
        selection = None
    spans = None
    if selection is not None and own and not is_compiled(ctx.config.infer):
        share = min(1.0, steps / max(1, ctx.config.infer.max_new_tokens - 1))
        spans = launch_spans(ctx.earlier.get(NSYS), include, selection.kernels, share)
    planned, launches = _filters(cfg, selection, by_range, steps, spans)
    named = _capture(cfg, include, ncu, launches)
    if ctx.config.workload.duration_s is not None:
        # A program that does not end by itself is ended when it has shown all that was requested.
        named = replace(named, extra_args=(*named.extra_args, "--kill", "1"))
    workload, window = cfg.workload, None
    if selection is not None and cfg.max_launches_per_kernel == 1 and cli.kernel_name is None:
        workload = cfg.workload.ending_after(WINDOW_STEPS + 1)
        window = _covering(cfg, ctx, selection, kernels, workload)
        if window is None or window.width > WORTH * planned:
            workload, window = cfg.workload, None
        else:
            selection = replace(selection, kernels=tuple(k for k in kernels if k.name in window.names))
            planned = window.width
    plan = plan_capture(
        kernels=None if selection is None else len(selection.kernels),
        launches=planned,
        set_name=cli.set,
        passes=passes,
    )
    how = () if window is None else (f"profiled: the {window.width} consecutive launches that hold them",)
    return Prepared(
        timeline=tuple(kernels),
        source=source,
        selection=selection,
        plan=plan,
        capture=named,
        window=None if window is None else named.window(window.start, window.width),
        workload=workload,
        notes=(
            *((workload.sentence(ctx.config),) if own else ()),
            *ungated,
            *_selection_notes(cfg, selection),
            *(how or _base_note(cli.kernel_name_base, launches.kernel_name_base)),
        ),
    )


def _covering(
    cfg: "NcuConfig", ctx: StageContext, selection: Selection, kernels: Sequence[NsysKernel], workload: "NcuWorkload"
) -> Window | None:
    """The shortest run of launches whose kernels make up `coverage` of the GPU time."""
    wanted = range_filter(cfg.ncu_cli.nvtx.include if cfg.gating_nvtx else None)
    # A pattern that fits both phases opens with one of them, and the timeline counts the other's launches too.
    if wanted is None or wanted(PREFILL) == wanted(DECODE) or not _tells_places(cfg, ctx):
        return None
    weights = {k.name: k.total_ns for k in kernels if k.name not in selection.excluded}
    sequence, first, last = _places(cfg, ctx, workload)
    window = covering_window(sequence, weights, cfg.coverage * selection.total_ns, first=first, last=last)
    return window.wider(GRAPH_SLACK) if window is not None and replays(ctx.config.infer) else window


def is_compiled(infer: InferSection) -> bool:
    """Whether steps run before the first sample, unseen by the ranges: compiling and capturing do that."""
    return infer.compile != "none" or infer.cuda_graph


def replays(infer: InferSection) -> bool:
    """Whether steps are replays of a CUDA graph, which is left out under ncu."""
    return infer.cuda_graph or infer.compile in GRAPH_MODES


def _filters(
    cfg: "NcuConfig", selection: Selection | None, by_range: bool, steps: int, spans: Sequence[LaunchSpan] | None = None
) -> tuple[int, LaunchFilter]:
    """How many launches are expected, and the part of the capture that chooses them."""
    cli = cfg.ncu_cli
    limit = cli.launch_count or cfg.max_kernels * cfg.max_launches_per_kernel
    found = LaunchFilter(
        kernel_regex=None,
        kernel_name_base=cli.kernel_name_base,
        invocations=None,
        launch_skip=cli.launch_skip,
        launch_count=limit,
        # A range is replayed as a whole: no kernel of it can be left out.
        spared_regex=None if by_range else everything_but(cfg.exclude),
    )
    if by_range:
        return limit, found
    each = cfg.max_launches_per_kernel
    spread = launch_numbers(each, steps) if spans is None else fewest_numbers(spans, each)
    if spans is None and selection is not None:
        spread = (*_rare(selection.kernels, spread[0]), *spread)
    if cli.launch_count is None and cli.launch_skip is None:
        found = replace(found, invocations="|".join(map(str, spread)))
    if cli.kernel_name is not None:
        return limit, replace(found, kernel_regex=_user_regex(cli.kernel_name))
    if selection is None:
        return limit, replace(found, kernel_regex=found.spared_regex)
    pattern, base = kernel_pattern([k.name for k in selection.kernels], cli.kernel_name_base)
    found = replace(found, kernel_regex=pattern, kernel_name_base=base)
    if cli.launch_count is None:
        known = spans if spans is None else [s.before + s.inside for s in spans]
        limit = expected_launches(selection.kernels, spread, known)
        found = replace(found, launch_count=limit * LAUNCH_ROOM)
    return limit, found


def _rare(kernels: Sequence[NsysKernel], first: int) -> tuple[int, ...]:
    """The number that meets kernels launched less often than the first one asked for, where much time is in these."""
    rare = [kernel for kernel in kernels if kernel.instances < first]
    if sum(k.total_ns for k in rare) < MIN_RARE * sum(k.total_ns for k in kernels):
        return ()
    return (min(kernel.instances for kernel in rare),)


def _said(include: str | Sequence[str] | None) -> str:
    return include if isinstance(include, str) else ", ".join(include or ())


def _user_regex(name: str) -> str:
    """`regex:…` as it is, anything else as the whole name."""
    return name.removeprefix("regex:") if name.startswith("regex:") else f"^{re.escape(name)}$"


def _capture(cfg: "NcuConfig", include: str | Sequence[str] | None, ncu: str, launches: LaunchFilter) -> Capture:
    cli = cfg.ncu_cli
    name = safe_name(include.replace("*", "")) if isinstance(include, str) and include else "kernels"
    return Capture(
        name=name,
        nvtx=include or None,
        set_name=cli.set,
        sections=cli.sections,
        metrics=cli.metrics,
        replay_mode=cli.replay_mode,
        target_processes=cli.target_processes,
        clock_control=cli.clock_control,
        force_overwrite=cli.force_overwrite,
        extra_args=cli.extra_args,
        ncu=ncu,
        launches=launches,
    )


def _selection_notes(cfg: "NcuConfig", selection: Selection | None) -> tuple[str, ...]:
    if cfg.ncu_cli.kernel_name is not None:
        return (f"kernels chosen by ncu_cli.kernel_name: {cfg.ncu_cli.kernel_name}",)
    if selection is None:
        return ("no nsys result with kernels to choose from: a limited number of launches of any kernel is profiled",)
    share = "" if selection.share is None else f", {100 * selection.share:.1f} % of the GPU time"
    out = [f"{len(selection.kernels)} kernels chosen from {selection.source}{share}"]
    if selection.excluded:
        out.append(f"left out by pipeline.ncu.exclude or as initialisation: {len(selection.excluded)} kernels")
    return tuple(out)


def _base_note(asked: str, used: str) -> tuple[str, ...]:
    if asked == used:
        return ()
    why = (
        "a timeline has no mangled names" if asked == "mangled" else "the pattern of demangled names would be too long"
    )
    return (f"kernels are matched by their {used} name, not the {asked} one: {why}",)


def _capture_notes(
    cfg: "NcuConfig", captured: NcuCaptured, prepared: Prepared, analysis: NcuAnalysis
) -> tuple[str, ...]:
    out = [f"clocks: --clock-control {cfg.ncu_cli.clock_control}"]
    if captured.ended is not None:
        out.append(captured.ended)
    if captured.rerun:
        out.append(
            "the filters let no kernel through: these are launches from a rerun without NVTX gating and without the "
            "kernel filter but for pipeline.ncu.exclude (ncu/cmd-rerun.txt), not necessarily of the phase asked for"
        )
    if captured.log.application_exit_code is not None:
        out.append(f"the program ended with exit code {captured.log.application_exit_code} under ncu")
    out += [message for message in captured.log.messages if message.startswith("==ERROR==")][:MESSAGES_NOTED]
    absent = [] if captured.rerun else [kernel.name for kernel in _not_met(prepared, analysis)]
    if absent:
        out.append(f"{len(absent)} of the chosen kernels were not met: {'; '.join(n[:80] for n in absent)}")
    return tuple(out)

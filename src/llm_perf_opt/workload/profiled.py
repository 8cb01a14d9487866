"""The torch_profiler run: the clean pass for latencies, then a bounded pass under torch.profiler for attribution."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from gzip import GzipFile
from pathlib import Path
from typing import Any, Protocol, cast

from isal import igzip

from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.core.documents import ProfiledPass
from llm_perf_opt.core.names import MODULE_PREFIX, TRACE_FILE
from llm_perf_opt.core.records import begin_step
from llm_perf_opt.core.units import count_of, format_bytes
from llm_perf_opt.errors import ToolError
from llm_perf_opt.workload.dataset import Planned
from llm_perf_opt.workload.journal import Journal
from llm_perf_opt.workload.models.base import LoadedModel
from llm_perf_opt.workload.nvtx import RangeEmitter
from llm_perf_opt.workload.outputs import open_outputs
from llm_perf_opt.workload.ranks import line_up, part_ways
from llm_perf_opt.workload.results import SampleResult, compare_passes, tokens_differ
from llm_perf_opt.workload.session import (
    Session,
    check_workload,
    generate,
    open_journal,
    open_session,
    prepare,
    run_clean_pass,
    say,
    warm_up,
)

PROFILED = "profiled"
# Enough steps for the profiler to have set itself up.
SETUP_TOKENS = 9
COPY_BYTES = 1 << 20
# The library has no types for it.
_open_gzip = cast(Callable[[Path, str], GzipFile], igzip.open)


class ProfilerOptions(Protocol):
    """What the stage's configuration says about the profiled pass."""

    @property
    def activities(self) -> tuple[str, ...]: ...
    @property
    def record_shapes(self) -> bool: ...
    @property
    def profile_memory(self) -> bool: ...
    @property
    def with_stack(self) -> bool: ...
    @property
    def group_by_input_shape(self) -> bool: ...
    @property
    def warmup_rounds(self) -> int: ...
    @property
    def warmup_synthetic(self) -> bool: ...
    @property
    def max_samples(self) -> int | None: ...
    @property
    def max_decode_steps(self) -> int | None: ...
    @property
    def output(self) -> OutputConfig: ...
    def token_budget(self, max_new_tokens: int) -> int: ...


@dataclass(frozen=True, kw_only=True)
class ChosenActivities:
    """What torch.profiler will record, and what it cannot here."""

    names: tuple[str, ...]
    notes: tuple[str, ...]


def run_profile(config: AppConfig, options: ProfilerOptions, out_dir: Path) -> None:
    """Both passes; writes every file of the stage."""
    outputs = open_outputs(options.output, out_dir, adapter=config.model.adapter)
    session = open_session(check_workload(config, out_dir))
    with open_journal(session, out_dir, warmup_rounds=options.warmup_rounds) as journal:
        warm_up(session, rounds=options.warmup_rounds, synthetic=options.warmup_synthetic)
        line_up(session.rank)
        run_clean_pass(session, journal, outputs)
        run_profiled_pass(session, journal, options, out_dir)
    part_ways(session.rank)
    say(f"done: {count_of(len(journal.clean), 'sample')} measured, {len(journal.profiled)} profiled")


def run_profiled_pass(session: Session, journal: Journal, options: ProfilerOptions, out_dir: Path) -> None:
    """Profile the first samples for a bounded number of steps, and keep the trace compressed."""
    begin_step("profiled pass")
    activities = choose_activities(options.activities, session.model.device)
    chosen = choose_samples(session.workload.planned, journal.bad, options.max_samples)
    budget = options.token_budget(session.workload.config.infer.max_new_tokens)
    journal.profiled_pass = _plan(session, options, activities, chosen, budget)
    scratch = session.workload.scratch_dir / "trace.json"
    scratch.parent.mkdir(parents=True, exist_ok=True)
    try:
        with module_ranges(session.model):
            _profile(session, journal, options, activities, chosen, budget, scratch)
        pack_trace(scratch, out_dir / TRACE_FILE)
    finally:
        # One that was not written as a whole holds the room that all others lack.
        for left in scratch.parent.glob(f"{scratch.name}*"):
            left.unlink()
    journal.notes += [*activities.notes, *_notes(journal, options, len(chosen), budget)]
    journal.slowdown = compare_passes(journal.clean, journal.profiled)
    journal.write("running")


def pack_trace(trace: Path, packed: Path) -> None:
    """Compress a trace and remove the plain one. torch says nothing where it could not write it."""
    if not trace.is_file():
        free = format_bytes(shutil.disk_usage(trace.parent).free)
        raise ToolError(f"torch.profiler did not write its trace ({trace}); {free} are free there")
    try:
        with trace.open("rb") as source, _open_gzip(packed, "wb") as out:
            shutil.copyfileobj(source, out, COPY_BYTES)
    except OSError as error:
        packed.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(packed)) from error
    trace.unlink()


def choose_activities(wanted: Sequence[str], device: str) -> ChosenActivities:
    """The wanted activities that exist here; CPU alone, with a note, where there is no GPU."""
    if device.startswith("cuda"):
        return ChosenActivities(names=tuple(dict.fromkeys(wanted)), notes=())
    left_out = "cuda" in wanted
    note = f"activities: cuda was requested, the model runs on {device}; cpu alone was recorded"
    return ChosenActivities(names=("cpu",), notes=(note,) if left_out else ())


def choose_samples(planned: Sequence[Planned], bad: dict[str, str], most: int | None) -> list[Planned]:
    """The first good samples, each once."""
    unique = {p.sample.sample_id: p for p in reversed(planned) if p.sample.sample_id not in bad}
    return list(reversed(unique.values()))[:most]


def _profile(
    session: Session,
    journal: Journal,
    options: ProfilerOptions,
    activities: ChosenActivities,
    chosen: Sequence[Planned],
    budget: int,
    trace: Path,
) -> None:
    """Run the samples under torch.profiler and export the trace."""
    # Host work is done before the profiler starts, so that the trace holds prefill and decode and nothing else.
    prepared = [(planned, *prepare(session, planned.sample)) for planned in chosen]
    ranges = traced_ranges(session.ranges)
    generator = session.generator(ranges)
    say("profiled pass: starting the profiler")
    with _profiler(options, activities):
        # The first profiled kernels pay for the profiler's own set-up; this trace is thrown away.
        generate(session, generator, chosen[0].sample, prepared[0][1], max_new_tokens=min(budget, SETUP_TOKENS))
    with _profiler(options, activities) as profiler:
        for number, (planned, inputs, prepare_ms) in enumerate(prepared, start=1):
            generation = generate(session, generator, planned.sample, inputs, max_new_tokens=budget)
            journal.add(
                SampleResult(
                    sample_id=planned.sample.sample_id,
                    pass_name=PROFILED,
                    repeat=0,
                    epoch=planned.epoch,
                    prompt_tokens=session.model.prompt_tokens(inputs),
                    prepare_ms=prepare_ms,
                    generation=generation,
                    peak_memory_bytes=None,
                    own_prompt_tokens=session.own_prompt_tokens(planned.sample),
                )
            )
            tokens = f"{count_of(len(generation.token_ids), 'token')}"
            say(f"profiled pass, sample {number} of {len(prepared)}: {tokens}", done=number, of=len(prepared))
    begin_step("trace")
    profiler.export_chrome_trace(str(trace))


def _profiler(options: ProfilerOptions, activities: ChosenActivities) -> Any:
    from torch.profiler import ProfilerActivity, profile

    known = {"cpu": ProfilerActivity.CPU, "cuda": ProfilerActivity.CUDA}
    return profile(
        activities=[known[name] for name in activities.names],
        record_shapes=options.record_shapes,
        profile_memory=options.profile_memory,
        with_stack=options.with_stack,
    )


@contextmanager
def module_ranges(model: LoadedModel) -> Iterator[None]:
    """Open a range `module:<group>` around every forward of a module that belongs to a group."""
    from torch.profiler import record_function

    modules = dict(model.module.named_modules())
    open_ranges: list[Any] = []

    def enter(name: str) -> Any:
        def hook(module: Any, args: Any) -> None:
            opened = record_function(name)
            opened.__enter__()
            open_ranges.append(opened)

        return hook

    def leave(module: Any, args: Any, output: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    with ExitStack() as hooks:
        for path, group in model.module_groups().items():
            module = modules[path]
            hooks.callback(module.register_forward_pre_hook(enter(f"{MODULE_PREFIX}{group}")).remove)
            # Called even when the forward raises, so that the ranges stay balanced.
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


def traced_ranges(ranges: RangeEmitter) -> RangeEmitter:
    """Ranges that appear in torch's trace as well as in NVTX."""
    from torch.profiler import record_function

    open_ranges: list[Any] = []

    def push(name: str) -> None:
        ranges.push(name)
        opened = record_function(name)
        opened.__enter__()
        open_ranges.append(opened)

    def pop() -> None:
        open_ranges.pop().__exit__(None, None, None)
        ranges.pop()

    return RangeEmitter(push=push, pop=pop, backend=f"{ranges.backend}, torch.profiler", note=ranges.note)


def _plan(
    session: Session, options: ProfilerOptions, activities: ChosenActivities, chosen: Sequence[Planned], budget: int
) -> ProfiledPass:
    planned = {p.sample.sample_id for p in session.workload.planned}
    most = session.workload.config.infer.max_new_tokens
    return ProfiledPass(
        repeats=1,
        samples=len(chosen),
        max_samples=options.max_samples,
        max_decode_steps=options.max_decode_steps,
        bounded=len(chosen) < len(planned) or budget < most,
        activities=activities.names,
    )


def _notes(journal: Journal, options: ProfilerOptions, samples: int, budget: int) -> list[str]:
    """What a reader of the profiled pass must know."""
    notes = []
    if journal.profiled_pass is not None and journal.profiled_pass.bounded:
        notes.append(
            f"the profiled pass was limited to {count_of(samples, 'sample')} and {count_of(budget, 'token')} each "
            "(pipeline.torch_profiler.max_samples, .max_decode_steps; null lifts the bound)"
        )
    if options.group_by_input_shape and not options.record_shapes:
        notes.append("group_by_input_shape needs record_shapes=true; operators are grouped by name alone")
    if tokens_differ(journal.clean, journal.profiled):
        notes.append("the profiled pass produced other tokens than the clean pass; its shares may differ too")
    return notes

"""Everything before the first token: check the model's files and the data, load the model, open the journal.

A run of the workload without a profiler: check, load, warm up, and time the clean pass.

The passes over the samples: warm-up, and the timed clean pass in which one bad sample does not end the run.

The sample a warm-up runs: the first one that can be read, or a synthetic one of the same size.

Which errors mean that one sample is bad, and when there are too many of them.
"""

import gc
import os
import struct
import zlib
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from llm_perf_opt.comparison.stability import RepeatedValue, half_width, repeat_levels
from llm_perf_opt.config.output import OutputConfig
from llm_perf_opt.config.schema import AUTO, AppConfig, RunSection
from llm_perf_opt.core.documents import Deployment
from llm_perf_opt.core.names import DECODE, INDUCTOR_DIR, MANIFEST_FILE, PREFILL, WALL_METRIC, WARMUP
from llm_perf_opt.core.records import Progress, begin_step
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import ConfigError, ProfilingError
from llm_perf_opt.workload.dataset import (
    TOKENS,
    Planned,
    Vocabulary,
    describe_inputs,
    list_samples,
    plan_batches,
    plan_notes,
    plan_samples,
    random_tokens,
    vocabulary_of,
)
from llm_perf_opt.workload.device import (
    PeakMemory,
    describe_model,
    peak_memory_for,
    resolve_device,
    start_cuda_profiler,
    stop_cuda_profiler,
)
from llm_perf_opt.workload.generation import (
    NS_PER_MS,
    BatchPicker,
    Clock,
    Generation,
    Generator,
    Picker,
    TokenPicker,
    clock_for,
    seed_for,
)
from llm_perf_opt.workload.host_state import OtherLoad, host_probe_ms
from llm_perf_opt.workload.journal import Journal, JournalHeader, write_inputs_file
from llm_perf_opt.workload.models.base import LoadedModel, ModelAdapter, Sample
from llm_perf_opt.workload.models.registry import load_adapter, page_files_of
from llm_perf_opt.workload.nvtx import RangeEmitter, around, choose_emitter, silent
from llm_perf_opt.workload.outputs import OutputWriter, open_outputs
from llm_perf_opt.workload.ranks import Rank, communication_ranges, line_up, meet, part_ways, this_rank
from llm_perf_opt.workload.results import SampleResult
from llm_perf_opt.workload.watcher import WorkloadWatcher, open_watcher, watched


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is known before a model is loaded. `vocabulary` is None for models that read pages."""

    config: AppConfig
    adapter: ModelAdapter
    planned: tuple[Planned, ...]
    vocabulary: Vocabulary | None
    scratch_dir: Path
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Session:
    """A loaded model with its clocks.

    `bad` are samples that no batch could be made of, `prompt_tokens` the lengths of those that are in one; both are
    empty where samples run one at a time. `compile_s` is None where nothing was compiled or captured. `watcher` is a
    stage's, which looks on from inside. `rank`: which of the processes of one job this is.
    """

    workload: Workload
    model: LoadedModel
    clock: Clock
    ranges: RangeEmitter
    memory: PeakMemory
    bad: Mapping[str, str] = field(default_factory=dict)
    prompt_tokens: Mapping[str, int] = field(default_factory=dict)
    compile_s: float | None = None
    watcher: WorkloadWatcher | None = None
    rank: Rank | None = None

    def generator(self, ranges: RangeEmitter | None = None, *, ignore_eos: bool = False) -> Generator:
        """The loop over this model, with these ranges or the session's own."""
        ignore = ignore_eos or self.workload.config.infer.ignore_eos
        return Generator(self.model, clock=self.clock, ranges=ranges or self.ranges, ignore_eos=ignore)

    def picker(self, sample: Sample, inputs: Any) -> Picker:
        """A picker for one sample: the same tokens regardless of what ran before it, or alongside it in a batch."""
        if sample.batch:
            return BatchPicker([self._picker(member, None) for member in sample.batch])
        return self._picker(sample, inputs)

    def own_prompt_tokens(self, sample: Sample) -> int | None:
        """The tokens of a batch's prompts without padding; None for one sample."""
        return sum(self.prompt_tokens[member.sample_id] for member in sample.batch) if sample.batch else None

    def _picker(self, sample: Sample, inputs: Any) -> TokenPicker:
        config = self.workload.config
        prompt_ids: tuple[int, ...] = ()
        if config.infer.no_repeat_ngram_size:
            prompt_ids = tuple(self.model.prompt_ids(self.model.prepare(sample) if inputs is None else inputs))
        seed = seed_for(config.run.seed, sample.sample_id)
        return TokenPicker(config.infer, device=self.model.device, seed=seed, prompt_ids=prompt_ids)


def check_workload(config: AppConfig, out_dir: Path) -> Workload:
    """Check the model's files and the data set, and write inputs.json. Imports no torch."""
    adapter = load_adapter(config.model.adapter)
    problems = adapter.check(config.model)
    if problems:
        raise ConfigError(problems)
    # Scratch lies alongside the stage's directory, because that one is for people to look at.
    scratch_dir = out_dir.parent / "tmp" / out_dir.name
    vocabulary = vocabulary_of(adapter.geometry(config.model)) if adapter.data_kind == TOKENS else None
    samples = list_samples(
        config.dataset,
        data_kind=adapter.data_kind,
        vocabulary=vocabulary,
        scratch_dir=scratch_dir,
        page_files=page_files_of(adapter),
    )
    planned = plan_samples(samples, config.dataset.sampling)
    write_inputs_file(out_dir, describe_inputs(planned, run_dir=out_dir.parent))
    say(f"{count_of(len(samples), 'sample')} found, {len(planned)} planned per repeat")
    return Workload(
        config=config,
        adapter=adapter,
        planned=planned,
        vocabulary=vocabulary,
        scratch_dir=scratch_dir,
        notes=plan_notes(samples, config.dataset.sampling),
    )


def open_session(workload: Workload, watcher: WorkloadWatcher | None = None) -> Session:
    """Load the model on its device."""
    config = workload.config
    if config.infer.compile != "none":
        # Before torch.compile is used at all: it takes its folder once and for all.
        keep_generated_code(workload.scratch_dir)
    rank = this_rank(config.infer.tp)
    if rank is None and config.infer.tp > 1:
        raise ConfigError(
            f"infer.tp: one process alone holds no split model (got {config.infer.tp}), allowed: 1, or run.ranks="
            f"{config.infer.tp} in a stage that starts ranks"
        )
    begin_step("imports")
    import torch  # noqa: F401 - its time is distinguished from that of the device's first use

    begin_step("loading")
    device = resolve_device(config.run.device)
    if rank is not None:
        device = device if device == "cpu" else resolve_device(rank.device(device))
        say(f"rank {rank.rank} of {rank.world_size}: in one group through {meet(device)}")
        workload = replace(workload, planned=rank.part(workload.planned), notes=(*workload.notes, rank.note))
    say(f"loading {config.model.name} ({config.model.weights} weights) on {device}")
    if watcher is not None:
        watcher.before_load(device)
    model = workload.adapter.load(config.model, config.infer, device=device, seed=config.run.seed)
    # As in any program that has run for a while: what was imported is old, and only what is new is inspected.
    gc.enable()
    gc.collect()
    ranges = choose_emitter()
    session = Session(
        workload=workload,
        model=model if watcher is None else watcher.loaded(model),
        clock=clock_for(device),
        ranges=ranges if watcher is None else watched(ranges, watcher),
        memory=peak_memory_for(device),
        watcher=watcher,
        rank=rank,
    )
    if config.infer.batch > 1:
        session = form_batches(session)
    return settle(session) if config.infer.compile != "none" or config.infer.cuda_graph else session


def form_batches(session: Session) -> Session:
    """Put the samples that can be read into batches of `infer.batch`; the others are bad."""
    workload, size = session.workload, session.workload.config.infer.batch
    lengths: dict[str, int] = {}
    bad: dict[str, str] = {}
    for sample in dict.fromkeys(p.sample for p in workload.planned):
        try:
            lengths[sample.sample_id] = session.model.prompt_tokens(session.model.prepare(sample))
        except bad_sample_errors() as error:
            say(f"sample {sample.sample_id} skipped: {describe_error(error)}")
            bad[sample.sample_id] = describe_error(error)
    good = [planned for planned in workload.planned if planned.sample.sample_id in lengths]
    refuse_too_many_bad(bad=bad, sample_ids={*lengths, *bad}, max_bad_fraction=workload.config.dataset.max_bad_fraction)
    batches = plan_batches(good, size)
    repeated = len(batches) * size - len(good)
    note = f"infer.batch={size}: {count_of(len(good), 'sample')} in {count_of(len(batches), 'batch')}"
    more = f", {repeated} of them run again to fill the last one" if repeated else ""
    planned = replace(workload, planned=batches, notes=(*workload.notes, note + more))
    return replace(session, workload=planned, bad=bad, prompt_tokens=lengths)


def settle(session: Session) -> Session:
    """Compile or capture the decode step on the longest prompt, inside a `warmup` range, and say how long it took.

    The first call compiles; CUDA graphs are recorded by the two after it. Later prompts fit the cache of the longest.
    """
    begin_step("compiling" if session.workload.config.infer.compile != "none" else "capturing")
    infer = session.workload.config.infer
    say(f"preparing the decode step (compile={infer.compile}, cuda_graph={str(infer.cuda_graph).lower()})")
    sample = longest_sample(session)
    inputs = session.model.prepare(sample)
    session.ranges.push(WARMUP)
    try:
        generator = session.generator(silent("warm-up"), ignore_eos=True)
        generation = generate(session, generator, sample, inputs, max_new_tokens=SETTLE_TOKENS)
    finally:
        session.ranges.pop()
    compile_s = sum(generation.itl_ms[:SETTLE_STEPS]) / 1e3
    say(f"the decode step was ready after {compile_s:.1f} s")
    # A graph that could not be captured took no time; why it could not is among the model's notes.
    is_prepared = infer.compile != "none" or session.model.replays_graph
    return replace(session, compile_s=compile_s if is_prepared else None)


def keep_generated_code(scratch_dir: Path) -> None:
    """Have torch.compile write into the run: stages share what was compiled, and its sources can be shown."""
    runs = [folder for folder in scratch_dir.parents if (folder / MANIFEST_FILE).is_file()]
    folder = runs[0] / "tmp" / INDUCTOR_DIR if runs else scratch_dir / INDUCTOR_DIR
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def longest_sample(session: Session) -> Sample:
    """The planned sample or batch with the most prompt tokens, of those the model can read."""
    best: tuple[int, Sample] | None = None
    for sample in dict.fromkeys(p.sample for p in session.workload.planned):
        try:
            tokens = session.model.prompt_tokens(session.model.prepare(sample))
        except bad_sample_errors():
            continue
        if best is None or tokens > best[0]:
            best = (tokens, sample)
    return first_good_sample(session) if best is None else best[1]


def open_journal(session: Session, out_dir: Path, *, warmup_rounds: int) -> Journal:
    """Start writing metrics.json and samples.jsonl."""
    workload = session.workload
    header = JournalHeader(
        model=describe_model(workload.config.model.name, session.model),
        deployment=describe_deployment(session),
        nvtx_backend=session.ranges.backend,
        repeats=most_repeats(workload.config.run),
        samples=len(workload.planned),
        warmup_rounds=warmup_rounds,
    )
    notes = [*workload.notes, *([session.ranges.note] if session.ranges.note else []), *_compile_notes(session)]
    journal = Journal(out_dir, header=header, notes=notes, parts=session.model.parts, memory_how=session.memory.how)
    for sample_id, error in session.bad.items():
        journal.add_bad(sample_id, error)
    return journal


def describe_deployment(session: Session) -> Deployment:
    """How the model was run, as metrics.json says it."""
    config = session.workload.config
    infer = config.infer
    return Deployment(
        batch=infer.batch,
        cache=infer.cache,
        compile=infer.compile,
        cuda_graph=session.model.replays_graph,
        quantization=config.model.quantization,
        tp=infer.tp,
        ranks=1 if session.rank is None else session.rank.world_size,
        compile_s=session.compile_s,
    )


def _compile_notes(session: Session) -> list[str]:
    if session.compile_s is None:
        return []
    infer = session.workload.config.infer
    what = "compiling the decode step" if infer.compile != "none" else "capturing the decode step"
    return [f"{what} took {session.compile_s:.1f} s (its first {SETTLE_STEPS} calls); it is in no latency"]


def say(text: str, *, done: int | None = None, of: int | None = None) -> None:
    """One line of progress; the orchestrator shows the last one."""
    print(Progress(text=text, done=done, of=of).line, flush=True)


def bad_sample_errors() -> tuple[type[BaseException], ...]:
    """What reading or running one sample may raise: broken files, inputs the model refuses, no memory for them."""
    import torch
    from PIL import Image

    # Pillow reports a broken PNG as SyntaxError, a truncated file as OSError, a huge one as DecompressionBombError; its
    # plug-ins and the model's own preparation stumble over odd sizes with whatever Python raises there.
    return (
        ProfilingError,
        OSError,
        ValueError,
        TypeError,
        LookupError,
        ArithmeticError,
        RuntimeError,
        MemoryError,
        SyntaxError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
        torch.OutOfMemoryError,
    )


def describe_error(error: BaseException) -> str:
    """The kind of error and its first line."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def release_memory(device: str) -> None:
    """Give cached device memory back, so that the samples after one that was too large find room."""
    if device.startswith("cuda"):
        import torch

        torch.cuda.empty_cache()


def refuse_too_many_bad(*, bad: Mapping[str, str], sample_ids: Set[str], max_bad_fraction: float) -> None:
    """Fail the run when too large a part of its samples could not be run, or none could."""
    if not bad:
        return
    fraction = len(bad) / len(sample_ids)
    first_id, first_error = next(iter(bad.items()))
    first = f"the first: {first_id} ({first_error})"
    if len(bad) == len(sample_ids):
        raise ProfilingError(f"none of {count_of(len(sample_ids), 'sample')} could be run; {first}")
    if len(bad) > 1 and fraction > max_bad_fraction:
        raise ProfilingError(
            f"{len(bad)} of {len(sample_ids)} samples are bad ({100 * fraction:.1f} %), more than "
            f"dataset.max_bad_fraction={max_bad_fraction:g} allows; what was measured is kept; {first}"
        )


WARMUP_ID = "warmup"
# torch.compile is done with a step after its third call: compile, warm up, record.
SETTLE_STEPS = 3
SETTLE_TOKENS = SETTLE_STEPS + 3


def first_good_sample(session: Session) -> Sample:
    """The first planned sample the model can read."""
    first_error = ""
    for sample in dict.fromkeys(p.sample for p in session.workload.planned):
        try:
            session.model.prepare(sample)
        except bad_sample_errors() as error:
            first_error = first_error or f"{sample.sample_id} ({describe_error(error)})"
            continue
        return sample
    raise ProfilingError(f"no sample could be read, so nothing was measured; the first: {first_error}")


def synthetic_like(sample: Sample, session: Session) -> Sample:
    """A synthetic sample of the same size, so that the warm-up shows the model nothing of the data it is timed on."""
    workload = session.workload
    seed = f"{workload.config.run.seed}/{WARMUP_ID}"
    if sample.batch:
        members = tuple(
            replace(synthetic_like(member, session), sample_id=f"{WARMUP_ID}-{i}")
            for i, member in enumerate(sample.batch)
        )
        return Sample(sample_id=WARMUP_ID, batch=members)
    if workload.vocabulary is not None:
        length = session.model.prompt_tokens(session.model.prepare(sample))
        return Sample(sample_id=WARMUP_ID, token_ids=random_tokens(workload.vocabulary, length, seed))
    page_files = page_files_of(workload.adapter)
    if sample.image is None or page_files is None:
        return sample
    from PIL import Image

    with Image.open(sample.image) as page:
        width, height = page.size
    path = workload.scratch_dir / f"{WARMUP_ID}.png"
    return Sample(sample_id=WARMUP_ID, image=page_files.draw(path, width=width, height=height, seed=seed))


CLEAN = "clean"
# Fewer do not show how much repeats differ.
FEWEST_REPEATS = 4


def warm_up(session: Session, *, rounds: int, synthetic: bool, ranges: RangeEmitter | None = None) -> None:
    """Run `rounds` samples inside a `warmup` range and throw their times away.

    No phase is named inside it: a capture gated by `decode` would otherwise start with a warm-up and not know it.
    """
    if rounds == 0:
        return
    begin_step("warm-up")
    sample = first_good_sample(session)
    if synthetic:
        sample = synthetic_like(sample, session)
    used = ranges or session.ranges
    generator = session.generator(silent("warm-up"))
    for number in range(rounds):
        say(f"warm-up {number + 1} of {rounds}")
        inputs = session.model.prepare(sample)
        used.push(WARMUP)
        try:
            # To the full token budget: on an H200 the first sample's steps beyond a shorter warm-up took four times as
            # long as in later samples, since something is planned again for every sequence length met first.
            generate(session, generator, sample, inputs)
        finally:
            used.pop()


@dataclass(frozen=True, kw_only=True)
class Shortened:
    """A pass that ends before what the run asks for, for a profiler that has seen enough by then; None: it does not."""

    tokens: int | None = None
    repeats: int | None = None


WHOLE = Shortened()


def run_clean_pass(
    session: Session, journal: Journal, outputs: OutputWriter | None, shortened: Shortened = WHOLE
) -> None:
    """Every planned sample, `run.repeats` times, timed; predictions come from the first repeat."""
    run, planned_samples = session.workload.config.run, session.workload.planned
    repeats = most_repeats(run)
    if shortened.repeats is not None and shortened.repeats < repeats:
        repeats = journal.repeats = shortened.repeats
    begin_step("clean pass")
    generator = session.generator()
    load = OtherLoad()
    for repeat in range(repeats):
        for number, planned in enumerate(planned_samples, start=1):
            if planned.sample.sample_id in journal.bad:
                continue
            result = measure(session, generator, planned, journal, repeat=repeat, most_tokens=shortened.tokens)
            if result is None:
                continue
            say(
                f"clean pass, repeat {repeat + 1} of {repeats}, sample {number} of {len(planned_samples)}: "
                f"{count_of(result.tokens, 'token')} in {result.e2e_ms:.1f} ms",
                done=repeat * len(planned_samples) + number,
                of=repeats * len(planned_samples),
            )
            if outputs is not None and repeat == 0:
                outputs.add(planned.sample, result, session.model)
        refuse_too_many_bad(
            bad=journal.bad,
            sample_ids={p.sample.sample_id for p in planned_samples} | set(session.bad),
            max_bad_fraction=session.workload.config.dataset.max_bad_fraction,
        )
        journal.other_cpus = load.cpus()
        if run.repeats == AUTO and (reason := enough_repeats(journal.clean, run)):
            journal.repeats = repeat + 1
            journal.notes.append(reason)
            say(reason)
            break


def most_repeats(run: RunSection) -> int:
    return run.max_repeats if run.repeats == AUTO else run.repeats


def enough_repeats(results: Sequence[SampleResult], run: RunSection) -> str | None:
    """With `run.repeats=auto`: why no further repeat is needed, or None."""
    made = 1 + max((result.repeat for result in results), default=-1)
    if made < FEWEST_REPEATS:
        return None
    timed: dict[str, list[tuple[SampleResult, float | None]]] = {
        PREFILL: [(r, r.generation.prefill_ms) for r in results],
        DECODE: [(r, r.tpot_ms) for r in results],
    }
    widths = {}
    for phase, pairs in timed.items():
        series = [RepeatedValue(sample_id=r.sample_id, repeat=r.repeat, value=v) for r, v in pairs if v is not None]
        width = half_width(repeat_levels(series))
        if width is not None:
            widths[WALL_METRIC[phase]] = width
    known = ", ".join(f"{name} ±{100 * width:.1f} %" for name, width in widths.items())
    if widths and max(widths.values()) <= run.target_ci:
        return f"run.repeats=auto: {made} repeats, {known}, within run.target_ci={run.target_ci:g}"
    if made == run.max_repeats:
        return f"run.repeats=auto: run.max_repeats={made} reached, {known}; run.target_ci={run.target_ci:g} was not"
    return None


def measure(
    session: Session,
    generator: Generator,
    planned: Planned,
    journal: Journal,
    *,
    repeat: int,
    most_tokens: int | None = None,
) -> SampleResult | None:
    """Time one sample and keep it; None when the sample is bad, which is kept too."""
    sample = planned.sample
    session.memory.reset()
    probe_ms = host_probe_ms()
    try:
        inputs, prepare_ms = prepare(session, sample)
        generation = generate(session, generator, sample, inputs, max_new_tokens=most_tokens)
        post_ms = to_text(session, generation)
    except bad_sample_errors() as error:
        if session.rank is not None and session.rank.moves_together:
            raise ProfilingError(
                f"rank {session.rank.rank}: sample {sample.sample_id} cannot be left out, since the ranks are one "
                f"model: {describe_error(error)}"
            ) from error
        say(f"sample {sample.sample_id} skipped: {describe_error(error)}")
        journal.add_bad(sample.sample_id, describe_error(error))
        if session.watcher is not None:
            session.watcher.failed(error)
        release_memory(session.model.device)
        return None
    journal.memory_reason = session.memory.reason
    result = SampleResult(
        sample_id=sample.sample_id,
        pass_name=CLEAN,
        repeat=repeat,
        epoch=planned.epoch,
        prompt_tokens=session.model.prompt_tokens(inputs),
        prepare_ms=prepare_ms,
        generation=generation,
        peak_memory_bytes=session.memory.peak_bytes(),
        own_prompt_tokens=session.own_prompt_tokens(sample),
        host_probe_ms=max(probe_ms, host_probe_ms()),
        post_ms=post_ms,
    )
    journal.add(result)
    return result


def prepare(session: Session, sample: Sample) -> tuple[Any, float]:
    """The sample's inputs on the device, and the milliseconds it took."""
    start_ns = session.clock.edge_ns()
    inputs = session.model.prepare(sample)
    return inputs, (session.clock.edge_ns() - start_ns) / NS_PER_MS


def to_text(session: Session, generation: Generation) -> float:
    """The milliseconds the generated tokens take to become text."""
    start_ns = session.clock.edge_ns()
    for sequence in generation.sequences:
        session.model.text(sequence, strip_special=True)
    return (session.clock.edge_ns() - start_ns) / NS_PER_MS


def generate(
    session: Session, generator: Generator, sample: Sample, inputs: Any, *, max_new_tokens: int | None = None
) -> Generation:
    """Generate one sample, to `infer.max_new_tokens` or fewer."""
    import torch

    most = session.workload.config.infer.max_new_tokens
    budget = most if max_new_tokens is None else min(most, max_new_tokens)
    with torch.inference_mode():
        return generator.generate(inputs, session.picker(sample, inputs), budget)


# In place of a range's name: around all that is measured.
WHOLE_PASS = "all"
KEY = "pipeline.direct_inference.cuda_profiler_range"


def run_inference(
    config: AppConfig,
    out_dir: Path,
    *,
    warmup_rounds: int,
    output: OutputConfig | None,
    cuda_profiler_range: str | None = None,
    shortened: Shortened = WHOLE,
) -> None:
    """A clean pass with NVTX ranges; writes metrics.json, samples.jsonl, inputs.json and the outputs asked for.

    Around each range of the name `cuda_profiler_range` (`all`: around the pass) a profiler that waits for it is advised
    to start and to stop.
    """
    with open_watcher(os.environ) or nullcontext() as watcher:
        _infer(config, out_dir, watcher, warmup_rounds, output, cuda_profiler_range, shortened)


def _infer(
    config: AppConfig,
    out_dir: Path,
    watcher: WorkloadWatcher | None,
    warmup_rounds: int,
    output: OutputConfig | None,
    cuda_profiler_range: str | None,
    shortened: Shortened,
) -> None:
    outputs = open_outputs(output, out_dir, adapter=config.model.adapter)
    session = open_session(check_workload(config, out_dir), watcher)
    if cuda_profiler_range is not None and not session.model.device.startswith("cuda"):
        raise ConfigError(
            f"{KEY}: cudaProfilerStart needs a GPU, and the model runs on {session.model.device} "
            f"(got {cuda_profiler_range!r}), allowed: null; for nsys, pipeline.nsys.capture_range=nvtx gates anywhere"
        )
    with open_journal(session, out_dir, warmup_rounds=warmup_rounds) as journal:
        warm_up(session, rounds=warmup_rounds, synthetic=False)
        if cuda_profiler_range == WHOLE_PASS:
            start_cuda_profiler()
        elif cuda_profiler_range is not None:
            ranges = around(session.ranges, cuda_profiler_range, start_cuda_profiler, stop_cuda_profiler)
            session = replace(session, ranges=ranges)
        line_up(session.rank)
        with communication_ranges(session.rank, session.ranges):
            run_clean_pass(session, journal, outputs, shortened)
        if cuda_profiler_range == WHOLE_PASS:
            stop_cuda_profiler()
    part_ways(session.rank)
    say(f"done: {count_of(len(journal.clean), 'sample')} measured")

"""The passes over the samples: warm-up, and the timed clean pass in which one bad sample does not end the run."""

from typing import Any

from llm_perf_opt.core.names import WARMUP
from llm_perf_opt.workload.bad_samples import bad_sample_errors, describe_error, refuse_too_many_bad, release_memory
from llm_perf_opt.workload.clock import NS_PER_MS
from llm_perf_opt.workload.dataset import Planned
from llm_perf_opt.workload.journal import Journal
from llm_perf_opt.workload.loop import Generation, Generator
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.nvtx import RangeEmitter, silent
from llm_perf_opt.workload.outputs import OutputWriter
from llm_perf_opt.workload.results import SampleResult
from llm_perf_opt.workload.setup import Session, say
from llm_perf_opt.workload.warmup import first_good_sample, synthetic_like

CLEAN = "clean"


def warm_up(session: Session, *, rounds: int, synthetic: bool, ranges: RangeEmitter | None = None) -> None:
    """Run `rounds` samples inside a `warmup` range and throw their times away.

    No phase is named inside it: a capture gated by `decode` would otherwise start with a warm-up and not know it.
    """
    if rounds == 0:
        return
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
            # long as in later samples, since something is planned anew for every sequence length met first.
            generate(session, generator, sample, inputs)
        finally:
            used.pop()


def run_clean_pass(session: Session, journal: Journal, outputs: OutputWriter | None) -> None:
    """Every planned sample, `run.repeats` times, timed; predictions come from the first repeat."""
    repeats, planned_samples = session.workload.config.run.repeats, session.workload.planned
    generator = session.generator()
    for repeat in range(repeats):
        for number, planned in enumerate(planned_samples, start=1):
            if planned.sample.sample_id in journal.bad:
                continue
            result = measure(session, generator, planned, journal, repeat=repeat)
            if result is None:
                continue
            say(
                f"clean pass, repeat {repeat + 1} of {repeats}, sample {number} of {len(planned_samples)}: "
                f"{result.tokens} token(s) in {result.e2e_ms:.1f} ms"
            )
            if outputs is not None and repeat == 0:
                outputs.add(planned.sample, result, session.model)
        refuse_too_many_bad(
            bad=journal.bad,
            sample_ids={p.sample.sample_id for p in planned_samples},
            max_bad_fraction=session.workload.config.dataset.max_bad_fraction,
        )


def measure(
    session: Session, generator: Generator, planned: Planned, journal: Journal, *, repeat: int
) -> SampleResult | None:
    """Time one sample and keep it; None when the sample is bad, which is kept too."""
    sample = planned.sample
    session.memory.reset()
    try:
        inputs, prepare_ms = prepare(session, sample)
        generation = generate(session, generator, sample, inputs)
    except bad_sample_errors() as error:
        say(f"sample {sample.sample_id} skipped: {describe_error(error)}")
        journal.add_bad(sample.sample_id, describe_error(error))
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
    )
    journal.add(result)
    return result


def prepare(session: Session, sample: Sample) -> tuple[Any, float]:
    """The sample's inputs on the device, and the milliseconds it took."""
    start_ns = session.clock.edge_ns()
    inputs = session.model.prepare(sample)
    return inputs, (session.clock.edge_ns() - start_ns) / NS_PER_MS


def generate(
    session: Session, generator: Generator, sample: Sample, inputs: Any, *, max_new_tokens: int | None = None
) -> Generation:
    """Generate one sample, to `infer.max_new_tokens` or fewer."""
    import torch

    most = session.workload.config.infer.max_new_tokens
    budget = most if max_new_tokens is None else min(most, max_new_tokens)
    with torch.inference_mode():
        return generator.generate(inputs, session.picker(sample.sample_id, inputs), budget)

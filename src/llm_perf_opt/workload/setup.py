"""Everything before the first token: check the model's files and the data, load the model, open the journal."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.workload.clock import Clock, clock_for
from llm_perf_opt.workload.dataset import (
    TOKENS,
    Planned,
    Vocabulary,
    describe_inputs,
    list_samples,
    plan_notes,
    plan_samples,
    vocabulary_of,
)
from llm_perf_opt.workload.device import describe_model, resolve_device
from llm_perf_opt.workload.journal import Journal, JournalHeader, write_inputs_file
from llm_perf_opt.workload.loop import Generator
from llm_perf_opt.workload.memory import PeakMemory, peak_memory_for
from llm_perf_opt.workload.models.base import LoadedModel, ModelAdapter
from llm_perf_opt.workload.models.registry import load_adapter
from llm_perf_opt.workload.nvtx import RangeEmitter, choose_emitter
from llm_perf_opt.workload.sampling import TokenPicker, seed_for


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
    """A loaded model with its clocks."""

    workload: Workload
    model: LoadedModel
    clock: Clock
    ranges: RangeEmitter
    memory: PeakMemory

    def generator(self, ranges: RangeEmitter | None = None) -> Generator:
        """The loop over this model, with these ranges or the session's own."""
        ignore_eos = self.workload.config.infer.ignore_eos
        return Generator(self.model, clock=self.clock, ranges=ranges or self.ranges, ignore_eos=ignore_eos)

    def picker(self, sample_id: str, inputs: Any) -> TokenPicker:
        """A picker for one sample: the same tokens whatever ran before it."""
        config = self.workload.config
        prompt_ids = self.model.prompt_ids(inputs) if config.infer.no_repeat_ngram_size else ()
        seed = seed_for(config.run.seed, sample_id)
        return TokenPicker(config.infer, device=self.model.device, seed=seed, prompt_ids=prompt_ids)


def check_workload(config: AppConfig, out_dir: Path) -> Workload:
    """Check the model's files and the data set, and write inputs.json. Imports no torch."""
    adapter = load_adapter(config.model.adapter)
    problems = adapter.check(config.model)
    if problems:
        raise ConfigError(problems)
    # Scratch lies beside the stage's directory, because that one is for people to look at.
    scratch_dir = out_dir.parent / "tmp" / out_dir.name
    vocabulary = vocabulary_of(adapter.geometry(config.model)) if adapter.data_kind == TOKENS else None
    samples = list_samples(config.dataset, data_kind=adapter.data_kind, vocabulary=vocabulary, scratch_dir=scratch_dir)
    planned = plan_samples(samples, config.dataset.sampling)
    write_inputs_file(out_dir, describe_inputs(planned, run_dir=out_dir.parent))
    say(f"{len(samples)} sample(s) found, {len(planned)} planned per repeat")
    return Workload(
        config=config,
        adapter=adapter,
        planned=planned,
        vocabulary=vocabulary,
        scratch_dir=scratch_dir,
        notes=plan_notes(samples, config.dataset.sampling),
    )


def open_session(workload: Workload) -> Session:
    """Load the model on its device."""
    config = workload.config
    device = resolve_device(config.run.device)
    say(f"loading {config.model.name} ({config.model.weights} weights) on {device}")
    model = workload.adapter.load(config.model, config.infer, device=device, seed=config.run.seed)
    return Session(
        workload=workload,
        model=model,
        clock=clock_for(device),
        ranges=choose_emitter(),
        memory=peak_memory_for(device),
    )


def open_journal(session: Session, out_dir: Path, *, warmup_rounds: int) -> Journal:
    """Start writing metrics.json and samples.jsonl."""
    workload = session.workload
    header = JournalHeader(
        model=describe_model(workload.config.model.name, session.model),
        nvtx_backend=session.ranges.backend,
        repeats=workload.config.run.repeats,
        samples=len(workload.planned),
        warmup_rounds=warmup_rounds,
    )
    notes = [*workload.notes, *([session.ranges.note] if session.ranges.note else [])]
    return Journal(out_dir, header=header, notes=notes, parts=session.model.parts, memory_how=session.memory.how)


def say(text: str) -> None:
    """One line of progress; the orchestrator shows the last one."""
    print(text, flush=True)

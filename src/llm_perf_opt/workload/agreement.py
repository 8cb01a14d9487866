"""Do two configurations of a model give the same outputs? Greedy tokens, and logits while both read the same tokens.

The start writes a reference: its greedy tokens and the logits behind each of them. An experiment generates by itself,
then reads the reference's tokens one by one through the very steps that are timed: what is compared is what ran.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.errors import ProfilingError
from llm_perf_opt.optimize.optimize_document import Agreement
from llm_perf_opt.workload.generation import PartClock
from llm_perf_opt.workload.models.base import Sample
from llm_perf_opt.workload.nvtx import silent
from llm_perf_opt.workload.session import Session

# More of them add little information, and logits of large vocabularies fill the disk.
MOST_SAMPLES, MOST_TOKENS = 8, 32


@dataclass(frozen=True, kw_only=True)
class _Reference:
    """Tokens and logits of one prompt."""

    tokens: tuple[int, ...]
    logits: Any


def write_reference(session: Session, path: Path) -> None:
    """The start's own tokens and logits, by sample."""
    import torch

    found: dict[str, dict[str, Any]] = {}
    for sample in _samples(session):
        rows, logits = _run(session, sample, None)
        for row, member in enumerate(sample.members):
            found.setdefault(member.sample_id, {"tokens": rows[row], "logits": logits[row].cpu()})
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"dtype": session.model.dtype.removeprefix("torch."), "samples": found}, path)


def check_agreement(session: Session, path: Path) -> Agreement:
    """Run the reference's prompts here, freely and along its tokens."""
    import torch

    stored = torch.load(path, weights_only=True)
    known = {
        name: _Reference(tokens=tuple(one["tokens"]), logits=one["logits"]) for name, one in stored["samples"].items()
    }
    tally = _Tally()
    for sample in _samples(session, known):
        free, _ = _run(session, sample, None)
        forced = [known.get(m.sample_id, next(iter(known.values()))).tokens for m in sample.members]
        _, logits = _run(session, sample, forced)
        for row, member in enumerate(sample.members):
            if member.sample_id in known:
                tally.add(member.sample_id, known[member.sample_id], free[row], logits[row])
    if not tally.samples:
        raise ProfilingError("no prompt of the baseline was run here, so outputs cannot be compared")
    return tally.result(dtype=str(stored["dtype"]))


class _Tally:
    """Sums over prompts and positions."""

    def __init__(self) -> None:
        self.samples: set[str] = set()
        self.positions = 0
        self.same = 0
        self.kl_sum = self.kl_max = self.flip_gap = self.squares = 0.0
        self.first: str | None = None

    def add(self, name: str, reference: _Reference, tokens: Sequence[int], logits: Any) -> None:
        if name in self.samples:
            return
        self.samples.add(name)
        # In double precision: sums over a large vocabulary round more than equal models differ.
        ours = logits.double()
        theirs = reference.logits.to(ours.device).double()
        log_p, log_q = theirs.log_softmax(-1), ours.log_softmax(-1)
        divergence = (log_p.exp() * (log_p - log_q)).sum(-1).clamp(min=0)
        choices, other = theirs.argmax(-1), ours.argmax(-1)
        gaps = theirs.gather(-1, choices[:, None]) - theirs.gather(-1, other[:, None])
        self.positions += len(divergence)
        self.same += int((choices == other).sum())
        self.kl_sum += float(divergence.sum())
        self.kl_max = max(self.kl_max, float(divergence.max()))
        self.flip_gap = max(self.flip_gap, float(gaps.max()))
        # Around their mean: a constant added to all logits changes no probability.
        self.squares += float((theirs - theirs.mean(-1, keepdim=True)).square().mean(-1).sum())
        wrong = next((i for i, (a, b) in enumerate(zip(reference.tokens, tokens, strict=False)) if a != b), None)
        if wrong is not None and self.first is None:
            self.first = f"token {wrong + 1} of {name}"

    def result(self, *, dtype: str) -> Agreement:
        return Agreement(
            samples=len(self.samples),
            positions=self.positions,
            tokens_equal=self.first is None,
            first_difference=self.first,
            top1=self.same / self.positions,
            kl_mean=self.kl_sum / self.positions,
            kl_max=self.kl_max,
            flip_gap=self.flip_gap,
            logit_rms=(self.squares / self.positions) ** 0.5,
            dtype=dtype,
        )


def _samples(session: Session, known: Mapping[str, Any] | None = None) -> Iterator[Sample]:
    """The first planned samples or batches, as many as make MOST_SAMPLES prompts; those with a reference alone."""
    seen: set[str] = set()
    for sample in dict.fromkeys(planned.sample for planned in session.workload.planned):
        names = {member.sample_id for member in sample.members}
        if known is not None and not names & known.keys():
            continue
        if len(seen) >= MOST_SAMPLES:
            return
        seen |= names
        yield sample


def _run(session: Session, sample: Sample, forced: Sequence[Sequence[int]] | None) -> tuple[list[tuple[int, ...]], Any]:
    """The tokens of each sequence and the logits behind them, [sequences, tokens, vocabulary].

    With `forced` tokens those are read instead of the model's own choices.
    """
    import torch

    model = session.model
    count = min(MOST_TOKENS, session.workload.config.infer.max_new_tokens)
    given = None if forced is None else torch.tensor([list(row) for row in forced], device=model.device)
    if given is not None:
        count = min(count, given.shape[1])
    with torch.inference_mode():
        step = model.prefill(model.prepare(sample), PartClock(session.clock, silent("output check")))
        # What a CUDA graph returns is overwritten by its next replay.
        logits = [step.logits.clone()]
        tokens = [step.logits.argmax(dim=-1, keepdim=True)]
        for position in range(count - 1):
            token = tokens[-1] if given is None else given[:, position : position + 1]
            step = model.decode(token, step.state)
            logits.append(step.logits.clone())
            tokens.append(step.logits.argmax(dim=-1, keepdim=True))
        rows = torch.cat(tokens, dim=1).tolist()
        return [tuple(row) for row in rows], torch.stack(logits, dim=1)

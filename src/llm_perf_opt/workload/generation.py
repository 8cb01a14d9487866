"""Generates one sample: one forward for prefill, one per token after it, with the clocks at the phase edges.

Picks the next token: greedy, or temperature, top-k and top-p from a seeded generator; bans repeated n-grams.

Clocks: synchronised host time at phase edges, and marks between them that never wait for the device.
"""

import hashlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from llm_perf_opt.config.schema import InferSection
from llm_perf_opt.core.names import DECODE, DECODE_STEP, PREFILL
from llm_perf_opt.workload.models.base import LoadedModel, StepOutput
from llm_perf_opt.workload.nvtx import RangeEmitter

NS_PER_MS = 1e6


class Clock(Protocol):
    """`edge_ns` waits until the device has done all its work; `mark` does not wait, and is read only after an edge."""

    def edge_ns(self) -> int: ...

    def mark(self) -> Any: ...

    def between_ms(self, first: Any, second: Any) -> float: ...


class HostClock:
    """For work the calling thread does itself: nothing to wait for."""

    def edge_ns(self) -> int:
        return time.perf_counter_ns()

    def mark(self) -> Any:
        return time.perf_counter_ns()

    def between_ms(self, first: Any, second: Any) -> float:
        return float(second - first) / NS_PER_MS


class CudaClock:
    """Edges by torch.cuda.synchronize and the host's clock; marks are CUDA events on the current stream."""

    def __init__(self, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._synchronize = torch.cuda.synchronize
        self._event = torch.cuda.Event

    def edge_ns(self) -> int:
        self._synchronize(self._device)
        return time.perf_counter_ns()

    def mark(self) -> Any:
        event = self._event(enable_timing=True)
        event.record()
        return event

    def between_ms(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second))


def clock_for(device: str) -> Clock:
    """The clock that fits a torch device name."""
    return CudaClock(device) if device.startswith("cuda") else HostClock()


def gaps_ms(clock: Clock, marks: Sequence[Any]) -> tuple[float, ...]:
    """The times between successive marks."""
    return tuple(clock.between_ms(a, b) for a, b in itertools.pairwise(marks))


class PartClock:
    """Times named parts of prefill (a `RangeFactory`): opens the NVTX range and puts a mark at both ends."""

    def __init__(self, clock: Clock, ranges: RangeEmitter) -> None:
        self._clock = clock
        self._ranges = ranges
        self._marks: list[tuple[str, Any, Any]] = []

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        self._ranges.push(name)
        start = self._clock.mark()
        try:
            yield
        finally:
            self._marks.append((name, start, self._clock.mark()))
            self._ranges.pop()

    def totals_ms(self) -> dict[str, float]:
        """The time of each part, summed over the times it was opened. Read only after an edge."""
        totals: dict[str, float] = {}
        for name, start, end in self._marks:
            totals[name] = totals.get(name, 0.0) + self._clock.between_ms(start, end)
        return totals


def seed_for(seed: int, sample_id: str) -> int:
    """A seed of the sample's own, so that its tokens do not depend on what ran before it."""
    digest = hashlib.sha256(f"{seed}:{sample_id}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


class NgramBan:
    """Knows which tokens would complete an n-gram that has occurred before, the prompt included."""

    def __init__(self, size: int, prompt_ids: Sequence[int]) -> None:
        self._size = size
        self._recent: list[int] = []
        self._followers: dict[tuple[int, ...], set[int]] = {}
        for token in prompt_ids:
            self.add(token)

    def add(self, token: int) -> None:
        """Take note of one more token."""
        if len(self._recent) == self._size - 1:
            self._followers.setdefault(tuple(self._recent), set()).add(token)
        self._recent = [*self._recent, token][-(self._size - 1) :] if self._size > 1 else []

    def banned(self) -> list[int]:
        """The tokens that must not come next."""
        return sorted(self._followers.get(tuple(self._recent), ()))


class TokenPicker:
    """Turns the last position's logits, [1, vocabulary], into the next token, [1, 1], without leaving the device."""

    def __init__(self, infer: InferSection, *, device: str, seed: int, prompt_ids: Sequence[int]) -> None:
        import torch

        self._torch = torch
        self._infer = infer
        self._ban = NgramBan(infer.no_repeat_ngram_size, prompt_ids) if infer.no_repeat_ngram_size else None
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(seed)
        # Whether a token is simply the likeliest one.
        self.is_plain = infer.temperature == 0 and self._ban is None

    @property
    def reads_tokens(self) -> bool:
        """Whether `saw` must be reported every token, which means waiting for the device at each step."""
        return self._ban is not None

    def saw(self, tokens: Sequence[int]) -> None:
        """Note which token was picked, for the n-gram rule."""
        if self._ban is not None:
            self._ban.add(tokens[0])

    def pick(self, logits: Any) -> Any:
        """The next token."""
        if self.is_plain:
            return logits.argmax(dim=-1, keepdim=True)
        scores = logits.float()
        banned = self._ban.banned() if self._ban is not None else []
        if banned:
            scores = scores.clone()
            scores[:, banned] = float("-inf")
        if self._infer.temperature == 0:
            return scores.argmax(dim=-1, keepdim=True)
        return self._draw(scores / self._infer.temperature)

    def _draw(self, scores: Any) -> Any:
        """One draw from the scores after top-k and top-p."""
        torch, infer = self._torch, self._infer
        if 0 < infer.top_k < scores.shape[-1]:
            weakest = torch.topk(scores, infer.top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < weakest, float("-inf"))
        if infer.top_p < 1.0:
            ordered, places = torch.sort(scores, dim=-1, descending=True)
            probabilities = ordered.softmax(dim=-1)
            # A token stays when those before it have not yet reached top_p; so the first one always stays.
            before = probabilities.cumsum(dim=-1) - probabilities
            ordered = ordered.masked_fill(before >= infer.top_p, float("-inf"))
            scores = torch.empty_like(scores).scatter_(-1, places, ordered)
        return torch.multinomial(scores.softmax(dim=-1), 1, generator=self._generator)


class BatchPicker:
    """The pickers of a batch's sequences: each gets the tokens it would get alone."""

    def __init__(self, rows: Sequence[TokenPicker]) -> None:
        import torch

        self._rows = rows
        self._cat = torch.cat
        self._is_plain = all(row.is_plain for row in rows)

    @property
    def reads_tokens(self) -> bool:
        return any(row.reads_tokens for row in self._rows)

    def saw(self, tokens: Sequence[int]) -> None:
        for row, token in zip(self._rows, tokens, strict=True):
            row.saw([token])

    def pick(self, logits: Any) -> Any:
        """The next token of each sequence, [sequences, 1]."""
        if self._is_plain:
            return logits.argmax(dim=-1, keepdim=True)
        return self._cat([row.pick(logits[i : i + 1]) for i, row in enumerate(self._rows)])


Picker = TokenPicker | BatchPicker


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The tokens of one sample and when they came. `decode_ms` is None when the first token was the only one.

    `others` are the tokens of a batch's further sequences; a sequence that ended before the batch is as long as it is.
    `start_ns` is when prefill began, on the clock of `time.monotonic_ns()`.
    """

    token_ids: tuple[int, ...]
    prefill_ms: float
    ttft_ms: float
    decode_ms: float | None
    itl_ms: tuple[float, ...]
    parts_ms: Mapping[str, float] = field(default_factory=dict)
    others: tuple[tuple[int, ...], ...] = ()
    start_ns: int = 0

    @property
    def sequences(self) -> tuple[tuple[int, ...], ...]:
        return (self.token_ids, *self.others)

    @property
    def steps(self) -> int:
        """Forwards after prefill: a batch continues until its last sequence has ended."""
        return len(self.itl_ms)


class Generator:
    """Holds what stays the same from sample to sample, so that the loop itself looks nothing up."""

    def __init__(self, model: LoadedModel, *, clock: Clock, ranges: RangeEmitter, ignore_eos: bool) -> None:
        self._model = model
        self._clock = clock
        self._ranges = ranges
        self._stop_ids = frozenset[int]() if ignore_eos else model.eos_token_ids
        # The sequences of the current batch that have had their last token.
        self._ended: set[int] = set()

    def generate(self, inputs: Any, picker: Picker, max_new_tokens: int) -> Generation:
        """Run one sample, or one batch, to its end-of-sequence token or to `max_new_tokens`."""
        clock, ranges = self._clock, self._ranges
        self._ended.clear()
        parts = PartClock(clock, ranges)
        start_ns = clock.edge_ns()
        ranges.push(PREFILL)
        try:
            step = self._model.prefill(inputs, parts)
            prefill_ns = clock.edge_ns()
        finally:
            ranges.pop()
        token = picker.pick(step.logits)
        marks = [clock.mark()]
        tokens = [token]
        stopped = self._read(token, picker)
        first_ns = clock.edge_ns()
        decode_ms = None
        if not stopped and max_new_tokens > 1:
            ranges.push(DECODE)
            try:
                self._decode(step, tokens, marks, picker, max_new_tokens)
                decode_ms = (clock.edge_ns() - first_ns) / NS_PER_MS
            finally:
                ranges.pop()
        first, *others = _to_host(tokens, self._stop_ids)
        return Generation(
            token_ids=first,
            others=tuple(others),
            prefill_ms=(prefill_ns - start_ns) / NS_PER_MS,
            ttft_ms=(first_ns - start_ns) / NS_PER_MS,
            decode_ms=decode_ms,
            itl_ms=gaps_ms(clock, marks),
            parts_ms=parts.totals_ms(),
            start_ns=start_ns,
        )

    def _decode(
        self, step: StepOutput, tokens: list[Any], marks: list[Any], picker: Picker, max_new_tokens: int
    ) -> None:
        """Append tokens and their marks until a stop token or the budget."""
        push, pop, mark = self._ranges.push, self._ranges.pop, self._clock.mark
        decode, pick, read = self._model.decode, picker.pick, self._read
        token, stopped = tokens[-1], False
        while not stopped and len(tokens) < max_new_tokens:
            push(DECODE_STEP)
            try:
                step = decode(token, step.state)
                token = pick(step.logits)
                marks.append(mark())
                tokens.append(token)
                stopped = read(token, picker)
            finally:
                pop()

    def _read(self, token: Any, picker: Picker) -> bool:
        """Bring tokens to the host when the host must see them (this waits for a GPU); whether all sequences ended."""
        if not self._stop_ids and not picker.reads_tokens:
            return False
        values = [int(value) for value in token.reshape(-1).tolist()]
        picker.saw(values)
        self._ended |= {row for row, value in enumerate(values) if value in self._stop_ids}
        return len(self._ended) == len(values)


def _to_host(tokens: list[Any], stop_ids: frozenset[int]) -> list[tuple[int, ...]]:
    """The tokens of each sequence, up to its own end."""
    import torch

    rows = torch.cat(tokens, dim=1).tolist()
    return [tuple(row[: _length(row, stop_ids)]) for row in rows]


def _length(row: Sequence[int], stop_ids: frozenset[int]) -> int:
    """How many tokens belong to a sequence: the one that ends it is its last."""
    return next((i + 1 for i, token in enumerate(row) if token in stop_ids), len(row))

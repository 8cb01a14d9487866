"""Generates one sample: one forward for prefill, one per token after it, with the clocks at the phase edges."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llm_perf_opt.core.names import DECODE, DECODE_STEP, PREFILL
from llm_perf_opt.workload.clock import NS_PER_MS, Clock, PartClock, gaps_ms
from llm_perf_opt.workload.models.base import LoadedModel, StepOutput
from llm_perf_opt.workload.nvtx import RangeEmitter
from llm_perf_opt.workload.sampling import TokenPicker


@dataclass(frozen=True, kw_only=True)
class Generation:
    """The tokens of one sample and when they came. `decode_ms` is None when the first token was the only one."""

    token_ids: tuple[int, ...]
    prefill_ms: float
    ttft_ms: float
    decode_ms: float | None
    itl_ms: tuple[float, ...]
    parts_ms: Mapping[str, float] = field(default_factory=dict)


class Generator:
    """Holds what stays the same from sample to sample, so that the loop itself looks nothing up."""

    def __init__(self, model: LoadedModel, *, clock: Clock, ranges: RangeEmitter, ignore_eos: bool) -> None:
        self._model = model
        self._clock = clock
        self._ranges = ranges
        self._stop_ids = frozenset[int]() if ignore_eos else model.eos_token_ids

    def generate(self, inputs: Any, picker: TokenPicker, max_new_tokens: int) -> Generation:
        """Run one sample to its end-of-sequence token or to `max_new_tokens`."""
        clock, ranges = self._clock, self._ranges
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
        return Generation(
            token_ids=_to_host(tokens),
            prefill_ms=(prefill_ns - start_ns) / NS_PER_MS,
            ttft_ms=(first_ns - start_ns) / NS_PER_MS,
            decode_ms=decode_ms,
            itl_ms=gaps_ms(clock, marks),
            parts_ms=parts.totals_ms(),
        )

    def _decode(
        self, step: StepOutput, tokens: list[Any], marks: list[Any], picker: TokenPicker, max_new_tokens: int
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

    def _read(self, token: Any, picker: TokenPicker) -> bool:
        """Bring the token to the host when somebody must see it (this waits for a GPU); whether it ends the sample."""
        if not self._stop_ids and not picker.reads_tokens:
            return False
        value = int(token)
        picker.saw(value)
        return value in self._stop_ids


def _to_host(tokens: list[Any]) -> tuple[int, ...]:
    import torch

    return tuple(int(t) for t in torch.cat(tokens, dim=1).reshape(-1).tolist())

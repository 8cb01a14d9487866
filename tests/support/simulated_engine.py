"""An engine with chunked prefill in simulated time, that writes its steps as the adapter for vLLM does.

Each step takes `STEP_S`, `SEQUENCE_S` for each decoding sequence and `TOKEN_S` for each token of a prompt, all with a
tenth of noise. At most `BUDGET` tokens of prompts are in a step. A client on the same clock sees every token a little
later.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from llm_perf_opt.serving.load_records import RequestRecord

STEP_S, SEQUENCE_S, TOKEN_S, HOST_S = 0.004, 0.0002, 0.0001, 0.0003
BUDGET = 2048


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A request to be sent. `at_s` counts from the start of the load."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass
class _Sequence:
    number: int
    planned: Planned
    computed: int = 0
    arrivals: list[float] = field(default_factory=list)

    @property
    def is_prefilling(self) -> bool:
        return self.computed < self.planned.prompt_tokens


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What the client recorded and the lines the engine wrote; the load began at `begun_s` of its clock."""

    begun_s: float
    records: tuple[RequestRecord, ...]
    lines: tuple[bytes, ...]


def planted_load(*, streams: int = 6, prompt_tokens: int = 8000, seed: int = 0) -> list[Planned]:
    """Streams of short prompts, and one long prompt among them; it is the last of the list."""
    draw = random.Random(seed)
    short = [Planned(at_s=draw.uniform(0.0, 0.2), prompt_tokens=64, output_tokens=150) for _ in range(streams)]
    return [*short, Planned(at_s=draw.uniform(0.3, 0.6), prompt_tokens=prompt_tokens, output_tokens=20)]


def serve(
    load: Sequence[Planned], *, seed: int = 0, most_running: int = 16, overlaps: bool = False, begun_s: float = 1000.0
) -> Simulated:
    """Serve the load to its end. `overlaps`: a step is scheduled while the one before executes."""
    draw = random.Random(seed)
    lines = [b'{"k":"start","engine":"vllm","version":"0.32.0","pid":7}']
    waiting = [_Sequence(number=n, planned=one) for n, one in enumerate(load)]
    waiting.sort(key=lambda one: one.planned.at_s)
    sent = {one.number: begun_s + one.planned.at_s for one in waiting}
    added: set[int] = set()
    running: list[_Sequence] = []
    done: list[_Sequence] = []
    now, number = begun_s, 0
    while waiting or running:
        for one in waiting:
            at = sent[one.number] + 0.002
            if one.number not in added and at <= now:
                added.add(one.number)
                name = f"cmpl-llmperf.ab12.1.{one.number}-0-0123abcd"
                lines.append(
                    f'{{"k":"add","r":{one.number},"id":"{name}","prompt":{one.planned.prompt_tokens},'
                    f'"at":{at:.7f},"arrived":{at - 0.001:.7f}}}'.encode()
                )
        while len(running) < most_running and waiting and waiting[0].number in added:
            running.append(waiting.pop(0))
        if not running:
            now = sent[waiting[0].number] + 0.002
            continue
        number += 1
        budget, work, made = BUDGET, [], []
        for one in running:
            tokens = min(budget, one.planned.prompt_tokens - one.computed) if one.is_prefilling else 1
            if not tokens:
                continue
            budget -= tokens if one.is_prefilling else 0
            work.append((one, tokens, one.computed))
            one.computed += tokens
            if one.computed >= one.planned.prompt_tokens:
                made.append(one)
        prefill = sum(t for one, t, before in work if before < one.planned.prompt_tokens)
        decodes = sum(before >= one.planned.prompt_tokens for one, _, before in work)
        execution = (STEP_S + SEQUENCE_S * decodes + TOKEN_S * prefill) * draw.uniform(0.9, 1.1)
        begin = now - 0.001 if overlaps and number > 1 else now
        scheduled, update = begin + HOST_S, now + HOST_S + execution
        end = update + HOST_S
        held = ",".join(f"[{one.number},{tokens},{before}]" for one, tokens, before in work)
        out = ",".join(f"[{one.number},1]" for one in made)
        times = f"{begin:.7f},{scheduled:.7f},{update:.7f},{end:.7f}"
        lines.append(f'{{"k":"step","n":{number},"t":[{times}],"w":[{held}],"o":[{out}]}}'.encode())
        for one in made:
            one.arrivals.append(end + 0.001 * draw.random())
            if len(one.arrivals) == one.planned.output_tokens:
                running.remove(one)
                done.append(one)
        now = end
    records = [_record(one, begun_s) for one in sorted(done, key=lambda one: one.number)]
    return Simulated(begun_s=begun_s, records=tuple(records), lines=tuple(lines))


def _record(one: _Sequence, begun_s: float) -> RequestRecord:
    sent = begun_s + one.planned.at_s
    gaps = [after - before for before, after in pairwise(one.arrivals)]
    return RequestRecord(
        index=one.number,
        started_s=one.planned.at_s,
        status="ok",
        ttft_s=one.arrivals[0] - sent,
        latency_s=one.arrivals[-1] - sent,
        gaps_s=tuple(gaps),
        prompt_tokens=one.planned.prompt_tokens,
        output_tokens=one.planned.output_tokens,
        counted_by="usage",
        request_id=f"llmperf.ab12.1.{one.number}",
    )

"""Requests in flight: latency, throughput and cost of a load, from the times of single steps.

Times of prompts and tokens on one replica are the estimates of `steps`; what requests make of each other is
`queueing`.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.estimate.bands import Band, served_band_of
from llm_perf_opt.model.estimate.efficiency import TRANSFERRED, rates_of
from llm_perf_opt.model.estimate.engine_model import ENGINES, HostShare
from llm_perf_opt.model.estimate.queueing import LoadTimes, closed_load, open_load
from llm_perf_opt.model.estimate.steps import Setting, shared_bound, step_estimate
from llm_perf_opt.model.hardware.work import Step

# As many tokens of prompts as serving engines take into one forward by default.
PROMPT_TOKENS = 8192
MOST_PIECES = 256
# A draft model's share of a step's time and of the memory, where nothing else is reported.
DRAFT_COST = 0.1
# How much each further pipeline stage lengthens a token's way through all of them: micro-batches are never equally long
# and wait for each other. Fitted to 12 published runs of one 70B model on 2, 4 and 8 devices, which it meets within
# 20 %; fitted without the runs of one of these numbers of devices, it meets those as well.
STAGE_WAIT = 0.15


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests of one length. `concurrency`: in flight over all replicas; `chunk`: prompts go in such pieces.

    `places`: how many sequences one replica holds at once, the others wait (None: all of them). `prefix_hit`: the share
    of the prompt that a cache of prefixes holds already. `acceptance` and `draft`: the share of drafted tokens that are
    kept, and how many are drafted at a time; a draft costs `draft_cost` of a step.
    """

    prompt: int
    output: int
    concurrency: int = 1
    places: int | None = None
    prefix_hit: float = 0.0
    chunk: int | None = None
    acceptance: float | None = None
    draft: int = 4
    draft_cost: float = DRAFT_COST

    @property
    def cached(self) -> int:
        return int(self.prompt * self.prefix_hit)

    @property
    def new_tokens(self) -> int:
        """Tokens of the prompt that are computed."""
        return max(1, self.prompt - self.cached)


@dataclass(frozen=True, kw_only=True)
class ArrivalRate:
    """Requests per second over all replicas. `burstiness`: the shape of gamma-distributed gaps, as in vLLM's benchmark.

    1: a Poisson process; below 1: bursts; infinite: evenly spaced.
    """

    per_s: float
    burstiness: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Milliseconds of a request and tokens per second of all replicas; `cost` per million output tokens, if priced.

    `ttft_ms` is the median. `ttft_p95_ms`: of requests in flight, the 95th percentile of requests that start together;
    of arrivals, the 95th percentile of all. `in_flight` counts waiting requests, over all replicas.
    `slowest_tokens_per_s` and `fastest_tokens_per_s` are the ends of the band: never beyond the bound, nor more than
    what arrives.
    """

    ttft_ms: float
    ttft_p95_ms: float
    tpot_ms: float
    request_ms: float
    output_tokens_per_s: float
    slowest_tokens_per_s: float
    fastest_tokens_per_s: float
    in_flight: float
    cost: float | None
    label: str
    band: Band


def prompt_ms(setting: Setting, load: Load, *, batch: int = 1) -> float | None:
    """The prompt, less what a prefix cache holds, in chunks where asked for."""
    held, left = load.cached, load.new_tokens
    piece = left if load.chunk is None else max(1, min(left, load.chunk // batch))
    starts = range(0, left, piece)
    # A piece takes a little longer than the one before it, so of many some stand for their neighbours.
    stride = -(-len(starts) // MOST_PIECES)
    seen = starts[stride // 2 :: stride]
    total = 0.0
    for done in seen:
        found = step_estimate(setting, Step(batch=batch, new=min(piece, left - done), past=held + done))
        if found is None:
            return None
        total += found.mid_ms
    return total * len(starts) / len(seen)


def token_ms(setting: Setting, load: Load, *, batch: int) -> float | None:
    """Time per token half-way through the output; with drafts, the verified step's time over the tokens it yields."""
    context = load.prompt + load.output // 2
    plain = step_estimate(setting, Step(batch=batch, new=1, past=context))
    if plain is None or load.acceptance is None:
        return None if plain is None else plain.mid_ms
    checked = step_estimate(setting, Step(batch=batch, new=load.draft + 1, past=context))
    if checked is None:
        return None
    # A cache of that length is read once by the check as by a plain step, so it is never cheaper than one.
    verify = max(checked.mid_ms, plain.mid_ms)
    return (verify + load.draft * load.draft_cost * plain.mid_ms) / tokens_per_check(load.acceptance, load.draft)


def tokens_per_check(acceptance: float, draft: int) -> float:
    """Tokens per verified step when each draft is accepted with this probability: the accepted run, and one."""
    if acceptance >= 1:
        return draft + 1.0
    return float((1 - acceptance ** (draft + 1)) / (1 - acceptance))


def forecast(setting: Setting, load: Load) -> Forecast | None:
    """`load.concurrency` requests in flight: each that ends is followed by the next. None: no estimate of a step."""
    if step_estimate(setting, Step(batch=1, new=1, past=load.prompt)) is None:
        return None
    # The fullest replica sets the pace; with fewer requests than replicas some have nothing to do.
    sequences = -(-load.concurrency // setting.layout.dp)
    times = closed_load(ReplicaPace(setting=setting, load=load), sequences, output=load.output, places=load.places)
    per_s = load.concurrency / times.request_ms * 1e3
    band, rate = _band(setting), per_s * load.output
    most = setting.layout.dp * most_tokens_per_ms(setting, load, sequences) * 1e3
    return _forecast(
        setting,
        load,
        times,
        per_s=per_s,
        in_flight=float(load.concurrency),
        ends=(rate / band.slower, max(rate, min(rate * band.faster, most))),
    )


def forecast_arrivals(setting: Setting, load: Load, arrivals: ArrivalRate) -> Forecast | None:
    """Requests that arrive by themselves. None: no estimate of a step, or more than the replicas can keep up with."""
    if step_estimate(setting, Step(batch=1, new=1, past=load.prompt)) is None:
        return None
    pace = ReplicaPace(setting=setting, load=load)

    def at(per_s: float) -> LoadTimes | None:
        each = per_s / 1e3 / setting.layout.dp
        return open_load(pace, each, output=load.output, places=load.places, burstiness=arrivals.burstiness)

    times = at(arrivals.per_s)
    if times is None:
        return None
    # Where everything takes longer by a factor, arrivals are as dense as these are at their rate times the factor.
    rate, slower = arrivals.per_s * load.output, _band(setting).slower
    slowest = rate if at(arrivals.per_s * slower) is not None else rate / slower
    in_flight = arrivals.per_s * times.request_ms / 1e3
    return _forecast(setting, load, times, per_s=arrivals.per_s, in_flight=in_flight, ends=(slowest, rate))


def most_tokens_per_ms(setting: Setting, load: Load, sequences: int) -> float:
    """Output tokens per millisecond that one replica cannot exceed; infinite where the device's peaks are not known.

    A request needs its prompt and then its tokens one after the other; stages of a pipeline work at the same time, on
    a stage's share of the sequences.
    """
    admitted = sequences if load.places is None else max(1, min(sequences, load.places))
    context, tokens = load.prompt + load.output // 2, max(0, load.output - 1)
    prompt = shared_bound(setting, Step(batch=1, new=load.new_tokens, past=load.cached))
    alone = shared_bound(setting, Step(batch=1, new=1, past=context))
    stages = setting.layout.pp
    together = shared_bound(setting, Step(batch=-(-admitted // stages), new=1, past=context))
    if prompt is None or alone is None or together is None:
        return math.inf
    steps = tokens if load.acceptance is None else tokens / tokens_per_check(load.acceptance, load.draft)
    request_ms = prompt.ms / stages + steps * alone.ms
    # Prompts that are computed together read the weights once, so their compute alone counts.
    busy_ms = max(prompt.compute_ms / stages, steps * together.ms / admitted)
    return load.output / max(request_ms / admitted, busy_ms)


def _band(setting: Setting) -> Band:
    return served_band_of(setting.model, setting.engine, setting.layout, setting.hardware)


def _forecast(
    setting: Setting, load: Load, times: LoadTimes, *, per_s: float, in_flight: float, ends: tuple[float, float]
) -> Forecast:
    rate, label = per_s * load.output, label_of(setting.hardware)
    return Forecast(
        ttft_ms=times.ttft_ms,
        ttft_p95_ms=times.ttft_p95_ms,
        tpot_ms=times.tpot_ms,
        request_ms=times.request_ms,
        output_tokens_per_s=rate,
        slowest_tokens_per_s=ends[0],
        fastest_tokens_per_s=ends[1],
        in_flight=in_flight,
        cost=cost_per_million(setting, rate),
        label=label,
        band=_band(setting),
    )


@dataclass(frozen=True)
class ReplicaPace:
    """Times on one copy of the model, whose pipeline stages work on micro-batches of what is in flight."""

    setting: Setting
    load: Load

    @property
    def host(self) -> HostShare:
        return ENGINES[self.setting.engine].host

    @property
    def arrival_ms(self) -> float:
        return self.host.arrival_ms + self.host.prompt_token_us * self.load.prompt / 1e3

    @property
    def most_together(self) -> int:
        return max(1, (self.load.chunk or PROMPT_TOKENS) // self.load.new_tokens)

    def together(self, sequences: int) -> int:
        """Prompts that go into one iteration."""
        return max(1, min(sequences, self.most_together))

    @cached_property
    def own_prompt_ms(self) -> float:
        return _known(prompt_ms(self.setting, self.load)) + self.host.request_us / 1e3

    def others_prompt_ms(self, sequences: int) -> float:
        """How long another request's prompt holds up this one, where this many are in flight.

        They started together, so their prompts follow each other through the stages of a pipeline, which they fill.
        """
        together = self.together(sequences)
        forwards = -(-sequences // together) * max(1.0, self._pieces)
        share = min(1.0, self._longest_stage * (1 + (self.setting.layout.pp - 1) / forwards))
        return self._prompt_ms(together, share)

    def prompt_ms_each(self, together: int, sequences: int) -> float:
        """The time of a prompt among this many in one iteration, where requests arrive at random."""
        return self._prompt_ms(together, self._stage_share_of_arrivals(sequences))

    def _prompt_ms(self, together: int, stage_share: float) -> float:
        packed = self.load if together == 1 else replace(self.load, chunk=None)
        each = _known(prompt_ms(self.setting, packed, batch=together)) / together
        return each * stage_share + self.host.request_us / 1e3

    def step_ms(self, sequences: int) -> float:
        """A token for each of this many sequences. A pipeline holds as many micro-batches as it has stages.

        A micro-batch passes all stages before its next token; a stage that is longer than its share sets the pace.
        """
        parts = min(self.setting.layout.pp, sequences)
        through = _known(token_ms(self.setting, self.load, batch=-(-sequences // parts)))
        return through * max(1.0, parts * self._longest_stage) * (1 + STAGE_WAIT * (parts - 1))

    @property
    def _pieces(self) -> float:
        """Forwards that a prompt is computed in."""
        return self.load.new_tokens / (self.load.chunk or PROMPT_TOKENS)

    @property
    def _longest_stage(self) -> float:
        """The share of the layers in the longest stage."""
        layers, pp = self.setting.model.decoder.layers, self.setting.layout.pp
        return -(-layers // pp) / layers

    def _stage_share_of_arrivals(self, sequences: int) -> float:
        """How much of a prompt's time others wait for it: a stage's share, and the bubbles in the other stages.

        A micro-batch with a prompt takes longer than those without, which wait for it at every stage. The more prompts
        there are in the time of a token, the more evenly they lie over the micro-batches: the fullest one of `pp` is
        taken from the spread of random arrivals.
        """
        pp = self.setting.layout.pp
        if pp == 1:
            return 1.0
        per_step = sequences / self.load.output * max(1.0, self._pieces)
        return min(1.0, self._longest_stage + math.sqrt(2 * math.log(pp) / (pp * per_step)))


def _known(value: float | None) -> float:
    """A time of which it was asked before whether the device's rates are known."""
    assert value is not None
    return value


def label_of(hardware: HardwareSection) -> str:
    rates = rates_of(hardware)
    return TRANSFERRED if rates is None else rates.label


def cost_per_million(setting: Setting, tokens_per_s: float) -> float | None:
    price = setting.hardware.price_per_hour
    return None if price is None else price * setting.layout.devices / (tokens_per_s * 3600) * 1e6

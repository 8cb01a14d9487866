"""The requests before a load: they wake the server, and measure how many of its tokens a synthetic word has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.errors import ConfigError, ToolError
from llm_perf_opt.pipeline.bench.bench_config import BenchConfig
from llm_perf_opt.serving.client.request import RequestTemplate
from llm_perf_opt.serving.engine import RunningServer
from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.load_run import send_one_by_one
from llm_perf_opt.serving.schedule import levels_of
from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection
from llm_perf_opt.serving.traffic.recorded_traffic import TraceSession, TraceTraffic, TraceTurn
from llm_perf_opt.serving.traffic.sessions import Traffic, Turn
from llm_perf_opt.serving.traffic.synthetic import PROBE_WORDS, SyntheticTraffic, made_up, words_for
from llm_perf_opt.serving.traffic.traffic_files import read_traffic_file
from llm_perf_opt.workload.dataset import TOKENS, list_samples

# Where the server does not count tokens: about right for English.
CHARACTERS_PER_TOKEN = 4.0
NO_PROMPT_COUNT = "the server does not report how many tokens a prompt has: one word was counted as one token"
NO_OUTPUT_COUNT = "the server does not report how many tokens it made: events of the stream were counted"


@dataclass(frozen=True, kw_only=True)
class WarmServer:
    """What warming up found out: how to ask, and what to send."""

    template: RequestTemplate
    traffic: Traffic
    notes: tuple[str, ...] = ()

    def levels(self, load: LoadSection) -> tuple[LoadLevel, ...]:
        return levels_of(load, self.traffic)

    def traffic_of(self, key: str) -> Traffic:
        """The traffic of one level; synthetic prompts differ from those of the level before, which may be cached."""
        if isinstance(self.traffic, SyntheticTraffic):
            return replace(self.traffic, seed=f"{self.traffic.seed}-{key}")
        return self.traffic


def read_traffic(config: BenchConfig) -> tuple[TraceSession, ...]:
    """The sessions of a file, or the user's own prompts; none where prompts are made up."""
    section = config.traffic
    if section.format is not None and section.path is not None:
        sessions = read_traffic_file(Path(section.path), section.format, most_turns=section.turns)
        if config.load.arrival == "recorded" and any(session.at_s is None for session in sessions):
            raise ConfigError(f"load.arrival: {section.path} does not hold the time of every request, allowed: poisson")
        return sessions
    if config.dataset.kind != "prompts":
        return ()
    samples = list_samples(config.dataset, data_kind=TOKENS, vocabulary=None, scratch_dir=config.run_dir)
    return tuple(TraceSession(turns=(TraceTurn(text=sample.text or ""),)) for sample in samples)


def warm_up(
    config: BenchConfig, server: RunningServer, recorded: Sequence[TraceSession], clean: Callable[[str], str]
) -> WarmServer:
    """Send the first requests; `recorded` are the sessions of a file, empty for synthetic prompts."""
    load = config.load
    most_s = load.duration_s + load.drain_s
    template = RequestTemplate(
        model=server.model,
        api=load.api,
        output_tokens=load.output_tokens,
        temperature=load.temperature,
        seed=load.seed,
        ignore_eos=load.ignore_eos and server.section.ignore_eos,
    )
    notes: list[str] = []
    probe_tokens = None
    if needs_probe(recorded):
        short = replace(template, output_tokens=1)
        turn = Turn(text=made_up(PROBE_WORDS, "probe"))
        (probe,) = send_one_by_one(server.target, short, [turn], stall_s=load.stall_s, most_s=most_s)
        _require_answer(probe, server, clean)
        probe_tokens = probe.prompt_tokens
        if not probe_tokens:
            notes.append(NO_PROMPT_COUNT)
    traffic = _traffic(config, recorded, probe_tokens)
    # Numbers no measured request has, so that nothing is in a cache already; recorded texts are sent later, and once.
    turns = [traffic.session(-1 - number).turns[0] for number in range(load.warmup_requests)]
    turns = [unlike(turn, f"warm-up-{number}") for number, turn in enumerate(turns)] if recorded else turns
    for record in send_one_by_one(server.target, template, turns, stall_s=load.stall_s, most_s=most_s):
        _require_answer(record, server, clean)
        if record.counted_by == "events" and NO_OUTPUT_COUNT not in notes:
            notes.append(NO_OUTPUT_COUNT)
    return WarmServer(template=template, traffic=traffic, notes=tuple(notes))


def unlike(turn: Turn, seed: str) -> Turn:
    """A request as long as this one with its own text."""
    letters = len(made_up(PROBE_WORDS, "probe")) / PROBE_WORDS
    return replace(turn, text=made_up(max(1, round(len(turn.text) / letters)), seed))


def needs_probe(recorded: Sequence[TraceSession]) -> bool:
    """Whether texts have to be made up, or their length estimated."""
    turns = (turn for session in recorded for turn in session.turns)
    return not recorded or any(turn.text is None or (turn.reply and not turn.output_tokens) for turn in turns)


def _traffic(config: BenchConfig, recorded: Sequence[TraceSession], probe_tokens: int | None) -> Traffic:
    section, seed = config.traffic, str(config.dataset.seed)
    if recorded:
        letters = len(made_up(PROBE_WORDS, "probe"))
        return TraceTraffic(
            sessions=recorded,
            words_per_token=PROBE_WORDS / probe_tokens if probe_tokens else 1.0,
            characters_per_token=letters / probe_tokens if probe_tokens else CHARACTERS_PER_TOKEN,
            seed=seed,
        )
    return SyntheticTraffic(
        words=words_for(config.dataset.prompt_tokens, probe_tokens=probe_tokens),
        seed=seed,
        shared_words=words_for(section.shared_prefix_tokens, probe_tokens=probe_tokens)
        if section.shared_prefix_tokens
        else 0,
        groups=section.shared_prefix_groups,
        turns=section.turns or 1,
        think_s=section.think_s,
        images=section.images,
        image_size=section.image_size,
    )


def _require_answer(record: RequestRecord, server: RunningServer, clean: Callable[[str], str]) -> None:
    if record.status == "ok":
        return
    dead = server.target.trouble()
    raise ToolError(f"warm-up: {clean(dead or record.error or '')} ({server.target.url}, model {server.model!r})")

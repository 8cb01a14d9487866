"""One start of a server in a search, without starting one: its command, its figures, its answers, and the journal."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from llm_perf_opt.errors import ConfigError, ToolError
from llm_perf_opt.optimize.server.server_document import OptionSetting, StartOutcome
from llm_perf_opt.optimize.server.server_outputs import ServedAnswer, ServedReference, ServedToken
from llm_perf_opt.optimize.server.server_search import ServerSearch, StartRequest
from llm_perf_opt.optimize.server.space import START, OptionChoice, ServerOption, ServerSpace
from llm_perf_opt.pipeline.bench.bench_config import BenchConfig, read_config
from llm_perf_opt.pipeline.console import make_console
from llm_perf_opt.pipeline.optimize.server.answer_check import ask_answers, read_answer
from llm_perf_opt.pipeline.optimize.server.evaluate import ServerEvaluator, configured, facts_of, metrics_of
from llm_perf_opt.pipeline.optimize.server.server_journal import (
    StartJournal,
    digest_of,
    read_reference,
    write_reference,
)
from llm_perf_opt.pipeline.optimize.server.server_run import ServerOptimizer
from llm_perf_opt.serving.client.request import RequestTemplate
from llm_perf_opt.serving.counters import CounterSample
from llm_perf_opt.serving.engine import build_server_cmd
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import level_result
from llm_perf_opt.serving.load_run import Target
from llm_perf_opt.serving.serving_config import LoadLevel, ServerSection, SloSection
from llm_perf_opt.serving.traffic.sessions import Turn
from llm_perf_opt.system.redact import Redactor
from tests.support.schemas import valid_file
from tests.support.simulated_tuning import SPACE as SIMULATED
from tests.support.simulated_tuning import SimulatedServer
from tests.support.tuned_server import TunedServer

SPACE = ServerSpace(
    options=(
        ServerOption(id="seqs", flag="--seqs", choices=(OptionChoice(value=512),)),
        ServerOption(id="threads", variable="THREADS", choices=(OptionChoice(value=2),)),
    )
)
BOTH = (OptionSetting(option="seqs", value="512"), OptionSetting(option="threads", value="2"))


@pytest.mark.parametrize(
    ("command", "args", "words"),
    [
        (
            ("serve", "{args}", "--port", "{port}"),
            ("m", "--seqs", "8"),
            ["serve", "m", "--seqs", "512", "--port", "80"],
        ),
        (("serve", "--seqs=8", "--port", "{port}"), (), ["serve", "--port", "80", "--seqs", "512"]),
    ],
)
def test_settings_stand_where_the_arguments_do_or_at_the_end(
    command: tuple[str, ...], args: tuple[str, ...], words: list[str]
) -> None:
    section = ServerSection(name="mine", command=command, args=args, env={"A": "1"})
    found = configured(section, SPACE, BOTH)
    assert build_server_cmd(found, port=80) == words
    assert dict(found.env) == {"A": "1", "THREADS": "2"}
    assert configured(section, SPACE, START) == section


def record(index: int, *, ttft_s: float, latency_s: float) -> RequestRecord:
    return RequestRecord(
        index=index,
        started_s=float(index),
        status="ok",
        ttft_s=ttft_s,
        latency_s=latency_s,
        gaps_s=(latency_s - ttft_s,),
        output_tokens=2,
    )


def test_the_figures_of_a_level_are_objectives_and_evidence() -> None:
    slo = SloSection(ttft_ms=100, tpot_ms=500)
    run = LoadRun(level=LoadLevel(concurrency=2), duration_s=10.0, ended_s=10.0)
    run.records += [record(0, ttft_s=0.2, latency_s=0.4), record(1, ttft_s=0.3, latency_s=0.9)]
    run.counters += [
        CounterSample(at_s=1.0, values={"waiting": 3.0, "KV cache use": 0.95, "preemptions": 1.0}),
        CounterSample(at_s=9.0, values={"waiting": 5.0, "KV cache use": 0.5, "preemptions": 4.0}),
    ]
    level = level_result(run, slo)
    assert metrics_of(level, plain=True)["goodput"] == 0.0
    found = metrics_of(level)
    # No request was good: half of one in ten seconds.
    assert found["goodput"] == 0.05
    assert (found["requests_per_s"], found["tokens_per_s"], found["ttft_ms"]) == pytest.approx((0.2, 0.4, 250.0))
    facts = facts_of(run, level, slo)
    assert (facts.preemptions, facts.kv_cache_most, facts.waiting_mean, facts.missed) == (3.0, 0.95, 4.0, "ttft")
    assert facts.gpu_busy is None and len(facts.requests) == 2
    # One of the two may miss it: then no limit binds.
    assert facts_of(run, level, SloSection(ttft_ms=250, share=0.5)).missed is None


@contextmanager
def tuned_server() -> Iterator[Target]:
    server = TunedServer(("127.0.0.1", 0), step_s=0.0, first_word=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield Target(url=url, headers={}, metrics_path=None, trouble=lambda: None)
    finally:
        server.shutdown()
        server.server_close()


TEMPLATE = RequestTemplate(model="tuned", api="completions", output_tokens=4, temperature=0.0, seed=0, ignore_eos=False)


def test_answers_come_with_their_tokens_and_log_probabilities() -> None:
    with tuned_server() as target:
        answers = ask_answers(target, TEMPLATE, [Turn(text="one"), Turn(text="two")], most_s=30.0)
    assert len(answers) == 2 and answers[0] == answers[1]
    assert answers[0].tokens[0] == ServedToken(text="a", logprob=-0.5, others={"a": -0.5, "z": -3.0})
    assert len(answers[0].tokens) == 32


def test_a_server_that_is_gone_is_named() -> None:
    target = Target(url="http://127.0.0.1:1", headers={}, metrics_path=None, trouble=lambda: None)
    with pytest.raises(ToolError, match="the answers that are compared could not be fetched"):
        ask_answers(target, TEMPLATE, [Turn(text="one")], most_s=5.0)


def test_answers_of_chats_and_answers_without_tokens_are_read() -> None:
    token = {"token": "a", "logprob": -0.1, "top_logprobs": [{"token": "b", "logprob": -2.0}]}
    chat = {"choices": [{"message": {"content": "a"}, "logprobs": {"content": [token]}}]}
    assert read_answer(json.dumps(chat).encode()) == ServedAnswer(
        text="a", tokens=(ServedToken(text="a", logprob=-0.1, others={"b": -2.0}),)
    )
    plain = {"choices": [{"message": {"content": "a b"}, "logprobs": None}]}
    assert read_answer(json.dumps(plain).encode()) == ServedAnswer(text="a b")


def outcome(value: float) -> StartOutcome:
    return StartOutcome(configuration=BOTH, purpose="screen", status="ok", metrics={"goodput": value}, spent_s=value)


def test_a_journal_gives_back_each_start_once_and_keeps_no_secret(tmp_path: Path) -> None:
    digest, redactor = digest_of(SPACE, "goodput"), Redactor(values=("hunter22hunter22",))
    journal = StartJournal(tmp_path, digest, redactor, resumes=False)
    journal.keep(outcome(1.0))
    journal.keep(StartOutcome(configuration=START, purpose="start", status="failed", reason="key hunter22hunter22"))
    path = tmp_path / "optimize_server.journal.jsonl"
    assert b"hunter22" not in path.read_bytes()
    # Killed while it wrote the next line.
    path.write_bytes(path.read_bytes() + b'{"configuration": [')
    again = StartJournal(tmp_path, digest, redactor, resumes=True)
    request = StartRequest(configuration=BOTH, purpose="screen")
    assert again.earlier(request) == outcome(1.0)
    assert (again.earlier(request), again.replayed) == (None, 1)
    with pytest.raises(ConfigError, match="holds another search"):
        StartJournal(tmp_path, digest_of(SPACE, "ttft_ms"), redactor, resumes=True)
    with pytest.raises(ConfigError, match="cannot be read"):
        StartJournal(tmp_path / "none", digest, redactor, resumes=True)


def test_what_is_appended_after_a_cut_line_is_read_again(tmp_path: Path) -> None:
    digest, redactor = digest_of(SPACE), Redactor()
    StartJournal(tmp_path, digest, redactor, resumes=False)
    path = tmp_path / "optimize_server.journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"configuration": [')
    StartJournal(tmp_path, digest, redactor, resumes=True).keep(outcome(2.0))
    third = StartJournal(tmp_path, digest, redactor, resumes=True)
    assert third.earlier(StartRequest(configuration=BOTH, purpose="screen")) == outcome(2.0)


def test_the_answers_of_the_start_outlive_an_interrupt(tmp_path: Path) -> None:
    assert read_reference(tmp_path) is None
    one = ServedAnswer(text="a", tokens=(ServedToken(text="a", logprob=-0.5, others={"a": -0.5}),))
    reference = ServedReference(answers=(one,), again=(one,))
    write_reference(tmp_path, reference)
    assert read_reference(tmp_path) == reference


@dataclass(kw_only=True)
class SimulatedEvaluator(ServerEvaluator):
    """Starts that take no time; `stops_after` of them it is interrupted."""

    server: SimulatedServer
    stops_after: int = 10**6

    def start(self, request: StartRequest, number: int, *, until: float) -> StartOutcome:
        if len(self.server.asked) >= self.stops_after:
            raise KeyboardInterrupt
        return self.server.start(request)


def search_in(folder: Path, config: BenchConfig, *, stops_after: int = 10**6, resumes: bool = False) -> ServerOptimizer:
    console = make_console()
    evaluator = SimulatedEvaluator(
        config=config,
        space=SIMULATED,
        objective="goodput",
        folder=folder / "starts",
        redactor=Redactor(),
        console=console,
        recorded=(),
        gpus=(),
        min_top1=0.9,
        server=SimulatedServer(7),
        stops_after=stops_after,
    )
    return ServerOptimizer(
        evaluator=evaluator,
        space=SIMULATED,
        search=ServerSearch(objective="goodput", most_starts=25),
        journal=StartJournal(folder, "digest", Redactor(), resumes=resumes),
        folder=folder,
        console=console,
        redactor=Redactor(),
        budget_s=600.0,
        constraints=(),
        has_gpu=True,
        lossless=False,
        program="simulated",
        began=time.monotonic(),
    )


def test_an_interrupted_search_keeps_its_starts_and_goes_on_without_making_them_again(tmp_path: Path) -> None:
    words = ["server.command=[simulated,--tokens,2048,--sequences,64]", "load.slo.ttft_ms=200"]
    config = read_config(words, user_dir=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        search_in(tmp_path, config, stops_after=5).run()
    left = valid_file("optimize_server", tmp_path / "optimize_server.json")
    assert (left["status"], left["starts"], left["best"]) == ("interrupted", 5, None)
    found = search_in(tmp_path, config, resumes=True).run()
    assert (found.status, found.resumed) == ("done", 5) and 5 < found.starts <= 25
    assert found.best == "tokens=8192, sequences=256" and {one.verdict for one in found.flags} == {"better"}
    assert found.recommendation is not None
    assert found.recommendation.command == "simulated --tokens 8192 --sequences 256"
    assert found.configurations[0].status == "start"
    valid_file("optimize_server", tmp_path / "optimize_server.json")
    lines = (tmp_path / "optimize_server.journal.jsonl").read_bytes().splitlines()
    assert len(lines) == 1 + found.starts
    # All of it is there already: nothing is started again.
    again = search_in(tmp_path, config, resumes=True, stops_after=0).run()
    assert (again.resumed, again.best) == (found.starts, found.best)

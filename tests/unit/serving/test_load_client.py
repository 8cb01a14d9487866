"""The load client against servers that break the rules, and what it does not print or store."""

import asyncio
import multiprocessing
import time
from pathlib import Path

import pytest

from llm_perf_opt.errors import ToolError
from llm_perf_opt.serving.client.exchange import NoAnswer, exchange
from llm_perf_opt.serving.client.lag import LagMeter, LoopLag, joined
from llm_perf_opt.serving.client.protocol import Share
from llm_perf_opt.serving.client.request import RequestTemplate
from llm_perf_opt.serving.client.stream import EventStream
from llm_perf_opt.serving.client.worker import _Worker
from llm_perf_opt.serving.engine import ServerPlace, find_model, running_server, server_address
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_run import Target, run_level, send_one_by_one
from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection, ServerSection
from llm_perf_opt.serving.traffic.recorded_traffic import TraceSession, TraceTraffic, TraceTurn
from llm_perf_opt.serving.traffic.sessions import Turn
from llm_perf_opt.serving.traffic.synthetic import SyntheticTraffic
from llm_perf_opt.system.redact import Redactor
from tests.support.fake_server import fake_server
from tests.support.hostile_server import STREAMS, hostile_server

TEMPLATE = RequestTemplate(model="m", api="completions", output_tokens=8, temperature=0.0, seed=0, ignore_eos=False)
EARLY = "the stream ended early, after 2 events: no [DONE], finish_reason or usage"
SILENT = "silent for longer than load.stall_s "
ERRORS = {
    "cut": EARLY,
    "cut_with_usage": EARLY,
    "cut_and_closed": EARLY,
    "cut_chunk": "the connection failed (ClientPayloadError: Response payload is not completed",
    "negative_usage": "the stream is not valid (usage.completion_tokens is not a number of tokens (got -7))",
    "huge_usage": (
        "the stream is not valid (usage.completion_tokens is impossible (got 1e+15, the request allows 80 at most))"
    ),
    "text_usage": "the stream is not valid (Expected `int | float | null`, got `str` - at `$.usage.completion_tokens`)",
    "endless_tokens": "the stream is not valid (more than 1,064 events for max_tokens=8)",
    "pings": SILENT + "in the middle of the stream",
    "endless_error": "HTTP 500: xxxxxxxx",
    "error_bomb": "HTTP 500: ",
    "packed_stream": "the stream is not valid (it is compressed with 'gzip', which was not asked for)",
    "long_line": "the stream is not valid (a line of more than 1 MiB)",
    "bad_chunks": "the connection failed (",
    "bad_chunk_later": "the connection failed (",
    "html": "the stream ended without a token",
    "slow_headers": SILENT + "before the first token",
    "endless_headers": "the connection failed (",
    "endless_continue": SILENT + "before the first token",
    "deep_event": "the stream is not valid (",
    "to_a_file": "HTTP 307: a redirect to file:///etc/passwd, which is not followed",
    "html_error": "HTTP 502 Bad Gateway, with a page for people",
    "not_a_stream": "the stream ended without a token (its content type is application/json)",
    "not_http": "the connection failed (not valid HTTP: Bad status line: ",
}


def _target(url: str, redactor: Redactor | None = None, headers: dict[str, str] | None = None) -> Target:
    clean = Redactor() if redactor is None else redactor
    return Target(url=url, headers=headers or {}, metrics_path=None, trouble=lambda: None, redactor=clean)


def _send(url: str, *texts: str, stall_s: float = 0.4, most_s: float = 20) -> list[RequestRecord]:
    turns = [Turn(text=text) for text in texts]
    return send_one_by_one(_target(url), TEMPLATE, turns, stall_s=stall_s, most_s=most_s)


def test_every_hostile_stream_is_tried() -> None:
    assert STREAMS.keys() - ERRORS.keys() == {"floats", "two_lines", "closes_after_each"}


@pytest.mark.parametrize("mode", ERRORS)
def test_a_hostile_server_ends_in_a_failed_request_that_says_why(mode: str) -> None:
    begun = time.monotonic()
    with hostile_server(mode) as server:
        (record,) = _send(server.url, "a", stall_s=0.4 if ERRORS[mode].startswith(SILENT) else 30.0)
    assert (record.status, (record.error or "")[: len(ERRORS[mode])]) == ("failed", ERRORS[mode])
    assert len(record.error or "") <= 200 and time.monotonic() - begun < 15


@pytest.mark.parametrize(("mode", "tokens"), [("floats", 64), ("two_lines", 1)])
def test_whole_numbers_as_floats_and_events_of_several_lines_are_read(mode: str, tokens: int) -> None:
    with hostile_server(mode) as server:
        (record,) = _send(server.url, "a")
    assert (record.status, record.error, record.output_tokens) == ("ok", None, tokens)


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        ("endless_page", "its answer is longer than 4 MiB"),
        ("page_bomb", "its answer is longer than 4 MiB"),
        ("torn_page", "its answer is not what its Content-Encoding says ("),
        ("deep_page", "is not a list of models"),
        ("html_page", "is not a list of models (text/html)"),
        ("moved_page", "answers HTTP 302 a redirect to http://127.0.0.2:1/login, which is not followed"),
        ("slow_page", "no whole answer within 0.5 s"),
        ("long_name", "2,000,000 characters"),
    ],
)
def test_a_hostile_list_of_models_is_bounded(mode: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_perf_opt.serving.engine.LIST_S", 0.5 if mode == "slow_page" else 20)
    with hostile_server(mode) as server, pytest.raises(ToolError) as raised:
        find_model(ServerSection(name="x", url=server.url), _target(server.url))
    assert why in str(raised.value) and "server.model=" in str(raised.value)


def test_a_list_of_models_that_asks_for_a_key_says_where_to_give_it() -> None:
    with hostile_server("locked_page") as server, pytest.raises(ToolError) as raised:
        find_model(ServerSection(name="x", url=server.url), _target(server.url, Redactor.of({"MY_KEY": "sk-Ab3dEf6h"})))
    assert str(raised.value) == (
        f"{server.url}/v1/models answers HTTP 401 Incorrect API key: (redacted); "
        "give its key with server.api_key_env=VARIABLE"
    )


def test_a_page_that_is_too_long_is_not_said_to_be_no_answer(tmp_path: Path) -> None:
    place = ServerPlace(out_dir=tmp_path, cwd=tmp_path, environ={}, redactor=Redactor(), say=print)
    with hostile_server("endless_page") as server:
        section = ServerSection(name="x", url=server.url, ready_timeout_s=0.2, ready_path="/v1/models")
        with pytest.raises(ToolError, match=r"ready_timeout_s\), its answer is longer than 1 MiB; "):
            running_server(section, place).__enter__()


def test_a_connection_that_the_server_closed_meanwhile_is_no_failure() -> None:
    with hostile_server("closes_after_each") as server:
        records = _send(server.url, *"abcdef")
    assert [(record.status, record.error) for record in records] == [("ok", None)] * 6


def test_a_short_request_to_nobody_says_so() -> None:
    with pytest.raises(NoAnswer, match="ClientConnectorError: Connection refused"):
        exchange("http://127.0.0.1:9/health", headers={}, timeout_s=5, most_bytes=100)


def test_a_request_of_the_warm_up_ends_in_time() -> None:
    with fake_server(gap_s=0.2) as server:
        (record,) = _send(server.url, "a", stall_s=5, most_s=0.5)
    assert record.error == "the request had not ended after 0.5 s (load.duration_s + load.drain_s)"


def test_a_key_that_a_server_repeats_is_removed_before_the_error_is_cut() -> None:
    key = "sk-" + "Ab3dEf6h" * 5
    redactor = Redactor.of({"MY_KEY": key})
    headers = {"Authorization": f"Bearer {key}"}
    # The key begins before the 200th character and ends behind it, or both lie before it.
    with fake_server(fault="echoes") as server:
        for length in (100, 140, 150, 156):
            target = _target(server.url, redactor, headers)
            (record,) = send_one_by_one(target, TEMPLATE, [Turn(text="x" * length)], stall_s=5, most_s=5)
            assert record.error is not None and record.error.endswith("wrong key: Bearer (redacted)")


def test_the_password_of_an_address_goes_into_a_header() -> None:
    assert server_address("http://bob:p%40ss@[::1]:8000/v1/") == (
        "http://[::1]:8000",
        {"Authorization": "Basic Ym9iOnBAc3M="},
    )
    assert server_address("https://a.example/base") == ("https://a.example/base", {})


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_a_stream_is_read_however_it_is_cut(size: int) -> None:
    lines = ['data: {"choices": [{"text": "\\u00e9\u00e9"}]}\r', "\r", ": a comment", "", "event: x"]
    # The next two have no empty line between them, as some servers send them.
    lines += ['data:{"choices": [{"text": ""}]}', 'data: {"choices": [], "usage": {"completion_tokens": 2}}']
    data = "\n".join(lines).encode()
    stream = EventStream(0.0)
    # Every piece arrives a second after the one before.
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert not any(stream.feed(piece, 1.0 + number) for number, piece in enumerate(pieces))
    stream.end(1.0 + len(pieces))
    assert (stream.prompt_tokens, stream.output_tokens, stream.is_whole, len(stream.gaps)) == (None, 2, True, 1)
    if size == 4096:
        assert (stream.ttft, stream.gaps) == (1.0, [1.0])
    assert stream.feed(b"\ndata: [DONE]\n\n", 99.0)


def test_the_lag_of_a_blocked_loop_is_that_of_an_event_at_any_time() -> None:
    meter = LagMeter()
    for _ in range(50):
        meter.add(0.0, period_s=0.1)
    # Blocked for a second: what would have come at each tenth of it had to wait for the rest.
    meter.add(1.0, period_s=0.1)
    found = meter.result()
    assert found is not None
    assert (found.n, found.most_s) == (61, 1.0)
    assert found.mean_s == pytest.approx(sum(range(11)) / 10 / 61)
    assert found.p99_s == pytest.approx(1.0, rel=0.02)
    assert LagMeter().result() is None
    other = LoopLag(mean_s=0.0, p99_s=0.0, most_s=0.0, n=61)
    assert joined([found, other]) == LoopLag(mean_s=found.mean_s / 2, p99_s=found.p99_s, most_s=1.0, n=122)


def _run(url: str, load: LoadSection, traffic: SyntheticTraffic | TraceTraffic) -> LoadRun:
    level = LoadLevel(concurrency=(load.concurrency or (1,))[0]) if load.rate is None else LoadLevel(rate=load.rate[0])
    return run_level(LoadRun(level=level), _target(url), TEMPLATE, traffic, load)


def test_a_connection_that_is_closed_after_the_end_of_a_share_is_no_error() -> None:
    ours, theirs = multiprocessing.Pipe()
    share = Share(
        number=0,
        processes=1,
        url="http://127.0.0.1:1",
        headers={},
        template=TEMPLATE,
        traffic=SyntheticTraffic(words=4),
        load=LoadSection(),
        level=LoadLevel(concurrency=1),
        arrivals=(),
        redactor=Redactor(),
    )
    loop = asyncio.new_event_loop()
    loop.close()
    ours.close()
    _Worker(share, None, theirs)._listen(loop)


def test_several_processes_share_one_load() -> None:
    load = LoadSection(concurrency=(5,), requests=30, duration_s=60, processes=2)
    with fake_server() as server:
        run = _run(server.url, load, SyntheticTraffic(words=4))
        prompts = [one["prompt"] for one in server.asked]
    assert (run.processes, run.stopped, len(set(prompts))) == (2, None, 30)
    assert sorted(record.index for record in run.records) == list(range(30))
    assert run.lag is not None and run.lag.n > 0


def test_a_session_sends_its_turns_one_after_the_other_with_the_answers_between() -> None:
    turns = (TraceTurn(text="one"), TraceTurn(text="two", think_s=0.05, output_tokens=2), TraceTurn(text="three"))
    chat = RequestTemplate(model="m", api="chat", output_tokens=3, temperature=0.0, seed=0, ignore_eos=False)
    traffic = TraceTraffic(sessions=[TraceSession(turns=turns, system="be brief")])
    load = LoadSection(concurrency=(1,), requests=3, duration_s=60)
    with fake_server() as server:
        run = run_level(LoadRun(level=LoadLevel(concurrency=1)), _target(server.url), chat, traffic, load)
        asked = [one["messages"] for one in server.asked]
        lengths = [one["max_tokens"] for one in server.asked]
    assert [(record.index, record.turn, record.status) for record in run.records] == [
        (0, 0, "ok"),
        (1, 1, "ok"),
        (2, 2, "ok"),
    ]
    assert [[(m["role"], m["content"]) for m in messages] for messages in asked] == [
        [("system", "be brief"), ("user", "one")],
        [("system", "be brief"), ("user", "one"), ("assistant", "a a a "), ("user", "two")],
        [
            ("system", "be brief"),
            *[("user", "one"), ("assistant", "a a a "), ("user", "two"), ("assistant", "a a ")],
            ("user", "three"),
        ],
    ]
    assert lengths == [3, 2, 3]
    assert run.records[1].started_s - run.records[0].started_s - (run.records[0].latency_s or 0) >= 0.045


def test_requests_of_the_ramp_up_are_not_counted() -> None:
    load = LoadSection(rate=(40.0,), arrival="constant", requests=10, duration_s=60, ramp_up_s=0.5)
    with fake_server() as server:
        run = _run(server.url, load, SyntheticTraffic(words=4))
    # The rate grows evenly to 40 a second in half a second: ten requests, and then ten at that rate.
    assert [record.is_ramp for record in run.records] == [True] * 10 + [False] * 10
    assert 0.2 < run.duration_s < 0.75


def test_a_stream_waits_as_long_as_the_server_asks_for() -> None:
    load = LoadSection(concurrency=(1,), requests=2, duration_s=60)
    with fake_server(fault="busy") as server:
        run = _run(server.url, load, SyntheticTraffic(words=4))
    assert [record.error for record in run.records] == ['HTTP 429: {"error": "busy"}', None]
    assert run.records[1].started_s - run.records[0].started_s >= 1.0

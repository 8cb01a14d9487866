"""A server under load, measured from outside: definitions, schedules, the client, and what a bad server does to it."""

import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.sections import SectionTable
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.bench.bench_config import read_config
from llm_perf_opt.report.sections.served_load import bench_metrics, bench_sections, shown_level
from llm_perf_opt.serving.capacity import over_saturation
from llm_perf_opt.serving.client.lag import LoopLag
from llm_perf_opt.serving.client.request import RequestTemplate
from llm_perf_opt.serving.counters import CounterSample, ServerCounter, parse_counters, summarise_counters
from llm_perf_opt.serving.engine import build_server_cmd, model_in, server_environment, with_program
from llm_perf_opt.serving.load_records import LoadRun, RequestRecord
from llm_perf_opt.serving.load_results import (
    BenchDocument,
    LatencyFigures,
    LevelResult,
    keeps_to,
    latency_figures,
    level_result,
)
from llm_perf_opt.serving.load_run import Target, run_level, send_one_by_one
from llm_perf_opt.serving.schedule import arrival_times
from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection, ServerSection, SloSection
from llm_perf_opt.serving.traffic.recorded_traffic import TraceSession, TraceTraffic, TraceTurn
from llm_perf_opt.serving.traffic.sessions import Turn
from llm_perf_opt.serving.traffic.synthetic import SyntheticTraffic, made_up, words_for
from tests.support.fake_server import METRICS, FakeServer, fake_server

pytestmark = pytest.mark.slow

ASK = RequestTemplate(model="fake", api="completions", output_tokens=5, temperature=0.0, seed=0, ignore_eos=True)


def _target(server: FakeServer, trouble: Callable[[], str | None] = lambda: None) -> Target:
    return Target(url=server.url, headers={}, metrics_path="/metrics", trouble=trouble)


def _one_by_one(
    server: FakeServer, texts: list[str], *, stall_s: float, template: RequestTemplate = ASK
) -> list[RequestRecord]:
    turns = [Turn(text=text) for text in texts]
    return send_one_by_one(_target(server), template, turns, stall_s=stall_s, most_s=60)


def _ok(index: int, started_s: float, ttft_s: float, gaps_s: tuple[float, ...], tokens: int) -> RequestRecord:
    return RequestRecord(
        index=index,
        started_s=started_s,
        status="ok",
        ttft_s=ttft_s,
        latency_s=ttft_s + sum(gaps_s),
        gaps_s=gaps_s,
        prompt_tokens=10,
        output_tokens=tokens,
        counted_by="usage",
    )


RECORDS = [
    _ok(0, 0.0, 0.1, (0.02, 0.04), 3),
    _ok(1, 0.1, 0.3, (0.03,), 4),
    _ok(2, 2.0, 0.2, (), 1),
    RequestRecord(index=3, started_s=2.1, status="failed", error="HTTP 500"),
    RequestRecord(index=4, started_s=2.2, status="unfinished", error="under way when the load ended"),
]


def test_figures_are_those_of_vllm_bench_serve() -> None:
    run = LoadRun(level=LoadLevel(rate=2.0), records=RECORDS, duration_s=4.0)
    result = level_result(run, SloSection(ttft_ms=250, tpot_ms=30))
    assert (result.completed, result.failed, result.unfinished, result.sent) == (3, 1, 1, 5)
    assert (result.input_tokens, result.output_tokens) == (30, 8)
    assert (result.requests_per_s, result.output_tokens_per_s, result.total_tokens_per_s) == (0.75, 2.0, 9.5)
    # The first keeps to both limits, the second's TTFT does not; one token has no TPOT, which counts as 0.
    assert result.goodput_per_s == 0.5
    assert result.most_at_once == 2
    assert result.errors == {"HTTP 500": 1, "under way when the load ended": 1}
    medians = {name: figures.median_ms for name, figures in result.latencies.items()}
    assert medians == pytest.approx({"ttft": 200.0, "tpot": (30.0 + 10.0) / 2, "itl": 30.0, "e2el": 200.0})
    assert {name: figures.n for name, figures in result.latencies.items()} == {
        "ttft": 3,
        "tpot": 2,
        "itl": 3,
        "e2el": 3,
    }
    assert result.failed_share == pytest.approx(0.4)


def test_percentiles_and_spread_are_numpys() -> None:
    values = [0.5, 0.1, 0.9, 0.33, 0.41, 0.42, 0.7]
    found = latency_figures(values)
    ms = 1e3 * np.array(values)
    expected = LatencyFigures(
        mean_ms=float(ms.mean()),
        median_ms=float(np.median(ms)),
        p90_ms=float(np.percentile(ms, 90)),
        p99_ms=float(np.percentile(ms, 99)),
        std_ms=float(ms.std()),
        n=7,
    )
    assert found is not None
    assert vars(found) == pytest.approx(vars(expected))
    assert latency_figures([]) is None


def test_goodput_asks_for_every_limit() -> None:
    assert keeps_to(RECORDS[0], SloSection(ttft_ms=100, tpot_ms=30.1, e2el_ms=161))
    assert not keeps_to(RECORDS[0], SloSection(e2el_ms=159))
    assert keeps_to(RECORDS[2], SloSection(tpot_ms=0.001))


def test_arrivals_follow_the_seed_and_both_bounds() -> None:
    constant = arrival_times(4.0, arrival="constant", requests=100, duration_s=1.0, seed=0)
    assert constant == (0.25, 0.5, 0.75, 1.0)
    assert len(arrival_times(0.29, arrival="constant", requests=100, duration_s=100.0, seed=0)) == 29
    assert arrival_times(0.1, arrival="poisson", requests=100, duration_s=5.0, seed=0) == (0.0,)
    drawn = arrival_times(50.0, arrival="poisson", requests=2000, duration_s=1e9, seed=1)
    assert drawn == arrival_times(50.0, arrival="poisson", requests=2000, duration_s=1e9, seed=1)
    assert drawn != arrival_times(50.0, arrival="poisson", requests=2000, duration_s=1e9, seed=2)
    gaps = np.diff(drawn)
    assert len(drawn) == 2000
    # For every seed, as many as the rate says.
    assert [len(arrival_times(4.0, arrival="poisson", requests=999, duration_s=60.0, seed=n)) for n in range(3)] == [
        240
    ] * 3
    # The mean and the standard deviation of exponential gaps are both 1 / rate; 4 standard errors.
    assert abs(gaps.mean() - 0.02) < 4 * 0.02 / math.sqrt(2000)
    assert abs(gaps.std() - 0.02) < 8 * 0.02 / math.sqrt(2000)


def test_a_rate_the_server_does_not_keep_up_with_is_told() -> None:
    slower = [_ok(n, n, 0.1, (0.1 * n,), 2) for n in range(20)]
    steady = [_ok(n, n, 0.1, (0.1,), 2) for n in range(20)]
    over = level_result(LoadRun(level=LoadLevel(rate=1.0), records=slower, duration_s=20.0), SloSection())
    fine = level_result(LoadRun(level=LoadLevel(rate=1.0), records=steady, duration_s=20.0), SloSection())
    # Medians of requests 15 to 19 and of 0 to 4: 1.8 s over 0.3 s.
    assert (round(over.growth or 0, 3), over.is_overloaded) == (6.0, True)
    assert (fine.growth, fine.is_overloaded) == (1.0, False)
    (section,) = bench_sections(BenchDocument(levels=(over,)), source="bench/bench.json")
    assert any(text.startswith("1 requests/s: the server did not keep up.") for text in section.paragraphs)
    assert "serve_growth" in bench_metrics(BenchDocument(levels=(over,)), source="")
    assert "serve_growth" not in bench_metrics(BenchDocument(levels=(fine,)), source="")


def test_tokens_that_come_in_bursts_are_told() -> None:
    burst = [_ok(n, n, 0.08, (0.00001,) * 14 + (0.07,), 16) for n in range(4)]
    even = [_ok(n, n, 0.08, (0.005,) * 15, 16) for n in range(4)]
    # All of a reply lies in the client's buffer, so that its gaps are even, and nothing but the client's own work.
    whole = [_ok(n, n, 0.043, (0.000013,) * 15, 16) for n in range(4)]
    # A long prompt, and then tokens as fast as a server may give them.
    short_tail = [_ok(n, n, 0.08, (0.0004,) * 15, 16) for n in range(4)]
    said = {}
    for name, records in (("burst", burst), ("even", even), ("whole", whole), ("short tail", short_tail)):
        level = level_result(LoadRun(level=LoadLevel(concurrency=1), records=records, duration_s=2.0), SloSection())
        paragraphs = bench_sections(BenchDocument(levels=(level,)), source="")[0].paragraphs
        said[name] = [text for text in paragraphs if "bursts" in text]
    assert said["even"] == said["short tail"] == []
    assert said["whole"][0].startswith(
        "concurrency 1: tokens of a stream arrive in bursts (gaps: median 13.0 µs, mean 13.0 µs)"
    )
    assert said["burst"][0].startswith("concurrency 1: tokens of a stream arrive in bursts (gaps: median 10.0")


def test_an_address_may_end_in_v1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    load = ["load.requests=2", "load.output_tokens=2", "dataset.prompt_tokens=4", "artifacts.runs_dir=r"]
    with fake_server() as server:
        assert main(["bench", f"server.url={server.url}/v1/", *load]) == 0, capsys.readouterr().err
        assert json.loads((tmp_path / "r/bench/bench.json").read_bytes())["server"] == server.url


def test_a_level_whose_client_was_late_is_invalid() -> None:
    # The median TTFT is 200 ms, so that 10 ms are 5 %.
    def level(lag_s: float, records: list[RequestRecord]) -> LevelResult:
        lag = LoopLag(mean_s=lag_s, p99_s=0.3, most_s=0.4, n=100)
        return level_result(LoadRun(level=LoadLevel(rate=2.0), records=records, duration_s=4.0, lag=lag), SloSection())

    sent_late = [replace(record, late_s=0.011) for record in RECORDS[:3]]
    levels = (level(0.0099, RECORDS[:3]), level(0.0101, RECORDS[:3]), level(0.0, sent_late))
    reasons = [
        None,
        "the client's event loop was late by 10.10 ms (p99 300.0 ms), more than 5 % of the median TTFT (200.0 ms)",
        "requests were sent 11.00 ms after their time, more than 5 % of the median TTFT (200.0 ms)",
    ]
    assert [one.invalid for one in levels] == reasons
    said = [bench_sections(BenchDocument(levels=(one,)), source="")[0].paragraphs[2:] for one in levels]
    advice = "Use more load.processes, less load, or another machine for the client."
    assert said == [(), *((f"2 requests/s: invalid, because {reason}. {advice}",) for reason in reasons[1:])]


def test_prompts_differ_by_number_and_come_back_for_the_same_seed() -> None:
    prompts = SyntheticTraffic(words=20, seed="7")
    assert prompts.text(3) == SyntheticTraffic(words=20, seed="7").text(3)
    assert len({prompts.text(n) for n in range(50)}) == 50
    assert len(prompts.text(0).split()) == 20
    recorded = TraceTraffic(sessions=[TraceSession(turns=(TraceTurn(text=text),)) for text in ("a", "b")])
    assert recorded.session(3).turns[0].text == "b"
    assert words_for(1000, probe_tokens=128) == 500
    assert words_for(1000, probe_tokens=None) == 1000


def test_the_page_of_counters_is_read_for_all_engines_of_a_server() -> None:
    values = {"running": 5.0, "waiting": 1.0, "KV cache use": 0.5, "preemptions": 7.0}
    assert parse_counters(METRICS) == values
    assert parse_counters("vllm:num_requests_running NaN\nnonsense\n{}") == {}
    samples = [CounterSample(at_s=0, values=values), CounterSample(at_s=1, values={**values, "preemptions": 9.0})]
    assert summarise_counters(samples)[-1] == ServerCounter(
        name="preemptions", kind="total", mean=8.0, most=9.0, last=2.0
    )


def test_a_closed_loop_sends_what_was_asked_and_counts_what_came() -> None:
    load = LoadSection(concurrency=(4,), requests=20, duration_s=60, output_tokens=5)
    with fake_server() as server:
        run = run_level(LoadRun(level=LoadLevel(concurrency=4)), _target(server), ASK, SyntheticTraffic(words=10), load)
        asked = server.asked
    assert sorted(r.index for r in run.records) == list(range(20))
    assert {(r.status, r.output_tokens, r.prompt_tokens, r.counted_by, len(r.gaps_s)) for r in run.records} == {
        ("ok", 5, 20, "usage", 4)
    }
    assert level_result(run, SloSection()).most_at_once == 4
    assert [sample.values["running"] for sample in run.counters][:1] == [5.0]
    assert run.stopped is None
    body = {k: v for k, v in asked[0].items() if k not in ("prompt", "auth", "id")}
    assert body == {
        "path": "/v1/completions",
        "model": "fake",
        "max_tokens": 5,
        "temperature": 0.0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    assert {one["prompt"] for one in asked} == {SyntheticTraffic(words=10).text(n) for n in range(20)}


def test_an_open_loop_does_not_wait_for_answers() -> None:
    load = LoadSection(rate=(100.0,), arrival="constant", requests=12, duration_s=60)
    with fake_server(gap_s=0.1) as server:
        run = run_level(LoadRun(level=LoadLevel(rate=100.0)), _target(server), ASK, SyntheticTraffic(words=4), load)
    result = level_result(run, SloSection())
    assert (result.completed, result.most_at_once) == (12, 12)


def test_requests_use_connections_that_are_open_already() -> None:
    texts = [f"prompt {n}" for n in range(5)]
    with fake_server() as server:
        records = _one_by_one(server, texts, stall_s=5)
        assert (len(records), server.connections) == (5, 1)


def test_a_stream_that_said_its_last_word_and_stays_open_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llm_perf_opt.serving.client.request.CLOSING_S", 0.05)
    with fake_server(fault="stays_open") as server:
        records = _one_by_one(server, ["a", "b"], stall_s=5)
    assert [(r.status, r.error, r.output_tokens) for r in records] == [("ok", None, 5)] * 2


def test_a_chat_is_timed_from_its_first_word_on() -> None:
    chat = replace(ASK, api="chat", ignore_eos=False)
    with fake_server(usage=False) as server:
        (record,) = _one_by_one(server, ["hello"], stall_s=5, template=chat)
        asked = server.asked[0]
    assert (record.status, record.output_tokens, record.counted_by, len(record.gaps_s)) == ("ok", 5, "events", 4)
    assert asked["messages"] == [{"role": "user", "content": "hello"}]
    assert "ignore_eos" not in asked


def test_a_tenth_of_errors_is_counted_and_the_rest_measured() -> None:
    load = LoadSection(concurrency=(2,), requests=50, duration_s=60)
    with fake_server(fault="every_tenth_500", gap_s=0) as server:
        run = run_level(LoadRun(level=LoadLevel(concurrency=2)), _target(server), ASK, SyntheticTraffic(words=4), load)
    result = level_result(run, SloSection())
    assert (result.completed, result.failed) == (45, 5)
    assert result.errors == {'HTTP 500: {"error": "out of luck"}': 5}


def test_a_stream_that_stalls_is_a_failure_in_words() -> None:
    with fake_server(fault="stalls", gap_s=0) as server:
        records = _one_by_one(server, ["a"] * 4, stall_s=1.0)
    assert [record.status for record in records] == ["ok", "ok", "ok", "failed"]
    assert records[-1].error == "silent for longer than load.stall_s in the middle of the stream"


def test_a_load_ends_in_time_when_streams_do_not() -> None:
    load = LoadSection(concurrency=(3,), requests=50, duration_s=0.2, drain_s=0.5, stall_s=60)
    with fake_server(gap_s=20) as server:
        run = run_level(LoadRun(level=LoadLevel(concurrency=3)), _target(server), ASK, SyntheticTraffic(words=4), load)
    assert [(r.status, r.error) for r in run.records] == [("unfinished", "under way when the load ended")] * 3
    assert run.stopped == "3 requests had not ended 0.5 s (load.drain_s) after the last was sent"


def test_a_server_that_dies_ends_the_load_and_keeps_what_was_measured() -> None:
    load = LoadSection(concurrency=(2,), requests=5000, duration_s=60)
    seen: list[int] = []

    def trouble() -> str | None:
        seen.append(len(server.asked))
        return "the server ended" if len(server.asked) > 10 else None

    with fake_server() as server:
        run = run_level(
            LoadRun(level=LoadLevel(concurrency=2)), _target(server, trouble), ASK, SyntheticTraffic(words=4), load
        )
    assert run.stopped == "the server ended"
    assert 10 <= sum(record.status == "ok" for record in run.records) < 5000
    assert sum(record.status == "unfinished" for record in run.records) <= 2


def test_a_rate_of_a_search_ends_when_it_has_missed_the_slo_whatever_the_rest_does() -> None:
    slo = SloSection(e2el_ms=10.0)
    load = LoadSection(rate=(100.0,), requests=2000, duration_s=60, arrival="constant", output_tokens=4, slo=slo)
    level = LoadLevel(rate=100.0)
    with fake_server(gap_s=0.02) as server:
        run = run_level(
            LoadRun(level=level),
            _target(server),
            ASK,
            SyntheticTraffic(words=4),
            replace(load, requests=1000),
            is_decided=lambda seen: over_saturation(seen, slo, planned=100),
        )
    # 80 ms each. Of the 70 after settling 7 may be bad.
    assert run.cut_short is not None
    assert run.cut_short.endswith(" requests took more than 2 times a limit already, 7 of 70 may")
    assert run.stopped is None and 30 < len(run.records) < 1000
    assert level_result(run, slo).cut_short == run.cut_short
    good = [replace(one, latency_s=0.005, status="ok") for one in run.records]
    assert over_saturation(replace(run, records=good), slo, planned=100) is None


def test_nobody_at_the_address_ends_the_load_soon() -> None:
    load = LoadSection(concurrency=(4,), requests=100_000, duration_s=60)
    target = Target(url="http://127.0.0.1:9", headers={}, metrics_path=None, trouble=lambda: None)
    run = run_level(LoadRun(level=LoadLevel(concurrency=4)), target, ASK, SyntheticTraffic(words=4), load)
    assert (
        run.stopped is not None and "requests all failed (the connection failed (ClientConnectorError: " in run.stopped
    )
    assert {record.status for record in run.records} <= {"failed", "unfinished"}


def test_no_redirect_leads_a_request_to_another_address() -> None:
    with fake_server(fault="redirects") as server:
        (record,) = _one_by_one(server, ["a"], stall_s=5)
    assert (record.status, record.error) == (
        "failed",
        "HTTP 307: a redirect to http://127.0.0.2:1/elsewhere, which is not followed",
    )


def test_the_report_names_levels_latencies_errors_and_the_shown_level() -> None:
    slow = level_result(LoadRun(level=LoadLevel(rate=1.0), records=RECORDS[:2], duration_s=4.0), SloSection())
    fast = level_result(LoadRun(level=LoadLevel(rate=2.0), records=RECORDS, duration_s=2.0), SloSection())
    document = BenchDocument(server="http://127.0.0.1:1", model="m", levels=(slow, fast))
    assert shown_level(document) == fast
    metrics = bench_metrics(document, source="bench/bench.json")
    assert metrics["serve_output_tokens_per_s"].value == 4.0
    assert metrics["serve_output_tokens_per_s[rate=1]"].value == 1.75
    assert metrics["serve_ttft_ms"].how == "median; 2 requests/s, 3 requests"
    (section,) = bench_sections(document, source="bench/bench.json")
    assert section.tables[2] == SectionTable(
        title="Errors",
        columns=("load", "error", "requests"),
        rows=(("2 requests/s", "HTTP 500", 1), ("2 requests/s", "under way when the load ended", 1)),
        source="bench/bench.json",
    )


@pytest.mark.parametrize(
    ("preset", "args", "expected"),
    [
        ("vllm", "[/m,--max-model-len,1024]", "vllm serve /m --max-model-len 1024 --host 127.0.0.1 --port 81"),
        ("sglang", "[--model-path,/m]", "python -m sglang.launch_server --model-path /m --host 127.0.0.1 --port 81"),
        ("transformers", "[/m]", "transformers serve /m --host 127.0.0.1 --port 81"),
        ("tensorrt_llm", "[/m]", "trtllm-serve /m --host 127.0.0.1 --port 81"),
    ],
)
def test_presets_start_their_engine_at_our_address(preset: str, args: str, expected: str, tmp_path: Path) -> None:
    config = read_config([f"server={preset}", f"server.args={args}", "load.rate=1,2.5"], user_dir=tmp_path)
    assert " ".join(build_server_cmd(config.server, port=81)) == expected
    assert config.load.levels() == (LoadLevel(rate=1), LoadLevel(rate=2.5))


@pytest.mark.parametrize(
    ("args", "model"),
    [
        (("/m", "--device", "cpu"), "/m"),
        (("--dtype", "half", "--model", "/m"), "/m"),
        (("--model-path=/m",), "/m"),
        (("--x", "y"), None),
        ((), None),
    ],
)
def test_the_model_is_found_among_the_arguments(args: tuple[str, ...], model: str | None) -> None:
    assert model_in(args) == model


def test_a_directory_that_hydra_would_use_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"hydra.run.dir: has no effect on bench .*; the directory of the run is artifacts"
    ):
        read_config(["server.url=http://a", "hydra.run.dir=runs/one"], user_dir=tmp_path)


def test_a_server_is_found_beside_our_python_and_a_missing_one_refused_at_once(tmp_path: Path) -> None:
    here = ServerSection(name="own", command=("python", "serve.py"))
    assert with_program(here, {"PATH": ""}).command == (str(Path(sys.executable).parent / "python"), "serve.py")
    assert with_program(here, os.environ) == here
    with pytest.raises(
        ConfigError, match=r"server\.command: there is no program 'no-such-server' on the PATH, allowed: "
    ):
        with_program(ServerSection(name="own", command=("no-such-server",)), os.environ)
    # Nothing is started where one runs.
    with_program(ServerSection(name="openai", url="http://127.0.0.1:1"), {})


def test_a_server_gets_its_own_variables_and_no_secret() -> None:
    section = ServerSection(name="x", command=("x",), env_passthrough=("VLLM_*", "MINE"))
    environ = {"VLLM_LOGGING_LEVEL": "INFO", "MINE": "1", "OTHERS": "2", "HF_TOKEN": "hf_x", "PATH": "/bin"}
    assert server_environment(section, environ) == {"VLLM_LOGGING_LEVEL": "INFO", "MINE": "1", "PATH": "/bin"}


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        ([], "server.url: needed because no server is started"),
        (["server.url=ftp://x"], "server.url: not an address (got 'ftp://x')"),
        (
            ["server=vllm", "server.url=http://a"],
            "server.url: names a server that runs, and server.command (of server=vllm) starts one",
        ),
        (["server.url=http://a", "server.args=[x]"], "server.args: nothing is started where server.url names a server"),
        (["server=vllm", "server.args=[--port,1]"], "server.args: holds --port, which is set by us"),
        (["server.url=http://a", "load.rate=1", "load.concurrency=2"], "load.concurrency: load.rate ignores requests"),
        (["server.url=http://a", "load.rate=fast"], "load.rate.0: not a number (got 'fast')"),
        (["server.url=http://a", "load.concurrency=0"], "load.concurrency.0: not allowed (got 0)"),
        (["server.url=http://a", "load.rates=1"], "load.rates: unknown key (got '1'), nearest known key: load.rate"),
        (["server=vlm"], "server: no such choice (got 'vlm')"),
        (["server.url=http://a", "dataset=omnidocbench"], "dataset: pages are not sent to servers"),
        (["server.url=http://a", "capture.tool=nsys"], "capture.tool: nsys cannot capture a server it did not start"),
        (["--sweep"], "--sweep: no argument of this command"),
    ],
)
def test_bad_input_is_told_by_its_key(overrides: list[str], problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read_config(overrides, user_dir=tmp_path)
    assert raised.value.problems[0].startswith(problem)


def test_a_rate_that_is_no_number_is_told_once_and_not_as_a_list_too_short(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read_config(["server.url=http://a", "load.rate=inf,1e300"], user_dir=tmp_path)
    assert raised.value.problems == (
        "load.rate.0: not a finite number (got inf), allowed: a finite number",
        "load.rate.1: not allowed (got 1e+300), allowed: a number ≤ 2147483647",
    )
    with pytest.raises(ConfigError) as raised:
        read_config(["server.url=http://a", "load.rate=[]"], user_dir=tmp_path)
    assert raised.value.problems == ("load.rate: not allowed (got []), allowed: at least 1 element",)


def test_made_up_text_is_plain_words() -> None:
    assert made_up(3, "a") == made_up(3, "a")
    assert json.loads(json.dumps(made_up(50, "b"))) == made_up(50, "b")

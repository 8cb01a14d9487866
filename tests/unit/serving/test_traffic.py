"""Recorded traffic: files of every format as sessions, and what is sent of them."""

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.bench.bench_config import read_config
from llm_perf_opt.pipeline.bench.warm_up import unlike
from llm_perf_opt.serving.schedule import arrival_times, levels_of, session_arrivals
from llm_perf_opt.serving.serving_config import LoadLevel, LoadSection
from llm_perf_opt.serving.traffic.recorded_traffic import TraceSession, TraceTraffic, TraceTurn
from llm_perf_opt.serving.traffic.sessions import Turn
from llm_perf_opt.serving.traffic.synthetic import SyntheticTraffic, made_up
from llm_perf_opt.serving.traffic.traffic_files import read_traffic_file
from tests.support.fixtures_dir import REPO

SAMPLES = REPO / "examples" / "traffic"


def test_conversations_of_sharegpt_are_sessions_whose_answers_give_the_lengths() -> None:
    sessions = read_traffic_file(SAMPLES / "sharegpt.json", "sharegpt", most_turns=None)
    assert [(len(session.turns), session.system) for session in sessions] == [
        (2, None),
        (1, None),
        (1, "Answer in one sentence."),
    ]
    assert len(read_traffic_file(SAMPLES / "sharegpt.json", "sharegpt", most_turns=1)[0].turns) == 1
    traffic = TraceTraffic(sessions=sessions, characters_per_token=5.0)
    assert traffic.session(1).turns == (Turn(text="Write a haiku about queues.", output_tokens=14),)
    assert (traffic.most_turns, traffic.session(4)) == (2, traffic.session(1))


def test_requests_of_mooncake_share_text_where_they_share_hashes() -> None:
    sessions = read_traffic_file(SAMPLES / "mooncake.jsonl", "mooncake", most_turns=1)
    traffic = TraceTraffic(sessions=sessions, words_per_token=0.5)
    texts = [traffic.session(number).turns[0].text.split(" ") for number in range(5)]
    assert [len(text) for text in texts] == [700, 600, 300, 750, 250]
    assert [session.turns[0].output_tokens for session in sessions] == [40, 24, 60, 16, 32]
    shared = [[_shared(one, other) for other in texts] for one in texts]
    # Blocks of 512 tokens are 256 words. The last block of the first and the fourth request has one hash.
    assert [row[0] for row in shared] == [700, 512, 256, 700, 0]
    assert [row[1] for row in shared] == [512, 600, 256, 512, 0]
    assert [session.at_s for session in sessions] == [0.0, 0.3, 0.45, 0.9, 1.6]


def _shared(one: list[str], other: list[str]) -> int:
    same = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        same += 1
    # Equal words after a different block are chance.
    return same if same in (700, 600, 512, 256) else same // 256 * 256


@pytest.mark.parametrize("form", ["lines", "export"])
def test_spans_of_a_conversation_are_its_turns_with_their_pauses(
    form: Literal["lines", "export"], tmp_path: Path
) -> None:
    path = SAMPLES / "otel.jsonl"
    if form == "export":
        spans = [json.loads(line) for line in path.read_text().splitlines()]
        path = tmp_path / "export.json"
        path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}))
    sessions = read_traffic_file(path, "otel", most_turns=None)
    assert sessions == (
        TraceSession(
            at_s=0.0,
            turns=(
                TraceTurn(tokens=128, output_tokens=32),
                # 220 tokens, of which 128 + 32 are the turn before.
                TraceTurn(tokens=60, output_tokens=40, think_s=2.0),
            ),
        ),
        TraceSession(at_s=0.4, turns=(TraceTurn(tokens=96, output_tokens=20),)),
        TraceSession(
            at_s=3.5,
            system="Answer in one sentence.",
            turns=(TraceTurn(text="What is a span?", tokens=24, output_tokens=12),),
        ),
    )
    sent = TraceTraffic(sessions=sessions, words_per_token=0.5).session(0)
    assert [len(turn.text.split(" ")) for turn in sent.turns] == [64, 30]


def test_our_own_lines_hold_lengths_times_and_sessions() -> None:
    sessions = read_traffic_file(SAMPLES / "requests.jsonl", "jsonl", most_turns=None)
    assert [(len(one.turns), one.at_s, one.system) for one in sessions] == [
        (1, 0.0, None),
        (2, 0.5, None),
        (1, 1.2, "Be brief."),
    ]
    assert sessions[1].turns[1] == TraceTurn(text="Which of them matters most?", output_tokens=24, think_s=1.5)


@pytest.mark.parametrize(
    ("form", "text", "why"),
    [
        ("sharegpt", "{}", "is not a file of traffic.format=sharegpt"),
        ("sharegpt", "[]", "holds no request that can be sent"),
        ("sharegpt", '[{"conversations": [{"from": "human", "value": "alone"}]}]', "holds no request"),
        ("mooncake", '{"timestamp": 0, "input_length": 0, "output_length": 1}', "line 1: a length below 1"),
        ("mooncake", '{"prompt": "x"}', "is not a file of traffic.format=mooncake"),
        ("jsonl", '{"text": "x"}', "is not a file of traffic.format=jsonl"),
        ("jsonl", '{"prompt": "x", "output_tokens": 0}', "line 1: output_tokens below 1"),
        ("otel", '{"name": "GET /"}', "holds no request that can be sent"),
        ("otel", "[" * 100_000, "is not a file of traffic.format=otel"),
    ],
)
def test_a_file_of_another_kind_is_bad_input(form: str, text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "traffic"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        read_traffic_file(path, form, most_turns=1)  # type: ignore[arg-type]
    assert raised.value.problems[0].startswith(f"traffic.path: {path} ") and why in raised.value.problems[0]


def test_recorded_arrivals_keep_their_pattern_at_any_rate() -> None:
    sessions = read_traffic_file(SAMPLES / "mooncake.jsonl", "mooncake", most_turns=1)
    traffic = TraceTraffic(sessions=sessions)
    load = LoadSection(arrival="recorded")
    assert levels_of(load, traffic) == (LoadLevel(rate=2.5),)
    assert [at for _, at in session_arrivals(load, 2.5, traffic)] == pytest.approx([0.0, 0.3, 0.45, 0.9, 1.6])
    assert [at for _, at in session_arrivals(load, 5.0, traffic)] == pytest.approx([0.0, 0.15, 0.225, 0.45, 0.8])


@pytest.mark.parametrize(("burstiness", "spread"), [(0.25, 2.0), (1.0, 1.0), (4.0, 0.5)])
def test_gamma_arrivals_are_as_bursty_as_asked_for(burstiness: float, spread: float) -> None:
    times = arrival_times(10.0, arrival="gamma", burstiness=burstiness, requests=4000, duration_s=1e9, seed=3)
    gaps = np.diff(times)
    # The coefficient of variation of a gamma distribution is 1 / sqrt(shape).
    assert gaps.mean() == pytest.approx(0.1, rel=0.01)
    assert gaps.std() / gaps.mean() == pytest.approx(spread, rel=0.1)


def test_a_ramp_grows_evenly_to_the_rate() -> None:
    load = LoadSection(rate=(10.0,), arrival="constant", requests=5, duration_s=60, ramp_up_s=2.0)
    times = [at for _, at in session_arrivals(load, 10.0, SyntheticTraffic(words=1))]
    # Ten requests in two seconds, a quarter of them in the first half, and then five at the rate.
    assert sum(at < 1.0 for at in times) == 3 and sum(at < 2.0 for at in times) == 10
    assert times[10:] == pytest.approx([2.1, 2.2, 2.3, 2.4, 2.5])


def test_synthetic_requests_share_a_prefix_in_groups_and_have_turns_and_pictures() -> None:
    traffic = SyntheticTraffic(words=5, shared_words=7, groups=2, turns=2, think_s=1.5, images=1, image_size=16)
    texts = [traffic.text(number).split(" ") for number in range(4)]
    assert texts[0][:7] == texts[2][:7] != texts[1][:7] == texts[3][:7]
    assert len({tuple(text[7:]) for text in texts}) == 4
    first, second = traffic.session(0).turns
    assert (first.text, second.think_s, second.images) == (traffic.text(0), 1.5, ())
    png = base64.b64decode(first.images[0].removeprefix("data:image/png;base64,"))
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    pixels = png[png.index(b"IDAT") + 4 : png.index(b"IEND") - 8]
    assert len(zlib.decompress(pixels)) == 16 * 17
    assert traffic.session(1).turns[0].images != first.images
    assert made_up(3, "a") != made_up(3, "b")


def test_arguments_of_vllm_are_read(tmp_path: Path) -> None:
    given = "http://[::1]:8000 --model M --request-rate 4 --max-concurrency 64 --num-prompts 200 --random-input-len 512"
    given += " --random-output-len=128 --dataset-name sharegpt --dataset-path f.json --backend openai-chat --seed 3"
    given += " --goodput ttft:200 tpot:30 --burstiness 0.5 --ignore-eos --save-result --num-warmups 1 load.stall_s=9"
    given += " --tokenizer T --percentile-metrics ttft,tpot --metric-percentiles=90,99 --ready-check-timeout-sec 7"
    config = read_config(given.split(), user_dir=tmp_path)
    assert (config.server.url, config.server.model, config.server.ignore_eos) == ("http://[::1]:8000", "M", True)
    assert config.server.ready_timeout_s == 7.0
    load = config.load
    assert (load.levels(), load.max_concurrency, load.requests, load.duration_s) == (
        (LoadLevel(rate=4.0),),
        64,
        200,
        3600.0,
    )
    assert (load.output_tokens, load.api, load.seed, load.warmup_requests, load.stall_s) == (128, "chat", 3, 1, 9.0)
    assert (load.slo.text, load.arrival, load.burstiness) == ("TTFT ≤ 200 ms, TPOT ≤ 30 ms", "gamma", 0.5)
    assert (config.dataset.prompt_tokens, config.dataset.seed) == (512, 3)
    assert (config.traffic.format, config.traffic.path) == ("sharegpt", str(tmp_path / "f.json"))


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ("--max-concurrency 8", LoadLevel(concurrency=8)),
        ("--request-rate inf --max-concurrency 8", LoadLevel(concurrency=8)),
        ("--request-rate inf --num-prompts 50", LoadLevel(concurrency=50)),
        ("--num-prompts 50", LoadLevel(concurrency=50)),
        ("--num-prompts 50 load.rate=3", LoadLevel(rate=3)),
        ("--num-prompts 50 load.concurrency=3", LoadLevel(concurrency=3)),
        ("--concurrency 4", LoadLevel(concurrency=4)),
        ("--request-rate 2 load.rate=3", LoadLevel(rate=3)),
    ],
)
def test_a_load_without_a_rate_is_a_closed_loop(given: str, level: LoadLevel, tmp_path: Path) -> None:
    config = read_config(["--host", "::1", "--port", "80", *given.split()], user_dir=tmp_path)
    assert (config.load.levels(), config.server.url) == ((level,), "http://[::1]:80")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("--sweep", "--sweep: no argument of this command, "),
        ("--request-rates 4", "--request-rates: no argument of this command, nearest: --request-rate, allowed: "),
        ("--model", "--model: needs a value"),
        ("--goodput", "--goodput: needs limits, allowed: ttft:200"),
        ("--goodput itl:2", "--goodput: unknown limit 'itl:2', allowed: ttft:MS"),
        ("--backend tgi", "--backend: not supported (got 'tgi'), allowed: openai, vllm, openai-chat"),
        ("--metric-percentiles 95", "--metric-percentiles: not supported (got '95'), allowed: 50, 90, 99"),
        ("--tokenizer", "--tokenizer: needs a value"),
        ("--request-rate fast", "load.rate.0: not a number (got 'fast')"),
        ("traffic.format=mooncake", "traffic.format: needs traffic.path too"),
        ("traffic.images=1", "traffic.images: only a chat has images, allowed: load.api=chat"),
        ("load.arrival=recorded", "load.arrival: needs recorded times"),
        ("load.concurrency=2 load.max_concurrency=2", "load.max_concurrency: limits the requests under way at a rate"),
    ],
)
def test_a_wrong_argument_is_named(given: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        read_config(["http://127.0.0.1:1", *given.split()], user_dir=tmp_path)
    assert raised.value.problems[0].startswith(problem)


def test_warming_up_for_recorded_prompts_sends_other_texts_of_their_length() -> None:
    turn = Turn(text="x" * 8000, output_tokens=7)
    other = unlike(turn, "warm-up-0")
    assert abs(len(other.text) - 8000) < 200 and other.output_tokens == 7
    assert other.text not in (turn.text, unlike(turn, "warm-up-1").text)
    assert unlike(replace(turn, text=""), "a").text != ""

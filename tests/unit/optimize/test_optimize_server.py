"""What a search over a server's settings decides, by simulated starts: which to make, what is a gain, what to start."""

import math
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.optimize.server.comparing import ROUND_LOOKS, compare_rounds
from llm_perf_opt.optimize.server.configuration_rows import configuration_rows, frontier, option_rows
from llm_perf_opt.optimize.server.levels import climb
from llm_perf_opt.optimize.server.recommend_flags import (
    compose_file,
    kubernetes_manifest,
    launch_command,
    result_in_words,
)
from llm_perf_opt.optimize.server.server_document import (
    ConfigurationRow,
    LoadObservation,
    OptimizeServerDocument,
    OptionSetting,
    ServerRecommendation,
    StartOutcome,
)
from llm_perf_opt.optimize.server.server_evidence import (
    EVIDENCE,
    LoadFacts,
    StreamedRequest,
    observations,
    prefill_spikes,
)
from llm_perf_opt.optimize.server.server_outputs import ServedAnswer, ServedReference, ServedToken, check_answers
from llm_perf_opt.optimize.server.server_search import ServerSearch, StartRequest, select
from llm_perf_opt.optimize.server.space import (
    START,
    Configuration,
    OptionChoice,
    ServerOption,
    ServerSettings,
    ServerSpace,
    applied,
    grid_of,
    is_allowed,
    name_of,
    packaged_engines,
    packaged_space,
    read_space,
    settings_of,
)
from llm_perf_opt.report.optimize.server_page import render_server_page
from llm_perf_opt.report.optimize.server_text import render_server_markdown, render_server_terminal
from tests.support.simulated_tuning import (
    NOISE,
    PRESENT,
    SPACE,
    SimulatedServer,
    everything,
    few_goodput,
    goodput,
    run_search,
)

GRID = grid_of(SPACE, everything().tuned, PRESENT)
BEST = max(goodput(one) for one in GRID)
# Of the grid's starts, every one of the search counted: those of the rounds too.
MOST_STARTS = int(0.4 * len(GRID))


def setting(option: str, value: str) -> OptionSetting:
    return OptionSetting(option=option, value=value)


@pytest.mark.parametrize("seed", range(10))
def test_two_flags_that_interact_are_found_with_two_fifths_of_the_starts_of_a_grid(seed: int) -> None:
    server = SimulatedServer(seed)
    search = run_search(server, everything(), most_starts=MOST_STARTS)
    assert len(server.asked) <= MOST_STARTS == 25 and search.grid == 64
    assert search.best is not None and goodput(search.best) >= 0.95 * BEST
    total = search.compared(search.verifications[-1], START, search.best)
    assert total is not None and total.gain.low is not None and total.gain.low > 1.02
    assert {one.option for one in search.flag_gains()} == {"tokens", "sequences"}


@pytest.mark.parametrize("seed", [5, 201, 207])
def test_a_best_value_between_those_that_were_started_is_found(seed: int) -> None:
    server = SimulatedServer(seed, surface=few_goodput)
    search = run_search(server, everything(), most_starts=MOST_STARTS)
    assert search.best is not None and few_goodput(search.best) >= 95.0


def compare_equal(seed: int, noise: float) -> str:
    """An A/A comparison, inspected as a search does, until it is conclusive."""
    draw = random.Random(seed)
    sides: tuple[list[float], list[float]] = ([], [])
    for number in range(1, ROUND_LOOKS[-1] + 1):
        for side in sides:
            side.append(100 * math.exp(draw.gauss(0.0, noise)))
        found = compare_rounds(*sides, "goodput", is_last=number == ROUND_LOOKS[-1])
        if found is not None and number in ROUND_LOOKS and found.is_settled:
            return found.verdict
    return "inconclusive"


def test_none_of_twenty_equal_sides_is_called_better() -> None:
    assert "better" not in [compare_equal(seed, NOISE) for seed in range(20)]


def test_equal_sides_of_noisy_starts_are_called_better_no_more_often_than_stated() -> None:
    """Half of the 5 % chance to err is on this side; on 120 comparisons that is 3."""
    assert [compare_equal(seed, 0.05) for seed in range(120)].count("better") <= 3


@pytest.mark.parametrize("seed", range(20))
def test_a_search_among_settings_without_effect_recommends_nothing(seed: int) -> None:
    search = run_search(SimulatedServer(seed, surface=lambda _: 50.0, noise=0.05), everything(), most_starts=40)
    assert search.best is None and search.flag_gains() == ()
    assert search.why_ended


def test_a_planted_change_of_outputs_is_rejected_with_everything_that_holds_it() -> None:
    bad = setting("tokens", "8192")
    server = SimulatedServer(3, wrong=lambda configuration: bad in configuration)
    selected = everything()
    search = run_search(server, replace(selected, order=((bad,), *selected.order)), most_starts=MOST_STARTS)
    assert [one.status for one in search.outcomes if bad in one.configuration] == ["wrong"]
    assert search.best is not None and bad not in search.best
    (row,) = [one for one in configuration_rows(search, SPACE) if one.status == "wrong"]
    assert (row.name, row.reason) == ("tokens=8192", "answers differ")


def test_a_setting_that_changed_answers_next_to_others_is_not_combined_again() -> None:
    bad, good = setting("tokens", "8192"), setting("sequences", "256")
    server = SimulatedServer(3, wrong=lambda configuration: bad in configuration)
    selected = everything()
    order = ((good,), tuple(sorted((bad, good), key=lambda one: one.option, reverse=True)))
    search = run_search(server, replace(selected, order=order), most_starts=MOST_STARTS)
    assert [one.status for one in search.outcomes if bad in one.configuration] == ["wrong"]


def test_a_failed_start_is_a_row_with_its_reason_and_its_setting_is_not_tried_again() -> None:
    bad = setting("sequences", "256")
    server = SimulatedServer(1, broken=lambda c: "out of memory (log: x)" if bad in c else None)
    selected = everything()
    search = run_search(server, replace(selected, order=((bad,), *selected.order)), most_starts=MOST_STARTS)
    assert [one.status for one in search.outcomes if bad in one.configuration] == ["failed"]
    (row,) = [one for one in configuration_rows(search, SPACE) if one.status == "failed"]
    assert (row.name, row.reason, dict(row.metrics)) == ("sequences=256", "out of memory (log: x)", {})
    assert search.best is not None and bad not in search.best


def test_a_start_that_was_fast_by_chance_is_not_verified() -> None:
    """One configuration looks twice as fast once, and is like the start ever after."""
    lucky: Configuration = (setting("tokens", "256"),)

    class Lucky(SimulatedServer):
        def start(self, request: StartRequest) -> StartOutcome:
            found = super().start(request)
            is_first = request.configuration == lucky and request.purpose == "screen"
            return replace(found, metrics={"goodput": 100.0}) if is_first else found

    search = run_search(Lucky(0, surface=lambda _: 50.0), everything(), most_starts=60)
    assert lucky in {one.candidate for one in search.verifications}
    assert search.best is None


def test_a_setting_that_brings_nothing_is_left_out_of_what_is_recommended() -> None:
    def surface(configuration: Configuration) -> float:
        return 100.0 if setting("tokens", "8192") in configuration else 50.0

    space = ServerSpace(
        options=(
            ServerOption(id="tokens", flag="--tokens", choices=(OptionChoice(value=8192),)),
            ServerOption(id="useless", flag="--useless", choices=(OptionChoice(value=True),)),
        )
    )
    selected = everything(space, present={})
    both = (setting("tokens", "8192"), setting("useless", "true"))
    # Screening takes the pair for a little better; the rounds say that they are the same.
    search = ServerSearch(objective="goodput", most_starts=40)
    server = SimulatedServer(5, surface=lambda c: surface(c), noise=0.002)
    while (request := search.next(1e9)) is not None:
        outcome = server.start(request)
        if request.configuration == both and request.purpose == "screen":
            outcome = replace(outcome, metrics={"goodput": 104.0})
        search.record(outcome)
        if search.selected is None:
            search.choose(selected)
    assert [one.candidate for one in search.verifications] == [both]
    assert search.best == (setting("tokens", "8192"),)


def test_a_search_ends_within_its_time_and_keeps_starts_for_the_rounds() -> None:
    server = SimulatedServer(0)
    search = ServerSearch(objective="goodput")
    spent = 0.0
    while (request := search.next(20.0 - spent)) is not None:
        search.record(server.start(request))
        spent += 1.0
        if search.selected is None:
            search.choose(everything())
    assert spent <= 20.0 and search.best is not None
    purposes = [one.purpose for one in server.asked]
    assert purposes == sorted(purposes, key=["start", "screen", "verify"].index)
    # One start, and two rounds of it and the first single.
    few = run_search(SimulatedServer(0), everything(), most_starts=5)
    assert [one.candidate for one in few.verifications] == [everything().order[0]]
    short = run_search(SimulatedServer(0), everything(), most_starts=3)
    assert short.best is None and short.why_ended == "2 more starts were allowed, too few to try and to verify anything"


def test_a_start_that_cannot_be_measured_ends_the_search() -> None:
    search = ServerSearch(objective="goodput")
    search.record(StartOutcome(configuration=START, purpose="start", status="failed", reason="no GPU"))
    assert search.next(1e9) is None


def test_rounds_turn_their_order_so_that_no_side_always_comes_first() -> None:
    server = SimulatedServer(0)
    run_search(server, everything(), most_starts=MOST_STARTS)
    names = [name_of(one.configuration) for one in server.asked if one.purpose == "verify"]
    sides = len(set(names))
    assert names[0] == "start" and names[sides : 2 * sides] == names[:sides][::-1]


VLLM = packaged_space("vllm")


def test_evidence_selects_what_is_tried_and_says_why_the_rest_is_not() -> None:
    assert VLLM is not None
    seen = (LoadObservation(id="preemptions", text="7 preemptions"),)
    chosen = select(VLLM, seen, {}, has_gpu=True)
    assert {one.id: one.values for one in chosen.tuned} == {
        "max_num_seqs": ("64",),
        "kv_cache_dtype": ("fp8",),
        "gpu_memory_utilization": ("0.95",),
    }
    kept = select(VLLM, seen, {}, has_gpu=True, lossless=True)
    assert [one.id for one in kept.tuned] == ["max_num_seqs", "gpu_memory_utilization"]
    idle = (LoadObservation(id="queue_idle_gpu", text=""), LoadObservation(id="idle_gpu", text=""))
    names = [name_of(one) for one in select(VLLM, idle, {"cuda_graphs": "true"}, has_gpu=True).order]
    # What starts fastest comes first; graphs take half a minute more.
    assert names[:2] == ["max_num_batched_tokens=8192", "max_num_seqs=512"] and names[-1] == "cuda_graphs=false"
    spikes = (LoadObservation(id="prefill_spikes", text=""),)
    smaller = {one.id: one.values for one in select(VLLM, spikes, {}, has_gpu=False).tuned}
    assert smaller == {"max_num_batched_tokens": ("1024", "512"), "long_prefill_threshold": ("512",)}
    rows = {one.option: one.left_out for one in option_rows(VLLM, chosen.tuned, seen, has_gpu=True, present={})}
    assert rows["cpu_kv_cache_gib"] == "it is for a CPU"
    assert rows["api_servers"] == "not seen: idle_gpu, queue_idle_gpu"


def test_a_setting_comes_with_what_it_needs() -> None:
    space = packaged_space("transformers")
    assert space is not None
    idle = (LoadObservation(id="idle_gpu", text=""),)
    names = [name_of(one) for one in select(space, idle, settings_of(space, ServerSettings()), has_gpu=True).order]
    assert "continuous_batching=true, cuda_graphs=true" in names and "cuda_graphs=true" not in names
    with_batching = settings_of(space, ServerSettings(args=("m", "--continuous-batching")))
    names = [name_of(one) for one in select(space, idle, with_batching, has_gpu=True).order]
    assert "cuda_graphs=true" in names and "continuous_batching=true" not in names
    assert not is_allowed(space, (setting("cuda_graphs", "true"),), {})


@pytest.mark.parametrize("engine", packaged_engines())
def test_every_option_of_an_engine_has_a_source_and_evidence(engine: str) -> None:
    space = packaged_space(engine)
    assert space is not None and space.engine == engine and space.checked and space.image != ""
    for option in space.options:
        assert option.source and option.title, option.id
        assert all(choice.when and set(choice.when) <= set(EVIDENCE) for choice in option.choices), option.id


@pytest.mark.parametrize(
    ("given", "configuration", "words", "environment"),
    [
        (("m",), (setting("seqs", "512"),), ("m", "--seqs", "512"), {}),
        (("m", "--seqs", "8", "--x"), (setting("seqs", "512"),), ("m", "--x", "--seqs", "512"), {}),
        (("m", "--seqs=8"), (setting("seqs", "512"),), ("m", "--seqs", "512"), {}),
        (("m", "--eager"), (setting("eager", "false"),), ("m", "--no-eager"), {}),
        (("m", "--no-eager", "--x"), (setting("eager", "true"),), ("m", "--x", "--eager"), {}),
        (("m",), (setting("threads", "2"),), ("m",), {"THREADS": "2"}),
    ],
)
def test_settings_replace_what_the_start_says_of_the_same_options(
    given: tuple[str, ...], configuration: Configuration, words: tuple[str, ...], environment: Mapping[str, str]
) -> None:
    space = ServerSpace(
        options=(
            ServerOption(id="seqs", flag="--seqs", choices=(OptionChoice(value=512),)),
            ServerOption(
                id="eager",
                flag="--eager",
                off="--no-eager",
                choices=(OptionChoice(value=False), OptionChoice(value=True)),
            ),
            ServerOption(id="threads", variable="THREADS", choices=(OptionChoice(value=2),)),
        )
    )
    found = applied(space, configuration, ServerSettings(args=given))
    assert (found.args, dict(found.environment)) == (words, environment)
    present = settings_of(space, ServerSettings(args=words, environment=environment))
    assert [setting(one.option, present[one.option]) for one in configuration] == list(configuration)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("options: []", "--space.options"),
        ("a list", "--space: {path}: not a mapping, allowed: `options:` with a list below it"),
        ("options: [{id: a, values: [1]}]", "--space: options.a: needs a flag or a variable"),
        ("options: [{id: a, flag: --a, values: [1, 1]}]", "--space: options.a: the value '1' is there twice"),
        ("options: [{id: a, flag: --a, values: [false]}]", "--space: options.a: false needs the flag that says no"),
        (
            "options: [{id: a, flag: --a, choices: [{value: 1, when: [rain]}]}]",
            "--space: options.a: unknown evidence (got 'rain')",
        ),
        (
            "options: [{id: a, flag: --a, choices: [{value: 1, needs: [b=2]}]}]",
            "--space: no such setting (got 'b=2'), allowed: option=value",
        ),
    ],
)
def test_a_wrong_space_is_refused_in_words(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_space(path)
    assert any(one.startswith(problem.format(path=path)) for one in caught.value.problems), caught.value.problems


def test_a_load_is_described_by_what_the_engine_its_gpu_and_its_streams_show() -> None:
    busy = LoadFacts(preemptions=3, kv_cache_most=0.97, waiting_mean=4.0, gpu_busy=0.4, missed="ttft")
    assert [one.id for one in observations(busy)] == [
        *("preemptions", "full_kv_cache", "queue", "idle_gpu", "queue_idle_gpu", "slow_ttft"),
    ]
    assert [one.id for one in observations(LoadFacts(kv_cache_most=0.3, waiting_mean=2.0, gpu_busy=0.99))] == [
        "queue",
        "capped_batch",
    ]
    assert [one.id for one in observations(LoadFacts())] == ["unobserved"]
    assert observations(LoadFacts(preemptions=0, kv_cache_most=0.2, waiting_mean=0.0, gpu_busy=0.95)) == ()


def test_a_server_without_batches_answers_one_request_after_the_other() -> None:
    """Four requests sent at once: each waits for those before it, or all of them stream together."""
    serial = tuple(StreamedRequest(started_s=0.0, ttft_s=0.1 + n, gaps_s=(0.1,) * 9) for n in range(4))
    (found,) = observations(LoadFacts(gpu_busy=0.95, requests=serial))
    assert found.id == "one_at_a_time"
    assert found.text == "of 2.50 requests under way 0.900 received tokens, on average"
    together = tuple(replace(one, ttft_s=0.1) for one in serial)
    assert observations(LoadFacts(gpu_busy=0.95, requests=together)) == ()
    # One request under way at a time is what was asked for.
    alone = tuple(replace(one, started_s=float(n), ttft_s=0.1) for n, one in enumerate(serial))
    assert observations(LoadFacts(gpu_busy=0.95, requests=alone)) == ()


def test_spikes_count_where_a_prompt_was_processed_meanwhile() -> None:
    """A stream with a gap of 0.5 s among gaps of 10 ms, in which another request got its first token."""
    steady = StreamedRequest(started_s=0.0, ttft_s=0.1, gaps_s=(0.01,) * 10 + (0.5,) + (0.01,) * 20)
    other = StreamedRequest(started_s=0.15, ttft_s=0.54, gaps_s=(0.01,) * 5)
    spikes = prefill_spikes([steady, other])
    assert spikes is not None and (spikes.count, spikes.with_prefill) == (1, 1.0)
    assert spikes.of_time == pytest.approx(0.5 / 0.85)
    late = prefill_spikes([steady, replace(other, started_s=3.0)])
    assert late is not None and (late.count, late.with_prefill) == (1, 0.0)
    assert [one.id for one in observations(LoadFacts(gpu_busy=1.0, requests=(steady, other)))] == ["prefill_spikes"]


def answer(*tokens: tuple[str, float], others: Mapping[str, float] | None = None) -> ServedAnswer:
    return ServedAnswer(
        text="".join(text for text, _ in tokens),
        tokens=tuple(ServedToken(text=text, logprob=value, others=others) for text, value in tokens),
    )


SAME = answer(("a", -0.5), ("b", -0.5), others={"a": -0.5, "b": -0.5, "c": -0.6, "z": -4.0})


@pytest.mark.parametrize(
    ("other", "is_lossy", "verdict"),
    [
        (SAME, False, "equal"),
        (answer(("a", -0.52), ("c", -0.5)), False, "within rounding"),
        (answer(("a", -0.5), ("z", -0.5)), False, "different"),
        # Nearly as probable, but the probabilities before it are far from the start's.
        (answer(("a", -1.9), ("c", -0.5)), False, "different"),
        # The start does not report the token, so it was not among the most probable.
        (answer(("a", -0.5), ("q", -0.5)), False, "different"),
        (
            answer(
                ("a", -0.5),
            ),
            False,
            "different",
        ),
        (answer(("a", -0.5), ("z", -0.5)), True, "different"),
        (answer(("a", -2.0), ("b", -2.0)), False, "different"),
        (answer(("a", -2.0), ("b", -2.0)), True, "within limits"),
    ],
)
def test_answers_are_those_of_the_start_by_tokens_or_by_rounding(
    other: ServedAnswer, is_lossy: bool, verdict: str
) -> None:
    found = check_answers(ServedReference(answers=(SAME,), again=(SAME,)), [other], is_lossy=is_lossy)
    assert found.verdict == verdict, found


def test_a_lossy_setting_keeps_a_share_of_the_tokens_and_says_how_many() -> None:
    long = answer(*[("a", -0.5)] * 20)
    flipped = answer(*[("a", -0.5)] * 19, ("z", -0.5))
    found = check_answers(ServedReference(answers=(long,), again=(long,)), [flipped], is_lossy=True)
    assert (found.verdict, found.top1, found.differing, found.tokens) == ("within limits", 0.95, 1, 20)
    assert found.text.startswith("0 of 1 answers equal, 95.0 % of 20 tokens up to the first differences")


def test_without_log_probabilities_the_user_may_set_a_share_of_equal_words() -> None:
    """Nineteen words and another one after them: 95 %."""
    long, flipped = ServedAnswer(text="a " * 20), ServedAnswer(text="a " * 19 + "z")
    reference = ServedReference(answers=(long,), again=(long,))
    kept = check_answers(reference, [flipped], is_lossy=False, min_top1=0.95)
    assert (kept.verdict, kept.limits) == (
        "within limits",
        "equal words on ≥ 95 %: the server reports no log probabilities",
    )
    assert kept.text == "0 of 1 answers equal, 95.0 % of 20 words up to the first differences"
    assert check_answers(reference, [flipped], is_lossy=False, min_top1=0.96).verdict == "different"
    # A lossy option has to keep the usual share without it.
    assert check_answers(reference, [flipped], is_lossy=True).limits == "equal words on ≥ 90 %"
    assert check_answers(reference, [long], is_lossy=False).verdict == "equal"
    # Other spaces between the same words are another text.
    spaced = check_answers(reference, [ServedAnswer(text="a  " * 20)], is_lossy=False)
    assert (spaced.verdict, spaced.top1) == ("different", 1.0)


def test_without_log_probabilities_texts_decide_unless_the_start_differs_from_itself() -> None:
    one, two = ServedAnswer(text="a b"), ServedAnswer(text="a c")
    steady = check_answers(ServedReference(answers=(one,), again=(one,)), [two], is_lossy=False)
    assert (steady.verdict, steady.limits) == (
        "different",
        "equal texts, or a share of equal words that --min-top1 sets: the server reports no log probabilities",
    )
    unsteady = check_answers(ServedReference(answers=(one,), again=(two,)), [two], is_lossy=False)
    assert unsteady.verdict == "not comparable"
    # Reported, but no token is common to compare them.
    said, other = answer(("a", -0.5)), answer(("q", -0.5))
    apart = check_answers(ServedReference(answers=(said,), again=(said,)), [other], is_lossy=False)
    assert apart.verdict == "different" and apart.limits.startswith("a mean change of log probabilities of at most")


@pytest.mark.parametrize(
    ("values", "first", "best", "asked"),
    [
        ({8: 10.0, 16: 19.0, 32: 20.0, 64: 20.0}, 8, 32, [8, 16, 32, 64]),
        ({8: 10.0, 16: 4.0, 4: 5.0}, 8, 8, [8, 16, 4]),
        ({8: 0.0, 16: 0.0, 4: 0.0, 2: 3.0, 1: 1.0}, 8, 2, [8, 16, 4, 2, 1]),
    ],
)
def test_the_load_is_climbed_to_until_more_brings_no_more(
    values: Mapping[int, float], first: int, best: int, asked: list[int]
) -> None:
    seen: list[int] = []

    def measure(count: int) -> float:
        seen.append(count)
        return values[count]

    assert (climb(measure, first=first), seen) == (best, asked)


def test_snippets_run_the_command_that_was_measured() -> None:
    command = ["vllm", "serve", "/models/a b", "--max-num-seqs", "512"]
    assert launch_command(command, {"A": "1 2"}) == "A='1 2' vllm serve '/models/a b' --max-num-seqs 512"
    image = "vllm/vllm-openai:latest"
    compose = yaml.safe_load(compose_file(command, {"A": "1"}, image=image, gpus=2, mounts=["/models/a b"]))
    service = compose["services"]["llm-server"]
    assert (service["command"], service["environment"]) == (command, {"A": "1"})
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    assert service["volumes"] == ["/models/a b:/models/a b:ro"]
    text = kubernetes_manifest(command, {"A": "1"}, image="i", gpus=1, ready_path="/health", mounts=["/models/a b"])
    assert "&id" not in text
    deployment, exposed = yaml.safe_load_all(text)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert [*container["command"], *container["args"]] == command
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert container["volumeMounts"][1] == {"name": "files-0", "mountPath": "/models/a b", "readOnly": True}
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert volumes[1] == {"name": "files-0", "hostPath": {"path": "/models/a b"}}
    assert container["env"] == [{"name": "A", "value": "1"}]
    assert exposed["spec"]["selector"] == deployment["spec"]["template"]["metadata"]["labels"]
    without_gpu = yaml.safe_load(compose_file(command, {}, image=None, gpus=0))["services"]["llm-server"]
    assert without_gpu["image"] == "IMAGE" and "deploy" not in without_gpu and "environment" not in without_gpu


def document() -> OptimizeServerDocument:
    search = run_search(SimulatedServer(0), everything(), most_starts=MOST_STARTS)
    rows = [
        replace(row, metrics={**row.metrics, "e2el_ms": 1e4 / row.metrics["goodput"], "ttft_ms": 30.0, "tpot_ms": 5.0})
        for row in configuration_rows(search, SPACE)
    ]
    on = frontier(rows)
    rows = [replace(row, on_frontier=row.name in on) for row in rows]
    assert search.best is not None
    best = next(row for row in rows if row.name == name_of(search.best))
    return OptimizeServerDocument(
        status="done",
        engine="simulated",
        model="<m>",
        command=("simulated",),
        objective="goodput",
        slo="TTFT ≤ 200 ms",
        constraints=(),
        budget_s=1200.0,
        spent_s=600.0,
        starts=len(search.outcomes),
        most_starts=MOST_STARTS,
        resumed=0,
        grid=search.grid,
        observations=(LoadObservation(id="queue", text="4 requests waiting on average"),),
        options=option_rows(SPACE, everything().tuned, (), has_gpu=True, present=PRESENT),
        configurations=tuple(rows),
        best=best.name,
        gain=best.gain,
        flags=search.flag_gains(),
        recommendation=ServerRecommendation(
            name=best.name,
            words=best.words,
            environment={},
            is_lossy=False,
            command="simulated --tokens 8192",
            compose="services: {}\n",
            kubernetes="kind: Deployment\n",
        ),
        sentence=result_in_words(
            objective="goodput",
            name=best.name,
            before=57.12,
            after=100.0,
            gain=best.gain,
            starts=len(search.outcomes),
            why_ended="",
            check="equal",
        ),
        notes=("a note",),
    )


def test_the_pages_show_the_frontier_the_gain_of_each_flag_and_what_to_start() -> None:
    found = document()
    page = render_server_page(found)
    assert "&lt;m&gt;" in page and "<m>" not in page
    assert page.count("<circle") == len([r for r in found.configurations if "e2el_ms" in r.metrics])
    for text in ("Frontier", "What each setting brings", "--tokens 8192", "--sequences 256", "kind: Deployment"):
        assert text in page, text
    markdown = render_server_markdown(found)
    assert "| --tokens 8192 |" in markdown and "not a claim" in markdown and "compose.yaml" in markdown
    terminal = render_server_terminal(found)
    assert "to start:\n  simulated --tokens 8192" in terminal
    assert found.sentence.startswith("goodput 57.12 → 100.0 requests/s, ") and "interleaved rounds" in found.sentence


def test_a_search_without_a_gain_says_why() -> None:
    said = result_in_words(
        objective="goodput",
        name=None,
        before=1.0,
        after=None,
        gain=None,
        starts=1,
        why_ended="the server could not be measured as it is",
        check=None,
    )
    assert said == (
        "Nothing is recommended: no gain in goodput was verified in 1 start "
        "(the server could not be measured as it is)."
    )


def test_the_frontier_holds_what_no_other_beats_in_both() -> None:
    def row(name: str, served: float, time: float, status: str = "screened") -> ConfigurationRow:
        plain = document().configurations[0]
        return replace(plain, name=name, status=status, metrics={"goodput": served, "e2el_ms": time})  # type: ignore[arg-type]

    rows = [row("a", 1, 10), row("b", 2, 20), row("c", 1.5, 30), row("d", 9, 1, "wrong")]
    assert frontier(rows) == {"a", "b"}

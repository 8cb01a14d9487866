"""What `llm-perf optimize` decides without running anything: plan, search, verdicts, recommendation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.comparison.gate import parse_condition
from llm_perf_opt.comparison.stability import RepeatedValue
from llm_perf_opt.diagnosis.cause import load_causes
from llm_perf_opt.diagnosis.experiments import Guard, Remedy, load_experiments
from llm_perf_opt.diagnosis.facts import PhaseKernel, RunFacts
from llm_perf_opt.diagnosis.ledger import Finding
from llm_perf_opt.diagnosis.run import diagnose_run
from llm_perf_opt.optimize.experiment_plan import (
    PAIR_LOOKS,
    Costs,
    ExperimentPlan,
    Situation,
    TrialSet,
    build_plan,
    combine,
    left_words,
    look_share,
    predict,
    scaled_bound,
    with_costs,
)
from llm_perf_opt.optimize.experiment_verdict import (
    LossLimits,
    bound_held,
    break_even_tokens,
    broken_constraints,
    calibrate_rules,
    check_outputs,
    compare_passes,
    gains_of_causes,
    is_hopeless,
    judge_experiment,
)
from llm_perf_opt.optimize.optimize_document import (
    Agreement,
    ExperimentRow,
    MetricChange,
    PredictedBound,
    StartRow,
)
from llm_perf_opt.optimize.recommend import experiment_yaml, in_words, pasted_code, path_to_best
from llm_perf_opt.optimize.search import ExperimentSearch
from llm_perf_opt.pipeline.compose import ConfigEntry, compose_config
from llm_perf_opt.report.optimize.optimize_page import gain_bars
from llm_perf_opt.report.optimize.optimize_text import row_cells
from tests.support.report_facts import bound, facts, gpu, idle, kernel, ms, phase

EXPERIMENTS = load_experiments()
COMPILE, CUDA_GRAPH, INT8_WEIGHTS, LARGER_BATCH, REDUCE_OVERHEAD = (
    EXPERIMENTS[key] for key in ("compile", "cuda_graph", "int8_weights", "batch_x4", "reduce_overhead")
)

COSTS = Costs(start_s=10.0, pass_s=1.0)
CAT = kernel("CatArrayBatchedCopy", "copy", 1.2, 100)
KERNELS = (kernel("gemm", "GEMM", 1.2, 100), kernel("add", "elementwise", 0.6, 200))


def launch_bound(kernels: Sequence[PhaseKernel] = KERNELS) -> RunFacts:
    """10 ms a token: 2 ms of kernels, 8 ms waiting for launches; the hardware needs 0.6 ms."""
    decode = phase(
        "decode",
        wall=ms(10.0),
        achievable=bound(0.6),
        gpu=gpu(2.0, wall=12.0, idle=idle(host=10.0), count=300, kernels=tuple(kernels)),
    )
    prefill = phase("prefill", wall=ms(20.0), achievable=bound(15.0))
    return facts(prefill, decode, dtype="bfloat16")


def situation(**changes: object) -> Situation:
    plain = Situation(
        objective="tpot_ms",
        is_cpu=False,
        own_loop=True,
        reads_pages=False,
        dtype="bfloat16",
        settings={"infer.cache": "dynamic", "infer.compile": "none", "infer.batch": "1"},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def plan_of(found: RunFacts, where: Situation, given: Sequence[Remedy] = ()) -> ExperimentPlan:
    return build_plan(diagnose_run(found, None).claims, found, where, COSTS, given=given)


def test_a_launch_bound_step_is_planned_with_what_could_save_it() -> None:
    plan = plan_of(launch_bound(), situation())
    bounds = {c.name: c.bound.gain if c.bound else None for c in plan.candidates}
    # No finding says how much shorter other kernels would be, which launches hide: never below the hardware's 0.6 ms.
    assert bounds["reduce_overhead"] == pytest.approx(10 / 0.6)
    # The graph saves the launches alone: 8 of 10 ms.
    assert bounds["cuda_graph"] == pytest.approx(5.0)
    # What costs least to try comes first, regardless of what the others promise.
    names = ["joined_projections", "cuda_graph", "compile", "reduce_overhead", "max_autotune"]
    assert [c.name for c in plan.candidates] == names
    why = {refused.remedy.id: refused.why for refused in plan.refused}
    assert "larger batch never shortens" in why["batch_x4"]
    asked = plan_of(
        launch_bound(), situation(), [EXPERIMENTS[name] for name in ("one_thread", "flash_attention", "sdpa")]
    )
    why = {refused.remedy.id: refused.why for refused in asked.refused}
    assert why["one_thread"] == "it is for a CPU, and the model runs on a GPU"
    assert why["flash_attention"] == "flash_attn is not installed"
    assert why["sdpa"].startswith("attention kernels take less than 10 %")


def test_guards_ask_for_the_loop_the_format_and_what_is_set_already() -> None:
    pages = plan_of(launch_bound(), situation(reads_pages=True))
    tried = [c.name for c in pages.candidates]
    assert "reduce_overhead" in tried and "cuda_graph" in tried and "joined_projections" not in tried
    assert "only the decode step" in {r.remedy.id: r.why for r in pages.refused}["joined_projections"]
    done = situation(settings={"infer.cache": "static", "infer.compile": "reduce-overhead", "infer.batch": "1"})
    assert "it is set already" in {r.remedy.id: r.why for r in plan_of(launch_bound(), done).refused}["reduce_overhead"]
    mine = Remedy(id="mine", title="mine", sets={"model.dtype": "float16"}, is_lossy=True)
    kept = plan_of(launch_bound(), situation(lossless=True), [mine])
    assert {r.remedy.id: r.why for r in kept.refused}["mine"] == "only fixes without loss were requested"


def test_what_the_user_gives_is_tried_first_though_no_rule_promises_anything() -> None:
    mine = Remedy(id="mine", title="mine", environment={"A": "1"})
    plan = plan_of(launch_bound(), situation(), [mine])
    assert plan.candidates[0].name == "mine" and plan.candidates[0].bound is None


def test_bounds_of_a_whole_request_count_prefill_and_every_step_and_a_batch_multiplies() -> None:
    found = launch_bound()
    findings = diagnose_run(found, None).claims
    one = predict([CUDA_GRAPH], findings, found, "tokens_per_s")
    # 20 ms and ten steps of 10 ms, of which 8 can go.
    assert one is not None and one.gain == pytest.approx(120 / 40)
    batch = predict([LARGER_BATCH], findings, found, "tokens_per_s")
    assert batch is not None and batch.gain == pytest.approx(4.0)
    both = predict([CUDA_GRAPH, LARGER_BATCH], findings, found, "tokens_per_s")
    assert both is not None and both.gain == pytest.approx(12.0)
    assert predict([CUDA_GRAPH], findings, found, "ttft_ms") is None


def test_the_bound_of_a_gpu_is_a_time_and_that_of_a_cpu_a_factor() -> None:
    promised = PredictedBound(gain=5.0, least=2.0, rules=("launch_bound",), parts=(), how="")
    # The host was busier alongside the experiment: 16 ms instead of 10, and still 2 ms of kernels.
    assert scaled_bound(promised, profiled=10.0, measured=16.0, is_cpu=False) == 8.0
    assert scaled_bound(promised, profiled=10.0, measured=16.0, is_cpu=True) == 5.0


def test_idle_time_too_short_for_a_finding_may_go_with_what_removes_idle_time() -> None:
    """Of 8 ms idle 7 are launches, a finding; 1 ms between kernels is none, and a graph removes both."""
    decode = phase("decode", wall=ms(10.0), gpu=gpu(2.0, wall=10.0, idle=idle(host=7.0, between=1.0), count=300))
    found = facts(decode, dtype="bfloat16")
    findings = diagnose_run(found, None).claims
    assert [(f.rule, round(f.saves_ms or 0.0, 6)) for f in findings if f.rule == "launch_bound"] == [
        ("launch_bound", 7.0)
    ]
    graph = predict([CUDA_GRAPH], findings, found, "tpot_ms")
    assert graph is not None and graph.gain == pytest.approx(5.0) and graph.least == pytest.approx(2.0)
    assert graph.how == "decode 10.00 ms less 8.000 ms without work leaves 2.000 ms (5.0×)"


def test_remedies_that_set_one_key_differently_do_not_combine() -> None:
    found = launch_bound()
    findings = diagnose_run(found, None).claims
    assert combine([REDUCE_OVERHEAD, COMPILE], findings, found, situation(), COSTS) is None
    both = combine([COMPILE, CUDA_GRAPH], findings, found, situation(), COSTS)
    assert both is not None and both.name == "compile+cuda_graph"
    assert both.overrides == ("infer.cache=static", "infer.compile=default", "infer.cuda_graph=true")


def run_search(
    gains: Mapping[str, float], *, most: int | None = None, left_s: float = 1e9
) -> tuple[list[str], ExperimentSearch]:
    """The order of a search whose experiments come out like this over the start; those not named fail."""
    search = ExperimentSearch(
        plan=plan_of(launch_bound(), situation(packages=frozenset({"torchao"}))), situation=situation(), most=most
    )
    order = []
    while (candidate := search.next(left_s)) is not None:
        order.append(candidate.name)
        gain = gains.get(candidate.name)
        search.record(candidate, helped=gain is not None and gain > 1.02, total_gain=gain)
    return order, search


def test_singles_come_first_and_what_helped_is_combined() -> None:
    order, search = run_search({"compile": 1.3, "cuda_graph": 4.0, "cuda_graph+compile": 6.0})
    assert order[:2] == ["joined_projections", "cuda_graph"]
    assert order.index("compile") < order.index("cuda_graph+compile")
    assert search.best is not None and search.best.candidate.name == "cuda_graph+compile"
    assert len(order) == len(set(order))


def test_a_cheap_combination_is_tried_before_a_compilation() -> None:
    """Compiling takes a minute: what both cheap fixes bring together is known before it."""
    order, search = run_search({"joined_projections": 1.2, "cuda_graph": 3.0, "cuda_graph+joined_projections": 3.5})
    assert order[:3] == ["joined_projections", "cuda_graph", "cuda_graph+joined_projections"]
    assert {"compile", "reduce_overhead"} <= set(order[3:])
    assert search.best is not None and search.best.candidate.name == "cuda_graph+joined_projections"
    # What the user gave comes first, regardless of its cost.
    mine = replace(search.plan, given=("compile",), candidates=search.plan.candidates[:0])
    compiled = next(one for one in search.plan.candidates if one.name == "compile")
    asked = ExperimentSearch(plan=replace(mine, candidates=(compiled,)), situation=situation())
    asked.tried, asked.best = search.tried[:2], search.tried[1]
    assert asked.next(1e9) == compiled


def test_what_costs_less_is_tried_before_what_promises_little_more() -> None:
    """Known costs may change the order; what the user gave stays in front."""
    mine = Remedy(id="mine", title="mine", environment={"A": "1"})
    plan = plan_of(launch_bound(), situation(), [mine])
    first, *_, slow = plan.candidates
    slow, fast = replace(slow, remedies=(REDUCE_OVERHEAD,), order=3.9), replace(slow, remedies=(CUDA_GRAPH,), order=2.1)
    plan = replace(plan, candidates=(first, slow, fast))
    known = with_costs(plan, Costs(start_s=10.0, pass_s=1.0))
    assert [(c.name, c.cost_s) for c in known.candidates] == [
        ("mine", 18.0),
        ("cuda_graph", 19.0),
        ("reduce_overhead", 43.0),
    ]


def test_the_cheapest_promising_experiment_comes_first() -> None:
    """A model in float32 on a CPU: bfloat16 and a static cache need no compiling, which can use up a whole budget."""
    ids = ("bfloat16", "static_cache", "one_thread")
    where = situation(is_cpu=True, dtype="float32")
    plan = plan_of(launch_bound([CAT]), where, [EXPERIMENTS[name] for name in ids])
    orders = {"compile": 49.0, "bfloat16": 1.9, "static_cache": 2.4, "one_thread": 1.05}
    known = replace(
        plan, given=(), candidates=tuple(replace(c, order=orders[c.name]) for c in plan.candidates if c.name in orders)
    )
    ranked = with_costs(known, COSTS)
    assert [c.name for c in ranked.candidates] == ["static_cache", "bfloat16", "compile", "one_thread"]
    # Bounds this large order nothing: those of equal cost stay as the causes name them.
    unlimited = replace(
        known, candidates=tuple(replace(c, order=92.0 - n) for n, c in enumerate(known.candidates[::-1]))
    )
    assert [c.name for c in with_costs(unlimited, COSTS).candidates][:3] == [
        c.name for c in known.candidates[::-1] if c.name != "compile"
    ]


def test_a_static_cache_is_among_what_is_tried_against_growing_caches() -> None:
    naming = {cause.id for cause in load_causes() if "static_cache" in cause.experiments}
    assert naming == {"growing_cat", "above_bound"}
    tried = plan_of(launch_bound([CAT]), situation(), [EXPERIMENTS["static_cache"]])
    assert tried.candidates[0].overrides == ("infer.cache=static",)
    copies = plan_of(launch_bound(), situation(), [EXPERIMENTS["static_cache"]])
    assert {r.remedy.id: r.why for r in copies.refused}["static_cache"].startswith("copy kernels take less than 10 %")


def test_a_combination_is_not_tried_where_its_parts_say_enough() -> None:
    gains = {"cuda_graph": 4.0, "compile": 1.1, "joined_projections": 1.2, "reduce_overhead": 1.0}
    order, search = run_search({**gains, "cuda_graph+joined_projections": 1.0, "cuda_graph+compile": 5.0})
    assert "cuda_graph+compile+joined_projections" not in order and "joined_projections+compile" not in order
    why = {p.candidate.name: p.why for p in search.passed}
    assert why["cuda_graph+compile+joined_projections"] == (
        "cuda_graph+joined_projections did not help, which is a part of it"
    )
    assert why["joined_projections+compile"] == (
        "its parts brought 1.32× if they multiply, and cuda_graph+compile brings 5.0× already"
    )


def test_what_is_not_worth_it_alone_may_be_beside_what_helped() -> None:
    """The graph alone brings 5 at most, less than the best; with a compiled step inside it could bring more."""
    order, search = run_search({"joined_projections": 6.0, "compile": 1.3, "compile+cuda_graph": 7.0})
    assert "cuda_graph" not in order and "compile+cuda_graph" in order
    assert search.best is not None and search.best.candidate.name == "compile+cuda_graph"


def test_what_cannot_beat_the_best_is_passed_over_with_its_bound() -> None:
    order, search = run_search({"joined_projections": 6.0})
    assert "cuda_graph" not in order
    why = {p.candidate.name: p.why for p in search.passed}
    assert why["cuda_graph"] == "it could bring 5.0× at most, and joined_projections brings 6.0× already"


def test_a_search_ends_at_its_number_and_at_its_budget() -> None:
    order, search = run_search({}, most=2)
    assert len(order) == 2 and len(search.unseen()) >= 1
    order, search = run_search({}, left_s=5.0)
    assert order == [] and all("of the budget are left" in p.why for p in search.passed)


AGREES = Agreement(
    samples=2,
    positions=64,
    tokens_equal=True,
    first_difference=None,
    top1=1.0,
    kl_mean=1e-9,
    kl_max=1e-8,
    flip_gap=0.0,
    logit_rms=1.0,
    dtype="bfloat16",
)


@pytest.mark.parametrize(
    ("changes", "is_lossy", "verdict"),
    [
        ({}, False, "equal"),
        ({"tokens_equal": False, "kl_mean": 1e-4, "flip_gap": 0.05, "top1": 0.95}, False, "within rounding"),
        ({"tokens_equal": False, "kl_mean": 1e-4, "flip_gap": 0.2, "top1": 0.95}, False, "different"),
        ({"tokens_equal": False, "kl_mean": 0.01, "flip_gap": 0.05, "top1": 0.95}, False, "different"),
        # The same distance is not rounding in float32.
        ({"tokens_equal": False, "kl_mean": 1e-4, "flip_gap": 0.05, "dtype": "float32"}, False, "different"),
        ({"tokens_equal": False, "kl_mean": 0.01, "flip_gap": 2.0, "top1": 0.95}, True, "within limits"),
        ({"tokens_equal": False, "kl_mean": 0.06, "flip_gap": 2.0, "top1": 0.95}, True, "different"),
        ({"tokens_equal": False, "kl_mean": 0.01, "flip_gap": 2.0, "top1": 0.8}, True, "different"),
    ],
)
def test_outputs_hold_by_tokens_by_rounding_or_by_stated_limits(
    changes: Mapping[str, object], is_lossy: bool, verdict: str
) -> None:
    found = check_outputs(replace(AGREES, **changes), is_lossy=is_lossy, limits=LossLimits())  # type: ignore[arg-type]
    assert found.verdict == verdict
    assert f"{found.agreement.kl_mean:.1e}" in found.text if found.agreement else False


def passes(*values: float) -> list[dict[str, list[RepeatedValue]]]:
    return [{"tpot_ms": [RepeatedValue(sample_id="a", repeat=n, value=v)]} for n, v in enumerate(values)]


def test_gains_are_of_pairs_and_outputs_come_before_speed() -> None:
    # The machine slowed down by half on the way; pairs do not mind.
    found = compare_passes(passes(10, 12, 14, 15), passes(5, 6, 7, 7.5), ("tpot_ms", "ttft_ms"), paired=True)
    assert found["tpot_ms"].change.gain == pytest.approx(2.0) and "ttft_ms" not in found
    equal = check_outputs(AGREES, is_lossy=False, limits=LossLimits())
    assert judge_experiment(found["tpot_ms"], equal, [], objective="tpot_ms")[0] == "helped"
    other = replace(equal, verdict="different")
    assert judge_experiment(found["tpot_ms"], other, [], objective="tpot_ms")[0] == "wrong"
    assert judge_experiment(found["tpot_ms"], equal, ["too large"], objective="tpot_ms")[0] == "over a limit"
    same = compare_passes(passes(10, 10.1, 9.9, 10), passes(10, 10, 10, 10), ("tpot_ms",), paired=True)
    assert judge_experiment(same["tpot_ms"], equal, [], objective="tpot_ms")[0] == "no gain"
    # At the first interim analysis little of the error probability may be spent, and yet the interval that is shown
    # leaves no gain.
    pair = [10.0, 10.1, 9.9, 10.0], [10.9, 10.8, 10.9, 11.0]
    slower = compare_passes(passes(*pair[0]), passes(*pair[1]), ("tpot_ms",), paired=True, spent=1e-6)["tpot_ms"]
    faster = compare_passes(passes(*pair[1]), passes(*pair[0]), ("tpot_ms",), paired=True, spent=1e-6)["tpot_ms"]
    assert (slower.verdict, faster.verdict) == ("inconclusive", "inconclusive")
    assert judge_experiment(slower, equal, [], objective="tpot_ms") == (
        "slower", "0.92× in tpot_ms, 95 %: 0.89 to 0.94×",
    )  # fmt: skip
    assert judge_experiment(faster, equal, [], objective="tpot_ms") == (
        "no gain",
        "1.09× in tpot_ms, 95 %: 1.06 to 1.12×: too small or too uncertain, given several interim tests, "
        "to count as a gain",
    )
    assert judge_experiment(None, equal, [], objective="ttft_ms") == (
        "failed",
        "ttft_ms was not measured on both sides",
    )


def test_what_was_tried_and_did_not_help_is_not_advised_again() -> None:
    rule = next(cause for cause in load_causes() if len(cause.experiments) > 1)
    ids = rule.experiments
    found = Finding(
        rule=rule.id, title="It waits", phase="decode", evidence=(), remedy="do this or that", saves_ms=1.0,
        max_gain=2.0, confidence="high", source="nsys/analysis.json", experiments=ids,
    )  # fmt: skip
    one, every = [row(ids[0], status="slower")], [row(name, status="slower") for name in ids]
    assert left_words([found], [row(ids[0], status="helped")]) == ("It waits: do this or that",)
    assert left_words([found], one) == (f"It waits: do this or that (tried: {ids[0]} (slower))",)
    assert left_words([found], every) == (f"It waits; tried: {', '.join(f'{name} (slower)' for name in ids)}",)
    assert left_words([replace(found, experiments=())], every) == ("It waits: do this or that",)


def test_pairs_end_where_a_gain_is_out_of_reach() -> None:
    def hopeless(before: Sequence[float], after: Sequence[float]) -> bool:
        return is_hopeless(compare_passes(passes(*before), passes(*after), ("tpot_ms",), paired=True)["tpot_ms"])

    # A little slower, within the noise: no verdict, and more pairs would not make it a gain.
    assert hopeless((10.0, 10.1, 9.9, 10.0), (10.2, 10.1, 10.1, 10.1))
    assert not hopeless((10.0, 10.1, 9.9, 10.0), (9.9, 9.9, 9.6, 10.0))
    assert not is_hopeless(None)
    faster = compare_passes(
        [{"tokens_per_s": p["tpot_ms"]} for p in passes(10.0, 10.1, 9.9, 10.0)],
        [{"tokens_per_s": p["tpot_ms"]} for p in passes(10.2, 10.3, 10.2, 10.1)],
        ("tokens_per_s",),
        paired=True,
    )
    assert not is_hopeless(faster["tokens_per_s"])


def test_limits_are_absolute_or_against_the_start_and_unknown_is_not_kept() -> None:
    limits = [parse_condition(text, "--constraint") for text in ("peak_gb<=80", "ttft_ms<=+10%", "tokens_per_s>=5")]
    values = {"peak_gb": 81.0, "ttft_ms": 105.0, "tokens_per_s": None}
    assert broken_constraints(limits, values, {"ttft_ms": 100.0}) == [
        "peak_gb is 81.00, the limit is peak_gb<=80",
        "tokens_per_s is not known, so tokens_per_s>=5 cannot be verified",
    ]


def row(name: str, **changes: object) -> ExperimentRow:
    plain = ExperimentRow(
        name=name,
        title=name,
        overrides=(),
        environment={},
        is_lossy=False,
        status="helped",
        reason="",
        against="start",
        bound=PredictedBound(gain=2.0, least=5.0, rules=("launch_bound",), parts=(), how=""),
        bound_held="held",
        changes=(),
        total_gain=1.5,
        check=None,
        peak_memory_bytes=None,
        start_s=None,
        compile_s=None,
        break_even_tokens=None,
        pairs=4,
        how="",
        log=None,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_a_gain_above_the_bound_is_counted_against_its_rule() -> None:
    assert bound_held(1.5, 1.4, 2.0) == "held"
    assert bound_held(2.2, 2.1, 2.0) == "exceeded"
    assert bound_held(2.2, 1.9, 2.0) == "exceeded within the noise"
    assert bound_held(2.2, 1.9, None) is None
    rows = [row("a"), row("b", bound_held="exceeded", total_gain=2.4), row("c", bound=None, bound_held=None)]
    (found,) = calibrate_rules(rows, "tpot_ms")
    assert (found.rule, found.experiments, found.held, found.exceeded, found.worst) == ("launch_bound", 2, 1, 1, "b")


def change_of(gain: float) -> MetricChange:
    return MetricChange(metric="tpot_ms", unit="ms", before=10.0, after=10.0 / gain, gain=gain, low=gain, high=gain)


def test_a_cause_has_the_best_gain_of_what_was_tried_for_it_alone() -> None:
    rows = [
        row("a", status="slower", changes=(change_of(0.9),)),
        row("b", status="helped", changes=(change_of(1.4),)),
        row("c", status="wrong", changes=(change_of(3.0),)),
        row("a+b", is_combined=True, status="helped", changes=(change_of(2.0),)),
        row("given", bound=None, changes=(change_of(5.0),)),
    ]
    assert gains_of_causes(rows, "tpot_ms") == {"launch_bound": 1.4}
    assert gains_of_causes(rows, "ttft_ms") == {}


def test_compiling_pays_after_the_tokens_that_save_as_much() -> None:
    assert break_even_tokens(20.0, 10.0, 2.0) == 2500
    assert break_even_tokens(20.0, 2.0, 10.0) is None
    assert break_even_tokens(None, 10.0, 2.0) is None


def candidate(*remedies: Remedy) -> TrialSet:
    found = combine(remedies, (), None, situation(), COSTS)
    assert found is not None
    return found


def test_the_recommended_file_composes_on_top_of_the_experiment_that_was_chosen(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = experiment_yaml(candidate(COMPILE, CUDA_GRAPH), sentence="10 → 2 ms.", parents=["demo"])
    (tmp_path / "experiment" / "optimized.yaml").write_text(text)
    found = compose_config(["experiment=optimized"], ConfigEntry(extra_dir=tmp_path))
    assert (found.infer.cache, found.infer.compile, found.infer.cuda_graph) == ("static", "default", True)
    demo = compose_config(["experiment=demo"], ConfigEntry())
    assert (found.model, found.infer.max_new_tokens) == (demo.model, demo.infer.max_new_tokens)
    assert "torch.cuda.graph(graph)" in pasted_code(candidate(CUDA_GRAPH))


def test_every_remedy_of_a_rule_sets_something_and_says_how_it_is_done_by_hand() -> None:
    found = {name: EXPERIMENTS[name] for cause in load_causes() for name in cause.experiments}
    assert len(found) >= 10 and found[INT8_WEIGHTS.id].guard == Guard(own_loop=True, text_model=True, package="torchao")
    empty = [r.id for r in found.values() if not (r.sets or r.environment or r.batch > 1) or not r.code]
    assert empty == []


def test_the_way_from_start_to_best_goes_through_what_each_was_measured_beside() -> None:
    (first,) = compare_passes(passes(10, 10, 10, 10), passes(2, 2, 2, 2), ("tpot_ms",), paired=True).values()
    (second,) = compare_passes(passes(2, 2, 2, 2), passes(1, 1, 1, 1), ("tpot_ms",), paired=True).values()
    rows = [row("a", changes=(first.change,)), row("a+b", against="a", changes=(second.change,))]
    start = StartRow(metrics={"tpot_ms": 10.0}, peak_memory_bytes=None, start_s=1.0, passes=4)
    path = path_to_best(start, rows, "a+b", "tpot_ms")
    assert [(s.name, s.value) for s in path] == [("start", 10.0), ("a", 2.0), ("a+b", 1.0)]
    said = in_words(objective="tpot_ms", path=path, gain=10.0, low=9.0, high=11.0, check="equal", tried=3, left_out=0)
    assert said == "tpot_ms 10.00 → 1.000 ms, 10.0× (95 %: 9.00 to 11.00×) with a → a+b; outputs equal."
    none = in_words(objective="tpot_ms", path=path[:1], gain=None, low=None, high=None, check=None, tried=3, left_out=0)
    assert none == "No gain in tpot_ms: none of 3 experiments was better and kept its outputs."
    limited = [
        in_words(
            objective="tpot_ms", path=path[:1], gain=None, low=None, high=None, check=None, tried=tried, left_out=0,
            over_limit=["a"],
        )
        for tried in (1, 3)
    ]  # fmt: skip
    assert limited == [
        "Nothing is recommended: of 1 experiment for tpot_ms, a broke a limit.",
        "Nothing is recommended: of 3 experiments for tpot_ms, a broke a limit, and no other helped.",
    ]
    why = {
        left_out: in_words(
            objective="tpot_ms", path=[], gain=None, low=None, high=None, check=None, tried=0, left_out=left_out
        )
        for left_out in (0, 9)
    }
    assert why == {
        0: "Nothing was tried: no finding names a fix.",
        9: "Nothing was tried: the reason for each of 9 fixes is below.",
    }


def test_the_last_look_at_the_pairs_may_take_what_earlier_ones_left_of_the_chance_to_err() -> None:
    shares = [look_share(pairs, is_last=False) for pairs in PAIR_LOOKS]
    assert sum(shares) == pytest.approx(1.0) and shares == sorted(shares)
    assert look_share(2, is_last=True) == 1.0
    assert look_share(3, is_last=True) == pytest.approx(1.0 - shares[0])


def test_a_step_beside_another_shows_its_gain_and_interval_over_the_start() -> None:
    change = MetricChange(metric="tpot_ms", unit="ms", before=28.0, after=35.0, gain=0.8, low=0.75, high=0.85)
    beside = row("b", status="slower", against="a", changes=(change,), total_gain=1.6)
    assert beside.total_interval("tpot_ms") == pytest.approx((1.5, 1.7))
    assert row_cells(beside, "tpot_ms")[1:5] == ("slower than a", "2.0×", "1.60×", "1.50 to 1.70×")
    assert row_cells(replace(beside, against="start"), "tpot_ms")[1] == "slower"
    (bar,) = gain_bars([beside], "tpot_ms")
    assert bar.at is not None and bar.left < bar.at < bar.left + bar.width

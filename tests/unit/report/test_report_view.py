"""What the pages decide: merged findings, advice not followed yet, the bar of a request, names that hit nothing."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.core.documents import Deployment
from llm_perf_opt.core.manifest import read_manifest, write_manifest
from llm_perf_opt.core.records import CommandRecord, CommandStep, Metric, Spread
from llm_perf_opt.diagnosis.diagnosis_document import Coverage, Diagnosis, Program, ScopeRecord, Verdict
from llm_perf_opt.diagnosis.facts import Known, RunFacts, Unknown
from llm_perf_opt.diagnosis.ledger import Cell, Finding
from llm_perf_opt.diagnosis.run import diagnose_run
from llm_perf_opt.report.render.glossary import words
from llm_perf_opt.report.render.roofline_layout import WIDTH, layout_roofline
from llm_perf_opt.report.run_facts import unbeaten
from llm_perf_opt.report.run_files import LOG_LINES, read_run_files
from llm_perf_opt.report.view.captured import captured_split
from llm_perf_opt.report.view.cost import MillionTokens, million_tokens
from llm_perf_opt.report.view.findings import findings_view
from llm_perf_opt.report.view.headline import is_worth_it
from llm_perf_opt.report.view.modules import ModulesView, OperatorView, operators_split
from llm_perf_opt.report.view.program_view import faster_than_possible
from llm_perf_opt.report.view.report_view import ReportView, build_view
from llm_perf_opt.report.view.roofline_view import MOST_POINTS, Point, Roof, RooflineView
from llm_perf_opt.report.view.shown import Shown, format_spread
from llm_perf_opt.report.write import write_reports
from tests.support.report_facts import facts, gpu, idle, kernel, ms, ncu, phase
from tests.support.report_runs import capture, clean, program_without_phases, stage, write_run

SOME_STATS = {"mean": 1.0, "std": 0.0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "n": 3}


def diagnose(found: RunFacts) -> tuple[Finding, ...]:
    return diagnose_run(found, None).claims


def view_of(run: Path) -> ReportView:
    return build_view(read_run_files(read_manifest(run), run))


def bound_phases(**parts: object):  # type: ignore[no-untyped-def]
    """Two phases that wait for launches; a request is one prefill and nine steps."""
    waits = idle(host=8.0)
    chain = tuple(kernel(f"elementwise_{i}", "elementwise", 0.01, launches=30) for i in range(2))
    return facts(
        phase("prefill", wall=ms(20.0), gpu=gpu(4.0, wall=20.0, idle=waits, kernels=chain), steps_per_request=1.0),
        phase("decode", wall=ms(10.0), gpu=gpu(2.0, wall=10.0, idle=waits, kernels=chain), steps_per_request=9.0),
        **parts,
    )


def test_the_same_finding_of_both_phases_is_one_with_the_time_of_a_request() -> None:
    found = bound_phases(request_ms=150.0)
    (first, *_) = findings_view(diagnose(found), found)
    assert (first.rule, first.phase) == ("launch_bound", "decode and prefill")
    # 9 steps of 8 ms and a prefill of 16 ms, of 150 ms.
    assert (first.saves, first.saves_each) == ("up to 88.00 ms per request", "8.000 ms per token, 16.00 ms per prompt")
    assert first.gain == "2.4× over a request (5.0× in decode, 5.0× in prefill)"
    assert {text.text.split(":")[0] for text in first.evidence} == {"prefill", "decode"}


def test_findings_stay_in_the_order_of_the_diagnosis_and_twins_stand_with_the_first() -> None:
    waits, chain = idle(host=0.1), (kernel("elementwise_0", "elementwise", 0.01, launches=30),)
    found = facts(
        phase("prefill", wall=ms(20.0), gpu=gpu(19.0, wall=20.0, idle=waits, kernels=chain), steps_per_request=1.0),
        phase("decode", wall=ms(10.0), gpu=gpu(9.0, wall=10.0, idle=waits, kernels=chain), steps_per_request=2.0),
    )
    alone = Finding(
        rule="low_occupancy", title="one", phase="decode", evidence=(), remedy="a", saves_ms=2.0, max_gain=1.1,
        confidence="low", source="nsys/analysis.json",
    )  # fmt: skip
    twin = replace(alone, rule="small_gemm", title="two", saves_ms=1.5, remedy="b")
    other = replace(twin, title="three", phase="prefill", saves_ms=3.5)
    views = findings_view((other, alone, twin), found)
    assert [(f.title, f.also, f.saves) for f in views] == [
        ("three", ("two",), "up to 6.500 ms per request"),
        ("one", (), "up to 4.000 ms per request"),
    ]


def test_advice_that_is_followed_already_is_not_given_again() -> None:
    plain = {f.rule: f for f in diagnose(bound_phases()) if f.phase == "decode"}
    run = Deployment(compile="default", cache="static")
    done = {f.rule: f for f in diagnose(bound_phases(deployment=run)) if f.phase == "decode"}
    assert "fuse elementwise kernels with torch.compile" in plain["launch_bound"].remedy
    assert "fuse elementwise kernels with torch.compile" not in done["launch_bound"].remedy
    assert (plain["launch_bound"].hint, done["launch_bound"].hint) == (
        "CUDA graphs or torch.compile",
        "CUDA graphs",
    )
    graphs = diagnose(bound_phases(deployment=Deployment(compile="reduce-overhead")))
    remedies = {f.phase: f.remedy for f in graphs if f.rule == "launch_bound"}
    assert remedies["decode"].startswith("the program replays CUDA graphs already")
    # Ours compiles the decode step alone.
    assert remedies["prefill"].startswith("compile the prefill too")


def test_a_program_faster_than_the_model_it_is_said_to_run_is_told_so() -> None:
    honest = facts(phase("decode", wall=ms(1.3), achievable=ms(1.4)))
    assert faster_than_possible(honest, "llama3_1b") is None
    said = faster_than_possible(facts(phase("prefill", wall=ms(2.0), datasheet=ms(9.0))), "llama3_1b")
    assert said is not None and said.startswith("Prefill took 2.000 ms, and llama3_1b needs at least 9.000 ms here: ")


def test_a_bound_the_run_itself_beat_is_none() -> None:
    """A CPU's rates are measured alongside the run, on a machine that may be busy at that moment."""
    assert unbeaten(ms(2.0), ms(3.0)) == ms(2.0)
    beaten = unbeaten(ms(9.0), ms(3.0))
    assert isinstance(beaten, Unknown)
    assert beaten.reason.startswith(
        "the run took 3.000 ms, less than the 9.000 ms that rates measured on this CPU allow"
    )


def test_a_request_is_one_bar_from_preparation_to_text(tmp_path: Path) -> None:
    spread = Spread(p10=9.0, p90=11.0, n=7)
    times = {"prepare_ms": 30.0, "ttft_ms": 10.0, "prefill_ms": 9.5, "decode_ms": 50.0, "tpot_ms": 5.0, "post_ms": 10.0}
    metrics = {
        key: Metric(value=value, unit="ms", how="clean pass, median of 7", source="m.json", spread=spread)
        for key, value in times.items()
    } | {"tokens": Metric(value=11, unit="tokens", how="clean pass", source="m.json")}
    write_run(tmp_path, stage("torch_profiler", tmp_path, metrics=metrics))
    view = view_of(tmp_path)
    request = view.request
    assert request is not None
    assert [(p.key, p.text, p.share, p.left_pct) for p in request.parts] == [
        ("prepare", "30.00 ms", "30.0 %", 0.0),
        ("prefill", "10.00 ms", "10.0 %", 30.0),
        ("decode", "50.00 ms", "50.0 %", 40.0),
        ("post", "10.00 ms", "10.0 %", 90.0),
    ]
    assert (request.total, request.per_token, request.missing) == ("100.0 ms", "9.091 ms", ())
    assert {p.spread for p in request.parts} == {"p10–p90 9.000–11.00 ms, n = 7"}
    decode = next(fall for fall in view.waterfalls if fall.phase == "decode")
    wall = next(row for row in decode.rows if row.key == "wall")
    assert (wall.total, wall.request_total, decode.request_title) == (
        "5.000 ms", "50.00 ms", "Decode, per request (10 steps)",
    )  # fmt: skip


def test_a_request_is_called_whole_only_with_all_its_parts(tmp_path: Path) -> None:
    cases = (
        (clean(ttft_ms=10.0, decode_ms=50.0), "A request: prefill and decode"),
        (clean(ttft_ms=10.0, decode_ms=50.0, prepare_ms=30.0, post_ms=10.0), "A whole request"),
    )
    for metrics, title in cases:
        write_run(tmp_path, stage("torch_profiler", tmp_path, metrics=metrics))
        write_reports(tmp_path)
        assert f'<h2 id="h-request">{title}</h2>' in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_request_of_which_one_phase_is_unknown_has_no_shares(tmp_path: Path) -> None:
    write_run(tmp_path, stage("torch_profiler", tmp_path, metrics=clean(prefill_ms=10.0, tpot_ms=5.0)))
    request = view_of(tmp_path).request
    assert request is not None
    assert [(p.key, p.text, p.share) for p in request.parts] == [("prefill", "10.00 ms", "")]
    assert not request.is_whole
    reasons = {label: why.reason for label, why in request.missing}
    assert reasons["decode"] == "5.000 ms per token, the number of tokens is not known"


def test_a_server_under_load_is_told_by_throughput_latency_and_kept_limits(tmp_path: Path) -> None:
    def number(value: float, unit: str) -> Metric:
        return Metric(value=value, unit=unit, how="concurrency 16, 40 requests", source="bench/bench.json")

    metrics = {
        "serve_output_tokens_per_s": number(4008.5, "tokens/s"),
        "serve_ttft_ms": number(43.23, "ms"),
        "serve_requests_per_s": number(250.0, "requests/s"),
        "serve_goodput_per_s": number(187.5, "requests/s"),
    }
    write_run(tmp_path, stage("bench", tmp_path, metrics=metrics))
    view = view_of(tmp_path)
    assert view.headline.verdict == (
        "4,008.5 output tokens per second with concurrency 16, 40 requests: median TTFT 43.23 ms; 75.0 % of the "
        "requests met every SLO."
    )
    late = {**metrics, "serve_client_late_ms": number(9.6, "ms")}
    write_run(tmp_path / "late", stage("bench", tmp_path, metrics=late))
    assert view_of(tmp_path / "late").headline.verdict.startswith(
        "Invalid, because the client was late by 9.600 ms on average: 4,008.5 output tokens per second with concurrency"
    )
    capacity = Metric(
        value=15.4, unit="requests/s", how="requests/s that meet TTFT ≤ 300 ms", source="bench/bench.json"
    )
    write_run(tmp_path / "search", stage("bench", tmp_path, metrics={**metrics, "serve_capacity": capacity}))
    assert view_of(tmp_path / "search").headline.verdict.startswith(
        "Capacity: 15.4 requests/s that meet TTFT ≤ 300 ms. At the highest load that met them 4,008.5 output tokens per"
    )
    # No stage of our own inference could have been run here.
    assert (view.parts, view.provenance.not_run, view.headline.split) == ((), (), None)


def test_the_verdict_promises_nothing_nobody_would_notice() -> None:
    waits = idle(host=0.5)
    prefill = phase("prefill", wall=ms(200.0), gpu=gpu(199.0, wall=200.0, idle=idle(host=1.0)), steps_per_request=1.0)
    decode = phase("decode", wall=ms(1.0), gpu=gpu(0.5, wall=1.0, idle=waits), steps_per_request=4.0)
    decode = replace(decode, steps_per_request=8.0)
    found = facts(prefill, decode, request_ms=208.0)
    launches = next(f for f in diagnose(found) if f.rule == "launch_bound" and f.phase == "decode")
    # Twice as fast in decode, and 4 of 208 ms of a request.
    assert launches.max_gain == pytest.approx(2.0) and not is_worth_it(launches, found)
    assert is_worth_it(launches, facts(prefill, replace(decode, steps_per_request=400.0), request_ms=600.0))


def test_operators_say_where_time_goes_where_nothing_was_timed() -> None:
    def operator(name: str, own_ms: float, share: float) -> OperatorView:
        return OperatorView(name=name, calls=1, self_cpu_ms=own_ms, self_device_ms=None, share=share)

    view = ModulesView(
        phases=(), operators=tuple(operator(f"op{i}", 8.0 / 2**i, 0.4 / 2**i) for i in range(5)),
        operators_by="CPU time", operators_of="operator time", operator_count=5, operators_source=None, double_entry=(),
        static_source=None, time_missing=None, operators_missing=None, double_entry_missing=None,
    )  # fmt: skip
    split = operators_split(view)
    assert split is not None and (split.what, split.total) == ("self CPU time, profiled pass", "20.00 ms")
    assert [(part.label, part.share) for part in split.parts] == [
        ("op0", 0.4), ("op1", 0.2), ("op2", 0.1), ("other operators", pytest.approx(0.3)),
    ]  # fmt: skip


def test_a_program_without_phases_is_told_what_part_of_it_operators_are_and_that_nothing_was_judged(
    tmp_path: Path,
) -> None:
    view = view_of(program_without_phases(tmp_path, 4000.0))
    assert view.headline.split is not None and view.headline.split.note == (
        "Operators have 400.0 ms of CPU time; the whole program took 4,000 ms without a profiler, so they are about "
        "10.0 % of it, by times that a profiler makes longer. Start-up, imports and code "
        "outside operators are not in it."
    )
    assert view.headline.warnings == ()
    write_reports(tmp_path)
    said = "Without marked phases nothing can be judged against a limit: put "
    pages = [(tmp_path / name).read_text("utf-8") for name in ("report.html", "report.md", "stakeholder_summary.md")]
    assert [said in page for page in pages] == [True, True, True]
    assert not [page for page in pages if "No rule found" in page or "Nothing stood out" in page]


def test_runs_of_a_program_that_do_not_agree_are_told_of(tmp_path: Path) -> None:
    steady = view_of(program_without_phases(tmp_path / "steady", 1000.0, 1200.0, 1100.0))
    assert steady.headline.warnings == ()
    view = view_of(program_without_phases(tmp_path / "unsteady", 3000.0, 1000.0, 1000.0))
    assert view.headline.warnings == (
        "the 3 runs of the program took between 1,000 ms and 2,600 ms (p10 to p90): the first may have filled "
        "caches, or other programs ran; more workload.repeats say more",
    )


def test_a_spread_names_its_unit_once_and_one_measurement_has_none() -> None:
    assert format_spread(Spread(p10=1.0, p90=1.0, n=1), "ms") == "n = 1"
    assert format_spread(Spread(p10=9.0, p90=11.0, n=7), "ms") == "p10–p90 9.000–11.00 ms, n = 7"
    assert format_spread(Spread(p10=0.05, p90=0.2, n=7), "ms") == "p10–p90 50.0 µs – 0.200 ms, n = 7"


def scope(name: str, wall_ns: int, **cells: int) -> ScopeRecord:
    """A scope of a capture; `__` in a cell's name is a dot of its id."""
    return ScopeRecord(
        id=name, kind="capture", place="the capture", wall_ns=wall_ns, clean=False, instances=1, processes=1,
        source="run.sqlite", cells=tuple(Cell(id=k.replace("__", "."), time_ns=ns) for k, ns in cells.items()),
        kernels=(),
    )  # fmt: skip


def test_a_capture_is_called_by_its_file_and_its_bar_is_the_ledger_of_the_steady_state(tmp_path: Path) -> None:
    found = capture(("gemm", 4, 4_000_000))
    paths = [replace(found.sources[0], path=f"/captures/of/rank{i}.json.gz") for i in range(3)]
    whole = scope("capture", 80_000_000, idle__startup=72_000_000, gpu__compute__GEMM=8_000_000)
    steady = scope("steady", 8_000_000, gpu__compute__GEMM=4_000_000, idle__launch=3_000_000, gpu__copy__h2d=1_000_000)
    diagnosis = Diagnosis(
        verdict=Verdict(kind="largest_cell", text="GPU busy 50.0 % of the steady state."),
        program=Program(framework="torch", engine=None, gpu_name=None, world_size=1, ranks_given=1, traits=("torch",)),
        scopes=(whole, replace(steady, place="the steady state")),
        claims=(),
        coverage=Coverage(recorded=("kernels",), missing=("Python frames",), unrecorded_share=0.25, lost_launches=3),
    )
    data = replace(found, sources=tuple(paths), diagnosis=diagnosis)
    write_run(tmp_path, stage("nsys", tmp_path, {"analysis_json": ("analysis.json", data)}), config={"analyze": {}})
    view = view_of(tmp_path)
    head = view.headline
    assert head.title == "rank0.json.gz, rank1.json.gz and 1 more"
    assert (head.verdict, head.tone) == ("GPU busy 50.0 % of the steady state.", "warn")
    assert head.split is not None and (head.split.what, head.split.total) == ("the steady state", "8.000 ms")
    assert [(part.label, part.kind, part.share) for part in head.split.parts] == [
        ("kernels", "work", 0.5),
        ("CPU launch overhead", "idle", 0.375),
        ("exposed copies", "idle", 0.125),
    ]
    busy = next(tile.cell for tile in head.tiles if tile.label == "GPU busy")
    assert isinstance(busy, Shown)
    assert (busy.text, busy.how) == ("50.0 %", "of the steady state, 8.000 ms, start-up left out")
    ledger = view.ledger
    assert ledger is not None
    assert (ledger.title, ledger.paragraphs) == (
        "Time ledger",
        (
            "Recorded: kernels. Not recorded: Python frames.",
            "Nothing recorded says what happened in 25.0 % of the time judged.",
            "3 launches have no record of the GPU work they started.",
        ),
    )
    assert [table.title for table in ledger.tables] == [
        "the steady state: 8.000 ms, under the profiler",
        "the capture: 80.00 ms, under the profiler",
    ]
    assert ledger.tables[0].rows == (
        ("kernels: GEMM", "4.000", "50.00"),
        ("CPU launch overhead", "3.000", "37.50"),
        ("exposed copies: h2d", "1.000", "12.50"),
    )


def test_the_bar_of_a_program_goes_from_its_imports_to_its_exit() -> None:
    program = scope(
        "program", 10, host__exit=1, host__wait__sleep=1, host__startup__model=1, host__work__json=3,
        host__startup__imports=2, host__work__python=2,
    )  # fmt: skip
    diagnosis = Diagnosis(
        verdict=Verdict(kind="largest_cell", text=""),
        program=Program(framework="other", engine=None, gpu_name=None, world_size=1, ranks_given=1, traits=()),
        scopes=(replace(program, kind="program", place="the program", clean=True),),
        claims=(),
        coverage=Coverage(recorded=(), missing=(), unrecorded_share=0.0),
    )
    split = captured_split(diagnosis)
    assert split is not None
    assert [part.label for part in split.parts] == [
        "imports",
        "model construction",
        "serialisation",
        "Python",
        "sleep",
        "exit",
    ]
    # A trace of a part of it does not take the place of the whole.
    traced = replace(
        diagnosis,
        verdict=Verdict(kind="finding", text="", scope="program"),
        scopes=(*diagnosis.scopes, scope("capture", 4, host__operators=4)),
    )
    assert captured_split(traced) == split


def test_a_failure_is_shown_once_with_the_end_of_what_the_program_said(tmp_path: Path) -> None:
    stages = []
    for name in ("torch_profiler", "nsys"):
        log = tmp_path / name / "clean.log"
        log.parent.mkdir(parents=True)
        log.write_text("line\n" * 60 + "RuntimeError: <out of memory>", encoding="utf-8")
        command = CommandRecord(argv=("python", "x.py"), exit_code=1, duration_s=1.0, log=f"{name}/clean.log")
        reason = f"x.py failed (log: {name}/clean.log)"
        failed = stage(name, tmp_path, status="failed", reason=reason, commands=(command,))
        stages.append(replace(failed, failure="x.py failed"))
    write_run(tmp_path, *stages, status="failed")
    view = view_of(tmp_path)
    (failure,) = view.failures
    assert (failure.stages, failure.source) == (("torch_profiler", "nsys"), "torch_profiler/clean.log")
    assert len(failure.log.splitlines()) == LOG_LINES and failure.log.endswith("RuntimeError: <out of memory>")
    assert {why.reason for _, _, why in view.absent} >= {"stage nsys failed", "stage torch_profiler failed"}
    # What failed is not to be enabled.
    assert not [why for _, _, why in view.absent if why.enable == "pipeline.nsys.enable=true"]
    write_reports(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "RuntimeError: &lt;out of memory&gt;" in page
    assert '<span class="src">torch_profiler/clean.log</span>' in page
    assert "Nothing was measured, so there is nothing to find." in page
    assert "Nothing was measured: x.py failed." in (tmp_path / "stakeholder_summary.md").read_text(encoding="utf-8")


def test_a_stage_that_fails_for_what_failed_before_it_is_named_beside_it(tmp_path: Path) -> None:
    """It ran nothing and has no log: its reason is the one of the stage before, log and all."""
    log = tmp_path / "torch_profiler" / "clean.log"
    log.parent.mkdir()
    log.write_text("RuntimeError: gone", encoding="utf-8")
    command = CommandRecord(argv=("python", "x.py"), exit_code=1, duration_s=1.0, log="torch_profiler/clean.log")
    reason = f"x.py failed (log: {log})"
    write_run(
        tmp_path,
        replace(
            stage("torch_profiler", tmp_path, status="failed", reason=reason, commands=(command,)),
            failure="x.py failed",
        ),
        replace(stage("nsys", tmp_path, status="failed", reason=reason), failure="x.py failed"),
        stage("ncu", tmp_path, status="failed", reason="ncu was not found"),
        status="failed",
    )
    told = [(failure.stages, failure.reason, failure.log) for failure in view_of(tmp_path).failures]
    assert told == [
        (("torch_profiler", "nsys"), "x.py failed", "RuntimeError: gone"),
        (("ncu",), "ncu was not found", ""),
    ]


def test_the_managers_page_has_cost_and_trend_where_they_are_known(tmp_path: Path) -> None:
    same = {"model": {"name": "m"}, "hardware": {"price_per_hour": 3.6}}
    for name, config, tpot in (("a", same, 12.0), ("b", {"model": {"name": "other"}}, 1.0), ("c", same, 10.0)):
        run = tmp_path / name
        metrics = clean(tpot_ms=tpot, e2e_ms=1000.0, tokens=100.0)
        day = "abc".index(name) + 1
        write_run(run, stage("torch_profiler", run, metrics=metrics), config=config, run_id=name, day=day)
    write_reports(tmp_path / "c")
    text = (tmp_path / "c" / "stakeholder_summary.md").read_text(encoding="utf-8")
    # 3.6 per hour is 0.001 per second, which is a request of 100 tokens.
    told = "at 3.6 per hour and device, requests one after the other, batch 1"
    assert f"a million output tokens cost 10.0 ({told})" in text
    assert (
        "- 2025-01-01, a: 12.00 ms per token\n- this run: 10.00 ms per token, 16.7 % less than the run before" in text
    )
    assert "b:" not in text


def test_a_finding_says_what_a_million_tokens_cost_and_use(tmp_path: Path) -> None:
    found = bound_phases(request_ms=150.0)
    million = MillionTokens(
        cost=Known(value=10.0, unit="", how="at 3.6 per hour", source="x"),
        joules=Known(value=2.5e6, unit="J", how="measured", source="y"),
    )
    (first, *_) = findings_view(diagnose(found), found, million=million)
    # 88 of 150 ms of a request could be saved.
    assert first.per_million == "per million tokens: up to 5.87 of 10.0 in cost, 2.5 MJ used"
    assert findings_view(diagnose(found), found)[0].per_million == ""
    only = MillionTokens(joules=million.joules)
    assert only.saved(0.5) == "per million tokens: 2.5 MJ used"
    energy = stage("energy", tmp_path, metrics={"joules_per_token": Metric(value=2.5, unit="J/token", how="a counter")})
    write_run(tmp_path, energy, stage("torch_profiler", tmp_path, metrics=clean(tpot_ms=1.0, e2e_ms=10.0)))
    joules = million_tokens(read_run_files(read_manifest(tmp_path), tmp_path)).joules
    assert joules is not None and (joules.value, joules.how) == (2.5e6, "a counter")


def test_a_page_of_ncu_alone_opens_with_what_ncu_measured(tmp_path: Path) -> None:
    one = ncu("gemm", bound="memory", duration_ns=3000.0, launches=2, roof_pct=80.0)
    two = ncu("copy", bound="latency", duration_ns=2000.0, launches=1, roof_pct=10.0)
    data = {"kernels": [one, two], "launches": 3, "device": "NVIDIA H200"}
    write_run(tmp_path, stage("ncu", tmp_path, {"ncu_kernels_json": ("kernels.json", data)}))
    view = view_of(tmp_path)
    assert view.headline.verdict == (
        "ncu measured 3 launches of 2 kernels, 8.00 µs in all: 75.0 % is memory-bound, 25.0 % is latency-bound. "
        "Largest: gemm (75.0 %), at 80.0 % of its nearer peak. There is no timeline: how often they "
        "run is not known."
    )
    split = view.headline.split
    assert split is not None and (split.what, split.total) == ("under ncu", "8.00 µs")
    assert [(part.label, part.kind, part.share) for part in split.parts] == [
        ("memory-bound", "bound", 0.75), ("latency-bound", "idle", 0.25),
    ]  # fmt: skip
    assert "kernels" in view.parts and "waterfall" not in view.parts
    assert [title for _, title, _ in view.absent] == [
        "Waterfall", "Roofline", "Timeline", "Modules and operators", "Memory and power",
    ]  # fmt: skip
    assert view.kernels.totals_ms[0] == pytest.approx(0.008)


def test_names_of_points_lie_on_no_line_no_point_and_no_other_name() -> None:
    roofs = (
        Roof(label="data sheet: 989 TFLOP/s", kind="datasheet", flops_per_s=989e12, bytes_per_s=4.8e12),
        Roof(label="achievable: 819 TFLOP/s", kind="achievable", flops_per_s=819e12, bytes_per_s=4.5e12),
    )
    points = tuple(
        Point(label=f"kernel_number_{i}", kind="kernel", group="GEMM", intensity=0.3 * (1 + i * i), weight=0.9 - i / 20,
              flops_per_s=2 ** (i % 7) * 2e10, detail="", phases=("decode",))
        for i in range(12)
    )  # fmt: skip
    layout = layout_roofline(RooflineView(roofs=roofs, points=points, x=(-1, 3), y=(9, 15), notes=()))
    assert len({roof.label_y for roof in layout.roofs}) == 2
    for roof in layout.roofs:
        flat = float(roof.points.split()[-1].split(",")[1])
        assert not roof.label_y - 10 <= flat <= roof.label_y + 3
    boxes = []
    for label in layout.labels:
        width = 6.4 * len(label.text)
        left = label.x - {"start": 0.0, "middle": width / 2, "end": width}[label.anchor]
        boxes.append((left, label.y - 10, left + width, label.y + 3))
        assert left > 0 and left + width < WIDTH
    assert len(boxes) >= 3
    for i, a in enumerate(boxes):
        assert not [b for b in boxes[i + 1 :] if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]]
        assert not [d for d in layout.dots if a[0] < d.cx < a[2] and a[1] < d.cy < a[3]]


def test_the_roofline_draws_the_heaviest_kernels_and_counts_the_others(tmp_path: Path) -> None:
    names = [(f"k{i}", 1, 1000 + i) for i in range(MOST_POINTS + 7)]
    measured = [ncu(name, intensity_flop_per_byte=1.0, flop_per_s=1e12) for name, _, _ in names]
    data = {"kernels": measured, "launches": len(names), "device": "NVIDIA H200"}
    write_run(
        tmp_path,
        stage("nsys", tmp_path, {"analysis_json": ("analysis.json", capture(*names))}),
        stage("ncu", tmp_path, {"ncu_kernels_json": ("kernels.json", data)}),
    )
    view = view_of(tmp_path).roofline
    drawn = [p.label for p in view.points if p.kind == "kernel"]
    assert (len(drawn), drawn[0], "k0" in drawn) == (MOST_POINTS, f"k{MOST_POINTS + 6}", False)
    assert "The 400 heaviest kernels are drawn; without a point: 7." in view.notes


def test_backticks_become_code_and_terms_are_explained_once() -> None:
    text = str(words("TPOT and TPOT; use `torch.compile(<x>)`"))
    assert text.count("<abbr title=") == 1 and "`" not in text
    assert "<code>torch.compile(&lt;x&gt;)</code>" in text


def test_a_page_that_is_moved_alone_has_no_dead_link(tmp_path: Path) -> None:
    run = tmp_path / "run"
    data = capture(("gemm", 4, 4_000_000))
    write_run(run, stage("nsys", run, {"analysis_json": ("analysis.json", data)}))
    write_reports(run)
    html = (run / "report.html").read_text(encoding="utf-8")
    linked = set(re.findall(r"""(?:href|src)=["']?([^"' >]+)""", html))
    assert [target for target in linked if not target.startswith(("#", "data:", "https:"))] == []
    assert '<span class="src">nsys/analysis.json</span>' in html


def test_the_provenance_shows_where_the_time_of_each_stage_went(tmp_path: Path) -> None:
    steps = (CommandStep(name="start", duration_s=1.25), CommandStep(name="imports", duration_s=6.0))
    commands = (
        CommandRecord(argv=("nsys",), exit_code=0, duration_s=7.25, label="nsys", steps=steps),
        CommandRecord(argv=("nsys", "export"), exit_code=0, duration_s=2.0, label="nsys export"),
    )
    measured = replace(stage("nsys", tmp_path, commands=commands), duration_s=12.0)
    unlabelled = CommandRecord(argv=("python",), exit_code=0, duration_s=1.0)
    older = replace(stage("ncu", tmp_path, commands=(unlabelled,)), duration_s=9.0)
    write_run(tmp_path, measured, older)
    write_manifest(tmp_path, replace(read_manifest(tmp_path), first_verdict_s=57.3))
    view = view_of(tmp_path).provenance
    assert view.first_verdict == "57 s"
    assert {s.name: s.spent for s in view.stages} == {
        "nsys": (
            "nsys, 7.2 s: start 1.2 s, imports 6.0 s",
            "nsys export, 2.0 s",
            "reading, analysing and writing, 2.8 s",
        ),
        "ncu": (),
    }
    write_reports(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "<div>nsys, 7.2 s: start 1.2 s, imports 6.0 s</div>" in page and "terminal after 57 s" in page
    assert "- Time of nsys: nsys export, 2.0 s" in (tmp_path / "report.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"modules": {"decode": {"mlp": -0.5}}}, "shares of modules in decode: -0.5 is below zero"),
        ({"slowdown": {"decode": -2.0}}, "slowdown: -2.0 is below zero"),
        ({"clean": {"metrics": {"tpot_ms": {**SOME_STATS, "p90": -3.0}}}}, "what was measured: -3.0 is below zero"),
    ],
)
def test_measurements_below_zero_are_left_out_with_their_file(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    whole = {"model": {"name": "m"}, "clean": {"metrics": {"tpot_ms": SOME_STATS}}}
    for content, expected in ((whole, None), ({**whole, **change}, words)):
        run = tmp_path / str(expected is None)
        write_run(run, stage("torch_profiler", run, {"metrics": ("metrics.json", content)}))
        found = read_run_files(read_manifest(run), run).metrics
        assert isinstance(found, Unknown) == (expected is not None)
        if isinstance(found, Unknown):
            assert found.reason.startswith("torch_profiler/metrics.json: ") and words in found.reason

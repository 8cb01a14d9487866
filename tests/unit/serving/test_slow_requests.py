"""Slow requests: each moment in one part, the request that delays the others, and engines that say nothing of steps."""

import json
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_perf_opt.capture.readers.torch_trace import read_torch_trace
from llm_perf_opt.report.sections.slow_requests import slow_lines, slow_sections, steps_text
from llm_perf_opt.serving.requests.adapters.choose import INJECT, record_steps
from llm_perf_opt.serving.requests.adapters.installed import installed_version
from llm_perf_opt.serving.requests.request_causes import LevelRecords, explain_level
from llm_perf_opt.serving.requests.request_records import PARTS, SlowDocument, SlowLevel, StepRange
from llm_perf_opt.serving.requests.request_timeline import step_ranges, time_steps
from llm_perf_opt.serving.requests.request_trace import Declined, client_id, read_steps
from llm_perf_opt.serving.requests.step_kernels import CapturedWork
from llm_perf_opt.serving.serving_config import ServerSection
from tests.support.simulated_engine import Planned, Simulated, planted_load, serve
from tests.support.trace_builder import event, write_trace


def _explain(simulated: Simulated, *, with_steps: bool = True) -> SlowLevel:
    level = LevelRecords(key="rate=1", label="1 requests/s", begun_s=simulated.begun_s, records=simulated.records)
    return explain_level(level, [read_steps(simulated.lines)] if with_steps else [])


@pytest.mark.parametrize("with_steps", [True, False], ids=["steps", "arrivals"])
def test_a_planted_prompt_is_identified_as_the_cause_in_20_of_20_runs(with_steps: bool) -> None:
    causes = []
    for seed in range(20):
        load = planted_load(seed=seed)
        level = _explain(serve(load, seed=seed), with_steps=with_steps)
        victims = [one for one in level.slowest if one.index != len(load) - 1]
        gaps = {one.longest_gap.request for one in victims if one.longest_gap is not None}
        causes.append((level.delays[0].request, level.delays[0].victims, gaps))
    assert causes == [(6, 6, {6})] * 20


def test_the_long_prompt_of_a_step_is_charged_what_its_tokens_took() -> None:
    level = _explain(serve(planted_load(seed=3), seed=3))
    assert (level.method, level.match and level.match.steps_share, level.match and level.match.tokens_share) == (
        "steps",
        1.0,
        1.0,
    )
    for one in level.slowest[:6]:
        parts = {part.name: part.time_s for part in one.parts}
        # 8,000 tokens of 0.1 ms, with a tenth of noise in each of four steps.
        assert parts["other requests' prefill"] == pytest.approx(0.8, rel=0.1)
        assert one.delayed_by[0].request == 6 and one.delayed_by[0].prompt_tokens == 8000
        assert sum(span.last - span.first + 1 for span in one.delayed_by[0].steps) == 4
        assert one.longest_gap is not None and one.longest_gap.prefill_tokens == 2048
    # In the sum over six streams.
    assert level.delays[0].time_s == pytest.approx(4.8, rel=0.1)


loads = st.lists(
    st.builds(
        Planned,
        at_s=st.floats(0.0, 1.0),
        prompt_tokens=st.integers(1, 5000),
        output_tokens=st.integers(1, 30),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(load=loads, seed=st.integers(0, 1000), most=st.integers(1, 8), overlaps=st.booleans())
def test_parts_sum_to_the_end_to_end_time(load: list[Planned], seed: int, most: int, overlaps: bool) -> None:
    simulated = serve(load, seed=seed, most_running=most, overlaps=overlaps)
    for with_steps in (True, False):
        level = _explain(simulated, with_steps=with_steps)
        assert len(level.slowest) == min(10, len(load))
        for one in level.slowest:
            assert sum(part.time_s for part in one.parts) == pytest.approx(one.e2e_s, rel=0.02)
            assert all(part.time_s >= 0.0 and part.shared_s <= part.time_s + 1e-9 for part in one.parts)
            assert len({part.name for part in one.parts}) == len(one.parts)


@settings(deadline=None, max_examples=60)
@given(
    load=loads,
    seed=st.integers(0, 1000),
    shift_s=st.floats(-0.5, 0.5),
    kept=st.floats(0.0, 1.0),
)
def test_parts_sum_also_where_steps_are_missing_or_clocks_differ(
    load: list[Planned], seed: int, shift_s: float, kept: float
) -> None:
    simulated = serve(load, seed=seed)
    lines = simulated.lines[: 1 + int(kept * len(simulated.lines))]
    level = _explain(replace(simulated, lines=lines, begun_s=simulated.begun_s + shift_s))
    for one in level.slowest:
        assert sum(part.time_s for part in one.parts) == pytest.approx(one.e2e_s, rel=0.02)


def test_a_request_that_waits_for_a_place_was_in_the_queue() -> None:
    load = [
        Planned(at_s=0.0, prompt_tokens=10, output_tokens=100),
        Planned(at_s=0.01, prompt_tokens=10, output_tokens=5),
    ]
    level = _explain(serve(load, most_running=1))
    parts = {one.index: {part.name: part.time_s for part in one.parts} for one in level.slowest}
    assert list(parts[1]) == [name for name in PARTS if name in parts[1]]
    assert parts[1]["queue"] == pytest.approx(0.48, rel=0.1) and parts[1]["queue"] > 0.9 * sum(parts[1].values())
    assert parts[0].get("queue", 0.0) < 0.001 and parts[0]["decode"] > 0.8 * sum(parts[0].values())


def test_steps_of_requests_that_another_client_sent_are_not_matched() -> None:
    simulated = serve(planted_load())
    ours = replace(simulated, records=simulated.records[:-1])
    level = _explain(ours)
    assert level.match is not None and level.match.steps_share is not None and level.match.steps_share < 0.95
    assert level.notes[0].endswith("requests that this client did not send: warm-up, or another client")
    assert all(delay.request != 6 for one in level.slowest for delay in one.delayed_by)


def test_without_any_step_of_a_request_it_is_bounded_by_arrivals() -> None:
    simulated = serve(planted_load())
    level = _explain(simulated, with_steps=False)
    assert (level.method, level.match) == ("arrival times", None)
    one = next(one for one in level.slowest if one.index == 0)
    other = next(part for part in one.parts if part.name == "other requests' prefill")
    assert other.low_s is not None and other.high_s is not None
    # The truth, 0.8 s, lies between the last chunk and all gaps in which the long prompt waited.
    assert 0.1 < other.low_s < 0.8 * 1.1 and 0.8 * 0.9 < other.high_s < 1.2


def test_ids_are_found_in_what_engines_make_of_them() -> None:
    assert client_id("cmpl-llmperf.9f.1.12-0-a1b2c3d4") == "llmperf.9f.1.12"
    assert client_id("chatcmpl-llmperf.9f.w.3-a1b2c3d4") == "llmperf.9f.w.3"
    assert client_id("0_chatcmpl-llmperf.9f.1.3-a1b2c3d4") == "llmperf.9f.1.3"
    assert client_id("cmpl-7f3e-0-a1b2c3d4") is None


def test_lines_that_are_cut_are_counted_and_a_version_that_is_not_known_declines() -> None:
    lines = serve(planted_load()).lines
    trace = read_steps([*lines, b'{"k":"step","n":3,"t":[1,'])
    assert trace.notes == ("1 lines of the record of steps could not be read",)
    short = read_steps(lines, most=20)
    assert short.notes == ("the record of steps is longer than 20 entries: what came later was left out",)
    assert 20 < sum(len(step.work) for step in short.steps) < 30
    assert len(trace.steps) == sum(b'"step"' in line for line in lines)
    with pytest.raises(Declined, match=r"0\.99\.0"):
        read_steps(
            [b'{"k":"start","engine":"vllm","version":"0.99.0","pid":1}', b'{"k":"declined","why":"version 0.99.0"}']
        )


def test_executions_of_steps_do_not_overlap_with_two_batches_in_flight() -> None:
    timed = time_steps(read_steps(serve(planted_load(), overlaps=True).lines))
    assert all(after.start_s >= before.end_s for before, after in pairwise(timed))
    assert any(one.start_s > one.step.scheduled_s for one in timed)


def test_numbers_of_steps_are_written_as_ranges() -> None:
    ranges = step_ranges([7, 3, 4, 5, 9, 9])
    assert ranges == (StepRange(first=3, last=5), StepRange(first=7, last=7), StepRange(first=9, last=9))
    assert steps_text(ranges) == "3 to 5, 7, 9"


def test_the_report_says_who_delayed_whom_and_how_much_was_matched() -> None:
    level = _explain(serve(planted_load(seed=1), seed=1))
    document = SlowDocument(engine="vllm", version="0.32.0", levels=(level,), notes=("a note",))
    (section,) = slow_sections(document, source="bench/slow_requests.json", files=["bench/steps-7.jsonl"])
    assert section.title == "Slowest requests" and [link.target for link in section.links][1] == "bench/steps-7.jsonl"
    slowest, delays = section.tables
    assert len(slowest.rows) == 7 and delays.rows[0][:3] == (6, 8000, 6)
    lines = slow_lines(document)
    assert lines[0] == "a note"
    assert lines[2].startswith("1 requests/s: the prefill of request 6 (8,000 prompt tokens) delayed 6 others by ")
    assert lines[-1].startswith("1 requests/s: 100.0 % of ") and lines[-1].endswith("(vllm 0.32.0).")
    assert slow_sections(SlowDocument(), source="x") == ()


def _vllm(tmp_path: Path, version: str | None) -> dict[str, str]:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "vllm"
    program.write_text(f"#!{tmp_path}/bin/python3\n")
    program.chmod(0o755)
    if version is not None:
        info = tmp_path / "lib" / "python3.11" / "site-packages" / f"vllm-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: vllm\nVersion: {version}\n\nVersion: 1\n")
    return {"PATH": str(tmp_path / "bin"), "PYTHONPATH": "/mine"}


SERVER = ServerSection(name="vllm", command=("vllm", "serve", "{args}"))


def test_vllm_of_a_known_version_is_started_with_the_scheduler_that_records(tmp_path: Path) -> None:
    environ = _vllm(tmp_path, "0.32.1+cpu")
    assert installed_version("vllm", "vllm", environ) == "0.32.1+cpu"
    recording = record_steps(SERVER, tmp_path / "out", environ)
    assert (recording.declined, recording.args) == (None, ("--scheduler-cls", "llm_perf_vllm_steps.scheduler"))
    assert recording.section.env == {"PYTHONPATH": f"{INJECT}:/mine", "LLM_PERF_STEPS": str(tmp_path / "out")}
    # Nothing else of ours may be found on a server's path.
    assert [path.name for path in INJECT.glob("*.py")] == ["llm_perf_vllm_steps.py"]


@pytest.mark.parametrize(
    ("version", "section", "why"),
    [
        ("0.99.0", SERVER, "steps of vllm 0.99.0 are not recorded (the adapter was tried with 0.32.*); "),
        (None, SERVER, "the version of vllm behind 'vllm' is not known; "),
        ("0.32.0", replace(SERVER, args=("--scheduler-cls=a.b",)), "server.args has its own scheduler"),
        ("0.32.0", replace(SERVER, name="sglang"), "no adapter records the steps of server=sglang"),
        ("0.32.0", replace(SERVER, url="http://h:1", command=()), "the steps of a server that llm-perf did not start"),
    ],
)
def test_what_cannot_be_recorded_is_declined_with_a_reason(
    version: str | None, section: ServerSection, why: str, tmp_path: Path
) -> None:
    recording = record_steps(section, tmp_path / "out", _vllm(tmp_path, version))
    assert recording.declined is not None and recording.declined.startswith(why)
    assert recording.declined.endswith("requests are explained by bounds from arrival times")
    assert (recording.section, recording.args) == (section, ())


class _Scheduler:
    """The part of vLLM's scheduler that the adapter builds on."""

    def __init__(self, vllm_config: Any) -> None:
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.waiting: list[Any] = []

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request
        self.running.append(request)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        tokens = {
            name: min(4, one.num_prompt_tokens - one.num_computed_tokens) or 1 for name, one in self.requests.items()
        }
        for name, count in tokens.items():
            self.requests[name].num_computed_tokens += count
        return types.SimpleNamespace(num_scheduled_tokens=tokens)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> str:
        return "outputs"

    def finish_requests(self, request_ids: Any, finished_status: Any) -> str:
        self.running.clear()
        return "finished"


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The module as a server would import it, with a stand-in for vLLM."""
    sched = "vllm.v1.core.sched"
    for name in ("vllm", "vllm.v1", "vllm.v1.core", sched, f"{sched}.scheduler", f"{sched}.async_scheduler"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["vllm"].__version__ = "0.32.0"  # type: ignore[attr-defined]
    sys.modules[f"{sched}.scheduler"].Scheduler = _Scheduler  # type: ignore[attr-defined]
    sys.modules[f"{sched}.async_scheduler"].AsyncScheduler = type("AsyncScheduler", (_Scheduler,), {})  # type: ignore[attr-defined]
    monkeypatch.setenv("LLM_PERF_STEPS", str(tmp_path))
    monkeypatch.syspath_prepend(str(INJECT))
    monkeypatch.delitem(sys.modules, "llm_perf_vllm_steps", raising=False)
    import llm_perf_vllm_steps  # type: ignore[import-not-found]

    yield llm_perf_vllm_steps
    sys.modules.pop("llm_perf_vllm_steps", None)


def _config(*, is_async: bool, diffusion: object = None) -> Any:
    scheduler = types.SimpleNamespace(async_scheduling=is_async)
    return types.SimpleNamespace(scheduler_config=scheduler, diffusion_config=diffusion)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_scheduler_of_vllm_writes_what_our_reader_reads(adapter: Any, is_async: bool, tmp_path: Path) -> None:
    scheduler = adapter.scheduler(vllm_config=_config(is_async=is_async))
    assert isinstance(scheduler, adapter.RecordingAsyncScheduler if is_async else adapter.RecordingScheduler)
    name = "cmpl-llmperf.9f.1.0-0-a1b2c3d4"
    request = types.SimpleNamespace(request_id=name, num_prompt_tokens=6, num_computed_tokens=0, arrival_time=0.0)
    scheduler.add_request(request)
    for sampled in ([], [5], [5]):
        output = scheduler.schedule()
        made = types.SimpleNamespace(req_ids=[name], sampled_token_ids=[sampled])
        assert scheduler.update_from_output(output, made) == "outputs"
    assert scheduler.finish_requests(name, None) == "finished"
    scheduler._log.write("{}", is_idle=True)
    (path,) = tmp_path.glob("steps-*.jsonl")
    lines = path.read_bytes().splitlines()
    assert [json.loads(line).get("k") for line in lines] == ["start", "add", "step", "step", "step", "finish", None]
    trace = read_steps(lines[:-1])
    assert (trace.version, trace.requests[0].client_id, trace.requests[0].prompt_tokens) == (
        "0.32.0",
        "llmperf.9f.1.0",
        6,
    )
    work = [(one.work[0].tokens, one.work[0].computed, one.work[0].sampled) for one in trace.steps]
    assert work == [(4, 0, 0), (2, 4, 1), (1, 6, 1)]
    assert [trace.prefill_tokens(one.work[0]) for one in trace.steps] == [4, 2, 0]
    assert all(one.begin_s <= one.scheduled_s <= one.update_s <= one.done_s for one in trace.steps)


def test_an_unknown_version_gets_its_own_scheduler_and_says_so(
    adapter: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.40.0")
    assert type(adapter.scheduler(vllm_config=_config(is_async=False))) is _Scheduler
    (path,) = tmp_path.glob("steps-*.jsonl")
    with pytest.raises(Declined, match=r"version 0\.40\.0 is not one the adapter was tried with"):
        read_steps(path.read_bytes().splitlines())


def test_a_diffusion_model_keeps_the_scheduler_made_for_it(
    adapter: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name = "vllm.v1.core.sched.diffusion_scheduler"
    module = types.ModuleType(name)
    module.DiffusionScheduler = type("DiffusionScheduler", (_Scheduler,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys.modules["vllm.v1.core.sched"], "diffusion_scheduler", module, raising=False)
    made = adapter.scheduler(vllm_config=_config(is_async=False, diffusion=object()))
    assert type(made).__name__ == "DiffusionScheduler"
    (path,) = tmp_path.glob("steps-*.jsonl")
    with pytest.raises(Declined, match="a diffusion model"):
        read_steps(path.read_bytes().splitlines())


def _trace_of_steps(path: Path, simulated: Simulated, *, epoch_s: float, late_s: float = 0.0) -> Path:
    """A torch trace of the worker: in each step attention for what is prefilled, then one GEMM; a third of the step."""
    trace = read_steps(simulated.lines)
    base_s, prefilled = 1_700_000_000, {one.number: one.prompt_tokens for one in trace.requests}
    events = []
    for timed in time_steps(trace):
        third_us = 1e6 * (timed.end_s - timed.start_s) / 3
        start_us = 1e6 * (timed.start_s + epoch_s + late_s - base_s)
        names = ["attention"] if any(prefilled[work.request] > work.computed for work in timed.step.work) else []
        for place, name in enumerate([*names, "void gemm<float>(int)"]):
            at = f"{start_us + (place + 0.5) * third_us:.3f}"
            events.append(event("kernel", name, at, f"{third_us:.3f}", pid=0, tid=7, device=0))
    return write_trace(path, events, after=f'"baseTimeNanoseconds": {base_s * 1_000_000_000}')


def _captured(path: Path, *, epoch_s: float) -> CapturedWork:
    timeline = read_torch_trace(path).timeline
    work = CapturedWork.of(timeline, file="bench/engine/trace.json", epoch_offset_ns=int(epoch_s * 1e9))
    assert work is not None
    return work


def test_the_kernels_of_a_part_are_those_that_a_capture_has_in_its_steps(tmp_path: Path) -> None:
    simulated, epoch_s = serve(planted_load(seed=3), seed=3), 1_700_000_123.5
    capture = _captured(_trace_of_steps(tmp_path / "trace.json", simulated, epoch_s=epoch_s), epoch_s=epoch_s)
    level = LevelRecords(key="window", label="rate 1, captured", begun_s=simulated.begun_s, records=simulated.records)
    explained = explain_level(level, [read_steps(simulated.lines)], [capture])
    assert explained.captured is not None
    assert (explained.captured.work, explained.captured.inside_share) == ("kernels", 1.0)
    assert explained.captured.steps == sum(b'"step"' in line for line in simulated.lines)
    delay = explained.delays[0]
    # The prompt is computed in four steps; in each of them both kernels take a third.
    assert [(one.name, one.count) for one in delay.kernels] == [("attention", 4), ("gemm", 4)]
    assert delay.kernels[0].time_s == pytest.approx(sum(_times(simulated, delay.steps)) / 3, rel=1e-3)
    victim = next(one for one in explained.slowest if one.index == 0)
    parts = {part.name: part for part in victim.parts}
    assert [one.count for one in parts["other requests' prefill"].kernels if one.name == "attention"] == [
        sum(span.last - span.first + 1 for span in parts["other requests' prefill"].steps)
    ]
    assert (parts["network and client"].kernels, parts["network and client"].kernels_s) == ((), None)
    assert parts["decode"].kernels_s == pytest.approx(sum(one.time_s for one in parts["decode"].kernels))
    (section,) = slow_sections(
        SlowDocument(engine="vllm", version="0.32.0", levels=(explained,)), source="bench/s.json"
    )
    table = next(one for one in section.tables if one.title == "Kernels by part, rate 1, captured")
    assert all(str(row[5]).startswith(("attention ", "gemm ")) for row in table.rows) and len(table.rows) >= 7
    assert table.columns[4] == "all kernels, ms"
    assert "bench/engine/trace.json" in {link.target for link in section.links}


def _times(simulated: Simulated, ranges: tuple[StepRange, ...]) -> list[float]:
    timed = time_steps(read_steps(simulated.lines))
    return [one.end_s - one.start_s for one in timed if any(r.first <= one.step.number <= r.last for r in ranges)]


def test_a_capture_on_another_clock_or_of_another_process_gives_no_kernels(tmp_path: Path) -> None:
    load = [Planned(at_s=0.2 * n, prompt_tokens=10, output_tokens=2) for n in range(20)]
    simulated, epoch_s = serve(load), 1_700_000_123.5
    path = _trace_of_steps(tmp_path / "trace.json", simulated, epoch_s=epoch_s, late_s=0.1)
    level = LevelRecords(key="window", label="rate 1", begun_s=simulated.begun_s, records=simulated.records)
    explained = explain_level(level, [read_steps(simulated.lines)], [_captured(path, epoch_s=epoch_s)])
    assert explained.captured is None and all(not part.kernels for one in explained.slowest for part in one.parts)
    assert explained.notes[0].startswith("the kernels of bench/engine/trace.json are not assigned to steps: 0 %")
    # Two engines: the capture does not say of which it is.
    first, second = ([line.replace(b"ab12.1.", name) for line in simulated.lines] for name in (b"ab12.1.", b"ab12.2."))
    others = tuple(
        replace(one, index=one.index + 50, request_id=f"llmperf.ab12.2.{one.index}") for one in level.records
    )
    both = replace(level, records=(*level.records, *others))
    explained = explain_level(both, [read_steps(first), read_steps(second)], [_captured(path, epoch_s=epoch_s)])
    assert explained.notes[0] == "kernels are not assigned to steps: 2 engine processes served the level"
    # A trace without the time of day.
    bare = read_torch_trace(write_trace(tmp_path / "bare.json", [event("cpu_op", "aten::mm", "1.0", "2.0")])).timeline
    assert CapturedWork.of(bare, file="bare.json", epoch_offset_ns=0) is None


def test_of_a_capture_without_a_gpu_operators_count_without_those_inside_them(tmp_path: Path) -> None:
    simulated, epoch_s = serve([Planned(at_s=0.0, prompt_tokens=10, output_tokens=1)]), 1000.0
    (timed,) = time_steps(read_steps(simulated.lines))
    at_us = 1e6 * (timed.start_s + epoch_s)
    events = [
        event("cpu_op", "aten::linear", f"{at_us + 10:.3f}", "900.000"),
        event("cpu_op", "aten::addmm", f"{at_us + 20:.3f}", "700.000"),
    ]
    path = write_trace(tmp_path / "t.json", events, after='"baseTimeNanoseconds": 1')
    level = LevelRecords(key="window", label="rate 1", begun_s=simulated.begun_s, records=simulated.records)
    explained = explain_level(level, [read_steps(simulated.lines)], [_captured(path, epoch_s=epoch_s)])
    (prefill,) = [part for part in explained.slowest[0].parts if part.name == "own prefill"]
    assert [(one.name, round(one.time_s, 7), one.count) for one in prefill.kernels] == [
        ("aten::addmm", 0.0007, 1),
        ("aten::linear", 0.0002, 1),
    ]
    assert explained.captured is not None and explained.captured.work == "operators"

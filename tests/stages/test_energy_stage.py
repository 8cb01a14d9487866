"""The stage energy keeps the contract, and a run shows what it found."""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llm_perf_opt.config.schema import RunSection, WorkloadSection
from llm_perf_opt.core.records import Metric, StageFile, StageRecord
from llm_perf_opt.plugins.energy.stage import STAGE, EnergyConfig, _repeats
from llm_perf_opt.testing import StageCase, StageContract, plain_config, plain_host, scratch_context
from tests.support.fake_nvml import FakeNvml
from tests.support.ncu_run import H200

PROGRAM = """
import time
import llm_perf_opt as perf
for number in range(2):
    with perf.request(number):
        with perf.phase("prefill", tokens=64):
            time.sleep(0.12)
        for _ in range(2):
            with perf.phase("decode_step", tokens=2):
                time.sleep(0.08)
"""


@pytest.fixture(autouse=True, scope="module")
def gpu() -> Iterator[FakeNvml]:
    """A GPU that draws 200 W, whose counter is refreshed every 10 ms."""
    library = FakeNvml(
        power_w=lambda at_ns: 200.0,
        energy_j=lambda at_ns: 200.0 * at_ns / 1e9,
        refresh_ns=10_000_000,
        throttle_mask=0,
        utilisation_pct=0,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", library)
        yield library


class TestEnergy(StageContract):
    stage = STAGE

    def case(self, folder: Path, *command: str, timeout_s: float = 60.0) -> StageCase:
        return StageCase(
            settings=EnergyConfig(enable=True, timeout_s=timeout_s, idle_s=0.1, interval_ms=5.0),
            config=plain_config(folder, workload=WorkloadSection(command=command)),
            host=plain_host(gpus=(H200,)),
        )

    def success(self, folder: Path) -> StageCase:
        return self.case(folder, sys.executable, "-c", PROGRAM)

    def failure(self, folder: Path) -> StageCase:
        return self.case(folder, sys.executable, "-c", "raise SystemExit(3)")

    def skip(self, folder: Path) -> StageCase:
        return replace(self.case(folder, "true"), host=plain_host())

    def timeout(self, folder: Path) -> StageCase:
        return self.case(folder, "sleep", "60", timeout_s=0.3)


def test_joules_of_a_program_are_those_of_its_phases(tmp_path: Path) -> None:
    case = TestEnergy().success(tmp_path)
    ctx = scratch_context("energy", tmp_path / "run", config=case.config, host=case.host)
    assert isinstance(case.settings, EnergyConfig)
    output = STAGE.run(case.settings, ctx)
    found = {name: metric.value for name, metric in output.metrics.items()}
    # Two requests of about 0.28 s at 200 W, six tokens each: two steps of two, and the first two.
    assert found["mean_power_w"] == pytest.approx(200.0, rel=0.05)
    document = json.loads((ctx.out_dir / "energy.json").read_text())
    request, prefill, decode = document["total"]
    assert (request["tokens"], prefill["tokens"], decode["tokens"]) == (12, 128, 8)
    assert found["joules_per_token"] == pytest.approx(200.0 * request["seconds"] / 12, rel=0.05)
    assert found["prefill_joules_per_token"] == pytest.approx(200.0 * prefill["seconds"] / 128, rel=0.05)
    assert found["decode_joules_per_token"] == pytest.approx(200.0 * decode["seconds"] / 8, rel=0.05)
    assert found["energy_check_pct"] == pytest.approx(0.0, abs=5.0)
    (section,) = output.sections
    assert section.title == "Energy" and section.picture is not None
    assert "<polyline" in (ctx.run_dir / section.picture.path).read_text()
    counters = json.loads((ctx.out_dir / "counters.json").read_text())
    assert [track["name"] for track in counters["tracks"]] == [
        "NVIDIA H200 power",
        "NVIDIA H200 SM clock",
        "NVIDIA H200 temperature",
    ]
    assert {span["name"] for span in counters["spans"]} == {"request", "prefill", "decode"}


def test_the_samples_are_repeated_until_they_take_long_enough(tmp_path: Path) -> None:
    e2e = Metric(value=200.0, unit="ms", how="clean pass, median of 3")
    record = StageRecord(name="torch_profiler", status="ok", metrics={"e2e_ms": e2e})
    ctx = scratch_context("energy", tmp_path, earlier={"torch_profiler": record})
    assert _repeats(EnergyConfig(min_s=10.0), ctx) == 51
    assert _repeats(EnergyConfig(min_s=10.0, repeats=4), ctx) == 4
    # Four samples to a repeat take four times as long.
    samples = tmp_path / "samples.jsonl"
    profiled = '{"repeat": 0, "pass": "profiled"}\n'
    clean = "".join(f'{{"repeat": {repeat}, "pass": "clean"}}\n' for repeat in (0, 0, 0, 0, 1, 1))
    samples.write_text(clean + profiled)
    four = replace(record, files=(StageFile(role="samples", path=samples),))
    assert _repeats(EnergyConfig(min_s=10.0), replace(ctx, earlier={"torch_profiler": four})) == 13
    many = replace(ctx, config=replace(ctx.config, run=RunSection(repeats=80)))
    assert _repeats(EnergyConfig(min_s=10.0), many) == 80
    assert _repeats(EnergyConfig(), replace(ctx, earlier={})) is None

"""Sampling a GPU through nvidia-ml-py, spoken to as NVML defines it."""

import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_perf_opt.config.schema import WorkloadSection
from llm_perf_opt.core.documents import ClockDocument, ClockSample
from llm_perf_opt.system import nvml
from llm_perf_opt.system.nvml import gpu_index, gpus_of_run, sample_gpu, samples_file
from llm_perf_opt.testing import plain_config, plain_host, scratch_context
from tests.support.fake_nvml import FakeNvml
from tests.support.ncu_run import H200
from tests.support.schemas import valid_file


def test_samples_are_taken_while_the_block_runs_and_only_then(tmp_path: Path) -> None:
    library = FakeNvml()
    with sample_gpu(0, library=library, interval_s=0.01) as found:
        time.sleep(0.1)
    assert found.reason is None
    count = len(found.samples)
    assert 3 <= count <= 12
    time.sleep(0.03)
    assert library.asked == count
    first = found.samples[0]
    assert first.at_ns > 0
    assert first == ClockSample(
        at_ns=first.at_ns,
        energy_j=None,
        power_w=312.5,
        sm_clock_mhz=1725,
        temperature_c=61,
        memory_used_bytes=5_000_000_000,
        utilisation_pct=87,
        throttle_reasons=("sw_power_cap", "sw_thermal_slowdown"),
    )
    (file,) = samples_file(found, tmp_path)
    content = valid_file("gpu_samples", file.path)
    assert (file.role, content["device"], content["max_sm_clock_mhz"], content["power_limit_w"]) == (
        "gpu_samples",
        "NVIDIA H200",
        1980,
        700.0,
    )
    assert msgspec.json.decode(file.path.read_bytes(), type=ClockDocument).samples[0] == first


def test_a_question_the_device_does_not_answer_is_unknown_and_not_zero() -> None:
    without = frozenset({"nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"})
    with sample_gpu(0, library=FakeNvml(missing=without), interval_s=0.01) as found:
        time.sleep(0.02)
    assert found.samples[0].power_w is None


def test_the_power_of_the_moment_is_taken_where_the_driver_knows_it() -> None:
    old = FakeNvml(missing=frozenset({"nvmlDeviceGetFieldValues"}))
    for library, how in ((FakeNvml(), nvml.INSTANT), (old, nvml.AVERAGED)):
        with sample_gpu(0, library=library, interval_s=0.01) as found:
            time.sleep(0.01)
        assert (found.power_how, found.samples[0].power_w) == (how, 312.5)


def test_the_energy_counter_is_read_in_joules() -> None:
    with sample_gpu("GPU-8c1f", library=FakeNvml(energy_j=lambda at_ns: 81_234.5), interval_s=0.01) as found:
        time.sleep(0.01)
    assert found.samples[0].energy_j == 81_234.5


def test_a_function_an_old_driver_does_not_have_is_unknown(tmp_path: Path) -> None:
    old = FakeNvml(missing=frozenset({"nvmlDeviceGetCurrentClocksThrottleReasons"}))
    with sample_gpu(0, library=old, interval_s=0.01) as found:
        time.sleep(0.02)
    assert found.samples[0].throttle_reasons is None
    assert found.reason == "the driver does not say why it lowers clocks: whether the GPU was throttled is not known"
    file = samples_file(found, tmp_path)[0]
    assert msgspec.json.decode(file.path.read_bytes(), type=ClockDocument).samples[0].throttle_reasons is None
    assert found.samples[0].power_w == 312.5


def test_the_functions_of_the_stand_in_are_those_of_the_real_bindings() -> None:
    real = pytest.importorskip("pynvml")
    names = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert len(names) > 12
    assert [name for name in names if not hasattr(real, name)] == []
    assert (real.NVML_FI_DEV_POWER_INSTANT, real.NVML_CLOCK_SM) == (nvml.POWER_INSTANT_FIELD, FakeNvml.NVML_CLOCK_SM)
    named = {getattr(real, n): n for n in dir(real) if n.startswith("nvmlClocksThrottleReason")}
    assert nvml.REASONS.keys() <= named.keys()


def test_on_this_machine_the_real_bindings_say_why_there_is_nothing_or_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pynvml")
    with sample_gpu(0, interval_s=0.01) as found:
        time.sleep(0.02)
    assert found.samples or (found.reason or "").startswith("power and clocks could not be sampled: ")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with sample_gpu(0) as found:
        assert found.reason == f"power and clocks could not be sampled: {nvml.NO_BINDINGS}"


PROBLEM = "power and clocks could not be sampled"


@pytest.mark.parametrize(
    ("index", "library", "reason"),
    [
        (None, None, "no GPU to sample"),
        (3, FakeNvml(), f"{PROBLEM}: the driver knows no GPU 3 (Not Found)"),
        (
            0,
            FakeNvml(init_code=9),
            f"{PROBLEM}: Driver Not Loaded",
        ),
    ],
    ids=["no GPU", "wrong index", "broken driver"],
)
def test_without_a_gpu_the_block_runs_and_the_reason_is_said(
    index: int | None, library: Any, reason: str, tmp_path: Path
) -> None:
    ran = False
    with sample_gpu(index, library=library) as found:
        ran = True
    assert ran and found.reason == reason
    assert samples_file(found, tmp_path) == []


@pytest.mark.parametrize(
    ("device", "visible", "index"),
    [
        ("auto", None, 0),
        ("cuda:2", None, 2),
        ("cuda:1", "3,5", 5),
        ("auto", "GPU-8c1f", "GPU-8c1f"),
        ("cuda:1", "0,nonsense,2", None),
        ("cuda:1", "3", None),
        ("auto", "", None),
        ("cpu", None, None),
    ],
)
def test_the_gpu_of_a_run_is_found_by_the_drivers_number(
    device: str, visible: str | None, index: int | str | None
) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu_index(device, environ) == index


@pytest.mark.parametrize(
    ("command", "visible", "gpus"),
    [
        (None, None, (0,)),
        (("python", "x.py"), None, (0, 1)),
        (("python", "x.py"), "1", (1,)),
        (("python", "x.py"), "GPU-8c1f,GPU-77", ("GPU-8c1f", "GPU-77")),
    ],
)
def test_of_a_program_all_visible_gpus_are_sampled(
    command: tuple[str, ...] | None, visible: str | None, gpus: tuple[int | str, ...], tmp_path: Path
) -> None:
    config = plain_config(tmp_path, workload=WorkloadSection(command=command))
    host = plain_host(gpus=(H200, replace(H200, index=1)))
    ctx = scratch_context("energy", tmp_path, config=config, host=host)
    assert gpus_of_run(ctx, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == gpus

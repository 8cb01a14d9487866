"""Sampling a GPU through the driver's library, spoken to as NVML defines it."""

import ctypes
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llm_perf_opt.core.documents import ClockDocument, ClockSample
from llm_perf_opt.profiling.nvml import gpu_index, sample_gpu, samples_file
from tests.support.schemas import valid_file


class FakeNvml:
    """The functions of libnvidia-ml that are used: they write through pointers and return 0, or an error code."""

    def __init__(self, *, gpus: int = 1, power_code: int = 0, init_code: int = 0) -> None:
        self._gpus, self._power_code, self._init_code = gpus, power_code, init_code
        self.asked = 0

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def nvmlInit_v2(self) -> int:
        return self._init_code

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        return 0 if index.value < self._gpus else 2

    def nvmlDeviceGetName(self, handle: Any, text: Any, length: Any) -> int:
        text.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, answer: Any) -> int:
        return self._write(answer, 1980) if kind.value == 1 else 2

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, answer: Any) -> int:
        return self._write(answer, 700_000)

    def nvmlDeviceGetPowerUsage(self, handle: Any, answer: Any) -> int:
        self.asked += 1
        return self._power_code or self._write(answer, 312_500)

    def nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, answer: Any) -> int:
        return self._write(answer, 1725)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, answer: Any) -> int:
        return self._write(answer, 61)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        memory._obj.used = 5_000_000_000
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, mask: Any) -> int:
        mask._obj.value = 0x4 | 0x20
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        rates._obj.gpu = 87
        return 0

    @staticmethod
    def _write(answer: Any, value: int) -> int:
        assert isinstance(answer._obj, ctypes.c_uint)
        answer._obj.value = value
        return 0


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
    with sample_gpu(0, library=FakeNvml(power_code=3), interval_s=0.01) as found:
        time.sleep(0.02)
    assert found.samples[0].power_w is None


def test_a_function_an_old_driver_does_not_have_is_unknown(tmp_path: Path) -> None:
    class Old(FakeNvml):
        def __getitem__(self, name: str) -> Any:
            if name == "nvmlDeviceGetCurrentClocksThrottleReasons":
                raise AttributeError(name)
            return super().__getitem__(name)

    with sample_gpu(0, library=Old(), interval_s=0.01) as found:
        time.sleep(0.02)
    assert found.samples[0].throttle_reasons is None
    assert found.reason == "the driver does not say why it lowers clocks: whether the GPU was throttled is not known"
    file = samples_file(found, tmp_path)[0]
    assert msgspec.json.decode(file.path.read_bytes(), type=ClockDocument).samples[0].throttle_reasons is None
    assert found.samples[0].power_w == 312.5


PROBLEM = "power and clocks could not be sampled"


@pytest.mark.parametrize(
    ("index", "library", "reason"),
    [
        (None, None, "no GPU to sample"),
        (3, FakeNvml(), f"{PROBLEM}: the driver knows no GPU 3"),
        (
            0,
            FakeNvml(init_code=9),
            "power and clocks could not be sampled: the driver's library could not be initialised",
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
        ("auto", "GPU-8c1f", None),
        ("cuda:1", "3", None),
        ("auto", "", None),
        ("cpu", None, None),
    ],
)
def test_the_gpu_of_a_run_is_found_by_the_drivers_number(device: str, visible: str | None, index: int | None) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert gpu_index(device, environ) == index

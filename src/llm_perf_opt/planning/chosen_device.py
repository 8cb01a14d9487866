"""The device a prediction is for: an entry of the catalogue with the user's changes, or this machine's."""

import os
from dataclasses import replace

from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.model.hardware.calibrate import cache_dir, read_calibration
from llm_perf_opt.model.hardware.hardware import (
    AUTO,
    CPU,
    Device,
    Resolved,
    given_sources,
    is_given,
    load_catalogue,
    resolve_hardware,
    with_calibration,
)
from llm_perf_opt.planning.machine import this_cpu, this_device
from llm_perf_opt.planning.predict_request import Request
from llm_perf_opt.planning.subject import compose_without_stages


def find_hardware(name: str, request: Request) -> tuple[Device | None, Resolved]:
    """A catalogue entry with the user's changes, or this machine's device. The device is None for another user's."""
    catalogue = load_catalogue(conf_dir() / "hardware")
    if request.hardware_overrides:
        section = compose_without_stages([f"hardware={name}", *request.hardware_overrides]).hardware
    else:
        section = HardwareSection() if name == AUTO else catalogue[name]
    device = this_device(os.environ) if name == AUTO else (this_cpu() if name == CPU else None)
    if device is not None and name == AUTO and device.is_cpu and section.peak_tflops:
        # Peaks given on a machine without a GPU describe a device of the user's, not this machine's processor.
        return None, Resolved(section=replace(section, name="given", sources=given_sources(section)))
    return device, resolve_hardware(section, device, catalogue)


def with_cached_calibration(
    section: HardwareSection | None, device: Device | None, dtype: str
) -> HardwareSection | None:
    """This machine's own calibration, if an earlier run made one."""
    if section is None or device is None:
        return section
    known = read_calibration(cache_dir(os.environ), device, dtype)
    return section if known is None else with_calibration(section, known)


def memory_of(device: Device | None, section: HardwareSection | None) -> float | None:
    """What the device itself says, unless the configuration says otherwise; None: the section's own figure counts."""
    if device is None or (section is not None and is_given(section, "memory_gb")):
        return None
    return device.memory_bytes


def uncalibrated(section: HardwareSection | None) -> str | None:
    """A CPU has no data sheet to fall back on, and measuring it needs torch, which this command does not import."""
    if section is None or section.name != CPU or section.achieved_tflops or section.peak_tflops:
        return None
    return "this CPU was not calibrated yet: `llm-perf profile experiment=demo` measures it once, in about a second"

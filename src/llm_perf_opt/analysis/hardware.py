"""What devices can do: the catalogue of data-sheet peaks, and the lookup of a device by its own name."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import yaml

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.errors import ConfigError

AUTO = "auto"
CPU = "cpu"
PEAK_NAMES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4")
_LISTS = ("device_names",)
_MAPS = ("peak_tflops", "achieved_tflops", "sources")


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device a run uses, as it names itself. `driver` tells calibrations apart; `memory_bytes` None: unknown."""

    name: str
    is_cpu: bool
    driver: str
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What this machine reached: matrix product rate in one format, copy rate, and the host's cost per operator.

    Each figure says how it was measured, because the best of several runs may come from different ones.
    """

    device: str
    driver: str
    dtype: str
    tflops: float
    bandwidth_gb_s: float
    launch_us: float
    tflops_how: str
    bandwidth_how: str
    launch_how: str


def load_catalogue(folder: Path) -> dict[str, HardwareSection]:
    """All entries of conf/hardware but `auto`, by file name."""
    entries = {path.stem: read_entry(path) for path in sorted(folder.glob("*.yaml")) if path.stem != AUTO}
    owners: dict[str, str] = {}
    for stem, entry in entries.items():
        for name in entry.device_names:
            if name in owners:
                raise ConfigError(f"{folder / stem}.yaml: device name {name!r} belongs to {owners[name]} already")
            owners[name] = stem
    return entries


def read_entry(path: Path) -> HardwareSection:
    """One file of the catalogue."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_loader())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    known = {f.name for f in fields(HardwareSection)}
    unknown = sorted(set(data) - known) if isinstance(data, Mapping) else ["no mapping"]
    if unknown:
        raise ConfigError(f"{path}: unknown key {unknown[0]}, allowed: {', '.join(sorted(known))}")
    return check_peaks(section_of(data), where=str(path))


def section_of(data: Mapping[str, Any]) -> HardwareSection:
    """A section from plain data whose keys are known."""
    values = dict(data)
    for key in _LISTS:
        values[key] = tuple(values.get(key) or ())
    for key in _MAPS:
        values[key] = dict(values.get(key) or {})
    return HardwareSection(**values)


def check_peaks(section: HardwareSection, *, where: str) -> HardwareSection:
    """Refuse peaks under names nobody looks up, and peaks that are not positive."""
    problems = []
    for key in ("peak_tflops", "achieved_tflops"):
        for name, value in (section.peak_tflops if key == "peak_tflops" else section.achieved_tflops).items():
            if name not in PEAK_NAMES:
                problems.append(f"{where}: {key}.{name}: not a number format, allowed: {', '.join(PEAK_NAMES)}")
            elif not isinstance(value, int | float) or value <= 0:
                problems.append(f"{where}: {key}.{name}: not a number > 0 (got {value!r})")
    if problems:
        raise ConfigError(problems)
    return section


def find_by_device_name(catalogue: Mapping[str, HardwareSection], name: str) -> HardwareSection | None:
    """The entry that lists exactly this name: `NVIDIA H20` must never be taken for `NVIDIA H200`."""
    return next((entry for entry in catalogue.values() if name in entry.device_names), None)


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The hardware to reckon with, or the reason why nothing is known about it."""

    section: HardwareSection | None
    reason: str | None = None


def resolve_hardware(
    section: HardwareSection, device: Device | None, catalogue: Mapping[str, HardwareSection]
) -> Resolved:
    """A named entry or the user's own peaks as they are; `auto` by the device's name."""
    if section.name != AUTO:
        return Resolved(section=check_peaks(section, where="hardware"))
    if section.peak_tflops or section.memory_bandwidth_gb_s is not None:
        return Resolved(section=_given(check_peaks(section, where="hardware"), device))
    if device is None:
        return Resolved(section=None, reason="no device was found; name one with hardware=<entry>")
    if device.is_cpu:
        return Resolved(section=replace(catalogue[CPU], name=CPU))
    entry = find_by_device_name(catalogue, device.name)
    if entry is None:
        reason = (
            f"the peaks of {device.name!r} are not known: give them as hardware.peak_tflops.bf16=… and "
            "hardware.memory_bandwidth_gb_s=…, or measure with hardware.calibrate=true"
        )
        return Resolved(section=None, reason=reason)
    return Resolved(section=entry)


def _given(section: HardwareSection, device: Device | None) -> HardwareSection:
    sources = {"peak_tflops": "given in hardware.*", "memory_bandwidth_gb_s": "given in hardware.*"}
    return replace(section, name=device.name if device else "given", sources={**sources, **section.sources})


def with_calibration(section: HardwareSection, calibration: Calibration) -> HardwareSection:
    """Put what this machine reached in place of what somebody else's did."""
    return replace(
        section,
        achieved_tflops={calibration.dtype: calibration.tflops},
        achieved_bandwidth_gb_s=calibration.bandwidth_gb_s,
        launch_us=calibration.launch_us,
        sources={
            **section.sources,
            "achieved_tflops": calibration.tflops_how,
            "achieved_bandwidth_gb_s": calibration.bandwidth_how,
            "launch_us": calibration.launch_how,
        },
    )


def _loader() -> Any:
    """The C loader where PyYAML was built with it."""
    return yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

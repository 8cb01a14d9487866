"""What devices can do: the catalogue of data-sheet peaks, and the lookup of a device by its own name."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import yaml

from llm_perf_opt.config.schema import HardwareSection
from llm_perf_opt.errors import ConfigError

AUTO = "auto"
CPU = "cpu"
PEAK_NAMES = (
    "fp64",
    "fp32",
    "tf32",
    "bf16",
    "fp16",
    "fp16_acc16",
    "fp8",
    "fp8_acc16",
    "int8",
    "int4",
    "nvfp4",
    "mxfp4",
)
GIVEN = "given in the configuration"
_LISTS = ("device_names",)
_RATES = ("peak_tflops", "achieved_tflops")
_FIGURES = (
    "memory_bandwidth_gb_s",
    "memory_gb",
    "l2_mb",
    "link",
    "link_gb_s",
    "achieved_bandwidth_gb_s",
    "launch_us",
)
_MAPS = ("peak_tflops", "achieved_tflops", "sources")


@dataclass(frozen=True, kw_only=True)
class Device:
    """The device a run uses, as it names itself. `driver` distinguishes calibrations; `memory_bytes` None: unknown."""

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
    # Rates of the other formats a GPU multiplies, and of a copy to a second GPU in one direction.
    other_tflops: Mapping[str, float] = field(default_factory=dict)
    link_gb_s: float | None = None


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
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
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
    """Refuse peaks under unknown names, and peaks that are not positive."""
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
    """A named entry, or for `auto` the device's own; what the configuration gives is in front of either."""
    check_peaks(section, where="hardware")
    if section.name != AUTO:
        entry = catalogue.get(section.name)
        return Resolved(section=section if entry is None else replace(section, sources=_sources(entry, section)))
    found = _look_up(device, catalogue)
    base = found.section or HardwareSection(name=device.name if device else "given")
    merged = _overlay(base, section)
    if merged == base:
        return found
    has_peaks = bool(merged.peak_tflops) or merged.memory_bandwidth_gb_s is not None
    return Resolved(section=merged, reason=None if has_peaks else found.reason)


def _look_up(device: Device | None, catalogue: Mapping[str, HardwareSection]) -> Resolved:
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


def _overlay(base: HardwareSection, given: HardwareSection) -> HardwareSection:
    """The base's figures, with those that are given in their place."""
    wanted = asdict(given)
    figures = {key: wanted[key] for key in (*_FIGURES, "notes") if wanted[key] is not None}
    return replace(
        base,
        **figures,
        peak_tflops={**base.peak_tflops, **given.peak_tflops},
        achieved_tflops={**base.achieved_tflops, **given.achieved_tflops},
        sources=_sources(base, given),
    )


def _sources(base: HardwareSection, given: HardwareSection) -> dict[str, str]:
    """The base's sources; a figure that differs from the base's was given, and so was a source that does."""
    theirs, ours = asdict(base), asdict(given)
    changed = [key for key in _FIGURES if ours[key] is not None and ours[key] != theirs[key]]
    for key in _RATES:
        changed += [f"{key}.{name}" for name, value in ours[key].items() if value != theirs[key].get(name)]
    said = {key: f"{GIVEN}: {text}" for key, text in given.sources.items() if text != base.sources.get(key)}
    return {**base.sources, **dict.fromkeys(changed, GIVEN), **said}


def given_sources(section: HardwareSection) -> dict[str, str]:
    """The sources of a section whose every figure the configuration gives."""
    return _sources(HardwareSection(), section)


def is_given(section: HardwareSection, key: str) -> bool:
    """Whether a resolved section has this figure from the configuration; formats as `achieved_tflops.bf16`."""
    return section.sources.get(key, "").startswith(GIVEN)


def with_calibration(section: HardwareSection, calibration: Calibration) -> HardwareSection:
    """Put what this machine reached instead of what another user's did; what was given stays."""
    rates = {
        name: rate for name, rate in section.achieved_tflops.items() if is_given(section, f"achieved_tflops.{name}")
    }
    keeps_bandwidth = is_given(section, "achieved_bandwidth_gb_s")
    keeps_launch = is_given(section, "launch_us")
    sources = dict(section.sources)
    sources.pop("achieved_tflops", None)
    if calibration.dtype not in rates:
        sources["achieved_tflops"] = calibration.tflops_how
    if not keeps_bandwidth:
        sources["achieved_bandwidth_gb_s"] = calibration.bandwidth_how
    if not keeps_launch:
        sources["launch_us"] = calibration.launch_how
    return replace(
        section,
        achieved_tflops={**calibration.other_tflops, calibration.dtype: calibration.tflops, **rates},
        achieved_bandwidth_gb_s=section.achieved_bandwidth_gb_s if keeps_bandwidth else calibration.bandwidth_gb_s,
        launch_us=section.launch_us if keeps_launch else calibration.launch_us,
        sources=sources,
    )


def _loader() -> Any:
    """The C loader where PyYAML was built with it."""
    return yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

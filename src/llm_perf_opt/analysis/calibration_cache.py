"""Where calibrations are kept: one small JSON file per device, driver and number format in the user's cache."""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from llm_perf_opt.analysis.hardware import Calibration, Device

# 2: each figure with how it was measured; products of at least 1024 x 1024.
SCHEMA_VERSION = 2
_LETTERS = re.compile(r"[^a-z0-9.]+")


def cache_dir(environ: Mapping[str, str]) -> Path:
    """`$XDG_CACHE_HOME/llm-perf/calibration`, below the home directory by default."""
    base = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(base) / "llm-perf" / "calibration"


def cpu_driver(environ: Mapping[str, str]) -> str:
    """What a processor's calibration depends on besides its name: torch's version and the threads it may use."""
    threads = environ.get("OMP_NUM_THREADS") or str(_cores())
    try:
        torch_version = version("torch")
    except PackageNotFoundError:
        torch_version = "none"
    return f"torch {torch_version}, {threads} threads"


def _cores() -> int:
    """The cores this process may use; macOS knows no affinity."""
    return len(os.sched_getaffinity(0)) if sys.platform.startswith("linux") else os.cpu_count() or 1


def read_calibration(folder: Path, device: Device, dtype: str) -> Calibration | None:
    """The calibration of exactly this device, driver and format, or None. An unreadable file counts as none."""
    path = _path(folder, device, dtype)
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(data, dict) or data.get("schema_version") != SCHEMA_VERSION:
        return None
    values = {key: value for key, value in data.items() if key != "schema_version"}
    try:
        found = Calibration(**values)
    except TypeError:
        return None
    is_same = (found.device, found.driver, found.dtype) == (device.name, device.driver, dtype)
    return found if is_same else None


def write_calibration(folder: Path, calibration: Calibration) -> Path:
    """Keep a calibration; a reader never sees half a file."""
    device = Device(name=calibration.device, is_cpu=False, driver=calibration.driver)
    path = _path(folder, device, calibration.dtype)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps({"schema_version": SCHEMA_VERSION, **asdict(calibration)}, indent=2) + "\n")
    scratch.replace(path)
    return path


def _path(folder: Path, device: Device, dtype: str) -> Path:
    name = _LETTERS.sub("-", f"{device.name}--{device.driver}--{dtype}".lower())
    return folder / f"{name.strip('-')}.json"

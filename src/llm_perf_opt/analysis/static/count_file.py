"""The files in which the counting child answers: the device, the shape it took, parameters and
operator counts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from llm_perf_opt.analysis.hardware import Calibration, Device
from llm_perf_opt.analysis.static.operator_count import Count
from llm_perf_opt.analysis.static.shape import Shape
from llm_perf_opt.errors import ParseError

FACTS_FILE = "facts.json"
COUNTS_FILE = "counts.json"
PARAMETERS_FILE = "parameters.json"
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the child found out before it counted."""

    device: Device
    dtype: str
    shape: Shape
    calibration: Calibration | None
    notes: tuple[str, ...] = ()


def write_facts(folder: Path, facts: Facts) -> Path:
    return _write(folder / FACTS_FILE, facts)


def write_counts(folder: Path, counts: Mapping[str, Count]) -> Path:
    """The counts by phase."""
    return _write(folder / COUNTS_FILE, counts)


def write_parameters(folder: Path, parameters: Mapping[str, int]) -> Path:
    """Parameters of the module that was counted, by module group."""
    return _write(folder / PARAMETERS_FILE, parameters)


def read_facts(folder: Path) -> Facts | None:
    """None where the child did not get as far as writing it."""
    return _read(folder / FACTS_FILE, Facts)


def read_counts(folder: Path) -> dict[str, Count]:
    """Empty where the child did not finish counting."""
    return _read(folder / COUNTS_FILE, dict[str, Count]) or {}


def read_parameters(folder: Path) -> dict[str, int]:
    """Empty where the child did not get as far as building the module."""
    return _read(folder / PARAMETERS_FILE, dict[str, int]) or {}


def _write(path: Path, data: Any) -> Path:
    scratch = path.with_suffix(".tmp")
    scratch.write_bytes(msgspec.json.encode(data))
    scratch.replace(path)
    return path


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"{path}: cannot be read ({error})") from error

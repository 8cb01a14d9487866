"""The file in which the counting child answers: the device, the shape it took, and its operator counts."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llm_perf_opt.analysis.hardware import Calibration, Device
from llm_perf_opt.analysis.static.operator_count import Count, Tally
from llm_perf_opt.analysis.static.shape import Shape
from llm_perf_opt.analysis.static.vision_form import View
from llm_perf_opt.errors import ParseError

FACTS_FILE = "facts.json"
COUNTS_FILE = "counts.json"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the child found out before it counted."""

    device: Device
    dtype: str
    shape: Shape
    calibration: Calibration | None
    notes: tuple[str, ...] = ()


def write_facts(folder: Path, facts: Facts) -> Path:
    return _write(folder / FACTS_FILE, asdict(facts))


def write_counts(folder: Path, counts: Mapping[str, Count]) -> Path:
    return _write(folder / COUNTS_FILE, {phase: asdict(count) for phase, count in counts.items()})


def read_facts(folder: Path) -> Facts | None:
    """None where the child did not get as far as writing it."""
    data = _read(folder / FACTS_FILE)
    if data is None:
        return None
    shape = data["shape"]
    views = tuple(View(**view) for view in shape["views"])
    return Facts(
        device=Device(**data["device"]),
        dtype=data["dtype"],
        shape=Shape(**{**shape, "views": views}),
        calibration=Calibration(**data["calibration"]) if data["calibration"] else None,
        notes=tuple(data["notes"]),
    )


def read_counts(folder: Path) -> dict[str, Count]:
    """Empty where the child did not finish counting."""
    data = _read(folder / COUNTS_FILE)
    return {} if data is None else {phase: _count(entry) for phase, entry in data.items()}


def _count(data: Mapping[str, Any]) -> Count:
    return Count(
        groups={name: Tally(**tally) for name, tally in data["groups"].items()},
        operators={name: Tally(**tally) for name, tally in data["operators"].items()},
        unknown=tuple(data["unknown"]),
    )


def _write(path: Path, data: Mapping[str, Any]) -> Path:
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(data), encoding="utf-8")
    scratch.replace(path)
    return path


def _read(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ParseError(f"{path}: cannot be read ({error})") from error
    return dict(data)

"""Writes docs/schemas/: the JSON schema of every document llm-perf writes, made from the record that writes it.

    python scripts/schemas.py           write the schemas
    python scripts/schemas.py --check   exit with 1 if one of them is not what the records say

A new document is one line in `DOCUMENTS`.
"""

import inspect
import json
import sys
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.capture.allocations import SnapshotDocument
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis
from llm_perf_opt.capture.window import TimelineWindow
from llm_perf_opt.commands.doctor import DoctorDocument
from llm_perf_opt.commands.export import ExportDocument
from llm_perf_opt.comparison.bisect.bisect_document import BisectDocument
from llm_perf_opt.comparison.comparison import CompareDocument
from llm_perf_opt.core.documents import ClockDocument, InputSample, MetricsDocument
from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, Diagnosis
from llm_perf_opt.model.static.static_document import PredictionsDocument, StaticDocument
from llm_perf_opt.optimize.dry_run import OptimizePlanDocument
from llm_perf_opt.optimize.optimize_document import OptimizeDocument
from llm_perf_opt.optimize.server.server_document import OptimizeServerDocument
from llm_perf_opt.pipeline.analyze.kernel_files import KernelSummaryDocument
from llm_perf_opt.pipeline.catalogue import RunRow
from llm_perf_opt.pipeline.jobs.record import JobsDocument
from llm_perf_opt.pipeline.plan import PlanDocument
from llm_perf_opt.pipeline.run_result import RunResult
from llm_perf_opt.pipeline.share import SharedDocument
from llm_perf_opt.pipeline.stores import SyncDocument
from llm_perf_opt.pipeline.sweep import SweepDocument
from llm_perf_opt.planning.calibration import CalibratedDocument
from llm_perf_opt.plugins.deepseek_ocr.gallery import GalleryInfo
from llm_perf_opt.serving.load_results import BenchDocument
from llm_perf_opt.serving.requests.request_records import SlowDocument
from llm_perf_opt.serving.startup.startup_records import StartupDocument
from llm_perf_opt.system.json_output import ErrorDocument
from llm_perf_opt.workload.outputs import PredictionLine

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"

# The file's name without its ending, and the record it is written from and read into.
DOCUMENTS: dict[str, Any] = {
    "analysis": CaptureAnalysis,
    "bench": BenchDocument,
    "calibrated": CalibratedDocument,
    "compare": CompareDocument,
    "diagnosis": Diagnosis,
    "doctor": DoctorDocument,
    "error": ErrorDocument,
    "export": ExportDocument,
    "bisect": BisectDocument,
    "gallery_info": GalleryInfo,
    "gpu_samples": ClockDocument,
    "kernel_summary": KernelSummaryDocument,
    "kernels": NcuAnalysis,
    "inputs": list[InputSample],
    "jobs": JobsDocument,
    "manifest": RunManifest,
    "memory_snapshot": SnapshotDocument,
    "metrics": MetricsDocument,
    "optimize": OptimizeDocument,
    "optimize_server": OptimizeServerDocument,
    "optimize_plan": OptimizePlanDocument,
    "plan": PlanDocument,
    "slow_requests": SlowDocument,
    "prediction_line": PredictionLine,
    "predictions": PredictionsDocument,
    "startup": StartupDocument,
    "query": list[dict[str, Any]],
    "run_result": RunResult,
    "runs": list[RunRow],
    "runs_selected": list[dict[str, str | float | None]],
    "shared": SharedDocument,
    "static": StaticDocument,
    "sweep": SweepDocument,
    "sync": SyncDocument,
    "timeline": TimelineWindow,
}

_FILLED = {"type": "string", "minLength": 1}
_NOT_NEGATIVE = {"minimum": 0}
# What a type cannot say: how the keys of an object depend on each other, and what a word may be.
RULES: dict[str, dict[str, Any]] = {
    "RunManifest": {
        "properties": {"schema_version": {"const": 1}, "run_id": _FILLED, "created_at": {"format": "date-time"}}
    },
    "StageRecord": {
        "properties": {"name": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$"}, "duration_s": _NOT_NEGATIVE},
        "if": {"properties": {"status": {"const": "ok"}}},
        "then": {"properties": {"reason": {"type": "null"}}},
        "else": {"properties": {"reason": _FILLED}},
    },
    "CommandRecord": {"properties": {"argv": {"minItems": 1}, "duration_s": _NOT_NEGATIVE}},
    "StageFile": {"properties": {"role": _FILLED, "path": _FILLED}},
    "Metric": {
        "if": {"properties": {"value": {"type": "null"}}},
        "then": {"properties": {"reason": _FILLED}},
    },
}


def schema_of(name: str) -> str:
    """The text of one schema file."""
    record = DOCUMENTS[name]
    schema = msgspec.json.schema(record, schema_hook=_path, ref_template="#/$defs/{name}")
    for kind in _records(record, set()):
        _complete(schema["$defs"][kind.__name__], kind)
    document = {"$schema": DRAFT, "title": f"llm-perf {name}", **schema}
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _complete(schema: dict[str, Any], kind: Any) -> None:
    """A reader may do without a key that has a default; a writer writes every key but the unset ones, and no other."""
    schema["required"] = [field.name for field in fields(kind) if field.default is not msgspec.UNSET]
    schema["additionalProperties"] = False
    if "description" in schema:
        schema["description"] = inspect.cleandoc(schema["description"])
    for value in schema["properties"].values():
        value.pop("default", None)
    _merge(schema, RULES.get(kind.__name__, {}))


def _merge(schema: dict[str, Any], rules: Mapping[str, Any]) -> None:
    for key, value in rules.items():
        if isinstance(value, dict) and isinstance(schema.get(key), dict):
            _merge(schema[key], value)
        else:
            schema[key] = value


def _records(kind: Any, seen: set[Any]) -> Iterator[Any]:
    """Every dataclass a type is made of, itself first."""
    if is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        yield kind
        for hint in typing.get_type_hints(kind).values():
            yield from _records(hint, seen)
    for part in typing.get_args(kind):
        yield from _records(part, seen)


def _path(kind: type[Any]) -> dict[str, Any]:
    """The one type of ours that JSON does not have."""
    if kind is Path:
        return {"type": "string"}
    raise NotImplementedError(f"no JSON type is known for {kind}")


def stale() -> list[str]:
    """The names of schema files that are missing, not what the records say, or of no document."""
    written = {path.name.removesuffix(".schema.json"): path.read_text("utf-8") for path in FOLDER.glob("*.json")}
    return sorted(
        name for name in {*written, *DOCUMENTS} if name not in DOCUMENTS or written.get(name) != schema_of(name)
    )


def main(args: list[str]) -> int:
    if args == ["--check"]:
        for name in stale():
            print(f"docs/schemas/{name}.schema.json: not what the records say; run: python scripts/schemas.py")
        return 1 if stale() else 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in DOCUMENTS:
        (FOLDER / f"{name}.schema.json").write_text(schema_of(name), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Rows of a diagnosis and of a run: ledger, findings, metrics, samples, requests."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.diagnosis.diagnosis_document import Diagnosis, ScopeRecord
from llm_perf_opt.errors import ParseError
from llm_perf_opt.report.samples import SampleLine
from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.load_results import tpot_s
from llm_perf_opt.sql.events import Values, ViewRows, texts
from llm_perf_opt.sql.view_schema import BY_NAME, MISSING, SqlType
from llm_perf_opt.system.files import read_limited

Row = Mapping[str, Any]
LARGEST_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class LoadedRequest(RequestRecord):
    """A line of requests.jsonl: a request, and the load it was sent under."""

    level: str


def ledger_rows(scopes: Sequence[ScopeRecord]) -> ViewRows:
    return as_columns(
        "ledger",
        [
            {
                "scope": scope.id,
                "place": scope.place,
                "cell": cell.id,
                "time_ns": cell.time_ns,
                "share": cell.time_ns / scope.wall_ns if scope.wall_ns else None,
                "count": cell.count,
                "owner": " < ".join(cell.owner) or None,
                "wall_ns": scope.wall_ns,
                "clean": scope.clean,
            }
            for scope in scopes
            for cell in scope.cells
        ],
    )


def finding_rows(diagnosis: Diagnosis) -> ViewRows:
    return as_columns(
        "findings",
        [
            {
                "rank": rank,
                "rule": one.rule,
                "scope": one.scope,
                "title": one.title,
                "fix": one.remedy,
                "confidence": one.confidence,
                "share": one.share,
                "max_gain": one.max_gain,
                "saves_ms": one.saves_ms,
                "stake_ns": one.stake_ns,
                "floor_ns": one.floor_ns,
                "is_one_time": one.is_one_time,
                "phase": one.phase,
                "range": one.range_name,
                "evidence": "\n".join(one.evidence),
                "refutes": one.refutes or None,
                "caveat": one.caveat,
                "source": one.source,
            }
            for rank, one in enumerate(diagnosis.claims, 1)
        ],
    )


def metric_rows(manifest: RunManifest) -> ViewRows:
    return as_columns(
        "metrics",
        [
            {
                "stage": stage.name,
                "metric": name,
                "value": float(metric.value) if isinstance(metric.value, int | float) else None,
                "text": metric.value if isinstance(metric.value, str) else None,
                "unit": metric.unit,
                "p10": None if metric.spread is None else metric.spread.p10,
                "p90": None if metric.spread is None else metric.spread.p90,
                "n": None if metric.spread is None else metric.spread.n,
                "how": metric.how,
                "source": metric.source,
                "reason": metric.reason,
            }
            for stage in manifest.stages
            for name, metric in stage.metrics.items()
        ],
    )


def sample_rows(lines: Sequence[SampleLine]) -> ViewRows:
    return as_columns(
        "samples",
        [
            {"sample": line.sample_id, "repeat": line.repeat, "metric": name, "value": value}
            for line in lines
            for name, value in line.values.items()
        ],
    )


def request_rows(path: Path | None) -> ViewRows:
    """Of a run's requests.jsonl; no rows where the run is not a load test."""
    try:
        lines = [] if path is None else read_limited(path, LARGEST_BYTES).splitlines()
        requests = [msgspec.json.decode(line, type=LoadedRequest) for line in lines]
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"{path}: cannot be read as the requests of a load ({error}); measure it again") from error
    return as_columns(
        "requests",
        [
            {
                "level": one.level,
                "number": one.index,
                "started_s": one.started_s,
                "status": one.status,
                "error": one.error,
                "ttft_ms": _ms(one.ttft_s),
                "tpot_ms": _ms(tpot_s(one)),
                "latency_ms": _ms(one.latency_s),
                "prompt_tokens": one.prompt_tokens,
                "output_tokens": one.output_tokens,
                "late_ms": _ms(one.late_s),
                "turn": one.turn,
                "is_ramp": one.is_ramp,
            }
            for one in requests
        ],
    )


def _ms(time_s: float | None) -> float | None:
    return None if time_s is None else time_s * 1e3


def as_columns(view: str, rows: Sequence[Row]) -> ViewRows:
    """Rows of a view as its columns; None is what the view takes for NULL."""
    return {column.name: _column(column.type, [row[column.name] for row in rows]) for column in BY_NAME[view].columns}


def _column(kind: SqlType, values: Sequence[Any]) -> Values:
    if kind in ("BIGINT", "INTEGER"):
        return np.array([MISSING if value is None else value for value in values], np.int64)
    if kind == "DOUBLE":
        return np.array([math.nan if value is None else value for value in values], np.float64)
    if kind == "BOOLEAN":
        return np.array(values, np.bool_)
    return texts(values)

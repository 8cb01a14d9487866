"""What a capture cannot say of itself: the model and hardware behind it, and its times without a profiler."""

import argparse
from dataclasses import dataclass
from math import isfinite
from pathlib import Path

from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.core.names import GIVEN, STATIC_ANALYSIS, STATIC_JSON
from llm_perf_opt.core.records import Metric, StageFile, StageRecord, StageTraits
from llm_perf_opt.errors import ConfigError

# Option to what it means; the figures keep the names of the workload's own metrics.
CLEAN = {"prefill": "median time of one prefill", "tpot": "median time per output token"}


@dataclass(frozen=True, kw_only=True)
class CaptureContext:
    """The captures, and what was said about them."""

    files: tuple[Path, ...]
    overrides: tuple[str, ...]
    clean_ms: dict[str, float]


def split_context(args: argparse.Namespace) -> CaptureContext:
    """Tell captures from overrides: an override has a `=` and is no file."""
    given = [str(path) for path in args.files]
    overrides = tuple(text for text in given if "=" in text and not Path(text).exists())
    files = tuple(Path(text) for text in given if text not in overrides)
    values = {"prefill": args.clean_prefill_ms, "tpot": args.clean_tpot_ms}
    clean = {name: value for name, value in values.items() if value is not None}
    wrong = {name: ms for name, ms in clean.items() if not (isfinite(ms) and ms > 0)}
    problems = [f"--clean-{name}-ms: not a time (got {ms:g}), allowed: above 0" for name, ms in wrong.items()]
    if (overrides or clean) and args.output is None:
        named = overrides[0] if overrides else f"--clean-{next(iter(clean))}-ms"
        problems.append(f"{named}: has no effect without -o DIR, where the report is written")
    if not files:
        problems.append("analyze: no capture given, allowed: at least one file")
    if problems:
        raise ConfigError(problems)
    return CaptureContext(files=files, overrides=overrides, clean_ms=clean)


def context_stages(context: CaptureContext, run_dir: Path, now: str) -> list[StageRecord]:
    """The static analysis of what ran, and the clean times, as stages of the run."""
    return [*_static(context, run_dir, now), *_given(context, now)]


def _static(context: CaptureContext, run_dir: Path, now: str) -> list[StageRecord]:
    if not context.overrides:
        return []
    from llm_perf_opt.analysis.static.document import build_document, static_metrics
    from llm_perf_opt.runners.predict import predictions

    rows = predictions(context.overrides)
    if len(rows) != 1:
        raise ConfigError(f"analyze: {len(rows)} combinations of model, hardware and workload, allowed: one")
    analysis, notes = rows[0]
    path = write_json(run_dir / STATIC_ANALYSIS / STATIC_JSON, build_document(analysis, notes=notes))
    return [
        StageRecord(
            name=STATIC_ANALYSIS,
            status="ok",
            started_at=now,
            files=(StageFile(role="static_json", path=path),),
            metrics=static_metrics(analysis, source=f"{STATIC_ANALYSIS}/{STATIC_JSON}"),
            notes=notes,
        )
    ]


def _given(context: CaptureContext, now: str) -> list[StageRecord]:
    if not context.clean_ms:
        return []
    metrics = {
        f"{name}_ms": Metric(value=value, unit="ms", how=f"given as --clean-{name}-ms: {CLEAN[name]}, no profiler")
        for name, value in context.clean_ms.items()
    }
    return [
        StageRecord(name=GIVEN, status="ok", started_at=now, metrics=metrics, traits=StageTraits(gives_clean_pass=True))
    ]

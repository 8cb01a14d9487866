"""What a capture cannot say of itself: the model and hardware behind it, and its times without a profiler."""

from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.core.names import GIVEN, STATIC_ANALYSIS, STATIC_JSON
from llm_perf_opt.core.records import Metric, StageFile, StageRecord, StageTraits
from llm_perf_opt.errors import ConfigError

# Option to what it means; the figures keep the names of the workload's own metrics.
CLEAN = {"prefill": "median time of one prefill", "tpot": "median time per output token"}


@dataclass(frozen=True, kw_only=True)
class CaptureContext:
    """The captures, and what was reported about them."""

    files: tuple[Path, ...]
    overrides: tuple[str, ...]
    clean_ms: dict[str, float]


def context_stages(context: CaptureContext, run_dir: Path, now: str) -> list[StageRecord]:
    """The static analysis of what ran, and the clean times, as stages of the run."""
    return [*_static(context, run_dir, now), *_given(context, now)]


def _static(context: CaptureContext, run_dir: Path, now: str) -> list[StageRecord]:
    if not context.overrides:
        return []
    from llm_perf_opt.config.paths import conf_dir
    from llm_perf_opt.core.manifest import write_json
    from llm_perf_opt.model.estimate.what_if import what_if
    from llm_perf_opt.model.hardware.hardware import load_catalogue
    from llm_perf_opt.model.static.counted import CountedAnalysis, counted_document, counted_metrics
    from llm_perf_opt.model.static.static_document import build_document, static_metrics
    from llm_perf_opt.planning.planning_rows import predictions

    rows = predictions(context.overrides)
    if len(rows) != 1:
        raise ConfigError(f"analyze: {len(rows)} combinations of model, hardware and workload, allowed: one")
    analysis, notes, source = rows[0].analysis, rows[0].notes, f"{STATIC_ANALYSIS}/{STATIC_JSON}"
    if isinstance(analysis, CountedAnalysis):
        document, metrics = counted_document(analysis, notes=notes), counted_metrics(analysis, source=source)
    else:
        others = what_if(
            analysis.model,
            analysis.shape,
            analysis.dtypes,
            analysis.hardware,
            load_catalogue(conf_dir() / "hardware"),
            engine=rows[0].case.engine,
        )
        document = build_document(analysis, notes=notes, what_if=others)
        metrics = static_metrics(analysis, source=source)
    path = write_json(run_dir / STATIC_ANALYSIS / STATIC_JSON, document)
    return [
        StageRecord(
            name=STATIC_ANALYSIS,
            status="ok",
            started_at=now,
            files=(StageFile(role="static_json", path=path),),
            metrics=metrics,
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

"""One row as it is written: the static document with what serving comes to."""

from collections.abc import Sequence
from dataclasses import replace

from llm_perf_opt.model.static.counted import CountedAnalysis, counted_document
from llm_perf_opt.model.static.static_document import (
    PredictionsDocument,
    ServingForecast,
    StaticDocument,
    build_document,
)
from llm_perf_opt.planning.predicted_rows import Row


def predictions_document(rows: Sequence[Row]) -> PredictionsDocument:
    return PredictionsDocument(predictions=tuple(row_document(row) for row in rows))


def row_document(row: Row) -> StaticDocument:
    layout, case, found = row.case.layout, row.case, row.forecast
    serving = ServingForecast(
        engine=case.engine,
        tp=layout.tp,
        pp=layout.pp,
        ep=layout.ep,
        dp=layout.dp,
        output_tokens=case.output,
        concurrency=None if case.rate is not None else case.in_flight,
        arrivals_per_s=case.rate,
        fits=row.fits,
    )
    if found is not None:
        serving = replace(
            serving,
            ttft_ms=found.ttft_ms,
            ttft_p95_ms=found.ttft_p95_ms,
            tpot_ms=found.tpot_ms,
            request_ms=found.request_ms,
            output_tokens_per_s=found.output_tokens_per_s,
            output_tokens_per_s_low=found.slowest_tokens_per_s,
            output_tokens_per_s_high=found.fastest_tokens_per_s,
            band=found.band.why,
            cost_per_million_tokens=found.cost,
        )
    analysis = row.analysis
    if isinstance(analysis, CountedAnalysis):
        return counted_document(analysis, notes=row.notes, predictions=row.predictions)
    return replace(build_document(analysis, notes=row.notes), serving=serving)

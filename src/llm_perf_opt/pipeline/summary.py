"""The few lines a run ends with: how it went, the headline numbers, and where the report is."""

from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.records import Metric
from llm_perf_opt.report.markdown import format_metric

HEADLINE = (
    ("ttft_ms", "time to first token"),
    ("tpot_ms", "time per output token"),
    ("decode_tokens_per_s", "decode speed"),
    ("bound_decode_ms", "decode bound of this hardware"),
)


def summary_lines(manifest: RunManifest, reports: Sequence[Path]) -> list[str]:
    ok = [s.name for s in manifest.stages if s.status == "ok"]
    lines = [f"{manifest.status}: {len(ok)} of {len(manifest.stages)} stages ok"]
    lines += [f"  {s.name} {s.status}: {s.reason}" for s in manifest.stages if s.status != "ok"]
    for key, label in HEADLINE:
        metric = first_metric(manifest, key)
        if metric is not None:
            lines.append(
                f"  {label}: {format_metric(metric)}" + (f" ({metric.how})" if metric.value is not None else "")
            )
    lines += [f"report: {path}" for path in reports[:1]]
    return lines


def first_metric(manifest: RunManifest, key: str) -> Metric | None:
    """The metric of this name from the first stage that has it."""
    return next((s.metrics[key] for s in manifest.stages if key in s.metrics), None)

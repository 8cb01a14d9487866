"""The run as one markdown page: stages, numbers with their source, files."""

from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.records import Metric, StageRecord


def render_report(manifest: RunManifest) -> str:
    lines = [f"# Run {manifest.run_id}", "", f"Status: {manifest.status}. Started: {manifest.created_at}.", ""]
    lines += ["| stage | status | time | reason |", "| --- | --- | --- | --- |"]
    lines += [_stage_row(stage) for stage in manifest.stages]
    for stage in manifest.stages:
        if stage.metrics:
            lines += ["", f"## {stage.name}", "", "| number | value | how | source |", "| --- | --- | --- | --- |"]
            lines += [_metric_row(name, metric) for name, metric in stage.metrics.items()]
        lines += ["", *(f"- {note}" for note in stage.notes)] if stage.notes else []
    return "\n".join(lines) + "\n"


def _stage_row(stage: StageRecord) -> str:
    seconds = "" if stage.duration_s is None else f"{stage.duration_s:.1f} s"
    return f"| {stage.name} | {stage.status} | {seconds} | {escape(stage.reason or '')} |"


def _metric_row(name: str, metric: Metric) -> str:
    return f"| {name} | {format_metric(metric)} | {escape(metric.how)} | {escape(metric.source or '')} |"


def format_metric(metric: Metric) -> str:
    """The value with its unit, or why there is none."""
    if metric.value is None:
        return f"unknown ({escape(metric.reason or '')})"
    return f"{escape(format_value(metric.value))} {metric.unit}".strip()


def format_value(value: float | int | str) -> str:
    """Whole numbers with separators, others to four digits."""
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def escape(text: str) -> str:
    """Text safe inside a markdown table cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")

"""Numbers of a run as text that Prometheus reads: for the textfile collector, or as OpenMetrics.

Units are the base units Prometheus asks for: seconds, bytes. A median comes with p10 and p90, as the label `stat` says.
"""

import re
from collections.abc import Mapping

from llm_perf_opt.core.records import Metric

PREFIX = "llm_perf"
# Unit in the manifest to the word in the name and the factor.
UNITS = {
    "ms": ("seconds", 1e-3),
    "s": ("seconds", 1.0),
    "bytes": ("bytes", 1.0),
    "tokens/s": ("tokens_per_second", 1.0),
}
# The longest first.
_ENDINGS = ("_tokens_per_s", "_per_s", "_bytes", "_ms", "_s")


def render_openmetrics(numbers: Mapping[str, Metric], labels: Mapping[str, str], *, strict: bool) -> str:
    """Every number as a gauge. `strict`: OpenMetrics, with units and an end; else what node_exporter collects."""
    lines = []
    for name, metric in sorted(numbers.items()):
        values = gauge_values(metric)
        if not values:
            continue
        word, factor = UNITS.get(metric.unit, ("", 1.0))
        full = metric_name(name, word)
        lines += [f"# HELP {full} {_help(metric.how)}", f"# TYPE {full} gauge"]
        if strict and word:
            lines.append(f"# UNIT {full} {word}")
        for stat, value in values.items():
            lines.append(f"{full}{{{_labels({**labels, 'stat': stat})}}} {_nine_digits(value * factor)}")
    return "\n".join([*lines, *(["# EOF"] if strict else [])]) + "\n"


def gauge_values(metric: Metric) -> dict[str, float]:
    """A number by its statistic: the median with p10 and p90, or the value; nothing of what is not a number."""
    if not isinstance(metric.value, int | float) or isinstance(metric.value, bool):
        return {}
    if metric.spread is None:
        return {"value": metric.value}
    return {"median": metric.value, "p10": metric.spread.p10, "p90": metric.spread.p90}


def metric_name(name: str, unit: str) -> str:
    """`tpot_ms` in seconds becomes `llm_perf_tpot_seconds`."""
    return "_".join(part for part in (PREFIX, base_name(name, unit), unit) if part)


def base_name(name: str, unit: str) -> str:
    """A number's name without its unit."""
    base = next((name.removesuffix(end) for end in _ENDINGS if unit and name.endswith(end)), name)
    return re.sub(r"[^a-zA-Z0-9_]", "_", base)


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _nine_digits(value: float) -> str:
    return f"{value:.9g}"

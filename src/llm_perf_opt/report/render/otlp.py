"""Numbers of a run as OTLP metrics in the protocol's JSON encoding, which every OpenTelemetry collector takes.

The same gauges as for Prometheus: `llm_perf.tpot` in `s` is what a collector calls `llm_perf_tpot_seconds` there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llm_perf_opt import __version__
from llm_perf_opt.core.manifest import strict_json
from llm_perf_opt.core.records import Metric
from llm_perf_opt.report.render.openmetrics import UNITS, base_name, gauge_values

SERVICE = "llm-perf"
# Unit in the manifest to that of OpenTelemetry (UCUM).
OTLP_UNITS = {"ms": "s", "s": "s", "bytes": "By", "tokens/s": "{token}/s"}


@dataclass(frozen=True, kw_only=True)
class OtlpText:
    """A value of an attribute."""

    stringValue: str


@dataclass(frozen=True, kw_only=True)
class OtlpAttribute:
    """A label."""

    key: str
    value: OtlpText


@dataclass(frozen=True, kw_only=True)
class OtlpPoint:
    """One value; 64-bit integers are text in this encoding."""

    timeUnixNano: str
    asDouble: float
    attributes: tuple[OtlpAttribute, ...]


@dataclass(frozen=True, kw_only=True)
class OtlpGauge:
    """The values of one metric."""

    dataPoints: tuple[OtlpPoint, ...]


@dataclass(frozen=True, kw_only=True)
class OtlpMetric:
    """One number of a run."""

    name: str
    description: str
    unit: str
    gauge: OtlpGauge


@dataclass(frozen=True, kw_only=True)
class OtlpScope:
    """Who measured."""

    name: str = "llm_perf_opt"
    version: str = __version__


@dataclass(frozen=True, kw_only=True)
class OtlpScopeMetrics:
    """All numbers of a run."""

    scope: OtlpScope
    metrics: tuple[OtlpMetric, ...]


@dataclass(frozen=True, kw_only=True)
class OtlpResource:
    """What was measured."""

    attributes: tuple[OtlpAttribute, ...]


@dataclass(frozen=True, kw_only=True)
class OtlpResourceMetrics:
    """The numbers of one run."""

    resource: OtlpResource
    scopeMetrics: tuple[OtlpScopeMetrics, ...]


@dataclass(frozen=True, kw_only=True)
class OtlpRequest:
    """The body of a POST to /v1/metrics, and what a collector's file receiver reads."""

    resourceMetrics: tuple[OtlpResourceMetrics, ...]


def render_otlp(numbers: Mapping[str, Metric], labels: Mapping[str, str], *, time_ns: int) -> str:
    """Every number as a gauge at the time of the run."""
    metrics = tuple(_metrics(numbers, time_ns))
    scope = OtlpScopeMetrics(scope=OtlpScope(), metrics=metrics)
    attributes = _attributes({"service.name": SERVICE, **{f"llm_perf.{name}": text for name, text in labels.items()}})
    of_run = OtlpResourceMetrics(resource=OtlpResource(attributes=attributes), scopeMetrics=(scope,))
    return strict_json(OtlpRequest(resourceMetrics=(of_run,)), separators=(",", ":")) + "\n"


def _metrics(numbers: Mapping[str, Metric], time_ns: int) -> Iterator[OtlpMetric]:
    for name, metric in sorted(numbers.items()):
        word, factor = UNITS.get(metric.unit, ("", 1.0))
        points = tuple(
            OtlpPoint(timeUnixNano=str(time_ns), asDouble=value * factor, attributes=_attributes({"stat": stat}))
            for stat, value in gauge_values(metric).items()
        )
        if points:
            unit = OTLP_UNITS.get(metric.unit, "1")
            yield OtlpMetric(
                name=f"llm_perf.{base_name(name, word)}",
                description=metric.how,
                unit=unit,
                gauge=OtlpGauge(dataPoints=points),
            )


def _attributes(texts: Mapping[str, str]) -> tuple[OtlpAttribute, ...]:
    return tuple(OtlpAttribute(key=key, value=OtlpText(stringValue=text)) for key, text in texts.items())

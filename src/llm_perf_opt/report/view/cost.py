"""What a million output tokens cost, in money and in joules, where the run knows it."""

from collections.abc import Mapping
from dataclasses import dataclass

from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.core.units import digits, si
from llm_perf_opt.diagnosis.facts import Known, Unknown
from llm_perf_opt.report.run_facts import clean_metric
from llm_perf_opt.report.run_files import Found, RunFiles

MILLION = 1e6
JOULES = "joules_per_token"


@dataclass(frozen=True, kw_only=True)
class MillionTokens:
    """Of requests one after the other. `cost`: in the currency of `hardware.price_per_hour`; `joules`: measured."""

    cost: Known | None = None
    joules: Known | None = None

    def saved(self, share: float | None) -> str:
        """What a request that gets shorter by a share saves; of energy only the measured total is known."""
        parts = []
        if self.cost is not None and share is not None:
            parts.append(f"up to {digits(share * self.cost.value)} of {digits(self.cost.value)} in cost")
        elif self.cost is not None:
            parts.append(f"{digits(self.cost.value)} in cost")
        if self.joules is not None:
            parts.append(f"{si(self.joules.value, 'J', count=3)} used")
        return f"per million tokens: {', '.join(parts)}" if parts else ""


def million_tokens(files: RunFiles) -> MillionTokens:
    return MillionTokens(cost=_cost(files), joules=_joules(files))


def _cost(files: RunFiles) -> Known | None:
    hardware = files.manifest.config.get("hardware")
    price = hardware.get("price_per_hour") if isinstance(hardware, Mapping) else None
    request, tokens = (clean_metric(files.manifest, key) for key in ("e2e_ms", "tokens"))
    if not isinstance(price, int | float) or isinstance(request, Unknown) or isinstance(tokens, Unknown):
        return None
    deployment = files.metrics.content.deployment if isinstance(files.metrics, Found) else None
    batch, devices = (deployment.batch, deployment.tp) if deployment is not None else (1, 1)
    if tokens.value * batch <= 0:
        return None
    return Known(
        value=price / 3.6e6 * request.value * devices / (tokens.value * batch) * MILLION,
        unit="",
        how=f"at {price:g} per hour and device, requests one after the other, batch {batch}",
        source=request.source,
    )


def _joules(files: RunFiles) -> Known | None:
    """Of the stage that measured it, whichever that is."""
    for stage in files.manifest.stages:
        metric = stage.metrics.get(JOULES)
        if metric is not None and isinstance(metric.value, int | float):
            source = metric.source or MANIFEST_FILE
            return Known(value=metric.value * MILLION, unit="J", how=metric.how, source=source)
    return None

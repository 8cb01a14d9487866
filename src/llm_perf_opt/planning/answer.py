"""What meets the limits and the demand: devices, formats and layouts, by the rows of `llm-perf predict`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.estimate.parallel import Layout
from llm_perf_opt.model.estimate.requests import PROMPT_TOKENS, Load
from llm_perf_opt.model.estimate.steps import Setting
from llm_perf_opt.model.hardware.work import Dtypes
from llm_perf_opt.model.static.model_analysis import Analysis
from llm_perf_opt.model.static.parts import Model
from llm_perf_opt.planning.chosen_device import find_hardware
from llm_perf_opt.planning.counted_rows import MetaModel
from llm_perf_opt.planning.deployments import (
    LARGEST_BATCH,
    Demand,
    Evaluate,
    Limits,
    batches,
    bill,
    layouts,
    serve,
    slowest_replicas,
)
from llm_perf_opt.planning.disaggregation import PoolOption, Pools, best_pools
from llm_perf_opt.planning.plan_table import PlanResult
from llm_perf_opt.planning.planning_rows import predict_row
from llm_perf_opt.planning.predict_request import Case, Request
from llm_perf_opt.planning.predicted_rows import Row
from llm_perf_opt.planning.subject import Subject, subjects


@dataclass(frozen=True, kw_only=True)
class Search:
    """What to search: limits, lengths, the most devices of a replica, a demand, and prices by entry."""

    limits: Limits
    context: int
    output: int
    devices: int
    demand: Demand | None
    burstiness: float
    prices: Mapping[str, float]


def find_plans(request: Request, plan: Search) -> PlanResult:
    """Of all models asked for."""
    answers = [_answer(subject, request, plan) for subject in subjects(request)]
    return PlanResult(
        rows=tuple(row for found in answers for row in found.rows),
        kept=tuple(row for found in answers for row in found.kept),
        pools=tuple(pools for found in answers for pools in found.pools),
        quantised=any(found.quantised for found in answers),
    )


def _answer(subject: Subject, request: Request, plan: Search) -> PlanResult:
    """Every device, format and layout, at the requests in flight that meet the limits."""
    model = subject.model
    if isinstance(model, MetaModel):
        raise ConfigError(f"{subject.label}: {model.reason}, so nothing can be planned; see llm-perf predict")
    rows: list[Row] = []
    kept: list[Row] = []
    pools: list[Pools] = []
    quantised = False
    for name in request.hardware:
        device, resolved = find_hardware(name, request)
        section = resolved.section
        if section is not None and section.name in plan.prices:
            resolved = replace(resolved, section=replace(section, price_per_hour=plan.prices[section.name]))

        def evaluate(case: Case) -> Row:
            return predict_row(subject, case, device, resolved)  # noqa: B023

        stored = evaluate(_case(request, plan, None, Layout())).analysis.dtypes
        tried: dict[int, list[Row]] = {}
        first_kept = len(kept)
        formats = request.lists.get("weight_dtype") or _formats(section.peak_tflops if section else {}, stored)
        for weight in formats:
            places = []
            first = len(kept)
            for layout in _layouts(model, request, plan.devices):
                found = list(batches(evaluate, _case(request, plan, weight, layout), plan.limits))
                rows += found
                allowed = [row for row in found if plan.limits.allow(row)]
                quantised = quantised or (
                    weight == "fp8" and found[0].analysis.dtypes.compute != "fp8" and bool(allowed)
                )
                place = _place(found[0])
                places += [place] if place is not None else []
                if plan.demand is None:
                    kept += allowed
                elif allowed:
                    served = serve(evaluate, found, plan.limits, plan.demand)
                    if served is not None:
                        kept.append(served)
                        tried[len(kept) - 1] = found
            if plan.demand is not None and places:
                limits = _limits_of_pools(plan.limits, kept[first:])
                best = best_pools(places, _load(request, plan), limits, plan.demand, weight_dtype=weight)
                pools += [best] if best is not None else []
        if plan.demand is not None and tried:
            best_kept = min(range(first_kept, len(kept)), key=lambda index: bill(kept[index]))
            kept[best_kept] = _with_slow_end(evaluate, kept[best_kept], tried[best_kept], plan.limits, plan.demand)
    return PlanResult(rows=tuple(rows), kept=tuple(kept), pools=tuple(pools), quantised=quantised)


def _with_slow_end(evaluate: Evaluate, row: Row, tried: Sequence[Row], limits: Limits, demand: Demand) -> Row:
    """The cheapest of a device, with the replicas it takes at the slow end of its band."""
    if row.forecast is None:
        return row
    return replace(row, slowest_replicas=slowest_replicas(evaluate, tried, limits, demand, row.forecast.band.slower))


def _formats(peaks: Mapping[str, float], stored: Dtypes) -> tuple[str | None, ...]:
    """The checkpoint's own format, and fp8 where the device multiplies it and the checkpoint is not quantised."""
    return (None, "fp8") if "fp8" in peaks and stored.weight == stored.compute else (None,)


def _limits_of_pools(limits: Limits, together: Sequence[Row]) -> Limits:
    """Without a limit for the first token, pools answer no later than prompts and decoding on the same devices."""
    if limits.ttft_ms is not None or not together:
        return limits
    found = min(together, key=bill).forecast
    return limits if found is None else replace(limits, ttft_ms=found.ttft_p95_ms)


def _layouts(model: Model, request: Request, most: int) -> list[Layout]:
    """Those asked for, else all that engines run."""
    if not {"tp", "pp", "ep", "dp"} & set(request.lists):
        return layouts(model, most)
    asked = list(dict.fromkeys(case.layout for case in request.cases()))
    found = [layout for layout in asked if layout.devices <= most]
    if not found:
        least = min(layout.devices for layout in asked)
        raise ConfigError(f"--devices: the layouts asked for take at least {least} devices (got {most})")
    return found


def _case(request: Request, plan: Search, weight: str | None, layout: Layout) -> Case:
    given = next(request.cases(), Case(layout=Layout()))
    return replace(
        given,
        prompt=plan.context - plan.output,
        context=plan.context,
        output=plan.output,
        burstiness=plan.burstiness,
        # No engine serves such prompts unchunked for a whole batch.
        prefill_chunk=given.prefill_chunk or PROMPT_TOKENS,
        weight_dtype=weight,
        engine=given.engine if "engine" in request.lists else "server",
        layout=layout,
    )


def _place(row: Row) -> PoolOption | None:
    """A layout that holds the model, for pools of prompts and of decoding."""
    found, case = row.analysis, row.case
    if row.forecast is None or found.hardware is None or row.largest_batch is None or case.layout.dp > 1:
        return None
    if not isinstance(found, Analysis) or row.fits is not True:
        return None
    setting = Setting(
        model=found.model,
        dtypes=found.dtypes,
        hardware=found.hardware,
        engine=case.engine,
        layout=case.layout,
        mla_mode=case.mla_mode,
    )
    return PoolOption(setting=setting, places=min(row.largest_batch, LARGEST_BATCH))


def _load(request: Request, plan: Search) -> Load:
    case = _case(request, plan, None, Layout())
    return Load(
        prompt=plan.context - plan.output,
        output=plan.output,
        prefix_hit=case.prefix_hit,
        chunk=case.prefill_chunk,
        acceptance=case.acceptance,
        draft=case.draft_tokens,
    )

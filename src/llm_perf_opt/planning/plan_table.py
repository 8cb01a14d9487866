"""What `llm-perf plan` prints: the cheapest of each device, the Pareto front, and how to start the cheapest."""

from collections.abc import Sequence
from dataclasses import dataclass

from llm_perf_opt.model.estimate.parallel import Layout
from llm_perf_opt.planning.deployments import Demand, Limits, best_of_each, bill, front, price, rate_per_device
from llm_perf_opt.planning.disaggregation import Pools
from llm_perf_opt.planning.launch_command import as_lines, sglang_command, vllm_command
from llm_perf_opt.planning.predicted_rows import Row
from llm_perf_opt.planning.prediction_table import filled
from llm_perf_opt.system.terminal import terminal_table

ACCURACY = (
    "fp8 weights made from a checkpoint in bf16 change its answers a little: measure the accuracy of your task (such "
    "as with lm-eval) before you deploy them, or plan with workload.weight_dtype=bf16"
)


@dataclass(frozen=True, kw_only=True)
class PlanResult:
    """`rows`: all that was tried; `kept`: what meets the limits, with a demand the replicas that serve it.

    `pools`: the same demand with prompts and decoding on different devices. `quantised`: fp8 was tried that the
    checkpoint does not hold.
    """

    rows: tuple[Row, ...]
    kept: tuple[Row, ...]
    pools: tuple[Pools, ...]
    quantised: bool


def render_plan(
    answer: PlanResult, limits: Limits, demand: Demand | None, *, prompt: int, output: int, model: str
) -> str:
    asked = [f"{prompt:,} + {output:,} tokens"]
    if limits.ttft_ms is not None:
        asked.append(f"first token in {limits.ttft_ms:g} ms ({'median' if limits.is_median else '95th percentile'})")
    asked += [f"{limits.tpot_ms:g} ms a token"] if limits.tpot_ms is not None else []
    if demand is not None:
        asked.append(f"{demand.users:,} users" if demand.users is not None else f"{demand.per_s:g} requests per second")
        asked += [f"{100 * demand.headroom:.0f} % headroom"] if demand.headroom else []
    allowed = sum(map(limits.allow, answer.rows))
    lines = [*filled("; ".join(asked) + ":"), f"{allowed} of {len(answer.rows)} combinations meet the SLOs.", ""]
    if not answer.kept:
        return "\n".join([*lines, *_nearest(answer.rows, limits)]) + "\n"
    if demand is None:
        best = best_of_each(answer.kept, price)
        lines += ["Cheapest of each device:", _listed(best, limits), "", "Pareto front:"]
        lines += [_listed(front(answer.kept), limits), ""]
    else:
        best = best_of_each(answer.kept, bill)
        lines += ["Cheapest of each device:", _bill(best, limits, demand), ""]
        lines += _pools(answer.pools, best[0])
    return "\n".join([*lines, *_launch(best[0], demand, model), "", *_footer(answer, best, demand)]) + "\n"


def spread(layout: Layout, replicas: int = 1, *, single: str = "–") -> str:
    """`tp4`, `tp2 pp2`, `dp8 ep8`: one replica's; `single` where that is one device."""
    parts = {"tp": layout.tp, "pp": layout.pp, "dp": layout.dp // replicas, "ep": layout.ep}
    return " ".join(f"{name}{count}" for name, count in parts.items() if count > 1) or single


def replicas_of(row: Row) -> int:
    """How many copies of the smallest group that engines run a row's layout is made of."""
    layout = row.case.layout
    return layout.dp // max(1, layout.ep // layout.tp)


def _listed(rows: Sequence[Row], limits: Limits) -> str:
    header = ("hardware", "n", "spread", "dtype", "batch", _first(limits), "tpot ms", "tok/s", "each", "cost/M")
    cells = []
    for row in rows:
        found, hardware = row.forecast, row.analysis.hardware
        if found is None or hardware is None:
            continue
        cells.append(
            (
                hardware.name,
                str(row.case.layout.devices),
                spread(row.case.layout),
                row.formats,
                str(row.case.in_flight),
                f"{limits.first_ms(found):,.0f}",
                f"{found.tpot_ms:.3g}",
                f"{found.output_tokens_per_s:,.0f}",
                f"{rate_per_device(found, row.case.layout):,.0f}",
                "–" if found.cost is None else f"{found.cost:.3g}",
            )
        )
    return terminal_table(header, cells, right=(1, 4, 5, 6, 7, 8, 9), rule=False)


def _bill(rows: Sequence[Row], limits: Limits, demand: Demand) -> str:
    header = (
        "hardware",
        "n",
        "replicas",
        "spread",
        "dtype",
        "in flight",
        _first(limits),
        "tpot ms",
        "tok/s",
        "per hour",
    )
    cells = []
    for row in rows:
        found, hardware, layout = row.forecast, row.analysis.hardware, row.case.layout
        if found is None or hardware is None:
            continue
        copies = replicas_of(row)
        hourly = None if hardware.price_per_hour is None else hardware.price_per_hour * layout.devices
        cells.append(
            (
                hardware.name,
                str(layout.devices),
                _replicas(copies, row.slowest_replicas),
                spread(layout, copies),
                row.formats,
                f"{found.in_flight / copies:,.3g} each",
                f"{limits.first_ms(found):,.0f}",
                f"{found.tpot_ms:.3g}",
                f"{found.output_tokens_per_s:,.0f}",
                "–" if hourly is None else f"{hourly:,.4g}",
            )
        )
    return terminal_table(header, cells, right=(1, 2, 5, 6, 7, 8, 9), rule=False)


def _replicas(copies: int, slowest: int | None) -> str:
    if slowest is None:
        return f"{copies} to –"
    return str(copies) if slowest <= copies else f"{copies} to {slowest}"


def _first(limits: Limits) -> str:
    return "ttft ms" if limits.is_median else "ttft p95"


def _pools(pools: Sequence[Pools], best: Row) -> list[str]:
    """Prompts and decoding apart, where that takes fewer devices of the kind than together."""
    hardware = best.analysis.hardware
    same = [found for found in pools if hardware is not None and found.hardware == hardware.name]
    found = min(same, key=lambda each: each.devices, default=None)
    if found is None or found.devices >= best.case.layout.devices:
        return [*filled("Prompts and decoding on different devices take no fewer devices here."), ""]
    cost = "" if found.price_per_hour is None else f", {found.price_per_hour:,.4g} per hour"
    text = (
        f"Prompts and decoding on different devices take {found.devices} {found.hardware}{cost}: {found.prompts} × "
        f"{spread(found.prompt_layout, single='one device')} for prompts, {found.decoders} × "
        f"{spread(found.decode_layout, single='one device')} with "
        f"{found.batch} requests each for decoding, weights {found.weight_dtype or 'as stored'}; first token in "
        f"{found.ttft_p95_ms:,.0f} ms (95th percentile), {found.tpot_ms:.3g} ms a token."
    )
    return [*filled(text), ""]


def _launch(row: Row, demand: Demand | None, model: str) -> list[str]:
    """How to start one replica of the cheapest plan."""
    copies = replicas_of(row) if demand is not None else 1
    if row.case.engine != "server":
        return []
    name = row.analysis.hardware.name if row.analysis.hardware is not None else ""
    what = f"one of {copies} replicas" if copies > 1 else "it"
    over = spread(row.case.layout, copies, single="")
    where = f"{name} ({over})" if over else name
    return [
        *filled(f"To start {what} on {where}, with vLLM or with SGLang:"),
        *as_lines(vllm_command(row, model=model, replicas=copies)),
        *as_lines(sglang_command(row, model=model, replicas=copies)),
    ]


def _nearest(rows: Sequence[Row], limits: Limits) -> list[str]:
    """What came nearest, so that the limit to give way on is known."""
    if all(row.forecast is None for row in rows):
        why = dict.fromkeys(text for row in rows for text in (*row.notes, row.analysis.hardware_reason or "") if text)
        return [
            "Nothing could be estimated: plans are made for text models on GPUs whose figures are known.",
            *(line for text in why for line in filled(f"note: {text}")),
        ]
    fitting = [(row, row.forecast) for row in rows if row.fits is True and row.forecast is not None]
    if not fitting:
        return ["None fits into the memory: allow more devices (--devices), or a narrower workload.weight_dtype."]
    quick, _ = min(fitting, key=lambda each: limits.first_ms(each[1]))
    smooth, _ = min(fitting, key=lambda each: each[1].tpot_ms)
    if quick is smooth:
        return [
            "Nearest: the shortest time to first token, which has the shortest per token too.",
            _listed([quick], limits),
        ]
    return [
        "Nearest: the shortest time to first token, and the shortest time per token.",
        _listed([quick, smooth], limits),
    ]


def _footer(answer: PlanResult, best: Sequence[Row], demand: Demand | None) -> list[str]:
    found = best[0].forecast
    texts = ["n: devices. spread: tensor, pipeline, data and expert parallel of one replica."]
    if demand is None:
        texts.append(
            "batch: requests in flight; ttft p95 is of requests that start together. each: tok/s of one device."
        )
        texts.append("cost/M: per million output tokens, in the currency of --price; – without one.")
    else:
        texts.append("replicas: by the middle of the estimate, and at the slow end of its band.")
        if any(row.slowest_replicas is None for row in best):
            texts.append("– replicas: at the slow end no number of them meets the limits.")
        texts.append("per hour: all devices, in the currency of --price; – without one.")
        if found is not None and found.cost is not None:
            texts.append(f"A million output tokens of the cheapest cost {found.cost:.3g} at this demand.")
    if found is not None:
        texts.append(
            f"The rate of the cheapest may be {found.slowest_tokens_per_s:,.0f} to "
            f"{found.fastest_tokens_per_s:,.0f} tok/s ({found.band.why}; docs/accuracy.md)."
            if demand is None
            else f"The band of the cheapest: {found.band.why} (docs/accuracy.md)."
        )
    notes = dict.fromkeys(text for row in best for text in row.notes)
    notes |= dict.fromkeys([ACCURACY] if answer.quantised else [])
    return [line for text in (*texts, *(f"note: {text}" for text in notes)) for line in filled(text)]

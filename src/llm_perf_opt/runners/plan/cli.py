"""`llm-perf plan`: which device, how many, which batch: the cheapest that meets the limits. Never imports torch."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.analysis.estimate.parallel import Layout
from llm_perf_opt.analysis.static.parts import GroupedAttention, Model
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.core.terminal import terminal_table
from llm_perf_opt.errors import EXIT_OK, ConfigError
from llm_perf_opt.runners.plan.search import Limits, cheapest, front, rate_per_device
from llm_perf_opt.runners.predict.cli import Subject, find_hardware, predict_row, print_json, subjects
from llm_perf_opt.runners.predict.counted import MetaModel
from llm_perf_opt.runners.predict.files import write_csv, write_plot
from llm_perf_opt.runners.predict.request import LARGEST_NUMBER, Case, Request, parse_request
from llm_perf_opt.runners.predict.row import Row
from llm_perf_opt.runners.predict.table import WIDTH

HELP = """\
llm-perf plan [OVERRIDE ...] [--ttft-ms MS] [--tpot-ms MS] [--context TOKENS]
              [--output TOKENS] [--devices N] [--price ENTRY=PRICE,...]
              [--csv FILE] [--plot FILE.svg] [--json]

Which device, how many of them, which batch and format: the cheapest that meets
the limits, by the estimates of `llm-perf predict` (see there for model=,
hardware= and workload.*).

examples:
  llm-perf plan model=llama3_8b hardware=h200,l40s --ttft-ms 500 --tpot-ms 30
  llm-perf plan model=qwen3_8b hardware=h200 --context 8192 --price h200=3.5

  --ttft-ms 500   time to first token at most
  --tpot-ms 30    time per further token at most
  --context 8192  prompt and answer together
  --output 256    of which the answer
  --devices 8     at most so many devices a replica
  --price h200=3.5,l40s=1   per hour and device

Searched: batches in powers of two up to what fits, tp up to --devices, formats
bf16 and fp8 (or the list given as workload.weight_dtype), the engine `server`
(or the one given). Without prices, devices are what is saved.
Files and --json hold every combination that meets the limits.
"""
OPTIONS = ("--ttft-ms", "--tpot-ms", "--context", "--output", "--devices", "--price", "--csv", "--plot")
LARGEST_BATCH = 1024


@dataclass(frozen=True, kw_only=True)
class Search:
    """What to search: limits, lengths, the most devices of a replica, and prices by entry."""

    limits: Limits
    context: int
    output: int
    devices: int
    prices: dict[str, float]


def main(argv: Sequence[str]) -> int:
    if "-h" in argv or "--help" in argv:
        print(HELP, end="")
        return EXIT_OK
    request = parse_request(argv, conf=conf_dir(), with_value=OPTIONS, bare=("--json",))
    plan = _plan(request)
    rows = [row for subject in subjects(request) for row in _search(subject, request, plan)]
    kept = [row for row in rows if plan.limits.allow(row)]
    if "--csv" in request.options:
        write_csv(kept, Path(request.options["--csv"]).expanduser())
    if "--plot" in request.options:
        write_plot(kept, Path(request.options["--plot"]).expanduser())
    if "--json" in request.flags:
        print_json(kept)
    else:
        print(render_plan(plan, rows, kept), end="")
    return EXIT_OK


def _plan(request: Request) -> Search:
    problems: list[str] = []

    def number(key: str, default: float | None) -> float | None:
        text = request.options.get(key)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value <= LARGEST_NUMBER:
            problems.append(f"{key}: not a number from above 0 to {LARGEST_NUMBER:,} (got {text[:40]!r})")
            return default
        return value

    ttft, tpot = number("--ttft-ms", None), number("--tpot-ms", None)
    context, output, devices = number("--context", 4096), number("--output", 256), number("--devices", 8)
    prices = {}
    for part in request.options.get("--price", "").split(","):
        name, sign, text = part.partition("=")
        if not part:
            continue
        if not sign or not text.replace(".", "", 1).isdecimal() or float(text) <= 0:
            problems.append(f"--price: not ENTRY=PRICE (got {part!r})")
        elif name.strip() not in request.hardware:
            problems.append(
                f"--price: {name.strip()!r} is not among the devices asked for, hardware={','.join(request.hardware)}"
            )
        else:
            prices[name.strip()] = float(text)
    if context is not None and output is not None and output >= context:
        problems.append(f"--output: not less than --context (got {output:.0f} of {context:.0f})")
    if problems:
        raise ConfigError(problems)
    return Search(
        limits=Limits(ttft_ms=ttft, tpot_ms=tpot),
        context=int(context or 0),
        output=int(output or 0),
        devices=int(devices or 0),
        prices=prices,
    )


def _search(subject: Subject, request: Request, plan: Search) -> Iterator[Row]:
    """Every device, format and spread, at batches in powers of two until one does not fit."""
    model = subject.model
    if isinstance(model, MetaModel):
        raise ConfigError(f"{subject.label}: {model.reason}, so there is nothing to plan with; see llm-perf predict")
    for name in request.hardware:
        device, resolved = find_hardware(name, request)
        section = resolved.section
        if section is not None and section.name in plan.prices:
            resolved = replace(resolved, section=replace(section, price_per_hour=plan.prices[section.name]))
        formats = request.lists.get("weight_dtype") or _formats(section.peak_tflops if section else {})
        for weight in formats:
            for tp in _spreads(model, plan.devices):
                batch = 1
                while batch <= LARGEST_BATCH:
                    row = predict_row(subject, _case(request, plan, weight, tp, batch), device, resolved)
                    yield row
                    if row.fits is not True:
                        break
                    batch *= 2


def _formats(peaks: Mapping[str, float]) -> tuple[str | None, ...]:
    """The checkpoint's own format, and fp8 where the device multiplies it."""
    return (None, "fp8") if "fp8" in peaks else (None,)


def _spreads(model: Model, most: int) -> list[int]:
    """Powers of two that divide the query heads, up to the most devices allowed."""
    heads = [
        layer.attention.heads for layer, _ in model.decoder.blocks if isinstance(layer.attention, GroupedAttention)
    ]
    return [tp for tp in (1, 2, 4, 8, 16) if tp <= most and all(count % tp == 0 for count in heads)]


def _case(request: Request, plan: Search, weight: str | None, tp: int, batch: int) -> Case:
    given = next(request.cases(), Case(layout=Layout()))
    return replace(
        given,
        prompt=plan.context - plan.output,
        context=plan.context,
        output=plan.output,
        batch=batch,
        concurrency=batch,
        # Nobody serves such prompts in one piece for a whole batch.
        prefill_chunk=given.prefill_chunk or 8192,
        weight_dtype=weight,
        engine=given.engine if "engine" in request.lists else "server",
        layout=replace(given.layout, tp=tp),
    )


def render_plan(plan: Search, rows: Sequence[Row], kept: Sequence[Row]) -> str:
    limits = plan.limits
    asked = [f"{plan.context - plan.output:,} + {plan.output:,} tokens"]
    asked += [f"first token in {limits.ttft_ms:g} ms"] if limits.ttft_ms is not None else []
    asked += [f"{limits.tpot_ms:g} ms a token"] if limits.tpot_ms is not None else []
    lines = [f"{'; '.join(asked)}:", f"{len(kept)} of {len(rows)} combinations meet it.", ""]
    if not kept:
        return "\n".join([*lines, *_nearest(rows)]) + "\n"
    lines += ["Cheapest of each device:", _table(cheapest(kept)), "", "What nothing else beats (Pareto front):"]
    lines += [_table(front(kept)), "", *_footer(kept)]
    return "\n".join(lines) + "\n"


def _table(rows: Sequence[Row]) -> str:
    header = ("hardware", "n", "dtype", "batch", "ttft ms", "tpot ms", "tok/s", "tok/s each", "cost/M")
    cells = []
    for row in rows:
        found, hardware = row.forecast, row.analysis.hardware
        if found is None or hardware is None:
            continue
        cost = "–" if found.cost is None else f"{found.cost:.3g}"
        cells.append(
            (
                hardware.name,
                str(row.case.layout.devices),
                row.formats,
                str(row.case.batch),
                f"{found.ttft_ms:,.0f}",
                f"{found.tpot_ms:.3g}",
                f"{found.output_tokens_per_s:,.0f}",
                f"{rate_per_device(row):,.0f}",
                cost,
            )
        )
    return terminal_table(header, cells, right=(1, 3, 4, 5, 6, 7, 8), rule=False)


def _nearest(rows: Sequence[Row]) -> list[str]:
    """What came nearest, so that the limit to give way on is known."""
    if all(row.forecast is None for row in rows):
        why = dict.fromkeys(text for row in rows for text in (*row.notes, row.analysis.hardware_reason or "") if text)
        return [
            "Nothing could be estimated: plans are made for text models on GPUs whose figures are known.",
            *(line for text in why for line in _filled(text)),
        ]
    fitting = [row for row in rows if row.fits is True and row.forecast is not None]
    if not fitting:
        return ["None fits into the memory: allow more devices (--devices), or a narrower workload.weight_dtype."]
    quick = min(fitting, key=lambda r: r.forecast.ttft_ms if r.forecast else 0.0)
    smooth = min(fitting, key=lambda r: r.forecast.tpot_ms if r.forecast else 0.0)
    if quick is smooth:
        return ["Nearest: the shortest time to first token, which has the shortest per token too.", _table([quick])]
    return ["Nearest: the shortest time to first token, and the shortest time per token.", _table([quick, smooth])]


def _footer(rows: Sequence[Row]) -> list[str]:
    labels = sorted({row.forecast.label for row in rows if row.forecast})
    return [
        "n: devices of one replica (tensor parallel). A batch is requests in flight;",
        f"prompts ride along. Rates {' and '.join(labels)}: docs/accuracy.md",
        "cost/M: per million output tokens, in the currency of --price; – without one.",
        *(line for text in dict.fromkeys(text for row in rows for text in row.notes) for line in _filled(text)),
    ]


def _filled(text: str) -> list[str]:
    return textwrap.wrap(f"note: {text}", WIDTH, break_long_words=False, break_on_hyphens=False)

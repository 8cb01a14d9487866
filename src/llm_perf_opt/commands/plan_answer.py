"""What `llm-perf plan` does with its arguments: limits, demand and prices, the search, and its output."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.errors import EXIT_FAILED, EXIT_OK, ConfigError
from llm_perf_opt.planning.answer import Search, find_plans
from llm_perf_opt.planning.calibration import (
    OPTION,
    MeasuredServer,
    calibrated_document,
    is_steady,
    length_problems,
    read_server,
    render_calibrated,
)
from llm_perf_opt.planning.deployments import Demand, Limits
from llm_perf_opt.planning.plan_table import render_plan
from llm_perf_opt.planning.planning_document import predictions_document
from llm_perf_opt.planning.predict_request import LARGEST_NUMBER, Request, parse_request
from llm_perf_opt.planning.prediction_files import write_csv, write_plot
from llm_perf_opt.system.json_output import print_json

OPTIONS = (
    *("--ttft-ms", "--tpot-ms", "--percentile", "--context", "--output", "--devices", "--users", "--rate"),
    *("--burstiness", "--headroom", "--calibrate-from", "--price", "--prices", "--csv", "--plot"),
)
# What predict takes as a key of the workload and plan as an option.
OWN_OPTIONS = {"rate": "--rate", "burstiness": "--burstiness", "concurrency": "--users", "output": "--output"}
SECONDS = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0}


def answer(argv: Sequence[str]) -> int:
    """Search as the arguments say, print and write what was found; returns the exit code."""
    request = parse_request(argv, conf=conf_dir(), with_value=OPTIONS, bare=("--json",))
    plan = _plan(request)
    if OPTION in request.options:
        server = _measured(request, plan)
        if "--json" in request.flags:
            print_json(calibrated_document(server, plan.limits, plan.demand, burstiness=plan.burstiness))
        else:
            print(render_calibrated(server, plan.limits, plan.demand, burstiness=plan.burstiness), end="")
        return EXIT_OK if is_steady(server) else EXIT_FAILED
    found = find_plans(request, plan)
    if "--csv" in request.options:
        write_csv(found.kept, Path(request.options["--csv"]).expanduser())
    if "--plot" in request.options:
        write_plot(found.kept, Path(request.options["--plot"]).expanduser())
    if "--json" in request.flags:
        print_json(predictions_document(found.kept))
    else:
        name = request.paths[0] if request.paths else "MODEL"
        text = render_plan(
            found, plan.limits, plan.demand, prompt=plan.context - plan.output, output=plan.output, model=name
        )
        print(text, end="")
    return EXIT_OK


def _measured(request: Request, plan: Search) -> MeasuredServer:
    """The server a run of bench measured; what describes another one is refused."""
    server = read_server(request.options[OPTION])
    unused = [
        key
        for key, is_given in (
            ("model", bool(request.models or request.paths)),
            *((key, key in request.options) for key in ("--devices", "--price", "--prices", "--csv", "--plot")),
            *((f"workload.{name}", True) for name in request.lists),
        )
        if is_given
    ]
    problems = [f"{key}: has no effect with {OPTION}, whose server was measured as it is" for key in unused]
    output = plan.output if "--output" in request.options else None
    prompt = plan.context - (output or server.pace.output) if "--context" in request.options else None
    problems += length_problems(server, prompt=prompt, output=output)
    if problems:
        raise ConfigError(problems)
    return server


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
    users, burstiness, percentile = number("--users", None), number("--burstiness", 1.0), number("--percentile", 95)
    if percentile not in (50, 95):
        problems.append(f"--percentile: 50 or 95 (got {request.options['--percentile'][:40]!r})")
    if users is not None and users != int(users):
        problems.append(f"--users: not a whole number (got {request.options['--users'][:40]!r})")
    per_s = _rate(request.options.get("--rate"), problems)
    for name, option in OWN_OPTIONS.items():
        if name in request.lists:
            problems.append(f"workload.{name}: is {option} here")
    if users is not None and per_s is not None:
        problems.append("--users and --rate: mutually exclusive; give one of them")
    headroom = _share(request.options.get("--headroom"), problems)
    for key in ("--headroom", "--burstiness"):
        if key in request.options and users is None and per_s is None:
            problems.append(f"{key}: has no effect without --users or --rate")
    if context is not None and output is not None and output >= context:
        problems.append(f"--output: not less than --context (got {output:.0f} of {context:.0f})")
    prices = {**_price_file(request, problems), **_prices(request, problems)}
    if problems:
        raise ConfigError(problems)
    demand = None
    if users is not None or per_s is not None:
        demand = Demand(users=None if users is None else int(users), per_s=per_s, headroom=headroom)
    return Search(
        limits=Limits(ttft_ms=ttft, tpot_ms=tpot, is_median=percentile == 50),
        context=int(context or 0),
        output=int(output or 0),
        devices=int(devices or 0),
        demand=demand,
        burstiness=burstiness or 1.0,
        prices=prices,
    )


def _rate(text: str | None, problems: list[str]) -> float | None:
    """`20`, `20/s`, `1200/min`."""
    if text is None:
        return None
    value, sign, unit = text.partition("/")
    try:
        per_s = float(value) / SECONDS[unit.strip() if sign else "s"]
    except (ValueError, KeyError):
        per_s = 0.0
    if not 0 < per_s <= LARGEST_NUMBER:
        problems.append(f"--rate: not a rate such as 20/s or 1200/min (got {text[:40]!r})")
        return None
    return per_s


def _share(text: str | None, problems: list[str]) -> float:
    """`20%` or `0.2`."""
    if text is None:
        return 0.0
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 10:
        problems.append(f"--headroom: not a share such as 20% or 0.2 (got {text[:40]!r})")
        return 0.0
    return value


def _prices(request: Request, problems: list[str]) -> dict[str, float]:
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
    return prices


def _price_file(request: Request, problems: list[str]) -> dict[str, float]:
    """Prices of entries that are not asked for are left alone: one file serves many questions."""
    if "--prices" not in request.options:
        return {}
    path = Path(request.options["--prices"]).expanduser()
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        problems.append(f"--prices: {path} cannot be read ({first}); one `entry: price` a line")
        return {}
    if not isinstance(data, Mapping):
        problems.append(f"--prices: {path} holds no mapping; one `entry: price` a line")
        return {}
    known = {file.stem for file in (conf_dir() / "hardware").glob("*.yaml")}
    for name, value in data.items():
        if name not in known:
            problems.append(f"--prices: {path}: {name!r} is not an entry of conf/hardware")
        elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LARGEST_NUMBER:
            problems.append(f"--prices: {path}: {name}: not a price per hour and device (got {value!r})")
    return {} if problems else {str(name): float(value) for name, value in data.items()}

"""The command line of `llm-perf predict` and `plan`: comma lists to sweep over, flags, and the rest for Hydra."""

import difflib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.config.load import nearest_key
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.model.estimate.engine_model import ENGINES
from llm_perf_opt.model.estimate.parallel import Layout
from llm_perf_opt.model.hardware.work import BYTES
from llm_perf_opt.model.static.forms import MLA_MODES, MlaMode

# The order is that of the rows: what is last changes first.
NUMBERS = (
    "prompt",
    "context",
    "output",
    "prefill_chunk",
    "draft_tokens",
    "pp",
    "ep",
    "dp",
    "tp",
    "concurrency",
    "batch",
)
SHARES = ("prefix_hit", "acceptance")
# Numbers that need not be whole.
RATES = ("rate", "burstiness")
CHOICES: dict[str, tuple[str, ...]] = {
    "weight_dtype": tuple(BYTES),
    "kv_dtype": tuple(BYTES),
    "activation_dtype": tuple(BYTES),
    "mla_mode": MLA_MODES,
    "engine": tuple(ENGINES),
}
KEYS = tuple(f"workload.{name}" for name in (*CHOICES, *SHARES, *RATES, *NUMBERS))
# How a run says what is called otherwise here: ignored, they would answer another question.
OF_RUNS = {
    "infer.batch": "workload.batch",
    "infer.max_new_tokens": "workload.output",
    "infer.tp": "workload.tp",
    "infer.compile": "workload.engine",
    "infer.cuda_graph": "workload.engine",
    "dataset.prompt_tokens": "workload.prompt",
    "model.quantization": "workload.weight_dtype",
}
SECTIONS = ("model", "hardware", "workload", "infer", "dataset", "run")
FLAGS = ("--json", "--wide")
# Of tokens, sequences and devices; no machine has more, and an estimate of it would take forever.
LARGEST_NUMBER = 100_000_000
WITH_VALUE = ("--csv", "--plot", "--sort")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One combination of the lists. None: not asked for, so the configuration's own or the plain thing counts."""

    prompt: int | None = None
    context: int | None = None
    output: int | None = None
    batch: int = 1
    concurrency: int | None = None
    rate: float | None = None
    burstiness: float = 1.0
    prefill_chunk: int | None = None
    prefix_hit: float = 0.0
    acceptance: float | None = None
    draft_tokens: int = 4
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    activation_dtype: str | None = None
    mla_mode: MlaMode | None = None
    engine: str = "eager"
    layout: Layout

    @property
    def in_flight(self) -> int:
        """Requests in flight over all replicas."""
        return self.concurrency or self.batch * self.layout.dp


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was requested. `lists` are the values of each `workload.*` key given; `options` the flags with a value."""

    models: tuple[str, ...]
    paths: tuple[str, ...]
    hardware: tuple[str, ...]
    lists: Mapping[str, tuple[str, ...]]
    overrides: tuple[str, ...]
    flags: frozenset[str]
    options: Mapping[str, str]

    @property
    def hardware_overrides(self) -> tuple[str, ...]:
        return tuple(o for o in self.overrides if o.lstrip("+").startswith("hardware."))

    def cases(self) -> Iterator[Case]:
        """Every combination of the lists."""
        names = [name for name in (*CHOICES, *SHARES, *RATES, *NUMBERS) if name in self.lists]
        for values in itertools.product(*(self.lists[name] for name in names)):
            yield _case(dict(zip(names, values, strict=True)))


def _case(values: Mapping[str, str]) -> Case:
    def number(name: str) -> int | None:
        return int(values[name]) if name in values else None

    modes: dict[str, MlaMode] = {mode: mode for mode in MLA_MODES}
    return Case(
        prompt=number("prompt"),
        context=number("context"),
        output=number("output"),
        batch=number("batch") or 1,
        concurrency=number("concurrency"),
        rate=float(values["rate"]) if "rate" in values else None,
        burstiness=float(values.get("burstiness", 1.0)),
        prefill_chunk=number("prefill_chunk"),
        prefix_hit=float(values.get("prefix_hit", 0.0)),
        acceptance=float(values["acceptance"]) if "acceptance" in values else None,
        draft_tokens=number("draft_tokens") or 4,
        weight_dtype=values.get("weight_dtype"),
        kv_dtype=values.get("kv_dtype"),
        activation_dtype=values.get("activation_dtype"),
        mla_mode=modes[values["mla_mode"]] if "mla_mode" in values else None,
        engine=values.get("engine", "eager"),
        layout=Layout(tp=number("tp") or 1, pp=number("pp") or 1, ep=number("ep") or 1, dp=number("dp") or 1),
    )


def parse_request(
    argv: Sequence[str], *, conf: Path, with_value: Sequence[str] = WITH_VALUE, bare: Sequence[str] = FLAGS
) -> Request:
    """Every problem of the command line at once."""
    problems: list[str] = []
    given, flags, options = _split(argv, with_value, bare, problems)
    models = _names("model", given, conf / "model", problems)
    hardware = _names("hardware", given, conf / "hardware", problems) or ("auto",)
    lists = {}
    for key in KEYS:
        if key in given and given[key] != "null":
            lists[key.removeprefix("workload.")] = _values(key, given[key], problems)
    known = {"model", "model.path", "hardware", *KEYS}
    rest = {key: value for key, value in given.items() if key not in known}
    problems += [*_unknown_keys(rest), *_unwritable(options), *_load_problems(lists, options)]
    if problems:
        raise ConfigError(problems)
    return Request(
        models=models,
        paths=_items(given.get("model.path", "")),
        hardware=hardware,
        lists=lists,
        overrides=tuple(f"{key}={value}" for key, value in rest.items()),
        flags=frozenset(flags),
        options=options,
    )


def _load_problems(lists: Mapping[str, tuple[str, ...]], options: Mapping[str, str]) -> list[str]:
    """Loads that are given twice or not whole."""
    found = []
    if "rate" in lists and "concurrency" in lists:
        found.append("workload.rate and workload.concurrency: mutually exclusive; give one of them")
    if "rate" in lists and "output" not in lists and "--output" not in options:
        found.append("workload.rate: needs workload.output=…, the tokens of an answer")
    if "burstiness" in lists and "rate" not in lists:
        found.append("workload.burstiness: has no effect without workload.rate")
    return found


def _split(
    argv: Sequence[str], with_value: Sequence[str], bare: Sequence[str], problems: list[str]
) -> tuple[dict[str, str], list[str], dict[str, str]]:
    given: dict[str, str] = {}
    flags: list[str] = []
    options: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        key, sign, value = word.partition("=")
        if word in bare:
            flags.append(word)
        elif key in with_value:
            found = value if sign else next(words, None)
            if found is None:
                problems.append(f"{key}: needs a value")
            else:
                options[key] = found
        elif not sign or word.startswith("-"):
            allowed = ", ".join((*bare, *with_value))
            problems.append(f"{word}: not an override, allowed: key=value or {allowed}")
        else:
            given[key] = value
    return given, flags, options


def _items(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.strip("[]").split(",") if part.strip())


def _names(key: str, given: Mapping[str, str], folder: Path, problems: list[str]) -> tuple[str, ...]:
    """The presets a comma list names, each checked against the files there are."""
    if key not in given:
        return ()
    allowed = sorted(path.stem for path in folder.glob("*.yaml"))
    names = _items(given[key])
    if not names:
        problems.append(f"{key}: empty, allowed: {', '.join(allowed)}")
    for name in names:
        if name not in allowed and key == "model" and "/" in name:
            problems.append(
                f"model: presets have no slash (got {name!r}); folders, config.json files and names on the Hub are "
                f"given as model.path={name}"
            )
        elif name not in allowed:
            near = nearest_names(name, allowed)
            hint = f"nearest: {', '.join(near)}; " if near else ""
            problems.append(f"{key}: no such choice (got {name!r}), {hint}allowed: {', '.join(allowed)}")
    return names


def nearest_names(wanted: str, names: Sequence[str]) -> list[str]:
    """Those that begin as it does, ignoring case; else the one that resembles it most."""
    plain = wanted.lower().replace("-", "_").replace(" ", "_")
    begin = [name for name in names if name.startswith(plain)]
    return begin or difflib.get_close_matches(plain, names, n=1, cutoff=0.4)


def _values(key: str, text: str, problems: list[str]) -> tuple[str, ...]:
    """The values of a comma list, each checked by what the key takes."""
    name = key.removeprefix("workload.")
    found = []
    parts = _items(text)
    if not parts:
        problems.append(f"{key}: empty, allowed: {', '.join(CHOICES.get(name, ('numbers separated by commas',)))}")
    for part in parts:
        if name in CHOICES and part not in CHOICES[name]:
            problems.append(f"{key}: not one of the choices (got {part!r}), allowed: {', '.join(CHOICES[name])}")
        elif name in SHARES and not _is_share(part):
            problems.append(f"{key}: not a share from 0 to 1 (got {part!r}), allowed: numbers separated by commas")
        elif name in RATES and not _is_rate(part):
            problems.append(
                f"{key}: not a number above 0 and up to {LARGEST_NUMBER:,} (got {part[:40]!r}), allowed: numbers "
                "separated by commas"
            )
        elif name in NUMBERS and not _is_count(part):
            problems.append(
                f"{key}: not a whole number from 1 to {LARGEST_NUMBER:,} (got {part[:40]!r}), allowed: numbers "
                "separated by commas"
            )
        else:
            found.append(part)
    return tuple(found)


def _is_count(text: str) -> bool:
    is_short = len(text) <= len(str(LARGEST_NUMBER))
    return text.isascii() and text.isdecimal() and is_short and 1 <= int(text) <= LARGEST_NUMBER


def _is_rate(text: str) -> bool:
    try:
        return 0 < float(text) <= LARGEST_NUMBER
    except ValueError:
        return False


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False


def _unknown_keys(rest: Mapping[str, str]) -> list[str]:
    """Keys whose section predict does not read; keys inside a section are Hydra's to check."""
    spoken = [f"{key}: is of runs, here it is {OF_RUNS[key]}=…" for key in rest if key in OF_RUNS]
    known = [*SECTIONS, *KEYS]
    allowed = ", ".join((*(f"{name}.…" for name in SECTIONS if name != "workload"), *KEYS))
    return spoken + [
        f"{key}: unknown key (got {value!r}), nearest known key: {nearest_key(key, known) or allowed}"
        for key, value in rest.items()
        if key.lstrip("+~").partition(".")[0] not in SECTIONS or key.startswith("workload.")
    ]


def _unwritable(options: Mapping[str, str]) -> list[str]:
    """Requested files that cannot be written, reported before anything is computed."""
    problems = []
    for key in ("--csv", "--plot"):
        path = Path(options[key]).expanduser() if key in options else None
        if path is None:
            continue
        if path.is_dir() or not path.parent.is_dir():
            problems.append(f"{key}: not a file in a folder that exists (got {options[key]!r})")
        elif key == "--plot" and path.suffix.lower() != ".svg":
            problems.append(f"{key}: the picture is an SVG (got {options[key]!r}), give a name that ends in .svg")
    return problems

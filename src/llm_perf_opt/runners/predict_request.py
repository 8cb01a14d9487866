"""`llm-perf predict`'s command line: comma lists to sweep over, keys of its own, and the rest for Hydra."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llm_perf_opt.analysis.hardware.work import BYTES
from llm_perf_opt.analysis.static.closed_form import DEFAULT_MLA_MODE
from llm_perf_opt.analysis.static.forms import MLA_MODES, MlaMode
from llm_perf_opt.config.load import nearest_key
from llm_perf_opt.errors import ConfigError

SWEPT = ("workload.prompt", "workload.batch", "workload.context")
CHOICES = {
    "workload.weight_dtype": tuple(BYTES),
    "workload.kv_dtype": tuple(BYTES),
    "workload.mla_mode": MLA_MODES,
}
SECTIONS = ("model", "hardware", "workload", "infer", "dataset", "run")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for. Empty lists of models, prompts or contexts mean the configuration's own."""

    models: tuple[str, ...]
    path: Path | None
    hardware: tuple[str, ...]
    prompts: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    weight_dtype: str | None
    kv_dtype: str | None
    mla_mode: MlaMode
    overrides: tuple[str, ...]
    wants_json: bool

    @property
    def hardware_overrides(self) -> tuple[str, ...]:
        return tuple(o for o in self.overrides if o.lstrip("+").startswith("hardware."))


def parse_request(argv: Sequence[str], *, conf: Path) -> Request:
    """Every problem of the command line at once."""
    problems: list[str] = []
    given = _split(argv, problems)
    models = _names("model", given, conf / "model", problems)
    hardware = _names("hardware", given, conf / "hardware", problems) or ("auto",)
    numbers = {key: _numbers(key, given.get(key), problems) for key in SWEPT}
    for key, allowed in CHOICES.items():
        if key in given and given[key] not in allowed:
            problems.append(f"{key}: not one of the choices (got {given[key]!r}), allowed: {', '.join(allowed)}")
    known = {"model", "hardware", *SWEPT, *CHOICES}
    rest = {key: value for key, value in given.items() if key not in known}
    problems += _unknown_keys(rest)
    if problems:
        raise ConfigError(problems)
    modes: dict[str, MlaMode] = {mode: mode for mode in MLA_MODES}
    return Request(
        models=models,
        path=Path(given["model.path"]).expanduser() if "model.path" in given else None,
        hardware=hardware,
        prompts=numbers["workload.prompt"],
        batches=numbers["workload.batch"] or (1,),
        contexts=numbers["workload.context"],
        weight_dtype=given.get("workload.weight_dtype"),
        kv_dtype=given.get("workload.kv_dtype"),
        mla_mode=modes[given.get("workload.mla_mode", DEFAULT_MLA_MODE)],
        overrides=tuple(f"{key}={value}" for key, value in rest.items()),
        wants_json="--json" in argv,
    )


def nearest_name(wanted: str, names: Sequence[str]) -> str | None:
    match = difflib.get_close_matches(wanted, names, n=1, cutoff=0.4)
    return match[0] if match else None


def _split(argv: Sequence[str], problems: list[str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for arg in argv:
        if arg == "--json":
            continue
        key, sign, value = arg.partition("=")
        if not sign or arg.startswith("-"):
            problems.append(f"{arg}: not an override, allowed: key=value or --json")
            continue
        given[key] = value
    return given


def _names(key: str, given: dict[str, str], folder: Path, problems: list[str]) -> tuple[str, ...]:
    """The presets a comma list names, each checked against the files there are."""
    if key not in given:
        return ()
    allowed = sorted(path.stem for path in folder.glob("*.yaml"))
    names = tuple(name.strip() for name in given[key].strip("[]").split(",") if name.strip())
    if not names:
        problems.append(f"{key}: empty, allowed: {', '.join(allowed)}")
    for name in names:
        if name not in allowed:
            nearest = nearest_name(name, allowed)
            hint = f"nearest: {nearest}; " if nearest else ""
            problems.append(f"{key}: no such choice (got {name!r}), {hint}allowed: {', '.join(allowed)}")
    return names


def _numbers(key: str, text: str | None, problems: list[str]) -> tuple[int, ...]:
    if text is None or text == "null":
        return ()
    found = []
    for part in text.strip("[]").split(","):
        if not part.strip().isascii() or not part.strip().isdecimal() or int(part) < 1:
            problems.append(
                f"{key}: not a whole number ≥ 1 (got {part.strip()!r}), allowed: numbers separated by commas"
            )
        else:
            found.append(int(part))
    return tuple(found)


def _unknown_keys(rest: dict[str, str]) -> list[str]:
    """Keys whose section predict does not read; keys inside a section are Hydra's to check."""
    known = [*SECTIONS, *SWEPT, *CHOICES]
    return [
        f"{key}: unknown key (got {value!r}), nearest known key: {nearest_key(key, known) or 'model'}"
        for key, value in rest.items()
        if key.lstrip("+~").partition(".")[0] not in SECTIONS or key.startswith("workload.")
    ]

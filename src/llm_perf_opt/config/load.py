"""DictConfig to typed configuration: the only reader of a DictConfig. Reports every problem at once.

Turns composed values into those the sections expect, before they are checked.
"""

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import TypeAdapter, ValidationError

from llm_perf_opt.config.schema import (
    AUTO,
    AppConfig,
    ArtifactsSection,
    DatasetSection,
    HardwareSection,
    InferSection,
    ModelSection,
    Problem,
    RunSection,
    StageConfig,
    WorkloadSection,
)
from llm_perf_opt.core.units import count_of
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.system.files import LARGEST_NUMBER, SMALLEST_NUMBER, is_absurd

_PATH_KEYS = {
    "run": ("dataset_subset_filelist", "plan_file", "resume"),
    "dataset": ("root", "subset_filelist", "file"),
    "model": ("path",),
}
_RATE_MAPS = ("peak_tflops", "achieved_tflops")


def plain_values(raw: dict[str, Any], user_dir: Path) -> dict[str, Any]:
    """Paths absolute from where the user was, rates without unknown ones, commands as lists."""
    out = deepcopy(raw)
    _make_paths_absolute(out, user_dir)
    _drop_unknown_rates(out.get("hardware"))
    _write_numbers_as_words(out.get("workload"), "command")
    pipeline = out.get("pipeline")
    for stage in pipeline.values() if isinstance(pipeline, dict) else ():
        _write_numbers_as_words(stage, "extra_args")
    return out


def _write_numbers_as_words(section: Any, key: str) -> None:
    """`[python,serve.py,--port,8000]` is a list of words, regardless of how YAML reads its last one."""
    words = section.get(key) if isinstance(section, dict) else None
    if isinstance(words, list):
        section[key] = [str(word) if type(word) is int else word for word in words]


def _drop_unknown_rates(hardware: Any) -> None:
    """Without the number formats that are only listed so that their keys exist: null is an unknown rate."""
    for key in _RATE_MAPS if isinstance(hardware, dict) else ():
        if isinstance(hardware.get(key), dict):
            hardware[key] = {name: rate for name, rate in hardware[key].items() if rate is not None}


def _make_paths_absolute(raw: dict[str, Any], user_dir: Path) -> None:
    """Relative paths are meant from the directory the user was in."""
    for section, keys in _PATH_KEYS.items():
        values = raw.get(section)
        if not isinstance(values, dict):
            continue
        for key in keys:
            if isinstance(values.get(key), str) and values[key]:
                values[key] = str(user_dir / Path(values[key]).expanduser())


T = TypeVar("T")

LIGHT_MAX_NEW_TOKENS = 16
_DEVICE = re.compile(r"auto|cpu|cuda:\d+")
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
# All sections but those that belong to the model's adapter.
_SECTIONS: Mapping[str, type[Any]] = {
    "run": RunSection,
    "artifacts": ArtifactsSection,
    "workload": WorkloadSection,
    "dataset": DatasetSection,
    "hardware": HardwareSection,
}
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "path_type": "a path",
    "tuple_type": "a list",
    "list_type": "a list",
    "mapping_type": "a mapping",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping of keys",
}
_LEAST_TO_MOST = f"{SMALLEST_NUMBER:g} to {LARGEST_NUMBER:g} either side of it"


def load_config(
    cfg: DictConfig,
    *,
    user_dir: Path,
    stage_classes: Mapping[str, type[StageConfig]],
    known_stages: Iterable[str],
    model_cls: type[ModelSection] = ModelSection,
    infer_cls: type[InferSection] = InferSection,
    broken: Mapping[str, str] | None = None,
) -> AppConfig:
    """Build the typed configuration or raise one ConfigError that lists every problem.

    `stage_classes` are the sections that could be imported, `known_stages` all registered names, `broken` the enabled
    stages whose plug-in failed to import, with the reason.
    """
    raw = plain_values(resolve(cfg), user_dir)
    sections = {**_SECTIONS, "model": model_cls, "infer": infer_cls}
    checked = _check(raw, sections, stage_classes, known_stages, broken or {}, _borrowed(cfg))
    if checked.problems:
        raise ConfigError([str(problem) for problem in checked.problems])
    typed = checked.sections
    config = AppConfig(
        run=typed["run"],
        artifacts=typed["artifacts"],
        workload=typed["workload"],
        dataset=typed["dataset"],
        model=typed["model"],
        infer=typed["infer"],
        hardware=typed["hardware"],
        stages=checked.stages,
        resolved=raw,
        user_dir=user_dir,
        from_environment=asked_of_environment(OmegaConf.to_container(cfg, resolve=False)),
    )
    return effective(config)


def problems_outside_the_model(
    cfg: DictConfig,
    *,
    user_dir: Path,
    stage_classes: Mapping[str, type[StageConfig]],
    known_stages: Iterable[str],
    broken: Mapping[str, str] | None = None,
) -> list[Problem]:
    """What is wrong where the model's adapter has no say: `model.*` and `infer.*` are its own and are not inspected."""
    raw = plain_values(resolve(cfg), user_dir)
    return _check(raw, _SECTIONS, stage_classes, known_stages, broken or {}, _borrowed(cfg)).problems


@dataclass(frozen=True, kw_only=True)
class _Checked:
    """The sections and the enabled stages that are right, and every problem of all of them."""

    sections: Mapping[str, Any]
    stages: Mapping[str, StageConfig]
    problems: list[Problem]


def _check(
    raw: Mapping[str, Any],
    sections: Mapping[str, type[Any]],
    stage_classes: Mapping[str, type[StageConfig]],
    known_stages: Iterable[str],
    broken: Mapping[str, str],
    borrowed: Mapping[str, str],
) -> _Checked:
    problems: list[Problem] = []
    typed: dict[str, Any] = {}
    for name, cls in sections.items():
        # A section may be missing where each of its keys has a default.
        typed[name], found = validate(cls, raw.get(name) or {}, name)
        problems += found
        if isinstance(typed[name], InferSection):
            problems += [replace(problem, key=f"infer.{problem.key}") for problem in typed[name].problems()]
    allowed = [*_SECTIONS, "model", "infer", "pipeline"]
    problems += [_unknown(key, raw[key], allowed) for key in raw if key not in allowed]
    pipeline = raw.get("pipeline", {})
    if not isinstance(pipeline, Mapping):
        problems.append(Problem(key="pipeline", text=f"missing (got {pipeline!r}), allowed: a mapping of stages"))
    stages, found = _stages(
        pipeline if isinstance(pipeline, Mapping) else {}, stage_classes, list(known_stages), broken
    )
    problems += found
    problems += _device_problem(raw.get("run"))
    problems += _list_problems(typed.get("run"), typed.get("dataset"), typed.get("workload"))
    problems += _rank_problems(typed.get("run"), typed.get("infer"), typed.get("workload"))
    wrong_keys = {problem.key for problem in problems}
    # A value taken from another key is reported once, where it was set.
    problems = [problem for problem in problems if borrowed.get(problem.key) not in wrong_keys]
    return _Checked(sections=typed, stages=stages, problems=problems)


def _device_problem(run: Any) -> list[Problem]:
    device = run.get("device", "auto") if isinstance(run, Mapping) else "auto"
    if not isinstance(device, str) or _DEVICE.fullmatch(device):
        return []
    return [Problem(key="run.device", text=f"not a device (got {device!r}), allowed: auto, cpu or cuda:N")]


def _list_problems(run: Any, dataset: Any, workload: Any) -> list[Problem]:
    """A list of files for a data set that has none, or for a program of the user's, would have no effect."""
    is_program = isinstance(workload, WorkloadSection) and workload.command is not None
    if not isinstance(dataset, DatasetSection) or (dataset.kind == "omnidocbench" and not is_program):
        return []
    given = {"dataset.subset_filelist": dataset.subset_filelist}
    if isinstance(run, RunSection):
        given["run.dataset_subset_filelist"] = run.dataset_subset_filelist
    if is_program:
        text, allowed = "your own program reads its own inputs", "null"
    else:
        text, allowed = f"dataset.kind={dataset.kind} reads no list of files", "null, or dataset=omnidocbench"
    return [
        Problem(key=key, text=f"{text} (got {path}), allowed: {allowed}")
        for key, path in given.items()
        if path is not None
    ]


def _rank_problems(run: Any, infer: Any, workload: Any) -> list[Problem]:
    """Rules between `run.ranks` and what runs on them."""
    if not isinstance(run, RunSection):
        return []
    found = []
    world = run.world_size
    if isinstance(infer, InferSection) and infer.tp not in (1, world):
        text = f"not the number of ranks (got {infer.tp}), allowed: 1 (each rank has the whole model) or {world}"
        found.append(Problem(key="infer.tp", text=f"{text}, from run.ranks and run.nodes"))
    if run.ranks is None and run.nodes > 1:
        text = f"several nodes need ranks on each (got {run.nodes}), allowed: 1, or run.ranks=N"
        found.append(Problem(key="run.nodes", text=text))
    if world > 1 and run.repeats == AUTO:
        text = "ranks would disagree on when to stop (got 'auto'), allowed: a number"
        found.append(Problem(key="run.repeats", text=text))
    if run.ranks is not None and isinstance(workload, WorkloadSection) and workload.command is not None:
        text = f"your own program starts its ranks itself (got {run.ranks}), allowed: null; put torchrun into it"
        found.append(Problem(key="run.ranks", text=text))
    return found


def resolve(cfg: DictConfig) -> dict[str, Any]:
    """The composed config as plain data with every interpolation resolved."""
    try:
        return cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True))
    except OmegaConfBaseException as error:
        key = error.full_key or "?"
        raise ConfigError(f"{key}: could not be resolved ({str(error).splitlines()[0]})") from error


def asked_of_environment(written: Any) -> dict[str, str]:
    """The keys whose text asks for a variable of the environment, with that text."""
    return {key: text for key, text in _texts(written) if "${oc.env:" in text}


def _borrowed(cfg: DictConfig) -> dict[str, str]:
    """The keys whose value is that of another one, with its name."""
    texts = _texts(OmegaConf.to_container(cfg, resolve=False))
    return {key: found[1] for key, text in texts if (found := _REFERENCE.fullmatch(text))}


def _texts(written: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every text of a configuration with its key."""
    if isinstance(written, str):
        yield prefix, written
    items = written.items() if isinstance(written, dict) else enumerate(written) if isinstance(written, list) else ()
    for name, value in items:
        yield from _texts(value, f"{prefix}.{name}" if prefix else str(name))


def effective(config: AppConfig) -> AppConfig:
    """Apply the run-wide knobs that change others: the token budget, the file list, and light mode."""
    run, infer, dataset, stages = config.run, config.infer, config.dataset, config.stages
    if run.representative_max_new_tokens is not None:
        infer = replace(infer, max_new_tokens=run.representative_max_new_tokens)
    if run.dataset_subset_filelist is not None:
        dataset = replace(dataset, subset_filelist=run.dataset_subset_filelist)
    if run.mode == "light":
        run = replace(run, repeats=1)
        infer = replace(infer, max_new_tokens=min(infer.max_new_tokens, LIGHT_MAX_NEW_TOKENS))
        dataset = replace(dataset, sampling=replace(dataset.sampling, num_epochs=1, num_samples_per_epoch=1))
        stages = {name: stage.light() for name, stage in stages.items()}
    return replace(config, run=run, infer=infer, dataset=dataset, stages=stages)


def validate(cls: type[T], data: Any, section: str) -> tuple[T | None, list[Problem]]:
    """Validate one section strictly; returns the object, or None and the problems by full key."""
    if data is None:
        return None, [Problem(key=section, text="missing, allowed: a mapping of keys")]
    numbers: list[Problem] = []
    try:
        numbers += _number_problems(data, section)
        typed = TypeAdapter(cls).validate_json(json.dumps(data), strict=True)
        return (None if numbers else typed), numbers
    except ValidationError as error:
        problems = _explain(error, cls, data, section)
        wrong_keys = {problem.key for problem in problems}
        return None, [*problems, *(problem for problem in numbers if problem.key not in wrong_keys)]
    except (ValueError, RecursionError) as error:
        text = f"cannot be read ({str(error).splitlines()[0]}), allowed: numbers and nesting a person would write"
        return None, [Problem(key=section, text=text)]


def _number_problems(value: Any, key: str) -> Iterator[Problem]:
    """Numbers that are none, and those no manifest may hold, also where a section takes any value."""
    if isinstance(value, float) and not math.isfinite(value):
        expected = _EXPECTED["finite_number"]
        yield Problem(key=key, text=f"not {expected} (got {value!r}), allowed: {expected}")
    elif isinstance(value, int | float) and is_absurd(value):
        text = f"nothing measures so much or so little (got {value!r}), allowed: 0, or from {_LEAST_TO_MOST}"
        yield Problem(key=key, text=text)
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from _number_problems(inner, f"{key}.{name}")


def _stages(
    pipeline: Mapping[str, Any],
    classes: Mapping[str, type[StageConfig]],
    known: Sequence[str],
    broken: Mapping[str, str],
) -> tuple[dict[str, StageConfig], list[Problem]]:
    """The enabled stages' sections. The values of a disabled one are checked too, its rules that span keys are not."""
    problems: list[Problem] = []
    enabled: dict[str, StageConfig] = {}
    for name, section in pipeline.items():
        key = f"pipeline.{name}"
        if name not in known:
            problems.append(_unknown(key, section, [f"pipeline.{k}" for k in known]))
            continue
        on = isinstance(section, Mapping) and section.get("enable") is True
        if name not in classes:
            if on:
                why = broken.get(name, "not importable")
                problems.append(Problem(key=key, text=f"the plug-in could not be loaded ({why})"))
            problems += _number_problems(section, key)
            continue
        config, found = validate(classes[name], {} if section is None else section, key)
        problems += found
        if on and config is not None:
            enabled[name] = config
            problems += [replace(problem, key=f"{key}.{problem.key}") for problem in config.problems()]
    return enabled, problems


def _explain(error: ValidationError, cls: type[Any], data: Any, section: str) -> list[Problem]:
    """Pydantic's errors as one problem per key."""
    grouped: dict[str, list[Any]] = {}
    for item in error.errors(include_url=False):
        # Invalid elements are reported separately; pydantic does not count them.
        if item["type"] == "too_short" and len(item["input"]) >= item["ctx"]["min_length"]:
            continue
        path = _data_path(item["loc"], data, item["type"])
        grouped.setdefault(".".join([section, *path]), []).append(item)
    return [_explain_key(key, items, cls, section) for key, items in grouped.items()]


def _explain_key(key: str, items: list[Any], cls: type[Any], section: str) -> Problem:
    got = items[0]["input"]
    if items[0]["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return _unknown(key, got, known_keys(cls, section))
    if items[0]["type"] in ("missing", "missing_argument"):
        return Problem(key=key, text="missing, allowed: a value")
    allowed = " or ".join(dict.fromkeys(map(_allowed, items)))
    return Problem(key=key, text=f"{_wrong(items[0])} (got {got!r}), allowed: {allowed}")


def _data_path(loc: Sequence[int | str], data: Any, kind: str) -> list[str]:
    """The part of an error's location that is a path into the data (unions add tags that are not)."""
    path: list[str] = []
    here = data
    for part in loc:
        if isinstance(here, Mapping) and (part in here or kind in ("missing", "missing_argument")):
            here = here.get(part)
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            continue
        path.append(str(part))
    return path


def _wrong(item: Mapping[str, Any]) -> str:
    kind = item["type"]
    if kind == "literal_error":
        return "not one of the choices"
    if kind in _EXPECTED:
        return f"not {_EXPECTED[kind]}"
    return "not allowed"


def _allowed(item: Mapping[str, Any]) -> str:
    kind, ctx = item["type"], item.get("ctx", {})
    if kind == "literal_error":
        return str(ctx["expected"])
    bounds = {
        "greater_than_equal": ("ge", "≥"),
        "greater_than": ("gt", ">"),
        "less_than_equal": ("le", "≤"),
        "less_than": ("lt", "<"),
    }
    if kind in bounds:
        name, sign = bounds[kind]
        return f"a number {sign} {ctx[name]:.12g}"
    if kind == "too_short":
        return f"at least {count_of(ctx['min_length'], 'element')}"
    return _EXPECTED.get(kind, str(item["msg"]))


def _unknown(key: str, got: Any, known: Iterable[str]) -> Problem:
    nearest = nearest_key(key, known)
    hint = (
        f"nearest known key: {nearest}"
        if nearest
        else "no known key is like it; `llm-perf profile --cfg job` lists all"
    )
    return Problem(key=key, text=f"unknown key (got {got!r}), {hint}")


def nearest_key(wanted: str, known: Iterable[str]) -> str | None:
    """The known key most like this one: by its last part within the section, else by the whole key."""
    names = list(known)
    section, _, leaf = wanted.rpartition(".")
    siblings = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == section}
    by_leaf = difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.6)
    if siblings:
        return siblings[by_leaf[0]] if by_leaf else None
    return next(iter(difflib.get_close_matches(wanted, names, n=1, cutoff=0.8)), None)


def known_keys(cls: type[Any], prefix: str) -> list[str]:
    """All keys of a section class, nested ones included."""
    keys: list[str] = []
    for item in fields(cls):
        name = f"{prefix}.{item.name}"
        keys.append(name)
        kind = item.type if isinstance(item.type, type) else None
        if kind is not None and is_dataclass(kind):
            keys += known_keys(kind, name)
    return keys

"""Composes conf/config.yaml and types it; turns Hydra's errors into ours, all of them at once."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any, cast

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException

from llm_perf_opt.config.legacy import notice, override_key, split_override, translate_mapping
from llm_perf_opt.config.load import load_config, nearest_key, problems_outside_the_model
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.errors import ConfigError, did_you_mean
from llm_perf_opt.pipeline.plan import GROUP, find_entry_points, load_registry
from llm_perf_opt.workload.models.registry import load_adapter

CONFIG_NAME = "config"
# What Hydra and OmegaConf raise on odd input, on purpose or not: deep nesting, numbers of thousands of digits, nulls.
COMPOSITION_ERRORS = (
    HydraException,
    OmegaConfBaseException,
    yaml.YAMLError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
    RecursionError,
)
LONGEST_SHOWN = 120
MOST_JOBS_TRIED = 1000
# The extra of ours that brings each launcher.
LAUNCHER_EXTRAS = {"submitit_slurm": "slurm", "submitit_local": "slurm", "joblib": "joblib", "ray": "ray"}
# A model as the Hugging Face Hub names it.
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_LAUNCHER = re.compile(r"(?:Could not (?:find|load) |In ')\'?hydra/launcher[/=:](\w+)")
# Which of these keys there are depends on the model: without one they cannot be validated.
_OF_THE_MODEL = ("model.", "infer.", "dataset.")
_FULL_KEY = re.compile(r"Could not (?:override|append|delete)[^']*'([^']+)'")


@dataclass(frozen=True, kw_only=True)
class ConfigEntry:
    """Which configuration is composed: `--config-name` and `--config-dir` may name another one.

    `is_of_a_run`: it holds the sections of a run, whose values are checked too.
    """

    name: str = CONFIG_NAME
    extra_dir: Path | None = None
    is_of_a_run: bool = True

    def places(self) -> tuple[Path, Path | None]:
        """The directory that holds the entry itself, and the other one to look for presets in."""
        if self.extra_dir is None:
            return conf_dir(), None
        extra = self.extra_dir.resolve()
        is_outside = (extra / f"{self.name.removesuffix('.yaml')}.yaml").is_file()
        return (extra, conf_dir()) if is_outside else (conf_dir(), extra)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What of a command line is the user's own and what the command stands for; both are overrides."""

    overrides: tuple[str, ...] = ()
    implied: tuple[str, ...] = ()


def compose_config(overrides: Sequence[str], entry: ConfigEntry | None = None) -> DictConfig:
    """Compose with the `hydra` node included, outside a Hydra application."""
    composed = _compose(overrides, entry or ConfigEntry())
    HydraConfig.instance().set_config(composed)
    return composed


def _compose(overrides: Sequence[str], entry: ConfigEntry) -> DictConfig:
    main, other = entry.places()
    search = [] if other is None else [f"hydra.searchpath=[{json.dumps(f'file://{other}', ensure_ascii=False)}]"]
    # Inside an application Hydra knows one configuration already, and refuses another until that one is put aside.
    running = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(main), version_base="1.3"):
            composed = compose(entry.name, overrides=[*search, *overrides], return_hydra_config=True)
    finally:
        GlobalHydra.instance().hydra = running
    # Outside an application Hydra does not know the user's directory, and conf/ refers to it.
    with open_dict(composed):
        composed.hydra.runtime.cwd = os.getcwd()
    return composed


def open_known_keys(overrides: Sequence[str], *, below: str = "") -> list[str]:
    """Let a key every run has be set where an entry or preset of the user's leaves it out: Hydra would refuse it."""
    known = {key for key in _all_keys((), ConfigEntry()) if "." in key and key.startswith(below)}
    return [f"++{o}" if "=" in o and o.partition("=")[0] in known else o for o in overrides]


def translate_files(cfg: DictConfig, given: Given) -> tuple[DictConfig, str | None]:
    """The configuration with the old keys of its files translated, and the notice about them.

    A new key wins where the command line gives it or a file set it to something else than the default.
    """
    raw = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=False))
    hydra = raw.pop("hydra", None)
    defaults: list[DictConfig] = []

    def keeps(key: str) -> bool:
        if key in {o.lstrip("+").partition("=")[0] for o in given.overrides}:
            return True
        if not defaults:
            defaults.append(_compose(given.implied, ConfigEntry()))
        own = OmegaConf.select(OmegaConf.create(raw), key)
        return own is not None and own != OmegaConf.select(defaults[0], key)

    new, changed = translate_mapping(raw, keeps)
    if not changed:
        return cfg, None
    return OmegaConf.create({**new, "hydra": hydra} if hydra is not None else new), notice(changed)


def type_config(cfg: DictConfig, *, user_dir: Path) -> AppConfig:
    """The typed configuration of a composed one. Imports the stages it names and the model's adapter."""
    plain = OmegaConf.masked_copy(cfg, [str(k) for k in cfg if k != "hydra"])
    points = find_entry_points()
    if not points:
        raise ConfigError(
            f"pipeline: no stage is installed, since the package has no entry points in the group {GROUP!r}: a path to "
            "its source is not enough; install it (`pip install .`, or `pip install -e .` in a checkout)"
        )
    registry = load_registry(points, {str(name) for name in plain.get("pipeline") or {}})
    load = partial(
        load_config,
        plain,
        user_dir=user_dir,
        stage_classes=registry.config_classes,
        known_stages=registry.known,
        broken=registry.broken,
    )
    path = OmegaConf.select(plain, "model.adapter")
    if path is None:
        return load()
    try:
        adapter = load_adapter(str(path))
    except ConfigError as error:
        others = problems_outside_the_model(
            plain,
            user_dir=user_dir,
            stage_classes=registry.config_classes,
            known_stages=registry.known,
            broken=registry.broken,
        )
        raise ConfigError([*error.problems, *map(str, others)]) from error
    return load(model_cls=adapter.config_cls, infer_cls=adapter.infer_cls)


def explain_composition_error(
    error: Exception, overrides: Sequence[str], *, user_dir: Path, entry: ConfigEntry | None = None
) -> ConfigError:
    """Every override Hydra refuses, each with the nearest known key, and what is wrong with the others."""
    where = entry or ConfigEntry()
    is_foreseen = isinstance(error, HydraException | OmegaConfBaseException)
    if not is_foreseen and _try(overrides, where) is None:
        return ConfigError(f"command line: {_first_line(error)}; `llm-perf profile --hydra-help` lists Hydra's flags")
    if isinstance(error, InterpolationResolutionError) and _try(overrides, where) is None:
        # It composes, so no override is to blame for it; what holds the value that cannot be resolved says so itself.
        found = _problems_of(overrides, user_dir, where)
        if found:
            return ConfigError(found)
    malformed = {override: text for override in overrides if (text := _grammar_problem(override)) is not None}
    problems = list(malformed.values())
    rest = [override for override in overrides if override not in malformed]
    current = _try(rest, where) if malformed else error
    while current is not None:
        bad = _culprit(current, rest, where)
        if bad is None:
            problems.append(f"config: {_first_line(current)}")
            break
        rest.remove(bad)
        problems.append(_explain(current, bad, rest, where))
        if override_key(bad) == "model":
            rest = [override for override in rest if not override_key(override).startswith(_OF_THE_MODEL)]
        current = _try(rest, where)
    else:
        problems += _problems_of(rest, user_dir, where)
    return ConfigError(problems)


def first_bad_job(overrides: Sequence[str], entry: ConfigEntry) -> list[str]:
    """The overrides of the first job of a sweep that does not compose; all as they are if the sweep cannot be read."""
    try:
        choices = [_choices_of(text) for text in overrides]
    except COMPOSITION_ERRORS:
        return list(overrides)
    jobs = [list(job) for job in islice(product(*choices), MOST_JOBS_TRIED)]
    return next((job for job in jobs if _try(job, entry) is not None), list(overrides))


def _choices_of(override: str) -> list[str]:
    parsed = OverridesParser.create().parse_override(override)
    if not (parsed.is_sweep_override() and parsed.is_discrete_sweep()):
        return [override]
    return [f"{parsed.get_key_element()}={value}" for value in parsed.sweep_string_iterator()]


def _grammar_problem(override: str) -> str | None:
    """What is wrong with an override on its own, regardless of its key."""
    key, sign, value = split_override(override)
    if (not sign and not override.startswith("~")) or not key.strip():
        return f"{override[:LONGEST_SHOWN]}: not an override, allowed: key=value"
    try:
        OverridesParser.create().parse_override(override)
    except COMPOSITION_ERRORS as error:
        return f"{key}: {_first_line(error)} (got {_shown(value)}), allowed: an override in Hydra's grammar"
    return None


def _shown(value: str) -> str:
    return repr(value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}…")


def _problems_of(overrides: Sequence[str], user_dir: Path, entry: ConfigEntry) -> tuple[str, ...]:
    if not entry.is_of_a_run:
        return ()
    cfg, _ = translate_files(compose_config(overrides, entry), Given(overrides=tuple(overrides)))
    try:
        type_config(cfg, user_dir=user_dir)
    except ConfigError as error:
        return error.problems
    return ()


def _try(overrides: Sequence[str], entry: ConfigEntry) -> Exception | None:
    try:
        compose_config(overrides, entry)
    except COMPOSITION_ERRORS as error:
        return error
    return None


def _culprit(error: Exception, overrides: Sequence[str], entry: ConfigEntry) -> str | None:
    """The override an error speaks of: the one it names, else the one without which it is not made."""
    text = str(error)
    found = _FULL_KEY.search(text)
    key = found[1] if found else None
    names = {override: override_key(override) for override in overrides}
    for override, name in names.items():
        if name == key or re.search(rf"(?<![\w.@/]){re.escape(override)}(?![\w.])", text):
            return override
    for override, name in names.items():
        if key is not None and name.partition("@")[0] == key.partition("@")[0]:
            return override
    for number, override in enumerate(overrides):
        left = _try([*overrides[:number], *overrides[number + 1 :]], entry)
        if left is None or str(left) != text:
            return override
    return None


def _explain(error: Exception, override: str, rest: Sequence[str], entry: ConfigEntry) -> str:
    first = _first_line(error)
    key, _, value = split_override(override)
    if re.search(r"Could not override|Could not append|not in struct", str(error)):
        nearest = nearest_key(key, _all_keys(rest, entry))
        if nearest == key and override.startswith("+"):
            return f"{key}: already set, so + cannot add it (got {value!r}), allowed: {key}=… without the +"
        if nearest == key:
            return f"{key}: cannot be set here: {first} (got {value!r}), allowed: one setting of this key"
        hint = f"nearest known key: {nearest}" if nearest else "`llm-perf profile --cfg job` lists all keys"
        return f"{key}: unknown key (got {value!r}), {hint}"
    launcher = _LAUNCHER.search(str(error))
    if launcher is not None and launcher[1] in LAUNCHER_EXTRAS:
        extra = LAUNCHER_EXTRAS[launcher[1]]
        return (
            f"{key}: the launcher {launcher[1]} is not installed (got {value!r}), "
            f"allowed: once it is (pip install 'llm-perf-opt[{extra}]')"
        )
    if "Could not find" in str(error) or "In '" in first or first.startswith("Config group override must be"):
        choices = _choices(key)
        if key == "model" and _HUB_ID.fullmatch(value):
            return _of_the_hub(value, choices)
        hint = did_you_mean(value, choices)
        return (
            f"{key}: no such choice (got {value!r}){hint}, allowed: {', '.join(choices) or 'a config group of conf/'}"
        )
    return f"{key}: {first} (got {_shown(value)}), allowed: an override in Hydra's grammar"


def _of_the_hub(name: str, presets: Sequence[str]) -> str:
    """What to type for a model of the Hugging Face Hub: with its folder, where it was downloaded already."""
    home = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    found = sorted((cache / f"models--{name.replace('/', '--')}" / "snapshots").glob("*/config.json"))
    folder = str(found[-1].parent) if found else name.rpartition("/")[2]
    first = "" if found else f"hf download {name} --local-dir {folder}, then "
    return (
        f"model: models are read from folders, not from the Hub (got {name!r}); run: {first}llm-perf profile "
        f"model=causal_lm model.path={folder}; presets with random weights need no download: {', '.join(presets)}"
    )


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def require_values(overrides: Sequence[str], entry: ConfigEntry) -> None:
    """Refuse interpolations that cannot be resolved, before Hydra says so in its own way."""
    if not any("${" in override for override in overrides):
        return
    composed = compose_config(overrides, entry)
    OmegaConf.to_container(OmegaConf.masked_copy(composed, [str(k) for k in composed if k != "hydra"]), resolve=True)


def _choices(group: str) -> list[str]:
    return sorted(path.stem for path in (conf_dir() / group.partition("@")[0]).glob("*.yaml"))


def _all_keys(overrides: Sequence[str], entry: ConfigEntry) -> list[str]:
    """Every key of the configuration these overrides make (the default one when they make none), and its groups."""
    composes = _try(overrides, entry) is None
    composed = compose_config(overrides, entry) if composes else compose_config([])
    cfg = OmegaConf.to_container(composed, resolve=False)
    keys: list[str] = [str(p.relative_to(conf_dir())) for p in conf_dir().iterdir() if p.is_dir()]

    def walk(node: Any, prefix: str) -> None:
        if isinstance(node, dict):
            for name, value in node.items():
                if prefix or name != "hydra":
                    keys.append(f"{prefix}{name}")
                    walk(value, f"{prefix}{name}.")

    walk(cfg, "")
    return keys

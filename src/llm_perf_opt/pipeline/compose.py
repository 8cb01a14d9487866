"""Composes conf/config.yaml and types it; turns Hydra's errors into ours, all of them at once."""

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from llm_perf_opt.config.load import load_config, nearest_key, problems_outside_the_model
from llm_perf_opt.config.paths import conf_dir
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.registry import find_entry_points, load_registry
from llm_perf_opt.workload.models.registry import load_adapter

CONFIG_NAME = "config"
_FULL_KEY = re.compile(r"Could not (?:override|append|delete)[^']*'([^']+)'")


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Compose with the `hydra` node included, outside a Hydra application."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        composed = compose(CONFIG_NAME, overrides=list(overrides), return_hydra_config=True)
    # Outside an application nobody tells Hydra where the user stands, and conf/ refers to it.
    with open_dict(composed):
        composed.hydra.runtime.cwd = os.getcwd()
    HydraConfig.instance().set_config(composed)
    return composed


def type_config(cfg: DictConfig, *, user_dir: Path) -> AppConfig:
    """The typed configuration of a composed one. Imports the stages it names and the model's adapter."""
    plain = OmegaConf.masked_copy(cfg, [str(k) for k in cfg if k != "hydra"])
    registry = load_registry(find_entry_points(), {str(name) for name in plain.get("pipeline") or {}})
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


def explain_composition_error(error: Exception, overrides: Sequence[str], *, user_dir: Path) -> ConfigError:
    """Every override Hydra refuses, each with the nearest known key, and what is wrong with the others."""
    problems: list[str] = []
    rest = list(overrides)
    current: Exception | None = error
    while current is not None:
        bad = _culprit(current, rest)
        problems.append(_explain(current, bad))
        if bad is None:
            break
        rest.remove(bad)
        current = _try(rest)
    else:
        problems += _problems_of(rest, user_dir)
    return ConfigError(problems)


def _problems_of(overrides: Sequence[str], user_dir: Path) -> tuple[str, ...]:
    try:
        type_config(compose_config(overrides), user_dir=user_dir)
    except ConfigError as error:
        return error.problems
    return ()


def _try(overrides: Sequence[str]) -> Exception | None:
    try:
        compose_config(overrides)
    except (HydraException, OmegaConfBaseException) as error:
        return error
    return None


def _culprit(error: Exception, overrides: Sequence[str]) -> str | None:
    """The override an error speaks of."""
    text = str(error)
    found = _FULL_KEY.search(text)
    key = found[1] if found else None
    for override in overrides:
        name = override.lstrip("+~").partition("=")[0]
        if override in text or (key is not None and name.partition("@")[0] == key.partition("@")[0]):
            return override
    if _try([]) is not None:
        return None
    return next((o for o in overrides if _try([o]) is not None), None)


def _explain(error: Exception, override: str | None) -> str:
    first = str(error).splitlines()[0].rstrip(".")
    if override is None:
        return f"config: {first}"
    key, sign, value = override.lstrip("+~").partition("=")
    if not sign and not override.startswith("~"):
        return f"{override}: not an override, allowed: key=value"
    if re.search(r"Could not override|Could not append|not in struct", str(error)):
        nearest = nearest_key(key, _all_keys())
        if nearest == key:
            return f"{key}: already set, so + cannot add it (got {value!r}), allowed: {key}=… without the +"
        hint = f"nearest known key: {nearest}" if nearest else "`llm-perf profile --cfg job` lists all keys"
        return f"{key}: unknown key (got {value!r}), {hint}"
    if "Could not find" in str(error) or "In '" in first:
        return f"{key}: no such choice (got {value!r}), allowed: {_choices(key)}"
    return f"{key}: {first} (got {value!r}), allowed: an override in Hydra's grammar"


def _choices(group: str) -> str:
    folder = conf_dir() / group.partition("@")[0]
    names = sorted(path.stem for path in folder.glob("*.yaml"))
    return ", ".join(names) if names else "a config group of conf/"


def _all_keys() -> list[str]:
    """Every key of the default configuration, and its config groups."""
    cfg = OmegaConf.to_container(compose_config([]), resolve=False)
    keys: list[str] = [str(p.relative_to(conf_dir())) for p in conf_dir().iterdir() if p.is_dir()]

    def walk(node: Any, prefix: str) -> None:
        if isinstance(node, dict):
            for name, value in node.items():
                if prefix or name != "hydra":
                    keys.append(f"{prefix}{name}")
                    walk(value, f"{prefix}{name}.")

    walk(cfg, "")
    return keys

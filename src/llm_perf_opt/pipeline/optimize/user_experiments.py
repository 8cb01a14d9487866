"""Experiments of the user's own, from a YAML file: words to add, or variables to set."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import yaml
from annotated_types import MinLen

from llm_perf_opt.config.load import validate
from llm_perf_opt.config.schema import FORBID_UNKNOWN
from llm_perf_opt.diagnosis.experiments import Remedy
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.system.files import read_limited
from llm_perf_opt.system.redact import given_secrets
from llm_perf_opt.system.secrets.secret_shapes import is_secret

LARGEST_BYTES = 1 << 20
_NAME = Annotated[str, MinLen(1)]


@dataclass(frozen=True, kw_only=True)
class GivenExperiment:
    """One entry of the file. `overrides` are words as on the command line, of ours or of the program's own."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    name: _NAME
    title: str | None = None
    overrides: tuple[str, ...] = ()
    environment: dict[str, str | int | float | bool] = field(default_factory=dict)
    lossy: bool = False


@dataclass(frozen=True, kw_only=True)
class GivenExperiments:
    """The file. `outputs` are what a program of the user's own writes: `stdout`, or files; they must stay the same."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    experiments: Annotated[tuple[GivenExperiment, ...], MinLen(1)]
    outputs: tuple[str, ...] = ()

    @property
    def remedies(self) -> tuple[Remedy, ...]:
        return tuple(_remedy(one) for one in self.experiments)


def read_experiments(path: Path) -> GivenExperiments:
    """Every problem of the file at once."""
    option = "--experiments"
    try:
        raw: Any = yaml.safe_load(read_limited(path, LARGEST_BYTES))
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read ({error.strerror or error})") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"{option}: {path} is not YAML ({line[:200]})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{option}: {path}: not a mapping, allowed: `experiments:` with a list below it")
    typed, problems = validate(GivenExperiments, raw, option)
    if typed is None:
        raise ConfigError([str(problem) for problem in problems])
    names = [one.name for one in typed.experiments]
    found = [f"{option}: {name!r} is there twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    for number, one in enumerate(typed.experiments):
        if not one.overrides and not one.environment:
            found.append(f"{option}.experiments.{number}: changes nothing, allowed: overrides, environment")
    if found:
        raise ConfigError(found)
    return typed


def secrets_of(remedies: Iterable[Remedy]) -> list[str]:
    """The values experiments set that must not be written down: of variables, and of flags such as `--api-key=X`."""
    found: list[str] = []
    for remedy in remedies:
        found += [value for name, value in remedy.environment.items() if is_secret(name, value)]
        found += given_secrets([f"{key}={value}" for key, value in remedy.sets.items()])
    return found


def _remedy(one: GivenExperiment) -> Remedy:
    pairs = [word.lstrip("+").partition("=") for word in one.overrides]
    return Remedy(
        id=one.name,
        title=one.title or one.name,
        sets={key: value for key, _, value in pairs},
        environment={key: _text(value) for key, value in one.environment.items()},
        is_lossy=one.lossy,
    )


def _text(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

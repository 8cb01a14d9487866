"""Settings that are switched on one after another: which of them did it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from llm_perf_opt.comparison.bisect.bisect_document import Kind
from llm_perf_opt.comparison.comparison import WALL
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.bisect.line import PointName, RunPlace
from llm_perf_opt.system.files import read_limited

LARGEST_BYTES = 1 << 20
NONE = "none of the settings"
EXAMPLE = """\
- env: {OMP_NUM_THREADS: "1"}
- arguments: [--eager]
- overrides: [model.attention=eager]"""


@dataclass(frozen=True, kw_only=True)
class FlagSetting:
    """One entry of the file: variables, arguments behind the program's, and overrides of llm-perf."""

    label: str
    env: dict[str, str]
    arguments: tuple[str, ...]
    overrides: tuple[str, ...]


@dataclass(kw_only=True)
class FlagLine:
    """Point n has the first n settings; point 0 none of them, the last one all."""

    settings: tuple[FlagSetting, ...]
    command: tuple[str, ...]
    env: dict[str, str]
    kind: Kind = "flags"

    @property
    def names(self) -> Sequence[PointName]:
        return [PointName(label=NONE), *(PointName(label=one.label) for one in self.settings)]

    def place(self, point: int) -> RunPlace:
        chosen = self.settings[:point]
        return RunPlace(
            command=(*self.command, *(word for one in chosen for word in one.arguments)),
            cwd=Path.cwd(),
            env={**self.env, **{name: value for one in chosen for name, value in one.env.items()}},
            overrides=tuple(word for one in chosen for word in one.overrides),
        )

    def leave(self, point: int) -> None:
        """Nothing was prepared."""

    @contextmanager
    def opened(self) -> Iterator[None]:
        yield

    def changed_files(self, before: int, after: int) -> tuple[str, ...]:
        return ()


def flag_line(path: Path, *, command: Sequence[str], env: dict[str, str], metric: str) -> FlagLine:
    """Settings from a YAML file; overrides are of no effect on the time of a program that runs without llm-perf."""
    try:
        data = yaml.safe_load(read_limited(path, LARGEST_BYTES))
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"--flags: {path} cannot be read ({str(error).splitlines()[0]})") from error
    if not isinstance(data, list) or len(data) < 1:
        raise ConfigError(f"--flags: {path} is not a list of settings, allowed:\n{EXAMPLE}")
    settings = tuple(_setting(path, number, one) for number, one in enumerate(data, start=1))
    unused = [one.label for one in settings if one.overrides and metric == WALL]
    if unused:
        raise ConfigError(
            f"--flags: {path}: overrides need a metric of llm-perf (got --metric {metric} and "
            f"{', '.join(unused)}), such "
            "as --metric tpot_ms"
        )
    return FlagLine(
        settings=settings,
        command=tuple(command),
        env=env,
    )


def _setting(path: Path, number: int, data: object) -> FlagSetting:
    known = {"name", "env", "arguments", "overrides"}
    if not isinstance(data, dict) or not data or not set(data) <= known:
        raise ConfigError(f"--flags: {path}: entry {number}: allowed are {', '.join(sorted(known))} (got {data!r})")
    env = data.get("env") or {}
    arguments, overrides = data.get("arguments") or [], data.get("overrides") or []
    if not isinstance(env, dict) or not isinstance(arguments, list) or not isinstance(overrides, list):
        raise ConfigError(f"--flags: {path}: entry {number}: env is a mapping, arguments and overrides are lists")
    words = [*(f"{name}={value}" for name, value in env.items()), *map(str, arguments), *map(str, overrides)]
    if not words:
        raise ConfigError(f"--flags: {path}: entry {number} sets nothing")
    return FlagSetting(
        label=str(data.get("name") or " ".join(words)),
        env={str(name): str(value) for name, value in env.items()},
        arguments=tuple(map(str, arguments)),
        overrides=tuple(map(str, overrides)),
    )

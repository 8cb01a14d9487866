"""What can be set of a server, as data: flags and variables, their values, and what makes each worth trying."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml
from annotated_types import Ge, MinLen

from llm_perf_opt.config.load import validate
from llm_perf_opt.config.schema import FORBID_UNKNOWN
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.optimize.server.server_document import OptionSetting
from llm_perf_opt.optimize.server.server_evidence import EVIDENCE
from llm_perf_opt.system.files import read_limited

FOLDER = Path(__file__).parent / "spaces"
LARGEST_BYTES = 1 << 20
TRUE, FALSE = "true", "false"
# What a search looks at as a whole; of larger spaces it takes what differs from the best by two options.
LARGEST_GRID = 4096
_Text = Annotated[str, MinLen(1)]
Value = str | bool | int | float


@dataclass(frozen=True, kw_only=True)
class OptionChoice:
    """A value to try. `when` names the evidence that makes it worth trying, any of it; empty: always.

    `extra_start_s` is what a start takes longer with it. `needs` are settings (`option=value`) without which it means
    nothing, `excludes` those it cannot be combined with.
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    value: Value
    when: tuple[str, ...] = ()
    extra_start_s: Annotated[float, Ge(0.0)] = 0.0
    lossy: bool = False
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return str(self.value).lower() if isinstance(self.value, bool) else str(self.value)


@dataclass(frozen=True, kw_only=True)
class ServerOption:
    """A flag (`--max-num-seqs`) or a variable of the environment. `off` is the flag that says no, where there is one.

    `default` is what the engine takes without it, where that is one value. `values` are choices that are always worth
    trying. `source` says where flag and values are
    documented.
    """

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    id: _Text
    title: str = ""
    flag: str | None = None
    off: str | None = None
    variable: str | None = None
    default: Value | None = None
    place: Literal["gpu", "cpu"] | None = None
    choices: tuple[OptionChoice, ...] = ()
    values: tuple[Value, ...] = ()
    source: str = ""

    @property
    def default_text(self) -> str | None:
        return None if self.default is None else OptionChoice(value=self.default).text

    def problems(self) -> list[str]:
        found = []
        if bool(self.choices) == bool(self.values):
            found.append(f"options.{self.id}: needs choices or values (got both or none), allowed: one of the two")
        if (self.flag is None) == (self.variable is None):
            found.append(f"options.{self.id}: needs a flag or a variable (got both or none), allowed: one of the two")
        values = [choice.text for choice in _with_choices(self).choices]
        found += [f"options.{self.id}: the value {v!r} is there twice" for v in set(values) if values.count(v) > 1]
        for choice in _with_choices(self).choices:
            unknown = [name for name in choice.when if name not in EVIDENCE]
            found += [
                f"options.{self.id}: unknown evidence (got {name!r}), allowed: {', '.join(EVIDENCE)}"
                for name in unknown
            ]
            if choice.text == FALSE and self.flag is not None and self.off is None:
                found.append(f"options.{self.id}: false needs the flag that says no, allowed: `off: --no-…`")
        return found


@dataclass(frozen=True, kw_only=True)
class ServerSpace:
    """What can be set of one engine. `image` is its published container, `checked` against what its flags were read."""

    __pydantic_config__: ClassVar = FORBID_UNKNOWN
    engine: str = "server"
    image: str | None = None
    checked: str = ""
    options: Annotated[tuple[ServerOption, ...], MinLen(1)]

    def option(self, name: str) -> ServerOption:
        return next(option for option in self.options if option.id == name)

    def choice(self, setting: OptionSetting) -> OptionChoice:
        return next(c for c in self.option(setting.option).choices if c.text == setting.value)


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a server is given: the words of its command line, and variables of its environment."""

    args: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


Configuration = tuple[OptionSetting, ...]
START: Configuration = ()


def name_of(configuration: Configuration) -> str:
    """`max_num_seqs=512, kv_cache_dtype=fp8`; `start` for nothing changed."""
    return ", ".join(f"{one.option}={one.value}" for one in configuration) or "start"


def packaged_space(engine: str) -> ServerSpace | None:
    """The space that comes with llm-perf for an engine, None where there is none."""
    path = FOLDER / f"{engine}.toml"
    if not path.is_file():
        return None
    return _typed(tomllib.loads(path.read_text(encoding="utf-8")), str(path.name))


def packaged_engines() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def read_space(path: Path) -> ServerSpace:
    """A file of the user's own, YAML or TOML; every problem of it in one error."""
    try:
        text = read_limited(path, LARGEST_BYTES)
        raw: Any = tomllib.loads(text.decode()) if path.suffix == ".toml" else yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(
            f"--space: {path} cannot be read ({error.strerror or error}), allowed: a YAML file"
        ) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        line = " ".join(str(error).split())
        raise ConfigError(f"--space: {path} is not valid ({line[:200]}), allowed: `options:` with a list") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"--space: {path}: not a mapping, allowed: `options:` with a list below it")
    return _typed(raw, "--space")


def _typed(raw: dict[str, Any], source: str) -> ServerSpace:
    typed, problems = validate(ServerSpace, raw, source)
    if typed is None:
        raise ConfigError([str(problem) for problem in problems])
    found = [f"{source}: {problem}" for option in typed.options for problem in option.problems()]
    ids = [option.id for option in typed.options]
    found += [f"{source}: options.{name}: is there twice" for name in dict.fromkeys(ids) if ids.count(name) > 1]
    known = {f"{option.id}={choice.text}" for option in typed.options for choice in _with_choices(option).choices}
    named = [name for option in typed.options for c in option.choices for name in (*c.needs, *c.excludes)]
    found += [f"{source}: no such setting (got {name!r}), allowed: option=value" for name in named if name not in known]
    if found:
        raise ConfigError(found)
    return replace(typed, options=tuple(_with_choices(option) for option in typed.options))


def _with_choices(option: ServerOption) -> ServerOption:
    """`values` stand for choices that are always worth trying."""
    if not option.values:
        return option
    return replace(option, values=(), choices=tuple(OptionChoice(value=value) for value in option.values))


def settings_of(space: ServerSpace, start: ServerSettings) -> dict[str, str]:
    """The value each option has in the start: what its words and variables say, else the engine's default."""
    found: dict[str, str] = {}
    for option in space.options:
        given = _given(option, start)
        value = option.default_text if given is None else given
        if value is not None:
            found[option.id] = value
    return found


def _given(option: ServerOption, start: ServerSettings) -> str | None:
    if option.variable is not None:
        return start.environment.get(option.variable)
    for number, word in enumerate(start.args):
        name, sign, value = word.partition("=")
        if name == option.off:
            return FALSE
        if name == option.flag:
            following = start.args[number + 1 : number + 2]
            takes = not _is_switch(option)
            return value if sign else following[0] if takes and following else TRUE
    return None


def _is_switch(option: ServerOption) -> bool:
    return all(choice.text in (TRUE, FALSE) for choice in option.choices)


def applied(space: ServerSpace, configuration: Configuration, start: ServerSettings) -> ServerSettings:
    """The start with these settings: what it said of the same options is taken out, the new words come last."""
    args, environment = list(start.args), dict(start.environment)
    for one in configuration:
        option = space.option(one.option)
        if option.variable is not None:
            environment[option.variable] = one.value
            continue
        assert option.flag is not None
        args = _without(option, args)
        if _is_switch(option):
            args.append(option.flag if one.value == TRUE else option.off or option.flag)
        else:
            args += [option.flag, one.value]
    return ServerSettings(args=tuple(args), environment=environment)


def without(space: ServerSpace, configuration: Configuration, words: Sequence[str]) -> tuple[str, ...]:
    """Words without the options a configuration sets."""
    kept = list(words)
    for one in configuration:
        option = space.option(one.option)
        kept = _without(option, kept) if option.flag is not None else kept
    return tuple(kept)


def _without(option: ServerOption, args: Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(args)
    for word in words:
        name, sign, _ = word.partition("=")
        if name not in (option.flag, option.off):
            kept.append(word)
        elif not sign and not _is_switch(option):
            next(words, None)
    return kept


def is_allowed(space: ServerSpace, configuration: Configuration, present: Mapping[str, str]) -> bool:
    """Whether every setting has what it needs, and nothing that it excludes; `present` is what the start has."""
    values = {**present, **{one.option: one.value for one in configuration}}
    have = {f"{name}={value}" for name, value in values.items()}
    choices = [space.choice(one) for one in configuration]
    return all(set(c.needs) <= have and not set(c.excludes) & have for c in choices)


@dataclass(frozen=True, kw_only=True)
class TunedOption:
    """An option with the values that are tried of it, the most promising first. `present` is that of the start."""

    id: str
    values: tuple[str, ...]
    present: str | None = None


def grid_of(space: ServerSpace, tuned: Sequence[TunedOption], present: Mapping[str, str]) -> list[Configuration]:
    """Every allowed combination, the start among them; of a large space those that change two options at most."""
    size = 1
    for option in tuned:
        size *= len(option.values) + 1
    sides: list[list[OptionSetting | None]] = [
        [None, *(OptionSetting(option=option.id, value=value) for value in option.values)] for option in tuned
    ]
    found = (tuple(one for one in combined if one is not None) for combined in product(*sides))
    if size > LARGEST_GRID:
        return [START, *_neighbours(START, sides)]
    return [one for one in found if is_allowed(space, one, present)]


def neighbours_of(
    space: ServerSpace, configuration: Configuration, tuned: Sequence[TunedOption], present: Mapping[str, str]
) -> list[Configuration]:
    """What differs from a configuration by one or two options."""
    sides: list[list[OptionSetting | None]] = [
        [None, *(OptionSetting(option=option.id, value=value) for value in option.values)] for option in tuned
    ]
    return [one for one in _neighbours(configuration, sides) if is_allowed(space, one, present)]


def next_values_of(
    space: ServerSpace, configuration: Configuration, tuned: Sequence[TunedOption], present: Mapping[str, str]
) -> list[Configuration]:
    """What differs from a configuration by one step up or down of one number."""
    own = {one.option: one.value for one in configuration}
    found = []
    for option in tuned:
        known = {*option.values, *([] if option.present is None else [option.present])}
        value = own.get(option.id, option.present)
        if value is None or any(as_number(one) is None for one in known):
            continue
        ordered = sorted(known, key=lambda one: as_number(one) or 0.0)
        place = ordered.index(value)
        for near in (*ordered[max(0, place - 1) : place], *ordered[place + 1 : place + 2]):
            changed = {**own, option.id: near}
            found.append(
                tuple(
                    OptionSetting(option=one.id, value=changed[one.id])
                    for one in tuned
                    if changed.get(one.id, one.present) != one.present
                )
            )
    return [one for one in found if is_allowed(space, one, present)]


def as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _neighbours(start: Configuration, sides: Sequence[Sequence[OptionSetting | None]]) -> list[Configuration]:
    of_option = {one.option: one for one in start}
    names = [next(one.option for one in side if one is not None) for side in sides]
    base = [of_option.get(name) for name in names]
    found: dict[Configuration, None] = {}
    for first in range(len(sides)):
        for second in range(first, len(sides)):
            for a, b in product(sides[first], sides[second]):
                changed = list(base)
                changed[first] = a
                changed[second] = b if second != first else a
                found[tuple(one for one in changed if one is not None)] = None
    return list(found)

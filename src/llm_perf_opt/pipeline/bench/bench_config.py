"""Overrides of conf/bench.yaml as a typed configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from llm_perf_opt.config.load import asked_of_environment, resolve, validate
from llm_perf_opt.config.schema import ArtifactsSection, DatasetSection
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.bench.vllm_flags import translate_flags
from llm_perf_opt.serving.serving_config import LoadSection, ServerSection, TrafficSection, WindowSection
from llm_perf_opt.system.redact import Redactor

T = TypeVar("T")
ENTRY = "bench"
SWEPT = ("rate", "concurrency")
WORD_LISTS = ("args", "command", "profile_args")


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """The configuration of one `llm-perf bench`.

    `resolved` is what config.yaml records, but for `from_environment`: the keys set with `${oc.env:NAME}`, as written.
    """

    server: ServerSection
    load: LoadSection
    traffic: TrafficSection
    capture: WindowSection
    dataset: DatasetSection
    run_dir: Path
    sync: str | None
    user_dir: Path
    overrides: tuple[str, ...]
    resolved: Mapping[str, Any]
    from_environment: Mapping[str, str] = field(default_factory=dict)


def read_config(argv: Sequence[str], *, user_dir: Path) -> BenchConfig:
    """Every problem of the command line at once."""
    from omegaconf import OmegaConf

    from llm_perf_opt.config.arguments import parse_arguments
    from llm_perf_opt.pipeline.compose import (
        COMPOSITION_ERRORS,
        ConfigEntry,
        compose_config,
        explain_composition_error,
    )

    overrides = parse_arguments(translate_flags(argv)).overrides
    unused = [word for word in overrides if word.lstrip("+~").startswith("hydra.")]
    if unused:
        where = "the directory of the run is artifacts.runs_dir=DIR"
        raise ConfigError(
            [f"{word.partition('=')[0]}: has no effect on bench (got {word!r}); {where}" for word in unused]
        )
    entry = ConfigEntry(name=ENTRY, is_of_a_run=False)
    try:
        composed = compose_config(overrides, entry)
        ours = OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"])
        raw = resolve(ours)
    except COMPOSITION_ERRORS as error:
        raise explain_composition_error(error, overrides, user_dir=user_dir, entry=entry) from error
    asked = asked_of_environment(OmegaConf.to_container(ours, resolve=False))
    return replace(type_bench(raw, user_dir=user_dir, overrides=overrides), from_environment=asked)


def type_bench(raw: dict[str, Any], *, user_dir: Path, overrides: tuple[str, ...] = ()) -> BenchConfig:
    """The composed values as sections, or a ConfigError that lists every problem."""
    load = raw["load"]
    if isinstance(load, dict):
        load.update({key: _listed_numbers(load.get(key)) for key in SWEPT})
    server = raw["server"]
    if isinstance(server, dict):
        server.update({key: _words(server.get(key)) for key in WORD_LISTS})
    file = raw["dataset"].get("file") if isinstance(raw["dataset"], dict) else None
    if isinstance(file, str):
        raw["dataset"]["file"] = str(user_dir / Path(file).expanduser())
    path = raw["traffic"].get("path") if isinstance(raw.get("traffic"), dict) else None
    if isinstance(path, str):
        raw["traffic"]["path"] = str(user_dir / Path(path).expanduser())
    problems: list[str] = []
    typed = {
        "server": _section(ServerSection, raw, "server", problems),
        "load": _section(LoadSection, raw, "load", problems),
        "traffic": _section(TrafficSection, raw, "traffic", problems),
        "capture": _section(WindowSection, raw, "capture", problems),
        "dataset": _section(DatasetSection, raw, "dataset", problems),
        "artifacts": _section(ArtifactsSection, raw, "artifacts", problems),
    }
    if typed["server"] is not None:
        problems += [str(problem) for problem in typed["server"].problems()]
    if typed["load"] is not None:
        problems += [str(problem) for problem in typed["load"].problems()]
    if typed["traffic"] is not None and typed["load"] is not None:
        problems += [str(problem) for problem in typed["traffic"].problems(typed["load"])]
    problems += _cross_problems(typed)
    if problems:
        raise ConfigError(problems)
    return BenchConfig(
        server=typed["server"],
        load=typed["load"],
        traffic=typed["traffic"],
        capture=typed["capture"],
        dataset=typed["dataset"],
        run_dir=user_dir / typed["artifacts"].runs_dir,
        sync=typed["artifacts"].sync,
        user_dir=user_dir,
        overrides=Redactor.of({}).words(overrides),
        resolved=raw,
    )


def _section(cls: type[T], raw: Mapping[str, Any], name: str, problems: list[str]) -> Any:
    """The section, or None with its problems added to the list."""
    typed, found = validate(cls, raw.get(name) or {}, name)
    problems += [str(problem) for problem in found]
    return cast(Any, typed)


def _cross_problems(typed: Mapping[str, Any]) -> list[str]:
    """Rules that span sections."""
    problems = []
    dataset, server, capture = typed["dataset"], typed["server"], typed["capture"]
    if dataset is not None and dataset.kind == "omnidocbench":
        problems.append("dataset: pages are not sent to servers (got 'omnidocbench'), allowed: synthetic, prompts")
    if server is not None and capture is not None and capture.tool == "nsys" and server.url is not None:
        problems.append(
            "capture.tool: nsys cannot capture a server it did not start (got 'nsys'), allowed: engine, or a server "
            "that is started (server=vllm server.args=[…])"
        )
    if server is not None and capture is not None and capture.startup and server.url is not None:
        problems.append(
            "capture.startup: the server at server.url has started already (got true), allowed: false, or a server "
            "that is started (server=vllm server.args=[…])"
        )
    return problems


def _listed_numbers(value: Any) -> Any:
    """One number or several with commas as a list; anything else as it is, to be refused by its type."""
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        return [_number_or_text(part) for part in parts]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else value


def _number_or_text(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _words(value: Any) -> Any:
    """`[--max-model-len,1024]` is a list of words, regardless of how YAML reads its last one."""
    if not isinstance(value, list):
        return value
    return [str(word) if isinstance(word, int | float) and not isinstance(word, bool) else word for word in value]

"""Many runs at once: each with its labels, its keys and its numbers, to be filtered, sorted and drawn."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llm_perf_opt.config.schema import AUTO
from llm_perf_opt.core.manifest import RunManifest, read_manifest
from llm_perf_opt.core.names import CLEAN_PASS_ORDER
from llm_perf_opt.core.records import Metric
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.system.process import program_title

# Numbers that runs of several kinds have under names of their own: a load's are those of its busiest level.
SERVED = "serve_"
TOKENS_PER_S = "tokens_per_s"
_RATES = ("decode_tokens_per_s", f"{SERVED}output_tokens_per_s")
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1", "0.0.0.0")
LABELS = ("run", "date", "model", "device", "gpu", "status", "commit")
_FILTER = re.compile(r"(?P<key>[\w.@/-]+)\s*(?P<sign><=|>=|!=|=|<|>)\s*(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class IndexedRun:
    """One run: `labels` as people name them, `keys` of the configuration in full, `numbers` of its `stages`.

    Where stages have a number of the same name, the clean pass of the better-informed one is meant.
    """

    run_id: str
    path: str
    created_at: str
    status: str
    labels: Mapping[str, str]
    keys: Mapping[str, str]
    numbers: Mapping[str, Metric]
    overrides: tuple[str, ...]
    stages: Mapping[str, str] = field(default_factory=dict)

    def value(self, column: str) -> float | str | None:
        """A column by its name: a label, a number, or a key of the configuration; None: the run has none."""
        if column in self.labels:
            return self.labels[column]
        metric = self.metric(column)
        if metric is not None:
            return float(metric.value) if isinstance(metric.value, int | float) else metric.value
        return self.keys.get(column)

    def metric(self, name: str) -> Metric | None:
        """A number by its name; of a load also without its prefix, and `tokens_per_s` of a model run or a load."""
        names = (name, f"{SERVED}{name}", *(_RATES if name == TOKENS_PER_S else ()))
        return next((self.numbers[one] for one in names if one in self.numbers), None)

    @property
    def columns(self) -> set[str]:
        """Every name that `value` knows."""
        short = {name.removeprefix(SERVED) for name in self.numbers}
        rate = {TOKENS_PER_S} if self.metric(TOKENS_PER_S) is not None else set()
        return {*self.labels, *self.numbers, *self.keys, *short, *rate}


@dataclass(frozen=True, kw_only=True)
class Filter:
    """`model=llama3_1b`, `tpot_ms<20`; an empty value with `=` means that there is none."""

    key: str
    sign: str
    value: str

    def keeps(self, run: IndexedRun) -> bool:
        found = run.value(self.key)
        if self.sign in ("=", "!="):
            same = _same(found, self.value)
            return same if self.sign == "=" else not same
        if not isinstance(found, float):
            return False
        limit = float(self.value)
        return {"<": found < limit, "<=": found <= limit, ">": found > limit, ">=": found >= limit}[self.sign]


def parse_filter(text: str) -> Filter:
    match = _FILTER.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--where: not a filter (got {text!r}), allowed: such as model=llama3_1b or 'tpot_ms<20'")
    if match["sign"] not in ("=", "!=") and _finite(match["value"]) is None:
        raise ConfigError(f"--where: {match['value']!r} is not a number (got {text!r}), allowed: such as 'tpot_ms<20'")
    return Filter(key=match["key"], sign=match["sign"], value=match["value"].strip())


def require_numbers(filters: Sequence[Filter], runs: Sequence[IndexedRun], numbers: Collection[str] = ()) -> None:
    """A number that is compared with a word keeps nothing, which looks like an answer.

    `numbers`: names that are numbers, whether a run has them or not.
    """
    problems = [
        f"--where: {one.key} is a number (got {one.key}{one.sign}{one.value}), allowed: such as '{one.key}<20'"
        for one in filters
        if one.value
        and _finite(one.value) is None
        and (one.key in numbers or any(isinstance(run.value(one.key), float) for run in runs))
    ]
    if problems:
        raise ConfigError(problems)


def index_run(path: Path) -> IndexedRun:
    """Read one run; raises ManifestError where that cannot be done."""
    return index_manifest(read_manifest(path), str(path))


def index_manifest(manifest: RunManifest, path: str) -> IndexedRun:
    """What is known of a run from its manifest; `path` is where it lies, here or in a store."""
    keys = _leaves(manifest.config)
    numbers = _numbers(manifest)
    git = manifest.environment.get("git")
    labels = {
        "run": manifest.run_id,
        "date": manifest.created_at.replace("T", " ")[:16],
        "model": _program(manifest) or keys.get("model.name", ""),
        "device": _device(manifest, keys),
        "gpu": ", ".join(dict.fromkeys(_gpus(manifest))),
        "status": manifest.status,
        "commit": str(git["commit"])[:12] if isinstance(git, Mapping) and git.get("commit") else "",
    }
    return IndexedRun(
        run_id=manifest.run_id,
        path=path,
        created_at=manifest.created_at,
        status=manifest.status,
        labels=labels,
        keys=keys,
        numbers=numbers,
        overrides=manifest.overrides,
        stages={stage.name: stage.status for stage in manifest.stages},
    )


def sorted_runs(runs: list[IndexedRun], column: str, *, reverse: bool = False) -> list[IndexedRun]:
    """By a column; runs without it come last, numbers before words."""
    known = [run for run in runs if run.value(column) is not None]
    known.sort(key=lambda run: _rank(run.value(column)), reverse=reverse)
    return [*known, *(run for run in runs if run.value(column) is None)]


def swept_keys(runs: list[IndexedRun]) -> tuple[str, ...]:
    """The keys that were overridden and differ among the runs; groups such as `model` count as one."""
    named = dict.fromkeys(word.lstrip("+~").partition("=")[0] for run in runs for word in run.overrides)
    return tuple(key for key in named if len({setting(run, key) for run in runs}) > 1)


def setting(run: IndexedRun, key: str) -> str | None:
    """What a run was given for a key: its override, else what its configuration holds."""
    for word in reversed(run.overrides):
        name, _, value = word.lstrip("+~").partition("=")
        if name == key:
            return value.strip("'\"")
    return run.keys.get(key)


def _same(found: float | str | None, wanted: str) -> bool:
    if found is None:
        return wanted == ""
    number = _finite(wanted)
    if isinstance(found, float) and number is not None:
        return found == number
    return str(found) == wanted


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _rank(value: float | str | None) -> tuple[int, float, str]:
    if isinstance(value, float):
        return 0, value, ""
    number = _finite(str(value))
    return (0, number, "") if number is not None else (1, 0.0, str(value))


def _numbers(manifest: RunManifest) -> dict[str, Metric]:
    rank = {name: index for index, name in enumerate(CLEAN_PASS_ORDER)}
    found: dict[str, Metric] = {}
    for stage in sorted(manifest.stages, key=lambda s: rank.get(s.name, len(rank))):
        for name, metric in stage.metrics.items():
            if metric.value is not None:
                found.setdefault(name, metric)
    return found


def _device(manifest: RunManifest, keys: Mapping[str, str]) -> str:
    """The device's own name: as a stage recorded it, else what this machine has of what was requested."""
    names = [s.metrics["device_name"].value for s in manifest.stages if "device_name" in s.metrics]
    asked, gpus, cpu = keys.get("run.device", ""), _gpus(manifest), manifest.environment.get("cpu")
    if names:
        return str(names[0])
    if not asked:
        return _server_device(manifest, keys)
    if asked == "cpu" or (asked == AUTO and not gpus):
        return str(cpu or asked)
    number = int(asked.removeprefix("cuda:")) if asked.removeprefix("cuda:").isdecimal() else 0
    return gpus[number] if number < len(gpus) else asked


def _server_device(manifest: RunManifest, keys: Mapping[str, str]) -> str:
    """What a server of this machine runs on; of one elsewhere nothing is known."""
    if not any(key.startswith("server.") for key in keys):
        return ""
    url = keys.get("server.url")
    if url is not None and urlsplit(url).hostname not in LOCAL_HOSTS:
        return ""
    return ", ".join(dict.fromkeys(_gpus(manifest))) or str(manifest.environment.get("cpu") or "")


def _program(manifest: RunManifest) -> str | None:
    """What a program of the user's own is called."""
    workload = manifest.config.get("workload")
    command = workload.get("command") if isinstance(workload, Mapping) else None
    return program_title([str(word) for word in command]) if isinstance(command, list | tuple) and command else None


def _gpus(manifest: RunManifest) -> list[str]:
    gpus = manifest.environment.get("gpus")
    found = gpus if isinstance(gpus, list | tuple) else ()
    return [str(gpu.get("name")) if isinstance(gpu, Mapping) else str(gpu) for gpu in found]


def _leaves(content: Mapping[str, Any], prefix: str = "", found: dict[str, str] | None = None) -> dict[str, str]:
    """Every value below, by its key in full; a manifest from its file holds dicts."""
    found = {} if found is None else found
    for key, item in content.items():
        if type(item) is dict and item:
            _leaves(item, f"{prefix}{key}.", found)
        elif item is not None:
            found[f"{prefix}{key}"] = str(item)
    return found

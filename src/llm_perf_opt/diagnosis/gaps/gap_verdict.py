"""What kind of work a host thread did, decided by the names of what it was in: the patterns are in `host_time.toml`."""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from llm_perf_opt.capture.intervals import Flags

Verdict = Literal[
    "compilation",
    "new_shapes",
    "recompilation",
    "stalls",
    "data_loading",
    "allocation",
    "rank_wait",
    "profiler",
    "host_wait",
    "host_work",
    "single_instances",
    "unknown",
]
# The finer kinds of host time. Start-up: `context` (CUDA and library handles), `module_loading`, `jit_compilation`,
# `autotuning`, `first_use` (code, caches and choices of an operator's first call). `recompilation` and `new_shapes` are
# compilation that recurs. Blocked: `gil` (the lock of the interpreter), `lock`, `sleep`,
# `disk`, `network`, `process`, or `wait` where the call does not say.
HostCost = Literal[
    "context",
    "module_loading",
    "jit_compilation",
    "autotuning",
    "first_use",
    "recompilation",
    "new_shapes",
    "stall",
    "data_loading",
    "allocation",
    "rank_wait",
    "profiler",
    "gil",
    "lock",
    "sleep",
    "disk",
    "network",
    "process",
    "wait",
    "host_work",
    "unknown",
]
START_UP: frozenset[HostCost] = frozenset({"context", "module_loading", "jit_compilation", "autotuning", "first_use"})
BLOCKED: frozenset[HostCost] = frozenset({"gil", "lock", "sleep", "disk", "network", "process", "wait"})


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The kind of work of a stack of names; `said` is the name that decided it, None where none did."""

    verdict: Verdict
    cost: HostCost
    said: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Group:
    """The rules of one verdict and scope: the cost by pattern, in order."""

    verdict: Verdict
    anywhere: bool
    costs: tuple[tuple[HostCost, re.Pattern[str]], ...]


@dataclass(frozen=True, kw_only=True)
class _Rule:
    """A rule of `host_time.toml`; `names` stands for patterns that are listed there."""

    verdict: Verdict
    cost: HostCost
    scope: Literal["anywhere", "close"]
    patterns: tuple[str, ...] = ()
    names: str = ""
    ignore_case: bool = False


@dataclass(frozen=True, kw_only=True)
class _Patterns:
    """What `host_time.toml` holds."""

    rule: tuple[_Rule, ...]
    names: Mapping[str, tuple[str, ...]]


@cache
def _data() -> _Patterns:
    text = Path(__file__).with_name("host_time.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Patterns)


@cache
def _groups() -> tuple[_Group, ...]:
    """The rules in order; neighbours of one verdict and scope together."""
    groups: list[_Group] = []
    for rule in _data().rule:
        flags = re.IGNORECASE if rule.ignore_case else re.NOFLAG
        cost = (rule.cost, re.compile("|".join(rule.patterns or _data().names[rule.names]), flags))
        verdict, anywhere = rule.verdict, rule.scope == "anywhere"
        if groups and (groups[-1].verdict, groups[-1].anywhere) == (verdict, anywhere):
            costs = (*groups.pop().costs, cost)
        else:
            costs = (cost,)
        groups.append(_Group(verdict=verdict, anywhere=anywhere, costs=costs))
    return tuple(groups)


@cache
def _named(key: str) -> re.Pattern[str]:
    """The pattern of one kind of name, compiled when first asked for."""
    return re.compile("|".join(_data().names[key]))


@lru_cache(maxsize=1 << 14)
def means(name: str | None, key: str) -> bool:
    """Whether a name is of one kind of `names` in `host_time.toml`."""
    return name is not None and _named(key).search(name) is not None


@lru_cache(maxsize=32)
def codes_of(names: tuple[str, ...], key: str) -> tuple[int, ...]:
    """The positions of the names of one kind; several ask it of the same capture."""
    pattern = _named(key)
    return tuple(code for code, name in enumerate(names) if pattern.search(name))


def flags_of(names: tuple[str, ...], key: str) -> Flags:
    """By the code of a name: whether it is of one kind. The last entry is of the code -1, an unknown name."""
    flags = np.zeros(len(names) + 1, np.bool_)
    flags[list(codes_of(names, key))] = True
    return flags


def is_built(kernel: str | None) -> bool:
    """Whether a kernel is built while the program runs, by its name."""
    return means(kernel, "is_built")


def is_built_per_shape(kernel: str | None) -> bool:
    """Whether a kernel is built again for every new shape, by its name."""
    return means(kernel, "is_built_per_shape")


def allocates(call: str) -> bool:
    """Whether a call of the runtime allocates or frees memory."""
    return means(call, "allocates")


def is_launch(name: str | None) -> bool:
    """Whether a call of the runtime launches a kernel or a graph."""
    return means(name, "launches")


def is_tuning(kernel: str | None) -> bool:
    """Whether a kernel belongs to an autotuner, by its name."""
    return means(kernel, "tunes")


@lru_cache(maxsize=1 << 14)
def compiles(name: str | None) -> bool:
    """Whether a name is about compiling or loading code, and not about a search among variants of it."""
    if name is None or means(name, "searches"):
        return False
    cost = next((c for i, c in _costs(name) if _groups()[i].verdict == "compilation"), None)
    return cost in ("module_loading", "jit_compilation")


def judge_overhead(name: str) -> Judged | None:
    """What a profiler reports as overhead: its own pause, code that the driver loads, or neither."""
    if means(name, "driver_loads"):
        return Judged(verdict="compilation", cost="module_loading", said=name)
    return None if means(name, "queue_full") else Judged(verdict="profiler", cost="profiler", said=name)


def judge(names: Iterable[str], near: Iterable[str] = ()) -> Judged:
    """The kind of work of a stack of names, innermost first.

    `near` are those of them that are about as long as the time to explain: only of these mere words are believed.
    """
    stack, groups = tuple(names), _groups()
    # The first group decides, and in it the innermost name.
    first, found = len(groups), None
    for some, anywhere in ((stack, True), (near, False)):
        for name in some:
            for index, cost in _costs(name):
                if index < first and groups[index].anywhere == anywhere:
                    first, found = index, Judged(verdict=groups[index].verdict, cost=cost, said=name)
    if found is not None:
        return found
    return Judged(verdict="host_work", cost="host_work") if stack else Judged(verdict="unknown", cost="unknown")


@lru_cache(maxsize=1 << 14)
def _costs(name: str) -> tuple[tuple[int, HostCost], ...]:
    """The groups of rules a name belongs to, and its cost in each."""
    found = []
    for index, group in enumerate(_groups()):
        cost = next((cost for cost, pattern in group.costs if pattern.search(name)), None)
        if cost is not None:
            found.append((index, cost))
    return tuple(found)


def readable(name: str) -> str:
    """A name without addresses and version suffixes, which differ from run to run."""
    return _named("varies").sub("", name)


@lru_cache(maxsize=1 << 14)
def is_library(frame: str) -> bool:
    """Whether a Python frame belongs to the interpreter, the standard library or an installed package, by its file."""
    if means(frame, "is_built_in") or means(frame, "is_library"):
        return True
    file = frame.partition("(")[0]
    return file.partition("/")[0].removesuffix(".py") in sys.stdlib_module_names

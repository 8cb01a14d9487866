"""What environment variables do to a program's speed, from `environment.toml`; and switches of torch likewise."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FLAGS = {
    "no_kv_cache": "generate() keeps no KV cache (use_cache=False): each token computes all tokens before it again",
    "anomaly_mode": "torch.autograd's anomaly mode is on: each operator keeps its stack, and each gradient is checked",
    "deterministic": "torch.use_deterministic_algorithms is on: some operators take slower kernels",
    "default_float64": "torch's default dtype is float64: new tensors have twice the bytes and half the speed or less",
}


@dataclass(frozen=True, kw_only=True)
class VariableEffect:
    """One row: a variable, the values that matter, and what they do."""

    name: str
    values: re.Pattern[str]
    effect: str
    of_threads: bool


@cache
def _effects() -> tuple[VariableEffect, ...]:
    data = tomllib.loads(Path(__file__).with_name("environment.toml").read_text(encoding="utf-8"))
    return tuple(
        VariableEffect(
            name=row["name"],
            values=re.compile(row.get("values", r"\d+")),
            effect=row.get("effect", ""),
            of_threads=row.get("of_threads", False),
        )
        for row in data["variable"]
    )


def variable_effects(environment: Mapping[str, str], processors: int) -> tuple[str, ...]:
    """One line for each variable that is set to a value that matters."""
    found = ((row, environment[row.name]) for row in _effects() if row.name in environment)
    texts = (_told(row, value, processors) for row, value in found if row.values.fullmatch(value))
    return tuple(text for text in texts if text)


def _told(row: VariableEffect, value: str, processors: int) -> str:
    if not row.of_threads:
        return f"{row.name}={value}: {row.effect}"
    threads = int(value)
    if threads == processors or threads == 0:
        return ""
    if threads < processors:
        return f"{row.name}={value}: array operations use {value} of {processors} processors"
    return f"{row.name}={value}: {value} threads share {processors} processors and disturb each other"


def flag_effects(flags: Sequence[str]) -> tuple[str, ...]:
    """One line for each switch of torch that is on."""
    return tuple(FLAGS[name] for name in flags if name in FLAGS)

"""What can be tried against a finding, as data: settings, where they make sense, and code that does the same.

The fixes are the rows of `experiments.toml`. A cause names those that could save what it claims (`experiments` in
its data); `llm-perf optimize` tries them. Several causes may name one: then it could save what all of them claim.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from llm_perf_opt.core.names import PHASES

Place = Literal["gpu", "cpu"]
# Objectives in which more sequences at once can count; the time of one token can only grow with them.
THROUGHPUT = ("tokens_per_s", "joules_per_token")


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Where a fix makes sense. Empty values mean: anywhere.

    `own_loop`: the model must run in our own loop, which knows static caches and compiled steps. `text_model`: it must
    read text alone; of a model that reads pages only the decode step can be changed.
    `dtypes`: formats the model may run in now. `package`: a module that must be importable. `min_context`: tokens.
    `kernel_class`: kernels of this class take at least `min_share` of the kernel time.
    """

    place: Place | None = None
    own_loop: bool = False
    text_model: bool = False
    dtypes: tuple[str, ...] = ()
    package: str | None = None
    throughput: bool = False
    kernel_class: str | None = None
    min_share: float = 0.1


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """One thing to try. `sets` are keys of the configuration, `environment` variables of the process.

    `is_lossy`: outputs may differ by more than rounding. `phases` are those it can shorten at all. `batch` multiplies
    the batch: each step then serves this many times the sequences, at best in the same time. `lowers_bound`: fewer
    bytes have to be moved, so the bound of the run as it is does not limit it. `removes_idle`: all time without work
    may go with it, also what is too little for its own finding. `changes_kernels`: other kernels run with it, so the
    time of the recorded ones does not limit it. `compile_s` is what preparing takes, roughly.
    `code` does the same in the user's program.
    """

    id: str
    title: str
    sets: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    guard: Guard = Guard()
    is_lossy: bool = False
    phases: tuple[str, ...] = PHASES
    batch: int = 1
    lowers_bound: bool = False
    removes_idle: bool = False
    changes_kernels: bool = False
    compile_s: float = 0.0
    code: str = ""


class _Table(msgspec.Struct):
    """What `experiments.toml` holds."""

    remedy: tuple[Remedy, ...]


@cache
def load_experiments() -> Mapping[str, Remedy]:
    """By id, as the causes name them."""
    text = Path(__file__).with_name("experiments.toml").read_text(encoding="utf-8")
    return {remedy.id: remedy for remedy in msgspec.convert(tomllib.loads(text), _Table).remedy}

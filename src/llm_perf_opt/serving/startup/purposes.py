"""What a stack is for: the purposes of `purposes.toml`, tried in their order."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

from llm_perf_opt.serving.startup.startup_records import Purpose
from llm_perf_opt.serving.startup.startup_stacks import SampledFrame

FILE = Path(__file__).with_name("purposes.toml")
# A thread waits where one of its innermost frames does.
INNERMOST = 4
IMPORTING = re.compile(r"^(_find_and_load|_gcd_import|_load_unlocked|import_module)\w*@")
# Purposes of a process that hold for all it starts: a compiler's helpers do nothing else.
INHERITED: tuple[Purpose, ...] = ("autotune", "compile", "graph capture")
# Calls of a process to another one that say what the other does. Setting up an engine says nothing: all is that.
LENT: tuple[Purpose, ...] = (*INHERITED, "weights", "KV cache allocation", "warm-up")


@dataclass(frozen=True, kw_only=True)
class PurposeRules:
    """The patterns of the file, compiled."""

    waits: re.Pattern[str]
    frames: tuple[tuple[Purpose, re.Pattern[str]], ...]


@cache
def purpose_rules() -> PurposeRules:
    raw = tomllib.loads(FILE.read_text(encoding="utf-8"))
    frames = tuple((cast(Purpose, row["name"]), re.compile("|".join(row["frames"]))) for row in raw["purpose"])
    return PurposeRules(waits=re.compile("|".join(raw["waits"])), frames=frames)


@cache
def does_wait(frames: tuple[SampledFrame, ...]) -> bool:
    """Whether a thread with this stack waits for another thread or process."""
    waits = purpose_rules().waits
    return any(waits.search(frame.text) for frame in frames[-INNERMOST:])


@cache
def _own(frames: tuple[SampledFrame, ...]) -> Purpose | None:
    for purpose, pattern in purpose_rules().frames:
        if any(pattern.search(frame.text) for frame in frames):
            return purpose
    return None


@cache
def _imports(frames: tuple[SampledFrame, ...]) -> bool:
    return any(IMPORTING.search(frame.text) for frame in frames)


def purpose_of(frames: tuple[SampledFrame, ...], above: Sequence[tuple[SampledFrame, ...]] = ()) -> Purpose:
    """The purpose of a process that works; `above` are the stacks of those that wait for it, the nearest last."""
    waited = [purpose for stack in above if (purpose := _own(stack)) is not None]
    inherited = next((purpose for purpose in reversed(waited) if purpose in INHERITED), None)
    if inherited is not None:
        return inherited
    if _imports(frames):
        return "imports"
    # Where it is not known what a process does, it may be known what the other waits for.
    lent = [purpose for purpose in waited if purpose in LENT]
    return _own(frames) or (lent[-1] if lent else "other")

"""A line of points from good to bad, and where each of them can be run."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from llm_perf_opt.comparison.bisect.bisect_document import Kind


class PointFails(Exception):
    """A point that cannot be prepared or run; the message says why. It is skipped, as git does."""


@dataclass(frozen=True, kw_only=True)
class PointName:
    """What a point is called: `label` is short and unique (a commit, a version, a setting), `title` explains it."""

    label: str
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """Where and how the program runs at a point."""

    command: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    overrides: tuple[str, ...] = ()


class Line(Protocol):
    """Points 0 (good) to the last (bad)."""

    @property
    def kind(self) -> Kind: ...

    @property
    def names(self) -> Sequence[PointName]: ...

    def place(self, point: int) -> RunPlace:
        """Prepare a point and say where it runs; raises PointFails."""

    def leave(self, point: int) -> None:
        """The search continues elsewhere: what was prepared for this point may go."""

    def opened(self) -> AbstractContextManager[None]:
        """Remove what was prepared."""

    def changed_files(self, before: int, after: int) -> tuple[str, ...]:
        """What changed between two neighbours, where that is known."""

"""What a search has measured, a line a pair, so that an interrupted one continues where it stopped."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.errors import ConfigError

PLAN_FILE, JOURNAL_FILE = "bisect-plan.json", "bisect-pairs.jsonl"


@dataclass(frozen=True, kw_only=True)
class BisectPlan:
    """What was requested, with commits instead of names, which may move."""

    schema_version: Literal[1] = 1
    argv: tuple[str, ...]
    user_dir: str
    labels: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PairEntry:
    """A pair: the logarithm of point by good; None where the point could not be measured, with the reason."""

    point: int
    log_ratio: float | None = None
    good: float | None = None
    value: float | None = None
    reason: str = ""


def write_bisect_plan(folder: Path, plan: BisectPlan) -> None:
    write_json(folder / PLAN_FILE, plan)


def read_bisect_plan(folder: Path) -> BisectPlan:
    try:
        return msgspec.json.decode((folder / PLAN_FILE).read_bytes(), type=BisectPlan)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"--resume: {folder / PLAN_FILE} cannot be read ({error}); give the directory of an interrupted bisect"
        ) from error


class PairJournal:
    """Reads what an earlier start measured, then appends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL_FILE
        self._earlier: Iterator[PairEntry] = iter(_entries(self._path))

    def earlier(self) -> PairEntry | None:
        """The next entry of an earlier start; None when all were replayed."""
        return next(self._earlier, None)

    def add(self, entry: PairEntry) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(entry) + b"\n")


def _entries(path: Path) -> Sequence[PairEntry]:
    """Whole lines; a last one that was cut short is dropped, and its pair is measured again."""
    if not path.is_file():
        return ()
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        path.write_bytes(whole)
    try:
        return [msgspec.json.decode(line, type=PairEntry) for line in whole.splitlines()]
    except msgspec.DecodeError as error:
        raise ConfigError(f"--resume: {path} is damaged ({error})") from error

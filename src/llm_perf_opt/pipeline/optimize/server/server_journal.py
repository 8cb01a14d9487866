"""Every start of a search as a line of a file, so that an interrupted search continues where it stopped."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.core.manifest import write_json
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.optimize.server.server_document import StartOutcome
from llm_perf_opt.optimize.server.server_outputs import ServedReference
from llm_perf_opt.optimize.server.server_search import StartRequest
from llm_perf_opt.system.redact import Redactor

JOURNAL_FILE, REFERENCE_FILE = "optimize_server.journal.jsonl", "optimize_server.answers.json"


@dataclass(frozen=True, kw_only=True)
class SearchHeader:
    """The first line: what was searched, as a digest, since words of a command may be secret."""

    schema_version: int = 1
    digest: str


def digest_of(*parts: Any) -> str:
    """What makes two searches the same: server, load, traffic, objective, space."""
    return hashlib.sha256(msgspec.json.encode([msgspec.to_builtins(part) for part in parts])).hexdigest()


class StartJournal:
    """Replays what an earlier part of the search measured, then appends."""

    def __init__(self, folder: Path, digest: str, redactor: Redactor, *, resumes: bool) -> None:
        self._path = folder / JOURNAL_FILE
        self._redactor = redactor
        self._earlier: list[StartOutcome] = []
        self.replayed = 0
        if resumes:
            self._earlier = _read(self._path, digest)
            _end_last_line(self._path)
        else:
            self._append(SearchHeader(digest=digest))

    def earlier(self, request: StartRequest) -> StartOutcome | None:
        """The next start of the same configuration and purpose that was measured before; each is used once."""
        for number, one in enumerate(self._earlier):
            if one.configuration == request.configuration and one.purpose == request.purpose:
                self.replayed += 1
                return self._earlier.pop(number)
        return None

    def keep(self, outcome: StartOutcome) -> None:
        self._append(msgspec.convert(self._redactor.tree(msgspec.to_builtins(outcome)), StartOutcome))

    def _append(self, line: StartOutcome | SearchHeader) -> None:
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _end_last_line(path: Path) -> None:
    """What is appended begins on its own line, also after half a line."""
    with path.open("rb+") as file:
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def write_reference(folder: Path, reference: ServedReference) -> None:
    """The answers of the start, for the part of the search that follows an interrupt."""
    write_json(folder / REFERENCE_FILE, reference)


def read_reference(folder: Path) -> ServedReference | None:
    path = folder / REFERENCE_FILE
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=ServedReference)
    except msgspec.DecodeError as error:
        raise ConfigError(f"--resume: {path} cannot be read ({error}), allowed: a directory as it was left") from error


def _read(path: Path, digest: str) -> list[StartOutcome]:
    try:
        lines: Sequence[bytes] = path.read_bytes().splitlines()
        header = msgspec.json.decode(lines[0], type=SearchHeader)
    except (OSError, IndexError, msgspec.DecodeError) as error:
        raise ConfigError(
            f"--resume: {path} cannot be read ({error}), allowed: the directory of an interrupted search"
        ) from error
    if header.digest != digest:
        raise ConfigError(
            f"--resume: {path.parent} holds another search, allowed: the same server, load, objective and space"
        )
    found = []
    for line in lines[1:]:
        try:
            found.append(msgspec.json.decode(line, type=StartOutcome))
        except msgspec.DecodeError:
            # A search that was killed while it wrote leaves half a line.
            continue
    return found

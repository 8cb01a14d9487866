"""`--json` of every command: one document on the standard output and nothing else; what people read goes to stderr.

A command that fails prints an `ErrorDocument` there and keeps its exit code.
"""

import codecs
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any, Literal

from llm_perf_opt.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, ConfigError, ProfilingError

JSON = "--json"
ErrorKind = Literal["bad_input", "failed", "interrupted", "not_foreseen"]


@dataclass(frozen=True, kw_only=True)
class ErrorRecord:
    """Why a command has no result: one message per problem, as on stderr."""

    kind: ErrorKind
    messages: tuple[str, ...]
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class ErrorDocument:
    """What a command with `--json` prints instead of its document when it fails."""

    schema_version: Literal[1] = 1
    error: ErrorRecord


def asks_for_json(argv: Sequence[str]) -> bool:
    """Whether a command line asks for JSON; what follows `--` belongs to a program of the user's."""
    words = argv[: argv.index("--")] if "--" in argv else argv
    return JSON in words


def without_json(argv: Sequence[str]) -> list[str]:
    """The command line without `--json`, for commands whose other words are overrides."""
    end = argv.index("--") if "--" in argv else len(argv)
    return [word for number, word in enumerate(argv) if number >= end or word != JSON]


def print_json(document: Any) -> None:
    """Print a record or plain data; text stays readable where the output is UTF-8 and becomes escapes elsewhere."""
    from llm_perf_opt.core.manifest import strict_json

    encoding = sys.stdout.encoding
    readable = encoding is None or codecs.lookup(encoding).name == "utf-8"
    print(strict_json(document, indent=2, ensure_ascii=not readable))


def print_error_document(kind: ErrorKind, messages: Sequence[str], exit_code: int) -> None:
    """Print why there is no result."""
    print_json(ErrorDocument(error=ErrorRecord(kind=kind, messages=tuple(messages), exit_code=exit_code)))


def print_failure(error: ProfilingError) -> None:
    """Print one of the project's own errors."""
    messages = error.problems if isinstance(error, ConfigError) else (str(error),)
    kind: ErrorKind = "bad_input" if error.exit_code == EXIT_BAD_INPUT else "failed"
    print_error_document(kind, messages, error.exit_code)


def print_interrupted() -> None:
    """Print that the user ended the command."""
    print_error_document("interrupted", ["interrupted; what was recorded until then is kept"], EXIT_INTERRUPTED)


@contextmanager
def text_to_stderr(asked: bool) -> Iterator[None]:
    """Send what is printed meanwhile to stderr, where `asked`; the standard output is the document's."""
    if not asked:
        yield
        return
    with redirect_stdout(sys.stderr):
        yield

"""The errors the project raises on purpose; `cli.main` turns each into a message and an exit code."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


class ProfilingError(Exception):
    """Something failed that the user should read about in words, not as a traceback.

    `log` is where the failed program wrote its final lines; `failure` is then the message without that path.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str = "", *, log: "Path | str | None" = None) -> None:
        self.log = log
        self.failure = None if log is None else message
        super().__init__(message if log is None else f"{message} (log: {log})")


class ConfigError(ProfilingError):
    """Bad input: every problem found, each as `full.key: what is wrong (got ...), what is allowed`."""

    exit_code = EXIT_BAD_INPUT

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class ToolError(ProfilingError):
    """A vendor tool is missing, too old, broken or not allowed to do its work."""


class StageSkipped(ProfilingError):
    """A stage has nothing to do in this run; the message says why. It is recorded as skipped, not as failed."""


class CommandFailed(ProfilingError):
    """A command we started ended badly; the message names its log and quotes its last lines."""


class ParseError(ProfilingError):
    """A file could not be read as what it claims to be."""

    exit_code = EXIT_BAD_INPUT


class ManifestError(ProfilingError):
    """A run directory's manifest is missing, unreadable or of a version we do not know."""

    exit_code = EXIT_BAD_INPUT


@contextmanager
def numbers_of(*places: Path) -> Iterator[None]:
    """Report unusable numbers in a user's file as bad input, with their location."""
    try:
        yield
    except ArithmeticError as error:
        raise ParseError(
            f"{' or '.join(map(str, places))}: it or a file it names holds a number with which nothing can be computed "
            f"({error}); the run was changed or damaged, so measure it again"
        ) from error


def print_error(error: ProfilingError) -> None:
    """One line per problem, on stderr."""
    # Where the output is closed the exit code still reports it.
    with suppress(OSError):
        for line in error.problems if isinstance(error, ConfigError) else (str(error),):
            print(f"error: {line}", file=sys.stderr)


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`; did you mean profile?`, or nothing where no known word is near."""
    from difflib import get_close_matches

    near = get_close_matches(word, [*known], n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""

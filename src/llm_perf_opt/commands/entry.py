"""What every command of ours does around its work: a parser, standard streams that are safe, no traceback at the end.

Closed standard streams are replaced, names a terminal cannot show are escaped, and what would steer a terminal
is made visible. An unforeseen error becomes one line and a file with its trace.
"""

import argparse
import os
import re
import sys
import tempfile
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from types import TracebackType
from typing import NoReturn, Self, TextIO, cast

from llm_perf_opt.errors import EXIT_FAILED, EXIT_OK, ConfigError, did_you_mean
from llm_perf_opt.system.json_output import asks_for_json, print_error_document
from llm_perf_opt.system.terminal import PrintableStream

LONGEST_LINE = 300
# As wide as argparse makes the rest of a help text at most.
HELP_WIDTH = 78


def run_safely(main: Callable[[list[str]], int], argv: Sequence[str]) -> int:
    """Run a command; whatever happens inside it, the answer is an exit code."""
    with _safe_streams():
        with LastResort() as last:
            try:
                code = main(list(argv))
                sys.stdout.flush()
            except BrokenPipeError:
                # The reader went away (`| head`); what is left to print has nowhere to go.
                _print_no_more()
                return EXIT_OK
            except OSError as error:
                # A full disk, most likely, be it under the standard output or under a file.
                message = f"reading or writing failed ({error})"
                print(f"error: {message}", file=sys.stderr)
                if not _can_print() or (asks_for_json(argv) and not _can_print_error(message)):
                    _print_no_more()
                return EXIT_FAILED
            return code
        assert last.caught is not None
        if asks_for_json(argv):
            print_error_document("not_foreseen", [last.caught], EXIT_FAILED)
        return EXIT_FAILED


class LastResort:
    """Turn an unforeseen error into one line on stderr, `caught`, and a file that has the trace.

    What a child of a run prints is in a log already: there, with `in_log`, its trace goes.
    """

    caught: str | None = None

    def __init__(self, *, in_log: bool = False) -> None:
        self._in_log = in_log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        from llm_perf_opt.system.redact import Redactor

        redactor = Redactor.of(os.environ)
        said = "not enough memory for it" if isinstance(error, MemoryError) else str(error)
        # Cut afterwards: half a secret is not known as one.
        text = redactor.text(" ".join(said.split()))[:LONGEST_LINE]
        trace_text = redactor.text("".join(traceback.format_exception(error)))
        if self._in_log:
            print(trace_text, end="", file=sys.stderr)
        where = "above" if self._in_log else f"in {_write_trace(trace_text)}"
        self.caught = f"{type(error).__name__}: {text} (unexpected; the traceback is {where})"
        print(f"error: {self.caught}", file=sys.stderr)
        return True


def _write_trace(text: str) -> str:
    """The file with the trace, or the reason why there is none."""
    try:
        number, path = tempfile.mkstemp(prefix="llm-perf-error-", suffix=".log")
        with open(number, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as trouble:
        return f"no file, since none could be written: {trouble.strerror}"
    return path


@contextmanager
def _safe_streams() -> Iterator[None]:
    _open_closed_streams()
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, TextIOWrapper):
            # A name the terminal cannot show must not end the command.
            stream.reconfigure(errors="backslashreplace")
    ours = [PrintableStream(stream) for stream in before]
    sys.stdout, sys.stderr = (cast(TextIO, stream) for stream in ours)
    try:
        yield
    finally:
        for stream in ours:
            with suppress(OSError):
                stream.flush()
        sys.stdout, sys.stderr = before


def _open_closed_streams() -> None:
    """A closed descriptor would be given to the next file we open, and that file would get what is printed."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays open


def _can_print() -> bool:
    """What is left to print can go where it should."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _can_print_error(message: str) -> bool:
    """The document of an error is printed, where the standard output itself is not what failed."""
    try:
        print_error_document("failed", [message], EXIT_FAILED)
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _print_no_more() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class CommandParser(argparse.ArgumentParser):
    """A parser whose complaints are one line, with the word that was probably meant."""

    def error(self, message: str) -> NoReturn:
        choice = re.fullmatch(r"(.*): invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice is not None:
            allowed = re.findall(r"[\w.-]+", choice[3])
            near = did_you_mean(choice[2], allowed)
            raise ConfigError(
                f"{self.prog}: {choice[1]}: no such choice (got {choice[2]!r}){near}, allowed: {', '.join(allowed)}"
            )
        unknown = re.match(r"unrecognized arguments: (-\S+)", message)
        known = [flag for action in self._actions for flag in action.option_strings]
        hint = did_you_mean(unknown[1].partition("=")[0], known) if unknown else ""
        raise ConfigError(f"{self.prog}: {message}{hint}; `{self.prog} --help` explains it")


def command_parser(name: str, description: str, examples: Sequence[str], *, epilog: str = "") -> CommandParser:
    """The parser of a command; its help ends with examples, each of which a test runs."""
    shown = "\n".join(("examples:", *(f"  {example}" for example in examples), *(["", epilog] if epilog else [])))
    return CommandParser(
        prog=f"llm-perf {name}",
        description=textwrap.fill(description, HELP_WIDTH),
        epilog=shown,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

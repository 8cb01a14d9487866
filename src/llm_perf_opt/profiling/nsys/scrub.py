"""What nsys writes, kept apart until it holds no secrets.

nsys records the environment of every process it may read. So it writes into a folder that is gone when the stage ends,
whatever ended it; only scrubbed exports and checked reports move to the run directory.

Removes recorded environments from an nsys export, and the secrets among them from the report itself.

nsys stores not only the environment of the workload and of itself, but that of every process on the machine whose
/proc entry it may read: a token exported in any shell of the user ends up in the report, however clean the workload's
own environment is. In an export the environments are NUL-separated `NAME=value` strings. A report is packed, but
values that occur once are in it as plain text: they are overwritten in place, byte for byte, so that no length changes.
Whether that worked has to be checked by exporting the report again.
"""

import mmap
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from llm_perf_opt.capture.readers.nsys_log import failure_words
from llm_perf_opt.core.host import Tool
from llm_perf_opt.core.stage import CommandPlace
from llm_perf_opt.errors import ParseError, ProfilingError, ToolError
from llm_perf_opt.profiling.nsys.live_sessions import share_lock
from llm_perf_opt.profiling.vendor.nsys import KeepReport, build_nsys_export_cmd, find_reports, find_unimported
from llm_perf_opt.system.files import move_whole
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.secrets.known_secrets import is_word, values_of
from llm_perf_opt.system.secrets.secret_shapes import is_of_a_tool, is_secret

REMOVED = "(environment removed)"
PRINTED = "(long output removed: see log.txt)"
# A shorter one may be any other text of the capture too, such as a range's name.
LONGEST_OUTPUT = 1 << 16
_ASSIGNMENT = re.compile(r"[^=\x00-\x20]{1,256}=")
# nsys 2022.4 writes a NUL between the variables of an environment, 2024.6 and 2025.3 a semicolon, which values may
# hold too.
_BETWEEN = re.compile(r"\x00|;(?=[A-Za-z_][A-Za-z0-9_]{0,255}(?:%%)?=)")
_RAW_ASSIGNMENT = re.compile(rb"([A-Za-z_][A-Za-z0-9_]{2,127})=([^\x00-\x08\x0b\x0c\x0e-\x1f]{5,16384})")
TEXTS_AT_ONCE = 10_000
_BLOCK_TABLES = frozenset({"TARGET_INFO_SYSTEM_ENV", "META_DATA_CAPTURE"})
_NAMED_BY = (
    ("NVTX_EVENTS", "textId"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName"),
    ("CUPTI_ACTIVITY_KIND_KERNEL", "mangledName"),
    ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"),
)


@dataclass(frozen=True, kw_only=True)
class Environments:
    """What an export held, as it was there: environments, and the secrets of `texts` other texts."""

    blocks: tuple[str, ...]
    in_texts: tuple[str, ...] = ()
    texts: int = 0

    @property
    def secrets(self) -> tuple[str, ...]:
        """What looks like a secret by its name or by itself, and the parts that may appear alone, longest first."""
        return tuple(dict.fromkeys((*values_of(self._found()), *self.in_texts)))

    @property
    def is_clean(self) -> bool:
        """Whether no secret is left but as a row of `x`."""
        values = [*(value for _, value in self._found()), *self.in_texts]
        return all(set(value) <= {"x"} for value in values)

    @property
    def secret_names(self) -> tuple[str, ...]:
        """The variables those values belong to."""
        return tuple(sorted({name for name, _ in self._found()}))

    @property
    def of_tools(self) -> tuple[str, ...]:
        """The assignments by which nsys marks processes, which are not secrets and may look like ones when cut."""
        return tuple(dict.fromkeys(f"{name}={value}" for name, value in self.variables() if is_of_a_tool(name)))

    def variables(self) -> Iterator[tuple[str, str]]:
        """Every variable of every process."""
        for block in self.blocks:
            for name, _, value in (part.partition("=") for part in _BETWEEN.split(block)):
                yield name, value

    def _found(self) -> Iterator[tuple[str, str]]:
        found = ((name, value) for name, value in self.variables() if is_secret(name, value))
        return ((name, value) for name, value in found if not is_word(name, value))


def scrub_export(sqlite: Path, redactor: Redactor | None = None) -> Environments:
    """Take every recorded environment out of an export, secrets out of all its texts (names of ranges and what programs
    printed among them), and long outputs; returns what was there.

    The file is rewritten whole.
    """
    try:
        with closing(sqlite3.connect(sqlite, isolation_level=None)) as connection:
            return _scrub(connection, redactor or Redactor())
    except sqlite3.Error as error:
        raise ParseError(f"{sqlite}: the recorded environments could not be removed ({error})") from error


def overwrite_assignments(raw: Path) -> None:
    """Overwrite the values behind names that look like secrets in a file that cannot be parsed here (`.qdstrm`)."""
    if not raw.stat().st_size:
        return
    with raw.open("r+b") as file, mmap.mmap(file.fileno(), 0) as data:
        for match in _RAW_ASSIGNMENT.finditer(data):
            if is_secret(match[1].decode("ascii"), match[2].decode("utf-8", "replace")):
                data[match.start(2) : match.end(2)] = b"x" * len(match[2])
        data.flush()


def _scrub(connection: sqlite3.Connection, redactor: Redactor) -> Environments:
    # What is not UTF-8 keeps its bytes: a secret may be in the same text.
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA journal_mode = MEMORY")
    tables = {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    blocks: list[str] = []
    connection.execute("BEGIN")
    if {"ProcessStreams", "StringIds"} <= tables:
        _drop_long_output(connection)
    for table in sorted(tables & _BLOCK_TABLES):
        for row, name, value in connection.execute(f'SELECT rowid, name, value FROM "{table}"').fetchall():
            if _is_block(str(name), str(value)):
                blocks.append(str(value))
                connection.execute(f'UPDATE "{table}" SET value = ? WHERE rowid = ?', (REMOVED, row))
    if "StringIds" in tables:
        blocks += _scrub_strings(connection, tables, blocks)
    environments = Environments(blocks=tuple(dict.fromkeys(blocks)))
    values = sorted({*redactor.values, *environments.secrets}, key=len, reverse=True)
    known = Redactor(values=tuple(values))
    texts = _clean_texts(connection, tables, known)
    connection.execute("COMMIT")
    connection.execute("VACUUM")
    return replace(environments, in_texts=known.found_in(texts), texts=len(texts))


def _drop_long_output(connection: sqlite3.Connection) -> None:
    """What a program printed is in the log of the stage; nsys has it all once more, and it has no limit."""
    printed = "SELECT contentId FROM ProcessStreams"
    connection.execute(
        f"UPDATE StringIds SET value = ? WHERE id IN ({printed}) AND length(value) > ?", (PRINTED, LONGEST_OUTPUT)
    )


def _clean_texts(connection: sqlite3.Connection, tables: set[str], redactor: Redactor) -> tuple[str, ...]:
    """Secrets that occur elsewhere too: in a command line, in a range's name, in what was printed; the texts as they
    were. A long text lies on several pages of the file, where no search of its bytes would find one."""
    found: list[str] = []
    for table in sorted(tables):
        for column in _text_columns(connection, table):
            rows = connection.execute(f'SELECT DISTINCT "{column}" FROM "{table}" WHERE typeof("{column}") = \'text\'')
            changes: dict[str, str] = {}
            while texts := [str(text) for (text,) in rows.fetchmany(TEXTS_AT_ONCE)]:
                changes |= redactor.changed(texts)
            connection.executemany(
                f'UPDATE "{table}" SET "{column}" = CAST(? AS TEXT) WHERE CAST("{column}" AS BLOB) = ?',
                [(_as_bytes(new), _as_bytes(old)) for old, new in changes.items()],
            )
            found += changes
    return tuple(dict.fromkeys(found))


def _as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text_columns(connection: sqlite3.Connection, table: str) -> list[str]:
    """Columns that may hold text, regardless of their declared type."""
    rows = connection.execute(f'PRAGMA table_info("{table}")').fetchall()
    return [str(row[1]) for row in rows if not re.search(r"INT|REAL|FLOA|DOUB|BLOB", str(row[2]).upper())]


def _scrub_strings(connection: sqlite3.Connection, tables: set[str], known: Iterable[str]) -> list[str]:
    """Whole environments, and single variables named in one of them that name nothing on the timeline."""
    # Of a damaged export any column may hold anything.
    rows = connection.execute(
        "SELECT id, value FROM StringIds WHERE instr(value, '=') > 0 AND typeof(id) = 'integer' "
        "AND typeof(value) = 'text'"
    )
    strings = [(int(i), str(v)) for i, v in rows]
    blocks = [(i, v) for i, v in strings if _is_block("", v)]
    names = {name for value in (*known, *(v for _, v in blocks)) for name in _variable_names(value)}
    used = _ids_in_use(connection, tables)
    singles = [(i, v) for i, v in strings if "\0" not in v and i not in used and v.split("=", 1)[0] in names]
    changes = [(REMOVED, i) for i, _ in (*blocks, *singles)]
    connection.executemany("UPDATE StringIds SET value = ? WHERE id = ?", changes)
    return [v for _, v in (*blocks, *singles)]


def _ids_in_use(connection: sqlite3.Connection, tables: set[str]) -> set[int]:
    """Ids of strings that name ranges, kernels or calls: a range may be called `batch=8`."""
    used: set[int] = set()
    for table, column in _NAMED_BY:
        if table not in tables or column not in {row[1] for row in connection.execute(f'PRAGMA table_info("{table}")')}:
            continue
        rows = connection.execute(f'SELECT DISTINCT "{column}" FROM "{table}" WHERE typeof("{column}") = \'integer\'')
        used |= {int(i) for (i,) in rows}
    return used


def _is_block(name: str, value: str) -> bool:
    """Something that holds variables: by its name, or because it looks like `A=1` NUL `B=2`."""
    return "environment" in name.lower() or bool("\0" in value and _ASSIGNMENT.match(value))


def _variable_names(value: str) -> list[str]:
    return [part.split("=", 1)[0] for part in _BETWEEN.split(value) if _ASSIGNMENT.match(part)]


# What an earlier attempt of the stage may have left; its names would be listed with those of this one.
EARLIER = (
    "run*.nsys-rep",
    "run*.sqlite",
    "run*.qdstrm",
    "cmd*.txt",
    "log*.txt",
    "look.log",
    "export-*.log",
    "analysis.json",
    "timeline.json",
    "*.csv",
)


@dataclass(frozen=True, kw_only=True)
class RawFolder:
    """`reports` is where captures go, `scratch` where nsys keeps them while they grow.

    `wrapper` starts nsys where it sees no process of others.
    """

    reports: Path
    scratch: Path
    wrapper: tuple[str, ...] = ()

    @property
    def isolated(self) -> bool:
        return bool(self.wrapper)


@contextmanager
def raw_folder(ctx: CommandPlace, nsys: Tool, *, wrapper: tuple[str, ...] = ()) -> Iterator[RawFolder]:
    """Both folders, empty; and an output directory without the files of an earlier attempt."""
    for pattern in EARLIER:
        for old in ctx.out_dir.glob(pattern):
            old.unlink()
    # A short path: nsys opens sockets there, and their names may not be long. It is not in the run directory, so that
    # nothing of it is there even if we are killed.
    with tempfile.TemporaryDirectory(prefix="llm-perf-nsys-", ignore_cleanup_errors=True) as scratch:
        reports = Path(scratch, "raw")
        reports.mkdir()
        if nsys.version is not None:
            share_lock(Path(scratch), nsys.version)
        yield RawFolder(reports=reports, scratch=Path(scratch), wrapper=wrapper)


def export_report(ctx: CommandPlace, nsys: str, report: Path, sqlite: Path, timeout_s: float) -> Path:
    """The report as SQLite."""
    sqlite.unlink(missing_ok=True)
    log = f"export-{report.name}.log"
    result = ctx.run_command(
        build_nsys_export_cmd(report, sqlite, nsys=nsys),
        timeout_s=timeout_s,
        log=log,
        cmd_file=None,
        label="nsys export",
        remove=[report.parent],
    )
    if not result.ok or not sqlite.is_file():
        raise ToolError(export_problem(report, result.timed_out, result.exit_code, result.tail))
    (ctx.out_dir / log).unlink(missing_ok=True)
    return sqlite


def export_problem(report: Path, timed_out: bool, exit_code: int | None, tail: str) -> str:
    """Why a report could not be exported."""
    if timed_out:
        return f"{report}: `nsys export` did not end in time; export it by hand and analyse the .sqlite"
    return (
        f"{report}: `nsys export` failed (exit code {exit_code}: {failure_words(tail)}); the report may be damaged or "
        "made by a newer nsys: export it with the version that made it and analyse the .sqlite"
    )


def publish_report(
    ctx: CommandPlace,
    nsys: str,
    report: Path,
    *,
    keep: KeepReport,
    timeout_s: float,
    notes: list[str],
    isolated: bool = False,
    setting: str | None = "pipeline.nsys.keep_report=always",
) -> Path:
    """The export without secrets, in the run directory; the report goes with it as `keep` says.

    `isolated`: nsys could read no process but those it started. `setting` is what keeps a report in any case.
    """
    sqlite = export_report(ctx, nsys, report, report.with_suffix(".sqlite"), timeout_s)
    redactor = ctx.run_command.redactor
    held = scrub_export(sqlite, redactor)
    left = _left_in(ctx, nsys, report, held, timeout_s) if keep == "clean" else None
    if keep == "always" or (keep == "clean" and left is None):
        move_whole(report, ctx.out_dir / report.name)
        found = _named(held)
        if found and keep == "clean" and isolated:
            note = (
                f"{report.name}: {found} are overwritten with x"
                f"{'' if setting is None else f'; {setting} keeps it as it was'}"
            )
            ctx.say(f"nsys: {note}")
            notes.append(note)
        if not isolated:
            count = len({name for name, _ in held.variables()})
            done = "what looked like a secret was overwritten, " if keep == "clean" else ""
            notes.append(
                f"{report.name} holds the environments of every process nsys could read, {count} variables by name; "
                f"{done}other values are as they were"
            )
    elif keep == "clean":
        note = (
            f"{report.name} was removed: it holds {left}{'' if setting is None else f'; {setting} keeps it'}. "
            f"The export {sqlite.name} is clean and complete"
        )
        # A report that is missing is searched where the run printed what it did.
        ctx.say(f"nsys: {note}")
        notes.append(note)
    return move_whole(sqlite, ctx.out_dir / sqlite.name)


def _named(held: Environments) -> str:
    """What a report holds that must not be passed on, in words."""
    words = [f"the values of {', '.join(held.secret_names)}"] if held.secret_names else []
    if held.texts:
        words.append(f"secrets in {held.texts} of its texts (names of ranges, what was printed)")
    return " and ".join(words)


def publish_leftovers(
    ctx: CommandPlace, nsys: str, out_base: Path, *, keep: KeepReport, timeout_s: float, isolated: bool = False
) -> None:
    """What a failed capture left: its export without secrets, and the rest only where reports are wanted."""
    for raw in find_unimported(out_base):
        overwrite_assignments(raw)
        if keep == "always" or (keep == "clean" and not ctx.run_command.redactor.holds(raw)):
            move_whole(raw, ctx.out_dir / raw.name)
        else:
            why = "holds what looks like a secret and " if keep == "clean" else ""
            ctx.say(f"nsys: {raw.name} {why}was not kept; pipeline.nsys.keep_report=always keeps it")
    for report in find_reports(out_base):
        try:
            publish_report(ctx, nsys, report, keep=keep, timeout_s=timeout_s, notes=[], isolated=isolated)
        except ProfilingError as error:
            ctx.say(f"nsys: {report.name} of the failed capture was not kept ({error})")


def _left_in(ctx: CommandPlace, nsys: str, report: Path, held: Environments, timeout_s: float) -> str | None:
    """What a report holds that must not be passed on, in words, once the secrets in it as plain bytes are
    overwritten; None where it can be read and is clean."""
    redactor = ctx.run_command.redactor
    secrets = held.secrets
    if secrets:
        # Loads numpy, which a run without secrets in its reports does not need.
        from llm_perf_opt.profiling.nsys.overwrite import overwrite_values

        overwrite_values(report, secrets)
        if not _is_readable_and_clean(ctx, nsys, report, secrets, timeout_s):
            return _named(held)
    name = redactor.name_of_first(report, held.of_tools)
    if name is None:
        return None
    return f"bytes that look like a secret{f' (behind {name!r})' if name else ''}"


def _is_readable_and_clean(
    ctx: CommandPlace, nsys: str, report: Path, secrets: tuple[str, ...], timeout_s: float
) -> bool:
    """Whether a report in which secrets were overwritten can be exported, and none of them is left."""
    from llm_perf_opt.profiling.nsys.overwrite import holds_any

    check = report.with_name("check.sqlite")
    try:
        export_report(ctx, nsys, report, check, timeout_s)
        if holds_any(check, secrets) or holds_any(report, secrets):
            return False
        return scrub_export(check, ctx.run_command.redactor).is_clean
    except ProfilingError:
        (ctx.out_dir / f"export-{report.name}.log").unlink(missing_ok=True)
        return False
    finally:
        check.unlink(missing_ok=True)

"""Takes secrets out of texts, commands, data and files: known values (`secrets.known`) and what looks like one.

What runs gets the real values; only files, messages and recorded commands pass through here. In place of a secret
is `REDACTED`, in a file whose format must hold as many `x`.
"""

import bz2
import gzip
import io
import lzma
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO

from llm_perf_opt.system.secrets.known_secrets import known_values
from llm_perf_opt.system.secrets.secret_shapes import (
    MARKS,
    REDACTED,
    hidden_in,
    is_plain,
    is_secret,
    merged,
    names_a_setting,
    shape_spans,
    without_shapes,
)

BLOCK_BYTES = 1 << 20
# Text holds no zero byte; so much of a file is inspected.
HEAD_BYTES = 1 << 13
# Which secrets are known in a file by their shape.
NONE, OF_CODE, ALL = "none", "code", "all"
# The longest secret that is found where two blocks of a file meet.
OVERLAP_BYTES = 1 << 14
# Of a log that is longer, so much of its beginning and of its end is kept.
KEPT_BYTES = 8 << 20
# How packed files begin, and by what they are opened.
_PACKED: tuple[tuple[bytes, Callable[..., Any]], ...] = (
    # Traces are large, and the smallest file takes three times as long.
    (b"\x1f\x8b", partial(gzip.GzipFile, compresslevel=3)),
    (b"\xfd7zXZ\0", lzma.LZMAFile),
    (b"BZh", bz2.BZ2File),
)
# What ends a packed file; one that was cut off is cut off again here.
_ENDING_BYTES = 8

# So much before and behind a mark is inspected in a file, and behind it to the end of what is there.
_BEFORE, _BEHIND, _LONGEST_VALUE = 320, 320, 4608
# Where a name with its sign ends at the end of what is searched.
_NAME_BEFORE = re.compile(rb"[A-Za-z][A-Za-z0-9_.-]{1,80}[=:]\Z")
# A flag such as `-u USER:` in front of a password, and the end of the command it belongs to. Without a command it is
# three bytes that a packed file holds by chance: once in eighty megabytes of random ones.
_FLAG_BEFORE = re.compile(rb"[\s\x1c-\x1f]-[A-Za-z]\s?\S{0,80}\Z")
_COMMAND_BEFORE = re.compile(rb"[!-~][ -~]{3}[\s]*\Z")
# A packed file continues with its own bytes, and fewer than this many of them are printable.
_OWN_BYTES = 4
_NO_VALUE = re.compile(rb"[\s\"'\x00-\x1f]")
# Files of code, where `token = next_word(text)` is not an assignment of a secret.
_CODE_SUFFIXES = frozenset((".py", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".ll", ".llir", ".ptx", ".ttir", ".ttgir"))


@dataclass(frozen=True, kw_only=True)
class Redactor:
    """Knows the secrets of one run. `values` are removed wherever they occur, longest first.

    A value that is a short word or number is one only where it is a separate word.
    """

    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str], more: Sequence[str] = ()) -> "Redactor":
        """One that knows the secrets of an environment, of the files programs keep secrets in, and `more` values."""
        return cls(values=known_values(environ, more))

    def without_known(self, text: str) -> str:
        present = [value for value in self.values if value in text]
        if not present:
            return text
        return re.compile("|".join(map(_standing, present))).sub(REDACTED, text)

    def text(self, text: str) -> str:
        """A text without known values and without what looks like a secret."""
        return without_shapes(self.without_known(text))

    def changed(self, texts: Sequence[str]) -> dict[str, str]:
        """Of many texts those that hold a secret, and what they are without."""
        if not texts:
            return {}
        data = bytearray("\0".join(texts).encode("utf-8", "surrogateescape"))
        ends = list(accumulate(len(text.encode("utf-8", "surrogateescape")) + 1 for text in texts))
        places = [*_places(data, self._coded, in_file=False), *_shape_places(data, ALL, in_file=False)]
        held = {texts[bisect_right(ends, start)] for start, _ in places}
        return {text: clean for text in held if (clean := self.text(text)) != text}

    def found_in(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The secrets that occur in these texts, longest first."""
        found = {value for text in texts for value in self.values if value in text}
        found |= {text[start:end] for text in texts for start, end in shape_spans(text)}
        return tuple(sorted(found, key=lambda value: (-len(value), value)))

    def words(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command without secrets: `--api-key X` and `--api-key=X` lose their X, `-u USER:X` and `-pX` too."""
        out = [self.text(word) for word in argv]
        for index, start, end in hidden_in(argv):
            word = argv[index]
            # What is before it in the same word may hold another one.
            out[index] = self.text(word[:start]) + REDACTED + self.text(word[end:])
        return tuple(out)

    def tree(self, value: Any) -> Any:
        """Plain data without secrets, its shape as it was."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self._name(key): self._setting(str(key), item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            if value and all(isinstance(item, str) for item in value):
                return [*self.words(value)]
            return [self.tree(item) for item in value]
        return value

    def _name(self, key: Any) -> Any:
        """A key without known values: numbers may be under the name of a range, which is arbitrary text."""
        return self.without_known(key) if isinstance(key, str) else key

    def _setting(self, name: str, value: Any) -> Any:
        if not isinstance(value, str) or not value or is_plain(value):
            return self.tree(value)
        is_named = names_a_setting(name) or (name.isupper() and is_secret(name, value))
        return REDACTED if is_named else self.text(value)

    def log(self, path: Path) -> None:
        """Take secrets out of a log, in place, and of a long one all but its two ends; one without any stays untouched.

        What a program prints has no limit, and looking for secrets in it takes longer than printing it.
        """
        scratch = path.with_name(f".{path.name}.clean")
        try:
            with path.open("rb") as source, scratch.open("wb") as target:
                size = path.stat().st_size
                if size > 2 * (KEPT_BYTES + OVERLAP_BYTES):
                    changed = self._ends(source, target, size)
                else:
                    changed = self._all(source, target)
            if changed:
                scratch.replace(path)
        except OSError as error:
            # Where there is no room for a second copy, known values still go.
            self._in_place(path)
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            scratch.unlink(missing_ok=True)

    def _all(self, source: BinaryIO, target: BinaryIO) -> bool:
        """Write what is to be kept of it; whether that is anything else than there was."""
        changed = False
        for block in _blocks(source):
            text = block.decode("utf-8", "surrogateescape")
            clean = self.text(text)
            changed = changed or clean != text
            target.write(clean.encode("utf-8", "surrogateescape"))
        return changed

    def _ends(self, source: BinaryIO, target: BinaryIO, size: int) -> bool:
        """The first and the last part, cut at lines. A secret where they are cut is taken out before, as a whole."""
        first, last = io.BytesIO(), io.BytesIO()
        self._all(io.BytesIO(source.read(KEPT_BYTES + OVERLAP_BYTES)), first)
        source.seek(size - KEPT_BYTES - OVERLAP_BYTES)
        self._all(io.BytesIO(source.read(KEPT_BYTES + OVERLAP_BYTES)), last)
        head, tail = first.getvalue()[:-OVERLAP_BYTES], last.getvalue()[OVERLAP_BYTES:]
        head = head[: head.rfind(b"\n") + 1] or head
        tail = tail[tail.find(b"\n") + 1 :] or tail
        left_out = f"llm-perf: {size - len(head) - len(tail):,} bytes of {size:,} are left out here"
        target.write(b"\n".join((head, left_out.encode("ascii"), b"", tail)))
        return True

    def folder(self, folder: Path) -> None:
        """Overwrite known values in every file below a folder, and in texts what looks like a secret, with as many `x`.

        In a binary file a value may be followed by the file's own bytes, so only what is known is overwritten there. Of
        a packed file (gzip, xz, bzip2) also what it unpacks to.
        """
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                self.file(path)

    def file(self, path: Path) -> None:
        """The same for one file."""
        opener = _opener_of(path)
        if opener is None:
            self._in_place(path)
        else:
            self._in_packed(path, opener)

    def holds(self, path: Path) -> bool:
        """Whether a file holds a known value or what looks like a secret, as plain bytes."""
        return self.name_of_first(path) is not None

    def name_of_first(self, path: Path, public: Sequence[str] = ()) -> str | None:
        """The name in front of the first secret in a file, empty where there is none; None of a file without secrets.

        `public` are assignments (`NAME=value`) that are not secret. A packed file may hold only the end of their
        names: nsys's own `NSYS_PROFILING_SESSION_ID=1015` is in a report as `ING_SESSION_ID=1015` and a byte.
        """
        known = [text.encode("utf-8", "surrogateescape") for text in public]
        with path.open("rb") as file:
            for block, found in _blocks_with(file, self._coded, shapes=ALL):
                for start, size in found:
                    before = bytes(block[max(0, start - _BEFORE) : start])
                    flag = _FLAG_BEFORE.search(before)
                    if flag is not None and not _COMMAND_BEFORE.search(before, 0, flag.start() + 1):
                        continue
                    name = _NAME_BEFORE.search(before)
                    shown = b"" if name is None else name[0]
                    # At the start of a block the name may lie in the block before.
                    if not (shown and _is_end_of(known, shown, bytes(block[start : start + size]))):
                        return shown.decode("ascii")
        return None

    def _in_place(self, path: Path) -> None:
        with path.open("rb") as source:
            shapes = _shapes_in(source, path)
        _overwrite(path, self._coded, shapes=shapes)

    @cached_property
    def _coded(self) -> tuple[bytes, ...]:
        return tuple(value.encode("utf-8", "surrogateescape") for value in self.values)

    def _in_packed(self, path: Path, opener: Callable[..., Any]) -> None:
        with opener(path, "rb") as source:
            shapes = _shapes_in(_Readable(source), path)
        with opener(path, "rb") as source:
            readable = _Readable(source)
            is_clean = not any(found for _, found in _blocks_with(readable, self._coded, shapes=shapes))
        if is_clean:
            if readable.is_damaged:
                # What cannot be unpacked may hold one as it is; in a whole file that would break its check sum.
                self._in_place(path)
            return
        scratch = path.with_name(f".{path.name}.clean")
        try:
            with opener(path, "rb") as source, opener(scratch, "wb") as target:
                readable = _Readable(source)
                for block, found in _blocks_with(readable, self._coded, shapes=shapes):
                    target.write(_without(block, found))
            if readable.is_damaged:
                with scratch.open("r+b") as file:
                    file.truncate(scratch.stat().st_size - _ENDING_BYTES)
            scratch.replace(path)
        except OSError as error:
            # Where there is no room for a second copy, nothing is better than a secret.
            path.unlink()
            raise OSError(error.errno, error.strerror, str(path)) from error
        finally:
            scratch.unlink(missing_ok=True)


def given_secrets(argv: Sequence[str]) -> list[str]:
    """The values a command's words hold that are secrets: `--api-key X`, `-u USER:X`, the password of a URL."""
    found = [argv[index][start:end] for index, start, end in hidden_in(argv)]
    return [*found, *(word[start:end] for word in argv for start, end in shape_spans(word))]


def _standing(value: str) -> str:
    """The pattern of a known value: a short word or number counts only where it is a separate word."""
    if _is_short_word(value):
        return rf"(?<![A-Za-z]){value}(?![a-z])"
    if value.isdigit():
        return rf"(?<![\d.]){value}(?![\d.])"
    return re.escape(value)


def _is_short_word(value: str) -> bool:
    return value.isascii() and value.isalpha() and value.islower() and len(value) <= 8


def _blocks(source: Any) -> Iterator[bytes]:
    """A file in chunks that end with a line where possible, and never inside of a private key."""
    rest, block = b"", source.read(BLOCK_BYTES)
    # The end is not cut: the last line often has no line's end, and a secret in it is known by the word before it.
    while following := source.read(BLOCK_BYTES):
        data, block = rest + block, following
        cut = data.rfind(b"\n") + 1 or data.rfind(b" ") + 1 or max(0, len(data) - OVERLAP_BYTES)
        opened = data.rfind(b"-----BEGIN ", max(0, cut - OVERLAP_BYTES), cut)
        if opened >= 0 and data.find(b"-----END ", opened, cut) < 0:
            cut = opened
        if cut:
            yield data[:cut]
        rest = data[cut:]
    if rest or block:
        yield rest + block


def _opener_of(path: Path) -> Callable[..., Any] | None:
    """What opens a packed file; None for any other."""
    with path.open("rb") as file:
        head = file.read(8)
    return next((opener for start, opener in _PACKED if head.startswith(start)), None)


class _Readable:
    """A packed file up to where it is damaged or was cut off."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.is_damaged = False

    def read(self, size: int) -> bytes:
        try:
            return self._file.read(size)
        except (EOFError, OSError, zlib.error, lzma.LZMAError):
            self.is_damaged = True
            return b""


def _shapes_in(source: BinaryIO | _Readable, path: Path) -> str:
    """What is searched in a file besides known values, by its beginning and its name."""
    if b"\0" in source.read(HEAD_BYTES):
        return NONE
    return OF_CODE if path.suffix in _CODE_SUFFIXES else ALL


def _overwrite(path: Path, values: Sequence[bytes], *, shapes: str) -> None:
    at, places = 0, []
    with path.open("rb") as source:
        for block, found in _blocks_with(source, values, shapes=shapes):
            places += [(at + start, size) for start, size in found]
            at += len(block)
    if places:
        with path.open("r+b") as target:
            for place, size in places:
                target.seek(place)
                target.write(b"x" * size)


def _blocks_with(
    source: BinaryIO | _Readable, values: Sequence[bytes], *, shapes: str
) -> Iterator[tuple[bytearray, list[tuple[int, int]]]]:
    """A file in chunks, and where in each secrets or parts of them occur, and how long those are."""
    longest = max(map(len, values), default=0)
    data, over = bytearray(), list[tuple[int, int]]()
    while block := source.read(BLOCK_BYTES):
        data += block
        # What may continue in the next block is inspected with it.
        cut = max(0, len(data) - max(longest, OVERLAP_BYTES) + 1)
        if not cut:
            continue
        found = [*over, *_places(data, values, in_file=True), *_shape_places(data, shapes, in_file=True)]
        yield data[:cut], [(start, min(size, cut - start)) for start, size in found if start < cut]
        over = [(max(0, start - cut), start + size - max(cut, start)) for start, size in found if start + size > cut]
        del data[:cut]
    found = [*over, *_places(data, values, in_file=True), *_shape_places(data, shapes, in_file=True)]
    yield data, found


def _places(data: bytearray, values: Sequence[bytes], *, in_file: bool) -> Iterator[tuple[int, int]]:
    for value in values:
        start = data.find(value)
        if start < 0:
            continue
        # Written out again as text, a short word or number would be looked for as one; here as bytes.
        text = value.decode("utf-8", "surrogateescape")
        if _is_short_word(text):
            yield from ((found.start(), len(value)) for found in re.finditer(_standing(text).encode(), data))
        elif value.isdigit() and in_file:
            # As a number it is a measured figure, and a file with one of them overwritten could not be read.
            alone = rb"(?<![\d.:,\[])(?<![:,\[] )" + value + rb"(?![\d.]|\s*[,\]}])"
            yield from ((found.start(), len(value)) for found in re.finditer(alone, data))
        else:
            while start >= 0:
                yield start, len(value)
                start = data.find(value, start + len(value))


@cache
def _marks() -> list[re.Pattern[bytes]]:
    """The marks that begin alike in one pattern: a search for all of them is as fast as for one."""
    by_start: dict[str, list[str]] = {}
    for mark in MARKS:
        by_start.setdefault(mark[:2], []).append(re.escape(mark[2:]))
    return [re.compile(f"{re.escape(start)}(?:{'|'.join(rest)})".encode("ascii")) for start, rest in by_start.items()]


def _shape_places(data: bytearray, shapes: str, *, in_file: bool) -> Iterator[tuple[int, int]]:
    """Where what looks like a secret is in the bytes of a file; only what is near a mark is inspected closely."""
    lower = data.lower()
    marks: list[tuple[int, int]] = []
    for group in () if shapes == NONE else _marks():
        for found in group.finditer(lower):
            marks.append((max(0, found.start() - _BEFORE), _end_of_value(data, found.start(), found[0])))
    for first, last in merged(marks):
        text = data[first:last].decode("utf-8", "surrogateescape")
        is_ascii = text.isascii()
        for start, end in shape_spans(text, is_code=shapes == OF_CODE, in_file=in_file):
            if is_ascii:
                yield first + start, end - start
            else:
                before = len(text[:start].encode("utf-8", "surrogateescape"))
                yield first + before, len(text[start:end].encode("utf-8", "surrogateescape"))


def _end_of_value(data: bytearray, at: int, mark: bytes) -> int:
    """Where a value that belongs to a mark ends at the latest: only a private key goes over blanks and quotes."""
    if mark == b"private key":
        return min(len(data), at + OVERLAP_BYTES)
    found = _NO_VALUE.search(data, at + _BEHIND, at + _LONGEST_VALUE)
    return min(len(data), at + _LONGEST_VALUE) if found is None else found.start()


def _is_end_of(assignments: Sequence[bytes], name: bytes, value: bytes) -> bool:
    """Whether these bytes are the end of one of some assignments, before and behind it bytes of a packed file."""
    ends = {name[cut:] + value[: len(value) - more] for cut in (0, 1) for more in range(min(_OWN_BYTES, len(value)))}
    return any(assignment.endswith(end) for assignment in assignments for end in ends)


def _without(data: bytearray, places: Sequence[tuple[int, int]]) -> bytearray:
    for start, size in places:
        data[start : start + size] = b"x" * size
    return data

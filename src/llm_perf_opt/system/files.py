"""Reads and writes files that another user may have prepared.

Reading: only regular files, so that a pipe or a device never makes us wait or fill the memory, and no more of them than
a limit, also of what a packed one unpacks to. Writing: through a new file and a rename, so that neither half a file is
seen nor a link followed. Errors are OSError, which every reader handles already.
"""

import codecs
import errno
import json
import math
import os
import re
import stat
import zlib
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    import gzip
    import lzma

# Real captures pack to about a fiftieth at best; a large one that unpacks to a hundred times its size is a trap.
LARGEST_RATIO = 100
UNPACKED_ALWAYS_BYTES = 256 << 20
CHUNK_BYTES = 1 << 20
# Nothing that is measured or counted is further from one; beyond, sums and quotients stop being numbers.
LARGEST_NUMBER, SMALLEST_NUMBER = 10**30, 1e-100
# A number of this many digits, or with an exponent of two digits or more, may be one. It is searched with every digit
# as a zero, which is ten times as fast as a pattern with digits.
_SHAPE = bytes.maketrans(b"123456789E", b"000000000e")
_MANY_DIGITS, _EXPONENT = b"0" * 31, re.compile(rb"0e[+-]?00")
# A digest may hold what looks like an exponent, but not behind what is before a number.
_NUMBER = re.compile(rb"[\s:,\[](-?[0-9.]{1,40}[eE][+-]?[0-9]+)")
_LONGEST_NUMBER = 48
# A text that is read as a whole: the largest pages of ncu have a tenth of it.
LARGEST_TEXT_BYTES = 2 << 30


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; pipes, devices, sockets and directories are refused, never waited for."""
    # Without O_NONBLOCK the opening of a pipe without a writer would not return.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return open(number, "rb")
    except OSError:
        os.close(number)
        raise


def real_path(path: Path) -> Path:
    """Where a path leads; one that leads in a circle stays as it is, and cannot be opened (`resolve` would raise)."""
    return Path(os.path.realpath(path))


def read_limited(path: Path, limit_bytes: int) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    with open_regular(path) as file:
        return _within(file.read(limit_bytes + 1), limit_bytes, path)


def refuse_absurd_numbers(data: bytes) -> bytes:
    """The JSON as it is, or a ValueError where it holds a number no measurement gives, such as 1e300."""
    if not _may_be_absurd(data):
        return data
    to_see = [json.loads(data)]
    while to_see:
        value = to_see.pop()
        if isinstance(value, dict | list):
            to_see += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int | float) and is_absurd(value):
            raise ValueError(f"holds a number that nothing measures ({str(value)[:24]})")
    return data


def _may_be_absurd(data: bytes) -> bool:
    shape = data.translate(_SHAPE)
    if _MANY_DIGITS in shape:
        return True
    around = (data[max(0, at.start() - _LONGEST_NUMBER) : at.end() + 4] for at in _EXPONENT.finditer(shape))
    return any(is_absurd(float(number)) for text in around for number in _NUMBER.findall(text))


def is_absurd(number: float) -> bool:
    """Whether nothing measures or counts so much, or so little."""
    # What is not a number at all, or infinite, its readers take for absent.
    is_finite = isinstance(number, int) or math.isfinite(number)
    return is_finite and number != 0 and not SMALLEST_NUMBER <= abs(number) <= LARGEST_NUMBER


def _within(data: bytes, limit_bytes: int, path: Path) -> bytes:
    if len(data) > limit_bytes:
        raise OSError(errno.EFBIG, f"larger than {limit_bytes >> 20} MiB", str(path))
    return data


def unpacked_limit_bytes(packed_bytes: int) -> int:
    """How much a packed file of this size may unpack to."""
    return max(UNPACKED_ALWAYS_BYTES, LARGEST_RATIO * packed_bytes)


def too_much(path: Path, limit_bytes: int) -> OSError:
    """The error for a file that unpacks to more than it may."""
    text = f"unpacks to more than {limit_bytes >> 20} MiB, more than a capture does; unpack it yourself if it is one"
    return OSError(errno.EFBIG, text, str(path))


def read_unpacked(path: Path) -> bytes:
    """A `.gz` or `.xz` file unpacked, any other as it is."""
    with open_regular(path) as file:
        limit = unpacked_limit_bytes(os.fstat(file.fileno()).st_size)
        if path.suffix == ".gz":
            import gzip

            with gzip.GzipFile(fileobj=file) as unpacked:
                data = _first_bytes(unpacked, limit)
        elif path.suffix == ".xz":
            import lzma

            with lzma.LZMAFile(file) as unpacked_xz:
                data = _first_bytes(unpacked_xz, limit)
        else:
            return _within(file.read(LARGEST_TEXT_BYTES + 1), LARGEST_TEXT_BYTES, path)
    if len(data) > limit:
        raise too_much(path, limit)
    return data


def decode_text(data: bytes) -> str:
    """Text in UTF-8, or in UTF-16 where it begins with that mark: PowerShell writes what a program prints so."""
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return data.decode("utf-16" if is_utf16 else "utf-8-sig", "replace")


def _first_bytes(file: "gzip.GzipFile | lzma.LZMAFile", limit: int) -> bytes:
    """One byte more than the limit at most."""
    from lzma import LZMAError

    out = bytearray()
    try:
        while len(out) <= limit and (chunk := file.read(min(CHUNK_BYTES, limit + 1 - len(out)))):
            out += chunk
    except (zlib.error, LZMAError, EOFError) as error:
        raise OSError(errno.EINVAL, f"damaged or truncated ({error})") from error
    return bytes(out)


# Where the system keeps the streams of a process.
STREAMS = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file so that it is there as a whole or as it was. A link in its place is replaced, not followed.

    A device or a pipe (`--csv /dev/stdout`) is written to: as root we could put a file in its place. A pipe no process
    reads was left in a run, where writing would wait forever, and is replaced like a link.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if _is_stream(path) and (opened := _opened_stream(path)) is not None:
        with open(opened, "wb") as stream:
            stream.write(data)
        return path
    # On a shared file system another machine's writer may have the same number.
    scratch = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    number = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(number, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        # Of an open file the system does not say which it was.
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def write_page(path: Path, text: str) -> Path:
    """Write what people read, as a whole; names of others in it cannot steer a terminal or turn the text around."""
    from llm_perf_opt.system.terminal import printable

    return write_whole(path, printable(text).encode("utf-8", "backslashreplace"))


def move_whole(source: Path, target: Path) -> Path:
    """Move a file, also to another disk, so that it is there as a whole or not at all."""
    import shutil

    try:
        return Path(shutil.move(source, target))
    except OSError as error:
        target.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(target)) from error


def is_full_disk(error: BaseException) -> TypeGuard[OSError]:
    """Whether there is no room, or none for this user."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def in_words(error: OSError) -> str:
    """What the system said, and of which file."""
    return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"


def _is_stream(path: Path) -> bool:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return False
    # Links of the system's own are followed, such as /dev/stdout; those left in a run are not.
    if stat.S_ISLNK(mode) and path.absolute().parent in STREAMS:
        return True
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def _opened_stream(path: Path) -> int | None:
    try:
        number = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return None
        raise
    os.set_blocking(number, True)
    return number


def odd_entries(root: Path) -> Iterable[str]:
    """What our own directory making does not hold, each in words: links that lead out of it, pipes, devices."""
    top = real_path(root)
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = Path(folder, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode) and not real_path(path).is_relative_to(top):
                yield f"{path.relative_to(top)}: a link that leads out of it"
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                yield f"{path.relative_to(top)}: neither a file nor a directory"

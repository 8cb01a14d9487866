"""Takes secrets out of what is written: by the name of a variable or flag, by value, and by the shape of a value.

What runs gets the real values; only files, messages and recorded commands pass through here. Known values are those of
the environment we were started with that are secrets by name, by shape or because no word looks like them. Shapes are
looked for in words of ours and in logs, known values in every file of a run. In place of a secret stands `REDACTED`.
"""

import base64
import bz2
import gzip
import html
import io
import json
import lzma
import math
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, quote_plus

REDACTED = "(redacted)"
SHORTEST_SECRET = 5
# A shorter value may be a word of anybody's text, and would be taken out of it everywhere.
SHORTEST_KNOWN = 6
# Fewer bytes are too few letters of base64 to be told from any others.
SHORTEST_CODED = 9
BLOCK_BYTES = 1 << 20
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

# nsys and ncu mark the processes they watch with session ids and tokens of their own, which are no secrets.
_OF_THE_TOOLS = r"NSYS_|NV_TPS_|NV_NSIGHT_"
_WORDS = (
    r"TOKEN(?!IZ)",  # tokenizers have none
    r"(?<!BY)PASS(?!ES|IVE|THROUGH|_PLUGIN)",  # passes of a compiler have none
    r"AUTH(?!OR(?!I[SZ]))",  # an author is none, an authorization is
    r"_PWD$",
    r"_PAT$",
    *("SECRET", "CREDENTIAL", "KEY", "JWT", "COOKIE", "SESSION_ID"),
)
SECRET_NAME = re.compile(rf"^(?!{_OF_THE_TOOLS}).*({'|'.join(_WORDS)})", re.IGNORECASE)
PLACE_NAME = re.compile(r"(SOCK|SOCKET|FILE|PATH|DIR|HOME|AUTHORITY)$", re.IGNORECASE)
# Long and random, and meant to be read: commits, digests, devices.
_PUBLIC_NAME = re.compile(r"SHA\d*$|COMMIT|REVISION|DIGEST|HASH|VISIBLE_DEVICES|UUID|INVOCATION_ID|BUILD_ID|HOSTNAME")
_PREFIXES = (
    r"hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|AKIA|ASIA|eyJ|nvapi-|AIza|npm_|pypi-|[sr]k_live_|whsec_"
)
_STARTS_LIKE_A_TOKEN = re.compile(rf"^(?:{_PREFIXES})[A-Za-z0-9_.-]{{8}}")
# The names of flags and settings that hold a secret; `max_tokens` and `eos_token` do not.
_SETTING = (
    r"(?:[A-Za-z0-9]{1,30}[_.-]){0,6}?(?:api[_-]?key|apikey|(?:access|account|private|secret|signing|encryption)[_-]?key"
    r"|(?:api|access|auth|hf|bearer|refresh|session|security|id|github|gitlab|hub|web)[_-]?token|(?<![A-Za-z0-9_])(?<![A-Za-z0-9]-)token"
    r"|secret|passw(?:or)?d|passphrase|pwd|credentials?|authorization|cookie|dsn|webhook(?:[_-]?url)?)"
)
_FLAG = re.compile(rf"--?{_SETTING}", re.IGNORECASE)
_SETTING_NAME = re.compile(_SETTING, re.IGNORECASE)
_NUMBER = re.compile(r"[\d.,_]{1,9}|true|false|null|none|auto|bearer|basic", re.IGNORECASE)
_VALUE = r"[^\s\"'`,;&)\]}\\]{6,4096}"

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.{0,16000}?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_TOKEN = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PREFIXES}|SG\.|ya29\.|dop_v1_)[A-Za-z0-9_.-]{{12,4096}}")
_URL_USER = re.compile(
    r"(?<![a-zA-Z])([a-zA-Z][a-zA-Z0-9+.-]{1,20}://)([^/\s:@'\"]{0,256}:[^/\s'\"]{1,512}|[^/\s:@'\"]{16,512})@"
)
_WEBHOOK = re.compile(
    r"(https?://(?:hooks\.slack\.com/services|(?:\w+\.)?discord(?:app)?\.com/api/webhooks|[\w.-]{1,80}\.webhook\.office\.com"
    r"|outlook\.office\.com/webhook)/)[^\s'\"]{1,2048}"
)
_QUERY = re.compile(
    r"([?&;](?:sig|signature|x-amz-signature|key|code|token|[a-z_-]{0,20}(?:token|secret|password|apikey|api_key))=)"
    r"[^&;\s'\"]{6,4096}",
    re.IGNORECASE,
)
_AUTH = re.compile(r"(\b(?i:bearer|basic)\s+)(?=[A-Za-z._~+/=-]{0,200}[0-9A-Z])[A-Za-z0-9._~+/=-]{12,4096}")
_ASSIGNED = re.compile(rf"((?<![A-Za-z0-9_]){_SETTING}[\"']?\s{{0,4}}[=:]\s{{0,4}}[\"']?)({_VALUE})", re.IGNORECASE)
_GIVEN = re.compile(
    rf"(--?{_SETTING}[\"'\\]{{0,3}}(?:\s{{0,4}},\s{{0,4}}|\s{{1,4}})[\"'\\]{{0,3}})({_VALUE})", re.IGNORECASE
)
_VARIABLE = re.compile(r"(?<![A-Za-z0-9_])([A-Z][A-Z0-9_]{2,80})=([\"']?)([^\s\"';]{5,4096})")
# A text without any of these holds no secret by its shape; looking for them is much faster than the patterns are.
_MARKS = (
    *("hf_", "sk-", "gh", "glpat-", "xox", "akia", "asia", "eyj", "nvapi-", "aiza", "npm_", "pypi-", "k_live_"),
    *("whsec_", "sg.", "ya29.", "dop_v1_", "://", "bearer", "basic", "private key", "key", "token", "secret", "pass"),
    *("pwd", "credential", "auth", "cookie", "dsn", "webhook", "_pat=", "jwt", "session_id"),
)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable looks like a secret by its name or by its value."""
    if len(value) < SHORTEST_SECRET:
        return False
    # SSH_AUTH_SOCK, XAUTHORITY and the like name a place, and a place is no secret.
    is_place = value.startswith("/") and PLACE_NAME.search(name)
    if SECRET_NAME.search(name) and not is_place:
        return True
    return bool(_STARTS_LIKE_A_TOKEN.search(value)) or without_shapes(value) != value or _is_random(name, value)


def without_shapes(text: str) -> str:
    """A text without what looks like a secret by itself or by the word before it."""
    lower = text.lower()
    if not any(mark in lower for mark in _MARKS):
        return text
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _URL_USER.sub(rf"\1{REDACTED}@", text)
    for pattern in (_WEBHOOK, _QUERY, _AUTH):
        text = pattern.sub(rf"\1{REDACTED}", text)
    text = _TOKEN.sub(REDACTED, text)
    for pattern in (_ASSIGNED, _GIVEN):
        text = pattern.sub(lambda m: m[0] if _is_plain(m[2]) else f"{m[1]}{REDACTED}", text)
    return _VARIABLE.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    name, sign, value = found.groups()
    is_place = value.startswith("/") and PLACE_NAME.search(name)
    if not SECRET_NAME.search(name) or is_place or _is_plain(value):
        return found[0]
    return f"{name}={sign}{REDACTED}"


def _is_plain(value: str) -> bool:
    return value.startswith(REDACTED[:-1]) or bool(_NUMBER.fullmatch(value))


def _is_random(name: str, value: str) -> bool:
    """Whether a value is so mixed that it was made by a generator: long runs, or short ones full of signs."""
    if _PUBLIC_NAME.search(name):
        return False
    if any(_is_mixed(run) for run in re.findall(r"[A-Za-z0-9+=_-]{20,4096}", value)):
        return True
    signs = len(re.findall(r"[!#$%^&*?~]", value))
    kinds = sum(bool(re.search(kind, value)) for kind in (r"[a-z]", r"[A-Z]", r"\d"))
    return len(value) >= 10 and signs >= 2 and kinds >= 2 and not re.search(r"[\s/:;\\]", value)


def _is_mixed(run: str) -> bool:
    """Letters and digits in turn, as no name has them."""
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in run if c.isalnum()]
    turns = sum(before != after for before, after in pairwise(kinds))
    counts = Counter(run)
    entropy = -sum(n / len(run) * math.log2(n / len(run)) for n in counts.values())
    return "d" in kinds and len(set(kinds)) > 1 and turns >= len(run) / 6 and entropy >= 3.0


@dataclass(frozen=True, kw_only=True)
class Redactor:
    """Knows the secrets of one run. `values` are taken out wherever they stand, longest first."""

    values: tuple[str, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str], more: Sequence[str] = ()) -> "Redactor":
        """One that knows the secrets of an environment, and `more` values that are to be hidden."""
        whole = [value for name, value in environ.items() if is_secret(name, value) and not is_word(name, value)]
        known = {piece for value in (*whole, *more) for piece in _pieces(value) if _is_worth_hiding(piece)}
        forms = {form for piece in known for form in _forms(piece)}
        return cls(values=tuple(sorted(forms, key=lambda value: (-len(value), value))))

    @cached_property
    def _known(self) -> re.Pattern[str] | None:
        return re.compile("|".join(map(re.escape, self.values))) if self.values else None

    def text(self, text: str) -> str:
        """A text without known values and without what looks like a secret."""
        return without_shapes(self.without_known(text))

    def without_known(self, text: str) -> str:
        return text if self._known is None else self._known.sub(REDACTED, text)

    def words(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command without secrets: `--api-key X` and `--api-key=X` lose their X."""
        out: list[str] = []
        is_value = False
        for word in argv:
            hide = is_value and not _is_plain(word) and not word.startswith("-")
            out.append(REDACTED if hide else self.text(word))
            is_value = bool(_FLAG.fullmatch(word))
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
        """A key without known values: numbers may stand under the name of a range, which is anybody's text."""
        return self.without_known(key) if isinstance(key, str) else key

    def _setting(self, name: str, value: Any) -> Any:
        if not isinstance(value, str) or not value or _is_plain(value):
            return self.tree(value)
        is_named = _SETTING_NAME.fullmatch(name) or (name.isupper() and is_secret(name, value))
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
        """Overwrite known values in every file below a folder with as many `x`, so that no format breaks.

        Of a packed file (gzip, xz, bzip2) also in what it unpacks to.
        """
        for path in sorted(folder.rglob("*")) if self.values else ():
            if path.is_file() and not path.is_symlink():
                opener = _opener_of(path)
                if opener is None:
                    self._in_place(path)
                else:
                    self._in_packed(path, opener)

    def _in_place(self, path: Path) -> None:
        if self.values:
            _overwrite(path, self._coded)

    @cached_property
    def _coded(self) -> tuple[bytes, ...]:
        return tuple(value.encode("utf-8", "surrogateescape") for value in self.values)

    def _in_packed(self, path: Path, opener: Callable[..., Any]) -> None:
        with opener(path, "rb") as source:
            readable = _Readable(source)
            is_clean = not any(found for _, found in _blocks_with(readable, self._coded))
        if is_clean:
            if readable.is_damaged:
                # What cannot be unpacked may hold one as it is; in a whole file that would break its check sum.
                self._in_place(path)
            return
        scratch = path.with_name(f".{path.name}.clean")
        try:
            with opener(path, "rb") as source, opener(scratch, "wb") as target:
                readable = _Readable(source)
                for block, found in _blocks_with(readable, self._coded):
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
    """The values a command's secret flags are given, as `--api-key X` or `--api-key=X`."""
    pairs = [*pairwise(argv), *((flag, value) for flag, sign, value in (word.partition("=") for word in argv) if sign)]
    return [value for flag, value in pairs if _FLAG.fullmatch(flag) and not _is_plain(value) and value[:1] != "-"]


def _pieces(value: str) -> Iterator[str]:
    """A value as a whole, and what of it somebody may print alone: its lines, the password of a URL, a bare token."""
    yield value
    lines = value.splitlines()
    yield from (line for line in lines if len(lines) > 1 and len(line) >= 20 and not line.startswith("-----"))
    found = re.search(r"://[^/\s:@]*:([^/\s]+)@", value)
    if found:
        yield found[1]
    words = value.split()
    yield from (word for word in words if len(words) > 1 and len(word) >= 16)
    # Of a JSON file with keys, or a connection string: what somebody may take out of it. JSON writes a line's end so.
    runs = re.findall(r"[A-Za-z0-9+/=_-]{20,4096}", value.replace("\\n", "\n"))
    yield from (run for run in runs if run != value and _is_mixed(run))


def _forms(piece: str) -> Iterator[str]:
    """A piece as programs write it: as it is, escaped for JSON, Python, a page or an address, and in base64."""
    yield piece
    yield json.dumps(piece)[1:-1]
    yield json.dumps(piece, ensure_ascii=False)[1:-1]
    yield repr(piece)[1:-1]
    yield html.escape(piece)
    yield quote(piece, safe="")
    yield quote_plus(piece)
    data = piece.encode("utf-8", "surrogateescape")
    if len(data) >= SHORTEST_CODED:
        # Without its last letters, which depend on what follows.
        yield base64.b64encode(data[: len(data) // 3 * 3]).decode("ascii")


def is_word(name: str, value: str) -> bool:
    """Whether a value is a word that other texts may hold for their own reasons: `KEYMAP=default`."""
    if re.search(r"PASSW|PASSPHRASE|SECRET|TOKEN$", name, re.IGNORECASE):
        return value.lower() in ("default", "disabled", "enabled", "required", "optional", "public", "manual", "always")
    return bool(re.fullmatch(r"[a-z]{1,8}", value))


def _is_worth_hiding(value: str) -> bool:
    return len(value) >= SHORTEST_KNOWN and not _NUMBER.fullmatch(value) and value.strip() != ""


def _blocks(source: Any) -> Iterator[bytes]:
    """A file in pieces that end with a line where possible, and never inside of a private key."""
    rest = b""
    while block := source.read(BLOCK_BYTES):
        data = rest + block
        cut = data.rfind(b"\n") + 1 or data.rfind(b" ") + 1 or max(0, len(data) - OVERLAP_BYTES)
        opened = data.rfind(b"-----BEGIN ", max(0, cut - OVERLAP_BYTES), cut)
        if opened >= 0 and data.find(b"-----END ", opened, cut) < 0:
            cut = opened
        if cut:
            yield data[:cut]
        rest = data[cut:]
    if rest:
        yield rest


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


def _overwrite(path: Path, values: Sequence[bytes]) -> None:
    at, places = 0, []
    with path.open("rb") as source:
        for block, found in _blocks_with(source, values):
            places += [(at + start, size) for start, size in found]
            at += len(block)
    if places:
        with path.open("r+b") as target:
            for place, size in places:
                target.seek(place)
                target.write(b"x" * size)


def _blocks_with(
    source: BinaryIO | _Readable, values: Sequence[bytes]
) -> Iterator[tuple[bytearray, list[tuple[int, int]]]]:
    """A file in pieces, and where in each values or parts of them stand, and how long those are."""
    longest = max(map(len, values))
    data, over = bytearray(), list[tuple[int, int]]()
    while block := source.read(BLOCK_BYTES):
        data += block
        # What may go on in the next block is looked at with it.
        cut = max(0, len(data) - longest + 1)
        found = [*over, *_places(data, values)]
        yield data[:cut], [(start, min(size, cut - start)) for start, size in found if start < cut]
        over = [(max(0, start - cut), start + size - max(cut, start)) for start, size in found if start + size > cut]
        del data[:cut]
    yield data, over


def _places(data: bytearray, values: Sequence[bytes]) -> list[tuple[int, int]]:
    places = []
    for value in values:
        start = data.find(value)
        while start >= 0:
            places.append((start, len(value)))
            start = data.find(value, start + len(value))
    return places


def _without(data: bytearray, places: Sequence[tuple[int, int]]) -> bytearray:
    for start, size in places:
        data[start : start + size] = b"x" * size
    return data

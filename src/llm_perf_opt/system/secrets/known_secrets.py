"""The secrets a run can know: values of its environment and of the files programs keep secrets in, in every form.

A value may be printed as a whole or in part (one item of a list, the password of a URL, a header's value), and written
as programs write it: stripped, without its quotes, decoded, escaped, in base64. Nothing of this leaves the process but
to the supervisor, which cleans a log when we are killed.
"""

import base64
import html
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote, unquote_plus

from llm_perf_opt.system.secrets.secret_shapes import (
    SECRET_NAME,
    is_mixed,
    is_secret,
    login_in,
    names_a_setting,
    shape_spans,
)

# A shorter value may be a common word, and would be removed everywhere.
SHORTEST_KNOWN = 6
# Fewer bytes are too few letters of base64 to be distinguished from any others.
SHORTEST_CODED = 9
LARGEST_FILE_BYTES = 1 << 16
# Where programs look for tokens and passwords, below the home directory.
_TOKEN_FILES = (
    ".cache/huggingface/token",
    ".huggingface/token",
    ".openai_api_key",
    ".wandb_api_key",
    ".vault-token",
    ".pgpass",
    ".my.cnf",
    ".netrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".aws/credentials",
    ".config/gh/hosts.yml",
    ".docker/config.json",
    ".env",
)
# Names that leave no doubt: their value is hidden even where it is a short word or a number.
_CERTAIN = re.compile(
    r"PASSW|PASSPHRASE|SECRET|TOKEN$|(?<!BY)PASS$|_PWD$|^PIN$|_PIN$|_AUTH$|CREDENTIAL|(?:API|ACCESS|PRIVATE)_?KEYS?$",
    re.IGNORECASE,
)
# A value that was given as a secret is one.
_GIVEN = "PASSWORD"
# What such a variable holds where it holds no secret. The words of our own reports would be lost from all of them.
_COMMON = frozenset(
    (
        *("default", "disabled", "enabled", "required", "optional", "public", "manual", "always", "password", "secret"),
        *("passwd", "changeme", "bearer", "digest", "kerberos", "anonymous", "nobody", "system", "windows", "trust"),
        *("prefill", "decode", "encode", "kernel", "kernels", "profile", "profiler", "python", "report", "config"),
        *("server", "client", "tokens", "request", "requests", "memory", "device", "stream", "launch", "static"),
        *("workload", "baseline", "candidate", "metrics", "seconds", "samples", "version", "status", "stage", "stages"),
    )
)
_PLAIN = re.compile(r"[\d.,_]{1,9}|true|false|null|none|auto|bearer|basic", re.IGNORECASE)
# `name=value` or `user:value` as an item of a list; the name is none.
_ITEM = re.compile(r"([A-Za-z][\w.-]{0,80})\s?[=:]\s?(\S.*)", re.DOTALL)


def known_values(environ: Mapping[str, str], more: Sequence[str] = ()) -> tuple[str, ...]:
    """Every form of every secret of an environment, of files below its HOME and PWD, and `more`; longest first."""
    named = [pair for pair in (*environ.items(), *_from_files(environ)) if is_secret(*pair)]
    return values_of([*named, *((_GIVEN, value) for value in more)])


def values_of(secrets: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Every form of these secrets, each under its name; longest first."""
    pieces = {piece for name, value in secrets for piece in _pieces(name, value)}
    forms = {form for piece in pieces for form in _forms(piece)}
    return tuple(sorted(forms, key=lambda value: (-len(value), value)))


def is_word(name: str, value: str) -> bool:
    """Whether a value is a word that other texts may hold for their own reasons: `KEYMAP=default`."""
    if value.lower() in _COMMON:
        return True
    return not _CERTAIN.search(name) and bool(re.fullmatch(r"[a-z]{1,8}", value))


def _is_worth_hiding(name: str, value: str) -> bool:
    if len(value.strip()) < SHORTEST_KNOWN or is_word(name, value):
        return False
    is_number = _PLAIN.fullmatch(value) is not None
    return not is_number or (value.isdigit() and bool(_CERTAIN.search(name)))


def _pieces(name: str, value: str) -> Iterator[str]:
    """A value as a whole, and the part of it that may be printed alone."""
    for piece in (value, *_parts(name, value)):
        for bare in (piece, piece.strip(), piece.strip().strip("\"'"), unquote(piece), unquote_plus(piece)):
            if _is_worth_hiding(name, bare):
                yield bare


def _parts(name: str, value: str) -> Iterator[str]:
    """Lines, bare tokens, the password of a URL, the items of a list and their values, what JSON has under a name."""
    lines = value.splitlines()
    yield from (line for line in lines if len(lines) > 1 and len(line) >= 20 and not line.startswith("-----"))
    url = re.search(r"://[^/\s:@]*:([^/\s]+)@", value)
    if url:
        yield url[1]
    # `Basic` of a header, and the files of Docker and npm.
    logins = (login_in(run) for run in re.findall(r"[A-Za-z0-9+/]{8,2048}={0,2}", value))
    yield from (login[1] for login in logins if login)
    yield from (value[start:end] for start, end in shape_spans(value))
    words = value.split()
    yield from (word for word in words if len(words) > 1 and len(word) >= 16)
    if len(words) == 2 and words[0].lower() in ("bearer", "basic", "token", "apikey"):
        yield words[1]
    if "://" not in value and "-----BEGIN" not in value:
        yield from _items(name, value)
    # Of a JSON file with keys, or a connection string: the parts that may be used alone. JSON writes a line's end so.
    runs = re.findall(r"[A-Za-z0-9+/=_-]{20,4096}", value.replace("\\n", "\n"))
    yield from (run for run in runs if run != value and is_mixed(run))


def _items(name: str, value: str) -> Iterator[str]:
    if value.lstrip()[:1] in ("{", "["):
        try:
            yield from _leaves(name, json.loads(value))
        except (ValueError, RecursionError):
            return
        return
    items = [item.strip() for item in re.split(r"[,;\n]", value) if item.strip()]
    for item in items:
        pair = _ITEM.fullmatch(item)
        if pair is None:
            # One word among several may be common: it must look like something made.
            if len(items) > 1:
                yield item
            continue
        yield pair[2]
        if is_mixed(pair[1]):
            yield pair[1]


def _leaves(name: str, value: Any) -> Iterator[str]:
    """The strings of a document that are secrets by their name or by themselves; those of a bare list are."""
    if isinstance(value, str):
        if names_a_setting(name) or SECRET_NAME.search(name) or is_secret("", value):
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(str(key), item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(name, item)


def _forms(piece: str) -> Iterator[str]:
    """A piece as programs write it: as it is, escaped for JSON, Python, a page or an address, and in base64."""
    yield piece
    yield json.dumps(piece)[1:-1]
    yield json.dumps(piece, ensure_ascii=False)[1:-1]
    yield repr(piece)[1:-1]
    yield html.escape(piece)
    yield quote(piece, safe="")
    # What most libraries leave as it is in a path.
    yield quote(piece)
    yield quote_plus(piece)
    data = piece.encode("utf-8", "surrogateescape")
    if len(data) < SHORTEST_CODED:
        return
    for before in range(3):
        # As it is encoded behind this many other bytes, without the letters that depend on what is before and behind.
        inner = data[-before % 3 :]
        coded = base64.b64encode(inner[: len(inner) // 3 * 3]).decode("ascii")
        yield coded
        yield coded.replace("+", "-").replace("/", "_")


def _from_files(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names and values in the files programs keep secrets in; a bare token has the name TOKEN."""
    home, here = environ.get("HOME"), environ.get("PWD")
    files = [Path(home, name) for name in _TOKEN_FILES] if home else []
    files += [Path(here, ".env")] if here else []
    files += [Path(value, "token") for key, value in environ.items() if key == "HF_HOME"]
    files += [Path(value) for key, value in environ.items() if key in ("NETRC", "HF_TOKEN_PATH", "PGPASSFILE")]
    for path in dict.fromkeys(files):
        yield from _named_in(_text_of(path))


def _text_of(path: Path) -> str:
    """The text of a small regular file; empty where there is none that we may read."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return ""
    with open(number, "rb") as file:
        try:
            return file.read(LARGEST_FILE_BYTES).decode("utf-8", "replace")
        except OSError:
            return ""


def _named_in(text: str) -> Iterator[tuple[str, str]]:
    """`NAME=value`, `name: value`, netrc's `password value`, pgpass's last field, JSON's strings, a token alone."""
    if text.lstrip()[:1] == "{":
        yield from (("TOKEN", item) for item in _items("", text))
        return
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("#", ";", "["))
    ]
    if len(lines) == 1 and re.fullmatch(r"[^\s=:]{8,}", lines[0]):
        yield "TOKEN", lines[0]
    yield from (("PASSWORD", found) for found in re.findall(r"\bpassword\s+(\S+)", text))
    for line in lines:
        pair = re.fullmatch(r"(?:export\s+)?(?://\S+:)?([A-Za-z_][\w.-]*)\s*[=:]\s*(.+)", line)
        if re.fullmatch(r"[^:=\s]+:[\d*]+:[^:=\s]+:[^:=\s]+:\S+", line):
            # host:port:database:user:password
            yield "PASSWORD", line.split(":", 4)[4]
        elif pair:
            yield pair[1], pair[2].strip().strip("\"'")
        else:
            yield from (("PASSWORD", line[start:end].partition(":")[2]) for start, end in shape_spans(line))

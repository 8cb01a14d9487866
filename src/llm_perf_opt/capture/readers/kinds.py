"""Which file is meant, and what it is by its name and first bytes: a capture, or something refused by name."""

import codecs
import re
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

from llm_perf_opt.capture.kernels.names import as_utf8
from llm_perf_opt.capture.readers.foreign import (
    GZIP,
    NCU_REPORT,
    SQLITE,
    is_printed_by_ncu,
    not_a_table,
    printed_by_ncu,
    refuse_content,
    refuse_json,
    refuse_table,
    unknown,
)
from llm_perf_opt.capture.readers.nsys_stats import MAKE_ONE, looks_like_stats
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import ConfigError, ParseError
from llm_perf_opt.system.files import decode_text, open_regular, real_path

NSYS, SUMMARY, TORCH, NCU, LOAD, ROCPD = "nsys", "nsys_summary", "torch", "ncu", "load", "rocpd"
SNAPSHOT = "memory_snapshot"
# How torch_npu writes the time of an event, and torch never does.
_TIME_AS_TEXT = re.compile(r'"ts"\s*:\s*"-?\d')
HEAD_BYTES = 1 << 16
# How SGLang calls the merge of its ranks' traces.
MERGED = "merged-"
# Results of `vllm bench serve` and of aiperf; named here, so that reading a trace loads nothing about servers.
_LOAD_RESULTS = re.compile(r'"request_throughput"\s*:\s*-?[\d.]|"(request_throughput|request_latency)"\s*:\s*\{\s*"')
_BY_ENDING = {".nsys-rep": NSYS, ".qdrep": NSYS, ".sqlite": NSYS, ".ncu-rep": NCU, ".csv.gz": NCU, ".csv.xz": NCU}
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_PACKED = {
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf": "7-Zip",
}
_LFS = b"version https://git-lfs.github.com/spec/"
_WEB_PAGE = re.compile(rb"\s*<(!doctype html|html|head)\b", re.IGNORECASE)
# The protocol of a pickle, and the instructions one of data may begin with.
_PICKLE = re.compile(rb"\x80[\x02-\x05][\x95c}\](]")
# The header of a page of ncu.
_NCU_PAGE = re.compile(r'^"?ID"?,.*Kernel Name', re.MULTILINE)


def capture_files(path: Path) -> tuple[Path, ...]:
    """The file itself; of a directory the kernel summary of an old run, or all captures in it: the ranks of a job."""
    if not path.is_dir():
        return (path,)
    from llm_perf_opt.capture.readers.nsys_summary import find_kernel_summary

    if (path / MANIFEST_FILE).exists():
        raise ParseError(
            f"{path}: a run that has its reports (report.md); to analyse a capture of it, give the file, such as "
            "nsys/run.sqlite"
        )
    summary = find_kernel_summary(path)
    if summary is not None:
        return (summary,)
    found, left_out = _timelines_in(path)
    if found and left_out:
        print(f"left out of {path}, no trace of one process: {', '.join(left_out)}", file=sys.stderr)
    if not found:
        raise ParseError(
            f"{path}: a directory without a kernel summary of nsys, allowed: capture files, or a run of an older "
            "version"
        )
    return found


def _timelines_in(folder: Path) -> tuple[tuple[Path, ...], list[str]]:
    """Captures with times of day, of a report and its export the export; and the names of other JSON alongside them."""
    endings = (*(ending for ending, kind in _BY_ENDING.items() if kind == NSYS), ".db", ".json", ".json.gz")
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name.lower().endswith(endings))
    exported = {p.with_suffix("") for p in files if p.suffix == ".sqlite"}
    files = [p for p in files if p.suffix not in (".nsys-rep", ".qdrep") or p.with_suffix("") not in exported]
    others = {p for p in files if p.name.lower().endswith((".json", ".json.gz")) and not _may_be_trace(p)}
    # A merge is alongside what it was made from.
    others |= {p for p in files if p.name.startswith(MERGED)} if len(files) > 1 else set()
    return tuple(p for p in files if p not in others), sorted(p.name for p in others)


def _may_be_trace(path: Path) -> bool:
    """Whether a file of JSON begins as traces do: others lie alongside them, such as the settings of a server."""
    text = decode_text(_unpacked(_head(path)))
    return '"traceEvents"' in text or '"ph"' in text or looks_like_stats(text) or bool(_LOAD_RESULTS.search(text))


def kind_of(path: Path) -> str:
    """The kind, or a ParseError that says what the file is and what is accepted."""
    if as_utf8(str(path)) != str(path):
        # No manifest can hold such a name.
        raise ParseError(f"{as_utf8(str(path))}: the name is not UTF-8; rename the file and give that")
    name = path.name.lower()
    if name.endswith(".qdstrm"):
        raise ParseError(
            f"{path}: a raw capture that nsys has not imported; run `QdstrmImporter -i {path.name}` of Nsight Systems' "
            "host part and give the report it writes"
        )
    head = _head(path)
    _refuse_placeholder(path, head)
    for ending, kind in _BY_ENDING.items():
        if name.endswith(ending):
            _refuse_packed(path, head, but="xz" if ending == ".csv.xz" else "")
            return _database_kind(path) if kind == NSYS and head.startswith(SQLITE) else kind
    _refuse_packed(path, head)
    if head.startswith(SQLITE):
        return _database_kind(path)
    if head.startswith(NCU_REPORT):
        return NCU
    content = _unpacked(head)
    if name.endswith((".pickle", ".pkl")) or _PICKLE.match(content):
        return SNAPSHOT
    refuse_content(path, content, packed=head.startswith(GZIP))
    text = decode_text(content)
    if name.endswith((".csv", ".tsv")):
        return _table_kind(path, text, is_whole=len(head) < HEAD_BYTES)
    if name.endswith((".json", ".json.gz")) or text.lstrip()[:1] in ("{", "["):
        return _json_kind(path, text, in_utf16=content.startswith(_UTF16))
    if looks_like_stats(text):
        return SUMMARY
    _refuse_printed_stats(path, text)
    raise printed_by_ncu(path, text) if is_printed_by_ncu(text) else unknown(path, text)


def require_one_story(kinds: Sequence[str]) -> None:
    """Files that count the same kernels twice are refused."""
    if LOAD in kinds and set(kinds) != {LOAD}:
        raise ConfigError("analyze: load generator results and captures cannot be combined; analyze them separately")
    if SNAPSHOT in kinds and set(kinds) != {SNAPSHOT}:
        raise ConfigError("analyze: memory snapshots contain no kernel times; analyze them separately")
    timelines = {kind for kind in kinds if kind != NCU}
    if len(timelines) > 1:
        words = {
            NSYS: "nsys captures",
            ROCPD: "rocpd databases",
            TORCH: "torch traces",
            SUMMARY: "nsys kernel summaries",
        }
        named = " and ".join(sorted(words[kind] for kind in timelines))
        raise ConfigError(f"analyze: {named} together would count kernels twice; analyze them separately")
    if kinds.count(SUMMARY) > 1:
        raise ConfigError("analyze: kernel summaries cannot be added up (medians are lost); analyze them separately")


def is_ascend(path: Path) -> bool:
    """Whether a trace has its times as text, as torch_npu writes them."""
    return _TIME_AS_TEXT.search(decode_text(_unpacked(_head(path)))) is not None


def _database_kind(path: Path) -> str:
    """Whose database it is; one that cannot be read is left to the reader, which says why."""
    # Here, for a trace of torch needs no SQLite.
    import sqlite3
    from contextlib import closing

    try:
        with closing(sqlite3.connect(f"{real_path(path).as_uri()}?mode=ro", uri=True, timeout=2.0)) as connection:
            sql = "SELECT 1 FROM sqlite_master WHERE name GLOB 'rocpd_kernel_dispatch*' LIMIT 1"
            return NSYS if connection.execute(sql).fetchone() is None else ROCPD
    except (sqlite3.Error, UnicodeDecodeError):
        return NSYS


def _refuse_printed_stats(path: Path, text: str) -> None:
    if re.search(r"Time ?\(%\)\s+Total Time", text):
        raise ParseError(f"{path}: a report of nsys stats printed for reading; {MAKE_ONE}")


def _table_kind(path: Path, text: str, *, is_whole: bool) -> str:
    """A report of `nsys stats` or a page of ncu; tables of other profilers are called what they are."""
    # A page of ncu has rows called as columns of nsys are.
    if _NCU_PAGE.search(text):
        return NCU
    if looks_like_stats(text):
        return SUMMARY
    refuse_table(path, text)
    _refuse_printed_stats(path, text)
    # What a program printed may be before the page.
    if is_whole:
        raise not_a_table(path, text)
    return NCU


def _json_kind(path: Path, text: str, *, in_utf16: bool) -> str:
    """A trace, a report of `nsys stats` or a load generator's results; other tools' JSON is called what it is."""
    if looks_like_stats(text):
        return SUMMARY
    if in_utf16:
        raise ParseError(f"{path}: text in UTF-16, as PowerShell writes it; save it in UTF-8 and give that")
    if text.lstrip()[:1] not in ("{", "["):
        raise unknown(path, text)
    if '"traceEvents"' not in text and _LOAD_RESULTS.search(text):
        return LOAD
    refuse_json(path, text)
    return TORCH


def _unpacked(head: bytes) -> bytes:
    """The beginning of the content, out of gzip where it is packed so."""
    if not head.startswith(GZIP):
        return head
    try:
        return zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
    except zlib.error:
        # The reader of the whole file says what is wrong with it.
        return b"{"


def _head(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(HEAD_BYTES)
    except OSError as error:
        raise ParseError(f"{path}: could not be read ({error.strerror or error})") from error


def _refuse_placeholder(path: Path, head: bytes) -> None:
    """What is where a capture should be: nothing, a pointer to it, or a page about it."""
    if not head:
        raise ParseError(f"{path}: the file is empty; record, export or copy it again")
    if head.startswith(_LFS):
        raise ParseError(
            f"{path}: a pointer of Git LFS, not the file itself; run `git lfs pull` in the repository it came from"
        )
    if _WEB_PAGE.match(head):
        raise ParseError(f"{path}: a web page, not a capture; download the file itself (on GitHub: the raw file)")


def _refuse_packed(path: Path, head: bytes, *, but: str = "") -> None:
    """`head` as it is in the file; gzip is unpacked where what is inside is read so."""
    for magic, what in _PACKED.items():
        if head.startswith(magic) and what != but:
            raise ParseError(f"{path}: packed with {what}; unpack it and give the file inside")
    if head.startswith(GZIP) and path.name.lower().endswith((".nsys-rep", ".qdrep", ".sqlite", ".ncu-rep")):
        raise ParseError(f"{path}: packed with gzip; unpack it and give the file inside")

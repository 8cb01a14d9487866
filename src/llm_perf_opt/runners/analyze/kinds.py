"""Which file is meant, and what it is by its name and first bytes: a capture, or something refused by name."""

import re
import zlib
from pathlib import Path

from llm_perf_opt.analysis.kernels.names import as_utf8
from llm_perf_opt.core.files import open_regular
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import ParseError
from llm_perf_opt.profiling.parsers.nsys_stats import MAKE_ONE, looks_like_stats

NSYS, SUMMARY, TORCH, NCU, LOAD = "nsys", "nsys_summary", "torch", "ncu", "load"
HEAD_BYTES = 1 << 16
# Results of `vllm bench serve` and of aiperf; told here, so that reading a trace loads nothing about servers.
_LOAD_RESULTS = re.compile(r'"request_throughput"\s*:\s*-?[\d.]|"(request_throughput|request_latency)"\s*:\s*\{\s*"')
# Where a tool's own marks stand; further on they may be somebody's range name.
BEGINNING = 4096
GZIP = b"\x1f\x8b"
_BY_ENDING = {".nsys-rep": NSYS, ".qdrep": NSYS, ".sqlite": NSYS, ".ncu-rep": NCU, ".csv.gz": NCU, ".csv.xz": NCU}
_PACKED = {
    b"\xfd7zXZ\x00": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf": "7-Zip",
}
# Other formats nsys exports to, by their first bytes, and by their first words.
_OTHER_EXPORTS = {b"\x89HDF": "HDF5", b"PAR1": "Parquet", b"ARROW1": "Arrow"}
_OTHER_EXPORT_TEXT = re.compile(r'\s*(\{"data":\s*\["|data: ")\[Unknown\]"')
# Tables of other profilers, by the columns only they have.
_FOREIGN_TABLES = (
    (("TotalDurationNs",), "a summary of rocprof"),
    (("Start_Timestamp", "End_Timestamp"), "a trace of rocprof"),
    (("BeginNs", "EndNs"), "a trace of rocprof"),
    (("Type", "Time(%)", "Calls"), "a summary of nvprof"),
)
_LFS = b"version https://git-lfs.github.com/spec/"
_WEB_PAGE = re.compile(rb"\s*<(!doctype html|html|head)\b", re.IGNORECASE)
# JSON of other tools: what stands at its beginning, what it is, and what to do.
_FOREIGN_JSON = (
    (
        re.compile(r'"highres-ticks"|"/device:(GPU|TPU|CPU):\d+|"/host:CPU"|"XLA (Ops|Modules)"'),
        "a trace of XProf, the profiler of JAX and TensorFlow, which does not say which call launched a kernel; "
        "capture the program with nsys instead",
    ),
    (
        re.compile(r'"pid":\s*"(CPU|CUDA) functions"'),
        "a trace of torch.autograd.profiler, which does not say which call launched a kernel; record with "
        "torch.profiler instead",
    ),
    (re.compile(r"speedscope\.app/file-format-schema"), "a profile for speedscope, with samples and no GPU work"),
    (re.compile(r'"(nodes|samples)"\s*:\s*\[.*"timeDeltas"', re.DOTALL), "a CPU profile of Chrome, with no GPU work"),
    (re.compile(r'"segments"\s*:\s*\[\s*\{\s*"device"'), "a snapshot of torch's memory, with no kernels"),
    (re.compile(r'"nbformat"\s*:'), "a notebook"),
)
_ALLOWED = "allowed: .nsys-rep, .sqlite, .json, .json.gz, .ncu-rep, .csv"


def capture_files(path: Path) -> tuple[Path, ...]:
    """The file itself; of a directory the kernel summary of an old run, or all captures in it: the ranks of a job."""
    if not path.is_dir():
        return (path,)
    from llm_perf_opt.profiling.parsers.nsys_summary import find_kernel_summary

    if (path / MANIFEST_FILE).exists():
        raise ParseError(
            f"{path}: a run that has its reports (report.md); to analyse a capture of it, give the file, such as "
            "nsys/run.sqlite"
        )
    summary = find_kernel_summary(path)
    if summary is not None:
        return (summary,)
    found = _timelines_in(path)
    if not found:
        raise ParseError(
            f"{path}: a directory without a kernel summary of nsys, allowed: capture files, or a run of an older "
            "version"
        )
    return found


def _timelines_in(folder: Path) -> tuple[Path, ...]:
    """Captures with times of day; of a report and its export the export."""
    endings = (*(ending for ending, kind in _BY_ENDING.items() if kind == NSYS), ".json", ".json.gz")
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name.lower().endswith(endings))
    exported = {p.with_suffix("") for p in files if p.suffix == ".sqlite"}
    return tuple(p for p in files if p.suffix not in (".nsys-rep", ".qdrep") or p.with_suffix("") not in exported)


def kind_of(path: Path) -> str:
    """The kind, or a ParseError that says what the file is and what is accepted."""
    if as_utf8(str(path)) != str(path):
        # Neither a manifest nor duckdb can hold such a name.
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
            return kind
    _refuse_packed(path, head)
    if head.startswith(b"SQLite format 3"):
        return NSYS
    text = _text(head)
    _refuse_other_export(path, head, text)
    if name.endswith((".csv", ".tsv")):
        return _table_kind(path, text)
    if name.endswith((".json", ".json.gz")) or text.lstrip()[:1] in ("{", "["):
        return _json_kind(path, text)
    if looks_like_stats(text):
        return SUMMARY
    if re.search(r"Time ?\(%\)\s+Total Time", text):
        raise ParseError(f"{path}: a report of nsys stats printed for reading; {MAKE_ONE}")
    raise ParseError(f"{path}: not a capture this command knows, {_ALLOWED}")


def _refuse_other_export(path: Path, head: bytes, text: str) -> None:
    found = next((what for magic, what in _OTHER_EXPORTS.items() if head.startswith(magic)), None)
    if found is not None or _OTHER_EXPORT_TEXT.match(text):
        raise ParseError(
            f"{path}: {found or 'JSON or text'} export of nsys; export the report with `nsys export --type sqlite` and "
            "give that"
        )


def _table_kind(path: Path, text: str) -> str:
    """A report of `nsys stats` or a page of ncu; tables of other profilers are called what they are."""
    if looks_like_stats(text):
        return SUMMARY
    lines = text.splitlines()
    for columns, what in _FOREIGN_TABLES:
        if any(all(column in re.split(r'[",\t]+', line) for column in columns) for line in lines[:20]):
            raise ParseError(f"{path}: {what}, which is not read; give a trace of torch.profiler, or a report of nsys")
    return NCU


def _json_kind(path: Path, text: str) -> str:
    """A trace, a report of `nsys stats` or a load generator's results; other tools' JSON is called what it is."""
    if looks_like_stats(text):
        return SUMMARY
    if '"traceEvents"' not in text and _LOAD_RESULTS.search(text):
        return LOAD
    if re.match(r"\s*\[\s*[^{\s]", text):
        raise ParseError(f"{path}: a JSON list of values, not of events: no trace")
    for pattern, what in _FOREIGN_JSON:
        if pattern.search(text[:BEGINNING]):
            raise ParseError(f"{path}: {what}")
    return TORCH


def _refuse_placeholder(path: Path, head: bytes) -> None:
    """What stands where a capture should be: a pointer to it, or a page about it."""
    if head.startswith(_LFS):
        raise ParseError(
            f"{path}: a pointer of Git LFS, not the file itself; run `git lfs pull` in the repository it came from"
        )
    if _WEB_PAGE.match(head):
        raise ParseError(f"{path}: a web page, not a capture; download the file itself (on GitHub: the raw file)")


def _refuse_packed(path: Path, head: bytes, *, but: str = "") -> None:
    for magic, what in _PACKED.items():
        if head.startswith(magic) and what != but:
            raise ParseError(f"{path}: packed with {what}; unpack it and give the file inside")
    if head.startswith(GZIP) and path.name.lower().endswith((".nsys-rep", ".qdrep", ".sqlite", ".ncu-rep")):
        raise ParseError(f"{path}: packed with gzip; unpack it and give the file inside")


def _text(head: bytes) -> str:
    """The beginning as text, unpacked where it is gzip; what is no text becomes marks."""
    if head.startswith(GZIP):
        try:
            head = zlib.decompressobj(wbits=31).decompress(head, HEAD_BYTES)
        except zlib.error:
            # The reader of the whole file says what is wrong with it.
            return "{"
    return head.decode("utf-8-sig", "replace")


def _head(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            return file.read(HEAD_BYTES)
    except OSError as error:
        raise ParseError(f"{path}: could not be read ({error.strerror or error})") from error

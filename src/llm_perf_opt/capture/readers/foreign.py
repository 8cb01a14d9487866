"""What is not a capture, called by its own name: files by their first bytes or columns, and what to do instead."""

import re
from pathlib import Path

from llm_perf_opt.capture.readers.nsys_stats import MAKE_ONE
from llm_perf_opt.errors import ParseError

GZIP = b"\x1f\x8b"
SQLITE = b"SQLite format 3"
# An ncu report, regardless of its suffix: before 2020 it was .nsight-cuprof-report.
NCU_REPORT = b"NVR\x00"
# Where a tool writes its own marks; further on they may be the name of a user's range.
BEGINNING = 4096
ALLOWED = "allowed: .nsys-rep, .sqlite, .db of rocprofv3, .json, .json.gz, .ncu-rep, .csv, .pickle"
MAKE_PAGE = "make a page with `ncu --import R.ncu-rep --page raw --csv`"
# A tar archive says so behind the name of its first file.
_TAR, _TAR_AT = b"ustar", 257
# Other formats nsys exports to, by their first bytes, and by their first words.
_OTHER_EXPORTS = {b"\x89HDF": "HDF5", b"PAR1": "Parquet", b"ARROW1": "Arrow"}
_OTHER_EXPORT_TEXT = re.compile(r'\s*(\{"data":\s*\["|data: ")\[Unknown\]"')
_XPROF = "of XProf, the profiler of JAX and TensorFlow, which does not say which call launched a kernel; "
_WITH_NSYS = "capture the program with nsys instead"
# Formats that are not text, by their first bytes or the end of their name.
_BINARY = (
    (re.compile(rb"/device:(GPU|TPU)|/host:CPU|/host:metadata"), (".xplane.pb",), f"a trace {_XPROF}{_WITH_NSYS}"),
    (
        re.compile(rb"(?!)"),
        (".pftrace", ".perfetto-trace", ".perfetto"),
        "a binary trace of Perfetto; give the capture it was made from (an nsys report, a trace of torch.profiler)",
    ),
)
# Tables of other profilers, by the columns only they have.
_NOT_READ = "which is not read; give a trace of torch.profiler, or a report of nsys"
_OF_ROCPROF = (
    "which is not read; give the database rocprofv3 writes (--output-format rocpd), or a trace of torch.profiler"
)
_TABLES = (
    (("TotalDurationNs",), f"a summary of rocprof, {_OF_ROCPROF}"),
    (("Start_Timestamp", "End_Timestamp"), f"a trace of rocprof, {_OF_ROCPROF}"),
    (("BeginNs", "EndNs"), f"a trace of rocprof, {_OF_ROCPROF}"),
    (("Type", "Time(%)", "Calls"), f"a summary of nvprof, {_NOT_READ}"),
    (("Start", "Duration", "Grid X"), f"a trace of nvprof, {_NOT_READ}"),
    (("Metric Name", "Minimum", "Maximum", "Average"), f"a summary of ncu (--print-summary) or nvprof; {MAKE_PAGE}"),
    (("Source", "Sampling Data (All)"), f"the source page of ncu; {MAKE_PAGE}"),
    (("Source", "Warp Stall Sampling (All Samples)"), f"the source page of ncu; {MAKE_PAGE}"),
    (("Address", "Source"), f"the source page of ncu; {MAKE_PAGE}"),
)
_NCU_SAID = re.compile(r"^==(PROF|ERROR|WARNING)== ", re.MULTILINE)
_NCU_ERROR = re.compile(r"^==ERROR== (.*)$", re.MULTILINE)
# JSON of other tools: what is at its beginning, what it is, and what to do.
_JSON = (
    (
        re.compile(r'"highres-ticks"|"/device:(GPU|TPU|CPU):\d+|"/host:CPU"|"XLA (Ops|Modules)"'),
        f"a trace {_XPROF}{_WITH_NSYS}",
    ),
    (
        re.compile(r'"pid":\s*"(CPU|CUDA) functions"'),
        "a trace of torch.autograd.profiler, which does not say which call launched a kernel; record with "
        "torch.profiler instead",
    ),
    (re.compile(r"speedscope\.app/file-format-schema"), "a profile for speedscope, with samples and no GPU work"),
    (re.compile(r'"(nodes|samples)"\s*:\s*\[.*"timeDeltas"', re.DOTALL), "a CPU profile of Chrome, with no GPU work"),
    (
        re.compile(r'"segments"\s*:\s*\[\s*\{\s*"device"'),
        "a snapshot of torch's memory as JSON; give the .pickle it was made from",
    ),
    (re.compile(r'"nbformat"\s*:'), "a notebook"),
    (
        re.compile(r'"averageMs"\s*:.*"percentage"\s*:', re.DOTALL),
        f"layer times of TensorRT (trtexec --exportProfile), without kernels; {_WITH_NSYS}",
    ),
    (
        re.compile(r'/device:(GPU|CPU):\d+ Compute"'),
        f"a timeline of TensorFlow 1, which does not say which call launched a kernel; {_WITH_NSYS}",
    ),
    (
        re.compile(r'"rocprofiler-sdk-tool"'),
        "JSON of rocprofv3, which is not read; give its database (rocprofv3 --output-format rocpd)",
    ),
)


def refuse_content(path: Path, content: bytes, *, packed: bool) -> None:
    """Formats that are not text, by the first bytes of the content; `packed`: they came out of gzip."""
    if content[_TAR_AT:].startswith(_TAR):
        raise ParseError(f"{path}: a tar archive; unpack it and give the files inside")
    if packed and content.startswith((SQLITE, NCU_REPORT)):
        raise ParseError(f"{path}: packed with gzip; unpack it and give the file inside")
    name = path.name.lower()
    is_text = b"\x00" not in content[:BEGINNING] and _is_utf8(content[:BEGINNING])
    for pattern, endings, what in _BINARY:
        if name.endswith(endings) or (not is_text and pattern.search(content[:BEGINNING])):
            raise ParseError(f"{path}: {what}")
    found = next((what for magic, what in _OTHER_EXPORTS.items() if content.startswith(magic)), None)
    if found is not None or _OTHER_EXPORT_TEXT.match(content.decode("utf-8", "replace")):
        raise ParseError(
            f"{path}: {found or 'JSON or text'} export of nsys; export the report with `nsys export --type sqlite` and "
            "give that"
        )


def _is_utf8(data: bytes) -> bool:
    """Whether bytes are text; a character may be cut at their end."""
    try:
        data[:-4].decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def refuse_table(path: Path, text: str) -> None:
    """Tables of other tools, and other pages of ncu."""
    for line in text.splitlines()[:40]:
        cells = [cell.strip().strip('"') for cell in re.split(r"[,\t]", line)]
        for columns, what in _TABLES:
            if all(column in cells for column in columns):
                raise ParseError(f"{path}: {what}")


def not_a_table(path: Path, text: str) -> ParseError:
    """What to say of a table that is neither of nsys nor of ncu."""
    if _NCU_SAID.search(text):
        return printed_by_ncu(path, text)
    first = next((line for line in text.splitlines() if line.strip()), "")
    cells = [cell.strip().strip('"') for cell in re.split(r"[,\t]", first)][:6]
    return ParseError(
        f"{path}: neither a report of nsys stats nor a page of ncu (its columns are {', '.join(map(repr, cells))}); "
        f"{MAKE_ONE}, or {MAKE_PAGE}"
    )


def printed_by_ncu(path: Path, text: str) -> ParseError:
    """What ncu printed while it ran, or a page of it for reading."""
    error = _NCU_ERROR.search(text)
    if error is not None:
        return ParseError(f"{path}: ncu failed and wrote no table ({error[1].strip()[:200]})")
    return ParseError(f"{path}: what ncu printed for reading; {MAKE_PAGE}, or run ncu with --csv --page raw")


def is_printed_by_ncu(text: str) -> bool:
    return _NCU_SAID.search(text) is not None


def refuse_json(path: Path, text: str) -> None:
    """JSON of other tools."""
    if re.match(r"\s*\[\s*[^{\s]", text):
        raise ParseError(f"{path}: a JSON list of values, not of events: no trace")
    for pattern, what in _JSON:
        if pattern.search(text[:BEGINNING]):
            raise ParseError(f"{path}: {what}")


def unknown(path: Path, text: str) -> ParseError:
    """What to say of a file that is none of all these."""
    first = text.strip()[:40]
    begins = f" (it begins with {first!r})" if first.isprintable() and first else ""
    return ParseError(f"{path}: not a supported capture{begins}, {ALLOWED}")

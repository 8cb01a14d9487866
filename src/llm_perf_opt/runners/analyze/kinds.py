"""Which file is meant, and what kind of capture it is, by its name and its first bytes."""

from pathlib import Path

from llm_perf_opt.analysis.kernels.names import as_utf8
from llm_perf_opt.core.names import MANIFEST_FILE
from llm_perf_opt.errors import ParseError

NSYS, SUMMARY, TORCH, NCU = "nsys", "nsys_summary", "torch", "ncu"
_BY_ENDING = {
    ".nsys-rep": NSYS,
    ".qdrep": NSYS,
    ".sqlite": NSYS,
    ".json": TORCH,
    ".json.gz": TORCH,
    ".ncu-rep": NCU,
    ".csv.gz": NCU,
    ".csv.xz": NCU,
}


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
    endings = tuple(ending for ending, kind in _BY_ENDING.items() if kind in (NSYS, TORCH))
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name.lower().endswith(endings))
    exported = {p.with_suffix("") for p in files if p.suffix == ".sqlite"}
    return tuple(p for p in files if p.suffix not in (".nsys-rep", ".qdrep") or p.with_suffix("") not in exported)


def kind_of(path: Path) -> str:
    """The kind, or a ParseError that says what is accepted."""
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
    for ending, kind in _BY_ENDING.items():
        if name.endswith(ending):
            return kind
    if name.endswith(".csv"):
        return SUMMARY if b"Total Time (ns)" in head and b"Instances" in head else NCU
    if head.startswith(b"SQLite format 3"):
        return NSYS
    if head.startswith(b"\x1f\x8b") or head.lstrip()[:1] in (b"{", b"["):
        return TORCH
    raise ParseError(
        f"{path}: not a capture this command knows, allowed: .nsys-rep, .sqlite, .json, .json.gz, .ncu-rep, .csv"
    )


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4096)
    except OSError as error:
        raise ParseError(f"{path}: could not be read ({error.strerror or error})") from error

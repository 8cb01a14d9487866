"""What the run already knows about its kernels before ncu starts: the timeline of nsys, and an earlier ncu result."""

import fnmatch
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from llm_perf_opt.analysis.ncu import headroom_by_name
from llm_perf_opt.analysis.ncu_rows import NcuAnalysis, NsysKernel
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.errors import ParseError
from llm_perf_opt.profiling.parsers.nsys_csv import read_kernel_summary


def timeline_kernels(
    record: StageRecord | None, include: str | Sequence[str] | None
) -> tuple[list[NsysKernel], str | None, bool]:
    """The kernels nsys saw, where they come from, and whether they are those of the wanted ranges only.

    An empty list means that the selection has to do without: nsys was off, failed, or saw no kernel.
    """
    if record is None or record.status != "ok":
        return [], None, False
    found = [(path, *_from_export(path, range_filter(include))) for path in _exports(record)]
    # Of captures of several ranges the one that holds the wanted range, whichever was made first.
    for path, kernels, inside in sorted(found, key=lambda item: not item[2]):
        if kernels:
            return kernels, f"{record.name}/{path.name}", inside
    summary = record.file("kernel_summary")
    if summary is not None and summary.is_file():
        return summary_kernels(summary), f"{record.name}/{summary.name}", False
    return [], None, False


def launch_sequence(record: StageRecord | None, include: str | Sequence[str] | None) -> list[str]:
    """The kernels of the first wanted range in the order of their launches; empty where that is not known."""
    from llm_perf_opt.analysis.range_kernels import first_range_sequence
    from llm_perf_opt.profiling.parsers.nsys_sqlite import read_nsys_sqlite

    wanted = range_filter(include)
    if wanted is None or record is None or record.status != "ok":
        return []
    sequences = (first_range_sequence(read_nsys_sqlite(path), wanted) for path in _exports(record))
    return next((sequence for sequence in sequences if sequence), [])


def _exports(record: StageRecord) -> list[Path]:
    return [f.path for f in record.files if f.role == "nsys_sqlite" and f.path.is_file()]


def range_filter(include: str | Sequence[str] | None) -> Callable[[str], bool] | None:
    """Whether a range is meant by `nvtx.include`; None when there is no include, or it is in ncu's own syntax."""
    patterns = [include] if isinstance(include, str) else list(include or ())
    names = [pattern.strip().rpartition("/")[2] for pattern in patterns]
    if not names or any(not name or set(name) & set("@[]\\,:") for name in names):
        return None
    return lambda text: any(fnmatch.fnmatchcase(text, name) for name in names)


def summary_kernels(path: Path) -> list[NsysKernel]:
    """The kernels of a summary of nsys."""
    rows = read_kernel_summary(path)
    return [NsysKernel(name=row.name, instances=row.instances, total_ns=float(row.total_ns)) for row in rows]


def earlier_headroom(path: Path) -> tuple[dict[str, float], float | None]:
    """What an earlier capture of this run measured: distance to the roof by kernel, and the passes it took."""
    if not path.is_file():
        return {}, None
    try:
        earlier = msgspec.json.decode(path.read_bytes(), type=NcuAnalysis)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"{path}: not a result of this stage ({error}); delete it and run again") from error
    return headroom_by_name(earlier), max((row.passes for row in earlier.kernels if row.passes), default=None)


def _from_export(path: Path, wanted: Callable[[str], bool] | None) -> tuple[list[NsysKernel], bool]:
    from llm_perf_opt.analysis.range_kernels import all_kernels, range_kernels
    from llm_perf_opt.profiling.parsers.nsys_sqlite import read_nsys_sqlite

    timeline = read_nsys_sqlite(path)
    inside = range_kernels(timeline, wanted) if wanted is not None else []
    return (inside, True) if inside else (all_kernels(timeline), False)

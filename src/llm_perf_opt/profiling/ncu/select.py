"""Which kernels ncu should look at, which of their launches, and what that will cost.

What the run already knows about its kernels before ncu starts: the timeline of nsys, and an earlier ncu result.
"""

import fnmatch
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from llm_perf_opt.capture.kernels.match import base_name, normalise, tolerant_regex
from llm_perf_opt.capture.kernels.ncu_analysis import headroom_by_name
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis, NsysKernel
from llm_perf_opt.capture.readers.nsys_stats import read_kernel_summary
from llm_perf_opt.core.names import PREFILL
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.errors import ParseError

NameBase = Literal["function", "demangled", "mangled"]

# Launches of a kernel are taken at these distances: the first is never among them, and a kernel with few launches per
# step is met as well as one with many.
FIRST_LAUNCH = 5
SPREAD = 8
LAST_LAUNCH = 1_000_000
LONG_ENOUGH = 15
# A longer pattern could exceed what one argument or ncu's regex engine takes.
MAX_PATTERN = 40_000
# Measured on an H200 with ncu 2025.3: 18 passes for the set roofline, 24 launches in about 40 s.
SECONDS_PER_PASS = 0.09
PASSES_BY_SET = {"default": 8, "basic": 8, "roofline": 18, "detailed": 30, "full": 40}
PASSES_OTHERWISE = 12
# Weights are filled and numbers drawn before inference starts: never what a user wants explained.
INITIALISATION = (r"distribution_elementwise", r"FillFunctor", r"\bcurand", r"random_from_to", r"_philox_")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The chosen kernels, heaviest first, of all the GPU time they were chosen from."""

    kernels: tuple[NsysKernel, ...]
    total_ns: float
    excluded: tuple[str, ...]
    source: str

    @property
    def covered_ns(self) -> float:
        return sum(k.total_ns for k in self.kernels)

    @property
    def share(self) -> float | None:
        """The part of the GPU time the chosen kernels make up."""
        return self.covered_ns / self.total_ns if self.total_ns else None


@dataclass(frozen=True, kw_only=True)
class NcuPlan:
    """What a capture will do. `launches` is an upper estimate; `seconds` leaves out the program's own start."""

    kernels: int | None
    launches: int
    passes: int
    seconds: float

    def sentence(self) -> str:
        what = "all kernels" if self.kernels is None else f"{self.kernels} kernels"
        return (
            f"plan: {what}, up to {self.launches} launches × {self.passes} passes, "
            f"about {self.seconds:.0f} s beyond the program's own time"
        )


def select_kernels(
    kernels: Sequence[NsysKernel],
    *,
    source: str,
    max_kernels: int,
    coverage: float,
    exclude: Sequence[str],
    headroom: Mapping[str, float] | None = None,
    leave_out_initialisation: bool = True,
) -> Selection:
    """The kernels with most to gain, until they cover `coverage` of the GPU time or `max_kernels` are chosen.

    The gain is the time of a kernel, times its distance to the roofline where an earlier capture measured it.
    """
    patterns = [*exclude, *(INITIALISATION if leave_out_initialisation else ())]
    refused = [k for k in kernels if any(re.search(p, k.name) for p in patterns)]
    names = {k.name for k in refused}
    rest = [k for k in kernels if k.name not in names and k.total_ns > 0]
    gain = {k.name: k.total_ns * (headroom or {}).get(normalise(k.name), 1.0) for k in rest}
    total = sum(k.total_ns for k in kernels)
    chosen: list[NsysKernel] = []
    for kernel in sorted(rest, key=lambda k: -gain[k.name]):
        if len(chosen) == max_kernels or sum(k.total_ns for k in chosen) >= coverage * total:
            break
        chosen.append(kernel)
    return Selection(kernels=tuple(chosen), total_ns=total, excluded=tuple(sorted(names)), source=source)


def kernel_pattern(names: Sequence[str], base: NameBase) -> tuple[str, NameBase]:
    """One anchored regex for these kernels, and the name base it is for.

    A timeline knows no mangled names, so `mangled` falls back to the demangled ones; a pattern too long for ncu falls
    back to the function names, which fit other instances of the same template as well.
    """
    if base != "function":
        pattern = "^(" + "|".join(tolerant_regex(name) for name in names) + ")$"
        if len(pattern) <= MAX_PATTERN:
            return pattern, "demangled"
    functions = dict.fromkeys(re.escape(base_name(name)) for name in names)
    return "^(" + "|".join(functions) + ")$", "function"


def everything_but(exclude: Sequence[str]) -> str | None:
    """A regex for all kernels but the excluded ones; None when nothing is excluded."""
    return f"^(?!.*({'|'.join(exclude)}))" if exclude else None


def launch_numbers(launches_per_kernel: int, steps: int = LONG_ENOUGH) -> tuple[int, ...]:
    """The running numbers of the launches of each kernel that are profiled: 5, 40, 320, … for one launch each.

    ncu counts the launches of each kernel for itself. How many a kernel has before the range opens differs from kernel
    to kernel, so no single number meets all of them inside it; spread numbers do. With few decode `steps` they have to
    start earlier and lie closer.
    """
    first, spread = min(FIRST_LAUNCH, max(2, steps)), min(SPREAD, max(2, (steps + 1) // 2))
    numbers: list[int] = []
    start = first
    while start <= LAST_LAUNCH:
        numbers += [start + i for i in range(launches_per_kernel)]
        start *= spread
    return tuple(dict.fromkeys(numbers))


@dataclass(frozen=True, kw_only=True)
class LaunchSpan:
    """The launches of one kernel in a run that is known: `before` the wanted range opens, and `inside` it."""

    before: int
    inside: int

    def wanted(self) -> tuple[int, int]:
        """The running numbers that are inside, by whichever count: of the whole program, or since the range opened.

        The first few are left out, and the last fifth, in case the program under ncu launches a little less.
        """
        first = self.before + 1 + min(FIRST_LAUNCH, self.inside // 4)
        last = self.inside - self.inside // 5
        return (first, last) if first <= last else (first, max(first, self.before + last))


def fewest_numbers(spans: Sequence[LaunchSpan], launches_per_kernel: int) -> tuple[int, ...]:
    """The fewest running numbers with which every kernel is met inside the range."""
    points: list[int] = []
    for first, last in sorted((span.wanted() for span in spans), key=lambda pair: pair[1]):
        if not points or points[-1] < first:
            points.append(last)
    return tuple(dict.fromkeys(point + i for point in points for i in range(launches_per_kernel)))


def launch_spans(
    record: StageRecord | None, include: str | Sequence[str] | None, kernels: Sequence[NsysKernel], share: float
) -> list[LaunchSpan] | None:
    """How often each kernel is launched before and inside the first wanted range, from the timeline of the same work.

    `share` is the part of the steps that will run under ncu. None where the timeline does not show the range, or where
    a kernel is not in it.
    """
    inside = Counter(launch_sequence(record, include))
    before = Counter(launch_sequence(record, PREFILL))
    if not before or any(not inside[kernel.name] for kernel in kernels):
        return None
    return [LaunchSpan(before=before[k.name], inside=max(1, int(inside[k.name] * share))) for k in kernels]


def expected_launches(
    kernels: Sequence[NsysKernel], numbers: Sequence[int], launches: Sequence[int] | None = None
) -> int:
    """How many launches will be profiled at most, from how often each kernel ran on the timeline, or will run."""
    runs = launches if launches is not None else [kernel.instances for kernel in kernels]
    return sum(max(1, sum(number <= run for number in numbers)) for run in runs)


def plan_capture(*, kernels: int | None, launches: int, set_name: str | None, passes: float | None = None) -> NcuPlan:
    """The cost of a capture. `passes` is what an earlier one with the same sections took."""
    known = round(passes) if passes else PASSES_BY_SET.get(set_name or "", PASSES_OTHERWISE)
    return NcuPlan(kernels=kernels, launches=launches, passes=known, seconds=launches * known * SECONDS_PER_PASS)


def timeline_kernels(
    record: StageRecord | None, include: str | Sequence[str] | None
) -> tuple[list[NsysKernel], str | None, bool | None]:
    """The kernels nsys saw, where they come from, and whether they are those of the wanted ranges only.

    That is False where the timeline has no kernel in such a range, and None where the ranges are not known.
    An empty list means that the selection has to do without: nsys was off, failed, or saw no kernel.
    """
    if record is None or record.status != "ok":
        return [], None, None
    found = [(path, *_from_export(path, range_filter(include))) for path in _exports(record)]
    # Of captures of several ranges the one that holds the wanted range, whichever was made first.
    for path, kernels, inside in sorted(found, key=lambda item: not item[2]):
        if kernels:
            return kernels, f"{record.name}/{path.name}", inside
    summary = record.file("kernel_summary")
    if summary is not None and summary.is_file():
        return summary_kernels(summary), f"{record.name}/{summary.name}", None
    return [], None, None


def launch_sequence(record: StageRecord | None, include: str | Sequence[str] | None) -> list[str]:
    """The kernels of the first wanted range in the order of their launches; empty where that is not known."""
    from llm_perf_opt.capture.operators import first_range_sequence
    from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite

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
    """What an earlier capture of this run measured: distance to the roofline by kernel, and the passes it took."""
    if not path.is_file():
        return {}, None
    try:
        earlier = msgspec.json.decode(path.read_bytes(), type=NcuAnalysis)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"{path}: not a result of this stage ({error}); delete it and run again") from error
    return headroom_by_name(earlier), max((row.passes for row in earlier.kernels if row.passes), default=None)


def _from_export(path: Path, wanted: Callable[[str], bool] | None) -> tuple[list[NsysKernel], bool]:
    from llm_perf_opt.capture.operators import all_kernels, range_kernels
    from llm_perf_opt.capture.readers.nsys_sqlite import read_nsys_sqlite

    timeline = read_nsys_sqlite(path)
    inside = range_kernels(timeline, wanted) if wanted is not None else []
    return (inside, True) if inside else (all_kernels(timeline), False)

"""What `inject/_llm_perf_observe.py` wrote of a process, as records: places, values, stacks, and the summary of all."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from llm_perf_opt.core.documents import (
    HostCompilation,
    HostGarbage,
    HostGrowth,
    HostMemory,
    HostObserved,
    HostThreads,
)
from llm_perf_opt.diagnosis.host.calls import NO_TYPES, SourceNames, read_source
from llm_perf_opt.diagnosis.host.owners import is_library, place_of
from llm_perf_opt.diagnosis.host.stacks import Frame, Stack
from llm_perf_opt.profiling.injection import inject_path

VARIABLE = "LLM_PERF_OBSERVE"
# The in-process sampler next to a sampler that reads from outside, and where there is no such sampler.
RATE_HZ, ALONE_RATE_HZ = 20, 100
GROWN_KEPT, LONGEST_REASON = 5, 200
# Of an expression's time at a line: from this part on it stands for the line.
MOSTLY = 0.5


@dataclass(frozen=True, kw_only=True)
class SeenPlace:
    """A line of the program's own, as the main thread was seen there."""

    file: str
    function: str
    line: int
    weight_s: float
    grown_bytes: int
    spans: tuple[tuple[int, int, float], ...]
    types: Mapping[str, str]

    @property
    def span(self) -> tuple[int, int] | None:
        """The columns of the expression that takes most of the line's time."""
        if not self.spans:
            return None
        first, end, weight = max(self.spans, key=lambda span: span[2])
        return (first, end) if weight >= MOSTLY * self.weight_s else None


@dataclass(frozen=True, kw_only=True)
class Collected:
    """Pauses of the garbage collector, by generation and, outside of imports, by line."""

    count: tuple[int, ...]
    total_s: float
    longest_s: float
    at: tuple[tuple[str, str, int, float], ...]


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One compilation by torch.compile; its `id` ends in how often the function was compiled before."""

    id: str
    function: str
    file: str
    line: int
    reason: str | None
    failed: str | None
    seconds: float


@dataclass(frozen=True, kw_only=True)
class SeenStack:
    """One thread's frames, the outermost first, and the time they stand for."""

    thread: str
    is_main: bool
    frames: tuple[tuple[str, str, int], ...]
    weight_s: float


@dataclass(frozen=True, kw_only=True)
class ProcessLook:
    """The file of one process. `awaits`: where coroutines of the program's own were while the event loop was idle.

    `age_s` is the age of the process at the first sample, `elapsed_s` the time from there to the last. `ended`: the
    interpreter came to its end; `raised`: because of an uncaught exception.
    """

    pid: int
    age_s: float
    elapsed_s: float
    ended: bool
    raised: bool
    environment: Mapping[str, str]
    collections: Collected
    compilations: tuple[Compiled, ...]
    threads: HostThreads
    flags: Mapping[str, bool]
    memory: tuple[tuple[float, int], ...]
    places: tuple[SeenPlace, ...]
    awaits: tuple[tuple[str, str, int, float], ...] = ()
    stacks: tuple[SeenStack, ...] = ()


def observing_environment(folder: Path, *, stacks: bool, environ: Mapping[str, str]) -> Mapping[str, str]:
    """What makes the program's Python look at itself; for one child alone."""
    settings = f"{ALONE_RATE_HZ}:1:{folder}" if stacks else f"{RATE_HZ}:0:{folder}"
    return {**inject_path(environ), VARIABLE: settings}


def read_looks(folder: Path) -> Mapping[int, ProcessLook]:
    """One for each process; a file of its own shape is none of ours."""
    decoder = msgspec.json.Decoder(ProcessLook)
    found = (decoder.decode(path.read_bytes()) for path in sorted(folder.glob("observed-*.json")))
    return {look.pid: look for look in found}


def first_look(looks: Mapping[int, ProcessLook], process: int) -> ProcessLook | None:
    """That of a process; where it wrote none, the one that looked longest."""
    return looks.get(process) or max(looks.values(), key=lambda look: look.elapsed_s, default=None)


def stacks_of(look: ProcessLook, *, rate_hz: int) -> tuple[Stack, ...]:
    """Its stacks as those of a sampler: a stack's time in samples of a fixed rate."""
    return tuple(
        Stack(
            processes=(look.pid,),
            thread=seen.thread,
            is_main=seen.is_main,
            frames=tuple(Frame(function=name, file=file, line=line) for name, file, line in seen.frames),
            samples=max(1, round(seen.weight_s * rate_hz)),
        )
        for seen in look.stacks
    )


def stacks_of_places(look: ProcessLook, *, rate_hz: int) -> tuple[Stack, ...]:
    """The main thread's lines as stacks of one frame: coarser than a sampler's, not lost where stacks are deep."""
    return tuple(
        Stack(
            processes=(look.pid,),
            thread="MainThread",
            is_main=True,
            frames=(Frame(function=place.function, file=place.file, line=place.line),),
            samples=max(1, round(place.weight_s * rate_hz)),
        )
        for place in look.places
    )


def summarise_look(look: ProcessLook, clean: Callable[[str], str]) -> HostObserved:
    """What is kept of the in-process samples; `clean` takes secrets out of a text."""
    at = max(look.collections.at, key=lambda place: place[3], default=None)
    grown = sorted((p for p in look.places if p.grown_bytes > 0), key=lambda p: -p.grown_bytes)
    return HostObserved(
        environment={key: clean(value) for key, value in sorted(look.environment.items())},
        garbage=HostGarbage(
            count=sum(look.collections.count),
            total_s=round(sum(place[3] for place in look.collections.at), 6),
            longest_s=round(look.collections.longest_s, 6),
            owner="" if at is None else place_of(at[1], at[0], at[2]),
        ),
        compilations=_compilations(look.compilations, clean),
        threads=look.threads,
        memory=HostMemory(
            seconds=tuple(round(second, 3) for second, _ in look.memory),
            resident_bytes=tuple(size for _, size in look.memory),
            peak_bytes=max((size for _, size in look.memory), default=0),
            grew=tuple(
                HostGrowth(owner=place_of(p.function, p.file, p.line), grown_bytes=p.grown_bytes)
                for p in grown[:GROWN_KEPT]
            ),
        ),
        flags=tuple(name for name, is_on in sorted(look.flags.items()) if is_on),
    )


def _compilations(found: tuple[Compiled, ...], clean: Callable[[str], str]) -> tuple[HostCompilation, ...]:
    by_function: dict[tuple[str, str, int], list[Compiled]] = {}
    for one in found:
        by_function.setdefault((one.function, one.file, one.line), []).append(one)
    rows = (
        HostCompilation(
            owner=place_of(function, file, line),
            count=len(mine),
            total_s=round(sum(one.seconds for one in mine), 3),
            reason=clean(next((one.reason for one in reversed(mine) if one.reason), "") or "")[:LONGEST_REASON],
            failed=clean(next((one.failed for one in mine if one.failed), "") or "")[:LONGEST_REASON],
        )
        for (function, file, line), mine in by_function.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.total_s))


@dataclass(kw_only=True)
class LineNames:
    """What lines of the program do, from its source code and from what the in-process sampler saw of their values."""

    folder: Path
    look: ProcessLook | None = None
    _sources: dict[str, SourceNames | None] = field(default_factory=dict)
    _places: dict[tuple[str, int], SeenPlace] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place in self.look.places if self.look is not None else ():
            self._places[(self._path(place.file), place.line)] = place

    def __call__(self, file: str, function: str, line: int) -> tuple[str, ...]:
        if is_library(file) or not line:
            return ()
        path = self._path(file)
        if path not in self._sources:
            self._sources[path] = self._read(Path(path))
        source = self._sources[path]
        if source is None:
            return ()
        place = self._places.get((path, line))
        types = NO_TYPES if place is None else place.types
        return source.names(line, types, None if place is None else place.span, function)

    def detail(self, file: str, line: int) -> str:
        """The file, peer, or arrays that a line works on, from the in-process sampler; empty where there are none."""
        values = (text.removeprefix("arg ") for text in self(file, "", line) if text.startswith("arg "))
        return "; ".join(dict.fromkeys(text for text in values if text.startswith(_TELLING)))[:LONGEST_REASON]

    def _path(self, file: str) -> str:
        return str(self.folder / file)

    def _read(self, path: Path) -> SourceNames | None:
        try:
            return read_source(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            return None


_TELLING = ("torch.Tensor", "torch.nn.Module", "numpy.ndarray", "pandas.", "_io.", "socket.socket (")

"""Documents that cross a wall between packages: written by `workload` or `profiling`, read by `report`.

A document's record is alongside its writer wherever the reader may import it. `report` knows neither `workload` nor
`profiling`, so the records of what they write for it are here, where all of them may look. A reader may do without keys
that have a default, because a run made earlier did not write them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from msgspec import UNSET, UnsetType

RunState = Literal["running", "done", "failed"]


def _refuse_negative(what: str, values: Iterable[float | None]) -> None:
    """A file of another user may hold any number."""
    wrong = next((value for value in values if value is not None and value < 0), None)
    if wrong is not None:
        raise ValueError(f"{what}: {wrong} is below zero")


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Statistics of one measured quantity; `reason` is there only when there was nothing to measure."""

    mean: float | None
    std: float | None
    p10: float | None = None
    p50: float | None
    p90: float | None
    p99: float | None
    n: int
    reason: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        known = (self.mean, self.std, self.p10, self.p50, self.p90, self.p99, self.n)
        _refuse_negative("statistics of what was measured", known)


@dataclass(frozen=True, kw_only=True)
class RanModel:
    """The model that ran, and where; `notes` are fallbacks it states itself."""

    name: str
    parameters: int | None = None
    dtype: str | None = None
    device: str | None = None
    device_name: str | None = None
    torch: str | None = None
    threads: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """How the model was run: `compile_s` is what compiling or capturing the decode step took, apart from all else.

    `ranks` processes ran at once, `tp` of which are one model.
    """

    batch: int = 1
    cache: str = "dynamic"
    compile: str = "none"
    cuda_graph: bool = False
    quantization: str = "none"
    tp: int = 1
    ranks: int = 1
    compile_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class PassTotals:
    """Sums over a pass, and the rates they give: all tokens by all the time."""

    prompt_tokens: int
    tokens: int
    prefill_s: float
    decode_s: float
    prefill_tokens_per_s: float | None
    decode_tokens_per_s: float | None


@dataclass(frozen=True, kw_only=True)
class CleanPass:
    """The pass without a profiler: every sample of every repeat.

    `other_cpus` is how many CPU cores other programs kept busy meanwhile, on average.
    """

    repeats: int | None = None
    samples: int | None = None
    warmup_rounds: int | None = None
    metrics: Mapping[str, Stats]
    totals: PassTotals | None = None
    peak_memory_bytes: int | None = None
    peak_memory_how: str | None = None
    peak_memory_reason: str | None = None
    other_cpus: float | None = None
    cpu_count: int | None = None


@dataclass(frozen=True, kw_only=True)
class ProfiledPass:
    """The pass under torch.profiler, and how it was bounded."""

    repeats: int
    samples: int
    max_samples: int | None
    max_decode_steps: int | None
    bounded: bool
    activities: tuple[str, ...]
    metrics: Mapping[str, Stats] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BadSample:
    """A sample that could not be run."""

    sample_id: str
    error: str


@dataclass(frozen=True, kw_only=True)
class Methods:
    """How percentiles and standard deviations were computed, in words."""

    percentiles: str
    std: str


@dataclass(frozen=True, kw_only=True)
class MetricsDocument:
    """`metrics.json`: what our own run workload measured of itself.

    `modules` are the shares of the parts of the model in each phase, by device time where there is any, else by CPU
    time, as `modules_by` says; `slowdown` is profiled time by clean time.
    """

    schema_version: Literal[1] = 1
    status: RunState = "done"
    model: RanModel
    deployment: Deployment | None = None
    nvtx_backend: str | None = None
    notes: tuple[str, ...] = ()
    clean: CleanPass
    profiled: ProfiledPass | None = None
    slowdown: Mapping[str, float | None] | None = None
    modules: Mapping[str, Mapping[str, float]] | None = None
    modules_by: str | None = None
    modules_cpu: Mapping[str, Mapping[str, float]] | None = None
    modules_device: Mapping[str, Mapping[str, float]] | None = None
    modules_reason: str | None = None
    bad_samples: tuple[BadSample, ...] = ()
    methods: Methods | None = None

    def __post_init__(self) -> None:
        _refuse_negative("slowdown", (self.slowdown or {}).values())
        for shares in (self.modules, self.modules_cpu, self.modules_device):
            for phase, of_modules in (shares or {}).items():
                _refuse_negative(f"shares of modules in {phase}", of_modules.values())


@dataclass(frozen=True, kw_only=True)
class GeneratedKernel:
    """A kernel torch.compile wrote: what it is made of, and its source by the path from the run directory.

    `modules` are those its operations was in, numbers of layers as `*`; none where that is not known.
    """

    name: str
    language: str
    operators: tuple[str, ...]
    file: str
    modules: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GeneratedDocument:
    """`generated.json`: the kernels torch.compile wrote for the run."""

    schema_version: Literal[1] = 1
    kernels: tuple[GeneratedKernel, ...]


@dataclass(frozen=True, kw_only=True)
class InputSample:
    """One sample a run used; `path` None: it was generated, and its tokens or text were hashed."""

    sample_id: str
    path: str | None
    size_bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ClockSample:
    """What the driver said at one moment; `throttle_reasons` empty: nothing lowers the clocks, None: it did not say.

    `energy_j` is the driver's counter, which runs since it was loaded: differences mean something, values do not.
    """

    at_ns: int
    energy_j: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    temperature_c: float | None = None
    memory_used_bytes: int | None = None
    utilisation_pct: float | None = None
    throttle_reasons: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class ClockDocument:
    """`gpu_samples.json`: clocks, power and memory sampled during the whole stage, loading included.

    `epoch_offset_ns` added to a sample's `at_ns` gives the time of day; None where it was not kept.
    """

    schema_version: Literal[1] = 1
    device: str
    interval_ms: float
    max_sm_clock_mhz: float | None = None
    power_limit_w: float | None = None
    power_how: str | None = None
    epoch_offset_ns: int | None = None
    samples: tuple[ClockSample, ...]


@dataclass(frozen=True, kw_only=True)
class CounterTrack:
    """A quantity over time: moments in ns on the clock of `time.monotonic_ns()`, and the value from then on."""

    name: str
    unit: str
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, kw_only=True)
class CounterSpan:
    """What happened from one moment to another on the same clock, alongside the counters."""

    name: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class CounterDocument:
    """A file of the role `counters`, which any stage may write: rows of their own in the Perfetto trace."""

    schema_version: Literal[1] = 1
    title: str
    tracks: tuple[CounterTrack, ...]
    spans: tuple[CounterSpan, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HostRow:
    """Samples of the main thread in one cell of the time ledger, with the user's function that owns them.

    `line` is the one that was seen most, `text` its source code, `leaf` the function of a library behind it, `detail`
    what the in-process sampler knows of it: the file or host it waits for, the type and size of its arrays.
    """

    cell: str
    function: str
    file: str
    line: int
    leaf: str
    text: str
    samples: int
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class HostThread:
    """Another thread, or a thread of a child process, by its samples outside of waits, and what it was most in."""

    name: str
    samples: int
    owner: str


@dataclass(frozen=True, kw_only=True)
class HostGil:
    """Who held the interpreter's lock, in its own pass: parts of the pass, by main thread and others."""

    main_share: float
    others_share: float
    holder: str
    source: str


@dataclass(frozen=True, kw_only=True)
class HostGarbage:
    """Pauses of the garbage collector outside of imports; `owner` is the line at which most of their time passed."""

    count: int
    total_s: float
    longest_s: float
    owner: str


@dataclass(frozen=True, kw_only=True)
class HostCompilation:
    """Compilations of one function by torch.compile: how often, how long, and the guard that failed last.

    `failed` is the reason why it was given up on and runs uncompiled.
    """

    owner: str
    count: int
    total_s: float
    reason: str
    failed: str


@dataclass(frozen=True, kw_only=True)
class HostThreads:
    """Threads of the process and the processors it may use; `waited_s` is the time its threads that were left at the
    end were ready to run but had no processor, `ran_s` that they ran. `torch`: what torch computes with.
    """

    python: int
    all: int
    torch: int | None
    processors: int
    ran_s: float
    waited_s: float


@dataclass(frozen=True, kw_only=True)
class HostGrowth:
    """Resident memory that was added while the main thread was in a line of the program's own."""

    owner: str
    grown_bytes: int


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Resident memory of the process over time, in seconds from its start and bytes, and what it grew by."""

    seconds: tuple[float, ...]
    resident_bytes: tuple[int, ...]
    peak_bytes: int
    grew: tuple[HostGrowth, ...]


@dataclass(frozen=True, kw_only=True)
class HostObserved:
    """What the in-process sampler knows, in the sampled pass.

    `flags` are switches of torch that are on; `environment` holds the variables that change how fast a program is.
    """

    environment: Mapping[str, str]
    garbage: HostGarbage
    compilations: tuple[HostCompilation, ...]
    threads: HostThreads
    memory: HostMemory
    flags: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class HostDocument:
    """Samples of a program's Python stacks: `wall_s` is the pass they were taken in, `samples` those of the main
    thread, `cpu_s` the processor time of all its processes. `fell_behind`: the sampler missed samples because it lacked
    a processor, so that what was not sampled is not a part of the program of its own.
    """

    schema_version: Literal[1] = 1
    sampler: str
    rate_hz: int
    wall_s: float
    samples: int
    cpu_s: float | None
    rows: tuple[HostRow, ...]
    threads: tuple[HostThread, ...] = ()
    gil: HostGil | None = None
    observed: HostObserved | None = None
    fell_behind: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _refuse_negative("samples of the host", (self.wall_s, self.samples, *(row.samples for row in self.rows)))

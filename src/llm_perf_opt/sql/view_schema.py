"""The views that SQL sees, the same for every kind of capture.

Times are nanoseconds of the capture's own clock. A column that a capture does not record is NULL, never 0.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

SqlType = Literal["BIGINT", "INTEGER", "DOUBLE", "VARCHAR", "BOOLEAN"]
# In integer columns that may be NULL: ids, sizes and numbers of devices are never negative.
MISSING: Final = -1


@dataclass(frozen=True, kw_only=True)
class ViewColumn:
    """One column. `optional` integers are NULL where the rows hold `MISSING`."""

    name: str
    type: SqlType
    meaning: str
    optional: bool = False

    @property
    def expression(self) -> str:
        """The column out of the registered rows."""
        if self.type in ("BIGINT", "INTEGER"):
            value = f'nullif("{self.name}", {MISSING})' if self.optional else f'"{self.name}"'
        elif self.type == "DOUBLE":
            value = f'CASE WHEN isnan("{self.name}") THEN NULL ELSE "{self.name}" END'
        else:
            value = f'"{self.name}"'
        return f'CAST({value} AS {self.type}) AS "{self.name}"'


@dataclass(frozen=True, kw_only=True)
class SqlView:
    """One view: a row stands for one of what its name says. `needs` is what it is filled from."""

    name: str
    meaning: str
    needs: Literal["capture", "diagnosis", "run"]
    columns: tuple[ViewColumn, ...]

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def definition(self) -> str:
        """The view over the rows registered as `rows_of(name)`."""
        selected = ", ".join(column.expression for column in self.columns)
        return f'CREATE OR REPLACE VIEW "{self.name}" AS SELECT {selected} FROM "{rows_of(self.name)}"'

    @property
    def unread_definition(self) -> str:
        """The view before its rows are read: it can be described, and refuses to give rows."""
        nothing = ", ".join(f'CAST(NULL AS {column.type}) AS "{column.name}"' for column in self.columns)
        refusal = f"error('the view {self.name} was not read: name it in the statement')"
        return f'CREATE VIEW "{self.name}" AS SELECT {nothing} FROM range(1) WHERE {refusal}'


def rows_of(view: str) -> str:
    """The name under which the rows of a view are registered."""
    return f"rows_of_{view}"


def _id(name: str, meaning: str) -> ViewColumn:
    return ViewColumn(name=name, type="BIGINT", meaning=meaning, optional=True)


def _ns(name: str, meaning: str) -> ViewColumn:
    return ViewColumn(name=name, type="BIGINT", meaning=meaning)


def _maybe(name: str, meaning: str) -> ViewColumn:
    return ViewColumn(name=name, type="BIGINT", meaning=meaning, optional=True)


def _text(name: str, meaning: str) -> ViewColumn:
    return ViewColumn(name=name, type="VARCHAR", meaning=meaning)


def _real(name: str, meaning: str) -> ViewColumn:
    return ViewColumn(name=name, type="DOUBLE", meaning=meaning)


def _flag(name: str, meaning: str) -> ViewColumn:
    return ViewColumn(name=name, type="BOOLEAN", meaning=meaning)


_SPAN = (
    _ns("start_ns", "begin, on the capture's clock"),
    _ns("end_ns", "end, on the same clock"),
    _ns("duration_ns", "end_ns - start_ns"),
)
_DEVICE = (
    ViewColumn(name="device", type="INTEGER", meaning="number of the GPU in its process", optional=True),
    ViewColumn(name="stream", type="BIGINT", meaning="stream or queue", optional=True),
)
_PLACE = (
    _text("range", "innermost NVTX, roctx or user range that caused it"),
    _text("operator", "innermost operator of the framework that launched it (torch traces)"),
)
_PROCESS = _text("process", "process, as name (pid)")
_THREAD = _text("thread", "thread, as name (id) where threads have names, else its number in the capture")
_CAPTURE = _text("capture", "path of the capture")

VIEWS: Final = (
    SqlView(
        name="kernels",
        meaning="one kernel on a GPU",
        needs="capture",
        columns=(
            _text("name", "name as the profiler recorded it"),
            _text("short_name", "name without template arguments, unique per name"),
            _text("class", "kind of work: gemm, attention, elementwise, communication, …"),
            *_SPAN,
            *_DEVICE,
            *_PLACE,
            _text("module", "innermost nn.Module around the launch (module ranges or with_stack traces)"),
            _id("graph", "launch that replayed the CUDA or HIP graph it belongs to; NULL: launched by itself"),
            _id("launch", "the call that launched it: launches.id"),
            _PROCESS,
            _CAPTURE,
        ),
    ),
    SqlView(
        name="launches",
        meaning="one host call that launched GPU work, waited for it or took long",
        needs="capture",
        columns=(
            _ns("id", "number of the call, unique in all captures given"),
            _text("name", "runtime or driver function"),
            *_SPAN,
            _flag("launches_work", "GPU work of this call was recorded"),
            _flag("waits", "the function waits for the GPU"),
            _ns("work_count", "kernels, copies and whole graphs it launched"),
            *_PLACE,
            _THREAD,
            _PROCESS,
            _CAPTURE,
        ),
    ),
    SqlView(
        name="copies",
        meaning="one copy or memset on a GPU",
        needs="capture",
        columns=(
            _text("name", "direction and, where recorded, kind of host memory"),
            *_SPAN,
            _ns("exposed_ns", "part during which no kernel of the process ran"),
            *_DEVICE,
            _maybe("size_bytes", "bytes moved or set"),
            _real("bytes_per_s", "size_bytes over the duration"),
            *_PLACE,
            _id("launch", "the call that started it: launches.id; NULL for page migrations"),
            _PROCESS,
            _CAPTURE,
        ),
    ),
    SqlView(
        name="graphs",
        meaning="one CUDA graph traced as a whole, whose kernels were not recorded",
        needs="capture",
        columns=(
            _text("name", "graph"),
            *_SPAN,
            *_DEVICE,
            *_PLACE,
            _id("launch", "the call that launched it: launches.id"),
            _PROCESS,
            _CAPTURE,
        ),
    ),
    SqlView(
        name="ranges",
        meaning="one NVTX, roctx or user range",
        needs="capture",
        columns=(
            _ns("id", "number of the range, unique in all captures given"),
            _text("name", "name as the program gave it"),
            *_SPAN,
            _maybe("gpu_idle_ns", "part without a kernel of the process; NULL where no GPU work was recorded"),
            _ns("kernel_count", "kernels caused in it and in the ranges inside"),
            _ns("kernel_ns", "sum of their durations"),
            _text("style", "push_pop (of a thread) or start_end (of the process)"),
            _id("parent", "ranges.id of the range around it"),
            _ns("depth", "ranges around it"),
            _THREAD,
            _PROCESS,
            _CAPTURE,
        ),
    ),
    SqlView(
        name="gaps",
        meaning="one time between the first and the last GPU work of a process without a kernel",
        needs="capture",
        columns=(
            *_SPAN,
            _text("cause", "cell of the time ledger that holds most of it"),
            _text("owner", "what the host was in: call, operator, function or range, innermost first"),
            _ns("host_ns", "part that waited for the host to launch"),
            _ns("sync_ns", "part in which the host waited for the GPU"),
            _ns("copy_ns", "part in which a copy ran"),
            _ns("between_ns", "part after the launch returned"),
            _ns("unattributed_ns", "part whose launch was not recorded"),
            _text("before", "short name of the kernel before"),
            _text("after", "short name of the kernel after"),
            _PROCESS,
            _CAPTURE,
        ),
    ),
    SqlView(
        name="operators",
        meaning="one call of an operator of the framework (torch traces)",
        needs="capture",
        columns=(
            _ns("id", "number of the call, unique in all captures given"),
            _text("name", "operator"),
            *_SPAN,
            _ns("self_ns", "duration without the operators inside"),
            _ns("kernel_ns", "duration of the kernels it launched itself"),
            _text("input_shapes", "shapes of its inputs, where recorded"),
            _id("parent", "operators.id of the operator around it"),
            _text("module", "innermost nn.Module around it"),
            _text("range", "innermost range around it"),
            _THREAD,
            _PROCESS,
            _CAPTURE,
        ),
    ),
    SqlView(
        name="memory",
        meaning="one allocation or release by torch's allocator (torch traces with profile_memory)",
        needs="capture",
        columns=(
            _ns("at_ns", "time, on the capture's clock"),
            _text("device", "CPU or GPU"),
            _ns("changed_bytes", "bytes allocated, negative where released"),
            _maybe("allocated_bytes", "bytes allocated after it"),
            _text("operator", "innermost operator around it"),
            _THREAD,
            _CAPTURE,
        ),
    ),
    SqlView(
        name="ledger",
        meaning="one cell of the time ledger of a scope; the cells of a scope sum to its wall time",
        needs="diagnosis",
        columns=(
            _text("scope", "capture, steady, prefill, decode, request, program"),
            _text("place", "the scope in words"),
            _text("cell", "kind of time, such as gpu.compute.gemm or idle.launch"),
            _ns("time_ns", "exclusive time"),
            _real("share", "of the scope's wall time"),
            _ns("count", "how many kernels, gaps or calls"),
            _text("owner", "what the host was in, innermost first"),
            _ns("wall_ns", "wall time of the scope"),
            _flag("clean", "the wall time was measured without a profiler"),
        ),
    ),
    SqlView(
        name="findings",
        meaning="one finding, in the order of the report",
        needs="diagnosis",
        columns=(
            _ns("rank", "1 is shown first"),
            _text("rule", "identifier of the cause"),
            _text("scope", "scope it is about"),
            _text("title", "cause, place and size"),
            _text("fix", "what to do"),
            _text("confidence", "low, medium or high"),
            _real("share", "of the scope's wall time affected"),
            _real("max_gain", "speed-up of the scope if only the lower bound remained"),
            _real("saves_ms", "time above the lower bound, of one step where the scope is a phase"),
            _maybe("stake_ns", "affected time"),
            _maybe("floor_ns", "lower bound of it"),
            _flag("is_one_time", "a one-time cost"),
            _text("phase", "phase of a request"),
            _text("range", "range it is about"),
            _text("evidence", "lines of evidence, one per line"),
            _text("refutes", "what would show that it is wrong"),
            _text("caveat", "what to bear in mind"),
            _text("source", "file most of the evidence comes from"),
        ),
    ),
    SqlView(
        name="metrics",
        meaning="one number of a stage of a run",
        needs="run",
        columns=(
            _text("stage", "stage that measured it"),
            _text("metric", "name"),
            _real("value", "number, NULL where there is none"),
            _text("text", "value that is not a number"),
            _text("unit", "unit"),
            _real("p10", "10th percentile"),
            _real("p90", "90th percentile"),
            _maybe("n", "values behind it"),
            _text("how", "how it was obtained"),
            _text("source", "file it can be checked against"),
            _text("reason", "why there is no value"),
        ),
    ),
    SqlView(
        name="samples",
        meaning="one number of one sample of the clean pass of a run",
        needs="run",
        columns=(
            _text("sample", "identifier of the sample"),
            _ns("repeat", "repeat of the pass, from 0"),
            _text("metric", "name, such as ttft_ms or tpot_ms"),
            _real("value", "number"),
        ),
    ),
    SqlView(
        name="requests",
        meaning="one request of a load test (`llm-perf bench`)",
        needs="run",
        columns=(
            _text("level", "load it was sent under"),
            _ns("number", "number of the request in its level"),
            _real("started_s", "when it was sent, from the start of the load"),
            _text("status", "ok, or what went wrong"),
            _text("error", "message of a failure"),
            _real("ttft_ms", "time to first token"),
            _real("tpot_ms", "time per output token after the first"),
            _real("latency_ms", "time to the last token"),
            _maybe("prompt_tokens", "as the server reported them"),
            _maybe("output_tokens", "tokens received"),
            _real("late_ms", "how long after its scheduled time it was sent"),
            _maybe("turn", "number of the request in its session"),
            _flag("is_ramp", "sent while the load was still growing"),
        ),
    ),
)
BY_NAME: Final = {view.name: view for view in VIEWS}
CAPTURE_VIEWS: Final = tuple(view.name for view in VIEWS if view.needs == "capture")

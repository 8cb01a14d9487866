"""Headlines of runs in which our own loop was not timed: a capture alone, or a server measured from outside."""

from collections.abc import Mapping

from msgspec import UNSET

from llm_perf_opt.capture.kernels.ncu_records import Bound, NcuAnalysis
from llm_perf_opt.capture.rows import RangeRow
from llm_perf_opt.core.names import PROGRAM
from llm_perf_opt.core.records import Metric, StageRecord
from llm_perf_opt.core.units import count_of, format_bytes, format_ms, format_percent
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, Diagnosis, ScopeRecord
from llm_perf_opt.diagnosis.evidence import runs_on
from llm_perf_opt.diagnosis.facts import Known, Unknown
from llm_perf_opt.diagnosis.host_scope import UNSAMPLED
from llm_perf_opt.diagnosis.kernels_alone import BOUNDS, time_by_bound, times_under_ncu
from llm_perf_opt.diagnosis.ledger import NOT_RECORDED, OPERATORS, cell_name
from llm_perf_opt.report.run_files import Found, RunFiles
from llm_perf_opt.report.view.ledger_view import scope_name
from llm_perf_opt.report.view.shown import Cell, Shown, Tile, TimePart, TimeSplit, share, show
from llm_perf_opt.serving.load_results import load_text

# Where parts of a program lie on its bar, which goes from its start to its end; all work lies between.
_PLACES = {
    "host.startup.interpreter": -4,
    "host.startup.imports": -3,
    "host.startup.model": -2,
    "host.startup.compile": -1,
    UNSAMPLED: 1,
    "host.exit": 2,
}
EDGES = {"before": "before the first GPU work", "after": "after the last"}


def captured_tiles(capture: Found[CaptureAnalysis], diagnosis: Diagnosis) -> tuple[Tile, ...]:
    """GPU work, how busy the GPU was, and the heaviest kernel; times are those under the profiler.

    Of the steady state where there is one: what start-up does to a GPU says nothing of what it does afterwards.
    """
    found, source = capture.content, capture.source
    gpu = found.gpu
    if not gpu.kernel_count and not found.graphs.launches_traced_as_a_whole and not found.copies:
        return ()
    tiles = [
        _tile("Kernels", Shown(text=f"{gpu.kernel_count:,}", how="launches in the capture", source=source)),
        _tile(
            "Kernel time", show(Known(value=gpu.kernel_ns / 1e6, unit="ms", how="sum of all kernels", source=source))
        ),
    ]
    if found.graphs.launches_traced_as_a_whole:
        what = f"CUDA graphs traced as a whole: {count_of(found.graphs.launches_traced_as_a_whole, 'launch')}"
        tiles.append(
            _tile("Graph time", show(Known(value=found.graphs.total_ns / 1e6, unit="ms", how=what, source=source)))
        )
    scope = judged_scope(diagnosis)
    busy_ns = 0 if scope is None else sum(c.time_ns for c in scope.cells if kind_of_cell(c.id) == "work")
    if scope is not None:
        tiles.append(_tile("GPU busy", show(share(busy_ns / scope.wall_ns, _of_scope(scope, found), source))))
    phase = _longest(found)
    if phase is not None and (scope is None or phase.name != scope.place):
        busy, what = _busy(phase), f"of a typical {phase.name} ({format_ms(phase.typical.wall_ns / 1e6)})"
        tiles.append(_tile(f"Busy in {phase.name}", show(share(busy, what, source))))
    if scope is not None and scope.kernels:
        top = scope.kernels[0]
        what = f"of the time kernels ran in {scope_name(scope)}: {top.short_name}"
        tiles.append(_tile("Hottest kernel", show(share(top.own_ns / max(busy_ns, 1), what, source))))
    elif found.kernels:
        first = found.kernels[0]
        what = f"of all kernel time: {first.short_name}"
        tiles.append(_tile("Hottest kernel", show(share(first.time_pct / 100, what, source))))
    if found.copies:
        sizes = [copy.size_bytes for copy in found.copies if copy.size_bytes is not None]
        is_whole = len(sizes) == len(found.copies)
        what = f"copies and sets, {format_bytes(sum(sizes))}" if is_whole else "copies and sets, not all of known size"
        total = Known(value=sum(copy.total_ns for copy in found.copies) / 1e6, unit="ms", how=what, source=source)
        tiles.append(_tile("Copies", show(total)))
    return tuple(tiles)


def judged_scope(diagnosis: Diagnosis) -> ScopeRecord | None:
    """The steady state, or the whole capture where nothing of it is start-up; of sampled stacks the program."""
    scope = diagnosis.scope("steady") or diagnosis.scope("capture") or diagnosis.scope(PROGRAM)
    return scope if scope is not None and scope.wall_ns else None


def _of_scope(scope: ScopeRecord, found: CaptureAnalysis) -> str:
    """What a share of a scope is of."""
    text = f"of {scope_name(scope)}, {format_ms(scope.wall_ns / 1e6)}"
    if scope.id == "steady":
        return f"{text}, start-up left out"
    if found.host_edges is not UNSET:
        return f"{text}, with the host's work before the first and after the last GPU work"
    return f"{text}, from the first to the last GPU work{_each(found)}"


def captured_split(diagnosis: Diagnosis) -> TimeSplit | None:
    """The ledger of the steady state, of the whole capture, or of a program from its imports to its exit.

    A program whose stacks gave the verdict is shown whole, though a capture of a part of it is there too.
    """
    whole = diagnosis.scope(PROGRAM) if diagnosis.verdict.scope == PROGRAM else None
    scope = whole if whole is not None and whole.wall_ns else judged_scope(diagnosis)
    if scope is None:
        return None
    parts: dict[tuple[int, str, str], int] = {}
    for cell in scope.cells:
        key = (_PLACES.get(cell.id, 0), cell_name(cell.id), kind_of_cell(cell.id))
        parts[key] = parts.get(key, 0) + cell.time_ns
    shown = sorted(parts.items(), key=lambda item: (item[0][0], item[0][2] != "work", -item[1]))
    return TimeSplit(
        what=scope_name(scope),
        total=format_ms(scope.wall_ns / 1e6),
        parts=tuple(
            TimePart(label=label, kind=kind, share=ns / scope.wall_ns) for (_, label, kind), ns in shown if ns > 0
        ),
    )


def kind_of_cell(cell: str) -> str:
    """The colour of a cell: work, idle time, or time nothing is known of."""
    if cell.startswith(("gpu.compute", "gpu.communication", "host.work", OPERATORS)):
        return "work"
    return "unexplained" if cell in (*NOT_RECORDED, UNSAMPLED) else "idle"


def host_alone_split(found: CaptureAnalysis) -> TimeSplit | None:
    """A trace without kernels: operators, and what lies outside of them. None where operators are most of it."""
    host = found.host_alone
    if host is UNSET or 2 * host.operators_ns >= host.span_ns:
        return None
    # A range has the time of its frames too: a frame with more lies outside of it.
    named = sorted((*host.ranges[:1], *host.frames[:1]), key=lambda row: -row.own_ns)[:1]
    rest_ns = host.span_ns - host.operators_ns - host.loading_ns - sum(row.own_ns for row in named)
    parts = (
        ("operators", "work", host.operators_ns),
        ("data loading", "idle", host.loading_ns),
        *((f"{row.name}, outside of operators", "idle", row.own_ns) for row in named),
        ("the rest outside of operators" if named else "outside of operators", "unexplained", rest_ns),
    )
    return TimeSplit(
        what="the trace",
        total=format_ms(host.span_ns / 1e6),
        parts=tuple(TimePart(label=label, kind=kind, share=ns / host.span_ns) for label, kind, ns in parts if ns > 0),
    )


def _tile(label: str, cell: Cell) -> Tile:
    return Tile(label=label, cell=cell, explain=cell.how if isinstance(cell, Shown) else cell.text)


def ncu_tiles(ncu: Found[NcuAnalysis]) -> tuple[Tile, ...]:
    """What ncu measured, where there is no timeline."""
    found, source = ncu.content, ncu.source
    times = times_under_ncu(found)
    tiles = [
        _tile("Kernels", Shown(text=f"{len(found.kernels):,}", how="kernels measured by ncu", source=source)),
        _tile("Launches", Shown(text=f"{found.launches:,}", how="launches measured by ncu", source=source)),
    ]
    if times:
        how = "all measured launches, each alone and with cold caches"
        tiles.append(
            _tile("Time under ncu", show(Known(value=sum(times.values()) / 1e6, unit="ms", how=how, source=source)))
        )
        top = max((k for k in found.kernels if k.kernel in times), key=lambda kernel: times[kernel.kernel])
        what = f"of the time under ncu: {top.short}"
        tiles.append(_tile("Hottest kernel", show(share(times[top.kernel] / sum(times.values()), what, source))))
    return tuple(tiles)


def ncu_split(found: NcuAnalysis) -> TimeSplit | None:
    """The time under ncu by what limits its kernels."""
    times = times_under_ncu(found)
    if not times:
        return None
    return TimeSplit(what="under ncu", total=format_ms(sum(times.values()) / 1e6), parts=tuple(_ncu_shares(found)))


# What limits a kernel, in the colours of the waterfall: work, what the hardware allows, waiting.
COLOURS: Mapping[Bound, str] = {
    "compute": "work",
    "memory": "bound",
    "latency": "idle",
    "balanced": "bound",
    "unknown": "unexplained",
}


def _ncu_shares(found: NcuAnalysis) -> list[TimePart]:
    """The largest first."""
    bounds = time_by_bound(found)
    total = sum(bounds.values()) or 1.0
    return [TimePart(label=BOUNDS[bound], kind=COLOURS[bound], share=time / total) for bound, time in bounds.items()]


def _each(found: CaptureAnalysis) -> str:
    """Of several GPUs of one process: busy is when any of them is, so their mean is reported too."""
    devices = found.ranks.devices if found.ranks is not UNSET else ()
    if len(devices) < 2 or not found.gpu.span_ns or len(found.sources) > 1 or len({d.process for d in devices}) > 1:
        return ""
    mean = sum(row.time.busy_ns for row in devices) / found.gpu.span_ns / len(devices)
    return f" (any of its {len(devices)} GPUs; each by itself {format_percent(mean)} on average)"


def _longest(found: CaptureAnalysis) -> RangeRow | None:
    """The range with GPU work that took the most time, where that is a tenth of the capture; else None.

    None of those after which the GPU works on: it may be busy in none of their time.
    """
    span = found.gpu.span_ns or 0
    known = [r for r in found.ranges if r.typical.idle is not None and r.kernel_count and r.typical.wall_ns > 0]
    longest = max(known, key=lambda r: r.instances * r.typical.wall_ns, default=None)
    if longest is None or not longest.typical.kernel_count or runs_on(longest):
        return None
    return longest if 10 * longest.instances * longest.typical.wall_ns >= span > 0 else None


def _busy(phase: RangeRow) -> float:
    idle = phase.typical.idle
    assert idle is not None
    parts = (idle.waiting_for_host_ns, idle.between_kernels_ns, idle.waiting_for_copy_or_sync_ns, idle.unattributed_ns)
    return 1 - sum(parts) / phase.typical.wall_ns


TILES = (
    ("serve_ttft_ms", "TTFT", "from sending a request to its first token"),
    ("serve_tpot_ms", "TPOT", "time per output token after the first"),
    ("serve_itl_ms", "ITL", "between two events of a stream"),
    ("serve_e2el_ms", "End-to-end", "from sending a request to its last token"),
    ("serve_output_tokens_per_s", "Output tokens", "of all requests that succeeded, by the time the load took"),
    ("serve_requests_per_s", "Requests", "that succeeded, by the time the load took"),
    ("serve_capacity", "Capacity", "the highest load at which enough requests meet every SLO"),
    ("serve_goodput_per_s", "Goodput", "requests per second that met every SLO"),
)


def served_title(files: RunFiles) -> str:
    model, server = files.manifest.config.get("model"), files.manifest.config.get("server")
    name = str(model["name"]) if isinstance(model, Mapping) and "name" in model else files.manifest.run_id
    engine = str(server["name"]) if isinstance(server, Mapping) and "name" in server else None
    return f"{name}, served by {engine}" if engine not in (None, name, "openai") else name


def served_tiles(stage: StageRecord) -> tuple[Tile, ...]:
    """Medians and throughput; those that were not asked for are left out."""
    return tuple(
        Tile(label=label, cell=show(_known(stage.metrics[key])), explain=explain)
        for key, label, explain in TILES
        if key in stage.metrics
    )


def _known(metric: Metric) -> Known | Unknown:
    if not isinstance(metric.value, int | float):
        return Unknown(reason=metric.reason or "not measured")
    return Known(value=metric.value, unit=metric.unit, how=metric.how, source=metric.source)


def _metric_value(stage: StageRecord, name: str) -> float | None:
    metric = stage.metrics.get(name)
    return float(metric.value) if metric is not None and isinstance(metric.value, int | float) else None


def served_verdict(stage: StageRecord) -> str:
    """In one sentence; a failure comes first."""
    failed = f"The load test failed: {stage.reason}. " if stage.reason else ""
    rate, ttft, tpot = (stage.metrics.get(f"serve_{n}") for n in ("output_tokens_per_s", "ttft_ms", "tpot_ms"))
    if rate is None or not isinstance(rate.value, int | float):
        return f"{failed}No request succeeded."
    text = f"{rate.value:,.1f} output tokens per second with {rate.how}"
    medians = [
        f"{name} {format_ms(float(metric.value))}"
        for name, metric in (("TTFT", ttft), ("TPOT", tpot))
        if metric is not None and isinstance(metric.value, int | float)
    ]
    text += f": median {', '.join(medians)}" if medians else ""
    share = stage.metrics.get("serve_failed_share")
    if share is not None and isinstance(share.value, int | float) and share.value > 0:
        text += f"; {format_percent(share.value)} of the requests failed"
    good, all_ = (_metric_value(stage, f"serve_{name}_per_s") for name in ("goodput", "requests"))
    if good is not None and all_:
        succeeded = 1.0 - (_metric_value(stage, "serve_failed_share") or 0.0)
        text += f"; {format_percent(min(1.0, good / all_) * succeeded)} of the requests met every SLO"
    # There where the queue grew, and only there.
    if "serve_growth" in stage.metrics:
        text += "; the server did not keep up, so latencies grew for as long as the load lasted"
    capacity = stage.metrics.get("serve_capacity")
    if capacity is not None and isinstance(capacity.value, int | float):
        text = f"Capacity: {load_text(float(capacity.value))} {capacity.how}. At the highest load that met them {text}"
    late = _metric_value(stage, "serve_client_late_ms")
    if late is not None:
        return f"{failed}Invalid, because the client was late by {format_ms(late)} on average: {text}."
    return f"{failed}{text}."

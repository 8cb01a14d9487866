"""Phases that a capture marks by ranges, as scopes: one prompt and one decode step, under the profiler.

They are not judged: what slows them down is in the scopes `capture` and `steady`, which the findings are about.
"""

from llm_perf_opt.capture.rows import Idle, RangeRow
from llm_perf_opt.core.names import PHASE_RANGE
from llm_perf_opt.diagnosis.diagnose import record_of
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, ScopeRecord
from llm_perf_opt.diagnosis.evidence import replays_graphs, runs_on
from llm_perf_opt.diagnosis.facts import GpuFacts, PhaseKernel
from llm_perf_opt.diagnosis.scope import Scope, gpu_phase_ledger


def find_range(capture: CaptureAnalysis, name: str) -> RangeRow | None:
    """The row of a range; of a push/pop and a start/end one of the same name, the one with more kernels."""
    rows = [row for row in capture.ranges if row.name == name]
    return max(rows, key=lambda row: row.kernel_count, default=None)


def gpu_of_range(row: RangeRow, busy_ns: int, idle: Idle, source: str) -> GpuFacts:
    """The GPU during one instance of a range."""
    count = row.instances
    kernels = None
    if row.kernels is not None:
        kernels = tuple(
            PhaseKernel(
                name=k.name,
                short_name=k.short_name,
                kernel_class=k.kernel_class,
                per_step=k.instances / count,
                ms_per_step=k.total_ns / count / 1e6,
            )
            for k in row.kernels
        )
    return GpuFacts(
        instances=count,
        wall_ms=row.typical.wall_ns / 1e6,
        busy_ms=busy_ns / count / 1e6,
        kernel_sum_ms=row.kernel_ns / count / 1e6,
        kernel_count=row.kernel_count / count,
        launch_ms=row.typical.launch_ns / 1e6,
        idle=idle,
        kernels=kernels,
        source=source,
        is_graph=replays_graphs(row),
    )


def marked_phases(capture: CaptureAnalysis) -> tuple[ScopeRecord, ...]:
    """The phases whose ranges a capture has, with GPU work in them; `place` is the range.

    A range that ends long before its GPU work does is not taken: its time is not that of the work. Where no range of
    single steps can be taken, `decode` is the whole loop of one request.
    """
    found = []
    for phase, unit in PHASE_RANGE.items():
        rows = [row for name in dict.fromkeys((unit, phase)) if (row := find_range(capture, name)) is not None]
        row = next((row for row in rows if row.kernel_count and not runs_on(row)), None)
        if row is None:
            continue
        typical, source = row.typical, capture.sources[row.typical.source].path
        if typical.gpu_idle_ns is None or typical.idle is None or typical.wall_ns <= 0:
            continue
        # Its last kernels may end after the range: inside it the GPU was busy when it was not idle.
        busy_ns = typical.wall_ns - typical.gpu_idle_ns
        gpu = gpu_of_range(row, busy_ns * row.instances, typical.idle, source)
        ledger, kernels = gpu_phase_ledger(gpu, typical.wall_ns)
        scope = Scope(
            id=phase,
            kind="phase",
            place=row.name,
            each=f"each {row.name}",
            wall_ns=typical.wall_ns,
            clean=False,
            ledger=ledger,
            source=source,
            instances=row.instances,
            kernels=kernels,
        )
        found.append(record_of(scope))
    return tuple(found)

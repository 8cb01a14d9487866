"""Figures of made-up runs, for tests of rules and waterfalls."""

from dataclasses import replace
from typing import Any

from llm_perf_opt.capture.kernels.ncu_records import NcuKernel
from llm_perf_opt.capture.rows import Idle
from llm_perf_opt.diagnosis.facts import (
    GpuFacts,
    KernelFacts,
    Known,
    MemoryFacts,
    PhaseFacts,
    PhaseKernel,
    Quantity,
    RunFacts,
    Unknown,
)

UNKNOWN = Unknown(reason="not measured")
NO_IDLE = Idle(
    waiting_for_host_ns=0,
    between_kernels_ns=0,
    waiting_for_copy_or_sync_ns=0,
    copy_ns=0,
    sync_ns=0,
    unattributed_ns=0,
)


def ms(value: float, how: str = "clean pass, median of 3", source: str = "torch_profiler/metrics.json") -> Known:
    return Known(value=value, unit="ms", how=how, source=source)


def bound(value: float) -> Known:
    return ms(value, how="at the rates reached", source="static_analysis/static.json")


def size(value: float) -> Known:
    return Known(value=value, unit="bytes", how="predicted", source="static_analysis/static.json")


def idle(*, host: float = 0.0, between: float = 0.0, copy: float = 0.0, sync: float = 0.0, lost: float = 0.0) -> Idle:
    """Milliseconds by cause."""
    return Idle(
        waiting_for_host_ns=round(host * 1e6),
        between_kernels_ns=round(between * 1e6),
        waiting_for_copy_or_sync_ns=round((copy + sync) * 1e6),
        copy_ns=round(copy * 1e6),
        sync_ns=round(sync * 1e6),
        unattributed_ns=round(lost * 1e6),
    )


def kernel(name: str, kind: str, total_ms: float, launches: float = 1.0) -> PhaseKernel:
    return PhaseKernel(name=name, short_name=name, kernel_class=kind, per_step=launches, ms_per_step=total_ms)


def gpu(
    busy: float, *, wall: float, idle: Idle = NO_IDLE, count: float = 100, kernels: tuple[PhaseKernel, ...] = ()
) -> GpuFacts:
    return GpuFacts(
        instances=8,
        wall_ms=wall,
        busy_ms=busy,
        kernel_sum_ms=busy,
        kernel_count=count,
        launch_ms=1.0,
        idle=idle,
        kernels=kernels,
        source="nsys/analysis.json",
    )


def phase(name: str = "decode", *, wall: Quantity = UNKNOWN, **parts: Any) -> PhaseFacts:
    empty = PhaseFacts(
        name=name,
        wall=wall,
        datasheet=UNKNOWN,
        achievable=UNKNOWN,
        flops=UNKNOWN,
        bytes=UNKNOWN,
        gpu=UNKNOWN,
        operators=UNKNOWN,
        steps_per_request=1.0 if name == "prefill" else 10.0,
    )
    return replace(empty, **parts)


def ncu(name: str, **values: Any) -> NcuKernel:
    empty: dict[str, Any] = dict.fromkeys(NcuKernel.__dataclass_fields__)
    empty |= {"kernel": name, "short": name, "launches": 1, "grids": (), "ranges": (), "bound": "unknown"}
    empty |= {"flop_per_s_by_pipe": {}, "stalls_pct": {}, "advice": (), "peak_flop_per_s": {}, "missing": {}}
    empty |= {"blocks": (), "breakdown_pct": {}, "hit_rates_pct": {}}
    return NcuKernel(**{**empty, "nsys_names": (name,), **values})


def whole(kernel: PhaseKernel, measured: NcuKernel | None = None) -> KernelFacts:
    """A phase's kernel as a kernel of the capture."""
    return KernelFacts(
        name=kernel.name,
        short_name=kernel.short_name,
        kernel_class=kernel.kernel_class,
        instances=round(kernel.per_step),
        total_ns=kernel.ms_per_step * 1e6,
        avg_ns=kernel.ms_per_step * 1e6 / kernel.per_step,
        time_pct=1.0,
        ncu=measured,
    )


NO_MEMORY = MemoryFacts(
    weights=UNKNOWN,
    kv_cache=UNKNOWN,
    kv_per_token=UNKNOWN,
    kv_read_per_step=UNKNOWN,
    activations=UNKNOWN,
    predicted_peak=UNKNOWN,
    measured_peak=UNKNOWN,
    capacity=UNKNOWN,
)


def facts(*phases: PhaseFacts, **parts: Any) -> RunFacts:
    empty = RunFacts(
        dtype="bf16",
        is_cpu=False,
        batch=1,
        context=1024,
        phases={p.name: p for p in phases},
        kernels=(),
        copies=(),
        memory=NO_MEMORY,
        kernel_source="nsys/analysis.json",
        ncu_source="ncu/kernels.json",
    )
    return replace(empty, **parts)


def busy_decode(*kernels: PhaseKernel, wall: float = 1.1, **parts: Any) -> RunFacts:
    """A decode step that keeps the GPU busy with these kernels."""
    total = sum(k.ms_per_step for k in kernels)
    return facts(phase("decode", wall=ms(wall), gpu=gpu(total, wall=wall, kernels=kernels)), **parts)

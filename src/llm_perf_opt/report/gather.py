"""From the files of a run to the figures the waterfall and the rules look at."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from llm_perf_opt.analysis.findings.facts import (
    ClockFacts,
    CopyFacts,
    KernelFacts,
    Known,
    MemoryFacts,
    Quantity,
    RunFacts,
    Unknown,
)
from llm_perf_opt.analysis.kernels.ncu import join_nsys
from llm_perf_opt.analysis.kernels.ncu_records import NcuAnalysis, NcuKernel, NsysKernel
from llm_perf_opt.analysis.static.document import StaticDocument, StaticPhase
from llm_perf_opt.core.documents import ClockDocument, ClockSample
from llm_perf_opt.core.names import DECODE, MANIFEST_FILE, PHASE_RANGE, PHASES, WALL_METRIC
from llm_perf_opt.report.gather_phase import (
    clean_metric,
    find_range,
    phase_facts,
    phase_record,
    shape_text,
)
from llm_perf_opt.report.run_files import Found, RunFiles

# The driver's word for a GPU without work.
GPU_IDLE = "gpu_idle"


def gather(files: RunFiles, ncu: NcuAnalysis | None) -> RunFacts:
    """All figures of a run; `ncu` is what `joined_ncu` found."""
    cpu = is_cpu(files)
    static = files.static.content if isinstance(files.static, Found) else None
    return RunFacts(
        dtype=_dtype(files),
        is_cpu=cpu,
        batch=static.workload.batch if static else None,
        context=static.workload.context if static else None,
        phases={name: phase_facts(name, files, cpu=bool(cpu)) for name in PHASES},
        kernels=_kernels(files, ncu),
        copies=_copies(files),
        memory=_memory(files),
        slowdowns=_slowdowns(files),
        clocks=_clocks(files),
        kernel_source=files.capture.source if isinstance(files.capture, Found) else _kernel_source(files),
        ncu_source=files.ncu.source if isinstance(files.ncu, Found) else "",
        bytes_per_s=_bandwidth(static),
    )


def is_cpu(files: RunFiles) -> bool | None:
    if isinstance(files.metrics, Found) and files.metrics.content.model.device is not None:
        return files.metrics.content.model.device == "cpu"
    if isinstance(files.capture, Found) and files.capture.content.kernels:
        return False
    if isinstance(files.static, Found):
        return files.static.content.hardware.name == "cpu"
    return None


def _dtype(files: RunFiles) -> str | None:
    if isinstance(files.metrics, Found) and files.metrics.content.model.dtype:
        return files.metrics.content.model.dtype.removeprefix("torch.")
    return files.static.content.dtype if isinstance(files.static, Found) else None


def joined_ncu(files: RunFiles) -> NcuAnalysis | None:
    """What ncu measured, joined with the kernels of the timeline."""
    if isinstance(files.ncu, Unknown):
        return None
    if isinstance(files.capture, Unknown) or not files.capture.content.kernels:
        return files.ncu.content
    kernels = [
        NsysKernel(name=k.name, instances=k.instances, total_ns=k.total_ns) for k in files.capture.content.kernels
    ]
    plain = replace(files.ncu.content, notes=())
    return join_nsys(plain, kernels)


def _kernels(files: RunFiles, ncu: NcuAnalysis | None) -> tuple[KernelFacts, ...]:
    by_name: dict[str, NcuKernel] = {}
    for row in ncu.kernels if ncu else ():
        for name in row.nsys_names or (row.kernel,):
            by_name.setdefault(name, row)
    if isinstance(files.capture, Found):
        return tuple(
            KernelFacts(
                name=k.name,
                short_name=k.short_name,
                kernel_class=k.kernel_class,
                instances=k.instances,
                total_ns=k.total_ns,
                avg_ns=k.avg_ns,
                time_pct=k.time_pct,
                ncu=by_name.get(k.name),
            )
            for k in files.capture.content.kernels
        )
    return ()


def _kernel_source(files: RunFiles) -> str:
    return files.ncu.source if isinstance(files.ncu, Found) else ""


def _copies(files: RunFiles) -> tuple[CopyFacts, ...]:
    if isinstance(files.capture, Unknown):
        return ()
    return tuple(
        CopyFacts(kind=c.kind, instances=c.instances, total_ns=c.total_ns, size_bytes=c.size_bytes)
        for c in files.capture.content.copies
    )


def _memory(files: RunFiles) -> MemoryFacts:
    static = files.static
    decode = phase_record(DECODE, files)

    def predicted(value: float | None, how: str) -> Quantity:
        if isinstance(static, Unknown):
            return static
        if value is None:
            return Unknown(reason=static.content.memory.reason or "the static analysis does not say")
        return Known(value=value, unit="bytes", how=how, source=static.source)

    memory = static.content.memory if isinstance(static, Found) else None
    shape = shape_text(static.content) if isinstance(static, Found) else ""
    return MemoryFacts(
        weights=predicted(memory.weights_bytes if memory else None, "predicted from the configuration"),
        kv_cache=predicted(memory.kv_cache_bytes if memory else None, f"predicted, {shape}"),
        kv_per_token=predicted(static.content.kv_bytes_per_token if isinstance(static, Found) else None, "predicted"),
        kv_read_per_step=predicted(decode.kv_read_bytes if isinstance(decode, StaticPhase) else None, "predicted"),
        activations=predicted(
            memory.activations_bytes if memory else None, f"predicted, widest point of a prefill, {shape}"
        ),
        predicted_peak=predicted(memory.peak_bytes if memory else None, f"weights, cache and activations, {shape}"),
        measured_peak=clean_metric(files.manifest, "peak_memory_bytes"),
        capacity=predicted(memory.capacity_bytes if memory else None, "memory of the device"),
        kv_dtype=_kv_dtype(static.content) if isinstance(static, Found) else None,
    )


def _kv_dtype(static: StaticDocument) -> str:
    return static.dtype if static.dtypes is None else static.dtypes.kv


def _slowdowns(files: RunFiles) -> dict[str, Known]:
    found: dict[str, Known] = {}
    for stage in files.manifest.stages:
        for key, metric in stage.metrics.items():
            if key.startswith("slowdown_") and isinstance(metric.value, int | float):
                label = f"{stage.name}, {key.removeprefix('slowdown_')}"
                how, source = metric.how, metric.source or MANIFEST_FILE
                found[label] = Known(value=float(metric.value), unit="×", how=how, source=source)
    return {**_capture_slowdowns(files, found), **found}


def _capture_slowdowns(files: RunFiles, known: Mapping[str, Known]) -> dict[str, Known]:
    """Range time under nsys over clean time, for a capture whose stage did not say it itself."""
    if isinstance(files.capture, Unknown):
        return {}
    found = {}
    for name in PHASES:
        row, wall = (
            find_range(files.capture.content, PHASE_RANGE[name]),
            clean_metric(files.manifest, WALL_METRIC[name]),
        )
        label = f"{files.capture.content.sources[0].kind if files.capture.content.sources else 'capture'}, {name}"
        if row is not None and isinstance(wall, Known) and wall.value > 0 and label not in known:
            how = f"median {PHASE_RANGE[name]} range under the profiler over the clean time"
            value = row.typical.wall_ns / 1e6 / wall.value
            found[label] = Known(value=value, unit="×", how=how, source=files.capture.source)
    return found


def _clocks(files: RunFiles) -> ClockFacts | Unknown:
    if isinstance(files.clocks, Unknown):
        return Unknown(reason="clocks and power were not sampled")
    return clock_facts(files.clocks.content, files.clocks.source)


def clock_facts(file: ClockDocument, source: str) -> ClockFacts:
    """A GPU that waits for the model to load runs at its lowest clock: only samples in which it worked count."""
    busy = [sample for sample in file.samples if not _is_idle(sample)]
    named = [sample.throttle_reasons for sample in busy if sample.throttle_reasons is not None]
    return ClockFacts(
        sm_clock_mhz=tuple(s.sm_clock_mhz for s in busy if s.sm_clock_mhz is not None),
        max_sm_clock_mhz=file.max_sm_clock_mhz,
        throttle_reasons=dict(Counter(name for names in named for name in names)) if named or not busy else None,
        samples=len(busy),
        idle_samples=len(file.samples) - len(busy),
        source=source,
    )


def _is_idle(sample: ClockSample) -> bool:
    """By what the driver says of its clocks, or of the last moment's work; a sample with neither may be of use."""
    return GPU_IDLE in (sample.throttle_reasons or ()) or sample.utilisation_pct == 0


def _bandwidth(static: StaticDocument | None) -> float | None:
    if static is None:
        return None
    best = static.hardware.achieved_bandwidth_gb_s or static.hardware.memory_bandwidth_gb_s
    return None if best is None else best * 1e9

"""From the files of a run to the figures the waterfall and the rules look at.

The figures of one phase: clean wall time, bounds, work, and the GPU or the operators inside it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from msgspec import UNSET

from llm_perf_opt.capture.kernels.ncu_analysis import join_nsys
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis, NcuKernel, NsysKernel
from llm_perf_opt.core.documents import ClockDocument, ClockSample
from llm_perf_opt.core.manifest import RunManifest
from llm_perf_opt.core.names import (
    CLEAN_PASS_ORDER,
    DECODE,
    DECODE_STEP,
    GIVEN,
    MANIFEST_FILE,
    PHASE_RANGE,
    PHASES,
    PREFILL,
    TORCH_PROFILER,
    WALL_METRIC,
)
from llm_perf_opt.core.records import StageRecord
from llm_perf_opt.core.units import format_ms
from llm_perf_opt.diagnosis.diagnose import ENABLE_CLEAN
from llm_perf_opt.diagnosis.facts import (
    NOT_WATCHED,
    ClockFacts,
    CopyFacts,
    GpuFacts,
    HostFacts,
    KernelFacts,
    Known,
    MemoryFacts,
    PhaseFacts,
    Quantity,
    RunFacts,
    Unknown,
    value_of,
)
from llm_perf_opt.diagnosis.marked_phases import find_range, gpu_of_range
from llm_perf_opt.model.static.static_document import StaticDocument, StaticPhase
from llm_perf_opt.report.run_files import Found, RunFiles

ON_CPU = Unknown(reason="the model ran on the CPU: there are no GPU kernels")
# Predictions are compared with measurements of inputs this much alike.
SAME_INPUT = 0.02


def clean_metric(manifest: RunManifest, key: str) -> Quantity:
    """A figure of the clean pass, from the manifest."""
    reasons = []
    for stage in _timed_stages(manifest, key):
        metric = stage.metrics.get(key)
        if metric is not None and isinstance(metric.value, int | float):
            source = metric.source or MANIFEST_FILE
            return Known(
                value=float(metric.value), unit=metric.unit, how=metric.how, source=source, spread=metric.spread
            )
        reasons.append(metric.reason if metric is not None and metric.reason else _no_metric(stage.name, stage.reason))
    if reasons:
        return Unknown(reason=reasons[0] or "not measured")
    return Unknown(reason="no clean pass was run", enable=ENABLE_CLEAN)


def _timed_stages(manifest: RunManifest, key: str) -> list[StageRecord]:
    """The stages that give a clean pass, the better-informed one first, then profilers that recorded their own.

    A profiler that ran alone made a clean pass to compare with.
    """
    rank = {name: index for index, name in enumerate(CLEAN_PASS_ORDER)}
    clean = [stage for stage in manifest.stages if stage.declared.gives_clean_pass]
    profilers = [s for s in manifest.stages if s.declared.runs_model and s not in clean and key in s.metrics]
    return [*sorted(clean, key=lambda stage: rank.get(stage.name, len(rank))), *profilers]


def _no_metric(name: str, reason: str | None) -> str:
    if name == GIVEN:
        return "it was not given"
    return f"stage {name}: {reason}" if reason else f"stage {name} did not measure it"


def phase_facts(name: str, files: RunFiles, *, cpu: bool) -> PhaseFacts:
    wall = clean_metric(files.manifest, WALL_METRIC[name])
    record = phase_record(name, files)
    return PhaseFacts(
        name=name,
        wall=wall,
        datasheet=_bound(record, files, "datasheet"),
        achievable=unbeaten(_bound(record, files, "achievable"), wall) if cpu else _bound(record, files, "achievable"),
        flops=_work(record, files, "flops_needed", "FLOP"),
        bytes=_work(record, files, "bytes_needed", "bytes"),
        gpu=ON_CPU if cpu else _gpu(name, files),
        is_cpu=cpu,
        operators=_operators(name, files, wall),
        between_operators_ms=_between_operators_ms(name, files),
        limit=record.limit if isinstance(record, StaticPhase) else None,
        steps_per_request=1.0 if name == PREFILL else _steps(files),
    )


def phase_record(name: str, files: RunFiles) -> StaticPhase | Unknown:
    if isinstance(files.static, Unknown):
        return files.static
    found = files.static.content.phases.get(name)
    if found is None:
        return Unknown(reason=f"{files.static.source} has no phase {name}")
    return _other_input(name, found, files.static.content, measured_prompt(files)) or found


def measured_prompt(files: RunFiles) -> float | None:
    """The tokens of a typical prompt in the clean pass."""
    stats = files.metrics.content.clean.metrics.get("prompt_tokens") if isinstance(files.metrics, Found) else None
    return stats.p50 if stats is not None else None


def _other_input(name: str, record: StaticPhase, static: StaticDocument, measured: float | None) -> Unknown | None:
    """Why what was predicted must not be compared with what was measured: it is for another length of prompt."""
    assumed = static.workload.prompt_tokens
    if measured is None or not assumed:
        return None
    if name == PREFILL or static.kv_bytes_per_token is None or record.bytes_needed is None:
        apart = abs(measured - assumed) / assumed
    else:
        # A decode step depends on the prompt only through the cache it reads.
        apart = abs(measured - assumed) * static.kv_bytes_per_token * static.workload.batch / record.bytes_needed
    if apart <= SAME_INPUT:
        return None
    return Unknown(
        reason=f"static analysis assumed a prompt of {assumed:,} tokens, the clean pass read {measured:,.0f}",
        enable="pipeline.static_analysis.use_synthetic_inputs=false",
    )


def _bound(record: StaticPhase | Unknown, files: RunFiles, kind: str) -> Quantity:
    if isinstance(record, Unknown) or isinstance(files.static, Unknown):
        return record if isinstance(record, Unknown) else Unknown(reason="no static analysis")
    bound = record.bound_ms
    is_sheet = kind == "datasheet"
    value, reason = (
        (bound.datasheet, bound.datasheet_reason) if is_sheet else (bound.achievable, bound.achievable_reason)
    )
    hardware = files.static.content.hardware
    if value is None:
        return Unknown(
            reason=reason or f"no {kind} ceiling of {hardware.name or 'this hardware'} is known",
            enable=None if is_sheet or files.static.content.closed_form_reason else "hardware.calibrate=true",
        )
    word = f"peaks of the data sheet of {hardware.name}" if is_sheet else f"rates reached on {hardware.name}"
    how = f"larger of compute and memory time at the {word}, {shape_text(files.static.content)}"
    return Known(value=value, unit="ms", how=how, source=files.static.source)


def unbeaten(bound: Quantity, wall: Quantity) -> Quantity:
    """Drop bounds that the run beat: a CPU's rates are measured during the run, too low on a busy machine."""
    if isinstance(bound, Known) and isinstance(wall, Known) and wall.value < bound.value:
        return Unknown(
            reason=f"the run took {format_ms(wall.value)}, less than the {format_ms(bound.value)} that rates measured "
            "on this CPU allow: it was busy with something else while they were measured; run again when it is idle"
        )
    return bound


def shape_text(static: StaticDocument) -> str:
    work = static.workload
    context = f", context {work.context}" if work.context is not None else ""
    return f"batch {work.batch}, prompt {work.prompt_tokens}{context}"


def _work(record: StaticPhase | Unknown, files: RunFiles, key: str, unit: str) -> Quantity:
    if isinstance(record, Unknown):
        return record
    value = record.flops_needed if key == "flops_needed" else record.bytes_needed
    source = files.static.source if isinstance(files.static, Found) else None
    if value is not None:
        return Known(value=value, unit=unit, how="closed form from the model's configuration", source=source)
    if key == "flops_needed" and record.counted_flops is not None:
        how = "operators counted on the meta device, what attention masks included"
        return Known(value=record.counted_flops, unit=unit, how=how, source=source)
    reason = files.static.content.closed_form_reason if isinstance(files.static, Found) else None
    return Unknown(reason=reason or "the static analysis does not say")


def _gpu(name: str, files: RunFiles) -> GpuFacts | Unknown:
    if isinstance(files.capture, Unknown):
        return files.capture
    row = find_range(files.capture.content, PHASE_RANGE[name])
    if row is None or row.instances == 0:
        return Unknown(
            reason=f"{files.capture.source} has no range {PHASE_RANGE[name]}",
            enable=f"NVTX ranges named {PHASE_RANGE[name]} in the workload",
        )
    if row.kernel_count == 0:
        return Unknown(reason=f"no kernel was recorded inside the range {PHASE_RANGE[name]}")
    if row.gpu_busy_ns is None or row.typical.idle is None:
        return Unknown(reason=f"{files.capture.source} holds no GPU times of the range {PHASE_RANGE[name]}")
    return gpu_of_range(row, row.gpu_busy_ns, row.typical.idle, files.capture.source)


def _operators(name: str, files: RunFiles, wall: Quantity) -> Quantity:
    """Time inside operators: their share of the profiled phase, of the clean wall time."""
    if isinstance(files.trace, Unknown):
        return files.trace
    tree = files.trace.content.tree
    if tree is UNSET or not tree.phase_ns.get(name) or name not in tree.operator_ns:
        return Unknown(reason=f"{files.trace.source} does not say how much of {name} was inside operators")
    if isinstance(wall, Unknown):
        return wall
    share = min(1.0, tree.operator_ns[name] / tree.phase_ns[name])
    how = f"{100 * share:.1f} % of the profiled {name} was inside operators, taken of the clean wall time"
    return Known(value=share * wall.value, unit="ms", how=how, source=files.trace.source, is_estimate=True)


def _between_operators_ms(name: str, files: RunFiles) -> float | None:
    """What passes outside operators, for each of them; None where the trace does not list them all."""
    tree = UNSET if isinstance(files.trace, Unknown) else files.trace.content.tree
    if tree is UNSET or tree.by != "cpu_time" or tree.left_out or name not in tree.operator_ns:
        return None
    count = sum(row.count for row in tree.rows if row.phase == name)
    return (tree.phase_ns.get(name, 0) - tree.operator_ns[name]) / count / 1e6 if count else None


def _steps(files: RunFiles) -> float | None:
    tokens = clean_metric(files.manifest, "tokens")
    if isinstance(tokens, Known):
        return max(tokens.value - 1, 0.0)
    if isinstance(files.capture, Unknown):
        return None
    steps, loops = find_range(files.capture.content, DECODE_STEP), find_range(files.capture.content, DECODE)
    return steps.instances / loops.instances if steps and loops and loops.instances else None


# The driver's word for a GPU without work.
GPU_IDLE = "gpu_idle"


def gather(files: RunFiles, ncu: NcuAnalysis | None) -> RunFacts:
    """All figures of a run; `ncu` is what `joined_ncu` found."""
    cpu = is_cpu(files)
    static = files.static.content if isinstance(files.static, Found) else None
    phases = {name: phase_facts(name, files, cpu=bool(cpu)) for name in PHASES}
    return RunFacts(
        dtype=_dtype(files),
        is_cpu=cpu,
        batch=static.workload.batch if static else None,
        context=static.workload.context if static else None,
        phases=phases,
        kernels=_kernels(files, ncu),
        copies=_copies(files),
        memory=_memory(files),
        slowdowns=_slowdowns(files),
        clocks=_clocks(files),
        kernel_source=files.capture.source if isinstance(files.capture, Found) else _kernel_source(files),
        ncu_source=files.ncu.source if isinstance(files.ncu, Found) else "",
        bytes_per_s=_bandwidth(static),
        request_ms=value_of(clean_metric(files.manifest, "e2e_ms")),
        prepare=clean_metric(files.manifest, "prepare_ms"),
        deployment=files.metrics.content.deployment if isinstance(files.metrics, Found) else None,
        host=None
        if isinstance(files.host, Unknown)
        else HostFacts(
            samples=files.host.content, source=files.host.source, wall=clean_metric(files.manifest, "wall_ms")
        ),
        is_compiled=isinstance(files.generated, Found) and bool(files.generated.content.kernels),
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
                min_ns=k.min_ns,
                max_ns=k.max_ns,
                stddev_ns=k.stddev_ns,
            )
            for k in files.capture.content.shown.kernels
        )
    return ()


def _kernel_source(files: RunFiles) -> str:
    return files.ncu.source if isinstance(files.ncu, Found) else ""


def _copies(files: RunFiles) -> tuple[CopyFacts, ...]:
    if isinstance(files.capture, Unknown):
        return ()
    return tuple(
        CopyFacts(kind=c.kind, instances=c.instances, total_ns=c.total_ns, size_bytes=c.size_bytes)
        for c in files.capture.content.shown.copies
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
        weight_dtype=_weight_dtype(static.content) if isinstance(static, Found) else None,
        reserved=_watched(files.manifest, "measured_reserved_peak_bytes"),
        allocated=_watched(files.manifest, "measured_peak_bytes"),
    )


def _watched(manifest: RunManifest, key: str) -> Quantity:
    """A figure of a stage that watched the allocator of a GPU."""
    for stage in manifest.stages:
        metric = stage.metrics.get(key)
        if metric is not None and isinstance(metric.value, int | float):
            return Known(
                value=float(metric.value), unit=metric.unit, how=metric.how, source=metric.source or MANIFEST_FILE
            )
    return NOT_WATCHED


def _kv_dtype(static: StaticDocument) -> str:
    return static.dtype if static.dtypes is None else static.dtypes.kv


def _weight_dtype(static: StaticDocument) -> str:
    return static.dtype if static.dtypes is None else static.dtypes.weight


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
        kind = files.capture.content.sources[0].kind if files.capture.content.sources else "capture"
        label = f"{TORCH_PROFILER if kind == 'torch' else kind}, {name}"
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

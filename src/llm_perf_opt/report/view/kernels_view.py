"""Kernels: one row each, times joined with what ncu measured and what its bytes and FLOPs cost at the roofline."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec import UNSET

from llm_perf_opt.capture.kernels.names import classify_kernel, short_kernel_name
from llm_perf_opt.capture.kernels.ncu_records import NcuAnalysis, NcuKernel
from llm_perf_opt.capture.timeline import LaunchShape
from llm_perf_opt.diagnosis.facts import GpuFacts, KernelFacts, PhaseKernel, RunFacts, Unknown
from llm_perf_opt.report.run_files import Found, RunFiles

VIEWS = ("all", "prefill", "decode")
WHOLE = "the whole capture"
# By view, as times are.
Modules = tuple[str | None, str | None, str | None]
NO_MODULES: Modules = (None, None, None)
MODULES_NAMED = 3
MOST_SHAPES = 2


@dataclass(frozen=True, kw_only=True)
class KernelRowView:
    """One kernel; None stands for unknown. By view, as `time_ms`, are `launches` and the `modules` that launch it.

    The views are the whole capture, one prefill and one token. `shapes` are its launches in the timeline drawn, the
    most frequent first; ncu says more of them where it looked.

    `ncu` is what ncu measured; `floor_us` is the time its FLOPs and bytes need at the data sheet's peaks; `generated`
    is the source torch.compile wrote for it, by its path in the run.
    """

    name: str
    short_name: str
    kernel_class: str
    time_ms: tuple[float | None, float | None, float | None]
    launches: tuple[float | None, float | None, float | None]
    mean_us: float | None
    ncu: NcuKernel | None
    floor_us: float | None
    modules: Modules = NO_MODULES
    generated: str | None = None
    min_us: float | None = None
    max_us: float | None = None
    stddev_us: float | None = None
    shapes: tuple[LaunchShape, ...] = ()

    @property
    def grids(self) -> tuple[str, ...]:
        return self.ncu.grids if self.ncu is not None and self.ncu.grids else _sizes(s.grid for s in self.shapes)

    @property
    def blocks(self) -> tuple[str, ...]:
        return self.ncu.blocks if self.ncu is not None and self.ncu.blocks else _sizes(s.block for s in self.shapes)

    @property
    def registers(self) -> float | None:
        measured = self.ncu.registers_per_thread if self.ncu is not None else None
        return measured if measured is not None or not self.shapes else self.shapes[0].registers

    @property
    def shared_bytes(self) -> float | None:
        measured = self.ncu.shared_bytes_per_block if self.ncu is not None else None
        return measured if measured is not None or not self.shapes else self.shapes[0].shared_bytes

    @property
    def module(self) -> str | None:
        """Over the whole trace."""
        return self.modules[0]


def _sizes(found: Iterable[tuple[int, ...]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(f"({', '.join(str(n) for n in size)})" for size in found))


@dataclass(frozen=True, kw_only=True)
class KernelsView:
    """`totals_ms` are the kernel times of the views; `join` states how many kernels ncu knows.

    `place` is what the first view is of: the whole capture, or its steady state.
    """

    rows: tuple[KernelRowView, ...]
    totals_ms: tuple[float | None, float | None, float | None]
    join: str
    notes: tuple[str, ...]
    source: str | None
    ncu_source: str | None
    missing: Unknown | None = None
    place: str = WHOLE


def kernels_view(files: RunFiles, facts: RunFacts, ncu: NcuAnalysis | None) -> KernelsView:
    phases = {name: _by_name(facts, name) for name in VIEWS[1:]}
    sources = _Sources(files)
    rows = [_row(k, phases, sources) for k in facts.kernels] or _ncu_only(ncu, sources)
    return KernelsView(
        rows=tuple(rows),
        totals_ms=(
            sum(row.time_ms[0] or 0.0 for row in rows) or None,
            _busy(facts, "prefill"),
            _busy(facts, "decode"),
        ),
        join=_join(facts, ncu) if rows else "",
        notes=tuple(_notes(files, facts, ncu)),
        source=facts.kernel_source or None,
        ncu_source=facts.ncu_source or None,
        missing=None if rows else _missing(files, facts),
        place=(files.capture.content.shown.of_scope if isinstance(files.capture, Found) else None) or WHOLE,
    )


def _launch_shapes(files: RunFiles) -> dict[str, tuple[LaunchShape, ...]]:
    """How each kernel was launched, by its name, in the timelines drawn."""
    counted: dict[str, Counter[LaunchShape]] = {}
    for found in files.timelines:
        window = found.content
        pairs = Counter((kernel[3], shape) for kernel, shape in zip(window.kernels, window.shapes, strict=False))
        for (name, shape), count in pairs.items():
            if shape >= 0:
                counted.setdefault(window.names[name], Counter())[window.launch_shapes[shape]] += count
    return {name: tuple(shape for shape, _ in shapes.most_common(MOST_SHAPES)) for name, shapes in counted.items()}


def _missing(files: RunFiles, facts: RunFacts) -> Unknown:
    if facts.is_cpu:
        return Unknown(reason="the model ran on the CPU: there are no GPU kernels; see the operators")
    if isinstance(files.capture, Found):
        return Unknown(reason=f"{files.capture.source} holds no kernel")
    return files.capture


def _by_name(facts: RunFacts, phase: str) -> dict[str, PhaseKernel] | None:
    gpu = facts.phases[phase].gpu
    if not isinstance(gpu, GpuFacts) or gpu.kernels is None:
        return None
    return {k.name: k for k in gpu.kernels}


def _busy(facts: RunFacts, phase: str) -> float | None:
    gpu = facts.phases[phase].gpu
    return gpu.kernel_sum_ms if isinstance(gpu, GpuFacts) else None


class _Sources:
    """What else is known of a kernel by its name: its floor, the source torch.compile wrote, modules and launches."""

    def __init__(self, files: RunFiles) -> None:
        self.floors = _Floors(files)
        self._present = files.present
        self._modules = modules_of_kernels(files)
        self._shapes = _launch_shapes(files)
        generated = files.generated.content.kernels if isinstance(files.generated, Found) else ()
        self._written = {kernel.name: kernel for kernel in generated}

    def generated(self, name: str) -> str | None:
        written = self._written.get(name)
        return written.file if written is not None and written.file in self._present else None

    def modules(self, name: str) -> Modules:
        """Those measured; of a compiled kernel, whose step opens no ranges, those of the operations in it."""
        measured, written = self._modules.get(short_kernel_name(name), NO_MODULES), self.written_modules(name)
        whole, prefill, decode = (found or named for found, named in zip(measured, written, strict=True))
        return whole, prefill, decode

    def written_modules(self, name: str) -> Modules:
        written = self._written.get(name)
        named = None if written is None else ", ".join(written.modules) or None
        return named, named, named

    def shapes(self, name: str) -> tuple[LaunchShape, ...]:
        return self._shapes.get(name, ())


def modules_of_kernels(files: RunFiles) -> dict[str, Modules]:
    """The modules that launch a kernel in each view, by its short name, from the torch trace; most time first."""
    if isinstance(files.trace, Unknown) or files.trace.content.tree is UNSET:
        return {}
    times: dict[str, dict[str, dict[str, int]]] = {}
    for row in files.trace.content.tree.rows:
        if row.kernel is None:
            continue
        for view in ("all", row.phase):
            found = times.setdefault(row.kernel, {}).setdefault(view, {})
            found[row.module] = found.get(row.module, 0) + row.time_ns
    return {kernel: _by_view(found) for kernel, found in times.items()}


def _by_view(found: dict[str, dict[str, int]]) -> Modules:
    whole, prefill, decode = (_modules(found[view]) if view in found else None for view in VIEWS)
    return whole, prefill, decode


def _modules(times: dict[str, int]) -> str:
    total = sum(times.values())
    ranked = sorted(times.items(), key=lambda item: -item[1])[:MODULES_NAMED]
    if len(times) == 1 or not total:
        return ranked[0][0]
    return ", ".join(f"{name} {100 * time / total:.0f} %" for name, time in ranked)


def _row(
    kernel: KernelFacts,
    phases: dict[str, dict[str, PhaseKernel] | None],
    sources: _Sources,
) -> KernelRowView:
    prefill, decode = (None if table is None else table.get(kernel.name) for table in phases.values())
    return KernelRowView(
        name=kernel.name,
        short_name=kernel.short_name,
        kernel_class=kernel.kernel_class,
        time_ms=(
            kernel.total_ns / 1e6,
            prefill.ms_per_step if prefill else None,
            decode.ms_per_step if decode else None,
        ),
        launches=(
            float(kernel.instances),
            prefill.per_step if prefill else None,
            decode.per_step if decode else None,
        ),
        mean_us=kernel.avg_ns / 1e3,
        ncu=kernel.ncu,
        floor_us=sources.floors.floor_us(kernel.ncu),
        modules=sources.modules(kernel.name),
        generated=sources.generated(kernel.name),
        shapes=sources.shapes(kernel.name),
        min_us=None if kernel.min_ns is None else kernel.min_ns / 1e3,
        max_us=None if kernel.max_ns is None else kernel.max_ns / 1e3,
        stddev_us=None if kernel.stddev_ns is None else kernel.stddev_ns / 1e3,
    )


def _ncu_only(ncu: NcuAnalysis | None, sources: _Sources) -> list[KernelRowView]:
    """Kernels of an ncu report without a timeline."""
    return [
        KernelRowView(
            name=k.kernel,
            short_name=k.short,
            kernel_class=classify_kernel(k.kernel),
            time_ms=(None if k.duration_ns is None else k.launches * k.duration_ns / 1e6, None, None),
            launches=(float(k.launches), None, None),
            mean_us=None if k.duration_ns is None else k.duration_ns / 1e3,
            ncu=k,
            floor_us=sources.floors.floor_us(k),
            modules=sources.written_modules(k.kernel),
            generated=sources.generated(k.kernel),
            shapes=sources.shapes(k.kernel),
            min_us=None if k.duration_min_ns is None else k.duration_min_ns / 1e3,
            max_us=None if k.duration_max_ns is None else k.duration_max_ns / 1e3,
        )
        for k in (ncu.kernels if ncu else ())
    ]


class _Floors:
    """The time a kernel's own bytes and FLOPs need at the data sheet's peaks, where there are none at calibrated ones.

    A calibration is what some kernels reached; a good one can be faster, and would then run below its floor.
    """

    def __init__(self, files: RunFiles) -> None:
        static = files.static.content if isinstance(files.static, Found) else None
        hardware = static.hardware if static else None
        self._bytes_per_s = None
        self._flops_per_s = None
        if static is not None and hardware is not None:
            bandwidth = hardware.memory_bandwidth_gb_s or hardware.achieved_bandwidth_gb_s
            rates = hardware.peak_tflops or hardware.achieved_tflops
            self._bytes_per_s = None if bandwidth is None else bandwidth * 1e9
            self._flops_per_s = rates[static.dtype] * 1e12 if static.dtype in rates else None

    def floor_us(self, ncu: NcuKernel | None) -> float | None:
        if ncu is None or ncu.flop is None or ncu.dram_bytes is None:
            return None
        if self._bytes_per_s is None or self._flops_per_s is None:
            return None
        return 1e6 * max(ncu.flop / self._flops_per_s, ncu.dram_bytes / self._bytes_per_s)


def _join(facts: RunFacts, ncu: NcuAnalysis | None) -> str:
    if ncu is None:
        return "ncu did not measure kernels: bound, % of peak, bandwidth, FLOP/s and occupancy are unknown."
    if not facts.kernels or ncu.match_rate is None:
        return f"{len(ncu.kernels)} kernels, times of the launches ncu measured, at the clocks it sets."
    covered = sum(k.total_ns for k in facts.kernels if k.ncu is not None)
    total = sum(k.total_ns for k in facts.kernels)
    share = f"{100 * covered / total:.0f} % of the kernel time" if total else "no kernel time"
    return (
        f"{ncu.matched} of {len(ncu.kernels)} kernels measured by ncu found on the timeline "
        f"({100 * ncu.match_rate:.0f} %), {share}."
    )


def _notes(files: RunFiles, facts: RunFacts, ncu: NcuAnalysis | None) -> list[str]:
    notes = list(ncu.notes) if ncu else []
    if ncu and ncu.unmatched:
        notes.append("Not found on the timeline: " + "; ".join(name[:120] for name in ncu.unmatched[:5]))
    if isinstance(files.capture, Found):
        notes += files.capture.content.notes
    for name in VIEWS[1:]:
        gpu = facts.phases[name].gpu
        if isinstance(gpu, GpuFacts) and gpu.kernels is not None:
            listed = sum(k.ms_per_step for k in gpu.kernels)
            if gpu.kernel_sum_ms - listed > 0.01 * gpu.kernel_sum_ms:
                share = 100 * listed / gpu.kernel_sum_ms
                notes.append(f"{name}: the {len(gpu.kernels)} kernels listed take {share:.0f} % of its time")
    return notes

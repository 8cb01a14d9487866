"""Stage memory: the workload once more with a watcher inside, then what it wrote, alongside what was predicted."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from annotated_types import Ge, Gt, Le

from llm_perf_opt.plugin import (
    Host,
    Metric,
    Obstacle,
    ParseError,
    StageConfig,
    StageContext,
    StageFailed,
    StageFile,
    StageOutput,
    WorkloadRun,
    run_workload,
    sample_gpus,
)
from llm_perf_opt.plugins.memory.cpu import RESIDENT, read_resident
from llm_perf_opt.plugins.memory.cuda import SNAPSHOT
from llm_perf_opt.plugins.memory.document import MemoryDocument
from llm_perf_opt.plugins.memory.section import memory_sections, write_counters
from llm_perf_opt.plugins.memory.watcher import MEMORY_JSON, OOM_JSON, OOM_SNAPSHOT

WATCHER = "llm_perf_opt.plugins.memory.watcher:MemoryWatcher"
STATIC = "static_analysis"
# What static analysis calls what is measured here.
PREDICTED = {
    "weights_bytes": "weights_bytes",
    "kv_cache_bytes": "kv_cache_bytes",
    "activations_bytes": "activations_bytes",
    "peak_bytes": "peak_bytes",
}
ENDED_BY_KERNEL = 9
TAIL = 3


@dataclass(frozen=True, kw_only=True)
class MemoryConfig(StageConfig):
    """`pipeline.memory.*`: how much history is kept on a GPU, how long tensors are recorded on a CPU."""

    max_entries: Annotated[int, Ge(1000)] = 300_000
    interval_ms: Annotated[float, Gt(0.0), Le(60_000.0)] = 20.0
    max_decode_steps: Annotated[int, Ge(0)] = 8
    warmup_rounds: Annotated[int, Ge(0)] = 0


class MemoryStage:
    """See the module."""

    name = "memory"
    config_cls = MemoryConfig
    after: tuple[str, ...] = ("static_analysis", "torch_profiler", "direct_inference", "energy")
    tools: tuple[str, ...] = ()
    runs_model = True
    needs_our_model = True

    def preflight(self, cfg: MemoryConfig, host: Host) -> Sequence[Obstacle]:
        return ()

    def run(self, cfg: MemoryConfig, ctx: StageContext) -> StageOutput:
        """Run the workload with the watcher; of one that ran out of memory, what was there is kept all the same."""
        for name in (MEMORY_JSON, OOM_JSON, SNAPSHOT, OOM_SNAPSHOT, RESIDENT):
            (ctx.out_dir / name).unlink(missing_ok=True)
        with sample_gpus(ctx, interval_s=0.05) as before:
            pass
        used = [s.memory_used_bytes for gpu in before for s in gpu.samples if s.memory_used_bytes is not None]
        work = run_workload(
            ctx,
            timeout_s=cfg.timeout_s,
            warmup_rounds=cfg.warmup_rounds,
            repeats=1,
            watcher=WATCHER,
            settings={
                "max_entries": cfg.max_entries,
                "interval_ms": cfg.interval_ms,
                "max_decode_steps": cfg.max_decode_steps,
                "used_before_bytes": min(used, default=None),
            },
            check=False,
        )
        ran_out = _read(ctx, OOM_JSON)
        document = _read(ctx, MEMORY_JSON) or ran_out
        if not work.result.ok:
            raise StageFailed(_post_mortem(ctx, work, ran_out), output=self._output(ctx, work, document, ran_out))
        if document is None:
            raise ParseError(f"{ctx.out_dir / MEMORY_JSON}: the workload exited with 0 but did not write it")
        return self._output(ctx, work, document, ran_out)

    def _output(
        self, ctx: StageContext, work: WorkloadRun, document: MemoryDocument | None, ran_out: MemoryDocument | None
    ) -> StageOutput:
        roles = {
            MEMORY_JSON: "memory_json",
            OOM_JSON: "memory_oom_json",
            SNAPSHOT: "memory_snapshot",
            OOM_SNAPSHOT: "memory_snapshot",
            RESIDENT: "memory_resident",
        }
        files = [StageFile(role=role, path=ctx.out_dir / name) for name, role in roles.items()]
        files = [file for file in files if file.path.is_file()]
        if document is None:
            return StageOutput(files=tuple(files), notes=work.notes)
        predicted, why = predictions(ctx)
        name = MEMORY_JSON if (ctx.out_dir / MEMORY_JSON).is_file() else OOM_JSON
        source = f"{ctx.out_dir.name}/{name}"
        files.append(StageFile(role="counters", path=write_counters(ctx.out_dir, document)))
        return StageOutput(
            metrics=memory_metrics(document, predicted, why, source),
            files=tuple(files),
            notes=(*work.notes, *document.notes),
            samples=work.samples,
            sections=memory_sections(ctx, document, ran_out, predicted, why, source),
        )


def _read(ctx: StageContext, name: str) -> MemoryDocument | None:
    """What the watcher wrote: plain JSON. A snapshot is never opened."""
    path = ctx.out_dir / name
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=MemoryDocument)
    except msgspec.DecodeError as error:
        raise ParseError(f"{path}: is invalid ({error})") from error


def _post_mortem(ctx: StageContext, work: WorkloadRun, ran_out: MemoryDocument | None) -> str:
    """Why the workload died, and what of its memory is known."""
    result = work.result
    log = f"log: {result.log}"
    if result.timed_out:
        return f"the workload did not end within {result.duration_s:.0f} s (pipeline.memory.timeout_s; {log})"
    if ran_out is not None and ran_out.ran_out is not None:
        peak = ran_out.peak
        held = (
            "" if peak is None else f"; at its peak {_gb(peak.total_bytes)} were allocated ({_largest(peak.by_kind)})"
        )
        what = f"{ctx.out_dir.name}/{OOM_JSON}"
        return f"the workload ran out of memory: {ran_out.ran_out.error}{held}; what was allocated is in {what} ({log})"
    resident = read_resident(ctx.out_dir / RESIDENT)
    if result.exit_code == -ENDED_BY_KERNEL and resident:
        last = f"its resident set was {_gb(resident[-1][1])} then, {_gb(max(size for _, size in resident))} at most"
        where = f"{ctx.out_dir.name}/{RESIDENT}"
        return f"the workload was ended by signal 9, as the system does when memory runs out; {last} ({where}; {log})"
    lines = [line for line in result.tail.splitlines() if line.strip()][-TAIL:]
    return f"the workload failed with exit code {result.exit_code}: {'; '.join(lines) or 'it printed nothing'} ({log})"


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


def _largest(by_kind: Mapping[str, int]) -> str:
    rows = sorted(by_kind.items(), key=lambda row: -row[1])
    return ", ".join(f"{name.replace('_', ' ')} {_gb(size)}" for name, size in rows if size)


def predictions(ctx: StageContext) -> tuple[Mapping[str, float], str | None]:
    """What static analysis says the model needs, or why nothing is known of that."""
    record = ctx.earlier.get(STATIC)
    path = None if record is None or record.status != "ok" else record.file("static_json")
    if path is None or not path.is_file():
        return {}, "static analysis predicts it: pipeline.static_analysis.enable=true"
    memory: Mapping[str, Any] = json.loads(path.read_bytes()).get("memory") or {}
    found = {ours: memory[theirs] for ours, theirs in PREDICTED.items() if memory.get(theirs) is not None}
    return found, None if found else str(memory.get("reason") or "static analysis predicts no memory of this model")


def memory_metrics(
    document: MemoryDocument, predicted: Mapping[str, float], why: str | None, source: str
) -> Mapping[str, Metric]:
    """The stage's numbers."""
    peak = document.peak
    of_peak = document.measured_peak_bytes or (None if peak is None else peak.total_bytes)
    by_torch = "torch.cuda.max_memory_allocated, the highest of loading and all phases"
    by_sum = "weights and what torch.profiler saw allocated, at the highest moment"
    values: dict[str, tuple[float | None, str]] = {
        "weights_bytes": (document.weights_bytes, "storages of all parameters and buffers"),
        "kv_cache_bytes": (document.kv_cache_bytes, "storages reachable from the state of a step, most of all steps"),
        "activations_bytes": (document.activations_bytes, "allocated in a request and freed before it ended, at most"),
        "workspace_bytes": (document.workspace_bytes, "allocated in a request and kept after it, at most"),
        "peak_bytes": (of_peak, by_torch if document.measured_peak_bytes else by_sum),
        "reserved_peak_bytes": (document.reserved_peak_bytes, "torch.cuda.max_memory_reserved"),
        "resident_peak_bytes": (max((s for _, s in document.resident), default=None), "resident set of the process"),
    }
    metrics = {}
    for name, (value, how) in values.items():
        if value is not None:
            metrics[f"measured_{name}"] = Metric(value=value, unit="bytes", how=how, source=source)
    for name in PREDICTED:
        ratio = _difference_pct(predicted.get(name), values[name][0])
        reason = None if ratio is not None else why or "it was not measured"
        metrics[f"{name.removesuffix('_bytes')}_prediction_error_pct"] = Metric(
            value=ratio, unit="%", how="predicted against measured", source=source, reason=reason
        )
    return metrics


def _difference_pct(predicted: float | None, measured: float | None) -> float | None:
    return None if predicted is None or not measured else 100 * (predicted / measured - 1)


STAGE = MemoryStage()

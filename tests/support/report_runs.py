"""Run directories for tests of the report: the H200 capture through `llm-perf analyze`, and runs made by hand."""

import json
import lzma
from pathlib import Path
from typing import Any

import msgspec

from llm_perf_opt.capture.rows import KernelRow
from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import RunManifest, write_manifest
from llm_perf_opt.core.records import Metric, StageFile, StageRecord
from llm_perf_opt.diagnosis.diagnosis_document import CaptureAnalysis, GpuTotals, GraphTotals, SourceRow
from llm_perf_opt.profiling.baseline import clean_metrics
from llm_perf_opt.profiling.user_program import ProgramRun, describe_program
from tests.support.fixtures_dir import DATA
from tests.support.nsys_builder import h200_export


def analyze_h200(folder: Path, *, ncu: bool = True, context: bool = True) -> Path:
    """The capture with the clean times measured alongside it, as a user would give them."""
    scratch = folder / "captures"
    scratch.mkdir(parents=True)
    files = [str(h200_export(scratch))]
    if ncu:
        for page in ("raw", "details"):
            path = scratch / f"{page}.csv"
            path.write_bytes(lzma.decompress((DATA / f"ncu_{page}.csv.xz").read_bytes()))
            files.append(str(path))
    out = folder / "h200"
    said = ["model=llama3_1b", "hardware=h200", "workload.prompt=1024"] if context else []
    clean = ["--clean-prefill-ms", "15.90", "--clean-tpot-ms", "15.13"] if context else []
    assert main(["analyze", "-v", *files, "-o", str(out), *said, *clean]) == 0
    return out


def write_run(folder: Path, *stages: StageRecord, status: str = "ok", day: int = 1, **parts: Any) -> Path:
    """A run directory with this manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    manifest = RunManifest(
        created_at=f"2025-01-{day:02d}T00:00:00+00:00",
        status=status,  # type: ignore[arg-type]
        stages=stages,
        **{"run_id": "made-up", "config": {}, "environment": {}, **parts},
    )
    write_manifest(folder, manifest)
    return folder


def stage(name: str, folder: Path, files: dict[str, tuple[str, Any]] | None = None, **parts: Any) -> StageRecord:
    """A stage with JSON files by role: `{role: (name, content)}`; content is text, a record or what JSON holds."""
    found = []
    for role, (file_name, content) in (files or {}).items():
        path = folder / name / file_name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            content if isinstance(content, str) else json.dumps(msgspec.to_builtins(content)), encoding="utf-8"
        )
        found.append(StageFile(role=role, path=path))
    return StageRecord(name=name, **{"status": "ok", "files": tuple(found), **parts})


def clean(name: str = "torch_profiler", **values: float) -> dict[str, Metric]:
    """Metrics of a clean pass."""
    return {
        key: Metric(
            value=value, unit="ms" if key.endswith("_ms") else "tokens", how="clean pass, median of 3",
            source=f"{name}/metrics.json",
        )
        for key, value in values.items()
    }  # fmt: skip


def capture(*kernels: tuple[str, int, int], notes: tuple[str, ...] = ()) -> CaptureAnalysis:
    """analysis.json of kernels `(name, instances, total ns)`."""
    count, total = sum(k[1] for k in kernels), sum(k[2] for k in kernels)
    rows = [
        KernelRow(
            name=name, short_name=name[:60], kernel_class="GEMM", instances=instances, total_ns=time,
            avg_ns=time / instances, med_ns=time / instances, min_ns=1, max_ns=time, stddev_ns=0.0,
            time_pct=100.0 * time / total,
        )
        for name, instances, time in kernels
    ]  # fmt: skip
    source = SourceRow(
        path="run.sqlite", kind="nsys", producer=None, schema=None, kernel_count=count, kernel_names=len(kernels),
        kernel_ns=total, gpu_busy_ns=total, gpu_span_ns=None, range_count=0, notes=(),
    )  # fmt: skip
    gpu = GpuTotals(
        name="NVIDIA H200", devices=(), devices_used=(), kernel_count=count, kernel_ns=total, busy_ns=total,
        span_ns=None, idle_ns=None, idle=None,
    )  # fmt: skip
    return CaptureAnalysis(
        sources=(source,), gpu=gpu, kernels=tuple(rows), copies=(), ranges=(), findings=(), notes=notes,
        graphs=GraphTotals(launches_traced_as_a_whole=0, total_ns=0),
    )  # fmt: skip


HOSTILE = '<script>document.title="owned"</script>|`x`\\ </script><!--'


def hostile_run(tmp_path: Path) -> Path:
    """A run whose every text tries to be markup."""
    run = tmp_path / "run"
    data = capture((HOSTILE, 4, 4_000_000), ("plain_kernel", 2, 1_000_000), notes=(HOSTILE,))
    return write_run(
        run,
        stage("nsys", run, {"analysis_json": ("analysis.json", data)}, notes=(HOSTILE,)),
        stage("ncu", run, status="failed", reason=HOSTILE),
        warnings=(HOSTILE,),
        overrides=(HOSTILE,),
    )


def program_without_phases(folder: Path, *walls_ms: float) -> Path:
    """A run of a program that marks nothing: its wall times, and 400 ms of one operator."""
    runs = [ProgramRun(wall_s=wall / 1e3, marks=()) for wall in walls_ms]
    metrics = describe_program(
        ("python", "gen.py"), runs, device_name="a CPU", is_cpu=True, peak_memory_bytes=None, peak_memory_reason="none"
    )
    operators = "name,calls,self_cpu_ns,self_device_ns\naten::mm,10,400000000,\n"
    files = {"metrics": ("metrics.json", metrics), "operators_csv": ("operators.csv", operators)}
    wall = clean_metrics(metrics, "torch_profiler/metrics.json")["wall_ms"]
    config = {"workload": {"command": ["python", "gen.py"]}}
    return write_run(folder, stage("torch_profiler", folder, files, metrics={"wall_ms": wall}), config=config)

"""Names the founding documents give can be called as they are written there."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.profiling.artifacts import Artifacts
from llm_perf_opt.profiling.stages.ncu import supported
from llm_perf_opt.profiling.vendor.ncu import _filter_metrics, build_ncu_cmd, filter_metrics
from tests.founding.composing import TINY, stage, typed, write
from tests.support.fake_ncu import install
from tests.support.fixtures_dir import REPO

WORK = ["python", "work.py"]
SEED_METRICS = [
    *("flop_count_hp", "flop_count_sp", "gpu__time_duration.sum"),
    *("sm__throughput.avg.pct_of_peak_sustained_elapsed", "dram__throughput.avg.pct_of_peak_sustained_elapsed"),
]
COUNTERS = ["gpu__time_duration", "sm__throughput", "dram__throughput"]


def test_199_set_root_makes_the_path_absolute_and_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """004:37-39, 004:96-103"""
    monkeypatch.chdir(tmp_path)
    artifacts = Artifacts()
    with pytest.raises(ConfigError, match=r"no run directory is set; call set_root\(root\) first"):
        artifacts.out_dir("nsys")
    artifacts.set_root("run")
    assert (artifacts.root, artifacts.m_root) == (tmp_path / "run", tmp_path / "run")
    assert not artifacts.root.exists()
    assert artifacts.tmp_dir("workload") == tmp_path / "run" / "tmp" / "workload"


def test_071_create_stage2_root_is_a_deprecated_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """000:63"""
    monkeypatch.chdir(tmp_path)
    with pytest.warns(DeprecationWarning, match=r"use Artifacts.for_run\(root\).root"):
        made = Artifacts.create_stage2_root()
    assert made.is_dir()
    assert made.parent == tmp_path / "tmp" / "runs"


def test_050_build_ncu_cmd_as_document_000_calls_it() -> None:
    """000:206-210: no kernel_regex"""
    argv = build_ncu_cmd(
        Path("/run/ncu/decode"),
        WORK,
        nvtx_expr="decode/",
        use_nvtx=True,
        set_name="roofline",
        metrics=None,
        sections=None,
    )
    assert argv == [
        *("ncu", "--target-processes", "all", "--nvtx", "--nvtx-include", "decode/", "--set", "roofline"),
        *("--replay-mode", "kernel", "--clock-control", "none", "--force-overwrite", "--export", "/run/ncu/decode"),
        *WORK,
    ]


def test_133_build_ncu_cmd_as_document_002_calls_it() -> None:
    """002:184-195: csv_log is taken; ncu writes no rows into a log alongside a report, so it makes no flag"""
    values: dict[str, Any] = {
        "nvtx_expr": "decode*",
        "kernel_regex": "gemm.*",
        "use_nvtx": True,
        "set_name": "roofline",
        "metrics": ["a", "b"],
        "sections": ["SpeedOfLight"],
        "target_processes": "all",
    }
    with pytest.warns(DeprecationWarning, match="build_ncu_import_cmd"):
        argv = build_ncu_cmd(Path("/r/ncu/decode"), WORK, csv_log=Path("/r/ncu/raw.csv"), **values)
    assert argv == build_ncu_cmd(Path("/r/ncu/decode"), WORK, **values)
    assert argv[argv.index("--metrics") + 1] == "a,b"


@pytest.mark.parametrize("kind", [list, ",".join])
def test_126_127_metrics_ncu_does_not_know_are_filtered_from_strings_and_lists(kind: type) -> None:
    """002:79-84, 002:122"""
    kept = kind(SEED_METRICS[2:])
    assert filter_metrics(kind(SEED_METRICS), COUNTERS) == (kept, ("flop_count_hp", "flop_count_sp"))
    assert _filter_metrics(kind(SEED_METRICS), COUNTERS) == kept
    assert _filter_metrics(kind(SEED_METRICS)) == kind(SEED_METRICS)
    assert (_filter_metrics(None), _filter_metrics(None, COUNTERS)) == (None, None)


def test_126_the_example_preset_keeps_the_metrics_ncu_knows_and_notes_each_other(tmp_path: Path) -> None:
    """002:66-87"""
    metrics = "".join(f"    - {name}\n" for name in SEED_METRICS)
    text = (
        "description: Default Nsight Compute preset aligned with script defaults\nncu_cli:\n  target_processes: all\n"
        "  nvtx:\n    include: decode*\n  set: roofline\n  sections:\n    - SpeedOfLight\n"
        "    - MemoryWorkloadAnalysis\n    - Occupancy\n    - SchedulerStats\n"
        f"  metrics:\n{metrics}  export:\n    csv: true\n"
    )
    folder = write(tmp_path, "profiling/ncu/example.yaml", text)
    config = typed(*TINY, "runner=stage2", "profiling/ncu@pipeline.ncu=example", config_dir=folder)
    assert stage(config, "ncu").ncu_cli.metrics == tuple(SEED_METRICS)
    install(tmp_path)
    used, notes = supported(stage(config, "ncu"), str(tmp_path / "ncu"), ())
    assert used.ncu_cli.metrics == (SEED_METRICS[2], SEED_METRICS[3])
    unknown = (*SEED_METRICS[:2], f"{SEED_METRICS[4]} (nearest: sm__throughput)")
    assert notes == tuple(
        f"left out: this ncu has no metric {name} for this GPU (`ncu --query-metrics`)" for name in unknown
    )


def test_211_the_migration_moves_a_nested_run_that_holds_only_files(tmp_path: Path) -> None:
    """004:67"""
    run = tmp_path / "20240101-000000"
    nested = run / "tmp" / run.name
    nested.mkdir(parents=True)
    (nested / "report.md").write_text("old")
    scratch = tmp_path / "nsys" / "tmp" / "nsys"
    scratch.mkdir(parents=True)
    (scratch / "run.exit_code").write_text("0")
    script = REPO / "scripts" / "migrate-run-layout.py"
    for folder in (run, tmp_path / "nsys"):
        done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("nothing to do, it is in the present layout\n")
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == [
        "20240101-000000/report.md",
        "nsys/tmp/nsys/run.exit_code",
    ]


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("profiling.vendor.nsys", ["build_nsys_cmd"]),
        ("profiling.vendor.ncu", ["build_ncu_cmd", "_filter_metrics"]),
        ("profiling.artifacts", ["Artifacts"]),
        ("runners.profile_orchestrator", ["main"]),
        ("runners.llm_profile_runner", ["main"]),
        ("runners.deep_profile_runner", ["main"]),
        ("runners.direct_inference_runner", ["main"]),
    ],
)
def test_modules_have_the_names_the_documents_give(module: str, names: list[str]) -> None:
    found = importlib.import_module(f"llm_perf_opt.{module}")
    assert [name for name in names if not hasattr(found, name)] == []

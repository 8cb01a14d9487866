"""Listing runs, migrating old ones, and looking at the machine."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from llm_perf_opt.commands.doctor import diagnose
from llm_perf_opt.core.host import Gpu, Host, Tool
from llm_perf_opt.core.manifest import RunManifest, read_manifest, write_manifest
from llm_perf_opt.core.records import Metric, StageFile, StageRecord
from llm_perf_opt.errors import ManifestError
from llm_perf_opt.profiling.vendor import vendor_tools as tools
from llm_perf_opt.profiling.vendor.vendor_tools import counters_restricted, importer_trouble, parse_gpus, usable_memory
from tests.support.fixtures_dir import REPO
from tests.support.orchestrator import ALPHA, OFF, llm_perf

MIGRATE = REPO / "scripts" / "migrate-run-layout.py"


def _manifest(run_dir: Path) -> RunManifest:
    return RunManifest(
        run_id="20260101-120000",
        created_at="2026-01-01T12:00:00+00:00",
        status="failed",
        config={"model": {"name": "llama3_8b"}, "run": {"device": "auto"}},
        environment={},
        stages=(
            StageRecord(
                name="torch_profiler",
                status="ok",
                files=(StageFile(role="metrics", path=run_dir / "torch_profiler/metrics.json"),),
                metrics={"device_name": Metric(value="NVIDIA H200", unit="", how="torch")},
            ),
            StageRecord(name="nsys", status="failed", reason="nsys was not found"),
        ),
    )


def _old_run(root: Path) -> Path:
    run = root / "20240101-000000"
    nested = run / "tmp" / "stage2" / run.name
    for name in ("nsys/run.nsys-rep", "ncu/decode.csv", "stage1/metrics.json"):
        path = nested / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return run


def test_a_manifest_survives_moving_the_run(tmp_path: Path) -> None:
    first = tmp_path / "a"
    (first / "torch_profiler").mkdir(parents=True)
    (first / "torch_profiler/metrics.json").write_text("{}")
    write_manifest(first, _manifest(first))
    moved = first.rename(tmp_path / "b")
    assert read_manifest(moved) == _manifest(moved)
    assert "/a/" not in (moved / "manifest.json").read_text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('{"schema_version": 99}', "schema_version is 99, this version reads 1"),
        ("[]", "schema_version is None"),
        ('{"schema_version": 1}', "missing required field"),
    ],
)
def test_an_unreadable_manifest_says_why(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(ManifestError, match=message):
        read_manifest(tmp_path)


def test_runs_lists_new_and_old_runs_and_broken_ones(tmp_path: Path) -> None:
    new = tmp_path / "20260101-120000"
    new.mkdir()
    write_manifest(new, _manifest(new))
    old = _old_run(tmp_path)
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text("{")
    listed = llm_perf("runs", "--json", str(tmp_path), cwd=tmp_path)
    assert listed.code == 0
    rows = {row["run_id"]: row for row in json.loads(listed.out)}
    assert set(rows) == {"20260101-120000", "20240101-000000", "broken"}
    row = rows["20260101-120000"]
    assert [row[key] for key in ("date", "model", "device", "status")] == [
        "2026-01-01 12:00",
        "llama3_8b",
        "NVIDIA H200",
        "failed",
    ]
    assert row["stages"] == "torch_profiler ok, nsys failed"
    assert rows["20240101-000000"]["note"] == f"old layout: python scripts/migrate-run-layout.py --dry-run {old}"
    assert "not valid JSON" in rows["broken"]["note"]
    shown = llm_perf("runs", str(tmp_path), cwd=tmp_path)
    assert shown.code == 0
    assert re.search(r"20260101-120000\s+2026-01-01 12:00\s+llama3_8b\s+NVIDIA H200\s+failed", shown.out)


def _migrate(*args: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(MIGRATE), *args], capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stdout


def test_migration_flattens_an_old_run_after_a_dry_run_that_moves_nothing(tmp_path: Path) -> None:
    run = _old_run(tmp_path)
    before = sorted(p for p in run.rglob("*") if p.is_file())
    code, text = _migrate("--dry-run", str(run))
    assert (code, text.count("would move:")) == (0, 3)
    assert sorted(p for p in run.rglob("*") if p.is_file()) == before
    assert _migrate(str(run))[0] == 0
    files = {str(p.relative_to(run)): p.read_text() for p in run.rglob("*") if p.is_file()}
    assert files == {
        "nsys/run.nsys-rep": "nsys/run.nsys-rep",
        "ncu/decode.csv": "ncu/decode.csv",
        "torch_profiler/metrics.json": "stage1/metrics.json",
    }
    assert not (run / "tmp").exists()
    assert _migrate(str(run)) == (0, f"{run}: nothing to do, it is in the present layout\n")


def test_migration_never_overwrites(tmp_path: Path) -> None:
    run = _old_run(tmp_path)
    (run / "nsys").mkdir()
    (run / "nsys/run.nsys-rep").write_text("mine")
    code, text = _migrate(str(run))
    assert code == 1
    assert "left: " in text
    assert (run / "nsys/run.nsys-rep").read_text() == "mine"
    assert (run / "tmp/stage2" / run.name / "nsys/run.nsys-rep").exists()


def _host(**changes: object) -> Host:
    values: dict[str, object] = {
        "os": "Linux",
        "cpu": "a CPU",
        "cpu_cores": 2,
        "memory_bytes": 1,
        "python": "3.11.7",
        "packages": {"torch": "2.13.0", "transformers": "5.22.2", "nvtx": "0.2.11"},
        "gpus": (Gpu(index=0, name="NVIDIA H200", memory_bytes=143771 << 20, driver="580.1"),),
        "cuda_driver": "13.0",
        "tools": {
            "nsys": Tool(name="nsys", path="/opt/nsys", version="2025.3.1"),
            "ncu": Tool(name="ncu", path="/opt/ncu", version="2025.3.1"),
        },
        "counters_restricted": False,
        "disk_free_bytes": 10**12,
    }
    return Host(**{**values, **changes})  # type: ignore[arg-type]


def test_a_complete_machine_has_no_gap() -> None:
    checks = diagnose(_host())
    assert [c.name for c in checks if not c.ok] == []
    assert [c.name for c in checks] == [
        *("python", "torch", "transformers", "gpu", "driver", "nsys", "nsys importer", "ncu", "gpu counters", "nvtx"),
        *("temporary files", "disk"),
    ]


def test_every_gap_has_a_remedy() -> None:
    bare = _host(
        packages={"torch": None, "transformers": None, "nvtx": None},
        gpus=(),
        tools={"nsys": Tool(name="nsys", problem="nsys was not found", remedy="install it")},
        counters_restricted=True,
        disk_free_bytes=1,
    )
    gaps = [c for c in diagnose(bare) if not c.ok]
    assert [c.name for c in gaps] == [
        *("torch", "transformers", "gpu", "nsys", "nsys importer", "ncu", "gpu counters", "nvtx", "disk")
    ]
    assert [c.name for c in gaps if not c.remedy] == []


def test_a_machine_without_a_gpu_has_no_gap_for_its_driver() -> None:
    checks = diagnose(_host(gpus=(), counters_restricted=None))
    assert [c.name for c in checks if not c.ok] == ["gpu"]
    assert {"driver", "gpu counters"} & {c.name for c in checks} == set()


def test_doctor_knows_which_packages_are_too_old_to_run_models() -> None:
    old = _host(packages={"torch": "2.4.0", "transformers": "4.48.0", "nvtx": "0.2.11"})
    gaps = {c.name: c.remedy for c in diagnose(old) if not c.ok}
    assert list(gaps) == ["torch", "transformers"]
    assert all(remedy is not None and "llm-perf run -- PROGRAM" in remedy for remedy in gaps.values())


def test_doctor_prints_json_with_the_host_and_the_checks(tmp_path: Path) -> None:
    done = llm_perf("doctor", "--json", cwd=tmp_path)
    data = json.loads(done.out)
    assert (done.code, sorted(data)) == (0, ["checks", "host", "schema_version"])
    assert {c["name"]: c["value"] for c in data["checks"]}["python"] == data["host"]["python"]


def test_gpus_as_nvidia_smi_lists_them() -> None:
    text = "0, NVIDIA H200, 143771, 580.159.04, 9.0\n1, NVIDIA L4, 23034, 580.159.04, [N/A]\n"
    assert parse_gpus(text) == (
        Gpu(index=0, name="NVIDIA H200", memory_bytes=143771 << 20, driver="580.159.04", compute_capability="9.0"),
        Gpu(index=1, name="NVIDIA L4", memory_bytes=23034 << 20, driver="580.159.04", compute_capability=None),
    )


SMI = """#!/bin/sh
case "$*" in
  *utilization*) {load} ;;
  *query*) echo "0, NVIDIA H200, 143771, 580.159.04, 9.0" ;;
esac
"""


def _smi(folder: Path, load: str) -> dict[str, str]:
    """An environment with a stand-in of nvidia-smi that answers so when it is queried how busy the GPU is."""
    folder.mkdir(exist_ok=True)
    (folder / "nvidia-smi").write_text(SMI.format(load=load))
    (folder / "nvidia-smi").chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("load", "busy"),
    [
        ('echo "0, GPU-a, 97, 5000\n1, GPU-b, 3, 5000"', {"0": 97, "GPU-a": 97}),
        ('echo "0, GPU-a, 0, 5000\n1, GPU-b, 19, 5000"', {}),
        ('echo "0, GPU-a, [N/A], 5000"', {}),
        # A driver that has just been loaded: no process holds memory.
        ('echo "0, GPU-a, 100, 2"', {}),
        ("exit 9", {}),
        # What has just ended is still reported for a moment.
        ('if [ -e seen ]; then echo "0, GPU-a, 0, 9000"; else touch seen; echo "0, GPU-a, 100, 9000"; fi', {}),
    ],
)
def test_a_gpu_is_busy_when_it_is_so_twice(
    load: str, busy: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "LOAD_WINDOW_S", 0.0)
    monkeypatch.chdir(tmp_path)
    assert tools.busy_gpus(_smi(tmp_path / "bin", load)) == busy


@pytest.mark.long
@pytest.mark.slow
def test_a_run_on_a_gpu_that_others_use_says_so_first(tmp_path: Path) -> None:
    env = _smi(tmp_path / "bin", 'echo "0, GPU-a, 97, 5000"')
    ran = llm_perf("profile", *OFF, ALPHA, f"artifacts.runs_dir={tmp_path / 'run'}", cwd=tmp_path, PATH=env["PATH"])
    said = "GPU 0 was 97 % busy before this run did anything: another program uses it too"
    assert said in ran.out + ran.err
    assert json.loads((tmp_path / "run" / "env.json").read_text())["gpu_busy_pct"] == {"0": 97}
    assert f"> **Unsteady:** {said}" in (tmp_path / "run" / "report.md").read_text()
    assert f"Caution: {said}" in (tmp_path / "run" / "stakeholder_summary.md").read_text()
    # The times that are kept are still those of a shared GPU; that it is idle now, or busy, says nothing of them.
    for load in ("0", "99"):
        _smi(tmp_path / "bin", f'echo "0, GPU-a, {load}, 5000"')
        again = llm_perf("profile", f"run.resume={tmp_path / 'run'}", cwd=tmp_path, PATH=env["PATH"])
        assert again.code == 0
        assert json.loads((tmp_path / "run" / "env.json").read_text())["gpu_busy_pct"] == {"0": 97}
    _smi(tmp_path / "bin", 'echo "0, GPU-a, 97, 5000"')
    on_cpu = llm_perf(
        "profile",
        *OFF,
        ALPHA,
        "run.device=cpu",
        f"artifacts.runs_dir={tmp_path / 'cpu'}",
        cwd=tmp_path,
        PATH=env["PATH"],
    )
    assert said not in on_cpu.out + on_cpu.err


@pytest.mark.parametrize(
    ("only_admin", "capabilities", "restricted"),
    [("1", "000001ffffffffff", False), ("1", "00000000a80425fb", True), ("0", "0000000000000000", False)],
    ids=["root", "root of a container", "anybody where the driver allows it"],
)
def test_counters_need_a_capability_that_root_of_a_container_lacks(
    only_admin: str, capabilities: str, restricted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (
        ("DRIVER_PARAMS", f"RmProfilingAdminOnly: {only_admin}\n"),
        ("OWN_STATUS", f"Name: x\nCapEff:\t{capabilities}\n"),
    ):
        (tmp_path / name).write_text(text)
        monkeypatch.setattr(tools, name, tmp_path / name)
    assert counters_restricted() is restricted


@pytest.mark.parametrize(("limit", "found"), [("max", None), ("1048576", 1 << 20), (str(1 << 62), None)])
def test_memory_is_that_of_the_container(
    limit: str, found: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    monkeypatch.setattr(tools, "MEMORY_LIMITS", (tmp_path / "memory.max", tmp_path / "none"))
    assert usable_memory() == (found or psutil.virtual_memory().total)


def test_a_missing_importer_is_found_and_its_remedy_named(tmp_path: Path) -> None:
    target = tmp_path / "target-linux-x64"
    other = tmp_path / "linux-desktop-x64"
    for folder in (target, other):
        folder.mkdir()
    (other / "QdstrmImporter").write_text("")
    trouble = importer_trouble(target / "nsys")
    assert trouble is not None
    assert f" {tmp_path / 'host-linux-x64'}," in trouble.what
    assert trouble.remedy.endswith(f" {tmp_path / 'host-linux-x64'}")
    (tmp_path / "host-linux-x64").symlink_to(other)
    assert importer_trouble(target / "nsys") is None

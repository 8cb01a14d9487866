"""Every fault of a vendor tool in every combination of stages: reported, the rest kept, and fixed by a resume."""

import itertools
import shutil
import sys
from pathlib import Path

import pytest

from tests.support import fake_ncu, fake_nsys
from tests.support.orchestrator import llm_perf, only_run, statuses, valid_manifest
from tests.system.test_toggle_matrix import FAST, STAGES

pytestmark = pytest.mark.drill
TOOLS = ("nsys", "ncu")
FAULTS = ("missing", "exit 1", "hang", "no artefact", "truncated", "disk full")
COMBINATIONS = list(itertools.product([False, True], repeat=4))
FAULTY = """#!{python}
import subprocess, sys, time
from pathlib import Path
argv = sys.argv[1:]
fault = {fault!r}
if any(word in argv for word in ("--version", "--list-sets", "--list-sections", "--query-metrics")):
    sys.exit(subprocess.run([{real!r}, *argv]).returncode)
if fault == "exit 1":
    print("a fault nobody can explain"); sys.exit(1)
if fault == "hang":
    time.sleep(600)
if fault == "no artefact":
    sys.exit(0)
code = subprocess.run([{real!r}, *argv]).returncode
for word in argv:
    for path in Path(word.partition("=")[2] or word).parent.glob("*") if "/" in word else ():
        if path.suffix in (".sqlite", ".ncu-rep", ".nsys-rep") and path.is_file():
            path.write_bytes(path.read_bytes()[: 40])
if fault == "disk full":
    print("write: No space left on device"); sys.exit(1)
sys.exit(code)
"""


def _break(folder: Path, fault: str) -> None:
    """Put a faulty tool in front of each stand-in, or take the stand-in away."""
    # The one folder on PATH: a real tool in another must not be found in its place.
    for name in ("sh", "git", "env"):
        (folder / name).symlink_to(shutil.which(name) or "/bin/false")
    for tool in TOOLS:
        script = folder / tool
        if fault == "missing":
            script.unlink()
            continue
        script.rename(folder / f"real-{tool}")
        script.write_text(FAULTY.format(python=sys.executable, fault=fault, real=str(folder / f"real-{tool}")))
        script.chmod(0o755)


def _mend(folder: Path) -> None:
    """The stand-ins as they are meant to be, and an ncu that finds a kernel although there is no GPU."""
    fake_nsys.install(folder)
    fake_ncu.install(folder)
    script = folder / "ncu"
    script.write_text(script.read_text().replace("exec ", "FAKE_NCU_KERNELS=gemv2T_kernel exec "))


def _clean_pass(run_dir: Path) -> list[tuple[str, int]]:
    """The files of the clean pass that nsys or ncu made for itself, and when."""
    return [(path.name, path.stat().st_mtime_ns) for path in sorted(run_dir.glob("tmp/workload/clean/metrics.json"))]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("enabled", COMBINATIONS, ids=lambda e: "".join("01"[x] for x in e))
def test_a_fault_fails_its_stage_alone_and_a_resume_mends_it(
    enabled: tuple[bool, ...], fault: str, tmp_path: Path
) -> None:
    chosen = [stage for stage, on in zip(STAGES, enabled, strict=True) if on]
    toggles = [f"pipeline.{stage}.enable={str(stage in chosen).lower()}" for stage in STAGES]
    limits = ["pipeline.nsys.timeout_s=8", "pipeline.ncu.timeout_s=8"] if fault == "hang" else []
    folder, work = tmp_path / "bin", tmp_path / "work"
    work.mkdir()
    fake_nsys.install(folder)
    fake_ncu.install(folder)
    _break(folder, fault)
    environ = {"PATH": str(folder), "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    done = llm_perf("profile", *FAST, *toggles, *limits, cwd=work, timeout_s=580, **environ)
    assert "Traceback" not in done.err, done.err
    if not chosen:
        assert done.code == 2
        return
    run_dir = only_run(work)
    manifest = valid_manifest(run_dir)
    expected = {stage: "failed" if stage in TOOLS else "ok" for stage in chosen}
    assert statuses(manifest) == expected, done.err
    assert all(stage["reason"] for stage in manifest["stages"] if stage["status"] == "failed")
    assert done.code == (1 if set(chosen) & set(TOOLS) else 0)
    assert (run_dir / "report.md").is_file()
    assert [p.name for p in run_dir.rglob("*") if p.name.endswith((".tmp", ".lock"))] == []
    for stage in manifest["stages"]:
        if stage["status"] == "failed":
            assert not any(f["role"] in ("nsys_sqlite", "ncu_report") for f in stage["files"])

    before = {stage["name"]: stage for stage in manifest["stages"] if stage["status"] == "ok"}
    timed = _clean_pass(run_dir)
    _mend(folder)
    more = [f"pipeline.{tool}.timeout_s=300" for tool in TOOLS if limits and tool in chosen]
    again = llm_perf("profile", f"run.resume={run_dir}", *more, cwd=work, timeout_s=580, **environ)
    assert again.code == 0, again.err
    mended = valid_manifest(run_dir)
    assert statuses(mended) == dict.fromkeys(chosen, "ok")
    for stage in mended["stages"]:
        # What was done is neither done nor recorded again; what failed was, once.
        assert (f"{stage['name']}: reused" in again.err) == (stage["name"] in before)
        assert stage["name"] not in before or stage == before[stage["name"]]
    assert _clean_pass(run_dir)[: len(timed)] == timed

    third = llm_perf("profile", f"run.resume={run_dir}", *more, cwd=work, timeout_s=580, **environ)
    assert third.code == 0, third.err
    assert [stage for stage in chosen if f"{stage}: reused" not in third.err] == []
    assert valid_manifest(run_dir)["stages"] == mended["stages"]

"""The nsys stage: with the real nsys on any machine, and with one that goes wrong in the ways nsys does."""

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llm_perf_opt.config.schema import WorkloadSection
from llm_perf_opt.core.host import Tool
from llm_perf_opt.core.records import StageOutput
from llm_perf_opt.core.stage import StageContext
from llm_perf_opt.errors import CommandFailed, ProfilingError, ToolError
from llm_perf_opt.profiling.nsys import live_sessions as sessions
from llm_perf_opt.profiling.nsys import nsys_session as session
from llm_perf_opt.profiling.nsys.isolation import isolation
from llm_perf_opt.profiling.nsys.live_sessions import remove_abandoned, share_lock
from llm_perf_opt.profiling.nsys.nsys_session import _longest_window
from llm_perf_opt.profiling.nsys.overwrite import HEADER_BYTES, overwrite_values
from llm_perf_opt.profiling.nsys.scrub import (
    REMOVED,
    overwrite_assignments,
    scrub_export,
)
from llm_perf_opt.profiling.stages.nsys import STAGE, NsysConfig
from llm_perf_opt.profiling.vendor.nsys import build_nsys_cmd
from llm_perf_opt.profiling.vendor.vendor_tools import probe_nsys
from llm_perf_opt.system.lock import machine_lock
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.secrets.secret_shapes import is_secret
from llm_perf_opt.testing import plain_config, plain_host, scratch_context
from tests.support.nsys_builder import Export
from tests.support.orchestrator import OFF, Outcome, llm_perf, llm_perf_here
from tests.support.real_nsys import capture, capture_alone

PROGRAM = """
import sys, time
import nvtx
with nvtx.annotate("warmup"):
    with nvtx.annotate("decode"): time.sleep(0.001)
for _ in range(3):
    with nvtx.annotate("prefill"): time.sleep(0.002)
    with nvtx.annotate("decode"):
        for _ in range(2):
            with nvtx.annotate("decode_step"): time.sleep(0.001)
print("the workload is done")
sys.exit(int(sys.argv[1]))
"""
SECRET = "secret-4f9d2c7b1e"


def _context(tmp_path: Path, command: Sequence[str], nsys: str = "nsys") -> StageContext:
    # Captures of one version take turns on a machine: a fake nsys of this worker waits for no real one.
    build = 1 if nsys == "nsys" else 900 + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return scratch_context(
        "nsys",
        tmp_path / "run",
        config=plain_config(tmp_path, workload=WorkloadSection(command=tuple(command))),
        host=plain_host(tools={"nsys": Tool(name="nsys", path=nsys, version=f"2022.4.2.{build}")}),
    )


def _run(tmp_path: Path, *, exit_code: int = 0, **keys: Any) -> tuple[StageContext, StageOutput]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    ctx = _context(tmp_path, [sys.executable, str(program), str(exit_code)])
    return ctx, STAGE.run(NsysConfig(enable=True, timeout_s=60.0, **keys), ctx)


def _fake(tmp_path: Path, script: str) -> str:
    """An nsys that answers as the real one does where something is wrong with it."""
    path = tmp_path / "bin" / "nsys"
    path.parent.mkdir()
    path.write_text(f"#!{sys.executable}\nimport sys, time\nfrom pathlib import Path\n{script}")
    path.chmod(0o755)
    return str(path)


def _ranges(ctx: StageContext) -> dict[str, int]:
    found = json.loads((ctx.out_dir / "analysis.json").read_text())
    return {row["name"]: row["instances"] for row in found["ranges"]}


def _kept_or_said(ctx: StageContext, output: StageOutput, name: str) -> bool:
    """Any process of the machine may hold a secret while the test runs, and cost the report."""
    return (ctx.out_dir / name).is_file() or any(note.startswith(f"{name} was removed") for note in output.notes)


@pytest.mark.real_nsys
def test_a_capture_without_a_gpu_has_ranges_and_says_there_are_no_kernels(tmp_path: Path) -> None:
    ctx, output = _run(tmp_path)
    assert {p.name for p in ctx.out_dir.iterdir()} >= {
        "run.sqlite",
        "summary_cuda_gpu_kern_sum.csv",
        "summary.csv",
        "nvtx_ranges.csv",
        "gpu_idle.csv",
        "analysis.json",
        "cmd.txt",
        "log.txt",
    }
    assert _kept_or_said(ctx, output, "run.nsys-rep")
    assert _ranges(ctx) == {"prefill": 3, "decode": 3, "decode_step": 6}
    assert output.metrics["gpu_busy_ns"].reason == "no GPU kernel was recorded"
    assert "no kernels were recorded because this machine has no GPU" in output.notes
    assert output.metrics["slowdown_decode"].reason == "your own program is not timed under a profiler"
    assert [f.path.name for f in output.files if f.role == "nsys_sqlite"] == ["run.sqlite"]
    assert not (ctx.tmp_dir / "raw").exists()
    (ctx.out_dir / "run.nsys-rep").unlink(missing_ok=True)
    code, said = capture_alone(["sh", str(ctx.out_dir / "cmd.txt")], ctx.out_dir / "run.nsys-rep")
    assert (code, (ctx.out_dir / "run.nsys-rep").is_file()) == (0, True), said


# As nsys 2025.3.1 ends the capture of a JAX program; without nvtx in --trace it imports all of it.
TORN = """
argv = sys.argv[1:]
output = next(a.partition("=")[2] for a in argv if a.startswith("--output="))
if argv[0] == "export":
    import shutil
    kind = "whole" if "no-ranges" in output else "torn"
    shutil.copy(FOLDER + "/" + kind + ".sqlite", output)
    sys.exit(0)
import subprocess
start = next(i for i, a in enumerate(argv[1:], start=1) if not a.startswith("-"))
code = subprocess.run(argv[start:], check=False).returncode
Path(output + ".nsys-rep").write_bytes(b"a report")
print("Generating '/tmp/nsys-report-1.qdstrm'")
if "nvtx" in next(a for a in argv if a.startswith("--trace=")):
    print("Importer error status: Importation succeeded with non-fatal errors.")
    print("**** Analysis failed with:")
    print('        Value: "/dvs/p4/build/Analysis/StringStorage.cpp(119): Throw in function X GetKeyForExteriorId'
          '\\\\n[QuadDCommon::tag_message*] = Cannot find string for an exterior index\\\\n"')
    print("**** Errors occurred while processing the raw events. ****")
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("has_lost", "whole", "kernels", "wanted", "words"),
    [
        (True, 30, 30, "run-no-ranges.sqlite", "which had 1 of 30 kernels left"),
        (True, 1, 1, "run.sqlite", "has no more kernels (1 against 1)"),
        (False, 30, 1, "run.sqlite", ""),
    ],
)
def test_a_capture_torn_by_names_of_ranges_is_made_again_without_ranges(
    tmp_path: Path, has_lost: bool, whole: int, kernels: int, wanted: str, words: str
) -> None:
    for name, count in (("torn", 1), ("whole", whole)):
        export = Export()
        for i in range(count):
            export.call(100 * i, 100 * i + 10, i + 1)
            export.kernel("gemm", 100 * i + 20, 100 * i + 90, i + 1)
        path = export.write(tmp_path / f"{name}.sqlite")
        if name == "torn" and has_lost:
            with sqlite3.connect(path) as db:
                db.execute("CREATE TABLE DIAGNOSTIC_EVENT (timestamp INTEGER, severity INTEGER, text TEXT)")
                db.execute(
                    "INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 1, 'Not all CUDA events might have been collected.')"
                )
    nsys = _fake(tmp_path, f"FOLDER = {str(tmp_path)!r}\n{TORN}")
    ctx = _context(tmp_path, [sys.executable, "-c", "print('done')"], nsys=nsys)
    output = STAGE.run(NsysConfig(enable=True, timeout_s=60.0), ctx)
    assert [f.path.name for f in output.files if f.role == "nsys_sqlite"] == [wanted]
    assert [p.name for p in ctx.out_dir.glob("*.sqlite")] == [wanted]
    assert output.metrics["kernel_count"].value == kernels
    said = "\n".join(output.notes)
    assert "non-fatal errors (Cannot find string for an exterior index): some events may be missing" in said
    assert words in said
    assert ("second capture" in said) == has_lost


@pytest.mark.real_nsys
def test_every_repetition_is_found_exported_and_summed(tmp_path: Path) -> None:
    ctx, output = _run(tmp_path, capture_range="nvtx", nvtx_capture="prefill", capture_range_end="repeat:2")
    assert [f.path.name for f in output.files if f.role == "nsys_sqlite"] == ["run.1.sqlite", "run.2.sqlite"]
    assert all(_kept_or_said(ctx, output, f"run.{i}.nsys-rep") for i in (1, 2))
    found = json.loads((ctx.out_dir / "analysis.json").read_text())
    assert [s["path"] for s in found["sources"]] == ["run.1.sqlite", "run.2.sqlite"]
    assert _ranges(ctx) == {"prefill": 2}


@pytest.mark.real_nsys
def test_several_ranges_are_captured_one_after_the_other(tmp_path: Path) -> None:
    ctx, output = _run(tmp_path, capture_range="nvtx", nvtx_capture=("prefill", "decode"))
    assert [f.path.name for f in output.files if f.role == "nsys_sqlite"] == ["run-prefill.sqlite", "run-decode.sqlite"]
    assert {p.name for p in ctx.out_dir.glob("*.nsys-rep")} <= {"run-prefill.nsys-rep", "run-decode.nsys-rep"}
    # Inside the warm-up, decode opens first.
    assert _ranges(ctx) == {"prefill": 1, "decode": 1}
    assert "--nvtx-capture=prefill" in (ctx.out_dir / "cmd.txt").read_text()
    assert "--nvtx-capture=decode" in (ctx.out_dir / "cmd.txt").read_text()
    assert any("nsys ended the workload when the capture was complete" in note for note in output.notes)


@pytest.mark.real_nsys
def test_a_range_that_never_opens_fails_and_names_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(ProfilingError) as caught:
        _run(tmp_path, capture_range="nvtx", nvtx_capture="decoding", capture_range_end="stop")
    assert str(caught.value) == (
        "the NVTX range 'decoding' never opened, so nsys captured nothing; ranges seen in an ungated look: decode, "
        "decode_step, prefill, warmup. Set pipeline.nsys.nvtx_capture to one of them (NAME for the default domain, "
        "NAME@* for any)"
    )
    assert list((tmp_path / "run").rglob("*.nsys-rep")) == []


@pytest.mark.real_nsys
def test_a_workload_that_fails_is_told_apart_from_nsys(tmp_path: Path) -> None:
    """Already in its clean pass, before nsys is started."""
    with pytest.raises(CommandFailed) as caught:
        _run(tmp_path, exit_code=7)
    assert str(caught.value).startswith("program.py failed with exit code 7: the workload is done (log: ")
    assert not (tmp_path / "run" / "nsys" / "log.txt").exists()


@pytest.mark.long
@pytest.mark.real_nsys
def test_a_program_that_does_not_end_is_captured_for_a_window_and_ended(tmp_path: Path) -> None:
    ctx = _context(tmp_path, ["sleep", "60"])
    # The real nsys takes longer to write on a busy machine than the default window leaves of a short limit.
    output = STAGE.run(NsysConfig(enable=True, duration_s=3, timeout_s=90.0), ctx)
    assert _longest_window(NsysConfig(timeout_s=8.0)) == 3
    assert output.notes[0] == (
        "the window of 3 s was over before the program ended, so nsys ended it; "
        "times and counts are those of the window"
    )


def _profile_program(tmp_path: Path, exit_code: int, *overrides: str, **environ: Any) -> Outcome:
    """The program under the real nsys through the command line, with these variables in the parent."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = f"workload.command=[{sys.executable},{program},{exit_code}]"
    runs = f"artifacts.runs_dir={tmp_path / 'run'}"
    return llm_perf("profile", *OFF, "pipeline.nsys.enable=true", *overrides, command, runs, cwd=tmp_path, **environ)


@pytest.mark.real_nsys
def test_a_token_of_the_parent_is_in_no_file_of_the_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = _profile_program(tmp_path, 0, HF_TOKEN=SECRET)
    assert done.code == 0, done.err
    files = [p for p in run_dir.rglob("*") if p.is_file()]
    assert {"run.sqlite", "manifest.json"} <= {p.name for p in files}
    assert [p for p in files if SECRET.encode() in p.read_bytes()] == []


@pytest.mark.real_nsys
def test_a_token_of_the_parent_is_not_left_in_the_report_of_a_failed_capture(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = _profile_program(tmp_path, 7, HF_TOKEN=SECRET)
    assert done.code == 1
    assert [p for p in run_dir.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()] == []


@pytest.mark.long
@pytest.mark.real_nsys
def test_a_token_of_the_parent_is_not_left_behind_when_a_later_capture_fails(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    gate = ("pipeline.nsys.capture_range=nvtx", "pipeline.nsys.nvtx_capture=[prefill,nobody]")
    done = _profile_program(tmp_path, 0, *gate, HF_TOKEN=f"/{SECRET}/as/a/path", TMPDIR=str(tmp_path))
    assert done.code == 1
    assert "the NVTX range 'nobody' never opened" in done.out + done.err
    assert (run_dir / "nsys" / "run-prefill.sqlite").is_file()
    assert "nobody" in (run_dir / "nsys" / "cmd.txt").read_text()
    assert [p for p in tmp_path.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()] == []


def test_an_interrupt_leaves_nothing_that_nsys_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    nsys = _fake(
        tmp_path,
        "import os, signal\n"
        "base = next(a for a in sys.argv if a.startswith('--output=')).removeprefix('--output=')\n"
        "if sys.argv[1] == 'export':\n"
        "    Path(base).write_bytes(b'HF_TOKEN=secret-4f9d2c7b1e')\n"
        "    ours = int(Path('/proc', str(os.getppid()), 'stat').read_text().rpartition(')')[2].split()[1])\n"
        "    os.kill(ours, signal.SIGINT); __import__('time').sleep(20)\n"
        "Path(os.environ['TMPDIR'], 'nsys-report.qdstrm').write_bytes(b'HF_TOKEN=secret-4f9d2c7b1e')\n"
        "Path(sys.argv[sys.argv.index('sh') + 4]).write_text('0')\n"
        "Path(base + '.nsys-rep').write_bytes(b'HF_TOKEN=secret-4f9d2c7b1e')\n",
    )
    ctx = _context(tmp_path, ["true"], nsys)
    with pytest.raises(KeyboardInterrupt):
        STAGE.run(NsysConfig(enable=True, timeout_s=20.0), ctx)
    assert [p for p in ctx.run_dir.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()] == []
    assert list((tmp_path / "temporary").iterdir()) == []


def test_files_of_an_earlier_attempt_do_not_stand_beside_new_ones(tmp_path: Path) -> None:
    ctx = _context(tmp_path, ["true"], _fake(tmp_path, "sys.exit(1)\n"))
    for name in ("run.sqlite", "run.2.nsys-rep", "nvtx_ranges.csv", "mine.md"):
        (ctx.out_dir / name).write_text("old")
    with pytest.raises(ToolError):
        STAGE.run(NsysConfig(enable=True, timeout_s=20.0), ctx)
    left = {p.name for p in ctx.out_dir.iterdir()}
    assert left == {"clean.cmd.txt", "clean.log", "cmd.txt", "log.txt", "mine.md"}


def test_a_flag_nsys_refuses_is_named(tmp_path: Path) -> None:
    text = "unrecognised option '--nosuchflag'\n\nusage: nsys profile [<args>]\nTry 'nsys profile --help'"
    ctx = _context(tmp_path, ["true"], _fake(tmp_path, f"print({text!r}); sys.exit(1)\n"))
    with pytest.raises(ToolError, match=r"nsys refused its command line: unrecognised option '--nosuchflag'"):
        STAGE.run(NsysConfig(enable=True, timeout_s=20.0), ctx)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("echo",), "nsys would run 'echo' instead of the workload"),
        (("--backtrace=none", "echo"), "nsys would run 'echo' instead of the workload"),
        (("--backtrace", "none"), None),
        (("--duration=3",), "--duration is set by the stage itself"),
        (("--wait=primary",), None),
        (("--export=json",), "its file would hold environments and is not kept"),
        (("--export=none",), None),
        (("--capture-range=nvtx",), "--capture-range is set by the stage itself"),
        (("--cuda-graph-trace=graph",), "--cuda-graph-trace is set by the stage itself"),
    ],
)
def test_extra_arguments_that_would_change_what_is_captured_are_refused(
    words: tuple[str, ...], problem: str | None
) -> None:
    found = [p.text for p in NsysConfig(enable=True, extra_args=words).problems()]
    assert (found == []) if problem is None else found[0].startswith(problem)


def test_a_pattern_is_no_problem_where_nothing_gates() -> None:
    cfg = NsysConfig(enable=True, capture_range="nvtx", nvtx_capture="decode*")
    assert len(cfg.problems()) == 1
    assert replace(cfg, gating_nvtx=False).problems() == ()


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("HF_TOKEN", "/abc/def", True),
        ("SSH_AUTH_SOCK", "/tmp/ssh", False),
        ("NV_TPS_LAUNCH_TOKEN", "Interactive Profile", False),
        ("NSYS_SESSION_ID", "12345", False),
        ("ANYTHING", "hf_abcdefghijk", True),
        ("AWS_SECRET_ACCESS_KEY", "/q3rX", True),
    ],
)
def test_secrets_are_known_by_name_or_value(name: str, value: str, secret: bool) -> None:
    assert is_secret(name, value) is secret


def test_overwriting_leaves_the_header_of_a_report_alone(tmp_path: Path) -> None:
    report = tmp_path / "run.nsys-rep"
    report.write_bytes(b"NVIDIA Profiler Report" + bytes(300) + b"a profile of 1" + b"secret value Profiler")
    overwrite_values(report, ["my secret Profiler"])
    assert report.read_bytes()[:22] == b"NVIDIA Profiler Report"
    assert b"Profiler" not in report.read_bytes()[22:]


@pytest.mark.parametrize("keep", ["clean", "never"])
def test_a_capture_nsys_cannot_import_names_the_remedy(tmp_path: Path, keep: bool) -> None:
    nsys = _fake(
        tmp_path,
        "base = next(a for a in sys.argv if a.startswith('--output=')).removeprefix('--output=')\n"
        "Path(base + '.qdstrm').write_bytes(b'raw HF_TOKEN=secret-4f9d2c7b1e\\0')\n"
        "print('Generating ' + base + '.qdstrm')\n",
    )
    ctx = _context(tmp_path, ["true"], nsys)
    with pytest.raises(ToolError, match=r"nsys left run.qdstrm and no report: .* `ln -s /usr/lib/nsight-systems"):
        STAGE.run(NsysConfig(enable=True, timeout_s=20.0, keep_report=keep), ctx)
    left = {path.name: path.read_bytes() for path in ctx.out_dir.glob("*.qdstrm")}
    assert left == ({"run.qdstrm": b"raw HF_TOKEN=" + b"x" * len(SECRET) + b"\0"} if keep == "clean" else {})


def test_an_nsys_that_fails_is_quoted(tmp_path: Path) -> None:
    nsys = _fake(tmp_path, "print('Illegal --trace argument'); sys.exit(1)\n")
    ctx = _context(tmp_path, ["true"], nsys)
    with pytest.raises(ToolError, match="nsys ended with exit code 1 and wrote no report: Illegal --trace argument"):
        STAGE.run(NsysConfig(enable=True, timeout_s=20.0), ctx)


def test_an_export_that_fails_is_said_and_the_report_goes(tmp_path: Path) -> None:
    nsys = _fake(
        tmp_path,
        "if sys.argv[1] == 'export': print('Error: unsupported report version'); sys.exit(0)\n"
        "base = next(a for a in sys.argv if a.startswith('--output=')).removeprefix('--output=')\n"
        "code = sys.argv[sys.argv.index('sh') + 4]\n"
        "Path(code).write_text('0'); Path(base + '.nsys-rep').write_bytes(b'report')\n",
    )
    ctx = _context(tmp_path, ["true"], nsys)
    with pytest.raises(ToolError, match=r"`nsys export` failed \(exit code 0: Error: unsupported report version\)"):
        STAGE.run(NsysConfig(enable=True, timeout_s=20.0), ctx)


def test_a_report_that_cannot_be_made_safe_is_deleted_and_said(tmp_path: Path) -> None:
    export = Export()
    export.range("decode", 0, 100)
    export.string(f"PATH=/bin\0HF_TOKEN={SECRET}")
    source = export.write(tmp_path / "source.sqlite")
    nsys = _fake(
        tmp_path,
        "import shutil\n"
        "out = next(a for a in sys.argv if a.startswith('--output=')).removeprefix('--output=')\n"
        f"if sys.argv[1] == 'export': shutil.copy({str(source)!r}, out); sys.exit(0)\n"
        "code = sys.argv[sys.argv.index('sh') + 4]\n"
        "Path(code).write_text('0'); Path(out + '.nsys-rep').write_bytes(b'packed beyond recognition')\n",
    )
    said: list[str] = []
    ctx = replace(_context(tmp_path, ["true"], nsys), say=said.append)
    output = STAGE.run(NsysConfig(enable=True, timeout_s=20.0), ctx)
    removed = (
        "run.nsys-rep was removed: it holds the values of HF_TOKEN; pipeline.nsys.keep_report=always keeps it. "
        "The export run.sqlite is clean and complete"
    )
    assert (output.notes[0], said) == (removed, [f"nsys: {removed}"])
    assert [p for p in ctx.run_dir.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()] == []


CLEAN_NSYS = """
import shutil
out = next(a for a in sys.argv if a.startswith('--output=')).removeprefix('--output=')
if sys.argv[1] == 'export':
    shutil.copy(SOURCE, out); sys.exit(0)
code = sys.argv[sys.argv.index('sh') + 4]
Path(code).write_text('0'); Path(out + '.nsys-rep').write_bytes(REPORT)
"""


@pytest.mark.parametrize(
    ("keep", "kept"), [("clean", True), ("always", True), (True, True), ("never", False), (False, False)]
)
def test_a_report_in_which_no_secret_is_found_is_kept(tmp_path: Path, keep: Any, kept: bool) -> None:
    export = Export()
    export.range("decode", 0, 100)
    source = export.write(tmp_path / "source.sqlite")
    nsys = _fake(tmp_path, f"SOURCE, REPORT = {str(source)!r}, b'a report of batch=8'\n{CLEAN_NSYS}")
    ctx = _context(tmp_path, ["true"], nsys)
    output = STAGE.run(NsysConfig(enable=True, timeout_s=20.0, keep_report=keep), ctx)
    assert [path.name for path in ctx.out_dir.glob("*.nsys-rep")] == (["run.nsys-rep"] if kept else [])
    assert [file.path.name for file in output.files if file.role == "nsys_report"] == (["run.nsys-rep"] if kept else [])
    assert not any("was removed" in note for note in output.notes)


@pytest.mark.parametrize(
    ("report", "removed"),
    [
        # As nsys 2022.4 wrote it: the beginning of the name is a reference, and a byte of the packing follows.
        (b"le\xfe\0\r;\xf8\x04ING_SESSION_ID=1015Z\x07\0", None),
        (b"le\xfe\0\r;\xf8AING_SESSION_ID=1015\x07\0", None),
        (b"\xf8\x04ING_SESSION_ID=1015Zabcd\x07\0", "behind 'ING_SESSION_ID='"),
        (b"\xf8\x04MY_SESSION_ID=1015Z\x07\0", "behind 'MY_SESSION_ID='"),
        (b"\xf8\x04hf_AbCdEfGhIjKlMnOpQrSt\x07\0", "bytes that look like a secret;"),
    ],
)
def test_a_mark_of_nsys_itself_costs_no_report_where_its_name_is_cut(
    tmp_path: Path, report: bytes, removed: str | None
) -> None:
    export = Export()
    export.range("decode", 0, 100)
    export.string("PATH=/bin\0NSYS_PROFILING_SESSION_ID=1015\0HOME=/home")
    source = export.write(tmp_path / "source.sqlite")
    nsys = _fake(tmp_path, f"SOURCE, REPORT = {str(source)!r}, {report!r}\n{CLEAN_NSYS}")
    ctx = _context(tmp_path, ["true"], nsys)
    output = STAGE.run(NsysConfig(enable=True, timeout_s=20.0), ctx)
    assert (ctx.out_dir / "run.nsys-rep").exists() == (removed is None)
    assert [note for note in output.notes if "was removed" in note and (removed or "") in note] == (
        [] if removed is None else [output.notes[0]]
    )


@pytest.mark.parametrize("keep", ["clean", "always"])
def test_a_secret_in_the_name_of_a_range_or_in_the_bytes_of_a_report_costs_it(tmp_path: Path, keep: Any) -> None:
    token = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"
    export = Export()
    export.registered_range(f"load {token}", 0, 100)
    source = export.write(tmp_path / "source.sqlite")
    nsys = _fake(tmp_path, f"SOURCE, REPORT = {str(source)!r}, b'packed'\n{CLEAN_NSYS}")
    ctx = _context(tmp_path, ["true"], nsys)
    output = STAGE.run(NsysConfig(enable=True, timeout_s=20.0, keep_report=keep), ctx)
    assert (ctx.out_dir / "run.nsys-rep").exists() == (keep == "always")
    removed = (
        "run.nsys-rep was removed: it holds secrets in 1 of its texts (names of ranges, what was printed); "
        "pipeline.nsys.keep_report=always keeps it. The export run.sqlite is clean and complete"
    )
    assert (removed in output.notes) == (keep == "clean")
    assert _ranges(ctx) == {"load (redacted)": 1}
    assert [p for p in ctx.run_dir.rglob("*") if p.is_file() and token.encode() in p.read_bytes()] == []


@pytest.mark.parametrize("isolated", [True, False])
def test_a_report_keeps_without_the_secret_that_could_be_overwritten_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolated: bool
) -> None:
    token = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWx"
    sources = {}
    for name, shown in (("held", token), ("overwritten", "x" * len(token))):
        export = Export()
        export.registered_range(f"load {shown}", 0, 100)
        sources[name] = str(export.write(tmp_path / f"{name}.sqlite"))
    header = bytes(HEADER_BYTES)
    given = f"SOURCES, REPORT = {sources!r}, {header + f'load {token}'.encode()!r}\n"
    chosen = "SOURCE = SOURCES['held' if b'hf_' in Path(sys.argv[-1]).read_bytes() else 'overwritten']"
    script = CLEAN_NSYS.replace("'export':\n", f"'export':\n    {chosen}\n")
    ctx = _context(tmp_path, ["true"], _fake(tmp_path, f"{given}{script}"))
    monkeypatch.setattr(session, "isolation", lambda *_: ["env"] if isolated else [])
    output = STAGE.run(NsysConfig(enable=True, timeout_s=20.0), ctx)
    assert (ctx.out_dir / "run.nsys-rep").read_bytes() == header + b"load " + b"x" * len(token)
    note = (
        "run.nsys-rep: secrets in 1 of its texts (names of ranges, what was printed) are overwritten with x; "
        "pipeline.nsys.keep_report=always keeps it as it was"
    )
    assert (note in output.notes) == isolated
    assert any("holds the environments of every process" in one for one in output.notes) != isolated


def test_nsys_runs_apart_where_that_is_allowed(tmp_path: Path) -> None:
    config, env = plain_config(tmp_path), {"PATH": os.environ["PATH"]}
    asked: list[Sequence[str]] = []

    def asks(argv: Sequence[str], *, env: Any) -> tuple[int | None, str]:
        asked.append(argv)
        return (0 if "--user" in argv else 1), ""

    words = isolation(config, ("none", "none"), env, asks)
    assert (Path(words[0]).name, words[1:3]) == ("unshare", ["--user", "--map-root-user"])
    # The program is not root in there.
    assert words[-3:] == ["--user", f"--map-user={os.geteuid()}", f"--map-group={os.getegid()}"]
    assert [argv[-1] for argv in asked] == ["true", "true"]
    assert isolation(config, ("none", "none"), env, lambda argv, *, env: (1, "")) == []
    assert isolation(config, ("system-wide", "none"), env, asks) == []
    assert isolation(config, ("none", "none"), {"PATH": ""}, asks) == []
    assert isolation(config, ("none", "none"), {**env, "CUDA_MPS_PIPE_DIRECTORY": "/m"}, asks) == []
    assert isolation(replace(config, run=replace(config.run, nodes=2)), ("none",), env, asks) == []
    sudo = replace(config, workload=WorkloadSection(command=("sudo", "./bench")))
    assert isolation(sudo, ("none",), env, asks) == []


@pytest.mark.real_nsys
def test_a_token_of_another_process_is_not_in_the_report(tmp_path: Path) -> None:
    """The shell of a user holds it while nsys runs; without a namespace the search finds it."""
    token = "hf_" + "OtherProcessAbCdEfGhIjKl"
    with subprocess.Popen(["sleep", "120"], env={**os.environ, "HF_TOKEN": token}) as other:
        try:
            ctx, _ = _run(tmp_path)
        finally:
            other.kill()
    isolated = bool(isolation(ctx.config, (), ctx.run_command.environment))
    assert (ctx.out_dir / "run.nsys-rep").exists() or not isolated
    assert [p for p in ctx.run_dir.rglob("*") if p.is_file() and token.encode() in p.read_bytes()] == []


def test_a_known_value_goes_from_a_text_that_lies_on_several_pages(tmp_path: Path) -> None:
    """No search of the file's bytes finds it where two pages meet, wherever that is."""
    export = Export()
    names = ["n" * length + SECRET + "m" * 2000 for length in range(4000, 4140, len(SECRET) // 2)]
    for at, name in enumerate(names):
        export.registered_range(name, at, at + 1)
    path = export.write(tmp_path / "a.sqlite")
    scrub_export(path, Redactor(values=(SECRET,)))
    connection = sqlite3.connect(path)
    strings = [value for (value,) in connection.execute("SELECT value FROM StringIds ORDER BY id")]
    connection.close()
    assert strings == [name.replace(SECRET, "(redacted)") for name in names]
    data = path.read_bytes()
    assert [piece for piece in (SECRET[:9], SECRET[-9:]) if piece.encode() in data] == []


def test_a_known_value_goes_from_a_text_that_is_not_utf8_and_its_other_bytes_stay(tmp_path: Path) -> None:
    export = Export()
    export.registered_range("decode", 0, 1)
    path = export.write(tmp_path / "a.sqlite")
    before, after = b"\xd6\xe5" + SECRET.encode() + b"\xff", b"\xd6\xe5(redacted)\xff"
    with sqlite3.connect(path) as connection:
        connection.execute("INSERT INTO StringIds VALUES (99, CAST(? AS TEXT))", (before,))
    connection.close()
    scrub_export(path, Redactor(values=(SECRET,)))
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        assert connection.execute("SELECT value, typeof(value) FROM StringIds WHERE id = 99").fetchall() == [
            (after, b"text")
        ]


def test_an_export_does_not_keep_all_that_a_program_printed(tmp_path: Path) -> None:
    export = Export()
    export.registered_range("decode", 0, 10)
    printed = [export.string(text) for text in ("a line\n" * 100_000, "few words")]
    path = export.write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE ProcessStreams (globalPid INTEGER, filenameId INTEGER, contentId INTEGER)")
        connection.executemany("INSERT INTO ProcessStreams VALUES (1, 1, ?)", [(number,) for number in printed])
    connection.close()
    scrub_export(path)
    with closing(sqlite3.connect(path)) as connection:
        strings = [value for (value,) in connection.execute("SELECT value FROM StringIds ORDER BY id")]
    assert strings == ["decode", "(long output removed: see log.txt)", "few words"]
    assert path.stat().st_size < 100_000


def test_an_export_loses_environments_and_keeps_names_that_look_like_them(tmp_path: Path) -> None:
    export = Export()
    export.registered_range("batch=8", 0, 10)
    export.registered_range("HOME=here", 20, 30)
    export.kernel("f<x=1>", 0, 5, 1)
    export.string(f"HOME=/root\0HF_TOKEN={SECRET}\0")
    export.string("HF_TOKEN=again-and-again")
    path = export.write(tmp_path / "a.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        rows = [("DeviceEnvironment", f"HF_TOKEN={SECRET}"), ("CpuCores", "2")]
        connection.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, ?)", rows)
    connection.close()
    found = set(scrub_export(path).secrets)
    assert {SECRET, "again-and-again"} <= found
    assert not {"/root", "here", "8", "2"} & found
    assert SECRET.encode() not in path.read_bytes()
    connection = sqlite3.connect(path)
    strings = [value for (value,) in connection.execute("SELECT value FROM StringIds ORDER BY id")]
    assert strings == ["batch=8", "HOME=here", "f<x=1>", REMOVED, REMOVED]
    rows = connection.execute("SELECT name, value FROM TARGET_INFO_SYSTEM_ENV").fetchall()
    assert rows == [("DeviceEnvironment", REMOVED), ("CpuCores", "2")]
    connection.close()


def test_raw_captures_lose_only_what_looks_secret(tmp_path: Path) -> None:
    path = tmp_path / "run.qdstrm"
    path.write_bytes(b"\x01HOME=/root/dir\0API_KEY=abcdefgh\0x=1\0MY_PASSWORD=hunter2!\0")
    overwrite_assignments(path)
    assert path.read_bytes() == b"\x01HOME=/root/dir\0API_KEY=xxxxxxxx\0x=1\0MY_PASSWORD=xxxxxxxx\0"


@pytest.mark.slow
@pytest.mark.parametrize("program", ["nosuchprogram", "./nosuchprogram", "./plain.txt"])
def test_a_program_that_cannot_be_run_is_bad_input(tmp_path: Path, program: str) -> None:
    (tmp_path / "plain.txt").write_text("no program")
    words = (*OFF, "pipeline.nsys.enable=true", f"workload.command=[{program}]", "hydra.run.dir=r")
    done = llm_perf_here("profile", *words, cwd=tmp_path)
    assert done.code == 2
    assert f"workload.command.0: no program of this name can be run (got {program!r})" in done.err


def _short_folder() -> tempfile.TemporaryDirectory[str]:
    # An agent may still write while the folder is removed.
    return tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True)


@pytest.mark.long
@pytest.mark.real_nsys
def test_captures_that_start_together_do_not_lose_each_other(tmp_path: Path) -> None:
    version = probe_nsys(os.environ).version
    assert version is not None

    def capture_in(folder: str) -> tuple[int, bool | str]:
        share_lock(Path(folder), version)
        argv = build_nsys_cmd(Path(folder, "run"), ["true"], trace="nvtx,osrt")
        report = Path(folder, "run.nsys-rep")
        # Not through our own door: it would take one thread's agent for another's.
        code, said = capture(argv, report, env={**os.environ, "TMPDIR": folder})
        return code, report.is_file() or said

    # Short names: nsys opens sockets in there.
    with ThreadPoolExecutor(3) as pool, ExitStack() as folders:
        scratch = [folders.enter_context(_short_folder()) for _ in range(6)]
        ended = list(pool.map(capture_in, scratch))
    assert ended == [(0, True)] * 6


@pytest.mark.parametrize(
    ("said", "isolated", "was_removed", "tries"),
    [
        ("Agent launcher failed.", False, True, 3),
        ("Agent launcher failed.", False, False, 1),
        ("Agent launcher failed.", True, False, 3),
        ("[QuadDCommon::tag_message*] = Local Endpoint is not available.", False, False, 3),
        ("Connection reset by peer", False, False, 3),
        ("Connection to the Agent lost.", False, False, 3),
        ("Illegal --trace argument", True, True, 1),
    ],
)
def test_a_capture_whose_agent_was_lost_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, isolated: bool, was_removed: bool, tries: int
) -> None:
    nsys = _fake(tmp_path, f"print({said!r}); sys.exit(1)\n")
    ctx = _context(tmp_path, ["true"], nsys)
    monkeypatch.setattr(sessions, "remove_abandoned", lambda: was_removed)
    monkeypatch.setattr(session, "isolation", lambda *_: ["env"] if isolated else [])
    with pytest.raises(ToolError, match=f"wrote no report: {re.escape(said)}"):
        STAGE.run(NsysConfig(enable=True, timeout_s=20.0), ctx)
    assert [record.label for record in ctx.run_command.records if nsys in record.argv] == ["nsys"] * tries


def test_captures_of_one_version_take_turns_and_none_waits_longer_than_its_limit(tmp_path: Path) -> None:
    said: list[str] = []
    with sessions.one_capture("2022.4", said.append, limit_s=0, tmp_dir=tmp_path):
        with sessions.one_capture("2023.1", said.append, limit_s=0, tmp_dir=tmp_path):
            assert said == []
        with sessions.one_capture("2022.4", said.append, limit_s=0, tmp_dir=tmp_path):
            assert said == ["nsys: waiting for another capture on this machine to end"]
    with sessions.one_capture("2022.4", said.append, limit_s=0, tmp_dir=tmp_path):
        assert len(said) == 1
    (lock, _) = sorted(tmp_path.iterdir())
    assert (lock.name, lock.stat().st_mode & 0o777) == ("llm-perf-nsys-2022.4.lock", 0o666)


def test_a_place_without_rights_for_a_lock_keeps_no_capture_from_starting(tmp_path: Path) -> None:
    with machine_lock(tmp_path / "none" / "lock", lambda: None, limit_s=0) as is_held:
        assert is_held is False


def test_memory_of_sessions_is_removed_only_while_no_nsys_runs(tmp_path: Path) -> None:
    left = tmp_path / "NSys-2022.4.2.1"
    left.write_bytes(b"locked")
    (tmp_path / "others").write_bytes(b"")
    running = [SimpleNamespace(info={"name": name}) for name in ("python3", "nsys", None)]
    assert (remove_abandoned(tmp_path, running), left.exists()) == (False, True)
    assert (remove_abandoned(tmp_path, running[:1]), left.exists()) == (True, False)
    assert (remove_abandoned(tmp_path, running[:1]), [p.name for p in tmp_path.iterdir()]) == (False, ["others"])


def test_a_lock_folder_of_somebody_else_is_neither_opened_nor_an_obstacle(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir(mode=0o700)
    for kind in ("link", "file"):
        shared, scratch = tmp_path / f"shared-{kind}", tmp_path / f"scratch-{kind}"
        shared.mkdir()
        scratch.mkdir()
        if kind == "link":
            (shared / "nvidia").symlink_to(mine)
        else:
            (shared / "nvidia").write_text("a file")
        share_lock(scratch, "2022.4.2.1", shared)
    assert mine.stat().st_mode & 0o777 == 0o700


def test_the_lock_of_all_nsys_is_where_ours_looks_for_it(tmp_path: Path) -> None:
    scratch, shared = tmp_path / "scratch", tmp_path / "shared"
    scratch.mkdir()
    shared.mkdir()
    share_lock(scratch, "2022.4.2.1", shared)
    name = "nvidia/nsight_systems/SessionManager-2022.4.2.1.lock"
    (scratch / name).touch()
    assert (shared / name).is_file()
    folders = [(root / name).parent for root in (scratch, shared)]
    assert [folder.stat().st_mode & 0o777 for folder in (*folders, *(f.parent for f in folders))] == [0o777] * 4

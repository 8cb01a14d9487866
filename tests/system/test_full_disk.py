"""A disk that fills in the middle of a run, a real one: what was measured stays, words say what and where."""

import errno
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from llm_perf_opt.children.start import run_child
from llm_perf_opt.config.schema import AppConfig
from llm_perf_opt.errors import ToolError
from llm_perf_opt.system.files import in_words, is_full_disk, move_whole, write_whole
from llm_perf_opt.system.redact import Redactor
from llm_perf_opt.system.secrets.secret_shapes import REDACTED
from llm_perf_opt.workload.profiled import pack_trace
from tests.support.orchestrator import (
    ALPHA,
    BETA,
    OFF,
    command,
    environment,
    llm_perf_here,
    statuses,
    valid_manifest,
)

TINY = ("model=llama_tiny", "dataset=synthetic", "run.device=cpu", "infer.max_new_tokens=4", "run.mode=light")
OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")


def _can_mount(folder: Path) -> bool:
    try:
        mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
        return subprocess.run([*OWN_MOUNTS, *mounted], capture_output=True, timeout=30, check=False).returncode == 0
    except OSError:
        return False


def _with_disk(folder: Path, size_kb: int, first: Sequence[str], then: Sequence[str]) -> "list[tuple[int, str]]":
    """Both commands' exit codes and words; the disk of the first is small, and larger for the second.

    Only these processes see the disk; what is on it at the end of each command is copied alongside it.
    """
    disk = folder / "disk"
    disk.mkdir()
    script = f"""
        mount -t tmpfs -o size={size_kb}k tmpfs '{disk}' || exit 9
        "$@" 2> '{folder}/first.txt'; echo $? > '{folder}/first.code'; cp -a '{disk}' '{folder}/after-first'
        mount -o remount,size=100M '{disk}' || exit 9
        {" ".join(then)} 2> '{folder}/then.txt'; echo $? > '{folder}/then.code'; cp -a '{disk}' '{folder}/after-then'
    """
    subprocess.run(
        [*OWN_MOUNTS, "sh", "-c", script, "sh", *first], env=environment(), cwd=folder, timeout=300, check=True
    )  # fmt: skip
    return [
        (int((folder / f"{name}.code").read_text()), (folder / f"{name}.txt").read_text()) for name in ("first", "then")
    ]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(
    ("size_kb", "stages", "before", "words"),
    [
        (
            900,
            ("torch_profiler",),
            {"static_analysis": "ok", "torch_profiler": "failed"},
            "torch_profiler: failed in ",
        ),
        (
            2000,
            ("alpha",),
            {"static_analysis": "ok", "alpha": "ok"},
            "error: the reports could not be written (No space left on device (",
        ),
    ],
    ids=["the trace of torch_profiler", "the report"],
)
def test_a_disk_that_fills_in_the_middle_loses_nothing_and_the_run_goes_on(
    tmp_path: Path, size_kb: int, stages: tuple[str, ...], before: dict[str, str], words: str
) -> None:
    if not _can_mount(tmp_path):
        pytest.skip("this user may not mount a file system of his own")
    run = tmp_path / "disk/r"
    switches = [f"pipeline.torch_profiler.enable={str('torch_profiler' in stages).lower()}"]
    if "alpha" in stages:
        # Room for the manifest, and none for the page.
        switches += [ALPHA, "pipeline.alpha.leave_kb=100"]
    first = command("profile", *TINY, *switches, f"artifacts.runs_dir={run}")
    (code, said), (code_then, said_then) = _with_disk(tmp_path, size_kb, first, command("profile", f"run.resume={run}"))
    assert (code, "Traceback" in said, "(unexpected; the traceback" in said) == (1, False, False), said
    assert words in said and f"({run}/" in said
    kept = tmp_path / "after-first/r"
    manifest = valid_manifest(kept)
    assert (manifest["status"], statuses(manifest)) == ("failed", before)
    assert (kept / "static_analysis/static.json").stat().st_size > 0
    # Neither half a trace, which would hold the room, nor an empty file for a traceback.
    assert [p.name for p in kept.rglob("*") if p.name.startswith(("trace.json", "error.txt", "."))] == []
    assert (code_then, "static_analysis: reused" in said_then) == (0, True), said_then
    assert statuses(valid_manifest(tmp_path / "after-then/r")) == dict.fromkeys(before, "ok")


def test_a_stage_on_a_full_disk_says_so_and_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage has no room, the manifest has: the others continue, and no traceback is written."""
    log = tmp_path / "r/alpha/log.txt"

    def full(self: Redactor, path: Path) -> None:
        if path == log:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Redactor, "log", full)
    done = llm_perf_here("profile", *OFF, ALPHA, BETA, f"artifacts.runs_dir={tmp_path / 'r'}", cwd=tmp_path)
    manifest = valid_manifest(tmp_path / "r")
    assert (done.code, statuses(manifest)) == (1, {"alpha": "failed", "beta": "ok"})
    assert manifest["stages"][0]["reason"] == f"No space left on device ({log})"
    assert list(tmp_path.rglob("error.txt")) == []


def test_a_child_of_a_run_on_a_full_disk_says_which_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(config: AppConfig, out_dir: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "metrics.json")

    argv = ["--child", "experiment=demo", f"hydra.run.dir={tmp_path}", f"artifacts.runs_dir={tmp_path}"]
    assert run_child(work, argv) == 1
    assert capsys.readouterr().err.splitlines() == ["error: No space left on device (metrics.json)"]


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", _full)
    with pytest.raises(OSError) as caught:
        write_whole(tmp_path / "a.json", b"{}")
    assert is_full_disk(caught.value)
    assert in_words(caught.value) == f"No space left on device ({tmp_path / 'a.json'})"
    assert list(tmp_path.iterdir()) == []
    assert not is_full_disk(PermissionError(errno.EACCES, "no")) and not is_full_disk(ValueError())


def test_half_a_moved_file_is_removed_and_its_place_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "a/run.sqlite", tmp_path / "b/run.sqlite"
    for path in (source, target):
        path.parent.mkdir()
    source.write_bytes(b"whole")

    def half(source: Path, target: Path) -> None:
        target.write_bytes(source.read_bytes()[:2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))

    with monkeypatch.context() as patch:
        patch.setattr("shutil.move", half)
        with pytest.raises(OSError) as caught:
            move_whole(source, target)
    assert in_words(caught.value) == f"No space left on device ({target})"
    assert (source.read_bytes(), target.exists()) == (b"whole", False)
    assert move_whole(source, target) == target
    assert (target.read_bytes(), source.exists()) == (b"whole", False)


def test_a_trace_torch_did_not_write_is_said_and_half_a_packed_one_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace, packed = tmp_path / "trace.json", tmp_path / "trace.json.gz"
    with pytest.raises(ToolError, match=f"did not write its trace \\({trace}\\); .* are free there"):
        pack_trace(trace, packed)
    trace.write_text("{}")
    monkeypatch.setattr("shutil.copyfileobj", _full)
    with pytest.raises(OSError) as caught:
        pack_trace(trace, packed)
    assert (in_words(caught.value), packed.exists()) == (f"No space left on device ({packed})", False)


def test_a_log_that_cannot_be_copied_loses_known_secrets_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log.txt"
    log.write_text("key hunter2hunter2 end\n")
    monkeypatch.setattr(Path, "replace", _full)
    with pytest.raises(OSError) as caught:
        Redactor.of({"MY_TOKEN": "hunter2hunter2"}).log(log)
    assert in_words(caught.value) == f"No space left on device ({log})"
    assert (log.read_text(), REDACTED in log.read_text()) == ("key xxxxxxxxxxxxxx end\n", False)
    assert [path.name for path in tmp_path.iterdir()] == ["log.txt"]

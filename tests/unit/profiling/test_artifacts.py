"""The layout of the run directory, and how its files are written."""

import json
import os
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from llm_perf_opt.capture.rows import CopyRow
from llm_perf_opt.core.manifest import strict_json
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.profiling.artifacts import Artifacts
from llm_perf_opt.profiling.baseline import FILES
from llm_perf_opt.system.files import write_whole
from tests.support.fixtures_dir import REPO


def test_paths_are_absolute_and_made_on_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    artifacts = Artifacts.from_root("runs/r1")
    assert artifacts.root == tmp_path / "runs/r1"
    assert not artifacts.root.exists()
    assert artifacts.out_dir("nsys") == tmp_path / "runs/r1/nsys"
    assert artifacts.tmp_dir("workload") == tmp_path / "runs/r1/tmp/workload"
    assert sorted(p.name for p in artifacts.root.iterdir()) == ["nsys", "tmp"]
    assert artifacts.path("nsys/run") == tmp_path / "runs/r1/nsys/run"


def test_a_relative_root_is_not_doubled_after_changing_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    artifacts = Artifacts.for_run("runs/r1")
    monkeypatch.chdir(artifacts.root)
    assert artifacts.out_dir("ncu") == tmp_path / "runs/r1/ncu"


def test_only_known_stages_have_a_directory(tmp_path: Path) -> None:
    artifacts = Artifacts.from_root(tmp_path)
    # A stage that comes as a plug-in, as any other package's would.
    assert artifacts.out_dir("energy").is_dir()
    for name in ("bogus", "..", "a/b", "", "a-b", "/etc", "workload"):
        with pytest.raises(ConfigError, match=rf"stage '{re.escape(name)}': unknown.*, allowed: host_samples, "):
            artifacts.out_dir(name)
    with pytest.raises(ConfigError, match="stage 'nsy': unknown; did you mean nsys"):
        artifacts.tmp_dir("nsy")
    assert [path.name for path in tmp_path.iterdir()] == ["energy"]


def test_a_path_outside_the_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leaves the run directory"):
        Artifacts.from_root(tmp_path / "r").path("../other")


def test_the_old_way_still_works_and_warns(tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="Artifacts.for_run"):
        assert Artifacts.create_stage2_root(tmp_path / "r") == tmp_path / "r"


def test_every_role_a_stage_gives_a_file_is_documented() -> None:
    sources = [p.read_text() for p in (REPO / "src/llm_perf_opt/profiling").rglob("*.py")]
    given = {role for text in sources for role in re.findall(r'\brole="(\w+)"', text)}
    given |= {role for role, _ in FILES}
    table = (REPO / "docs/artifacts.md").read_text().partition("## Roles of files")[2].partition("\n## ")[0]
    assert given - set(re.findall(r"`(\w+)`", table)) == set()
    assert len(given) > 20


def test_a_pipe_is_written_to_and_stays_one_and_a_link_is_followed_only_among_the_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe, link, target = tmp_path / "pipe", tmp_path / "link", tmp_path / "target"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"numbers")
    assert (os.read(reader, 99), pipe.is_fifo()) == (b"numbers", True)
    os.close(reader)
    write_whole(pipe, b"nobody reads")
    assert (pipe.is_fifo(), pipe.read_bytes()) == (False, b"nobody reads")
    target.write_bytes(b"mine")
    link.symlink_to(target)
    with monkeypatch.context() as streams:
        streams.setattr("llm_perf_opt.system.files.STREAMS", (tmp_path,))
        write_whole(link, b"said")
        assert (target.read_bytes(), link.is_symlink()) == (b"said", True)
    write_whole(link, b"ours")
    assert (target.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"said", b"ours", False)


def test_a_number_that_is_none_becomes_null_in_a_document_and_the_rest_stays() -> None:
    row = CopyRow(
        kind="c", instances=1, total_ns=1, size_bytes=None, avg_ns=float("nan"), min_ns=1, max_ns=1, bytes_per_s=0.5
    )
    text = strict_json({"a": [1, 0.1, float("inf")], "b": row, "c": "NaN ü"})
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": [1, 0.1, None],
        "b": {**asdict(row), "avg_ns": None},
        "c": "NaN ü",
    }
    assert "ü" in text and "\\u00fc" in strict_json("ü", ensure_ascii=True)

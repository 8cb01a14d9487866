"""The index of many runs: what it may be believed, and who may write it."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.manifest import read_manifest, write_manifest
from llm_perf_opt.errors import ManifestError
from llm_perf_opt.pipeline import catalogue
from llm_perf_opt.pipeline.catalogue import FORMAT, INDEX_FILE, LocalFolder, RunRow, list_runs
from llm_perf_opt.pipeline.index import index_run
from tests.unit.pipeline.test_many_runs import timed_run


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three runs, one of them of a sweep, in a folder that is worth an index."""
    monkeypatch.setattr(catalogue, "WORTH", 1)
    timed_run(tmp_path / "a", 10.0)
    timed_run(tmp_path / "b", 20.0)
    timed_run(tmp_path / "sweep-1" / "0", 30.0)
    return tmp_path


def rows(root: Path) -> dict[str, RunRow]:
    return dict(list_runs(LocalFolder(root=root), kind="row").rows)


def read_anew(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs whose manifests one more listing reads."""
    asked: list[str] = []
    original = LocalFolder.manifests

    def manifests(self: LocalFolder, places: list[str]) -> object:
        asked.extend(places)
        return original(self, places)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "manifests", manifests)
        rows(root)
    return asked


def test_the_second_listing_reads_no_manifest_and_says_the_same(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rows(root)
    assert [(place, row.tpot_ms) for place, row in first.items()] == [("a", 10.0), ("b", 20.0), ("sweep-1/0", 30.0)]
    assert (root / INDEX_FILE).is_file()
    assert read_anew(root, monkeypatch) == []
    assert rows(root) == first


def test_an_index_that_unpacks_to_more_than_it_should_is_not_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rows(root)
    monkeypatch.setattr("llm_perf_opt.system.files.UNPACKED_ALWAYS_BYTES", 1 << 10)
    monkeypatch.setattr("llm_perf_opt.system.files.LARGEST_RATIO", 2)
    values = f"{FORMAT} AS format, 'p' || i AS place, 's' AS stamp, repeat('x', 1000) AS row, repeat('y', 1000) AS run"
    more = f"SELECT * FROM read_parquet('{root / INDEX_FILE}') UNION ALL SELECT {values} FROM range(1000) t(i)"
    duckdb.execute(f"COPY ({more}) TO '{root / 'bomb'}' (FORMAT parquet)")
    (root / "bomb").replace(root / INDEX_FILE)
    assert sorted(read_anew(root, monkeypatch)) == ["a", "b", "sweep-1/0"]
    assert rows(root) == first


def test_a_scratch_folder_with_a_quote_in_its_name_is_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = root / "o'brien [x]*"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    rows(root)
    assert (root / INDEX_FILE).is_file()
    assert read_anew(root, monkeypatch) == []


def test_the_index_gives_back_whole_runs(root: Path) -> None:
    rows(root)
    found = list_runs(LocalFolder(root=root), kind="run").runs
    assert found == {place: index_run(root / place) for place in ("a", "b", "sweep-1/0")}


def test_a_changed_run_is_noticed_and_a_removed_one_is_gone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(root)
    before = (root / "a" / "manifest.json").stat()
    write_manifest(root / "a", replace(read_manifest(root / "b"), run_id="x", status="failed"))
    # Of the same time, as on a file system with a coarse clock.
    os.utime(root / "a" / "manifest.json", ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / "b" / "manifest.json").unlink()
    assert read_anew(root, monkeypatch) == ["a"]
    assert [(place, row.run_id, row.status) for place, row in rows(root).items()] == [
        ("a", "x", "failed"),
        ("sweep-1/0", "0", "ok"),
    ]


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more", b'{"runs": []}'])
def test_a_damaged_index_is_made_anew(root: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    first = rows(root)
    (root / INDEX_FILE).write_bytes(content)
    assert rows(root) == first
    assert read_anew(root, monkeypatch) == []


def test_a_pipe_in_the_place_of_the_index_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / INDEX_FILE)
    assert [*rows(root)] == ["a", "b", "sweep-1/0"]


def test_an_index_of_another_format_is_not_believed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(root)
    monkeypatch.setattr(catalogue, "FORMAT", catalogue.FORMAT + 1)
    assert sorted(read_anew(root, monkeypatch)) == ["a", "b", "sweep-1/0"]


def test_a_moved_folder_keeps_its_index(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(root)
    moved = root.rename(root.with_name("moved"))
    assert read_anew(moved, monkeypatch) == []
    assert rows(moved)["a"].path == str(moved / "a")


def test_an_index_that_cannot_be_written_is_said_and_costs_nothing_else(root: Path) -> None:
    (root / INDEX_FILE).mkdir()
    said: list[str] = []
    listed = list_runs(LocalFolder(root=root), kind="row", say=said.append)
    assert [*listed.rows] == ["a", "b", "sweep-1/0"]
    assert said == ["note: the index was not written (Is a directory); listing takes as long again"]


def test_few_runs_get_no_index(tmp_path: Path) -> None:
    timed_run(tmp_path / "a", 10.0)
    assert [*rows(tmp_path)] == ["a"]
    assert not (tmp_path / INDEX_FILE).exists()


def test_a_run_that_cannot_be_read_is_told_and_not_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "b" / "manifest.json").write_text("{")
    listed = list_runs(LocalFolder(root=root), kind="row")
    assert [*listed.rows] == ["a", "sweep-1/0"]
    assert listed.unread["b"].startswith(f"{root / 'b' / 'manifest.json'}: not valid JSON")
    assert read_anew(root, monkeypatch) == ["b"]


def test_many_listings_at_once_leave_one_whole_index(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        timed_run(root / f"c{number}", float(number + 1))
    with ThreadPoolExecutor(max_workers=8) as pool:
        found = list(pool.map(rows, [root] * 16))
    assert all(one == found[0] for one in found) and len(found[0]) == 23
    assert read_anew(root, monkeypatch) == []
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == [INDEX_FILE]


def test_filters_read_the_index(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows(root)
    assert main(["runs", str(root), "--where", "tpot_ms>=20", "--columns", "tpot_ms", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"run": "b", "path": str(root / "b"), "tpot_ms": 20.0},
        {"run": "0", "path": str(root / "sweep-1" / "0"), "tpot_ms": 30.0},
    ]


@pytest.mark.parametrize("name", ["L" * 300, "a/" * 3000, "a\0b"])
def test_a_file_that_no_disk_can_hold_makes_a_manifest_unreadable(root: Path, name: str) -> None:
    path = root / "b" / "manifest.json"
    data = json.loads(path.read_bytes())
    data["stages"][0]["files"] = [{"role": "samples", "path": name}]
    path.write_text(json.dumps(data))
    with pytest.raises(ManifestError, match=r"no file can have this name .* `\$\.stages\[0\]\.files\[0\]\.path`"):
        read_manifest(root / "b")

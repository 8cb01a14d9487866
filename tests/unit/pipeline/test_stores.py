"""Sending runs to a store: whose place is whose, what is sent, and what is never recorded."""

import json
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.errors import ConfigError, ProfilingError
from llm_perf_opt.pipeline.stores import check_url, claim, upload
from llm_perf_opt.system.files import write_whole
from tests.support.schemas import valid_file
from tests.unit.pipeline.test_many_runs import timed_run

pytest.importorskip("fsspec")


def here(folder: Path) -> str:
    return f"file://{folder}"


def held(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_a_run_is_sent_as_it_is_without_its_lock_scratch_and_links(tmp_path: Path) -> None:
    run = timed_run(tmp_path / "runs" / "a", 10.0)
    write_whole(run / "report.md", b"text")
    (run / ".lock").write_text("")
    (run / ".manifest.json.1.tmp").write_text("")
    (run / "link").symlink_to("/etc/hostname")
    store = tmp_path / "store"
    done = upload(run, claim(here(store), run))
    assert held(store) == ["a/manifest.json", "a/report.md", "a/sync.json"]
    assert (store / "a" / "manifest.json").read_bytes() == (run / "manifest.json").read_bytes()
    assert (done.files, done.url) == (2, f"{here(store)}/a")
    assert valid_file("sync", store / "a" / "sync.json") == valid_file("sync", run / "sync.json")


def test_two_runs_of_one_name_get_two_places_and_one_run_keeps_its_own(tmp_path: Path) -> None:
    store = here(tmp_path / "store")
    first, second = timed_run(tmp_path / "x" / "a", 10.0), timed_run(tmp_path / "y" / "a", 20.0)
    assert [claim(store, run).url for run in (first, second, first)] == [f"{store}/a", f"{store}/a-2", f"{store}/a"]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    run, store = timed_run(tmp_path / "runs" / "a", 10.0), tmp_path / "store"
    (store / "a").mkdir(parents=True)
    (store / "a" / "thesis.tex").write_text("years of work")
    assert upload(run, claim(here(store), run)).url == f"{here(store)}/a-2"
    assert held(store) == ["a-2/manifest.json", "a-2/sync.json", "a/thesis.tex"]


def test_a_job_of_a_sweep_is_sent_below_its_sweep(tmp_path: Path) -> None:
    run = timed_run(tmp_path / "sweep-1" / "3", 10.0)
    (tmp_path / "sweep-1" / "jobs.json").write_text("{}")
    assert claim(here(tmp_path / "store"), run).url == f"{here(tmp_path / 'store')}/sweep-1/3"


def test_what_a_resumed_run_no_longer_has_is_removed_from_the_store(tmp_path: Path) -> None:
    run, store = timed_run(tmp_path / "runs" / "a", 10.0), tmp_path / "store"
    (run / "old").mkdir()
    (run / "old" / "trace").write_text("")
    upload(run, claim(here(store), run))
    (run / "old" / "trace").unlink()
    upload(run, claim(here(store), run))
    assert held(store) == ["a/manifest.json", "a/sync.json"]


@pytest.mark.parametrize(
    "url",
    ["s3://AKIA0000000000000000:wJalrXUtnFEMIK7MDENGbPxRfiCY@bucket/x", "sftp://me:hunter22@host/x", "s3://b/x?token=12345678"],
)  # fmt: skip
def test_an_address_that_holds_a_secret_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_url(url, "artifacts.sync")
    assert "artifacts.sync: holds a password or a signature" in str(error.value)
    assert not any(secret in str(error.value) for secret in ("wJalr", "hunter22", "12345678"))


@pytest.mark.parametrize("url", ["bucket/folder", "simplecache::s3://bucket/x"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"artifacts\.sync: not an address of a store"):
        check_url(url, "artifacts.sync")


def test_a_store_that_cannot_be_written_to_is_told_before_the_run(tmp_path: Path) -> None:
    run = timed_run(tmp_path / "runs" / "a", 10.0)
    (tmp_path / "store").write_text("a file")
    with pytest.raises(
        ConfigError, match=r"artifacts.sync: file://.* cannot be written to \((NotADirectory|FileExists)"
    ):
        claim(here(tmp_path / "store"), run)
    with pytest.raises(ConfigError, match="Protocol not known: hole"):
        claim("hole://x/y", run)
    assert not (run / "sync.json").exists()


def test_a_store_that_is_gone_at_the_end_is_told_with_the_way_to_send_it_again(tmp_path: Path) -> None:
    run, store = timed_run(tmp_path / "runs" / "a", 10.0), tmp_path / "store"
    place = claim(here(store), run)
    for path in (store / "a" / "sync.json", store / "a"):
        path.unlink() if path.is_file() else path.rmdir()
    (store / "a").write_text("in the way")
    with pytest.raises(ProfilingError, match=rf"was not written .*run.resume={run}` send it again"):
        upload(run, place)


def test_runs_of_a_store_are_listed_as_those_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    for name, tpot_ms in (("a", 10.0), ("b", 20.0)):
        run = timed_run(tmp_path / "runs" / name, tpot_ms)
        upload(run, claim(here(store), run))
    (store / "c").mkdir()
    (store / "c" / "manifest.json").write_text("{")
    assert main(["runs", here(store), "--json"]) == 0
    a, b, c = json.loads(capsys.readouterr().out)
    assert [(row["run_id"], row["path"], row["tpot_ms"]) for row in (a, b)] == [
        ("a", f"{here(store)}/a", 10.0),
        ("b", f"{here(store)}/b", 20.0),
    ]
    assert c["note"].startswith(f"{here(store)}/c/manifest.json: not valid JSON")
    assert main(["runs", here(store), "--where", "tpot_ms<15", "--json"]) == 0
    assert [row["path"] for row in json.loads(capsys.readouterr().out)] == [f"{here(store)}/a"]


def test_a_folder_that_is_not_in_the_store_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", here(tmp_path / "nothing")]) == 2
    assert f"{here(tmp_path / 'nothing')}: nothing is there" in capsys.readouterr().err

"""Run directories and captures that an attacker prepared: nothing outside is touched, nothing hangs, nothing runs."""

import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.core.records import CommandRecord, CommandStep
from llm_perf_opt.core.sections import Section, SectionTable
from tests.support.fixtures_dir import DATA
from tests.support.orchestrator import ALPHA, OFF, STATE, llm_perf_here, only_run
from tests.support.report_runs import capture, clean, stage, write_run
from tests.unit.commands.test_compare_command import STEADY, run_of


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one small stage, to be copied and tampered with."""
    folder = tmp_path_factory.mktemp("finished")
    done = llm_perf_here("profile", *OFF, ALPHA, cwd=folder)
    assert done.code == 0, done.err
    return only_run(folder)


def _copy(finished: Path, target: Path) -> Path:
    shutil.copytree(finished, target)
    return target


def _change(run_dir: Path, **keys: Any) -> None:
    path = run_dir / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def _give_number(run_dir: Path, number: str) -> None:
    """A time per token that JSON as others write it may hold."""
    stages = json.loads((run_dir / "manifest.json").read_text())["stages"]
    spread = {"p10": 7.25, "p90": 7.25, "n": 3}
    stages[0]["metrics"]["tpot_ms"] = {"value": 7.25, "unit": "ms", "how": "told"}
    stages[0]["metrics"]["ttft_ms"] = {"value": 1.5, "unit": "ms", "how": "told", "spread": spread}
    _change(run_dir, stages=stages)
    path = run_dir / "manifest.json"
    path.write_text(path.read_text().replace("7.25", number))


def test_a_report_replaces_a_link_instead_of_following_it(tmp_path: Path, finished: Path) -> None:
    run_dir = _copy(finished, tmp_path / "run")
    for name in ("report.html", "report.md", "kernels.md", "stakeholder_summary.md"):
        (tmp_path / f"mine-{name}").write_text("mine")
        (run_dir / name).unlink()
        (run_dir / name).symlink_to(tmp_path / f"mine-{name}")
    assert main(["report", str(run_dir)]) == 0
    assert {path.read_text() for path in tmp_path.glob("mine-*")} == {"mine"}
    assert not (run_dir / "report.html").is_symlink()


@pytest.mark.parametrize("number", ["NaN", "1e999"])
def test_absurd_numbers_and_words_of_a_manifest_end_no_report(tmp_path: Path, finished: Path, number: str) -> None:
    run_dir = _copy(finished, tmp_path / "run")
    _give_number(run_dir, number)
    odd: tuple[object, ...] = (None, 7, "x", [[1]], {"a": {}})
    for said in odd:
        environment = dict.fromkeys(("gpus", "tools", "packages", "git", "cpu"), said)
        _change(run_dir, config={"workload": {"command": said}}, environment=environment)
        assert main(["report", str(run_dir)]) == 0


@pytest.mark.parametrize("number", ["1e300", "-1e300", "1e-300", "1" + "0" * 400, "0", "-7"])
@pytest.mark.parametrize("file", ["manifest.json", "nsys/analysis.json"])
def test_a_number_nothing_measures_is_said_with_its_file_or_left_out(
    tmp_path: Path, file: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(
        tmp_path / "run",
        stage("torch_profiler", tmp_path / "run", metrics=clean(ttft_ms=20.0, tpot_ms=7.25)),
        stage("nsys", tmp_path / "run", {"analysis_json": ("analysis.json", capture(("gemm", 4, 7250000)))}),
    )
    shutil.copytree(run, tmp_path / "other")
    changed = (run / file).read_text().replace("7250000", number).replace("7.25", number)
    assert number in changed
    (run / file).write_text(changed)
    for words in (["report"], ["compare", "--force", str(tmp_path / "other")], ["export", "--to", "openmetrics"]):
        assert main([*words, str(run)]) in (0, 2)
        said = capsys.readouterr()
        assert "(unexpected; the traceback" not in said.err
        assert not said.err.startswith("error") or str(run) in said.err
    assert main(["runs", str(tmp_path)]) == 0


@pytest.mark.parametrize("number", ["-98765.5", "NaN", "1e999"])
def test_what_was_not_measured_is_not_shown_as_a_number(
    tmp_path: Path, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A time below zero, or none at all, of a metric, of a stage, of its commands and of a table."""
    table = SectionTable(columns=("step", "ms"), rows=(("a", 7.25),))
    step = CommandStep(name="loading", duration_s=7.25)
    run = write_run(
        tmp_path / "run",
        stage(
            "torch_profiler",
            tmp_path / "run",
            metrics=clean(ttft_ms=7.25, tpot_ms=7.25, prefill_ms=7.25, decode_ms=7.25),
            duration_s=7.25,
            commands=(CommandRecord(argv=("x",), exit_code=0, duration_s=7.25, label="work", steps=(step,)),),
            sections=(Section(title="t", tables=(table,)),) if number[0] != "-" else (),
        ),
        first_verdict_s=7.25,
    )
    path = run / "manifest.json"
    path.write_text(path.read_text().replace("7.25", number))
    assert number in path.read_text()
    assert main(["report", str(run)]) == 0
    assert main(["runs", str(tmp_path)]) == 0
    pages = [(run / name).read_text() for name in ("report.md", "stakeholder_summary.md", "kernels.md", "report.html")]
    shown = "\n".join(
        [capsys.readouterr().out, *(re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S) for page in pages)]
    )
    assert re.findall(r"(?<![\w-])(?:nan|inf|-98[.,]\d*)(?![\w-])", shown, re.IGNORECASE) == []
    assert "loading unknown" in shown


@pytest.mark.parametrize("place", ["/etc/hostname", "fifo", "/dev/zero"])
def test_a_report_reads_no_file_but_those_of_the_run(tmp_path: Path, finished: Path, place: str) -> None:
    run_dir = _copy(finished, tmp_path / "run")
    os.mkfifo(run_dir / "fifo")
    stages = json.loads((run_dir / "manifest.json").read_text())["stages"]
    stages[0]["files"] = [{"role": role, "path": place} for role in ("metrics", "timeline_json", "operators_csv")]
    _change(run_dir, stages=stages)
    assert main(["report", str(run_dir)]) == 0


def test_one_hostile_run_never_breaks_the_list(
    tmp_path: Path, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _copy(finished, tmp_path / "a-good")
    for name in ("b-fifo", "c-deep", "d-markup", "e-huge", "f-directory"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "b-fifo/manifest.json")
    (tmp_path / "c-deep/manifest.json").write_text("[" * 200_000)
    shutil.copy(finished / "manifest.json", tmp_path / "d-markup")
    _change(tmp_path / "d-markup", run_id="[/red]\x1b]0;title\x07\u202e", created_at="\ud800" + "9" * 300_000)
    with (tmp_path / "e-huge/manifest.json").open("wb") as file:
        file.truncate(10 << 30)
    (tmp_path / "f-directory/manifest.json").mkdir()
    (tmp_path / "g-loop").symlink_to("g-loop")
    for name, number in (("h-digits", "9" * 400), ("i-nan", "NaN"), ("j-infinite", "1e999")):
        (tmp_path / name).mkdir()
        shutil.copy(finished / "manifest.json", tmp_path / name)
        _give_number(tmp_path / name, number)
    assert main(["runs", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "alpha ok" in shown
    assert "[/red]\\x1b]0;title\\x07\\u202e" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)
    assert main(["runs", "--json", str(tmp_path)]) == 0
    notes = {row["run_id"]: row["note"] for row in json.loads(capsys.readouterr().out)}
    assert "not a regular file" in notes["b-fifo"]
    assert "nested too deeply" in notes["c-deep"]
    assert "larger than 64 MiB" in notes["e-huge"]
    for words in (["--sort", "tpot_ms"], ["--where", "tpot_ms>1"], ["--html", str(tmp_path / "runs.html")]):
        assert main(["runs", str(tmp_path), *words]) == 0


def test_a_run_of_somebody_else_is_shown_and_not_resumed(tmp_path: Path, finished: Path) -> None:
    run_dir = _copy(finished, tmp_path / "run")
    mine = llm_perf_here("profile", f"run.resume={run_dir}", cwd=tmp_path)
    assert (mine.code, "alpha: reused" in mine.err) == (0, True)

    victim = tmp_path / "victim"
    overrides = json.loads((run_dir / "manifest.json").read_text())["overrides"]
    _change(run_dir, overrides=[*overrides, f"workload.command=[touch,{victim}]", "pipeline.nsys.enable=true"])
    done = llm_perf_here("profile", f"run.resume={run_dir}", cwd=tmp_path)
    assert done.code == 2
    assert f"'workload.command=[touch,{victim}]'" in done.err
    assert "allowed: run.trust=true if you trust that" in done.err
    assert not victim.exists()
    again = _copy(finished, tmp_path / "again")
    other = llm_perf_here("profile", f"run.resume={again}", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "other"))
    assert (other.code, "was not started by you" in other.err) == (2, True)
    trusted = llm_perf_here(
        "profile", f"run.resume={again}", "run.trust=true", cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "other")
    )
    assert (trusted.code, "alpha: reused" in trusted.err) == (0, True)


def test_a_run_with_a_way_out_is_not_resumed(tmp_path: Path, finished: Path) -> None:
    run_dir = _copy(finished, tmp_path / "run")
    outside = tmp_path / "outside"
    outside.mkdir()
    shutil.rmtree(run_dir / "alpha")
    (run_dir / "alpha").symlink_to(outside)
    (run_dir / "tmp/alpha/log.txt").symlink_to(tmp_path / "log")
    os.mkfifo(run_dir / "pipe")
    done = llm_perf_here("profile", f"run.resume={run_dir}", "run.trust=true", cwd=tmp_path)
    assert done.code == 2
    for text in (
        "alpha: a link that leads out of it",
        "pipe: neither a file nor a directory",
        "tmp/alpha/log.txt: a link",
    ):
        assert text in done.err
    assert list(outside.iterdir()) == []


@pytest.mark.long
def test_a_damaged_list_of_inputs_is_said_in_words(
    tmp_path: Path, finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = _copy(finished, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(DATA / "plugin")
    monkeypatch.setenv("XDG_STATE_HOME", str(STATE))
    odd = ("sample_id: [[a]]", "size_bytes: .nan", "path: {}", "sha256: 3")
    for text in ("samples: [", "samples: 3", "[" * 5000, "- a", *(f"samples: [{{{one}}}]" for one in odd)):
        (run_dir / "inputs.yaml").write_text(text)
        assert main(["profile", f"run.resume={run_dir}"]) == 2
        *_, last = capsys.readouterr().err.splitlines()
        assert last.startswith("error: ") and "inputs.yaml" in last


@pytest.mark.parametrize("name", ["trace.json", "raw.csv", "run.sqlite", "report.ncu-rep", "run.nsys-rep"])
def test_a_pipe_is_no_capture(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / name)
    assert main(["analyze", str(tmp_path / name)]) == 2
    assert "not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "opened"), [("trace.json.gz", b'{"traceEvents": ['), ("raw.csv.gz", b"ID,Metric Name\n")]
)
def test_a_bomb_is_refused_before_it_fills_the_memory(
    tmp_path: Path, name: str, opened: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("llm_perf_opt.system.files.UNPACKED_ALWAYS_BYTES", 8 << 20)
    member = gzip.compress(b'{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1},\n' * (1 << 14))
    (tmp_path / name).write_bytes(gzip.compress(opened) + member * 12)
    assert main(["analyze", str(tmp_path / name)]) == 2
    assert "unpacks to more than 8 MiB" in capsys.readouterr().err


PREPARED_FILES = ("samples", "metrics", "timeline_json", "operators_csv", "analysis_json", "static_json", "gpu_samples")


def _as_manifest(text: str) -> Callable[[Path], None]:
    def prepare(run_dir: Path) -> None:
        (run_dir / "manifest.json").write_text(text)

    return prepare


def _sparse_manifest(run_dir: Path) -> None:
    with (run_dir / "manifest.json").open("wb") as file:
        file.truncate(10 << 30)


def _pipe_for_a_manifest(run_dir: Path) -> None:
    (run_dir / "manifest.json").unlink()
    os.mkfifo(run_dir / "manifest.json")


def _loop_for_a_manifest(run_dir: Path) -> None:
    (run_dir / "manifest.json").unlink()
    (run_dir / "manifest.json").symlink_to("manifest.json")


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (_pipe_for_a_manifest, "manifest.json: cannot be read (not a regular file)"),
        (_loop_for_a_manifest, "manifest.json: cannot be read (Too many levels of symbolic links)"),
        (_sparse_manifest, "manifest.json: cannot be read (larger than 64 MiB)"),
        (_as_manifest("[" * 200_000), "manifest.json: nested too deeply"),
        (_as_manifest("{}"), "manifest.json: schema_version is None"),
        (_as_manifest('{"schema_version": 1, "stages": {}}'), "manifest.json: Expected `array`, got `object`"),
        (_as_manifest("\x00"), "manifest.json: not valid JSON"),
    ],
    ids=["pipe", "loop", "huge", "deep", "empty", "wrong", "binary"],
)
def test_a_run_that_cannot_be_read_is_not_compared(
    tmp_path: Path, prepare: Callable[[Path], None], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = run_of(tmp_path / "good", STEADY), run_of(tmp_path / "bad", STEADY)
    prepare(bad)
    for sides in ((good, bad), (bad, good)):
        assert main(["compare", *map(str, sides)]) == 2
        err = capsys.readouterr().err
        assert words in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    "place", ["/etc/hostname", "fifo", "loop", "/dev/zero", "../good/manifest.json", "direct_inference"]
)
def test_a_comparison_reads_no_file_but_those_of_the_runs(
    tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = run_of(tmp_path / "good", STEADY), run_of(tmp_path / "bad", STEADY)
    os.mkfifo(bad / "fifo")
    (bad / "loop").symlink_to("loop")
    stages = json.loads((bad / "manifest.json").read_text())["stages"]
    stages[0]["files"] = [{"role": role, "path": place} for role in PREPARED_FILES]
    _change(bad, stages=stages)
    # It has no times of its own, which is a failure in words, and never a win.
    assert main(["compare", str(good), str(bad)]) == 1
    assert "neither clean times nor kernels were recorded" in capsys.readouterr().out


@pytest.mark.parametrize(
    "samples",
    [
        "[" * 200_000,
        "9" * 10_000,
        "\x00\n",
        *(
            f'{{"sample_id": "a", "pass": "clean", "repeat": 0, "tpot_ms": {odd}}}'
            for odd in ("1e999", "-5", "true", "1e300", "9" * 400)
        ),
        '{"sample_id": "a", "pass": "clean", "repeat": true, "tpot_ms": 5}',
    ],
    ids=["deep", "digits", "binary", "infinite", "negative", "switch", "absurd", "overflow", "repeat"],
)
def test_damaged_samples_are_no_times(tmp_path: Path, samples: str, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = run_of(tmp_path / "good", STEADY), run_of(tmp_path / "bad", STEADY)
    next(bad.rglob("samples.jsonl")).write_text(samples)
    assert main(["compare", str(good), str(bad)]) == 1
    assert "neither clean times nor kernels were recorded" in capsys.readouterr().out
    assert main(["report", str(bad)]) == 0


def test_a_comparison_and_a_sweep_replace_links_instead_of_following_them(tmp_path: Path) -> None:
    base, other = run_of(tmp_path / "s/1", STEADY), run_of(tmp_path / "s/2", STEADY)
    mine = tmp_path / "mine"
    mine.write_text("mine")
    names = [f"compare.{kind}" for kind in ("json", "md", "html")] + [
        f"sweep.{kind}" for kind in ("json", "md", "html")
    ]
    for name in names:
        (tmp_path / "s" / name).symlink_to(mine)
    assert main(["compare", str(base), str(other), "-o", str(tmp_path / "s")]) == 0
    assert main(["sweep", "report", str(tmp_path / "s")]) == 0
    assert mine.read_text() == "mine"
    assert [name for name in names if (tmp_path / "s" / name).is_symlink()] == []


def test_two_prepared_captures_are_not_compared_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("llm_perf_opt.system.files.UNPACKED_ALWAYS_BYTES", 8 << 20)
    good = run_of(tmp_path / "good", STEADY)
    os.mkfifo(tmp_path / "run.sqlite")
    (tmp_path / "deep.json").write_text('{"x": ' + "[" * 200_000 + "]" * 200_000 + ', "traceEvents": [{}]}')
    member = gzip.compress(b'{"ph": "X", "name": "a", "ts": 1, "dur": 1, "pid": 1, "tid": 1},\n' * (1 << 14))
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [') + member * 12)
    for name, words in (
        ("run.sqlite", "not a regular file"),
        ("deep.json", "nested too deeply"),
        ("bomb.json.gz", "unpacks to more than 8 MiB"),
    ):
        assert main(["compare", str(good), str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err


def test_what_is_printed_cannot_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = tmp_path / "a\x1b[2J\x9b\u202e.json"
    odd.write_text("{")
    assert main(["analyze", str(odd)]) == 2
    err = capsys.readouterr().err
    assert "a\\x1b[2J\\x9b\\u202e.json" in err
    assert not {"\x1b", "\x9b", "\u202e"} & set(err)

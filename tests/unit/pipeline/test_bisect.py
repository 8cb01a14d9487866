"""`llm-perf bisect`: the search on a simulated runner; lines of commits, versions and settings; a real repository."""

import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from llm_perf_opt.cli import main
from llm_perf_opt.comparison.bisect.bisect_document import bisect_document
from llm_perf_opt.comparison.bisect.bisect_search import BisectSearch, PairsRequest
from llm_perf_opt.errors import ConfigError
from llm_perf_opt.pipeline.bisect import measure
from llm_perf_opt.pipeline.bisect.flags import flag_line
from llm_perf_opt.pipeline.bisect.line import PointFails, RunPlace
from llm_perf_opt.pipeline.bisect.neighbours import Function, is_script, moved_functions, own_times
from llm_perf_opt.pipeline.bisect.versions import versions_between
from tests.support.schemas import valid, valid_file


def searched(
    seed: int, *, commits: int = 64, change: float = 0.05, noise: float = 0.1, broken: Sequence[int] = ()
) -> tuple[BisectSearch, int]:
    """A search over a simulated runner, and the culprit."""
    source = random.Random(seed)
    culprit = source.randint(1, commits)
    search = BisectSearch(last=commits)
    while (request := search.next_request()) is not None:
        if request.point in broken:
            search.skip(request.point)
            continue
        slower = math.log1p(change) if request.point >= culprit else 0.0
        ratios = [slower + source.gauss(0, noise) - source.gauss(0, noise) for _ in range(request.pairs)]
        search.add(request.point, ratios)
    return search, culprit


def test_five_percent_in_ten_percent_of_noise_is_found_among_64_commits() -> None:
    found = [searched(seed) for seed in range(20)]
    right = [search for search, culprit in found if search.answer and search.answer.culprits == (culprit,)]
    assert len(right) >= 19
    assert statistics.median(search.comparisons for search, _ in found) <= 2.5 * math.log2(64)
    for search in right:
        assert search.answer is not None and search.answer.low is not None and search.answer.high is not None
        assert (search.answer.probability or 0.0) >= 0.97
    covered = [one for one in right if one.answer and (one.answer.low or 0) <= 0.05 <= (one.answer.high or 0)]
    assert len(covered) >= 16


def test_without_a_change_there_is_no_regression() -> None:
    found = [searched(seed, change=0.0)[0] for seed in range(20)]
    assert [search.answer.outcome for search in found if search.answer] == ["no regression"] * 20


@pytest.mark.parametrize("seed", [346, 355])
def test_a_control_that_saw_too_little_noise_leaves_no_search_undecided(seed: int) -> None:
    search, _ = searched(seed, change=0.0)
    assert search.control is not None and search.answer is not None
    # 0.1 on both sides of a pair.
    assert search.control.spread < 0.65 * math.hypot(0.1, 0.1)
    assert search.answer.outcome == "no regression"


def test_no_regression_says_which_change_is_excluded_and_gives_no_point_a_probability() -> None:
    search, _ = searched(3, change=0.0, commits=8)
    names = tuple((f"c{number}", "") for number in range(9))
    document = bisect_document(search, kind="commits", metric="wall_ms", command=(), names=names, neighbours=None)
    assert search.answer is not None and search.answer.excluded is not None
    assert document.sentence.startswith("c0 to c8: wall_ms ")
    assert document.sentence.endswith(f"; a change above {100 * search.answer.excluded:+.1f} % is excluded (99.9 %).")
    assert {point.probability for point in document.points} == {None}


def test_no_answer_is_given_as_certain() -> None:
    search, _ = searched(1, change=0.5, noise=0.01, commits=4)
    names = tuple((f"c{number}", "") for number in range(5))
    document = bisect_document(search, kind="commits", metric="wall_ms", command=(), names=names, neighbours=None)
    assert search.answer is not None and (search.answer.probability or 0) > 0.999
    assert " made it worse with a probability of over 99.9 %: wall_ms " in document.sentence


def test_commits_that_do_not_run_are_skipped_and_reported_together() -> None:
    for seed in range(5):
        search, culprit = searched(seed, change=0.3, noise=0.02, broken=range(10, 20), commits=24)
        assert search.answer is not None and culprit in search.answer.culprits
        assert search.answer.culprits == ((culprit,) if not 10 <= culprit <= 20 else tuple(range(10, 21)))


def test_an_end_that_does_not_run_ends_the_search() -> None:
    for point, name in ((0, "good"), (8, "bad")):
        search, _ = searched(1, commits=8, broken=[point])
        assert search.answer is not None
        assert (search.answer.outcome, search.answer.reason) == ("inconclusive", f"the {name} end cannot be measured")


def test_a_machine_that_is_too_noisy_is_reported_unless_the_change_is_larger() -> None:
    search, _ = searched(1, noise=1.5)
    assert search.control is not None and search.answer is not None
    assert search.control.detectable > 0.25 and search.answer.outcome == "inconclusive"
    assert search.answer.reason.startswith("the machine is too noisy: equal runs differ by ")
    huge, culprit = searched(1, noise=0.8, change=8.0, commits=8)
    assert huge.answer is not None and huge.answer.culprits == (culprit,)


def test_an_improvement_is_no_regression_and_more_than_one_change_is_noted() -> None:
    search, _ = searched(3, change=-0.2, noise=0.02)
    assert search.answer is not None
    assert (search.answer.outcome, search.answer.culprits) == ("no regression", ())
    assert search.answer.reason.startswith("the bad end is better than the good end")
    steps = BisectSearch(last=8)
    levels = [0.0, 0.0, 0.0, 0.1, 0.1, 0.3, 0.3, 0.3, 0.3]
    source = random.Random(4)
    while (request := steps.next_request()) is not None:
        steps.add(request.point, [levels[request.point] + source.gauss(0, 0.01) for _ in range(request.pairs)])
    assert steps.answer is not None and steps.answer.misfits


def test_the_same_measurements_lead_to_the_same_requests() -> None:
    def requests(seed: int) -> list[PairsRequest]:
        source, found, search = random.Random(seed), [], BisectSearch(last=16)
        while (request := search.next_request()) is not None:
            found.append(request)
            search.add(request.point, [source.gauss(0.1 * (request.point > 6), 0.02) for _ in range(request.pairs)])
        return found

    assert requests(5) == requests(5)
    assert requests(5)[0] == PairsRequest(phase="control", point=0, pairs=12)


def test_versions_lie_between_two_ends_in_the_order_of_releases() -> None:
    known = ["5.9.1", "5.10.0", "5.10.1", "5.11.0rc1", "5.11.0", "5.17.0", "5.17.2", "6.0", "5.2"]
    assert versions_between("5.10", "5.17", known, option="x") == ("5.10.0", "5.10.1", "5.11.0", "5.17.0", "5.17.2")
    assert versions_between("5.2", "5.10.0", known, option="x") == ("5.2", "5.9.1", "5.10.0")
    for good, bad in (("5.17", "5.10"), ("4", "6.0"), ("5.10", "7")):
        with pytest.raises(ConfigError, match="--versions: "):
            versions_between(good, bad, known, option="x")


def test_settings_are_switched_on_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "flags.yaml"
    path.write_text(
        '- env: {THREADS: "1"}\n- name: eager\n  arguments: [--eager]\n  overrides: [model.attention=eager]\n'
    )
    line = flag_line(path, command=("python", "gen.py"), env={"A": "b"}, metric="tpot_ms")
    with pytest.raises(ConfigError, match="overrides need a metric of llm-perf"):
        flag_line(path, command=("python", "gen.py"), env={}, metric="wall_ms")
    assert [name.label for name in line.names] == ["none of the settings", "THREADS=1", "eager"]
    assert line.place(1).command == ("python", "gen.py")
    last = line.place(2)
    assert (last.command, last.env, last.overrides) == (
        ("python", "gen.py", "--eager"),
        {"A": "b", "THREADS": "1"},
        ("model.attention=eager",),
    )
    for text in ("a: 1", "- 5", "- {unknown: 1}", "- {env: [1]}", "- {name: x}", "[", ""):
        path.write_text(text)
        with pytest.raises(ConfigError, match="--flags: "):
            flag_line(path, command=("x",), env={}, metric="tpot_ms")


def test_functions_are_matched_without_their_lines_and_the_largest_change_comes_first(tmp_path: Path) -> None:
    base = {"a.py: f": Function(where="f (a.py:3)", own_ms=10.0), "gone": Function(where="gone", own_ms=4.0)}
    candidate = {"a.py: f": Function(where="f (a.py:9)", own_ms=30.0), "tiny": Function(where="tiny", own_ms=0.1)}
    rows = moved_functions(base, candidate)
    assert [(row.label, row.base_ms, row.candidate_ms, row.difference_ms) for row in rows] == [
        ("f (a.py:9)", 10.0, 30.0, 20.0),
        ("gone", 4.0, None, -4.0),
    ]
    script = tmp_path / "prog.py"
    script.write_text("def work():\n    return sum(range(1000))\nwork()\n")
    stats = tmp_path / "stats"
    subprocess.run([sys.executable, "-m", "cProfile", "-o", str(stats), str(script)], check=True, timeout=60)
    found = own_times(stats, tmp_path)
    assert found["prog.py: work"].where == "work (prog.py:1)"
    built_in = "<built-in method builtins.sum>"
    assert found[f"{built_in} in prog.py: work"].where == f"{built_in} in work (prog.py:1)"
    for release in ("1.0", "1.1"):
        package = tmp_path / "environments" / release / "lib" / "site-packages"
        package.mkdir(parents=True)
        (package / "pkg.py").write_text("def work():\n    return 1\nwork()\n")
        argv = [sys.executable, "-m", "cProfile", "-o", str(stats), str(package / "pkg.py")]
        subprocess.run(argv, check=True, timeout=60)
        assert own_times(stats, tmp_path)["pkg.py: work"].where == "work (pkg.py:1)"
    commands = (["python3.12", "x.py"], ["python", "-m", "x"], ["python", "-c", "1"], ["./x"])
    assert [is_script(words) for words in commands] == [True, True, False, False]


def git(repo: Path, *words: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(repo), "GIT_CONFIG_GLOBAL": os.devnull}
    named = ["-c", "user.name=name", "-c", "user.email=name@example.com"]
    done = subprocess.run(
        ["git", *named, *words], cwd=repo, env=env, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight revisions of a program; the sixth is slower, the third does not run."""
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q")
    for number in range(1, 9):
        (folder / "work.py").write_text(f"def tidy():\n    return sum(range({400_000 if number < 6 else 4_000_000}))\n")
        (folder / "prog.py").write_text(
            f"import work\n{'import nowhere' if number == 3 else ''}\nwork.tidy()  # {number}\n"
        )
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"Revision {number}")
    git(folder, "tag", "good", "HEAD~7")
    monkeypatch.chdir(folder)
    return folder


def by_revision(place: RunPlace, name: str) -> float:
    """A pass whose time follows from the checked-out program, with noise of 2 %."""
    text = (place.cwd / "prog.py").read_text()
    if "nowhere" in text:
        raise PointFails("exit code 1: ModuleNotFoundError")
    slow = "4000000" in (place.cwd / "work.py").read_text()
    source = random.Random(f"{name} {place.cwd.name}")
    return 100.0 * (1.3 if slow else 1.0) * math.exp(source.gauss(0, 0.02))


def test_the_commit_is_found_and_no_working_tree_stays(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure.Measure, "value", lambda self, place, name: by_revision(place, name))
    out = tmp_path / "out"
    assert main(["bisect", "good", "HEAD", "--no-neighbours", "-o", str(out), "--json", "--", "python", "prog.py"]) == 0
    found = valid("bisect", json.loads(capsys.readouterr().out))
    assert found == valid_file("bisect", out / "bisect.json")
    assert (found["outcome"], found["culprits"], found["points"][5]["title"]) == ("regression", [5], "Revision 6")
    assert found["probability"] >= 0.97 and 0.25 < found["change"] < 0.35
    assert [point["state"] for point in found["points"]].count("good") == 1
    assert git(repo, "worktree", "list").count("\n") == 1
    assert (out / "bisect.md").read_text().startswith("### llm-perf bisect: regression\n")


@pytest.mark.parametrize(("drift", "exit_code", "outcome"), [(3.0, 0, "regression"), (6.0, 3, "inconclusive")])
def test_a_machine_that_changed_during_the_search_is_reported(
    drift: float,
    exit_code: int,
    outcome: str,
    repo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Everything slows down after the control and the ends, with the same ratios."""

    def value(self: measure.Measure, place: RunPlace, name: str) -> float:
        return by_revision(place, name) * (drift if int(name[:4]) > 16 else 1.0)

    monkeypatch.setattr(measure.Measure, "value", value)
    out = tmp_path / "out"
    given = ["bisect", "good", "HEAD", "--no-neighbours", "-o", str(out), "--", "python", "prog.py"]
    assert main(given) == exit_code
    found = valid_file("bisect", out / "bisect.json")
    assert (found["outcome"], found["culprits"]) == (outcome, [5])
    assert "the machine changed during the search" in found["notes"][-1]
    assert ("of the good end itself changed" in found["sentence"]) is (outcome == "inconclusive")


def test_an_interrupted_search_goes_on_where_it_stopped(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = 0

    def value(self: measure.Measure, place: RunPlace, name: str) -> float:
        nonlocal made
        made += 1
        if made == 40:
            raise KeyboardInterrupt
        return by_revision(place, name)

    monkeypatch.setattr(measure.Measure, "value", value)
    out = tmp_path / "out"
    given = ["bisect", "good", "HEAD", "--no-neighbours", "-o", str(out), "--", "python", "prog.py"]
    assert main(given) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"interrupted: all processes were ended; continue: llm-perf bisect --resume {out}"
    assert git(repo, "worktree", "list").count("\n") == 1
    # HEAD may move meanwhile.
    git(repo, "commit", "-q", "--allow-empty", "-m", "later")
    assert main(said.partition("llm-perf ")[2].split()) == 0
    assert capsys.readouterr().out.startswith("REGRESSION: ")
    # Of the 40 passes, 19 pairs were whole; the pair that was cut short is measured again, and nothing else.
    pairs = valid_file("bisect", out / "bisect.json")["pairs"]
    assert made == 40 + 2 * (pairs - 19)


@pytest.mark.slow
@pytest.mark.long
def test_a_real_program_is_run_at_every_commit_and_the_function_is_named(
    repo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    settings = ["pipeline.nsys.enable=false", "pipeline.torch_profiler.enable=false", "--max-pairs", "64"]
    code = main(["bisect", "good", "HEAD", *settings, "-o", str(tmp_path / "out"), "--", sys.executable, "prog.py"])
    out = capsys.readouterr().out
    found = valid_file("bisect", tmp_path / "out" / "bisect.json")
    assert (code, found["outcome"], found["culprits"]) == (0, "regression", [5]), out
    assert out.startswith("REGRESSION: ") and "Revision 6 made it worse" in out
    assert found["neighbours"]["files"] == ["prog.py", "work.py"]
    assert found["neighbours"]["moved"][0]["label"] == "<built-in method builtins.sum> in tidy (work.py:1)"
    assert git(repo, "worktree", "list").count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--", "x"], "bisect: nothing to search (got nothing), allowed: GOOD BAD, --versions or --flags"),
        (["good", "HEAD"], "bisect: no program given, put it after `--`: llm-perf bisect GOOD BAD -- python prog.py"),
        (
            ["HEAD", "good", "--", "x"],
            "bisect: HEAD is not an ancestor of good; give an older good commit and a newer bad one",
        ),
        (["good", "good", "--", "x"], "bisect: good and good are the same commit"),
        (["good", "HEAD", "--metric", "tpot", "--", "x"], "--metric: unknown metric 'tpot'; did you mean tpot_ms?"),
        (
            ["good", "HEAD", "--gate", "<=-3%", "--", "x"],
            "--gate: not a regression limit (got '<=-3%'); use e.g. '<=+3%' or '>=-3%'",
        ),
        (["good", "HEAD", "--max-pairs", "2", "--", "x"], "--max-pairs: must be at least 8 (got 2)"),
        (
            ["--versions", "numpy", "--", "x"],
            "--versions: not a range of versions (got 'numpy'), allowed: such as transformers==5.10..5.17",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_named(words: list[str], said: str, repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bisect", *words]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"
    assert git(repo, "worktree", "list").count("\n") == 1


def test_outside_of_a_repository_there_are_no_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert main(["bisect", "a", "b", "--repo", str(tmp_path), "--", "x"]) == 2
    assert "is not inside a git repository" in capsys.readouterr().err

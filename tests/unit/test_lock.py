"""constraints.txt locks every direct dependency."""

from scripts.check_lock import direct, problems
from tests.support.fixtures_dir import REPO


def test_every_direct_dependency_is_locked_to_a_version_it_allows() -> None:
    pyproject = (REPO / "pyproject.toml").read_text(encoding="utf-8")
    assert len(direct(pyproject)) > 20
    assert problems(pyproject, (REPO / "constraints.txt").read_text(encoding="utf-8")) == []


def test_a_missing_pin_and_one_out_of_range_are_named() -> None:
    pyproject = '[project]\ndependencies = ["a>=2", "B_c<3"]\n[project.optional-dependencies]\ndev = ["d"]\n'
    assert problems(pyproject, "a==1.0\n# a note\nd==1\n") == [
        "a: constraints.txt has 1.0, pyproject.toml asks for >=2",
        "B_c: not in constraints.txt; add B_c==<version>",
    ]

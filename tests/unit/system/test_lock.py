"""constraints.txt locks every direct dependency; an audit without an answer is none."""

import json
import os

import pytest

from scripts.check_holes import Audited, read_audit
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


def test_a_package_nobody_knows_is_no_package_without_holes() -> None:
    def audit(*packages: dict[str, object]) -> Audited:
        return read_audit(json.dumps({"dependencies": packages, "fixes": []}))

    hole = {"id": "PYSEC-1", "fix_versions": ["2.1"], "aliases": [], "description": "a hole"}
    clean: list[dict[str, object]] = [{"name": f"p{n}", "version": "1", "vulns": []} for n in range(9)]
    unknown: dict[str, object] = {"name": "x", "skip_reason": "Dependency not found on PyPI"}
    ours: dict[str, object] = {"name": "llm-perf-opt", "skip_reason": "distribution marked as editable"}
    assert audit(*clean, unknown, ours) == Audited(known=9, unknown=("x",), holes=())
    assert audit(*clean, unknown, ours).is_all_clear
    assert not audit(unknown).is_all_clear
    assert not audit().is_all_clear
    found = audit({"name": "y", "version": "2.0", "vulns": [hole, {**hole, "fix_versions": []}]})
    assert found.holes == ("y 2.0: PYSEC-1; fixed in 2.1", "y 2.0: PYSEC-1; not fixed yet")


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="not run by a worker of xdist")
@pytest.mark.xdist_group("groups")
def test_xdist_knows_the_groups_of_tests(request: pytest.FixtureRequest) -> None:
    assert request.node.nodeid.endswith("@groups")

"""What a release is checked for, and that everything it uses is pinned."""

import os
import re
from pathlib import Path

import pytest
import yaml

from llm_perf_opt.commands.doctor import scratch_check
from scripts.release import ReleaseError, changes_of, check_tag, collect, read_entries
from scripts.support_matrix import main as support_matrix
from tests.support.fixtures_dir import REPO

CHANGELOG = (
    "# Changelog\n\n## 0.4.0 — unreleased\n\n- next\n\n"
    "## 0.3.0 — 2026-12-01\n\n### Added\n- a thing\n\n## 0.2.0\n\nolder\n"
)
PLACES = ('[project]\nversion = "0.3.0"\n', '__version__ = "0.3.0"\n', CHANGELOG, "version: 0.3.0\n")


def test_the_changes_of_a_version_are_its_section_alone() -> None:
    assert changes_of("0.3.0", CHANGELOG) == "### Added\n- a thing\n"
    with pytest.raises(ReleaseError, match=r"no changes of 0\.4\.0"):
        changes_of("0.4.0", CHANGELOG)


def test_a_tag_must_be_the_version_every_file_states() -> None:
    check_tag("v0.3.0", *PLACES)
    with pytest.raises(
        ReleaseError, match=r"pyproject.toml has 0.3.0, src/.*, CITATION.cff has 0.3.0; all must be 0.4.0"
    ):
        check_tag("v0.4.0", *PLACES)
    with pytest.raises(ReleaseError, match=r"src/llm_perf_opt/__init__.py has 0.2.9; all must be 0.3.0"):
        check_tag("v0.3.0", PLACES[0], '__version__ = "0.2.9"\n', *PLACES[2:])
    with pytest.raises(ReleaseError, match="has no v"):
        check_tag("0.3.0", *PLACES)


def test_the_entries_that_wait_are_one_line_of_a_known_area() -> None:
    assert all(read_entries(REPO / "changes").values())


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("cooking.x.md", "A soup.", "no such area"),
        ("run.x.md", "One line.\nAnother.", "one line of at most 160 characters"),
        ("run.x.md", "x" * 161, "one line of at most 160 characters"),
        ("run.x.md", "", "one line of at most 160 characters"),
    ],
)
def test_an_entry_that_cannot_be_collected_is_refused(name: str, text: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ReleaseError, match=problem):
        read_entries(tmp_path)


def test_entries_go_into_the_section_of_their_version_by_area(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("how")
    (tmp_path / "report.ticks.md").write_text("Round ticks.\n")
    (tmp_path / "run.exit.md").write_text("Fixed: exit codes.\n")
    (tmp_path / "run.more.md").write_text("- More causes.\n")
    entries = read_entries(tmp_path)
    before = "# Changelog\n\n## 0.4.0 — unreleased\n\n### Programs (`llm-perf run`)\n- old\n\n## 0.3.0\n\nolder\n"
    section = (
        "## 0.4.0 — 2027-01-01\n\n### Programs (`llm-perf run`)\n{}- Fixed: exit codes.\n- More causes.\n\n"
        "### Reports\n- Round ticks.\n\n"
    )
    assert collect("0.4.0", "2027-01-01", before, entries) == (
        "# Changelog\n\n" + section.format("- old\n") + "## 0.3.0\n\nolder\n"
    )
    assert collect("0.4.0", "2027-01-01", "# Changelog\n\n## 0.3.0\n\nolder\n", entries) == (
        "# Changelog\n\n" + section.format("") + "## 0.3.0\n\nolder\n"
    )


def test_every_action_and_image_is_pinned_by_its_digest() -> None:
    files = [*(REPO / ".github").rglob("*.yml"), REPO / "Dockerfile"]
    texts = {path.name: path.read_text() for path in files}
    used = [(name, use) for name, text in texts.items() for use in re.findall(r"uses: (\S+)", text)]
    assert len(used) > 10
    assert [use for use in used if not re.search(r"@[0-9a-f]{40}$", use[1]) and not use[1].startswith("./")] == []
    images = [image for text in texts.values() for image in re.findall(r"python:3\.\d+-[\w.:@-]+", text)]
    assert len(images) > 5
    assert [image for image in images if not re.search(r"@sha256:[0-9a-f]{64}$", image)] == []


def test_only_the_steps_that_publish_may_write_and_no_workflow_runs_what_strangers_sent_with_rights() -> None:
    for path in (REPO / ".github/workflows").glob("*.yml"):
        workflow = yaml.safe_load(path.read_text())
        assert workflow["permissions"] == {"contents": "read"}, path.name
        # YAML reads the key `on` as true.
        assert "pull_request_target" not in workflow[True], path.name
        writers = {name for name, job in workflow["jobs"].items() if "write" in job.get("permissions", {}).values()}
        allowed = {"release.yml": {"attest", "publish", "github", "image"}, "security.yml": {"codeql"}}
        assert writers == allowed.get(path.name, set()), path.name


def test_every_locked_package_has_a_hash_and_agrees_with_the_constraints() -> None:
    pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", (REPO / "constraints.txt").read_text(), re.M))
    for name in ("dev.txt", "release.txt"):
        entries = re.split(r"\n(?=[A-Za-z])", (REPO / "requirements" / name).read_text())
        assert len(entries) > 20
        assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", (REPO / "requirements/dev.txt").read_text(), re.M))
    assert {name: locked.get(name) for name in pins if name in locked} == {n: v for n, v in pins.items() if n in locked}
    assert {"torch", "aiohttp", "antlr4-python3-runtime", "pytest"} <= locked.keys()


def test_the_table_of_supported_versions_is_what_its_data_say() -> None:
    assert support_matrix(["--check"]) == 0


def test_a_place_for_temporary_files_without_programs_is_named(tmp_path: Path) -> None:
    assert scratch_check(tmp_path, 0).ok
    found = scratch_check(tmp_path, os.ST_NOEXEC)
    assert (found.ok, found.remedy) == (
        False,
        f"{tmp_path} is mounted noexec: set TMPDIR to a directory that may hold programs",
    )

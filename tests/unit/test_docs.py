"""The papers agree with each other: navigation and pages, links and their targets, versions and pins."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import llm_perf_opt
from llm_perf_opt.report.render.glossary import GLOSSARY
from tests.support.fixtures_dir import REPO

DOCS = REPO / "docs"
# What runs wrote alongside the pages of the showcase is not a page of ours.
WRITTEN = [p for p in DOCS.rglob("*.md") if p.parent in (DOCS, DOCS / "showcase", DOCS / "adr")]
PAGES = sorted([*WRITTEN, *REPO.glob("*.md")])


def _leaves(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    else:
        for child in node.values() if isinstance(node, dict) else node:
            yield from _leaves(child)


def _prose(path: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def _anchors(path: Path) -> set[str]:
    """The headings of a page as links name them."""
    titles = re.findall(r"^#+ (.*)$", _prose(path), re.M)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_the_navigation_names_every_page_once() -> None:
    site = yaml.safe_load((REPO / "mkdocs.yml").read_text())
    # The requirements of the project are not help for users.
    apart = site["not_in_nav"].split()
    assert apart == ["founding.md"]
    assert sorted([*_leaves(site["nav"]), *apart]) == sorted(str(p.relative_to(DOCS)) for p in WRITTEN)


# Five minutes at 240 words a minute. Pages of the reference are tables to look things up in.
LONGEST_PAGE_WORDS = 1200


def _pages_to_read() -> list[Path]:
    sections = yaml.safe_load((REPO / "mkdocs.yml").read_text())["nav"]
    named = [leaf for section in sections if "Reference" not in section for leaf in _leaves(section)]
    return [DOCS / name for name in named]


@pytest.mark.parametrize("page", _pages_to_read(), ids=lambda p: str(p.relative_to(DOCS)))
def test_every_page_can_be_read_in_five_minutes(page: Path) -> None:
    words = re.findall(r"\S*\w\S*", page.read_text(encoding="utf-8"))
    assert len(words) <= LONGEST_PAGE_WORDS


def test_the_first_page_names_every_other_but_the_decisions() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert linked == {p.name for p in DOCS.glob("*.md")} - {"index.md"}


def test_no_example_page_links_to_a_file_that_is_not_published_with_it() -> None:
    links = {
        (page.name, link)
        for page in (DOCS / "showcase").glob("*.html")
        for link in re.findall(r'<[a-z]+\b[^>]*\s(?:href|src)="([^"]*)"', page.read_text(encoding="utf-8"))
        if not re.match(r"#|https?:|data:|mailto:", link)
    }
    assert {(page, link) for page, link in links if not (DOCS / "showcase" / link).is_file()} == set()


# Pages that are not help in using or extending it.
NOT_FOR_MODELS = {"index.md", "compared.md", "founding.md", "migration.md", "support.md"}


def test_the_list_for_language_models_names_every_page_there_is() -> None:
    text = (DOCS / "llms.txt").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(([\w-]+\.md)\)", text)
    assert {*linked} == {p.name for p in DOCS.glob("*.md")} - NOT_FOR_MODELS
    assert len(linked) == len({*linked})


def test_what_agents_are_told_of_the_repository_is_there() -> None:
    text = (REPO / "AGENTS.md").read_text(encoding="utf-8")
    named = {path for path in re.findall(r"`([\w./]+/[\w./]*)`", text) if "{" not in path}
    assert named >= {"src/llm_perf_opt/cli.py", "diagnosis/causes/", "tests/unit/test_guards.py"}
    inside = (REPO, REPO / "src" / "llm_perf_opt")
    assert [path for path in named if not any((place / path).exists() for place in inside)] == []


def test_the_glossary_has_every_term_of_the_report_in_its_own_words() -> None:
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", (DOCS / "glossary.md").read_text(encoding="utf-8"), re.M))
    plural = {"CUDA graphs"}
    assert {term: rows.get(term) for term in GLOSSARY.keys() - plural} == {
        term: text for term, text in GLOSSARY.items() if term not in plural
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(REPO)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(page)):
        name, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", name):
            continue
        path = (page.parent / name).resolve() if name else page
        # The site has the documents alone.
        is_outside = DOCS in page.parents and DOCS not in path.parents
        if is_outside or not path.exists() or (anchor and anchor not in _anchors(path)):
            broken.append(target)
    assert broken == []


def test_every_path_that_contributors_are_sent_to_exists() -> None:
    text = (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|tests|conf|docs|\.ci)/[\w./-]*)`", text)
    named = re.findall(r"pytest (tests/[\w./]+)", text)
    assert len(paths) > 30
    assert [path for path in [*paths, *named] if not (REPO / path).exists()] == []
    targets = set(re.findall(r"^([\w-]+):", (REPO / "Makefile").read_text(), re.M))
    assert set(re.findall(r"^make ([\w-]+)", text, re.M)) <= targets


def test_the_table_of_layers_names_modules_that_are_there() -> None:
    rows = re.findall(r"^\| `([\w/.]+)` \| (.*) \|$", (DOCS / "architecture.md").read_text(encoding="utf-8"), re.M)
    home = REPO / "src" / "llm_perf_opt"
    named = [home / folder / name for folder, job in rows for name in re.findall(r"`(\w+(?:\.py|/))`", job)]
    assert len(named) > 20
    assert [path for path in [*(home / folder for folder, _ in rows), *named] if not path.exists()] == []


def test_one_version_is_told_everywhere_and_the_changelog_has_a_section_for_it() -> None:
    project = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]
    sections = re.findall(r"^## (\S+)", (REPO / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert project["version"] == llm_perf_opt.__version__
    assert llm_perf_opt.__version__ in sections[:2]


def test_continuous_integration_runs_every_python_the_package_claims() -> None:
    claimed = tomllib.loads((REPO / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [c.rpartition(" ")[2] for c in claimed if re.search(r":: 3\.\d+$", c)]
    jobs = yaml.safe_load((REPO / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == versions


def test_the_container_is_built_from_files_that_are_there_and_runs_a_command_of_ours() -> None:
    text = re.sub(r"\\\n", " ", (REPO / "Dockerfile").read_text())
    steps = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    kinds = [kind for kind, _ in steps]
    assert set(kinds) <= {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "ENTRYPOINT", "CMD"}
    assert kinds[:2] == ["ARG", "FROM"], "the base is a build argument"
    copied = [source for kind, rest in steps if kind == "COPY" for source in rest.split()[:-1]]
    assert [source for source in copied if not (REPO / source).exists()] == []
    assert {"pyproject.toml", "constraints.txt", "src", "conf"} <= set(copied)
    shell = "\n".join(rest for kind, rest in steps if kind == "RUN")
    assert subprocess.run(["bash", "-n", "-c", shell]).returncode == 0
    demo = yaml.safe_load((REPO / "compose.yaml").read_text())["services"]["demo"]
    assert [rest for kind, rest in steps if kind == "ENTRYPOINT"] == ['["llm-perf"]']
    assert demo["command"] == ["profile", "experiment=demo"]
    assert (REPO / "conf/experiment/demo.yaml").is_file()


def test_the_tools_of_every_hook_are_pinned() -> None:
    hooks = yaml.safe_load((REPO / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
    entries = [hook["entry"] for hook in hooks[0]["hooks"]]
    tools = {entry.removeprefix(".venv/bin/").split()[0] for entry in entries if entry.startswith(".venv/bin/")}
    pinned = set(re.findall(r"^([\w-]+)==", (REPO / "constraints.txt").read_text(), re.M))
    assert tools == {"ruff", "mypy"} and tools <= pinned


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("A subject\n\nand a body\n", ""),
        ("A subject\n# a comment of git\n", ""),
        ("x" * 72, ""),
        ("x" * 73, "error: commit message: the subject has 73 characters, allowed: 72\n"),
        ("Pass the file on\n", ""),
        ("Feed rows in order\n", ""),
        *(
            (
                f"{word} a column",
                f"error: commit message: the subject begins with '{word}'; write it in the imperative, such as 'Add', "
                "'Fix' or 'Remove'\n",
            )
            for word in ("Adds", "Added", "Adding")
        ),
        ("\n\nbody", "error: commit message: the first line is empty; say there why the change is made\n"),
        ("A subject\nwith a body\n", "error: commit message: the second line is not empty; put the body below it\n"),
    ],
)
def test_the_hook_holds_the_rule_for_commits(message: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "COMMIT_EDITMSG"
    file.write_text(message)
    done = subprocess.run(["bash", str(REPO / ".ci" / "commit-subject"), str(file)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (int(bool(problem)), problem)

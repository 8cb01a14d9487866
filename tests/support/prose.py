"""Find words of `.ci/vocabulary.toml` in everything a person reads.

Run `python -m tests.support.prose [PATH …]` to print them.

Python files give their comments and string constants (docstrings included, f-strings without their expressions; tests
give comments and docstrings), style sheets their comments, other text files every line: Markdown without the targets of
links, TOML without its keys, templates without their markup. Code in backticks is not prose.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.support.fixtures_dir import REPO

VOCABULARY = REPO / ".ci/vocabulary.toml"
FOLDERS = (
    "src",
    "tests",
    "scripts",
    "benchmarks",
    "conf",
    "docs",
    "examples",
    ".ci",
    ".github",
    "requirements",
    "changes",
)
SUFFIXES = {".py", ".md", ".toml", ".yaml", ".yml", ".j2", ".js", ".css", ".sh", ".cfg"}
# Quoted requirements, recorded outputs, inputs of tests, and the vocabulary itself with its tests.
EXCLUDED = (
    "docs/founding.md",
    "docs/compared.md",
    "docs/showcase/",
    "tests/data/",
    "tests/golden/",
    ".ci/vocabulary.toml",
    "tests/unit/test_prose.py",
    "benchmarks/results/",
    "requirements/",
)
# Two words in lower case with a space between them: a sentence, and neither a key nor an expression.
_SENTENCE = re.compile(r"[a-z]{2,},? [a-z]{2,}")
_LINK_TARGET = re.compile(r"\]\([^)]*\)")
_CODE = re.compile(r"`[^`\s]*`")
# By the suffix of a file, what in its lines is code.
_MARKUP = {
    ".toml": re.compile(r"^\s*\[.*|^\s*[\w.\"-]+\s*=|\{[^}]*\}"),
    ".j2": re.compile(r"\{\{.*?\}\}|\{%.*?%\}|<[^>]*>"),
    ".js": re.compile(r"\"\w+\""),
    ".css": re.compile(r"^(?!.*(/\*|^ \*)).*$|[^/]*\{[^}]*\}"),
}


@dataclass(frozen=True, kw_only=True)
class Term:
    """An expression to avoid and what to write; `allow` matches good English with it, `suffixes` limits the files."""

    avoid: re.Pattern[str]
    write: str
    allow: re.Pattern[str] | None
    suffixes: frozenset[str]

    def may_be_in(self, source: str) -> bool:
        """Whether it is worth parsing a file; placeholders of f-strings are known after that."""
        return "{" in self.avoid.pattern or self.avoid.search(source) is not None

    def find(self, text: str) -> str | None:
        for match in self.avoid.finditer(text):
            if self.allow is None or not self.allow.search(text, max(0, match.start() - 20), match.end() + 20):
                return match.group()
        return None


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One use of a term to avoid."""

    path: Path
    line: int
    match: str
    term: Term
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: '{self.match}' (write: {self.term.write}): {self.text.strip()}"


@cache
def vocabulary() -> tuple[Term, ...]:
    """The terms of the vocabulary file."""
    entries = tomllib.loads(VOCABULARY.read_text(encoding="utf-8"))["term"]
    return tuple(
        Term(
            avoid=re.compile(entry["avoid"], re.IGNORECASE),
            write=entry["write"],
            allow=re.compile(entry["allow"], re.IGNORECASE) if "allow" in entry else None,
            suffixes=frozenset(entry.get("suffixes", SUFFIXES | {""})),
        )
        for entry in entries
    )


def readable_files() -> list[Path]:
    """Every file with prose, relative to the repository."""
    found = [path for folder in FOLDERS for path in (REPO / folder).rglob("*") if path.suffix in SUFFIXES]
    found += [*REPO.glob("*.md"), REPO / "Makefile"]
    return sorted(p for p in (path.relative_to(REPO) for path in found) if not p.as_posix().startswith(EXCLUDED))


def prose_of_python(source: str, *, with_strings: bool = True) -> Iterator[tuple[int, str]]:
    """Line and text of the comments, docstrings and sentences of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    tree = ast.parse(source)
    if not with_strings:
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield node.body[0].lineno, text
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{x}" for part in node.values)
            yield node.lineno, text
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _SENTENCE.search(node.value):
            for offset, text in enumerate(node.value.splitlines()):
                yield node.lineno + offset, text


def prose_of_text(text: str, suffix: str) -> Iterator[tuple[int, str]]:
    """Line and text of a document or configuration file."""
    markup = _MARKUP.get(suffix, _LINK_TARGET)
    for number, line in enumerate(text.splitlines(), start=1):
        yield number, markup.sub("]", line)


def _prose_of(path: Path, source: str) -> Iterator[tuple[int, str]]:
    """Strings of tests are inputs and expected output: what they quote is checked where it is made."""
    if path.suffix == ".py":
        return prose_of_python(source, with_strings=path.parts[0] != "tests")
    return prose_of_text(source, path.suffix)


def find_hits(paths: list[Path]) -> list[Hit]:
    """Every use of a term to avoid in files given relative to the repository."""
    hits: dict[tuple[Path, int, str], Hit] = {}
    for path in paths:
        source = (REPO / path).read_text(encoding="utf-8")
        # Most files hold few of the terms, and are not parsed for the others.
        near = [term for term in vocabulary() if path.suffix in term.suffixes and term.may_be_in(source)]
        for line, text in _prose_of(path, source) if near else ():
            plain = _CODE.sub("`", text)
            for term in near:
                match = term.find(plain)
                if match is not None:
                    hits.setdefault((path, line, match), Hit(path=path, line=line, match=match, term=term, text=text))
    return list(hits.values())


def main() -> int:
    """Print the hits below the paths given, of the whole repository otherwise."""
    wanted = tuple(sys.argv[1:])
    hits = find_hits([p for p in readable_files() if not wanted or p.as_posix().startswith(wanted)])
    for hit in hits:
        print(hit)
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main())

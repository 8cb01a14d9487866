"""Everything a person reads uses the field's terms: `.ci/vocabulary.toml`, applied by `tests.support.prose`."""

import tomllib

import pytest

from tests.support.prose import VOCABULARY, find_hits, prose_of_python, prose_of_text, readable_files, vocabulary

# For every term of the vocabulary, by its position, a sentence that it must find.
FOUND = tomllib.loads(VOCABULARY.read_text(encoding="utf-8"))["term"]


@pytest.mark.slow
def test_the_repository_uses_the_vocabulary() -> None:
    hits = find_hits(readable_files())
    assert not hits, "\n".join(str(hit) for hit in hits)


@pytest.mark.parametrize("place", range(len(FOUND)), ids=[entry["avoid"] for entry in FOUND])
def test_each_term_finds_its_example(place: int) -> None:
    term, entry = vocabulary()[place], FOUND[place]
    assert term.find(entry["example"]), entry["example"]
    assert not term.find(entry["instead"]), entry["instead"]


def test_sentences_comments_and_docstrings_are_read() -> None:
    source = '"""First line.\n\nSecond line."""\nx = f"{1} slow kernels run"  # why\nkey = "beside"\n'
    found = {text for _, text in prose_of_python(source)}
    assert found == {"# why", "{x} slow kernels run", "First line.", "", "Second line.", " slow kernels run"}


def test_strings_of_tests_are_not_read() -> None:
    source = 'def test_x() -> None:\n    """A case."""\n    assert said == "two words"  # why\n'
    assert [text for _, text in prose_of_python(source, with_strings=False)] == ["# why", "A case."]


@pytest.mark.parametrize(
    ("suffix", "line", "read"),
    [
        (".md", "see [the page](beside.md)", "see [the page]"),
        (".toml", 'floors.roof = "the work"', '] "the work"'),
        (".toml", "[[remedy]]", "]"),
        (".j2", '<p class="roof">{{ f.remedy }} of it</p>', "]] of it]"),
        (".css", "svg .roof { fill: none; }", "]"),
        (".js", 'key === "roof"', "key === ]"),
    ],
)
def test_code_of_other_files_is_not_prose(suffix: str, line: str, read: str) -> None:
    assert list(prose_of_text(line, suffix)) == [(1, read)]

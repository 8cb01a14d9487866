"""Causes as data: complete words, experiments that exist, and the table of the documentation made from them."""

import string
import tomllib

import pytest

from llm_perf_opt.diagnosis.cause import COUNTED, FOLDER, FORMATS, Cause, fill, load_causes
from llm_perf_opt.diagnosis.experiments import load_experiments
from scripts.causes_table import PAGES, table
from tests.support.fixtures_dir import REPO

CAUSES = load_causes()


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_a_cause_has_words_for_everybody_and_advice_that_always_fits(cause: Cause) -> None:
    assert cause.plain_words.endswith(".") and cause.plain_words[0].isupper()
    assert cause.refutes.endswith(".") and cause.refutes[0].isupper()
    assert all(not title.endswith(".") for title in cause.titles.values())
    assert all(row.text and not row.text.endswith(".") and row.text[0].islower() for row in cause.advice)
    assert not cause.advice[-1].when and not cause.advice[-1].unless
    assert all(row.hint and not row.hint.endswith(".") for row in cause.advice)


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_only_words_follow_the_title(cause: Cause) -> None:
    words = {"title", "titles", "plain_words", "refutes", "evidence", "caveats", "floors", "experiments"}
    assert tomllib.loads(cause.words_toml).keys() <= words


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_no_row_of_advice_hides_behind_one_before_it(cause: Cause) -> None:
    for index, row in enumerate(cause.advice):
        earlier = [other for other in cause.advice[:index] if other.when <= row.when and not other.unless]
        assert earlier == [], row.text


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.id)
def test_experiments_and_number_formats_exist(cause: Cause) -> None:
    named = {name for row in cause.advice for name in row.experiments} | set(cause.experiments)
    assert named <= load_experiments().keys()
    texts = [*cause.titles.values(), *cause.evidence.values(), *cause.floors.values(), *cause.caveats.values()]
    for text in (*texts, *(row.text for row in cause.advice)):
        for _, field, spec, _ in string.Formatter().parse(text):
            if field is not None and spec:
                assert spec in FORMATS or spec[0] in ".," or spec.startswith(COUNTED), (text, spec)


def test_every_judge_belongs_to_a_cause() -> None:
    judges = {path.stem for path in FOLDER.glob("*.py")} - {
        "__init__",
        "cell_alone",
        "moving_data",
        "ncu_roof",
        "sampled_time",
    }
    assert judges <= {cause.id for cause in CAUSES}


def test_the_table_of_causes_in_the_documentation_is_made_from_the_data() -> None:
    for programs, page in PAGES.items():
        text = (REPO / page).read_text(encoding="utf-8")
        assert table(programs=programs) in text, "run: python scripts/causes_table.py"


@pytest.mark.parametrize(
    ("template", "value", "text"),
    [
        ("{x:ms}", 1_500_000, "1.500 ms"),
        ("{x:pct}", 0.47, "47 %"),
        ("{x:pct}", 0.0123, "1.23 %"),
        ("{x:x}", 3.14, "3.1×"),
        ("{x:n}", 12345, "12,345"),
        ("{x:us}", 2_900, "2.9 µs"),
        ("{x:gbs}", 27.7e9, "27.7 GB/s"),
        ("{x:name}", "a" * 120, "a" * 99 + "…"),
        ("{x:.1f}", 2.25, "2.2"),
        ("{x:# gap}", 1, "1 gap"),
        ("{x:# launch}", 1200, "1,200 launches"),
    ],
)
def test_numbers_are_written_as_everywhere(template: str, value: float, text: str) -> None:
    assert fill(template, {"x": value}) == text


def test_a_number_that_is_missing_is_an_error() -> None:
    with pytest.raises(KeyError):
        fill("{count:n} kernels", {})

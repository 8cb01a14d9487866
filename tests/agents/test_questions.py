"""Thirty questions over captures and runs, answered through the real MCP server by a scripted client."""

from collections.abc import Callable
from pathlib import Path

import pytest

from llm_perf_opt.mcp_server.limits import LARGEST_ANSWER_BYTES, size_of
from tests.agents.questions import QUESTIONS, lay_out
from tests.support.mcp_client import Reply, ScriptedClient, over_stdio

REPEATS = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("questions")
    lay_out(place)
    return place


def answered(folder: Path, *, times: int = 1) -> list[list[Reply]]:
    """Every question's replies, all asked of one server."""

    async def script(client: ScriptedClient) -> list[list[Reply]]:
        rounds = [[await client.call(q.tool, **q.arguments) for q in QUESTIONS] for _ in range(times)]
        return [list(replies) for replies in zip(*rounds, strict=True)]

    return over_stdio(folder, script)


def test_there_are_thirty_questions() -> None:
    assert len(QUESTIONS) == len({question.text for question in QUESTIONS}) == 30


@pytest.mark.slow
def test_every_question_is_answered_with_the_correct_figure(folder: Path) -> None:
    wrong = []
    for question, (reply,) in zip(QUESTIONS, answered(folder), strict=True):
        assert size_of(reply.text) <= LARGEST_ANSWER_BYTES
        if reply.is_error:
            wrong.append((question.text, reply.text))
            continue
        answer, truth = question.answer(reply.data), question.truth(folder)
        is_number = isinstance(truth, int | float)
        if answer != (pytest.approx(truth, rel=question.within) if is_number else truth):
            wrong.append((question.text, f"answered {answer!r}, the truth is {truth!r}"))
    assert wrong == []


@pytest.mark.long
@pytest.mark.slow
def test_ten_repeats_of_every_question_are_answered_identically(folder: Path) -> None:
    first, second = answered(folder, times=REPEATS // 2), answered(folder, times=REPEATS // 2)
    differ = [
        question.text
        for question, *replies in zip(QUESTIONS, first, second, strict=True)
        if len({reply.text for one in replies for reply in one}) != 1
    ]
    assert differ == []


def test_the_truth_is_read_without_the_product() -> None:
    readers: list[Callable[[Path], object]] = [question.truth for question in QUESTIONS]
    assert {reader.__module__ for reader in readers} == {"tests.agents.questions"}

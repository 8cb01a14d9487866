"""Greedy answers of a running server to a few prompts, with log probabilities where it reports them."""

import asyncio
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from llm_perf_opt.errors import ToolError
from llm_perf_opt.optimize.server.server_outputs import ServedAnswer, ServedToken
from llm_perf_opt.serving.client.exchange import NoAnswer, describe, open_session, read_bounded
from llm_perf_opt.serving.client.request import HEADERS, RequestTemplate
from llm_perf_opt.serving.load_run import Target
from llm_perf_opt.serving.traffic.sessions import Turn

PROMPTS, TOKENS = 8, 32
# Most probable tokens asked for at each place; five is what OpenAI's API allows for completions.
ALTERNATIVES = 5
LARGEST_ANSWER = 4 << 20


def ask_answers(
    target: Target, template: RequestTemplate, turns: Sequence[Turn], *, most_s: float
) -> tuple[ServedAnswer, ...]:
    """All prompts at the same time, each once; without log probabilities where the server refuses them."""
    try:
        return asyncio.run(_ask_all(target, template, turns, most_s))
    except TimeoutError as error:
        raise ToolError(f"the answers that are compared did not come within {most_s:g} s ({target.url})") from error
    except (NoAnswer, OSError) as error:
        raise ToolError(f"the answers that are compared could not be fetched: {error} ({target.url})") from error


async def _ask_all(
    target: Target, template: RequestTemplate, turns: Sequence[Turn], most_s: float
) -> tuple[ServedAnswer, ...]:
    import aiohttp

    async with asyncio.timeout(most_s), open_session(target.headers) as session:

        async def ask(turn: Turn, *, with_logprobs: bool) -> ServedAnswer | None:
            """One answer; None where the server refuses the request."""
            url = target.url.rstrip("/") + template.path
            body = _body(template, turn, with_logprobs=with_logprobs)
            try:
                async with session.post(url, data=body, headers=HEADERS, allow_redirects=False) as response:
                    data = await read_bounded(response, LARGEST_ANSWER)
            except (aiohttp.ClientError, ValueError) as error:
                raise NoAnswer(describe(error)) from error
            if response.status in (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY):
                return None
            if response.status != HTTPStatus.OK:
                raise NoAnswer(f"HTTP {response.status}")
            return read_answer(data)

        first = await ask(turns[0], with_logprobs=True)
        rest = await asyncio.gather(*(ask(turn, with_logprobs=first is not None) for turn in turns))
    answers = tuple(one for one in rest if one is not None)
    if len(answers) < len(turns):
        raise NoAnswer("the server refuses a request that is not streamed")
    return answers


def _body(template: RequestTemplate, turn: Turn, *, with_logprobs: bool) -> bytes:
    request: dict[str, Any] = {
        "model": template.model,
        "max_tokens": TOKENS,
        "temperature": 0.0,
        "seed": template.seed,
    }
    if template.api == "chat":
        request["messages"] = [{"role": "user", "content": turn.text}]
        request |= {"logprobs": True, "top_logprobs": ALTERNATIVES} if with_logprobs else {}
    else:
        request["prompt"] = turn.text
        request |= {"logprobs": ALTERNATIVES} if with_logprobs else {}
    request |= {"ignore_eos": True} if template.ignore_eos else {}
    return msgspec.json.encode(request)


def read_answer(data: bytes) -> ServedAnswer:
    """The text of an answer with its tokens, of completions and of chats."""
    try:
        choice = msgspec.json.decode(data)["choices"][0]
        message = choice.get("message") or {}
        text = choice.get("text") if "text" in choice else message.get("content")
        return ServedAnswer(text=str(text or ""), tokens=_tokens(choice.get("logprobs")))
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise NoAnswer(f"its answer is not one of OpenAI's API ({type(error).__name__})") from error


def _tokens(logprobs: Any) -> tuple[ServedToken, ...]:
    """Of completions: lists of tokens and numbers; of chats: one object a token."""
    if not isinstance(logprobs, Mapping):
        return ()
    if isinstance(logprobs.get("content"), list):
        return tuple(
            ServedToken(
                text=str(one["token"]),
                logprob=_float_or_none(one.get("logprob")),
                others={str(o["token"]): float(o["logprob"]) for o in one.get("top_logprobs") or ()},
            )
            for one in logprobs["content"]
        )
    texts = logprobs.get("tokens") or []
    numbers = logprobs.get("token_logprobs") or [None] * len(texts)
    others = logprobs.get("top_logprobs") or [None] * len(texts)
    return tuple(
        ServedToken(text=str(text), logprob=_float_or_none(number), others=dict(more) if more else None)
        for text, number, more in zip(texts, numbers, others, strict=False)
    )


def _float_or_none(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None

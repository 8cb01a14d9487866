"""One request to an OpenAI-compatible server, its stream timed as `vllm bench serve` does.

Time starts when the request is sent. Every event of the stream with a choice in it is a token's arrival, also when the
token decodes to no text; the end is the last of them. In a chat the event that only names the role is no token.

A stream is read to its end, past its last event, so that the next request finds a connection open: one that is opened
for it would be in its TTFT. Lines are cut from the bytes as they come, since what an event costs us adds to its time.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import msgspec

from llm_perf_opt.serving.records import RequestRecord

LONGEST_ERROR = 200
LONGEST_LINE = 8 << 20
# How long a server may keep a stream open that has said its last word.
CLOSING_S = 1.0
# Compressed events would have to wait for one another.
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """All requests of a load but their prompts."""

    model: str
    api: Literal["completions", "chat"]
    output_tokens: int
    temperature: float
    seed: int
    ignore_eos: bool

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"

    def body(self, prompt: str) -> bytes:
        content = {"messages": [{"role": "user", "content": prompt}]} if self.api == "chat" else {"prompt": prompt}
        request = {
            "model": self.model,
            **content,
            "max_tokens": self.output_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignore_eos else {}),
        }
        return json.dumps(request).encode()


def open_client(url: str, *, stall_s: float, headers: Mapping[str, str]) -> httpx.AsyncClient:
    """A client for this address alone: no proxy of the environment, no redirect to another place."""
    return httpx.AsyncClient(
        base_url=url.rstrip("/"),
        timeout=httpx.Timeout(stall_s, connect=min(stall_s, 10.0)),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        headers=dict(headers),
        follow_redirects=False,
        trust_env=False,
    )


class _Choice(msgspec.Struct):
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Event(msgspec.Struct):
    """What is read of one event; a server may say much more."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_EVENTS = msgspec.json.Decoder(_Event)


class EventStream:
    """What a stream has said so far."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.sent = clock()
        self.last = self.sent
        self.ttft: float | None = None
        self.gaps: list[float] = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.error: str | None = None
        self._rest = b""

    def feed(self, data: bytes) -> bool:
        """The next bytes of the stream; True when its last event is among them."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            raise ValueError(f"a line of more than {LONGEST_LINE >> 20} MiB")
        return any(self._take(line) for line in lines)

    def end(self) -> None:
        """The stream has ended, perhaps without a line's end."""
        self._take(self._rest)

    def _take(self, line: bytes) -> bool:
        """One line; True when it is the last event."""
        if not line.startswith(b"data:"):
            return False
        text = line.removeprefix(b"data:").strip()
        if text == b"[DONE]":
            return True
        event = _EVENTS.decode(text)
        if event.error is not None:
            self.error = f"the stream holds an error: {str(event.error)[:LONGEST_ERROR]}"
            return True
        if event.choices and _is_token(event.choices[0]):
            self._arrived()
        if event.usage is not None:
            self.prompt_tokens = event.usage.prompt_tokens
            self.output_tokens = event.usage.completion_tokens
        return False

    def _arrived(self) -> None:
        now = self._clock()
        if self.ttft is None:
            self.ttft = now - self.sent
        else:
            self.gaps.append(now - self.last)
        self.last = now


def _is_token(choice: _Choice) -> bool:
    if choice.delta is None:
        return True
    says = any(value for name, value in choice.delta.items() if name != "role")
    return says or choice.finish_reason is not None


async def send(
    client: httpx.AsyncClient,
    ask: Ask,
    prompt: str,
    *,
    index: int = 0,
    start: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> RequestRecord:
    """Send one request and follow its stream to the end; a failure is a record too, never an exception."""
    request = client.build_request("POST", ask.path, content=ask.body(prompt), headers=HEADERS)
    stream = EventStream(clock)
    try:
        response = await client.send(request, stream=True)
        async with aclosing(response):
            if response.status_code != httpx.codes.OK:
                said = (await response.aread()).decode("utf-8", "replace")
                stream.error = f"HTTP {response.status_code}: {' '.join(said.split())[:LONGEST_ERROR]}".rstrip(": ")
            else:
                await _follow(response, stream)
    except httpx.TimeoutException as error:
        stream.error = _silent(error, stream)
    except httpx.HTTPError as error:
        stream.error = f"the connection failed ({type(error).__name__}: {error})".replace(": )", ")")
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        stream.error = f"the stream is not what it should be ({error})"
    if stream.error is None and stream.ttft is None:
        stream.error = "the stream ended without a token"
    return _record(stream, index, start)


async def _follow(response: httpx.Response, stream: EventStream) -> None:
    pieces = response.aiter_raw()
    async for data in pieces:
        if stream.feed(data):
            break
    else:
        stream.end()
        return
    with suppress(TimeoutError, httpx.HTTPError):
        # Everything was said: what a server does with the connection now is nobody's failure.
        async with asyncio.timeout(CLOSING_S):
            async for _ in pieces:
                continue


def _silent(error: httpx.TimeoutException, stream: EventStream) -> str:
    if isinstance(error, httpx.ConnectTimeout):
        return "no connection in time"
    where = "before the first token" if stream.ttft is None else "in the middle of the stream"
    return f"silent for longer than load.stall_s {where}"


def _record(stream: EventStream, index: int, start: float) -> RequestRecord:
    events = 0 if stream.ttft is None else 1 + len(stream.gaps)
    return RequestRecord(
        index=index,
        started_s=stream.sent - start,
        status="ok" if stream.error is None else "failed",
        error=stream.error,
        ttft_s=stream.ttft,
        latency_s=None if stream.ttft is None else stream.last - stream.sent,
        gaps_s=tuple(stream.gaps),
        prompt_tokens=stream.prompt_tokens,
        output_tokens=stream.output_tokens or events,
        counted_by="usage" if stream.output_tokens else "events",
    )

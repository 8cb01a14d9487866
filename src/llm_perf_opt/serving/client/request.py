"""One request to an OpenAI-compatible server, its stream timed as `vllm bench serve` does.

Time starts when the request is sent and ends with the last token. A stream is read past its last event, so that the
connection is open for the next request. A failure is a record too, never an exception.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Literal

import aiohttp
import msgspec

from llm_perf_opt.serving.client.exchange import describe, read_bounded
from llm_perf_opt.serving.client.stream import EventStream
from llm_perf_opt.serving.load_records import RequestRecord
from llm_perf_opt.serving.traffic.sessions import Turn

LONGEST_ERROR = 200
# Read of the answer to a refused request. A secret in it is removed before it is cut to LONGEST_ERROR.
ERROR_BYTES = 8 << 10
ERROR_S = 2.0
# How long a server may keep a stream open after the last event.
CLOSING_S = 1.0
CONNECT_S = 10.0
RETRY_STATUS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
HEADERS = {"Content-Type": "application/json"}
REQUEST_ID = "X-Request-Id"
EVENTS = "text/event-stream"
# Of a request body; more than the length of a text in bytes cannot be its tokens.
MORE_PROMPT_TOKENS = 100_000


@dataclass(frozen=True, kw_only=True)
class RequestTemplate:
    """All fields of a load's requests except the prompt.

    `id_prefix` with a request's index is the id it is sent with, so that the server's records can be matched; None:
    none.
    """

    model: str
    api: Literal["completions", "chat"]
    output_tokens: int
    temperature: float
    seed: int
    ignore_eos: bool
    id_prefix: str | None = None

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.api == "chat" else "/v1/completions"

    def request_id(self, index: int) -> str | None:
        return None if self.id_prefix is None else f"{self.id_prefix}.{index}"

    def tokens(self, turn: Turn) -> int:
        return turn.output_tokens or self.output_tokens

    def body(self, turn: Turn, *, before: Sequence[tuple[str, str]] = ()) -> bytes:
        """The JSON of a request; `before` are roles and texts of the turns before."""
        content: dict[str, Any]
        if self.api == "chat":
            said: list[dict[str, Any]] = [{"role": role, "content": text} for role, text in before]
            content = {"messages": [*said, {"role": "user", "content": _parts(turn)}]}
        else:
            content = {"prompt": "\n".join([*(text for _, text in before), turn.text])}
        request = {
            "model": self.model,
            **content,
            "max_tokens": self.tokens(turn),
            "temperature": self.temperature,
            "seed": self.seed,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if self.ignore_eos else {}),
        }
        return msgspec.json.encode(request)


def _parts(turn: Turn) -> Any:
    if not turn.images:
        return turn.text
    images = [{"type": "image_url", "image_url": {"url": url}} for url in turn.images]
    return [*images, {"type": "text", "text": turn.text}]


@dataclass(kw_only=True)
class Exchange:
    """A request under way: what a watchdog needs to end it, and what is known when it has ended."""

    limit: asyncio.Timeout | None = None
    stream: EventStream | None = None
    response: aiohttp.ClientResponse | None = None
    closed: float | None = None
    began: float = 0.0
    is_sent: bool = False
    is_reused: bool = False
    is_stale: bool = False
    retry_after_s: float | None = None
    late: str | None = None

    def end(self, why: str) -> None:
        """End the request as soon as possible."""
        if self.limit is not None and self.late is None:
            self.late = why
            self.limit.reschedule(asyncio.get_running_loop().time())

    def why_late(self, now: float, stall_s: float) -> str | None:
        """Why the request has been silent for too long, or None. Comments of a stream do not count as an answer."""
        if self.stream is None:
            if not self.is_sent and now - self.began > min(CONNECT_S, stall_s):
                return "no connection in time"
            if now - self.began > stall_s:
                return "silent for longer than load.stall_s before the first token"
            return None
        if self._is_closed(now):
            return "the connection failed (closed in the middle of the stream)"
        if now - self.stream.heard <= stall_s:
            return None
        where = "before the first token" if self.stream.ttft is None else "in the middle of the stream"
        return f"silent for longer than load.stall_s {where}"

    def _is_closed(self, now: float) -> bool:
        """Whether nothing will wake the reader: aiohttp 3.14 does not after an invalid chunk in the middle."""
        connection = None if self.response is None else self.response.connection
        if connection is None or connection.transport is not None:
            self.closed = None
            return False
        self.closed = now if self.closed is None else self.closed
        return now - self.closed > CLOSING_S


@dataclass(frozen=True, kw_only=True)
class Sender:
    """Sends the requests of a load over one session. `clean` removes secrets from what a server said."""

    session: aiohttp.ClientSession
    url: str
    template: RequestTemplate
    clean: Callable[[str], str]
    start: float = 0.0
    under_way: dict[int, Exchange] = field(default_factory=dict)

    async def send(
        self,
        turn: Turn,
        *,
        index: int = 0,
        before: Sequence[tuple[str, str]] = (),
        keep_text: bool = False,
        planned: float | None = None,
        number: int = 0,
    ) -> tuple[RequestRecord, str, float | None]:
        """Send one request and read its stream; the record, the text of the answer, and the server's Retry-After."""
        body = self.template.body(turn, before=before)
        most_tokens = self.template.tokens(turn)
        while True:
            exchange = Exchange(began=time.perf_counter())
            stream = EventStream(exchange.began, most_tokens=most_tokens, keep_text=keep_text)
            await self._attempt(exchange, stream, body, index)
            if not exchange.is_stale:
                break
        stream.error = stream.error or _why_failed(stream, len(body), exchange.response)
        record = RequestRecord(
            index=index,
            started_s=stream.sent - self.start,
            status="ok" if stream.error is None else "failed",
            error=None if stream.error is None else self._said(stream.error),
            ttft_s=stream.ttft,
            latency_s=None if stream.ttft is None else stream.last - stream.sent,
            gaps_s=tuple(stream.gaps),
            prompt_tokens=stream.prompt_tokens,
            output_tokens=stream.output_tokens or _events(stream),
            counted_by="usage" if stream.output_tokens else "events",
            late_s=None if planned is None else stream.sent - planned,
            turn=number,
            request_id=self.template.request_id(index),
        )
        return record, "".join(stream.text), exchange.retry_after_s

    async def _attempt(self, exchange: Exchange, stream: EventStream, body: bytes, index: int) -> None:
        """Send and read once; what went wrong is in the stream's error."""
        self.under_way[index] = exchange
        try:
            async with asyncio.timeout(None) as exchange.limit:
                await self._exchange(exchange, stream, body, self.template.request_id(index))
        except TimeoutError:
            stream.error = exchange.late or "the request timed out"
        except (aiohttp.ClientError, OSError) as error:
            # A server may close an idle connection in the moment it is used again: the request is not its failure.
            exchange.is_stale = exchange.is_reused and exchange.response is None
            if not stream.is_whole:
                stream.error = f"the connection failed ({describe(error)})"
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            stream.error = f"the stream is not valid ({error})"
        finally:
            del self.under_way[index]

    async def _exchange(self, exchange: Exchange, stream: EventStream, body: bytes, name: str | None) -> None:
        post = self.session.post(
            self.url + self.template.path,
            data=body,
            headers=HEADERS if name is None else {**HEADERS, REQUEST_ID: name},
            allow_redirects=False,
            trace_request_ctx=exchange,
        )
        async with post as response:
            exchange.is_sent, exchange.response = True, response
            if response.status != HTTPStatus.OK:
                exchange.retry_after_s = _retry_after(response)
                stream.error = await _refusal(response)
                return
            coding = response.headers.get("Content-Encoding", "identity").lower()
            if coding not in ("", "identity"):
                raise ValueError(f"it is compressed with {coding!r}, which was not asked for")
            stream.heard = time.perf_counter()
            exchange.stream = stream
            await _follow(response, stream)

    def _said(self, text: str) -> str:
        """An error without secrets, in one line, and only then cut."""
        return " ".join(self.clean(text).split())[:LONGEST_ERROR]


async def _follow(response: aiohttp.ClientResponse, stream: EventStream) -> None:
    pieces = response.content.iter_any()
    async for data in pieces:
        if stream.feed(data, time.perf_counter()):
            break
    else:
        stream.end(time.perf_counter())
        return
    left = ERROR_BYTES
    with suppress(TimeoutError, aiohttp.ClientError):
        # The answer is complete: closing the connection in any way is not a failure.
        async with asyncio.timeout(CLOSING_S):
            async for data in pieces:
                left -= len(data)
                if left < 0:
                    return


async def _refusal(response: aiohttp.ClientResponse) -> str:
    place = response.headers.get("Location")
    if place is not None:
        return f"HTTP {response.status}: a redirect to {place}, which is not followed"
    if response.content_type == "text/html":
        return f"HTTP {response.status} {response.reason}, with a page for people"
    said = b""
    with suppress(TimeoutError, aiohttp.ClientError, ValueError):
        async with asyncio.timeout(ERROR_S):
            said = await read_bounded(response, ERROR_BYTES, cut=True)
    if len(said) >= ERROR_BYTES:
        response.close()
    return f"HTTP {response.status}: {said.decode('utf-8', 'replace')}".strip().rstrip(": ")


def _why_failed(stream: EventStream, body_bytes: int, response: aiohttp.ClientResponse | None) -> str | None:
    if stream.ttft is None:
        kind = "" if response is None else response.headers.get("Content-Type", EVENTS)
        is_stream = not kind or kind.startswith(EVENTS)
        return f"the stream ended without a token{'' if is_stream else f' (its content type is {kind})'}"
    if not stream.is_whole:
        return f"the stream ended early, after {_events(stream)} events: no [DONE], finish_reason or usage"
    if stream.prompt_tokens is not None and stream.prompt_tokens > body_bytes + MORE_PROMPT_TOKENS:
        return f"usage.prompt_tokens is impossible (got {stream.prompt_tokens}, the request has {body_bytes} bytes)"
    return None


def _events(stream: EventStream) -> int:
    return 0 if stream.ttft is None else 1 + len(stream.gaps)


def _retry_after(response: aiohttp.ClientResponse) -> float | None:
    """Seconds, from a number or a date."""
    said = response.headers.get("Retry-After")
    if said is None or response.status not in RETRY_STATUS:
        return None
    if said.strip().isdecimal():
        return float(said.strip()[:9])
    try:
        return max(0.0, (parsedate_to_datetime(said) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None

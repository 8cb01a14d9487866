"""Files of recorded traffic: ShareGPT, Mooncake traces, OpenTelemetry GenAI spans and our own JSON lines."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from llm_perf_opt.errors import ConfigError
from llm_perf_opt.serving.traffic.recorded_traffic import TraceSession, TraceTurn
from llm_perf_opt.system.files import read_limited

LARGEST_BYTES = 2 << 30
TrafficFormat = Literal["sharegpt", "mooncake", "otel", "jsonl"]
MODEL_CALLS = ("chat", "text_completion", "generate_content")
LONGEST_PAUSE_S = 3600.0


class _Said(msgspec.Struct):
    who: str = msgspec.field(name="from")
    value: str = ""


class _Conversation(msgspec.Struct):
    conversations: list[_Said]


class _Traced(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int] = []


class _Line(msgspec.Struct):
    prompt: str
    output_tokens: int | None = None
    at_s: float | None = None
    session: str | None = None
    system: str | None = None
    think_s: float = 0.0
    images: list[str] = []


class _Attribute(msgspec.Struct):
    key: str
    value: dict[str, Any]

    @property
    def text(self) -> Any:
        kind, found = next(iter(self.value.items()))
        return int(found) if kind == "intValue" else found


class _Span(msgspec.Struct):
    attributes: list[_Attribute] = []
    startTimeUnixNano: str | int = 0
    endTimeUnixNano: str | int | None = None


class _Scope(msgspec.Struct):
    spans: list[_Span] = []


class _Resource(msgspec.Struct):
    scopeSpans: list[_Scope] = []


class _Document(_Span):
    """An OTLP export, or a span by itself."""

    resourceSpans: list[_Resource] = []


def read_traffic_file(path: Path, form: TrafficFormat, *, most_turns: int | None) -> tuple[TraceSession, ...]:
    """The sessions of a file, each with at most `most_turns` turns; a file that cannot be used is bad input."""
    try:
        data = read_limited(path, LARGEST_BYTES)
        sessions = READERS[form](data)
    except OSError as error:
        raise ConfigError(f"traffic.path: {path} cannot be read ({error.strerror or error})") from error
    except (msgspec.DecodeError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"traffic.path: {path} is not a file of traffic.format={form} ({error}), allowed: see docs/serving.md"
        ) from error
    kept = [session for session in sessions if session.turns]
    if not kept:
        raise ConfigError(f"traffic.path: {path} holds no request that can be sent")
    first = min((one.at_s for one in kept if one.at_s is not None), default=0.0)

    def cut(one: TraceSession) -> TraceSession:
        at_s = None if one.at_s is None else round(one.at_s - first, 6)
        return replace(one, turns=one.turns[:most_turns], at_s=at_s)

    return tuple(sorted(map(cut, kept), key=lambda one: one.at_s or 0.0))


def parse_sharegpt(data: bytes) -> list[TraceSession]:
    """Conversations; a question without an answer is left out, as its length is not known."""
    sessions = []
    for conversation in msgspec.json.decode(data, type=list[_Conversation]):
        system, turns = None, []
        said = conversation.conversations
        for place, one in enumerate(said):
            if one.who == "system" and place == 0:
                system = one.value
            reply = said[place + 1] if place + 1 < len(said) else None
            if one.who in ("human", "user") and one.value and reply is not None and reply.value:
                turns.append(TraceTurn(text=one.value, reply=reply.value))
        sessions.append(TraceSession(turns=tuple(turns), system=system))
    return sessions


def parse_mooncake(data: bytes) -> list[TraceSession]:
    """Requests with milliseconds, lengths in tokens and a hash for each block of 512 tokens of the prompt."""
    sessions = []
    for number, line in _lines(data):
        one = msgspec.json.decode(line, type=_Traced)
        if one.input_length < 1 or one.output_length < 1:
            raise ValueError(f"line {number}: a length below 1")
        turn = TraceTurn(tokens=one.input_length, blocks=tuple(one.hash_ids), output_tokens=one.output_length)
        sessions.append(TraceSession(turns=(turn,), at_s=one.timestamp / 1e3))
    return sessions


def parse_jsonl(data: bytes) -> list[TraceSession]:
    """Our own lines: `prompt`, and what else is known; lines of one `session` are its turns."""
    sessions: dict[str, TraceSession] = {}
    for number, line in _lines(data):
        one = msgspec.json.decode(line, type=_Line)
        if one.output_tokens is not None and one.output_tokens < 1:
            raise ValueError(f"line {number}: output_tokens below 1")
        turn = TraceTurn(
            text=one.prompt,
            output_tokens=one.output_tokens,
            think_s=_pause(one.think_s),
            images=tuple(one.images),
        )
        name = f"line {number}" if one.session is None else f"session {one.session}"
        before = sessions.get(name, TraceSession(turns=(), system=one.system, at_s=one.at_s))
        sessions[name] = replace(before, turns=(*before.turns, turn))
    return list(sessions.values())


def parse_otel(data: bytes) -> list[TraceSession]:
    """Spans of model calls: OTLP JSON or one span a line. Spans of one `gen_ai.conversation.id` are its turns.

    The token counts of a later turn include the turns before it, which are sent again as they were answered; what is
    left is its own text.
    """
    calls: dict[str, list[_Call]] = {}
    for number, span in enumerate(_spans(data)):
        call = _Call.of(span)
        if call is not None:
            calls.setdefault(call.conversation or f"span {number}", []).append(call)
    return [_conversation(sorted(found, key=lambda call: call.begin_s)) for found in calls.values()]


class _Call(msgspec.Struct, frozen=True, kw_only=True):
    """A span of a model call."""

    begin_s: float
    end_s: float
    input_tokens: int | None
    output_tokens: int | None
    conversation: str | None
    text: str | None
    system: str | None

    @classmethod
    def of(cls, span: _Span) -> "_Call | None":
        found = {one.key: one.text for one in span.attributes}
        counts = [
            _first(found, f"gen_ai.usage.{new}_tokens", f"gen_ai.usage.{old}_tokens")
            for new, old in (("input", "prompt"), ("output", "completion"))
        ]
        is_call = found.get("gen_ai.operation.name", MODEL_CALLS[0]) in MODEL_CALLS
        if not is_call or any(count is None for count in counts):
            return None
        system, text = _messages(found.get("gen_ai.input.messages"))
        return cls(
            begin_s=int(span.startTimeUnixNano) / 1e9,
            end_s=int(span.endTimeUnixNano or span.startTimeUnixNano) / 1e9,
            input_tokens=int(counts[0] or 0),
            output_tokens=int(counts[1] or 0),
            conversation=found.get("gen_ai.conversation.id"),
            text=text,
            system=system,
        )


def _conversation(calls: Sequence[_Call]) -> TraceSession:
    turns: list[TraceTurn] = []
    before = 0
    end_s = calls[0].begin_s
    for call in calls:
        tokens = (call.input_tokens or 0) - before
        if tokens < 1:
            # Not the history of the turns before: its own call.
            tokens = call.input_tokens or 1
        turns.append(
            TraceTurn(
                text=call.text,
                tokens=tokens,
                output_tokens=max(1, call.output_tokens or 1),
                think_s=_pause(call.begin_s - end_s),
            )
        )
        before = (call.input_tokens or 0) + (call.output_tokens or 0)
        end_s = call.end_s
    return TraceSession(turns=tuple(turns), system=calls[0].system, at_s=calls[0].begin_s)


def _messages(said: Any) -> tuple[str | None, str | None]:
    """The system message and the last message of a user, where a recording holds texts."""
    messages = json.loads(said) if isinstance(said, str) else []
    texts: dict[str, str] = {}
    for message in messages:
        parts = [part["content"] for part in message.get("parts", []) if part.get("type") == "text"]
        if parts:
            texts[str(message.get("role"))] = "\n".join(map(str, parts))
    return texts.get("system"), texts.get("user")


def _spans(data: bytes) -> Iterator[_Span]:
    for document in _documents(data):
        for resource in document.resourceSpans:
            for scope in resource.scopeSpans:
                yield from scope.spans
        if document.attributes:
            yield document


def _documents(data: bytes) -> Iterator[_Document]:
    """A document over several lines, or one a line."""
    try:
        whole = msgspec.json.decode(data, type=_Document | list[_Document])
    except msgspec.DecodeError:
        yield from (msgspec.json.decode(line, type=_Document) for _, line in _lines(data))
        return
    yield from whole if isinstance(whole, list) else [whole]


def _first(found: Mapping[str, Any], *names: str) -> Any:
    return next((found[name] for name in names if name in found), None)


def _pause(seconds: float) -> float:
    return min(max(0.0, seconds), LONGEST_PAUSE_S)


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    return ((number, line) for number, line in enumerate(data.splitlines(), start=1) if line.strip())


READERS: Mapping[TrafficFormat, Callable[[bytes], list[TraceSession]]] = {
    "sharegpt": parse_sharegpt,
    "mooncake": parse_mooncake,
    "otel": parse_otel,
    "jsonl": parse_jsonl,
}

"""Server-sent events of one streamed answer: tokens with the time they arrived, and whether the answer is whole.

A token is an event with a choice in it, also when it decodes to no text, as in `vllm bench serve`. In a chat the event
that only names the role is not a token. All events of one packet get the time at which the packet was read.
"""

import math
from typing import Any, Literal

import msgspec

LONGEST_EVENT = 1 << 20
# Events allowed per requested token, and some more for short answers: a stream above this has no end.
EVENTS_PER_TOKEN = 8
MORE_EVENTS = 1000
# Servers that decode speculatively may exceed the limit by some tokens; more than twice the limit is a wrong count.
TOKENS_PER_TOKEN = 2
MORE_TOKENS = 64


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: dict[str, Any] | None = None
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | float | None = None
    completion_tokens: int | float | None = None


class _Event(msgspec.Struct):
    """The fields that are read; a server may send more."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class EventStream:
    """One answer while it is read. `sent` is when its request was sent; `most_tokens` is what the request allows."""

    def __init__(self, sent: float, *, most_tokens: int | None = None, keep_text: bool = False) -> None:
        self.sent = sent
        self.last = sent
        # The time of the last event of any kind; comments do not count.
        self.heard = sent
        self.ttft: float | None = None
        self.gaps: list[float] = []
        self.prompt_tokens: int | None = None
        self.output_tokens: int | None = None
        self.error: str | None = None
        self.text: list[str] = []
        self.is_whole = False
        self._most_tokens = most_tokens
        self._most_events = None if most_tokens is None else EVENTS_PER_TOKEN * most_tokens + MORE_EVENTS
        self._keep_text = keep_text
        self._rest = b""
        self._data: bytes | None = None

    def feed(self, data: bytes, now: float) -> bool:
        """Read the next bytes; True when the last event is among them."""
        lines = (self._rest + data).split(b"\n") if self._rest else data.split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > LONGEST_EVENT:
            raise ValueError(f"a line of more than {LONGEST_EVENT >> 20} MiB")
        return any(self._take(line, now) for line in lines)

    def end(self, now: float) -> None:
        """The stream has ended, perhaps without an end of line."""
        if not self._take(self._rest, now) and self._data is not None:
            self._dispatch(now)

    def _take(self, line: bytes, now: float) -> bool:
        """One line; True when it completes the last event."""
        if line.startswith(b"data:"):
            text = line[5:].strip()
            if self._data is None:
                self._data = text
                return False
            # A second data line continues the event, unless the first one was an event by itself.
            if _is_object(self._data):
                ends = self._dispatch(now)
                self._data = text
                return ends
            if len(self._data) > LONGEST_EVENT:
                raise ValueError(f"an event of more than {LONGEST_EVENT >> 20} MiB")
            self._data += b"\n" + text
            return False
        if self._data is not None and not line.strip():
            return self._dispatch(now)
        return False

    def _dispatch(self, now: float) -> bool:
        text, self._data = self._data, None
        if text is None or not text:
            return False
        self.heard = now
        if text == b"[DONE]":
            self.is_whole = True
            return True
        event = _decode(text)
        if event.error is not None:
            self.error = f"the stream holds an error: {event.error}"
            return True
        if event.choices:
            self._choice(event.choices[0], now)
        if event.usage is not None:
            self._usage(event.usage, is_last=not event.choices)
        return False

    def _choice(self, choice: _Choice, now: float) -> None:
        if choice.finish_reason is not None:
            self.is_whole = True
        if not _is_token(choice):
            return
        if self.ttft is None:
            self.ttft = now - self.sent
        else:
            self.gaps.append(now - self.last)
            if self._most_events is not None and len(self.gaps) >= self._most_events:
                raise ValueError(f"more than {self._most_events:,} events for max_tokens={self._most_tokens}")
        self.last = now
        if self._keep_text:
            said = choice.text if choice.delta is None else choice.delta.get("content")
            if isinstance(said, str):
                self.text.append(said)

    def _usage(self, usage: _Usage, *, is_last: bool) -> None:
        # With continuous usage it is in every event: the last one counts, and only one without a token ends the answer.
        self.is_whole = self.is_whole or (is_last and usage.completion_tokens is not None)
        self.prompt_tokens = _token_count(usage.prompt_tokens, "prompt_tokens", most=None)
        most = None if self._most_tokens is None else TOKENS_PER_TOKEN * self._most_tokens + MORE_TOKENS
        self.output_tokens = _token_count(usage.completion_tokens, "completion_tokens", most=most)


def _is_token(choice: _Choice) -> bool:
    if choice.delta is None:
        return True
    says = any(value for name, value in choice.delta.items() if name != "role")
    return says or choice.finish_reason is not None


def _is_object(text: bytes) -> bool:
    """Whether this is a whole event: some servers leave out the empty line between two."""
    if text == b"[DONE]":
        return True
    try:
        _decode(text)
    except msgspec.DecodeError:
        return False
    return True


def _token_count(
    value: int | float | None, name: Literal["prompt_tokens", "completion_tokens"], *, most: int | None
) -> int | None:
    """A number of tokens as a whole number; some gateways send 64.0."""
    if value is None:
        return None
    if not math.isfinite(value) or value < 0 or value != int(value):
        raise ValueError(f"usage.{name} is not a number of tokens (got {value})")
    if most is not None and value > most:
        raise ValueError(f"usage.{name} is impossible (got {value:g}, the request allows {most} at most)")
    return int(value)

"""Sessions: the requests of one user, sent one after the other, each after the answer to the one before."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One request of a session.

    `output_tokens` None: as many as the load asks for. `think_s` is the pause between the answer before and this turn.
    `images` are `data:` or http URLs, sent as content parts in front of the text.
    """

    text: str
    output_tokens: int | None = None
    think_s: float = 0.0
    images: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrafficSession:
    """The turns of one user. `at_s` is when it started in a recording, in seconds from its beginning."""

    turns: tuple[Turn, ...]
    system: str | None = None
    at_s: float | None = None


class Traffic(Protocol):
    """A source of sessions by number; the same number is the same session."""

    @property
    def most_turns(self) -> int: ...

    def session(self, number: int) -> TrafficSession: ...

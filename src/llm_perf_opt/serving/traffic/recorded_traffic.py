"""Traffic of a file as sessions: given texts, or texts made up to have the recorded lengths and shared prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from llm_perf_opt.serving.traffic.sessions import TrafficSession, Turn
from llm_perf_opt.serving.traffic.synthetic import made_up


@dataclass(frozen=True, kw_only=True)
class TraceTurn:
    """One recorded request: its text, or `tokens` and the hashes of its blocks of `block_tokens` tokens.

    `reply` is the recorded answer; where `output_tokens` is None its length is estimated from it.
    """

    text: str | None = None
    tokens: int | None = None
    blocks: tuple[int, ...] = ()
    output_tokens: int | None = None
    reply: str | None = None
    think_s: float = 0.0
    images: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TraceSession:
    """The recorded requests of one user. `at_s` counts from the start of the recording."""

    turns: tuple[TraceTurn, ...]
    system: str | None = None
    at_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class TraceTraffic:
    """Recorded sessions as they are sent, again from the first one after the last.

    `words_per_token` and `characters_per_token` are the server's, found by the probe. Equal hashes become equal texts,
    so two requests share as long a prefix as in the recording.
    """

    sessions: Sequence[TraceSession]
    words_per_token: float = 1.0
    characters_per_token: float = 4.0
    block_tokens: int = 512
    seed: str = "0"

    @property
    def most_turns(self) -> int:
        return max(len(session.turns) for session in self.sessions)

    def session(self, number: int) -> TrafficSession:
        place = number % len(self.sessions)
        recorded = self.sessions[place]
        turns = tuple(self._turn(turn, f"{self.seed}-{place}-{at}") for at, turn in enumerate(recorded.turns))
        return TrafficSession(turns=turns, system=recorded.system, at_s=recorded.at_s)

    def _turn(self, turn: TraceTurn, seed: str) -> Turn:
        output = turn.output_tokens
        if output is None and turn.reply is not None:
            output = max(1, round(len(turn.reply) / self.characters_per_token))
        return Turn(text=self._text(turn, seed), output_tokens=output, think_s=turn.think_s, images=turn.images)

    def _text(self, turn: TraceTurn, seed: str) -> str:
        if turn.text is not None:
            return turn.text
        if not turn.blocks:
            return made_up(self._words(turn.tokens or 1), seed)
        texts = [_block(self._words(self.block_tokens), f"{self.seed}-block-{name}") for name in turn.blocks]
        last = (turn.tokens or 0) - self.block_tokens * (len(texts) - 1)
        if 0 < last < self.block_tokens:
            texts[-1] = " ".join(texts[-1].split(" ")[: self._words(last)])
        return " ".join(texts)

    def _words(self, tokens: int) -> int:
        return max(1, round(tokens * self.words_per_token))


@lru_cache(maxsize=8192)
def _block(words: int, seed: str) -> str:
    return made_up(words, seed)

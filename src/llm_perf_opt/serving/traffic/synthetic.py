"""Synthetic prompts: common words, about as many as make the wanted number of tokens.

No tokenizer is needed: the answer to a first request says how many tokens the server counts for a word, and every
figure of the results is the server's own count.
"""

import random
from dataclasses import dataclass

from llm_perf_opt.serving.traffic.pictures import noise_png
from llm_perf_opt.serving.traffic.sessions import TrafficSession, Turn

# Common short words, which most vocabularies hold as one piece each.
WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "night", "point", "home", "water", "room", "mother", "area", "money", "story"),
    *("fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind"),
    *("head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law", "car"),
)
PROBE_WORDS = 64
# One word for each byte: a prompt is drawn from random bytes, quickly, since the loop that takes times does it.
_OF_BYTE = tuple(WORDS[value % len(WORDS)] for value in range(256))


@dataclass(frozen=True, kw_only=True)
class SyntheticTraffic:
    """Session `number` of a load: prompts of `words` words, different for each number and seed.

    The first `shared_words` of a prompt are the same in every request of a group; there are `groups` groups. A session
    has `turns` turns with a pause of `think_s` between them. The first turn has `images` pictures.
    """

    words: int
    seed: str = "0"
    shared_words: int = 0
    groups: int = 1
    turns: int = 1
    think_s: float = 0.0
    images: int = 0
    image_size: int = 512

    @property
    def most_turns(self) -> int:
        return self.turns

    def text(self, number: int) -> str:
        """The first prompt of a session."""
        own = made_up(self.words, f"{self.seed}-{number}")
        if not self.shared_words:
            return own
        shared = made_up(self.shared_words, f"{self.seed}-shared-{number % self.groups}")
        return f"{shared} {own}"

    def session(self, number: int) -> TrafficSession:
        texts = [self.text(number)]
        texts += [made_up(self.words, f"{self.seed}-{number}-{turn}") for turn in range(1, self.turns)]
        images = tuple(noise_png(self.image_size, f"{self.seed}-{number}-{at}") for at in range(self.images))
        return TrafficSession(
            turns=tuple(
                Turn(text=text, think_s=self.think_s if turn else 0.0, images=() if turn else images)
                for turn, text in enumerate(texts)
            )
        )


def made_up(words: int, seed: str) -> str:
    """Different for every seed, so that a server has no beginning of it in a cache."""
    return " ".join(map(_OF_BYTE.__getitem__, random.Random(seed).randbytes(max(1, words))))


def words_for(tokens: int, *, probe_tokens: int | None) -> int:
    """How many words make this many tokens, by what the server counted for `PROBE_WORDS` of them; else one each."""
    if not probe_tokens:
        return tokens
    return max(1, round(tokens * PROBE_WORDS / probe_tokens))

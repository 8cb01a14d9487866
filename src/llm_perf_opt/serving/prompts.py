"""The texts to send: lines of a file, or synthetic words of about a wanted number of tokens.

No tokenizer is needed: a first request of synthetic words tells how many tokens the server counts for a word, and every
figure of the results is the server's own count.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

# Common short words, which most vocabularies hold as one piece each.
WORDS = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("program", "question", "work", "night", "point", "home", "water", "room", "mother", "area", "money", "story"),
    *("fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind"),
    *("head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law", "car"),
)
PROBE_WORDS = 64


@dataclass(frozen=True, kw_only=True)
class LoadPrompts:
    """Prompt number `index` of a run: given texts in turn, or `words` words drawn for this number and seed."""

    texts: Sequence[str] = ()
    words: int = 0
    seed: str = "0"

    def text(self, index: int) -> str:
        if self.texts:
            return self.texts[index % len(self.texts)]
        return made_up(self.words, f"{self.seed}-{index}")


def made_up(words: int, seed: str) -> str:
    """Different for every seed, so that no server has its beginning in a cache."""
    return " ".join(random.Random(seed).choices(WORDS, k=max(1, words)))


def words_for(tokens: int, *, probe_tokens: int | None) -> int:
    """How many words make so many tokens, by what the server counted for `PROBE_WORDS` of them; else one each."""
    if not probe_tokens:
        return tokens
    return max(1, round(tokens * PROBE_WORDS / probe_tokens))

"""Picks the next token: greedy, or temperature, top-k and top-p from a seeded generator; bans repeated n-grams."""

import hashlib
from collections.abc import Sequence
from typing import Any

from llm_perf_opt.config.schema import InferSection


def seed_for(seed: int, sample_id: str) -> int:
    """A seed of the sample's own, so that its tokens do not depend on what ran before it."""
    digest = hashlib.sha256(f"{seed}:{sample_id}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


class NgramBan:
    """Knows which tokens would complete an n-gram that has occurred before, the prompt included."""

    def __init__(self, size: int, prompt_ids: Sequence[int]) -> None:
        self._size = size
        self._recent: list[int] = []
        self._followers: dict[tuple[int, ...], set[int]] = {}
        for token in prompt_ids:
            self.add(token)

    def add(self, token: int) -> None:
        """Take note of one more token."""
        if len(self._recent) == self._size - 1:
            self._followers.setdefault(tuple(self._recent), set()).add(token)
        self._recent = [*self._recent, token][-(self._size - 1) :] if self._size > 1 else []

    def banned(self) -> list[int]:
        """The tokens that must not come next."""
        return sorted(self._followers.get(tuple(self._recent), ()))


class TokenPicker:
    """Turns the last position's logits, [1, vocabulary], into the next token, [1, 1], without leaving the device."""

    def __init__(self, infer: InferSection, *, device: str, seed: int, prompt_ids: Sequence[int]) -> None:
        import torch

        self._torch = torch
        self._infer = infer
        self._ban = NgramBan(infer.no_repeat_ngram_size, prompt_ids) if infer.no_repeat_ngram_size else None
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(seed)
        self._plain = infer.temperature == 0 and self._ban is None

    @property
    def reads_tokens(self) -> bool:
        """Whether `saw` must be told every token, which means waiting for the device at each step."""
        return self._ban is not None

    def saw(self, token: int) -> None:
        """Tell which token was picked, for the n-gram rule."""
        if self._ban is not None:
            self._ban.add(token)

    def pick(self, logits: Any) -> Any:
        """The next token."""
        if self._plain:
            return logits.argmax(dim=-1, keepdim=True)
        scores = logits.float()
        banned = self._ban.banned() if self._ban is not None else []
        if banned:
            scores = scores.clone()
            scores[:, banned] = float("-inf")
        if self._infer.temperature == 0:
            return scores.argmax(dim=-1, keepdim=True)
        return self._draw(scores / self._infer.temperature)

    def _draw(self, scores: Any) -> Any:
        """One draw from the scores after top-k and top-p."""
        torch, infer = self._torch, self._infer
        if 0 < infer.top_k < scores.shape[-1]:
            weakest = torch.topk(scores, infer.top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < weakest, float("-inf"))
        if infer.top_p < 1.0:
            ordered, places = torch.sort(scores, dim=-1, descending=True)
            probabilities = ordered.softmax(dim=-1)
            # A token stays when those before it have not yet reached top_p; so the first one always stays.
            before = probabilities.cumsum(dim=-1) - probabilities
            ordered = ordered.masked_fill(before >= infer.top_p, float("-inf"))
            scores = torch.empty_like(scores).scatter_(-1, places, ordered)
        return torch.multinomial(scores.softmax(dim=-1), 1, generator=self._generator)

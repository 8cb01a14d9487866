"""Tokenises the same prompt for each request (tokenizers)."""

import os
import time

from tokenizers import Tokenizer, models, pre_tokenizers

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def encode(tokenizer: Tokenizer, prompt: str) -> list[int]:
    return list(tokenizer.encode(prompt).ids)


def main() -> None:
    words = {f"word{n}": n for n in range(1000)} | {"[UNK]": 1000}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    prompt = " ".join(f"word{n % 1200}" for n in range(20_000))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        encode(tokenizer, prompt)


main()

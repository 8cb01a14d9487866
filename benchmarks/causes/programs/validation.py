"""Validates every record against a schema (pydantic)."""

import os
import time

from pydantic import BaseModel

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


class Sample(BaseModel):
    tokens: list[int]
    label: str


def admit(records: list[dict[str, object]]) -> int:
    return sum(len(Sample.model_validate(record).tokens) for record in records)


def main() -> None:
    records: list[dict[str, object]] = [{"tokens": list(range(500)), "label": "a"} for _ in range(50)]
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        admit(records)


main()

"""Multiplies row by row what one operation could (torch)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def project(rows: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    out = []
    for index in range(len(rows)):
        out.append(rows[index] * weight + 1.0)
    return out


def main() -> None:
    rows, weight = torch.ones(256, 8), torch.ones(8)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        project(rows, weight)


main()

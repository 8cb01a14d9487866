"""Builds a model whose weights are drawn and then never used (torch)."""

import os

import torch

LAYERS = max(1, int(10 * float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))))


def build() -> list[torch.nn.Module]:
    return [torch.nn.Linear(3000, 3000) for _ in range(LAYERS)]


def main() -> None:
    model = torch.nn.Sequential(*build())
    model(torch.ones(1, 3000))


main()

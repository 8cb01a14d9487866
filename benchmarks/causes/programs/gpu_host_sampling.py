"""Sorts the logits of each token on the host (CUDA)."""

import os
import time

import numpy as np
import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def sample(logits: np.ndarray) -> int:
    return int(np.argsort(logits)[-1])


def main() -> None:
    weight = torch.ones(4096, 128_000, device="cuda", dtype=torch.bfloat16)
    hidden = torch.ones(1, 4096, device="cuda", dtype=torch.bfloat16)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        logits = (hidden @ weight).float().cpu().numpy()[0]
        sample(logits)
    torch.cuda.synchronize()


main()

"""Waits a fixed time between requests (CUDA)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


def wait_for_request() -> None:
    time.sleep(0.02)


def main() -> None:
    weight = torch.ones(4096, 4096, device="cuda", dtype=torch.float16)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        wait_for_request()
        (weight @ weight).sum()
    torch.cuda.synchronize()


main()

"""The GPU waits for batches that one process decodes (CUDA)."""

import os
import time

import torch

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


class Images(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> torch.Tensor:
        return decode(index)


def decode(index: int) -> torch.Tensor:
    total = sum(number % 7 for number in range(20_000))
    return torch.full((3, 224, 224), float(total + index))


def main() -> None:
    weight = torch.ones(224, 224, device="cuda")
    loader = iter(torch.utils.data.DataLoader(Images(), batch_size=8))
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        (next(loader).to("cuda") @ weight).sum()
    torch.cuda.synchronize()


main()

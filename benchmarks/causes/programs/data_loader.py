"""A training loop that waits for its data loader (torch)."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Images(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.decode(index)

    def decode(self, index: int) -> torch.Tensor:
        end = time.monotonic() + 0.025
        total = 0
        while time.monotonic() < end:
            total += index
        return torch.full((8,), float(total % 7))


def main() -> None:
    model = torch.nn.Linear(8, 8)
    for batch in DataLoader(Images(), batch_size=8):
        model(batch)


main()

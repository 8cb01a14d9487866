"""Trains a model whose parameters are float64, as its data is."""

import os
import time

import torch
from torch import nn

SECONDS = float(os.environ.get("LLM_PERF_CAUSE_SECONDS", "2"))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(512, 1024)
        self.outer = nn.Linear(1024, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.relu(self.inner(x)))


def train(net: Net, batch: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        loss = net(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


train(Net().double(), torch.rand(128, 512, dtype=torch.float64))

"""A problem that a TOML file names: ``source = "python"``."""

import torch
from torch import nn


def make(width=4, quadratic=False):
    torch.manual_seed(0)
    if quadratic:
        model = nn.Linear(width, 2).double()
        target = lambda n: torch.randn(n, 2).double()  # noqa: E731
    else:
        model = nn.Sequential(nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        target = lambda n: torch.randint(3, (n,))  # noqa: E731
    old = [(torch.randn(8, width).double(), target(8)) for _ in range(2)]
    new = [(torch.randn(6, width).double(), target(6))]
    loss = nn.MSELoss() if quadratic else nn.CrossEntropyLoss()
    return model, old, new, loss


def nothing():
    return 3

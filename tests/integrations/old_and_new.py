"""Digits 0-4 that a small network knows, and 5-9 that it is to learn: a real task of seconds."""

from __future__ import annotations

from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from risegrad.integrations.forgetting_meter import ForgettingMeter

Pairs = list[tuple[Tensor, Tensor]]


@cache
def _data() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    images = torch.as_tensor(digits.data / 16).float()
    return images[order], torch.as_tensor(digits.target).long()[order]


def batches(classes: range, test: bool, size: int = 48) -> Pairs:
    images, labels = _data()
    rows = torch.isin(labels, torch.tensor(classes)).nonzero()[:, 0]
    rows = rows[-240:] if test else rows[:-240]
    return [(images[part], labels[part]) for part in rows.split(size)]


OLD, NEW = range(5), range(5, 10)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, data: Pairs, epochs: int) -> None:
    for _ in range(epochs):
        for inputs, target in data:
            optimizer.zero_grad()
            cross_entropy(model(inputs), target).backward()
            optimizer.step()


def learn_metered(
    model: nn.Module, meter: ForgettingMeter, rate: float = 0.1, steps: int = 40
) -> int:
    """A loop as people write it; how many steps it took."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    data = batches(NEW, False) * 10
    for number, (inputs, target) in enumerate(data[:steps], 1):
        optimizer.zero_grad()
        cross_entropy(model(inputs), target).backward()
        optimizer.step()
        if meter.update().stop:
            return number
    return steps


@cache
def _known() -> dict[str, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        train(model, torch.optim.Adam(model.parameters(), lr=1e-2), batches(OLD, False), 12)
    return model.state_dict()


def knowing() -> nn.Sequential:
    """A network that knows 0-4."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model.load_state_dict(_known())
    return model


def percent(model: nn.Module, classes: range) -> float:
    """Right answers, counted one by one."""
    hits = [
        int(model(image[None]).argmax()) == int(label)
        for images, labels in batches(classes, True)
        for image, label in zip(images, labels, strict=True)
    ]
    return 100 * sum(hits) / len(hits)

"""It learns and keeps: scikit-learn's digits upright, then turned by 90 degrees, in seconds."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import risegrad

datasets = pytest.importorskip("sklearn.datasets")
TRAINED = 1200


@pytest.fixture(scope="module")
def tasks() -> list[tuple[Tensor, Tensor]]:
    digits = datasets.load_digits()
    order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(digits.images).float()[order] / 16, torch.tensor(digits.target)[order]
    return [(torch.rot90(x, turns, (1, 2)).flatten(1), y) for turns in (0, 1)]


@pytest.fixture(scope="module")
def upright(tasks: list[tuple[Tensor, Tensor]]) -> nn.Sequential:
    """A network that knows the digits upright."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
        )
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), tasks[0])
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, task: tuple[Tensor, Tensor]) -> None:
    x, y = (whole[:TRAINED] for whole in task)
    generator = torch.Generator().manual_seed(1)
    for _ in range(8):
        for rows in torch.randperm(len(x), generator=generator).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


def right(model: nn.Module, task: tuple[Tensor, Tensor]) -> float:
    """Per cent of the digits that were not trained on."""
    x, y = (whole[TRAINED:] for whole in task)
    return float((model(x).argmax(1) == y).double().mean()) * 100


def learned(
    upright: nn.Sequential,
    tasks: list[tuple[Tensor, Tensor]],
    rate: float,
    memory: risegrad.Memory | None = None,
) -> tuple[float, float]:
    """Points forgotten of the first task, and accuracy on the second."""
    model = copy.deepcopy(upright)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    if memory is not None:
        shaper = risegrad.Informed(memory)
        risegrad.attach(optimizer, shaper, model.named_parameters(), on="update")
    train(model, optimizer, tasks[1])
    return right(upright, tasks[0]) - right(model, tasks[0]), right(model, tasks[1])


def test_less_is_forgotten_and_more_learned(
    upright: nn.Sequential, tasks: list[tuple[Tensor, Tensor]]
) -> None:
    old = [tuple(part[:256] for part in tasks[0])]
    memory = risegrad.remember(upright, old, examples=256)
    forgotten, new = learned(upright, tasks, 1e-3)
    assert forgotten > 20  # there is something to gain
    # Progress matching: plain training's own rate is right, and nothing is tuned.
    kept = learned(upright, tasks, 1e-3, memory)
    assert kept[0] < forgotten / 4
    # Three standard errors of the difference of two accuracies on these digits.
    tests = len(tasks[1][1]) - TRAINED
    assert kept[1] > new - 3 * (2 * new * (100 - new) / tests) ** 0.5
    # The control that must fail: the same spectra in random directions know nothing.
    blind = learned(upright, tasks, 1e-3, memory.rotated())
    assert blind[0] > forgotten

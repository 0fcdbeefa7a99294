"""Avalanche's Naive on its own benchmarks of real digits, with RISE and with ``keep``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import risegrad
from integrations.old_and_new import NEW, OLD, batches, knowing, percent

pytest.importorskip("avalanche", reason="avalanche-lib is not installed (risegrad[avalanche])")
from avalanche.benchmarks import benchmark_from_datasets
from avalanche.benchmarks.utils import AvalancheDataset, DataAttribute
from avalanche.training import Naive
from avalanche.training.plugins import EvaluationPlugin

from risegrad.integrations.avalanche import KeepPlugin, RisePlugin

pytestmark = pytest.mark.filterwarnings("ignore")


def experiences(test: bool) -> list[Any]:
    def dataset(classes: range) -> Any:
        images, labels = (torch.cat(part) for part in zip(*batches(classes, test), strict=True))
        targets = DataAttribute(labels.tolist(), "targets")
        tasks = DataAttribute([0] * len(labels), "targets_task_labels", use_in_getitem=True)
        return AvalancheDataset(TensorDataset(images, labels), data_attributes=[targets, tasks])

    made = [dataset(OLD), dataset(NEW)]
    return list(benchmark_from_datasets(train=made).train_stream)


def learned(model: nn.Module, plugins: list[Any], rate: float = 0.1, epochs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    strategy = Naive(
        model=model, optimizer=optimizer, criterion=nn.CrossEntropyLoss(), train_mb_size=48,
        train_epochs=epochs, plugins=plugins, evaluator=EvaluationPlugin(), device="cpu",
    )  # fmt: skip
    for experience in experiences(False):
        strategy.train(experience)
    return model


def test_rise_learns_and_counts_every_step() -> None:
    plugin = RisePlugin(risegrad.Rise(keep=0.5))
    model = learned(knowing(), [plugin])
    assert plugin.handle is not None
    steps = sum(-(-len(e.dataset) // 48) for e in experiences(False)) * 3
    assert plugin.handle.steps == steps
    assert percent(model, NEW) > 70


def test_naive_without_noise_is_naive() -> None:
    """A mean factor of nearly one is nearly plain training."""
    plain = learned(knowing(), [])
    shaped = learned(knowing(), [RisePlugin(risegrad.ScaledFO(q=10**12))])
    pairs = zip(plain.parameters(), shaped.parameters(), strict=True)
    assert all(torch.allclose(one, other, atol=1e-4) for one, other in pairs)


def test_keeping_keeps_more_than_plain_training() -> None:
    plain = learned(knowing(), [])
    plugin = KeepPlugin(examples=120)
    keeping = learned(knowing(), [plugin])
    assert plugin.keeper is not None
    assert plugin.keeper.kept is not None
    assert plugin.keeper.kept.seen == 240
    assert percent(keeping, NEW) > 60
    assert percent(keeping, OLD) > percent(plain, OLD) + 5


def test_what_is_known_from_the_start_is_kept_in_the_first_experience() -> None:
    plugin = KeepPlugin(batches(OLD, False), examples=120)
    learned(knowing(), [plugin], epochs=1)
    assert plugin.keeper is not None
    steps = sum(-(-len(e.dataset) // 48) for e in experiences(False))
    assert plugin.keeper.steps == steps


def test_an_optimizer_that_is_new_is_attached_to() -> None:
    plugin = RisePlugin(risegrad.Rise(keep=0.5))
    learned(knowing(), [plugin], epochs=1)
    first = plugin.handle
    learned(knowing(), [plugin], epochs=1)
    assert plugin.handle is not first

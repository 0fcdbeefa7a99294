"""The loop that every trainer here must agree with: accumulate, clip, shape, step."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from risegrad.core.attachment import On, attach
from risegrad.core.shapers import Shaper

Loss = Callable[[nn.Module, int], Tensor]
"""The loss of a model on micro-batch number so-and-so."""


def by_hand(
    model: nn.Module,
    optimizer: Optimizer,
    loss: Loss,
    steps: int,
    accumulate: int,
    clip: float,
    shaper: Shaper | None = None,
    on: On = "gradient",
) -> dict[str, Tensor]:
    """Train ``model`` and return its parameters."""
    if shaper is not None:
        attach(optimizer, shaper, model.named_parameters(), on)
    model.train()
    for step in range(steps):
        optimizer.zero_grad()
        for part in range(accumulate):
            (loss(model, step * accumulate + part) / accumulate).backward()
        norm = nn.utils.clip_grad_norm_(trained(optimizer), clip)
        assert norm > 2 * clip, f"clipping must matter in this test, the norm is {norm}"
        optimizer.step()
    return parameters(model)


def trained(optimizer: Optimizer) -> list[Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def distance(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """The largest difference between two sets of parameters."""
    assert list(first) == list(second)
    return max(float((first[name] - second[name]).abs().max()) for name in first)


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert list(first) == list(second)
    different = [name for name in first if not torch.equal(first[name], second[name])]
    assert not different


def extras() -> set[str]:
    """What can stand in ``pip install "risegrad[...]"``."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


class Recorder:
    """Gradient norms at each step of an optimizer, as its hooks see them from where it stands."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.norms: list[float] = []
        optimizer.register_step_pre_hook(lambda *_: self.norms.append(self._norm(optimizer)))

    @staticmethod
    def _norm(optimizer: Optimizer) -> float:
        return float(nn.utils.get_total_norm(_gradients(trained(optimizer))))


def _gradients(tensors: Sequence[Tensor]) -> Iterable[Tensor]:
    return [tensor.grad for tensor in tensors if tensor.grad is not None]

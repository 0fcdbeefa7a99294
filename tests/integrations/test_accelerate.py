"""accelerate: the one line before or after ``prepare``, accumulation, clipping, resuming."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from integrations.by_hand import assert_same, by_hand, parameters
from integrations.small import (
    ACCUMULATE,
    CLIP,
    MICRO,
    RATE,
    STEPS,
    data,
    distance_to_targets,
    loss,
    net,
)
from risegrad.core.attachment import attach
from risegrad.core.shapers import Rise

accelerate = pytest.importorskip("accelerate")

SHAPER = Rise(q=4, seed=3)


class Loop:
    """The loop of accelerate's documentation, with the one line at either place."""

    def __init__(self, attached: str = "after", on: Any = "gradient") -> None:
        self.accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
        self.net = net()
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=RATE)
        loader = DataLoader(TensorDataset(*data()), batch_size=MICRO)
        if attached == "before":
            self.handle = attach(optimizer, SHAPER, self.net.named_parameters(), on)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(
            self.net, optimizer, loader
        )
        if attached == "after":
            self.handle = attach(self.optimizer, SHAPER, self.model.named_parameters(), on)

    def run(self, save_at: int | None = None, folder: Path | None = None, skip: int = 0) -> None:
        for number, (x, y) in enumerate(self.loader):
            if number < skip * ACCUMULATE:
                continue
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(distance_to_targets(self.model, x, y))
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
                self.optimizer.step()
                self.optimizer.zero_grad()
            if save_at is not None and number + 1 == save_at * ACCUMULATE:
                self.accelerator.save_state(str(folder))


@pytest.mark.parametrize("attached", ["before", "after"])
@pytest.mark.parametrize("on", ["gradient", "update"])
def test_the_one_line(attached: str, on: Any) -> None:
    loop = Loop(attached, on)
    loop.run()
    assert loop.handle.steps == STEPS, "once per step, not per micro-batch"
    twin = net()
    optimizer = torch.optim.AdamW(twin.parameters(), lr=RATE)
    expected = by_hand(twin, optimizer, loss, STEPS, ACCUMULATE, CLIP, SHAPER, on)
    torch.testing.assert_close(parameters(loop.net), expected)
    assert_not_close(parameters(loop.net), unshaped())


@pytest.mark.parametrize("attached", ["before", "after"])
def test_resumes_bit_for_bit(tmp_path: Path, attached: str) -> None:
    whole = Loop(attached)
    whole.run(save_at=2, folder=tmp_path)
    rest = Loop(attached)
    rest.accelerator.load_state(str(tmp_path))
    assert rest.handle.steps == 2
    # The states of the data belong to accelerate; here the loop skips what it has seen.
    rest.run(skip=2)
    assert rest.handle.steps == STEPS
    assert_same(parameters(whole.net), parameters(rest.net))


def unshaped() -> dict[str, Tensor]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    return by_hand(model, optimizer, loss, STEPS, ACCUMULATE, CLIP)


def assert_not_close(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    with pytest.raises(AssertionError):
        torch.testing.assert_close(first, second)

"""A model over several devices: factors lie with their layers, and no product mixes devices.

Fake tensors have a device and a shape but no numbers; torch refuses any operation that mixes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from core.test_waits import layers
from risegrad.core import coverage
from risegrad.core.attachment import On, attach
from risegrad.memory.informed import Informed, InformedTie

DEVICES = ("cuda:0", "cuda:1")


class Answers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answers 1 where somebody asks for a number, which a fake tensor does not have: checks and
    means of factors, which are made once."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0
        return func(*args, **(kwargs or {}))


@contextmanager
def fake_devices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    real = coverage.make_layout

    def layout(*args: Any) -> Any:
        with unset_fake_temporarily():  # blocks are counted on the host
            return real(*args)

    monkeypatch.setattr(coverage, "make_layout", layout)
    with FakeTensorMode(allow_non_fake_inputs=True), Answers():
        yield


def spread(params: dict[str, nn.Parameter]) -> dict[str, nn.Parameter]:
    """As ``device_map`` lays layers out: every other one on another device."""
    found = {}
    for name, param in params.items():
        device = DEVICES[int(name.split(".")[1]) % 2]
        found[name] = nn.Parameter(torch.empty(param.shape, dtype=param.dtype, device=device))
        found[name].grad = torch.empty_like(found[name])
    return found


@pytest.mark.filterwarnings("ignore:.*divides each gradient by its own size")
@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("trained", ["LoRA", "whole"])
def test_factors_lie_with_their_layers(
    trained: str, rank: int | None, on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, params = layers(4, trained, rank)
    params = {name: param for name, param in params.items() if not name.endswith("bias")}
    assert memory.hash  # of numbers
    with fake_devices(monkeypatch):
        placed = spread(params)
        optimizer = torch.optim.AdamW(placed.values(), lr=0.1)
        handle = attach(optimizer, Informed(memory), placed, on)
        for _ in range(2):
            optimizer.step()
        tie = handle._coverage.tie
        assert isinstance(tie, InformedTie)
        seen = set()
        for member in tie._stacks.members:
            filters = [side.filters for side in (member.left, member.right) if side is not None]
            tensors = [*member.tensors, *(t for f in filters for t in vars(f).values())]
            assert all(isinstance(t, Tensor) for t in tensors)
            own = {str(t.device) for t in tensors}
            assert len(own) == 1
            seen |= own
        assert seen == {*DEVICES}
    assert handle.steps == 2


def test_a_product_over_two_devices_would_be_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_devices(monkeypatch):
        one, other = (torch.empty(3, 3, device=device) for device in DEVICES)
        with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cuda:1"):
            one @ other

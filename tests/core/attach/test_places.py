"""Where a memory's steps are shaped: the gradient only of optimizers that are known to be plain."""

from __future__ import annotations

import pytest
import torch
from torch.optim import Optimizer

from risegrad.memory.informed import right_place


class Somebodys(Optimizer):
    def __init__(self, params: object) -> None:
        super().__init__(params, {"lr": 1.0})  # type: ignore[arg-type]


UNKNOWN = ["Prodigy", "LAMB", "CAME", "Tiger", "Ranger", "NovoGrad", "SGD8bit"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_classes_are_shaped_on_their_update(name: str) -> None:
    kind = type(name, (Somebodys,), {})
    assert right_place(kind([torch.zeros(2, requires_grad=True)])) == "update"


@pytest.mark.parametrize(
    ("kind", "place"),
    [(torch.optim.SGD, "gradient"), (torch.optim.ASGD, "gradient"), (torch.optim.Adam, "update"),
     (torch.optim.Rprop, "update"), (torch.optim.LBFGS, "update")],
)  # fmt: skip
def test_torchs_own(kind: type[Optimizer], place: str) -> None:
    assert right_place(kind([torch.zeros(2, requires_grad=True)], lr=0.1)) == place

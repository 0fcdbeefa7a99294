"""Buffers are left as they were found, and not written where nothing changed."""

import pytest
import torch
from torch import nn

import risegrad
from risegrad.core.undisturbed import put_back


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("gate", torch.rand(3))
        self.register_buffer("wide", torch.zeros(1).expand(4))
        self.register_buffer("unknown", torch.full((2,), float("nan")).expand(3, 2))

    def forward(self, x):
        return self.layer(x) * self.gate


@pytest.mark.parametrize("disturbed", [False, True])
def test_a_backward_pass_may_still_come(disturbed):
    model, x = Gated(), torch.randn(8, 4)
    loss = model(x).sum()
    gate = model.gate.clone()

    def predict(m, batch):
        if disturbed:
            m.gate.mul_(2)
        return m(batch)

    risegrad.remember(model, [x], examples=8, predict=predict)
    assert torch.equal(model.gate, gate)
    if not disturbed:
        loss.backward()
        assert model.layer.weight.grad is not None


@pytest.mark.parametrize(
    "value",
    [torch.tensor(3), torch.tensor([1.0, float("nan")]), torch.ones(2, 2, dtype=torch.bfloat16),
     torch.zeros(0, 3), torch.tensor([True, False]), torch.eye(3)[:, 1:], torch.eye(2).to_sparse()],
)  # fmt: skip
def test_only_what_changed_is_written(value):
    tensor = value.clone()
    version = tensor._version
    put_back(tensor, value)
    dense = value.layout is torch.strided
    assert (tensor._version == version) or not dense
    if dense and value.numel():
        tensor.zero_()
        put_back(tensor, value)
        assert torch.equal(tensor.nan_to_num(7.0), value.nan_to_num(7.0))

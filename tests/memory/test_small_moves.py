"""Damage of small moves, in half precision, inside autocast: the digits of the dense formula."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

import risegrad
from risegrad.core.attachment import attach

WIDTH, SCALE = 32, 2.5
PRECISIONS = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""Of the gradient, which comes in the parameters' dtype."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.h = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x):
        return self.h(self.q(x).tanh())


def subject(dtype=torch.float32):
    """A remembered network with a LoRA that is far from zero."""
    torch.manual_seed(0)
    memory = risegrad.remember(Net(), [torch.randn(48, WIDTH)], examples=48)
    config = LoraConfig(r=4, lora_alpha=4 * SCALE, target_modules=["q"])
    model = get_peft_model(Net().to(dtype), config, autocast_adapter_dtype=False)
    layer = model.base_model.model.q
    pair = layer.lora_A.default.weight, layer.lora_B.default.weight
    with torch.no_grad():
        pair[1].normal_()
    return model, memory, pair


def step_away(pair, share):
    with torch.no_grad():
        for p in pair:
            p += share * p.abs().mean() * torch.randn_like(p)


def dense_damage(memory, pair, then):
    """``tr(D dW S dW')/2`` and its gradient, all in float64 and with ``dW`` written out."""
    s, d = (memory["q"].parts[part].dense().double() for part in ("inputs", "outputs"))
    a, b = (p.detach().double().requires_grad_() for p in pair)
    a0, b0 = (p.double() for p in then)
    change = SCALE * (b @ a - b0 @ a0)
    value = (d @ change @ s * change).sum() / 2
    return float(value.detach()), torch.autograd.grad(value, (a, b))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("share", [1e-3, 1e-2, 0.3])
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_penalty_of_a_small_move_is_the_dense_one(dtype, share, autocast):
    model, memory, pair = subject(dtype)
    anchor, then = memory.anchor(model), [p.detach().clone() for p in pair]
    step_away(pair, max(share, 1e-2) if dtype == torch.bfloat16 else share)
    value, gradients = dense_damage(memory, pair, then)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = memory.penalty(model, anchor)
        told = memory.damage(anchor, model)["q"]
    assert float(found.detach()) == pytest.approx(value, rel=1e-5)
    assert told == pytest.approx(value, rel=1e-5)
    for own, wanted in zip(torch.autograd.grad(found, pair), gradients, strict=True):
        assert (own.double() - wanted).norm() < PRECISIONS[dtype] * wanted.norm()


def test_nothing_moved_is_nothing():
    model, memory, _ = subject()
    with torch.autocast("cpu", torch.bfloat16):
        assert float(memory.penalty(model, memory.anchor(model)).detach()) == 0


def test_a_retraction_inside_autocast_is_the_one_outside():
    found = []
    for autocast in (False, True):
        model, memory, pair = subject()
        anchor = memory.anchor(model)
        step_away(pair, 1e-3)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            shares = risegrad.retract(model, anchor, memory)
        found.append((shares, [p.detach().clone() for p in pair]))
    (one, plain), (two, inside) = found
    assert one == two
    assert all(torch.equal(a, b) for a, b in zip(plain, inside, strict=True))


def test_sides_inside_autocast_are_those_outside():
    model, memory, (a, _) = subject(torch.bfloat16)
    name = "base_model.model.q.lora_A.default.weight"
    x = torch.randn(a.shape)
    plain = memory.sides(model)[name]
    with torch.autocast("cpu", torch.bfloat16):
        inside = memory.sides(model)[name]
        assert torch.equal(plain.filtered(x, 0.3), inside.filtered(x, 0.3))
        assert torch.equal(plain.quadratic(x), inside.quadratic(x))
    b = model.base_model.model.q.lora_B.default.weight.detach().double()
    d = memory["q"].outputs.dense().double()
    torch.testing.assert_close(plain.left.dense().double(), SCALE**2 * b.T @ d @ b, rtol=1e-5,
                               atol=1e-5)  # fmt: skip


@pytest.mark.parametrize("on", ["gradient", "update"])
@pytest.mark.parametrize("q", [None, 4])
@pytest.mark.parametrize("rank", [None, 3])
def test_a_step_inside_autocast_is_the_one_outside(rank, q, on):
    """Also what a step is prepared with: the small sides of a LoRA are decomposed there."""
    found = []
    for autocast in (False, True):
        model, memory, pair = subject()
        kept = memory if rank is None else memory.truncated(rank)
        optimizer = torch.optim.SGD(pair, 0.1)
        shaper = risegrad.Informed(kept, q=q)
        handle = attach(optimizer, shaper, model.named_parameters(), on, advise=False)
        for number, p in enumerate(pair):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(number))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            optimizer.step()
            text = str(handle)
        found.append(([p.detach().clone() for p in pair], text))
    (plain, said), (inside, said_inside) = found
    assert all(torch.equal(a, b) for a, b in zip(plain, inside, strict=True))
    assert said == said_inside

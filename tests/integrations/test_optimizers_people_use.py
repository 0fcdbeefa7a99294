"""Muon beside AdamW in one model, weights in half precision, optimizers with states of 8 bits."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import risegrad

X = torch.randn(64, 16, generator=torch.Generator().manual_seed(0))
Y = torch.randint(4, (64,), generator=torch.Generator().manual_seed(1))
HOWS = ("rise", "informed", "keep")


def net(dtype=torch.float32):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to(dtype)


def put_on(model, optimizer, how):
    old, names = X[:32].to(next(model.parameters()).dtype), model.named_parameters()
    if how == "rise":
        risegrad.attach(optimizer, risegrad.Rise(keep=0.5), params=names, on="update")
    elif how == "informed":
        shaper = risegrad.Informed(risegrad.remember(model, [(old, Y[:32])]))
        risegrad.attach(optimizer, shaper, params=names, on="update")
    else:
        risegrad.keep(model, optimizer, [old])


def losses(model, *optimizers, steps=30):
    dtype = next(model.parameters()).dtype
    found = []
    for _ in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = cross_entropy(model(X.to(dtype)).float(), Y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        found.append(loss.item())
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    return found


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
@pytest.mark.parametrize("how", HOWS)
def test_muon_for_matrices_beside_adamw_for_the_rest(how):
    model = net()
    both = (
        torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=0.02),
        torch.optim.AdamW([p for p in model.parameters() if p.ndim != 2], lr=1e-2),
    )
    for optimizer in both:
        put_on(model, optimizer, how)
    found = losses(model, *both)
    assert found[-1] < found[0] - 0.1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("how", HOWS)
def test_weights_in_half_precision(how, dtype):
    model = net(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
    put_on(model, optimizer, how)
    found = losses(model, optimizer)
    assert found[-1] < found[0] - 0.05


@pytest.mark.parametrize("package", ["torchao.optim", "bitsandbytes.optim"])
@pytest.mark.parametrize("how", HOWS)
def test_states_of_eight_bits(how, package):
    made = pytest.importorskip(package).AdamW8bit
    model = net()
    optimizer = made(model.parameters(), lr=1e-2)
    put_on(model, optimizer, how)
    found = losses(model, optimizer)
    assert found[-1] < found[0] - 0.1
    optimizer.load_state_dict(optimizer.state_dict())
    assert losses(model, optimizer, steps=2)[-1] < found[0]

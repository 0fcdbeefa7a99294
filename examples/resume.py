"""A run that is stopped and resumed ends bit for bit where an uninterrupted one does."""

import tempfile
from pathlib import Path

import torch
from torch import nn

import risegrad


def start() -> tuple[nn.Module, torch.optim.Optimizer, risegrad.Attachment]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    rise = risegrad.Rise(q=4, seed=7)
    return model, optimizer, risegrad.attach(optimizer, rise, params=model.named_parameters())


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()


whole, optimizer, handle = start()
train(whole, optimizer, range(20))

with tempfile.TemporaryDirectory() as folder:
    checkpoint = Path(folder) / "checkpoint.pt"

    model, optimizer, handle = start()
    train(model, optimizer, range(8))
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint)

    resumed, optimizer, handle = start()
    state = torch.load(checkpoint, weights_only=True)
    resumed.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    print(f"resumed after {handle.steps} shaped steps")
    assert handle.steps == 8
    train(resumed, optimizer, range(8, 20))

pairs = zip(whole.parameters(), resumed.parameters(), strict=True)
assert all(torch.equal(one, other) for one, other in pairs)

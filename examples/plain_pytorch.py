"""One line in a plain PyTorch loop: the rest of the loop stays as it is."""

import torch
from torch import nn

import risegrad

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x @ torch.randn(8, 1)
model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

handle = risegrad.attach(
    optimizer, risegrad.Rise(keep=0.5, seed=0), params=model.named_parameters()
)
print(handle)  # how much of each block's mean is left: look at this before you train

first = last = (model(x) - y).square().mean().item()
for _ in range(100):
    optimizer.zero_grad()
    loss = (model(x) - y).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clip, then shape, then step
    optimizer.step()
    last = loss.item()

print(f"loss {first:.3f} -> {last:.3f} in {handle.steps} shaped steps")
assert handle.steps == 100
assert last < 0.2 * first

"""A small network, or a quadratic, some steps into its new task: what a validation measures."""

from dataclasses import dataclass

import torch
from torch import nn

from risegrad.core.shapers import Rise
from risegrad.curvature.objective import Objective
from risegrad.curvature.space import make_space, trained_parameters
from risegrad.memory.remembering import remember


def make(width=4, quadratic=False):
    torch.manual_seed(0)
    if quadratic:
        model = nn.Linear(width, 2).double()
        target = lambda n: torch.randn(n, 2).double()  # noqa: E731
    else:
        model = nn.Sequential(nn.Linear(width, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        target = lambda n: torch.randint(3, (n,))  # noqa: E731
    old = [(torch.randn(8, width).double(), target(8)) for _ in range(2)]
    new = [(torch.randn(6, width).double(), target(6))]
    loss = nn.MSELoss() if quadratic else nn.CrossEntropyLoss()
    return model, old, new, loss


def learn(model, batches, loss, steps, rate=0.01):
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for step in range(steps):
        x, y = batches[step % len(batches)]
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()


def uneven_inputs(count):
    """A network that learned something from inputs of very different sizes; others are new."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    x = torch.randn(count, 6) * torch.tensor([5.0, 5, 5, 0.1, 0.1, 0.1])
    y = (x @ torch.randn(6, 3)).argmax(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(80):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    other = torch.randn(32, 6) * torch.tensor([0.1, 0.1, 0.1, 5, 5, 5])
    return model, (x, y), (other, torch.randint(3, (32,))), optimizer


@dataclass
class SmallProblem:
    """As ``SessionProblem``, with plain batches and one learning rate."""

    kept: Objective
    new: Objective
    parameters: dict
    shaper: Rise
    scale: None = None

    @staticmethod
    def after(steps, quadratic=True):
        model, old, new, loss = make(quadratic=quadratic)
        learn(model, old, loss, 5)
        learn(model, new, loss, steps)
        kept, incoming = Objective(model, old, loss), Objective(model, new, loss, what="incoming")
        return SmallProblem(kept, incoming, trained_parameters(model), Rise(q=2))

    @property
    def space(self):
        return make_space(self.parameters, self.shaper)

    @property
    def gradient(self):
        return self.new.gradient(self.space, self.parameters)

    @property
    def past_gradient(self):
        return self.kept.gradient(self.space, self.parameters)

    def memory(self, seed):
        chosen = isinstance(self.kept.loss, nn.CrossEntropyLoss)
        of = "predictions" if chosen else lambda model, batch: model(batch[0])
        return remember(self.kept.model, self.kept.batches, examples=None, of=of, seed=seed)

    def in_steps(self, operator):
        return operator, self.gradient, self.past_gradient

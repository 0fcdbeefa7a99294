"""Problems that are learned in a moment: two linear rules over eight numbers."""

import torch
from torch.nn.functional import cross_entropy

from riselab.continual.custom import OwnProblem


def loss(model, batch):
    return cross_entropy(model(batch[0]), batch[1])


def score(model, batch):
    return int((model(batch[0]).argmax(1) == batch[1]).sum()), len(batch[1])


def batches(rule, count, generator):
    inputs = [torch.randn(16, 8, generator=generator) for _ in range(count)]
    return [(x, (x @ rule).argmax(1)) for x in inputs]


def problem(seed):
    """A network that knows one rule and is to learn another."""
    generator = torch.Generator().manual_seed(0)
    old, fresh = (torch.randn(8, 3, generator=generator) for _ in range(2))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    keep, new = batches(old, 16, generator), batches(fresh, 16, generator)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for batch in keep * 3:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    tests = {"keep_test": keep[8:], "new_test": new[8:]}
    return OwnProblem(model, keep[:8], new[:8], loss, score, **tests)


def stuck(seed):
    """Nothing of it can be learned: the score does not depend on the model."""
    found = problem(seed)
    parts = vars(found) | {"score": lambda model, batch: (4, 16)}
    return OwnProblem(**parts)


def not_a_problem(seed):
    return {"model": None}

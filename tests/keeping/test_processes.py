"""Processes that train together pull together, each with its own share of the examples."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import risegrad
from core.distributed.conftest import processes  # noqa: F401 - a fixture
from core.distributed.jobs import Net
from keeping.test_keep import generator, pull_by_hand
from risegrad.keeping.examples import taken
from risegrad.keeping.pull import STRENGTH


def begun():
    torch.manual_seed(0)
    return Net().double()


def inputs(seed, n):
    return torch.randn(n, 6, generator=generator(seed), dtype=torch.float64)


def uneven():
    """Batches of which one process runs more than the other in a pull."""
    return [inputs(1, 10), inputs(3, 25), inputs(4, 5)]


def moved(model):
    drawn = generator(5)
    whole = {
        name: torch.randn(p.shape, generator=drawn, dtype=p.dtype)
        for name, p in begun().named_parameters()
    }
    with torch.no_grad():
        for name, p in model.named_parameters():
            move = whole[name.removeprefix("module.")]
            if hasattr(p, "full_tensor"):
                move = torch.distributed.tensor.distribute_tensor(move, p.device_mesh, p.placements)
            p.add_(0.3 * move)


def whole(model):
    found = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
    return [p.detach().clone() for p in found]


def job(rank, size, engine):
    model = begun()
    if engine == "ddp":
        model = DistributedDataParallel(model)
    else:
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    keeper = risegrad.keep(model, optimizer, uneven(), damping=None, examples=40, budget=5.0)
    moved(model)
    x, labels = inputs(2, 4 * size).chunk(size)[rank], torch.arange(4) % 3
    for _ in range(2):
        optimizer.zero_grad()
        cross_entropy(model(x), labels).backward()
        optimizer.step()
    return whole(model), str(keeper.drift())


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_as_one_process_with_all_shares(processes, engine):  # noqa: F811
    found = processes(2).run(job, engine)
    before = begun()
    model = copy.deepcopy(before)
    keeper = risegrad.keep(
        model, torch.optim.SGD(model.parameters()), uneven(), damping=None, examples=40
    )
    moved(model)
    labels = torch.arange(4).repeat(2) % 3
    lengths = [len(taken(keeper.kept.pulled, number, 0)) for number in range(4)]
    assert lengths[0] != lengths[1] or lengths[2] != lengths[3]
    for number in range(2):
        shares = [taken(keeper.kept.pulled, 2 * number + rank, 0) for rank in range(2)]
        each = [pull_by_hand(model, before, groups, clip=False) for groups in shares]
        mean = [(a + b) / 2 for a, b in zip(*each, strict=True)]
        length = (torch.cat([g.flatten() for g in mean]).norm() / STRENGTH).clamp(min=1)
        loss = cross_entropy(model(inputs(2, 8)), labels)
        plain = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for p, g, h in zip(model.parameters(), plain, mean, strict=True):
                p.sub_(0.1 * (g + h / length))
    for parameters, drift in found:
        torch.testing.assert_close(parameters, whole(model), rtol=1e-9, atol=1e-11)
        assert drift == str(keeper.drift())

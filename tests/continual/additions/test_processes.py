"""Several processes, here threads that add up through each other, learn what one does."""

import threading

import pytest
import torch

from riselab.continual.additions import ADDITIONS
from riselab.continual.additions.memory import MemorySettings, RunMemory, WithMemory
from riselab.continual.devices import Devices


class Together:
    """What two ranks need to add up a tensor."""

    def __init__(self, count):
        self.count, self.slots = count, [None] * count
        self.barrier = threading.Barrier(count, timeout=20)


class Rank(Devices):
    """One of several that share the work."""

    def __init__(self, together, rank):
        super().__init__()
        self.together, self.rank, self.count = together, rank, together.count

    def total(self, value):
        self.together.slots[self.rank] = value
        self.together.barrier.wait()
        summed = torch.stack(list(self.together.slots)).sum(0)
        self.together.barrier.wait()
        return summed


def learn(small, name, devices):
    options = {"samples": 5} if name in ("ewc", "gpm") else {}
    addition = ADDITIONS[name](**options).make(0)
    additions = [addition]
    if isinstance(addition, WithMemory):
        addition.kept = RunMemory(MemorySettings(), 0)
        additions.append(addition.kept)
    losses = []
    for task in range(2):
        small.learn(task, *additions, epochs=2, batch=3, devices=devices)
        losses.append(small.values())
    return losses, {key: value for key, value in addition.state_dict().items() if key != "seconds"}


@pytest.mark.parametrize("name", list(ADDITIONS))
def test_two_learn_what_one_learns(make_small, name):
    expected, state = learn(make_small(), name, Devices())
    together, found = Together(2), {}
    smalls = [make_small(), make_small()]

    def run(rank):
        try:
            found[rank] = learn(smalls[rank], name, Rank(together, rank))
        except BaseException:
            together.barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found.keys() == {0, 1}
    for rank in range(2):
        values, other = found[rank]
        for one, wanted in zip(values, expected, strict=True):
            for key in wanted:
                torch.testing.assert_close(one[key], wanted[key], rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(other, state, rtol=1e-4, atol=1e-7)

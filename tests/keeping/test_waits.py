"""What a pull asks of a device: no wait, but where a budget measures."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks.operations import Operations
from keeping.test_keep import kept, net, sgd, task
from risegrad.keeping.pull import EVERY


def steps(outputs: int, count: int, **options) -> list[Operations]:
    """What each step of a keeper puts into the queue."""
    model = net(outputs)
    optimizer = sgd(model, foreach=True)
    kept(model, optimizer, **options)
    found = []
    for _ in range(count):
        optimizer.zero_grad()
        x, y = task()
        cross_entropy(model(x), y).backward()
        with Operations() as seen:
            optimizer.step()
        found.append(seen)
    return found


@pytest.mark.parametrize("outputs", [3, 600])
def test_a_pull_waits_for_nothing(outputs: int) -> None:
    """Few classes, of which all are kept, and many, of which the most likely are."""
    # The first look holds all buffers, to see which a look changes.
    _, *later = steps(outputs, 3)
    for seen in later:
        assert not seen.waits
        assert seen.counts["_foreach_add_"] >= 2  # the pull and the step


def test_a_budget_waits_where_it_measures_and_nowhere_else() -> None:
    _, *later = steps(3, 2 * EVERY + 2, budget=0.05)
    waiting = [number for number, seen in enumerate(later, 1) if seen.waits]
    assert waiting == [EVERY, 2 * EVERY]


def test_an_index_by_truth_values_counts_as_a_wait() -> None:
    x = torch.arange(3.0)
    with Operations() as seen:
        x[x > 1]
    assert seen.waits == {"nonzero"}

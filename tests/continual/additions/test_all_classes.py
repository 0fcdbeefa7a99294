"""Naive fine-tuning: old classes are part of the loss, so their rows get a gradient."""

import pytest
import torch

from continual.tiny import host_of
from riselab.continual.additions.replay import AllClassesSettings
from riselab.continual.training import SessionTraining


@pytest.mark.parametrize("naive", [False, True])
def test_old_rows_get_a_gradient(naive):
    host = host_of(host={"head": "linear"})
    host.begin(0)
    session = host.begin(1)
    additions = [AllClassesSettings().make(0)] if naive else []
    training = SessionTraining(session, host.kit.loop, host.kit.devices, additions, seed=0)
    batch = session.items.fetch([(1, 0), (1, 1)], 0)
    training._activate(0)
    training._take_step([batch], 2, last_task=1)
    old = host.head.weight.grad[:2]
    assert bool(old.abs().max() > 0) is naive
    assert torch.isfinite(old).all()

"""More blocks than a product each is worth: rules are compared, with the same numbers."""

import pytest
import torch
from torch import nn

from curvature.networks import batches, network
from risegrad.core.shapers import Rise
from risegrad.curvature import Measurement, ProductBudget, diagnose, space


def test_rules_have_the_same_numbers_without_those_of_blocks(monkeypatch):
    """All but RISE's own noise along the gradient, which three products then estimate."""
    how = Measurement(budget=ProductBudget(probes=24))
    kept = diagnose(network(), batches(), batches((5,), 7), measurement=how)
    monkeypatch.setattr(space, "MOST_BLOCKS", 2)
    rough = diagnose(network(), batches(), batches((5,), 7), measurement=how)
    assert (len(kept.blocks), rough.blocks, rough.totals) == (4, (), None)
    assert rough.products == kept.products - 4 + 3
    for one, other in zip(kept.rules, rough.rules, strict=True):
        error = 4 * (one.share.error + other.share.error) if one.name == "RISE" else 1e-9
        assert other.share.value == pytest.approx(one.share.value, rel=1e-9, abs=error)
    assert "too many for a product with each" in str(rough)
    assert "too many" not in str(kept)


def test_thousands_of_blocks():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 120), nn.Tanh(), nn.Linear(120, 12))
    old, new = ([(torch.randn(n, 30), torch.randint(12, (n,)))] for n in (12, 8))
    how = Measurement(budget=ProductBudget(probes=16))
    found = diagnose(model, old, new, rise=Rise(blocks=4), measurement=how)
    assert found.totals is None
    assert found.products <= 16 + 12
    assert found.decision

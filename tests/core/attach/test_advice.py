"""Defaults that learn: ``keep`` chooses blocks and q, and attaching warns where little is left."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import risegrad
from risegrad.core.shapers import SHAPERS, Kept, Rise, ScaledFO, Shaper
from risegrad.theory.calibration import mean_factor


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def said(shaper: Shaper, optimizer: str = "SGD", on: Any = "gradient", **more: Any) -> list[str]:
    """The warnings of attaching."""
    model = small()
    made = getattr(torch.optim, optimizer)(model.parameters(), lr=0.1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        risegrad.attach(made, shaper, model.named_parameters(), on, **more)
    assert all(warning.filename == __file__ for warning in seen), "it points at the caller"
    return [str(warning.message) for warning in seen]


@pytest.mark.parametrize("kind", SHAPERS)
@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9])
def test_keep_leaves_what_was_asked_for(kind: type[Shaper], keep: float) -> None:
    """At least that in every block, and with one direction fewer it would be less."""
    model = small()
    handle = risegrad.attach(
        torch.optim.SGD(model.parameters(), lr=0.1), kind(keep=keep), model.named_parameters()
    )
    for row in handle.layout.rows:
        assert row.d <= 64
        assert row.mean_factor >= keep
        if row.q > 1 and "rest" not in row.name:
            assert mean_factor(row.d, row.q - 1) < keep


def test_blocks_that_were_chosen_stay() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = risegrad.attach(optimizer, Rise(keep=0.5, blocks="module"), model.named_parameters())
    assert [(row.name, row.d) for row in handle.layout.rows] == [("0", 8320), ("2", 1290)]
    assert all(0.5 <= row.mean_factor < 0.501 for row in handle.layout.rows)


def test_keep_is_the_rule_with_those_blocks_and_that_q() -> None:
    """Bit for bit: nothing about the rule is another one."""

    def trained(shaper: Shaper) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(64, 128, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        risegrad.attach(optimizer, shaper, model.named_parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 64)).square().mean().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    pairs = zip(trained(Rise(keep=0.5)), trained(Rise(q=22, blocks=64)), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_a_state_of_keep_is_loaded_by_keep_alone() -> None:
    def made(shaper: Shaper) -> torch.optim.Optimizer:
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        risegrad.attach(optimizer, shaper, model.named_parameters(), advise=False)
        return optimizer

    state = made(Rise(keep=0.5)).state_dict()
    made(Rise(keep=0.5)).load_state_dict(state)
    with pytest.raises(ValueError, match=r"q: saved \{'keep': 0.5\}, here 4"):
        made(Rise(q=4)).load_state_dict(state)
    assert "keep" not in Rise(q=4).settings(), "older states must stay readable"


def test_copies_keep_their_choice() -> None:
    copy = replace(Rise(keep=0.5), seed=3)
    assert (copy.q, copy.blocks, copy.seed) == (Kept(0.5), 64, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"keep": 1.0}, r"keep must be a number in \(0, 1\), got 1.0"),
        ({"keep": 0}, r"keep must be a number in \(0, 1\), got 0"),
        ({"keep": 0.5, "q": 8}, "pass keep or q, not both: keep chooses q, got q=8"),
    ],
)
def test_a_keep_that_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rise(**given)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_little_mean_warns_with_numbers_and_the_way_out(optimizer: str) -> None:
    """d = 8192 with q = 4: 85 % of this model's elements."""
    (text,) = said(Rise(q=4), optimizer)
    for part in ("85% of 9,610 elements", "0.0221", "8,192", "q=4", "Rise(keep=0.5)"):
        assert part in text
    assert said(Rise(q=4), optimizer, advise=False) == []


@pytest.mark.parametrize(
    "shaper",
    [
        Rise(keep=0.5),
        Rise(q=4, blocks=64),
        Rise(q=200),
        Rise(q=4, exempt=["0.*"]),
        risegrad.IsotropicNoise(q=4),  # its mean is the gradient itself
    ],
    ids=repr,
)
def test_enough_mean_says_nothing(shaper: Shaper) -> None:
    assert said(shaper) == []


def test_what_is_frozen_is_not_counted() -> None:
    model = small()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    handle = risegrad.attach(optimizer, Rise(q=4), model.named_parameters(), advise=False)
    assert handle.advice() is None


@pytest.mark.parametrize(
    ("optimizer", "on", "warned"),
    [
        ("AdamW", "gradient", 1),
        ("RMSprop", "gradient", 1),
        ("AdamW", "update", 0),
        ("SGD", "gradient", 0),
    ],
)
def test_scaled_fo_where_scale_is_ignored(optimizer: str, on: str, warned: int) -> None:
    found = said(ScaledFO(keep=0.5), optimizer, on)
    assert len(found) == warned
    assert all(optimizer in text and 'on="update"' in text for text in found)

"""Hard projections against dense float64 ones, and NCL against its formula."""

import math

import pytest
import torch

from continual.additions.test_run_memory import kept_with
from risegrad.memory.factor import Diagonal, Factor
from riselab.continual.additions.memory import RunMemory
from riselab.continual.additions.null_space import NullSpaceSettings, cut_of
from riselab.continual.additions.penalties import KronAnchorSettings
from riselab.continual.host import TrainingBudget
from riselab.continual.rules import Rule


def projector(matrix, share):
    """Onto the largest eigenvectors, taken one by one until they hold the share."""
    values, vectors = torch.linalg.eigh(matrix)
    held, basis = 0.0, torch.zeros(len(matrix), 0, dtype=matrix.dtype)
    for place in reversed(range(len(matrix))):
        if held >= share * matrix.trace() * (1 - 1e-9) or values[place] < 1e-6 * matrix.trace():
            break
        held += values[place]
        basis = torch.cat([basis, vectors[:, place : place + 1]], dim=1)
    return basis @ basis.T


def random_factor(seed, spectrum=(8.0, 4.0, 2.0, 1.0, 0.5, 0.0)):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(6, 6, dtype=torch.float64, generator=generator)
    turned = torch.linalg.qr(drawn).Q
    return turned @ torch.diag(torch.tensor(spectrum, dtype=torch.float64)) @ turned.T


@pytest.mark.parametrize("share", [0.5, 0.8, 0.97, 1.0])
def test_a_cut_is_the_projection_off_the_largest_eigenvectors(share):
    matrix = random_factor(3)
    x = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = x - projector(matrix, share) @ x
    torch.testing.assert_close(cut_of(Factor(matrix), share)(x), expected, rtol=0, atol=1e-12)
    values = matrix.diagonal().clone()
    expected = x - projector(torch.diag(values), share) @ x
    torch.testing.assert_close(cut_of(Diagonal(values), share)(x), expected, rtol=0, atol=1e-12)


def test_a_factor_that_holds_nothing_cuts_nothing():
    x = torch.ones(6, 2, dtype=torch.float64)
    torch.testing.assert_close(cut_of(Factor(torch.zeros(6, 6).double()), 0.97)(x), x)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("sides", ["both", "inputs"])
def test_a_step_is_the_plain_one_without_what_is_held(make_small, optimizer, sides):
    """One step of the second session, from the same weights with and without the projection."""
    moves, factors = {}, {}
    for projected in (False, True):
        small = make_small()
        addition = NullSpaceSettings(share=0.8, sides=sides).make(0)
        kept = kept_with(addition)
        small.learn(0, kept)
        factors = {part: side.dense() for part, side in kept.memory["0"].parts.items()}
        session = small.session(1, optimizer=optimizer)
        before = small.layer.weight.detach().clone(), small.layer.bias.detach().clone()
        training = small.training(session, *([addition] if projected else []), batch=8)
        training.epoch(0, lambda news: None)
        moves[projected] = small.layer.weight.detach() - before[0]
        still = torch.equal(small.layer.bias.detach(), before[1])
        assert still == projected  # its input was always one
    right = torch.eye(6).double() - projector(factors["inputs"], 0.8)
    left = torch.eye(5).double() - projector(factors["outputs"], 0.8)
    expected = moves[False] @ right if sides == "inputs" else left @ moves[False] @ right
    torch.testing.assert_close(moves[True], expected, rtol=1e-9, atol=1e-12)
    assert 0 < moves[True].norm() < moves[False].norm()


def test_outputs_on_old_inputs_stay_also_with_adamw(make_small):
    generator = torch.Generator().manual_seed(4)
    moved = {}
    for projected in (False, True):
        small = make_small()
        for task in range(2):  # inputs in two of six dimensions
            two = torch.randn(8 + 6, 2, dtype=torch.float64, generator=generator.manual_seed(task))
            small.items.inputs[task] = two[:8] @ two[8:].T
        addition = NullSpaceSettings(share=1.0, sides="inputs").make(0)
        small.learn(0, kept_with(addition))
        old = small.items.inputs[0]
        before = small.layer(old).detach()
        additions = [addition] if projected else []
        small.learn(1, *additions, epochs=3, optimizer="adamw", lr=0.05)
        moved[projected] = (small.layer(old) - before).abs().max()
    assert moved[False] > 0.05
    assert moved[True] < 1e-9


def test_ncl_is_the_informed_rule_with_the_anchor(make_small):
    """``P (g + lambda D (theta - theta_0) S)`` with ``P`` of the same factors, at the length of the
    plain step: what the two settings together make of plain SGD."""
    rho, weight = 0.1, 3.0
    small = make_small()
    anchor = KronAnchorSettings(weight=weight).make(0)
    kept = kept_with(anchor)
    small.learn(0, kept)
    sides = {part: side.dense() for part, side in kept.memory["0"].parts.items()}
    session = small.session(1)
    rule = Rule("informed", damping=rho)
    budget = TrainingBudget(epochs=2, lr=0.1, momentum=0.0, weight_decay=0.0, schedule="constant")
    (body, head) = session.groups
    groups = (
        type(body)(body.name, body.parameters, budget, rule),
        type(head)(head.name, head.parameters, budget, Rule("fo")),
    )
    session = type(session)(**{**vars(session), "groups": groups})
    start = torch.cat([small.layer.weight, small.layer.bias[:, None]], 1).detach().clone()
    training = small.training(session, anchor, kept, batch=8)
    training.epoch(0, lambda news: None)  # the first step starts at the anchor: no pull yet
    before = torch.cat([small.layer.weight, small.layer.bias[:, None]], 1).detach().clone()
    batch = small.items.task(1)
    loss = session.loss(batch, False)
    parts = torch.autograd.grad(loss, [small.layer.weight, small.layer.bias])
    training.epoch(1, lambda news: None)
    after = torch.cat([small.layer.weight, small.layer.bias[:, None]], 1).detach()

    d, s = sides["outputs"], sides["inputs"]
    moved = before - start
    pull_weight = d @ moved[:, :6] @ s
    pull_bias = d @ moved[:, 6:]
    g = torch.cat([parts[0] + weight * pull_weight, parts[1][:, None] + weight * pull_bias], 1)
    left = torch.linalg.inv(d / (d.trace() / 5) + rho * torch.eye(5).double())
    right = torch.linalg.inv(s / (s.trace() / 6) + rho * torch.eye(6).double())
    one = 1 / (1 / (s.trace() / 6) + rho)  # the bias, by the standard of the weight's inputs
    turned = torch.cat([left @ g[:, :6] @ right, left @ g[:, 6:] * one], 1)
    expected = -0.1 * turned * g.norm() / turned.norm()
    torch.testing.assert_close(after - before, expected, rtol=1e-6, atol=1e-9)
    assert not math.isclose(float(pull_weight.norm()), 0.0)


def test_the_memory_of_a_run_is_what_it_projects_by(make_small):
    """Without a session before there is nothing to keep, so steps are plain."""
    plain, held = make_small(), make_small()
    plain.learn(0)
    addition = NullSpaceSettings().make(0)
    addition.kept = RunMemory(kept_with(addition).settings, 0)
    held.learn(0, addition)
    for name, value in plain.values().items():
        torch.testing.assert_close(held.values()[name], value, rtol=0, atol=0)

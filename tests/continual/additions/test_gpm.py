"""GPM: bases against a slow SVD, and the guarantee after real steps."""

import pytest
import torch

from riselab.continual.additions.gpm import GpmSettings, extended, input_grams
from riselab.continual.host import TrainingBudget


def extended_by_svd(basis, inputs, share):
    """As the paper has it: add left singular vectors one by one until enough is held."""
    total = (inputs**2).sum()
    rest = inputs if basis is None else inputs - basis @ (basis.T @ inputs)
    left, singular, _ = torch.linalg.svd(rest, full_matrices=False)
    held = 1 - (rest**2).sum() / total
    columns = [] if basis is None else list(basis.T)
    for place in range(len(singular)):
        if held >= share:
            break
        columns.append(left[:, place])
        held = held + singular[place] ** 2 / total
    return torch.stack(columns, 1)


def projector(basis):
    return basis @ basis.T


@pytest.mark.parametrize("share", [0.3, 0.9, 0.97])
def test_bases_are_those_of_the_svd(share):
    generator = torch.Generator().manual_seed(2)
    basis, slow = None, None
    for task in range(3):
        scale = torch.logspace(0, -3, 9, dtype=torch.float64).roll(task)[:, None]
        inputs = scale * torch.randn(9, 40, dtype=torch.float64, generator=generator)
        slow = extended_by_svd(slow, inputs, share)
        basis = extended(basis, inputs @ inputs.T, share)
        assert basis.shape == slow.shape
        torch.testing.assert_close(projector(basis), projector(slow), rtol=0, atol=1e-9)
        eye = torch.eye(basis.shape[1], dtype=torch.float64)
        torch.testing.assert_close(basis.T @ basis, eye, rtol=0, atol=1e-12)


def test_as_few_directions_as_reach_the_share():
    gram = torch.diag(torch.tensor([6.0, 3.0, 1.0, 0.0]))
    assert extended(None, gram, 0.6).shape == (4, 1)
    assert extended(None, gram, 0.61).shape == (4, 2)
    assert extended(None, gram, 0.9).shape == (4, 2)
    assert extended(None, gram, 1.0).shape == (4, 3)  # never along what has no energy
    first = extended(None, gram, 0.6)
    assert extended(first, torch.diag(torch.tensor([9.0, 1.0, 0.0, 0.0])), 0.9).shape == (4, 1)
    assert extended(first, torch.zeros(4, 4), 0.9).shape == (4, 1)
    assert extended(None, torch.zeros(4, 4), 0.9).shape == (4, 0)


def test_inputs_of_every_token_count(small):
    training = small.learn(0)
    grams = input_grams(training, [(0, index) for index in range(8)], 3)
    inputs = small.items.inputs[0]
    torch.testing.assert_close(grams["body.weight"], inputs.T @ inputs)
    small.items.inputs = small.items.inputs[:, :, None].expand(-1, -1, 3, -1)
    small.loss_of = lambda logits, batch, before, every: logits.sum()
    grams = input_grams(training, [(0, index) for index in range(8)], 8)
    torch.testing.assert_close(grams["body.weight"], 3 * inputs.T @ inputs)
    assert not small.layer._forward_pre_hooks


def low_rank(small):
    """Inputs of a task in two of six dimensions, others for every task."""
    generator = torch.Generator().manual_seed(4)
    for task in range(3):
        two = torch.randn(8 + 6, 2, dtype=torch.float64, generator=generator)
        small.items.inputs[task] = two[:8] @ two[8:].T


@pytest.mark.parametrize("rule", ["fo", "rise", "isotropic-noise", "zo"])
def test_outputs_on_old_inputs_stay_after_real_steps(make_small, rule):
    moved = {}
    for name, additions in (("free", ()), ("gpm", (GpmSettings(epsilon=1.0).make(0),))):
        small = make_small()
        low_rank(small)
        small.learn(0, *additions, rule=rule, clip=1.0)
        old = small.items.inputs[0]
        before, bias = small.layer(old).detach(), small.layer.bias.detach().clone()
        weight, head = small.layer.weight.detach().clone(), small.head.weight.detach().clone()
        small.learn(1, *additions, rule=rule, epochs=3, clip=1.0)  # momentum 0.9
        moved[name] = (small.layer(old) - before).abs().max().item()
        assert (small.layer.weight - weight).abs().max() > 1e-3
        assert torch.equal(small.layer.bias, bias) == (name == "gpm")
        assert not torch.equal(small.head.weight[2:], head)
        assert torch.equal(small.head.weight[:2], head)  # a local loss leaves old rows alone
    assert moved["gpm"] < 1e-12 < 1e-3 < moved["free"]


def test_all_earlier_tasks_are_protected(small):
    low_rank(small)
    gpm = GpmSettings(epsilon=1.0).make(0)
    small.learn(0, gpm)
    first = small.layer(small.items.inputs[0]).detach()
    small.learn(1, gpm)
    second = small.layer(small.items.inputs[1]).detach()
    assert gpm.bases["body.weight"].shape == (6, 4)
    small.learn(2, gpm, rule="rise")
    torch.testing.assert_close(small.layer(small.items.inputs[0]), first, rtol=0, atol=1e-12)
    torch.testing.assert_close(small.layer(small.items.inputs[1]), second, rtol=0, atol=1e-12)


def test_the_threshold_grows_and_samples_are_few(small, monkeypatch):
    shares = []
    monkeypatch.setattr(
        "riselab.continual.additions.gpm.extended",
        lambda basis, gram, share: shares.append(share) or torch.eye(6)[:, :1].double(),
    )
    gpm = GpmSettings(samples=3, batch=2, epsilon=0.9, increment=0.06).make(0)
    for task in range(3):
        small.learn(task, gpm)
    assert shares == pytest.approx([0.9, 0.96, 1.0])
    assert [len(asked) for asked in small.items.asked[-2:]] == [2, 1]


def test_a_layer_without_inputs_may_move_freely(small):
    small.items.inputs[0] = 0
    gpm = GpmSettings().make(0)
    small.learn(0, gpm)
    assert gpm.bases == {}
    before = small.layer.weight.detach().clone()
    small.learn(1, gpm)
    assert not torch.equal(small.layer.weight, before)


def test_a_first_session_may_be_taught_by_any_optimizer(small):
    """Nothing is projected there; what the later sessions do is looked at from the start."""
    adamw = TrainingBudget(epochs=1, optimizer="adamw", weight_decay=0.01)
    gpm = GpmSettings().make(0)
    taught = small.session(0).taught(adamw)
    assert small.training(taught, gpm).optimizers["body"].defaults["weight_decay"] == 0.01
    later = small.session(1, optimizer="adamw").taught(TrainingBudget(weight_decay=0.0))
    with pytest.raises(ValueError, match="'gpm' does not compose with group 'body': optimizer 'ad"):
        small.training(later, gpm)

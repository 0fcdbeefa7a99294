"""SAM's gradient by hand; parameters come back bit by bit."""

import pytest
import torch

from risegrad.continual.additions.sam import SamSettings


def gradient(session, batch):
    found = torch.autograd.grad(session.loss(batch, False), list(session.parameters.values()))
    return [each.clone() for each in found]


def test_the_step_uses_the_gradient_at_the_perturbed_point(make_small):
    small, twin = make_small(), make_small()
    session, other = small.session(0, lr=0.5, momentum=0.0), twin.session(0)
    batch = twin.items.task(0)
    first = gradient(other, batch)
    norm = sum((g * g).sum() for g in first).sqrt()
    with torch.no_grad():
        for p, g in zip(other.parameters.values(), first, strict=True):
            p += 0.3 * g / norm
    second = gradient(other, batch)
    before = {name: p.detach().clone() for name, p in session.parameters.items()}
    training = small.training(session, SamSettings(rho=0.3).make(0), batch=8)
    training.epoch(0, lambda news: None)
    for (name, p), g in zip(session.parameters.items(), second, strict=True):
        torch.testing.assert_close(p.detach(), before[name] - 0.5 * g, rtol=1e-6, atol=1e-9)


def test_parameters_come_back_bit_by_bit(small):
    session = small.session(0)
    training = small.training(session, batch=8)
    batch = small.items.task(0)
    training._backward(batch, 8, False)
    gradients = [p.grad.clone() for p in session.parameters.values()]
    before = small.values()
    seen = []

    def again():
        seen.append(small.values())
        return training._backward(batch, 8, False)

    SamSettings(rho=0.1).make(0).adjust(training, again)
    after = small.values()
    assert all(torch.equal(before[name], after[name]) for name in before)
    distance = sum(((seen[0][name] - before[name]) ** 2).sum() for name in before).sqrt()
    assert distance.item() == pytest.approx(0.1, rel=1e-9)
    pairs = zip(session.parameters.values(), gradients, strict=True)
    assert any(not torch.equal(p.grad, g) for p, g in pairs)


def test_also_when_the_second_pass_fails(small):
    session = small.session(0)
    training = small.training(session, batch=8)
    training._backward(small.items.task(0), 8, False)
    before = small.values()

    def again():
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        SamSettings().make(0).adjust(training, again)
    assert all(torch.equal(before[name], value) for name, value in small.values().items())


def test_a_gradient_of_zero_stays_where_it_is(small):
    session = small.session(0)
    training = small.training(session)
    for parameter in session.parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    before = small.values()
    found = []
    SamSettings().make(0).adjust(training, lambda: found.append(small.values()))
    assert all(torch.equal(before[name], found[0][name]) for name in before)

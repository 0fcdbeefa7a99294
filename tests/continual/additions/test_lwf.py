"""LwF against the formula, and everything left as found."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import cross_entropy

from riselab.continual.additions.penalties import LwfSettings, distillation


def test_distillation_by_hand():
    new = torch.tensor([[2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    old = torch.tensor([[0.0, 2.0], [4.0, 0.0]], dtype=torch.float64)
    soft = [math.exp(1) / (1 + math.exp(1)), math.exp(2) / (1 + math.exp(2))]  # T = 2
    first = -((1 - soft[0]) * math.log(soft[0]) + soft[0] * math.log(1 - soft[0]))
    second = -math.log(0.5)
    assert distillation(new, old, 2.0).item() == pytest.approx((first + second) / 2, rel=1e-14)


def test_half_precision_scores_are_compared_in_single():
    new = torch.randn(3, 4).bfloat16()
    assert distillation(new, new, 2.0).dtype == torch.float32


def test_the_gradient_is_that_of_loss_plus_distillation(make_small):
    small, twin = make_small(), make_small()
    for each in (small, twin):
        each.learn(0, epochs=3)
    lwf = LwfSettings(weight=1.5, temperature=3.0).make(0)
    session, other = small.session(1, lr=0.1, momentum=0.0), twin.session(1)
    training = small.training(session, lwf, batch=8)
    with torch.no_grad():  # the student has moved since the session began
        for model in (small, twin):
            model.layer.weight += 0.3
            model.head.weight += 0.2
    before = small.values()
    training.epoch(0, lambda news: None)
    refs = small.items.asked[-1]

    teacher = make_small()
    teacher.learn(0, epochs=3)
    batch = twin.items.fetch(refs, 0)
    wanted = torch.softmax(teacher.logits(batch)[:, :2].detach() / 3.0, 1)
    scores = twin.logits(batch)
    kept = -(wanted * torch.log_softmax(scores[:, :2] / 3.0, 1)).sum(1).mean()
    loss = cross_entropy(scores[:, 2:], batch.labels - 2) + 1.5 * kept
    names = [name for name, _ in twin.module.named_parameters()]
    gradients = torch.autograd.grad(loss, list(twin.module.parameters()))
    after = small.values()
    for name, gradient in zip(names, gradients, strict=True):
        torch.testing.assert_close(after[name], before[name] - 0.1 * gradient, rtol=1e-6, atol=1e-9)
    assert other.seen_before == 2


def test_the_teacher_has_no_dropout_and_the_student_keeps_its_own(make_small):
    small = make_small(dropout=0.5)
    small.learn(0)
    lwf = LwfSettings().make(0)
    session = small.session(1)
    small.training(session, lwf)
    start = {name: p.detach().clone() for name, p in session.parameters.items()}
    with torch.no_grad():
        small.layer.weight += 1.0
    moved = small.values()
    small.module.train()
    batch = small.items.task(1)
    found = lwf._taught(session, batch)
    assert small.dropout.training
    assert all(torch.equal(moved[name], value) for name, value in small.values().items())
    hidden = torch.relu(batch.inputs @ start["body.weight"].T + start["body.bias"])
    expected = (hidden @ start["head.weight"].T + start["head.bias"])[:, :2]
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert not found.requires_grad


def test_the_teacher_runs_once_per_batch_whatever_the_loss_is_asked(make_small):
    small = make_small()
    small.learn(0)
    lwf = LwfSettings().make(0)
    session = small.session(1, rule="zo", head_rule="zo", q=3)
    training = small.training(session, lwf, batch=4)
    calls = []
    training.session = replace(
        session, logits=lambda batch: calls.append(1) or session.logits(batch)
    )
    training.epoch(0, lambda news: None)
    assert len(calls) == 2 * (2 * 3 + 1)  # two batches: 2q losses and one teacher each


def test_the_first_session_has_nothing_to_keep(small):
    lwf = LwfSettings().make(0)
    session = small.session(0)
    small.training(session, lwf)
    batch = small.items.task(0)
    assert lwf.penalty(session, batch, small.logits(batch)) is None


def test_scores_of_old_classes_move_less(make_small):
    moved = {}
    for name, additions in (("free", ()), ("held", (LwfSettings(weight=10.0).make(0),))):
        small = make_small()
        small.learn(0, *additions, epochs=3)
        batch = small.items.task(1)
        before = small.logits(batch).detach()
        small.learn(1, *additions, epochs=10)
        after = small.logits(batch).detach()[:, :2]
        moved[name] = (torch.softmax(after, 1) - torch.softmax(before, 1)).abs().mean().item()
    assert moved["held"] < 0.5 * moved["free"]

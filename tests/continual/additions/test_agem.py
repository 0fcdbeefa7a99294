"""A-GEM's projection by hand, and in a step."""

import torch

from risegrad.continual.additions.agem import AgemSettings, projected


def test_projection_by_hand():
    own = [torch.tensor([1.0, 0.0]), torch.tensor([2.0])]
    against = [torch.tensor([-2.0, 1.0]), torch.tensor([0.5])]  # dot -1, square 5.25
    found = projected(own, against)
    share = -1 / 5.25
    torch.testing.assert_close(found[0], torch.tensor([1 - share * -2, -share]))
    torch.testing.assert_close(found[1], torch.tensor([2 - share * 0.5]))
    dot = sum((g * r).sum() for g, r in zip(found, against, strict=True))
    assert abs(dot) < 1e-6


def test_agreeing_and_empty_gradients_pass_unchanged():
    own = [torch.tensor([1.0, 3.0])]
    assert torch.equal(projected(own, [torch.tensor([2.0, -0.5])])[0], own[0])
    assert torch.equal(projected(own, [torch.zeros(2)])[0], own[0])


def gradients(small, loss):
    found = torch.autograd.grad(loss, list(small.module.parameters()), allow_unused=True)
    pairs = zip(small.module.parameters(), found, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def flat(values):
    return torch.cat([value.flatten() for value in values.values()])


def test_a_step_is_the_projected_gradient(make_small):
    """On both sides of the condition: some seeds of the network meet one, some the other."""
    seen = set()
    for seed in range(8):
        small = make_small(seed=seed)
        agem = AgemSettings(size=5, batch=3).make(0)
        small.learn(0, agem)
        session = small.session(1, lr=0.25, momentum=0.0)
        generator = torch.Generator().manual_seed(seed)
        for parameter in small.module.parameters():
            torch.nn.init.normal_(parameter.data, generator=generator)
        training = small.training(session, agem, batch=8)
        before = small.values()
        refs = agem.memory.draw(3, 1, 0)
        small.items.asked.clear()
        own = gradients(small, session.loss(small.items.task(1), False))
        reference = gradients(small, session.loss(small.items.fetch(refs, 0), True))
        dot = own @ reference
        expected = own - dot / (reference @ reference) * reference if dot < 0 else own
        training.epoch(0, lambda news: None)
        assert small.items.asked[-1] == refs
        step = (flat(before) - flat(small.values())) / 0.25
        torch.testing.assert_close(step, expected, rtol=1e-5, atol=1e-8)
        seen.add(bool(dot < 0))
    assert seen == {True, False}


def test_the_reference_has_no_penalties(make_small):
    """The loss on the memory must not rise; what other additions want is another matter."""
    from risegrad.continual.additions.ewc import EwcSettings

    small = make_small()
    ewc = EwcSettings(weight=100.0).make(0)
    small.learn(0, ewc)
    session = small.session(1)
    training = small.training(session, ewc)
    with torch.no_grad():
        small.layer.weight += 1.0
    expected = gradients(small, session.loss(small.items.fetch([(0, 1), (0, 2)], 0), True))
    training.backward([(0, 1), (0, 2)])
    found = torch.cat([p.grad.flatten() for p in small.module.parameters()])
    torch.testing.assert_close(found, expected)


def test_every_step_draws_its_own_reference(small):
    agem = AgemSettings(size=6, batch=3).make(0)
    small.learn(0, agem)
    small.items.asked.clear()
    small.learn(1, agem)
    references = [refs for refs in small.items.asked if refs[0][0] == 0]
    assert references == [agem_draw(agem, step) for step in range(2)]
    assert references[0] != references[1]


def agem_draw(agem, step):
    """From the memory as it was before task 1: a fresh one that saw task 0 alone."""
    before = AgemSettings(size=6, batch=3).make(0).memory
    before.see(0, 8)
    return before.draw(agem.settings.batch, 1, step)


def test_nothing_happens_before_the_first_task_is_over(make_small):
    values = []
    for additions in ((), (AgemSettings().make(0),)):
        small = make_small()
        small.learn(0, *additions)
        values.append(flat(small.values()))
    assert torch.equal(*values)

"""EWC against loops: the Fisher matrix, sums of penalties, heads that grow."""

import pytest
import torch

from riselab.continual.additions.penalties import EwcSettings, empirical_fisher


def fisher_by_loops(session, items, refs):
    """The mean of squared gradients, one example at a time, with nothing clever."""
    parameters = session.parameters
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for p in parameters.values():
        p.requires_grad_(True)
    for ref in refs:
        for p in parameters.values():
            p.grad = None
        session.loss(items.fetch([ref], 0), False).backward()
        for name, p in parameters.items():
            if p.grad is not None:
                for place in range(p.numel()):
                    sums[name].view(-1)[place] += p.grad.view(-1)[place].item() ** 2
    return {name: value / len(refs) for name, value in sums.items()}


def penalty_by_loops(weight, terms, parameters):
    """``weight/2 sum over tasks, parameters and the elements that were there then``."""
    total = 0.0
    for fisher, values in terms:
        for name, old in values.items():
            rows = parameters[name][: len(old)] if old.ndim else parameters[name]
            total = total + (fisher[name] * (rows - old) ** 2).sum()
    return weight / 2 * total


def test_fisher_is_the_mean_of_squared_gradients_of_single_examples(small):
    training = small.learn(0)
    refs = [(0, index) for index in range(8)]
    expected = fisher_by_loops(training.session, small.items, refs)
    found = empirical_fisher(training, refs)
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=0)
    assert all(value.max() > 0 for value in found.values())


def test_groups_that_stopped_count_and_stay_as_they_were(small):
    training = small.learn(0)
    for parameter in small.layer.parameters():
        parameter.requires_grad_(False)
    found = empirical_fisher(training, [(0, 0)])
    assert found["body.weight"].max() > 0
    assert [p.requires_grad for p in small.layer.parameters()] == [False, False]
    assert small.head.weight.requires_grad


def test_separate_terms_are_all_there(small):
    ewc = EwcSettings(weight=7.0).make(0)
    terms = []
    for task in range(3):
        session = small.learn(task, ewc, lr=0.3).session
        refs = [(task, index) for index in range(8)]
        terms.append((fisher_by_loops(session, small.items, refs), clone(session.parameters)))
    session = small.session(3)
    for parameter in session.parameters.values():
        torch.nn.init.normal_(parameter.data, generator=torch.Generator().manual_seed(9))
    check_same_up_to_a_constant(ewc, terms, session)
    assert ewc.fisher["head.weight"].shape == (6, 5)  # of 8 rows now


def test_online_has_one_center_and_a_decaying_sum(small):
    ewc = EwcSettings(weight=2.0, mode="online", decay=0.5).make(0)
    first = small.learn(0, ewc).session
    f0 = fisher_by_loops(first, small.items, [(0, i) for i in range(8)])
    second = small.learn(1, ewc).session
    f1 = fisher_by_loops(second, small.items, [(1, i) for i in range(8)])
    for name, value in f0.items():
        f1[name][: len(value)] += 0.5 * value
    center = clone(second.parameters)
    session = small.session(2)
    with torch.no_grad():
        small.layer.weight += 0.1
        small.head.weight += 0.2
    found = ewc.penalty(session, small.items.task(2), None)
    expected = penalty_by_loops(2.0, [(f1, center)], session.parameters)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


def test_new_rows_of_a_head_are_free(small):
    ewc = EwcSettings(weight=5.0).make(0)
    small.learn(0, ewc)
    session = small.session(1)
    with torch.no_grad():
        small.head.weight += 1.0
    ewc.penalty(session, small.items.task(1), None).backward()
    alive = ewc.fisher["head.weight"] > 0  # some hidden units never fire
    assert alive.any()
    assert torch.equal(small.head.weight.grad[:2] > 0, alive)
    assert (small.head.weight.grad[2:] == 0).all()


def test_the_first_task_has_no_penalty_and_the_next_is_held(make_small):
    free, held = make_small(), make_small()
    ewc = EwcSettings(weight=50.0).make(0)
    moved = {}
    for small, additions in ((free, ()), (held, (ewc,))):
        small.learn(0, *additions, epochs=3)
        before = small.values()["0.weight"]
        small.learn(1, *additions, epochs=10)
        moved[len(additions)] = (small.values()["0.weight"] - before).norm().item()
    assert torch.equal(free.items.inputs, held.items.inputs)
    assert moved[1] < 0.9 * moved[0]


def test_samples_are_a_pure_choice(small):
    ewc = EwcSettings(samples=3).make(0)
    training = small.learn(0)
    small.items.asked.clear()
    ewc.end(training)
    first = list(small.items.asked)
    small.items.asked.clear()
    EwcSettings(samples=3).make(0).end(training)
    assert len(first) == 3
    assert small.items.asked == first


def test_its_state_is_plain_and_complete(small, tmp_path):
    ewc = EwcSettings().make(0)
    small.learn(0, ewc)
    torch.save(ewc.state_dict(), tmp_path / "state")
    other = EwcSettings().make(0)
    other.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    session = small.session(1)
    with torch.no_grad():
        small.layer.weight += 0.1
    batch = small.items.task(1)
    assert torch.equal(other.penalty(session, batch, None), ewc.penalty(session, batch, None))


def test_a_session_without_the_parameters_it_holds_is_refused(small):
    ewc = EwcSettings().make(0)
    ewc.fisher = {"gone.weight": torch.ones(1)}
    with pytest.raises(ValueError, match=r"none of them is among those of session 0: body\.weight"):
        small.training(small.session(0), ewc)


def clone(parameters):
    return {name: p.detach().clone() for name, p in parameters.items()}


def check_same_up_to_a_constant(ewc, terms, session):
    batch, parameters = None, session.parameters
    found = ewc.penalty(session, batch, None)
    expected = penalty_by_loops(ewc.settings.weight, terms, parameters)
    names = [name for name in parameters if name in ewc.fisher]
    tensors = [parameters[name] for name in names]
    pairs = zip(
        torch.autograd.grad(found, tensors), torch.autograd.grad(expected, tensors), strict=True
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    constant = expected - found
    with torch.no_grad():
        for tensor in tensors:
            tensor.mul_(-0.5)
    again = penalty_by_loops(ewc.settings.weight, terms, parameters)
    torch.testing.assert_close(
        again - ewc.penalty(session, batch, None), constant, rtol=1e-9, atol=1e-12
    )
    assert constant > 0

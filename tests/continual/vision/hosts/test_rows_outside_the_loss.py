"""Rows of a head that the session's loss does not see: every rule leaves them as ``fo`` does."""

import copy

import pytest
import torch

from continual.tiny import host_of
from references import assert_close
from riselab.continual.additions.penalties import EwcSettings, LwfSettings
from riselab.continual.additions.replay import AllClasses, ReplaySettings
from riselab.continual.training import SessionTraining

HOSTS = {
    "learnable-classifier": {"name": "learnable-classifier", "head": "linear"},
    "adapter-classifier": {"name": "adapter-classifier", "head": "cosine"},
}
SHAPED = ["rise", "scaled-fo", "isotropic-noise", "covariance-noise"]
OLD = 2  # classes of the first session
ADDITIONS = {
    "all-classes": AllClasses,
    "lwf": lambda: LwfSettings().make(0),
    "replay": lambda: ReplaySettings(size=8).make(0),
    "ewc": lambda: EwcSettings().make(0),
}


def train(host, task, additions=(), epochs=2):
    kit = host.kit
    session = host.begin(task)
    training = SessionTraining(session, kit.loop, kit.devices, additions, kit.seed)
    for epoch in range(epochs):
        training.epoch(epoch, lambda news: None)
    for addition in additions:
        addition.end(training)
    return host


@pytest.fixture(scope="module")
def learned():
    """Hosts that know the first task, by ``fo``; and their state."""
    found = {}
    for name, settings in HOSTS.items():
        host = train(host_of(host=settings), 0)
        found[name] = host.state_dict()
    return found


def second(learned, host, rule, additions=(), epochs=2, **changes):
    """The head after the second task, which is learned by ``rule``."""
    made = host_of(host=HOSTS[host], rule={"q": 2} | rule, **changes)
    made.load_state_dict(copy.deepcopy(learned[host]))
    return train(made, 1, additions, epochs).head


@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize(
    "rule",
    [
        *({"name": name} for name in SHAPED),
        {"name": "rise", "blocks": "module"},
        {"name": "rise", "blocks": "whole", "on": "update"},
        {"name": "rise", "chunk": 7},
        {"name": "isotropic-noise", "on": "update"},
        {"name": "zo"},
    ],
    ids=lambda rule: " ".join(map(str, rule.values())),
)
@pytest.mark.parametrize("host", HOSTS)
def test_old_rows_are_left_as_fo_leaves_them(learned, host, rule, decay):
    budget = {"weight_decay": decay}
    exact = second(learned, host, {"name": "fo"}, head=budget)
    found = second(learned, host, rule, head=budget)
    for name, count in found.rows(OLD).items():
        here, wanted = found.get_parameter(name), exact.get_parameter(name)
        assert torch.equal(here[:count], wanted[:count])
        assert not torch.equal(here[count:], wanted[count:])
        if decay == 0:
            assert torch.equal(here[:count], learned[host]["head"][name])


def test_the_dimension_is_that_of_the_rows_in_the_loss(learned):
    """One step of plain SGD: the mean factor tells ``d``."""
    plain = {"head": {"momentum": 0.0, "weight_decay": 0.0}, "loop": {"batch": 100}}
    before = host_of(host=HOSTS["learnable-classifier"])
    before.load_state_dict(copy.deepcopy(learned["learnable-classifier"]))
    start = before.begin(1).parameters["head.weight"].detach()
    moves = [
        (second(learned, "learnable-classifier", {"name": name}, epochs=1, **plain).weight - start)
        for name in ("fo", "scaled-fo")
    ]
    d, q = start[OLD:].numel(), 2
    assert_close(moves[1][OLD:].detach(), (q / (q + d + 1)) ** 0.5 * moves[0][OLD:].detach())


@pytest.mark.parametrize("rule", ["rise", "zo"])
@pytest.mark.parametrize("addition", ["all-classes", "lwf"])
def test_a_loss_over_all_classes_moves_all_rows(learned, rule, addition):
    chosen = [ADDITIONS[addition]()]
    found = second(learned, "learnable-classifier", {"name": rule}, chosen)
    assert (found.weight != second(learned, "learnable-classifier", {"name": "fo"}).weight).all()


def test_replayed_examples_move_all_rows():
    replay = ADDITIONS["replay"]()
    host = train(host_of(host=HOSTS["learnable-classifier"], rule={"name": "rise"}), 0, [replay])
    before = host.head.weight.detach().clone()
    assert (train(host, 1, [replay]).head.weight[:OLD] != before).all()


@pytest.mark.parametrize("rule", ["fo", "rise", "zo"])
def test_a_penalty_alone_does_not_bring_noise_to_old_rows(rule):
    ewc = ADDITIONS["ewc"]()
    budget = {"weight_decay": 0.0}
    host = host_of(host=HOSTS["learnable-classifier"], rule={"name": rule}, head=budget)
    before = train(host, 0, [ewc]).head.weight.detach().clone()
    assert torch.equal(train(host, 1, [ewc]).head.weight[:OLD], before)

"""Each host against its definition, written out slowly on hand-made or tiny weights."""

import pytest
import torch
from torch.nn.functional import cosine_similarity, cross_entropy

from continual.tiny import host_of
from references import assert_close
from riselab.continual.learning import Learner
from riselab.continual.vision.hosts import HOSTS
from riselab.continual.vision.hosts.base import session_loss
from riselab.continual.vision.hosts.prototypes import complete, ensemble
from riselab.continual.vision.models import features


def learn(host, tasks=None):
    """Take a host through the first ``tasks`` of its stream, by the real loop."""
    kit = host.kit
    learner = Learner(
        host, tasks or len(kit.stream), loop=kit.loop, seed=kit.seed, devices=kit.devices
    )
    return learner.run()


def view(host, task, split):
    """Images of a split as the test view shows them, and their labels."""
    data = getattr(host.kit.stream[task], split)
    return data.images(range(len(data)), train=False), data.labels


def plain_means(host, task, adapters):
    """Mean features per class, one class at a time."""
    images, labels = view(host, task, "train")
    with torch.no_grad():
        found = features(host.kit.vit, images, adapters)
    return torch.stack([found[labels == c].mean(0) for c in labels.unique()])


def rows_of_cosines(found, rows):
    return torch.stack([cosine_similarity(found, row.unsqueeze(0)) for row in rows], dim=1)


def test_simple_cil_is_the_nearest_class_mean_by_angle():
    host = host_of(host={"name": "simple-cil"})
    history = learn(host)
    means = torch.cat([plain_means(host, task, None) for task in range(3)])
    assert_close(host.rows, means)
    hits = []
    for task in range(3):
        images, labels = view(host, task, "test")
        with torch.no_grad():
            scores = rows_of_cosines(features(host.kit.vit, images), means)
        hits.append((int((scores.argmax(1) == labels).sum()), len(labels)))
    assert history.scores[-1]["accuracy"] == hits
    assert not history.losses


def test_aper_trains_in_the_first_session_only_and_joins_both_views():
    host = host_of(host={"name": "aper"}, adapter={"lr": 1.0})
    history = learn(host)
    assert {loss["task"] for loss in history.losses} == {0}
    assert host.adapters[0].up.weight.abs().max() > 0, "the first session must train"
    expected = torch.cat(
        [
            torch.cat([plain_means(host, t, None), plain_means(host, t, host.adapters)], dim=1)
            for t in range(3)
        ]
    )
    assert_close(host.rows, expected)
    images, labels = view(host, 1, "test")
    with torch.no_grad():
        both = [features(host.kit.vit, images, adapters) for adapters in (None, host.adapters)]
    scores, found_labels = host.predict(1, "test")
    assert torch.equal(found_labels, labels)
    assert_close(scores, rows_of_cosines(torch.cat(both, dim=1), expected))


def hand_made_means():
    """Three tasks of two classes, width 3: ``means[i][j]`` for j <= i."""
    generator = torch.Generator().manual_seed(0)
    return [
        [torch.randn(2, 3, generator=generator, dtype=torch.float64) for _ in range(i + 1)]
        for i in range(3)
    ]


def test_ease_completes_old_classes_in_new_subspaces():
    means = hand_made_means()
    rows = complete(means)
    for i in range(3):
        for j in range(3):
            if j <= i:
                assert torch.equal(rows[i][j], means[i][j])
                continue
            for c in range(2):
                known = [(r, k) for r in range(j, 3) for k in range(2)]
                angles = torch.stack(
                    [cosine_similarity(means[i][i][c], means[r][i][k], dim=0) for r, k in known]
                )
                weights = angles.exp() / angles.exp().sum()
                row = sum(w * means[r][j][k] for w, (r, k) in zip(weights, known, strict=True))
                assert_close(rows[i][j][c], row)


def test_ease_weighs_the_own_subspace_most():
    rows = complete(hand_made_means())
    generator = torch.Generator().manual_seed(1)
    found = [torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(3)]
    scores = ensemble(found, rows, alpha=0.1)
    for n in range(4):
        for i in range(3):
            for c in range(2):
                angles = [cosine_similarity(found[j][n], rows[i][j][c], dim=0) for j in range(3)]
                others = sum(angle for j, angle in enumerate(angles) if j != i)
                assert_close(scores[n, 2 * i + c], angles[i] + 0.1 / 2 * others)


def test_ease_with_one_task_is_the_first_term():
    means = hand_made_means()[:1]
    found = [torch.ones(1, 3, dtype=torch.float64)]
    assert_close(ensemble(found, complete(means), 0.1), rows_of_cosines(found[0], means[0][0]))


def test_ease_keeps_old_adapters_and_means_of_new_classes_in_all_subspaces():
    host = host_of(host={"name": "ease"}, adapter={"lr": 1.0})
    learn(host, tasks=2)
    first = [p.detach().clone() for p in host.sets[0].parameters()]
    learn_third = Learner(host, 3, loop=host.kit.loop, devices=host.kit.devices)
    learn_third._task(2, None)
    assert all(torch.equal(a, b) for a, b in zip(first, host.sets[0].parameters(), strict=True))
    assert [len(row) for row in host.means] == [1, 2, 3]
    for i in range(3):
        for j in range(i + 1):
            assert_close(host.means[i][j], plain_means(host, i, host.sets[j]))
    a, b = (host.sets[k][0].up.weight for k in (0, 1))
    assert not torch.equal(a, b), "every session trains adapters of its own"


def test_the_loss_is_over_the_sessions_own_classes():
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.tensor([3, 4, 3, 4])
    local = session_loss(logits, labels, seen_before=3, every_class=False)
    masked = logits.detach().clone()
    masked[:, :3] = -torch.inf
    assert_close(local.detach(), cross_entropy(masked, labels))
    local.backward()
    assert logits.grad[:, :3].eq(0).all(), "old logits get no gradient"
    whole = session_loss(logits, torch.tensor([0, 4, 1, 2]), 3, every_class=True)
    assert_close(whole.detach(), cross_entropy(logits.detach(), torch.tensor([0, 4, 1, 2])))


def trained_groups(host):
    return [
        {group.name: group.rule.name for group in session.groups} if session else {}
        for session in (host.begin(task) for task in range(2))
    ]


@pytest.mark.parametrize(
    ("name", "rule", "groups"),
    [
        ("learnable-classifier", "", {"head": "fo"}),
        ("learnable-classifier", "zo", {"head": "zo"}),
        ("adapter-classifier", "", {"adapter": "fo", "head": "fo"}),
        ("adapter-classifier", "rise", {"adapter": "rise", "head": "rise"}),
        ("zo-fc", "", {"adapter": "zo", "head": "fo"}),
        ("zo-fc-rise", "", {"adapter": "rise", "head": "fo"}),
        ("zo-fc", "covariance-noise", {"adapter": "covariance-noise", "head": "fo"}),
        ("ease", "", {"adapter": "fo", "head": "fo"}),
    ],
)
def test_what_trains_by_which_rule(name, rule, groups):
    assert trained_groups(host_of(host={"name": name}, rule={"name": rule})) == [groups, groups]


def test_what_trains_in_hosts_that_stop():
    assert trained_groups(host_of(host={"name": "aper"})) == [{"adapter": "fo", "head": "fo"}, {}]
    assert trained_groups(host_of(host={"name": "simple-cil"})) == [{}, {}]


DOMAINS = {"name": "turned-digits", "base": 0, "increment": 10}
"""The tiny stream with the same classes in every session."""


@pytest.mark.parametrize("name", [n for n, host in HOSTS.items() if not host.shares_classes])
def test_the_backbone_never_changes(name):
    host = host_of(host={"name": name}, adapter={"lr": 1.0}, head={"lr": 1.0})
    before = {n: p.clone() for n, p in host.kit.vit.state_dict().items()}
    learn(host)
    after = host.kit.vit.state_dict()
    assert all(torch.equal(before[n], after[n]) for n in before)


@pytest.mark.parametrize("name", HOSTS)
def test_the_state_of_a_host_is_complete(name):
    """A new host that loads it predicts the same, with other random numbers around."""
    whole = HOSTS[name].shares_classes
    stream, rate = (DOMAINS, {"lr": 0.01}) if whole else ({}, {"lr": 1.0})
    host = host_of(host={"name": name}, stream=stream, adapter=rate, head=rate)
    learn(host, tasks=2)
    other = host_of(host={"name": name}, stream=stream)
    other.load_state_dict(host.state_dict())
    torch.manual_seed(5)
    for task in range(2):
        assert torch.equal(host.predict(task, "test")[0], other.predict(task, "test")[0])

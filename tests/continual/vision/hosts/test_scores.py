"""The four ways in which Adapter + Cls. is scored, against class means taken by hand."""

import pytest
import torch
from torch.nn.functional import cosine_similarity

from continual.tiny import config, host_of
from riselab.continual.devices import Devices
from riselab.continual.runs import read_config
from riselab.continual.vision.kit import followed

WAYS = {"name": "adapter-classifier", "head": "linear", "main": "both_views"}


def move(host, seed):
    """Stands for training: adapters somewhere else."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in host.adapters.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator))


def views(host, task, split):
    original, labels = host.kit.features_of(task, split)
    adapted, _ = host.kit.features_of(task, split, host.adapters)
    return torch.cat([original, adapted], dim=1), labels


def means_by_hand(host, task):
    found, labels = views(host, task, "train")
    return [found[labels == label].mean(0) for label in sorted(set(labels.tolist()))]


@pytest.fixture
def two_sessions():
    host, rows = host_of(host=WAYS), []
    for task in (0, 1):
        host.begin(task)
        move(host, task)
        host.finish(task)
        rows += means_by_hand(host, task)
    return host, torch.stack(rows)


@pytest.mark.parametrize("task", [0, 1])
def test_every_way(two_sessions, task):
    host, rows = two_sessions
    found, labels = host.predict_all(task, "test")
    both, wanted_labels = views(host, task, "test")
    width = host.kit.width
    assert torch.equal(labels, wanted_labels)
    torch.testing.assert_close(
        found["both_views"], cosine_similarity(both[:, None], rows[None], dim=2)
    )
    torch.testing.assert_close(
        found["class_means"],
        cosine_similarity(both[:, None, width:], rows[None, :, width:], dim=2),
    )
    torch.testing.assert_close(found["accuracy"], host.head(both[:, width:]))
    own = slice(2 * task, 2 * task + 2)
    assert torch.equal(found["within_task"][:, own], found["accuracy"][:, own])
    assert set(found["within_task"].argmax(1).tolist()) <= set(range(4)[own])


def test_means_come_back_with_the_state(two_sessions):
    host, _ = two_sessions
    again = host_of(host=WAYS)
    again.begin(0), again.begin(1)
    again.load_state_dict(host.state_dict())
    wanted, found = (h.predict_all(0, "test")[0] for h in (host, again))
    assert all(torch.equal(found[way], wanted[way]) for way in wanted)


def followed_by_hand(mean, before, after):
    """Every image counts by how near it was to the mean on the unit sphere."""
    total = weight = 0.0
    for was, became in zip(before.double(), after.double(), strict=True):
        far = (was / was.norm() - mean.double() / mean.double().norm()).norm()
        share = torch.exp(-(far**2) / (2 * 0.3**2))
        total, weight = total + share * (became - was), weight + share
    return mean.double() + total / weight


def test_old_means_follow_the_features_of_new_images():
    host = host_of(host=WAYS | {"follow_drift": True})
    width = host.kit.width
    host.begin(0)
    move(host, 0)
    host.finish(0)
    kept = host.means.clone()
    before = host.kit.features_of(1, "train", host.adapters)[0]
    host.begin(1)
    move(host, 1)
    host.finish(1)
    after = host.kit.features_of(1, "train", host.adapters)[0]
    wanted = torch.stack([followed_by_hand(mean, before, after) for mean in kept[:, width:]])
    assert torch.equal(host.means[: len(kept), :width], kept[:, :width])
    torch.testing.assert_close(
        host.means[: len(kept), width:].double(), wanted, rtol=1e-4, atol=1e-5
    )
    assert (wanted - kept[:, width:]).abs().max() > 0.01
    new = torch.stack(means_by_hand(host, 1))
    torch.testing.assert_close(host.means[len(kept) :], new)


def test_what_moved_everywhere_alike_is_followed_exactly():
    generator = torch.Generator().manual_seed(0)
    means, before = (torch.randn(n, 8, generator=generator) for n in (3, 20))
    shift = torch.randn(8, generator=generator)
    found = followed(means, before, before + shift, Devices())
    torch.testing.assert_close(found, means + shift)


def test_following_without_means_is_an_error():
    with pytest.raises(ValueError, match=r"follow_drift moves class means, which main='accuracy'"):
        read_config(config(host=WAYS | {"main": "accuracy", "follow_drift": True}))


def test_scored_by_the_head_alone_unless_asked():
    host = host_of(host=WAYS | {"main": "accuracy"})
    host.begin(0)
    host.finish(0)
    assert list(host.predict_all(0, "test")[0]) == ["accuracy"]


def test_an_unknown_way_is_an_error():
    with pytest.raises(ValueError, match=r"host\.main: expected one of .*'both_views', got 'near"):
        read_config(config(host=WAYS | {"main": "nearest"}))

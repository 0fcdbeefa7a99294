"""How long a run would take: the pace of a few examples, and the right number of them."""

import pytest

from continual.tiny import config
from riselab.continual import runs
from riselab.continual.runs import estimate, read_config, seconds


@pytest.mark.parametrize("host", ["adapter-classifier", "learnable-classifier", "simple-cil"])
def test_a_real_run_is_timed(host):
    settings = read_config(config(host={"name": host}))
    assert 0 < seconds(settings) < 600


def test_images_count_as_often_as_they_pass(monkeypatch):
    monkeypatch.setattr(runs, "_paces", lambda small: (10**3, 1))
    plain = config(host={"name": "adapter-classifier"}, model={"base_epochs": 3})
    settings = read_config(plain)
    counts = estimate(settings)
    first = counts["train images"] // counts["tasks"]
    steps = counts["train images"] * settings.adapter.epochs
    passes = counts["forward"] - steps - 3 * first
    assert seconds(settings) == steps * 10**3 + passes + 3 * 3 * first


def test_the_timed_run_is_small_and_needs_no_weights(monkeypatch):
    asked = []
    monkeypatch.setattr(runs, "_paces", lambda small: asked.append(small) or (1, 1))
    plain = config(model={"pretrained": True, "weights": "nowhere.pt"}, loop={"batch": 7})
    seconds(read_config(plain | {"seed": 5}))
    seconds(read_config(plain | {"seed": 6}))
    one, other = asked
    assert one == other, "the seeds of a row are timed once"
    assert (one.model.weights, one.model.pretrained) == ("", False)
    assert one.stream.train_per_class == 7 // (one.stream.base or one.stream.increment)

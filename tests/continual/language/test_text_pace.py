"""How long a run would take: the pace of a few texts, and the right number of them."""

from continual.language.tiny_text import config
from riselab.continual import runs
from riselab.continual.runs import estimate, read_config, seconds


def test_texts_count_as_often_as_they_pass(data, weights, monkeypatch):
    settings = read_config(config(data, weights))
    assert 0 < seconds(settings) < 600
    monkeypatch.setattr(runs, "_paces", lambda small: (10**6, 1))
    counts = estimate(settings)
    steps = counts["train texts"] * settings.adapter.epochs
    assert seconds(settings) == steps * 10**6 + counts["forward"] - steps

"""Scores between start and end of training, against weights that are set by hand."""

import torch

from continual.test_known import domains
from continual.test_resume import KilledHere, dying_after, without_seconds
from riselab.continual.devices import Devices
from riselab.continual.host import silent
from riselab.continual.learning import Learner
from riselab.continual.runs import make_host, perform, read_config

SHARES = [0.0, 0.3, 0.9]


def test_points_on_the_line_by_hand():
    settings = read_config(domains(loop={"interpolate": SHARES}))
    host = make_host(settings, Devices(device="cpu"))
    parameters = [*host.network.parameters(), *host.head.parameters()]
    start = [p.detach().clone() for p in parameters]
    history = Learner(host, 4, loop=settings.loop).run()
    end = [p.detach().clone() for p in parameters]
    assert [point["share"] for point in history.line] == SHARES
    for point in history.line:
        with torch.no_grad():
            for p, a, b in zip(parameters, start, end, strict=True):
                p.copy_(a + point["share"] * (b - a))
        scores = [(s.hits, s.total) for s in host.score(range(4))["accuracy"]]
        assert point["scores"]["accuracy"] == scores
    assert history.line[0]["scores"] == history.before


def test_the_rest_of_the_result_is_as_without(tmp_path):
    plain = perform(read_config(domains()), tmp_path / "plain", silent)
    more = perform(read_config(domains(loop={"interpolate": [0.5]})), tmp_path / "more", silent)
    assert len(more.pop("line")) == 1
    assert without_seconds(more) == without_seconds(plain)


def test_killed_anywhere_the_line_is_the_same(tmp_path):
    settings = read_config(domains(loop={"interpolate": SHARES, "checkpoint_seconds": 0}))
    expected = perform(settings, tmp_path / "undisturbed", silent)
    stops = 0
    while True:
        try:
            found = perform(settings, tmp_path / "disturbed", dying_after(4 + stops))
            break
        except KilledHere:
            stops += 1
    assert stops > 1
    assert without_seconds(found) == without_seconds(expected)

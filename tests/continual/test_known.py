"""Tasks that are known from the start: scored, never trained, and seen by additions."""

from dataclasses import replace

import pytest
import torch

from continual.language.tiny_text import config as text_config
from continual.language.tiny_text import save_model, write_task
from continual.test_resume import KilledHere, dying_after, without_seconds
from continual.tiny import config
from risegrad.common.seal import digest
from riselab.common.settings import essence
from riselab.continual.additions.addition import Addition
from riselab.continual.devices import Devices
from riselab.continual.host import silent
from riselab.continual.learning import Learner
from riselab.continual.runs import estimate, make_host, perform, read_config

DOMAINS = {
    "name": "turned-digits", "turns": [0, 30, 60, 90], "base": 0, "increment": 10, "classes": 3,
    "train_per_class": 8, "test_per_class": 6, "augment": "none",
}  # fmt: skip
NETWORK = {"name": "mlp", "width": 16, "depth": 2, "heads": 0, "patch": 0, "base_epochs": 5}


def domains(known=1, **changes):
    plain = config(
        stream=DOMAINS | {"known": known},
        model=NETWORK,
        host={"name": "fine-tune"},
        **({"head": {"epochs": 1, "lr": 0.1}, "adapter": {"epochs": 1, "lr": 0.1}} | changes),
    )
    del plain["model"]["adapter_width"]
    return plain


class Watching(Addition):
    """Notes which sessions end, how long they were and what their data are."""

    name = "watching"

    def __init__(self):
        self.seen = []

    def end(self, training):
        task, session = training.session.task, training.session
        batches = training.examples([(task, i) for i in range(session.examples)], 4)
        self.seen.append((task, session.epochs, sum(len(batch) for batch in batches)))

    def state_dict(self):
        return {"seen": list(self.seen)}

    def load_state_dict(self, state):
        self.seen = list(state["seen"])


def test_known_tasks_are_never_trained_and_additions_see_them(tmp_path):
    settings = read_config(domains(known=2))
    host = make_host(settings, Devices(device="cpu"))
    start = [p.detach().clone() for p in host.network.parameters()]
    watching = Watching()
    learner = Learner(host, 4, loop=settings.loop, additions=[watching])
    learner._known_tasks()
    assert all(map(torch.equal, start, host.network.parameters()))
    history = learner.run()
    assert watching.seen == [(0, 0, 24), (1, 0, 24), (2, 1, 24), (3, 1, 24)]
    assert {loss["task"] for loss in history.losses} == {2, 3}
    assert [len(row["accuracy"]) for row in history.scores] == [2, 3, 4, 4]
    for t in (0, 1):  # one scoring before all training
        assert history.scores[t]["accuracy"] == history.before["accuracy"][: t + 2]
    assert len(history.seconds["train"]) == len(history.seconds["score"]) == 4


def test_what_is_learned_counts_trained_tasks_only(tmp_path):
    found = perform(read_config(domains(known=2)), tmp_path, silent)
    matrix, metrics = found["scores"]["accuracy"]["matrix"], found["metrics"]
    assert metrics["plasticity"] == pytest.approx((matrix[2][2] + matrix[3][3]) / 2)
    fallen = [max(matrix[t][i] for t in range(i, 4)) - matrix[3][i] for i in range(3)]
    assert metrics["forgetting"] == pytest.approx(sum(fallen) / 3)
    assert metrics["forward_transfer"] == pytest.approx(
        matrix[2][3] - found["before"]["accuracy"][3]
    )
    assert [task.get("known", False) for task in found["tasks"]] == [True, True, False, False]
    assert metrics["final_average"] == pytest.approx(sum(matrix[3]) / 4)


def test_a_base_is_taught_all_known_domains(tmp_path):
    one = perform(read_config(domains(known=1)), tmp_path / "one", silent)
    two = perform(read_config(domains(known=3)), tmp_path / "two", silent)
    assert two["before"]["accuracy"][2] > one["before"]["accuracy"][2]


def test_killed_anywhere_it_comes_to_the_same(tmp_path):
    plain = domains(known=2, loop={"checkpoint_seconds": 0}, additions=[{"name": "ewc"}])
    settings = read_config(plain)
    expected = perform(settings, tmp_path / "undisturbed", silent)
    stops = 0
    while True:
        try:
            found = perform(settings, tmp_path / "disturbed", dying_after(3 + stops))
            break
        except KilledHere:
            stops += 1
    assert stops > 2
    assert without_seconds(found) == without_seconds(expected)


def test_texts_that_are_known_and_the_work_they_are(tmp_path):
    for name in ("agnews", "SST-2", "RTE"):
        write_task(tmp_path / "data", name)
    plain = text_config(tmp_path / "data", save_model(tmp_path / "model"))
    ahead = read_config(plain | {"stream": plain["stream"] | {"known": 1}})
    found = perform(ahead, tmp_path / "run", silent)
    matrix = found["scores"]["exact_match"]["matrix"]
    assert [len(row) for row in matrix] == [2, 3, 3]
    assert matrix[0] == found["before"]["exact_match"][:2]
    assert {loss["task"] for loss in found["losses"]} == {1, 2}
    tests = [task["test"] for task in found["tasks"]]
    trained = sum(task["train"] for task in found["tasks"][1:]) * ahead.adapter.epochs
    # before: all; after task 1: it, the one before and the next; after task 2: all
    assert estimate(ahead)["forward"] == trained + 3 * sum(tests)
    alone = replace(ahead, host=replace(ahead.host, zero_shot=False))
    assert estimate(alone)["forward"] == trained + tests[0] + sum(tests[:2]) + sum(tests)


def test_what_was_run_before_is_still_known_by_its_name():
    """The default is no part of an identity; another number is."""
    plain, default = domains(), domains()
    del default["stream"]["known"]
    zero = read_config(domains(known=0))
    assert digest(essence(zero)) == digest(essence(read_config(default)))
    assert digest(essence(zero)) != digest(essence(read_config(plain)))
    assert "known" not in essence(zero)["stream"]


def test_nothing_left_to_learn_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"stream\.known must leave at least one of the 4 tasks"):
        perform(read_config(domains(known=4)), tmp_path, silent)
    plain = config(host={"name": "aper"}, stream={"known": 1})
    with pytest.raises(ValueError, match=r"stream\.known must be 0 with host 'aper', which trains"):
        read_config(plain)

"""A person's own model in the lab: what it keeps of it, and that a killed run goes on."""

import pytest

from frontier.own_problems import problem
from riselab.continual.custom import problem_name
from riselab.continual.host import silent
from riselab.continual.runs import perform, read_config


class Killed(Exception):
    pass


def settings_of(**changes):
    plain = {
        "domain": "own",
        "stream": {"problem": problem_name(problem)},
        "host": {"name": "own-model"},
        "adapter": {"epochs": 3, "optimizer": "adamw", "lr": 0.02, "clip": 1.0},
        "loop": {"device": "cpu", "checkpoint_seconds": 0.0},
    }
    return read_config(plain | changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": {"name": "keep"}},
        {"additions": [{"name": "distill"}]},
    ],
    ids=["keep", "distill"],
)
def test_less_is_forgotten_and_killed_runs_go_on(tmp_path, changes):
    plain = perform(settings_of(), tmp_path / "plain", silent)
    found = perform(settings_of(**changes), tmp_path / "whole", silent)
    assert found["metrics"]["forgetting"] < plain["metrics"]["forgetting"]
    assert found["memory_bytes"][0] > 0

    def stop(news):
        if news.get("epoch") == 3:
            raise Killed

    with pytest.raises(Killed):
        perform(settings_of(**changes), tmp_path / "killed", stop)
    again = perform(settings_of(**changes), tmp_path / "killed", silent)
    assert again["losses"] == found["losses"]
    assert again["scores"] == found["scores"]


def test_a_step_is_one_batch_of_the_function():
    with pytest.raises(ValueError, match="accumulate must be at most batch, 1: got 2"):
        settings_of(loop={"accumulate": 2})


@pytest.mark.parametrize("name", ["replay", "dark-replay"])
def test_nothing_can_join_a_batch_of_the_function(name):
    reason = "its batches are made by a person's function, and no example can join them"
    with pytest.raises(ValueError, match=f"{name!r} does not compose.*own-model.*: {reason}"):
        settings_of(additions=[{"name": name}])

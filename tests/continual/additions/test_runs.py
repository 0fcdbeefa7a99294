"""Every addition on every host that it composes with; and runs that were killed."""

import itertools

import pytest

from riselab.continual.additions import ADDITIONS
from riselab.continual.runs import perform, read_config
from riselab.continual.vision.hosts import HOSTS

ANYWHERE = ("adapter-classifier", "zo-fc", "zo-fc-rise")
COMPOSES = [
    *itertools.product(
        ANYWHERE,
        [
            *("replay", "ewc", "lwf", "gpm", "all-classes", "kron-anchor"),
            *("retract", "interpolate", "null-space"),
        ],
    ),
    *itertools.product(("adapter-classifier", "zo-fc-rise"), ["distill", "dark-replay"]),
    # No loss of new classes shows a pull on a head's old rows, so distill is not among these.
    *itertools.product(
        ("learnable-classifier",), ["replay", "ewc", "lwf", "all-classes", "dark-replay"]
    ),
]
AFTERWARDS = ("retract", "interpolate")
"""Act when a session is over, so that the third is the first whose losses show it."""
ALL_AT_ONCE = [
    {"name": "replay", "size": 6, "batch": 3},
    {"name": "ewc", "weight": 1.0, "samples": 5},
    {"name": "lwf"},
    {"name": "gpm", "samples": 5, "batch": 2},
    {"name": "kron-anchor"},
    {"name": "retract"},
]
"""Small memories, so that what they hold and draw matters."""


def quiet(news):
    pass


class Killed(Exception):
    pass


def killer(key, task):
    """Raises at the first news about ``key`` in a task, counted from 1; epochs: the second."""
    now = {}

    def report(news):
        now.update(news)
        here = now.get("task") == task and key in news
        if here and (key != "epoch" or news["epoch"] == 2):
            raise Killed

    return report


@pytest.fixture(scope="module")
def plain_runs():
    """Runs without additions, by host."""
    return {}


@pytest.mark.parametrize(("host", "name"), COMPOSES)
def test_all_that_composes_runs_and_changes_something(digits, tmp_path, plain_runs, host, name):
    # Only weight decay moves old rows of a head whose loss is local: without, EWC has nothing to
    # hold, and what it holds shows in the loss by its penalty alone.
    budget = {"epochs": 3, "lr": 0.1, "weight_decay": 0.1}
    more = {"head": budget, "rule": "rise"} if host == "learnable-classifier" else {}
    if name in AFTERWARDS:
        more["stream"] = digits(host)["stream"] | {"classes": 6}
    found = perform(read_config(digits(host, [name], **more)), tmp_path / "with", quiet)
    key = host, len(found["tasks"])
    if key not in plain_runs:
        plain_runs[key] = perform(read_config(digits(host, **more)), tmp_path / "other", quiet)
    plain = plain_runs[key]
    assert len(found["scores"]["accuracy"]["matrix"]) == len(found["tasks"])
    assert {row["task"] for row in found["losses"]} == set(range(len(found["tasks"])))
    changed = [
        one["loss"] != other["loss"]
        for one, other in zip(found["losses"], plain["losses"], strict=True)
    ]
    # What holds the past has no part in the first session; a loss is the last to show a change.
    assert changed[-1]
    assert not any(changed[:3])


def test_the_lists_here_are_all_there_is():
    # fine-tune learns domains: its own tests try the additions.
    assert {host for host, _ in COMPOSES} == set(HOSTS) - {
        "simple-cil",
        "fine-tune",
        "aper",
        "ease",
    }
    assert {name for _, name in COMPOSES} == set(ADDITIONS)


@pytest.mark.parametrize(
    ("key", "task"), [("epoch", 2), ("task", 2), ("union", 2), ("union", 1), ("epoch", 1)]
)
def test_a_killed_run_gives_the_same_matrix(digits, tmp_path, key, task):
    """Within a session, between two, and after the additions ended one but before it was saved."""
    settings = read_config(digits("adapter-classifier", ALL_AT_ONCE, "rise"))
    whole = perform(settings, tmp_path / "whole", quiet)
    with pytest.raises(Killed):
        perform(settings, tmp_path / "killed", killer(key, task))
    again = perform(settings, tmp_path / "killed", quiet)
    for part in ("scores", "losses", "trainable"):
        assert again[part] == whole[part]


def test_also_with_features_that_were_kept(digits, tmp_path):
    settings = read_config(digits("learnable-classifier", [*ALL_AT_ONCE[:2], ALL_AT_ONCE[4]]))
    whole = perform(settings, tmp_path / "whole", quiet)
    with pytest.raises(Killed):
        perform(settings, tmp_path / "killed", killer("epoch", 2))
    assert perform(settings, tmp_path / "killed", quiet)["losses"] == whole["losses"]


def test_worker_processes_change_nothing(digits, tmp_path):
    plain = digits("adapter-classifier", ALL_AT_ONCE)
    here = perform(read_config(plain), tmp_path / "here", quiet)
    there = plain | {"loop": plain["loop"] | {"workers": 1}}
    assert perform(read_config(there), tmp_path / "there", quiet)["losses"] == here["losses"]

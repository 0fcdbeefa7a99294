"""What does not compose is an error, before anything runs; settings are checked."""

import re
from dataclasses import replace

import pytest

from riselab.continual.additions import ADDITIONS, check_composition, read_additions
from riselab.continual.additions.addition import Addition
from riselab.continual.additions.gpm import GpmSettings
from riselab.continual.additions.penalties import LwfSettings
from riselab.continual.learning import Learner
from riselab.continual.runs import catalogue, perform, read_config
from riselab.continual.vision.hosts import HOSTS

HOLDS_THE_PAST = ["replay", "ewc", "lwf", "gpm", "all-classes"]
REFUSED = [
    *[("simple-cil", name, "nothing trains there") for name in ADDITIONS],
    *[("aper", name, "only its first session trains") for name in HOLDS_THE_PAST],
    *[("ease", name, "every session trains new parameters") for name in HOLDS_THE_PAST],
]


def test_all_are_registered_with_one_line_each():
    assert list(ADDITIONS) == [
        *("replay", "ewc", "lwf", "gpm", "all-classes"),
        *("kron-anchor", "retract", "interpolate", "distill", "dark-replay", "null-space"),
    ]
    assert all(catalogue()["additions"].values())
    for name, kind in ADDITIONS.items():
        assert kind().make(0).name == kind().name == name


@pytest.mark.parametrize(("host", "name", "reason"), REFUSED)
def test_hosts_that_have_nothing_to_protect(digits, host, name, reason):
    start = re.escape(f"addition {name!r} does not compose with host {host!r}: {reason}")
    with pytest.raises(ValueError, match=start):
        read_config(digits(host, [name]))


def test_a_learner_refuses_too():
    class Nothing(HOSTS["simple-cil"]):
        def __init__(self):
            pass

    with pytest.raises(ValueError, match="'lwf' does not compose with host 'simple-cil'"):
        Learner(Nothing(), 2, additions=[LwfSettings().make(0)])


def test_zeroth_order_has_no_gradient_to_adjust(small):
    class Adjusting(Addition):
        name = "adjusting"
        needs_exact = True

    message = "addition 'adjusting' needs exact gradients, but group 'body' has rule 'zo'"
    with pytest.raises(ValueError, match=message):
        small.training(small.session(0, rule="zo"), Adjusting())


def test_gpm_needs_linear_layers(digits, tmp_path):
    settings = read_config(digits("learnable-classifier", ["gpm"]))
    with pytest.raises(ValueError, match=r"'gpm' needs trained linear layers .* offers none"):
        perform(settings, tmp_path, lambda news: None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "adam"}, "group 'body': optimizer 'adam': it divides .* use 'sgd'"),
        ({"optimizer": "adamw"}, "group 'body': optimizer 'adamw'"),
        ({"weight_decay": 5e-4}, "group 'body': weight_decay 0.0005: it moves weights .* use 0"),
        ({"rule": "rise", "on": "update"}, "rule.on 'update': the displacement is shaped after"),
    ],
)
def test_gpm_refuses_what_breaks_its_guarantee(small, settings, message):
    with pytest.raises(ValueError, match=message):
        small.training(small.session(0, **settings), GpmSettings().make(0))


def test_gpm_does_not_mind_settings_that_are_not_in_use(small):
    small.training(small.session(0, rule="fo", on="update"), GpmSettings().make(0))


@pytest.mark.parametrize("missing", ["logits", "loss_of_logits"])
def test_lwf_needs_scores(small, missing):
    session = replace(small.session(0), **{missing: None})
    with pytest.raises(ValueError, match="'lwf' needs the scores of all classes seen"):
        small.training(session, LwfSettings().make(0))


def test_each_addition_once():
    lwf = LwfSettings().make(0)
    with pytest.raises(ValueError, match="additions must be different, got 'lwf' 2 times"):
        check_composition(HOSTS["zo-fc"], [lwf, LwfSettings(weight=1.0).make(0)])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            {"name": "replays"},
            r"additions\[0\].name must be one of replay, .*did you mean 'replay'",
        ),
        ({}, r"additions\[0\].name must be one of replay"),
        ({"name": "lwf", "Weight": 1}, r"additions\[0\].Weight: unknown, did you mean 'weight'"),
        ({"name": "replay", "size": 0}, "size must be an integer >= 1, got 0"),
        ({"name": "replay", "batch": -1}, "batch must be an integer >= 0"),
        ({"name": "ewc", "weight": -1.0}, "weight must be a finite number >= 0"),
        ({"name": "ewc", "mode": "both"}, "mode"),
        ({"name": "ewc", "decay": 1.5}, "decay must be a finite number > 0 and <= 1, got 1.5"),
        ({"name": "ewc", "decay": 0.0}, "decay must be a finite number > 0"),
        ({"name": "ewc", "samples": -1}, "samples must be"),
        ({"name": "lwf", "weight": -1.0}, "weight must be"),
        ({"name": "lwf", "temperature": 0.0}, "temperature must be a finite number > 0"),
        ({"name": "gpm", "samples": 0}, "samples must be an integer >= 1"),
        ({"name": "gpm", "epsilon": 0.0}, "epsilon must be a finite number > 0"),
        (
            {"name": "gpm", "epsilon": 1.01},
            "epsilon must be a finite number > 0 and <= 1, got 1.01",
        ),
        ({"name": "gpm", "increment": -0.1}, "increment must be a finite number >= 0"),
        ({"name": "gpm", "batch": 0}, "batch must be"),
    ],
)
def test_settings_are_checked(table, message):
    with pytest.raises(ValueError, match=message):
        read_additions([table])

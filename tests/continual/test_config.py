"""Settings of a run that nothing would look at, and who may say them."""

import re
from dataclasses import fields

import pytest
import torch

from continual.tiny import config, host_of
from riselab.cli import main
from riselab.common.settings import Unused
from riselab.continual.host import TrainingBudget
from riselab.continual.rules import RULES, Rule
from riselab.continual.runs import read_config
from riselab.continual.training import SessionTraining
from riselab.experiments.cells import expand
from riselab.experiments.file import load_experiment

UNUSED = [
    ({"name": "rise", "mean": "exact"},
     "rule.mean is not used by rule 'rise' but by isotropic-noise, covariance-noise; got 'exact'"),
    ({"name": "scaled-fo", "mean": "scaled"}, "rule.mean is not used by rule 'scaled-fo'"),
    ({"name": "zo", "on": "update"},
     "rule.on is not used by rule 'zo' but by rise, scaled-fo, isotropic-noise, covariance-"),
    ({"name": "zo", "chunk": 64}, "rule.chunk is not used by rule 'zo' but by rise"),
    ({"name": "zo", "only": ["adapter.*"]}, "rule.only is not used by rule 'zo'"),
    ({"name": "rise", "epsilon": 0.1}, "rule.epsilon is not used by rule 'rise' but by zo; got"),
    ({"name": "rise", "norm_matched": True}, "rule.norm_matched is not used by rule 'rise'"),
    ({"name": "fo", "blocks": "whole", "variant": "sign"},
     "rule.blocks is not used by rule 'fo' but by rise, scaled-fo, isotropic-noise, "
     "covariance-noise; got 'whole'; rule.variant is not used by rule 'fo' but by zo; got 'sign'"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "message"), UNUSED)
def test_settings_that_the_rule_does_not_use_are_errors(rule, message):
    with pytest.raises(Unused, match=re.escape(message)):
        read_config(config() | {"rule": rule})


def test_the_rule_of_the_host_counts_where_none_is_named():
    plain = config(host={"name": "zo-fc"}) | {"rule": {"epsilon": 0.1}}
    assert read_config(plain).rule.epsilon == 0.1
    plain["host"] = {"name": "zo-fc-rise"}
    with pytest.raises(Unused, match=r"rule\.epsilon is not used by rule 'rise'"):
        read_config(plain)


def test_every_rule_says_what_it_uses():
    for name, kind in RULES.items():
        assert Rule(name).unused(name) == {}
        assert set(kind.uses) <= {field.name for field in fields(Rule)}
        assert ("exempt" in kind.uses) == (kind.shaper is not None or kind.needs == "memory")


def test_momentum_beside_adam_is_an_error():
    with pytest.raises(Unused, match=r"head\.momentum is not used by optimizer 'adamw' but by sgd"):
        read_config(config(head={"optimizer": "adamw", "momentum": 0.5}))
    assert TrainingBudget(momentum=0.5).unused() == {}
    assert TrainingBudget(optimizer="adam").unused() == {}


def test_chunks_are_of_tensors():
    with pytest.raises(ValueError, match="blocks must be 'tensor' with chunk = 8, which cuts"):
        Rule("rise", chunk=8, blocks="whole")


HEAD = """
name = "x"
domain = "vision"
[stream]
name = "digits"
[host]
name = "adapter-classifier"
"""
ROWS = """
[[rows]]
label = "FO"
rule = { name = "fo" }
[[rows]]
label = "ZO"
rule = { name = "zo" }
[[rows]]
label = "RISE"
rule = { name = "rise" }
"""


def cells(tmp_path, text, *overrides):
    path = tmp_path / "x.toml"
    path.write_text(text)
    found = expand(load_experiment(path, overrides), read_config)
    return {cell.row.label: cell for cell in found}


def test_what_is_said_to_all_rows_is_for_those_that_use_it(tmp_path):
    rule = '[rule]\nq = 8\nepsilon = 1e-4\nblocks = "module"\n'
    found = cells(tmp_path, HEAD + rule + ROWS)
    kept = {label: cell.config["rule"] for label, cell in found.items()}
    assert [kept[label]["q"] for label in kept] == [4, 8, 8]
    assert [kept[label]["epsilon"] for label in kept] == [1e-3, 1e-4, 1e-3]
    assert [kept[label]["blocks"] for label in kept] == ["tensor", "tensor", "module"]
    plain = cells(tmp_path, HEAD + ROWS)
    assert found["FO"].id == plain["FO"].id, "it is the same run"
    assert found["ZO"].id != plain["ZO"].id
    for cell in found.values():
        assert read_config(cell.settings).rule.name


def test_so_it_is_on_the_command_line(tmp_path):
    found = cells(tmp_path, HEAD + ROWS, "rule.q=8", 'rule={on="update"}')
    assert [cell.config["rule"]["q"] for cell in found.values()] == [4, 8, 8]
    on = [cell.config["rule"]["on"] for cell in found.values()]
    assert on == ["gradient", "gradient", "update"]


@pytest.mark.parametrize(
    "more",
    [
        'rule = { name = "zo", on = "update" }\n',
        'rule = { name = "zo" }\n[rows.vary]\n"rule.on" = ["update"]\n',
    ],
)
def test_what_a_row_says_must_be_of_use_to_it(tmp_path, more):
    text = HEAD + '[rule]\non = "update"\n' + ROWS + '[[rows]]\nlabel = "ZO on"\n' + more
    message = r"x: row 'ZO on.*: rule\.on is not used by rule 'zo' but by rise"
    with pytest.raises(ValueError, match=message):
        cells(tmp_path, text)


def test_what_is_said_to_all_must_be_of_use_to_one(tmp_path):
    message = r"x: no row uses rule\.mean, which is not used by rule 'fo' but by isotropic-noise"
    with pytest.raises(ValueError, match=message):
        cells(tmp_path, HEAD + '[rule]\nmean = "exact"\n' + ROWS)
    with pytest.raises(ValueError, match=message):
        cells(tmp_path, HEAD + ROWS, "rule.mean=exact")


@pytest.mark.parametrize(
    ("additions", "message"),
    [
        ("3", "additions: expected a list of tables with a name each, got 3"),
        ('{ name = "replay" }', "additions: expected a list of tables with a name each, got a ta"),
        ('["replay"]', "additions[0]: expected a table with a name, got 'replay'"),
        ('[{ name = "lwf" }, 3]', "additions[1]: expected a table with a name, got 3"),
        ('[{ name = ["replay"] }]', "additions[0].name must be one of replay, ewc, lwf"),
        ("[{ size = 3 }]", "additions[0].name must be one of replay, ewc, lwf"),
        ('[{ name = "replay", size = "3" }]', "additions[0].size: expected an integer, got '3'"),
    ],
)
def test_malformed_additions_are_named_by_their_place(tmp_path, capsys, additions, message):
    path = tmp_path / "x.toml"
    path.write_text(HEAD + f'[[rows]]\nlabel = "a"\nadditions = {additions}\n')
    assert main(["show", str(path)]) == 2
    assert f"row 'a': {message}" in capsys.readouterr().err


def after_one_step(rule, **changes):
    """All parameters after one step of SGD on one batch, by full name."""
    once = {"epochs": 1}
    host = host_of(rule=rule, head=once, adapter=once, loop={"batch": 99}, **changes)
    kit, session = host.kit, host.begin(0)
    SessionTraining(session, kit.loop, kit.devices, (), kit.seed).epoch(0, lambda news: None)
    return {name: p.detach().clone() for name, p in session.parameters.items()}


@pytest.mark.parametrize(
    ("scope", "shaped"),
    [
        ({"only": ["adapter.*.up.*"]}, ["adapter.0.up.weight", "adapter.1.up.weight"]),
        ({"exempt": ["head.*", "adapter.0.*"]}, ["adapter.1.up.weight"]),
        ({"only": ["adapter.*"], "exempt": ["*.bias"]},
         ["adapter.0.up.weight", "adapter.1.up.weight"]),
        ({"only": ["head.*"]}, ["head.weight"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("on", ["gradient", "update"])
def test_a_rule_can_be_limited_to_parameters(scope, shaped, on):
    """Outside the scope the step is FO's to the bit; inside, tensors move otherwise."""
    exact = after_one_step({"name": "fo"})
    found = after_one_step({"name": "rise", "on": on, **scope})
    large = [name for name, value in exact.items() if value.ndim == 2 and "down" not in name]
    moved = [name for name in large if not torch.equal(found[name], exact[name])]
    assert moved == [name for name in large if name in shaped], "down gets no gradient yet"
    rule = Rule("rise", exempt=tuple(scope.get("exempt", ())), only=tuple(scope.get("only", ())))
    for name, value in exact.items():
        if not rule.shapes(name):
            assert torch.equal(found[name], value), name


def test_a_pattern_that_matches_nothing_is_named_with_the_parameters():
    message = (
        "rule.only: no parameter matches 'adapter.7.*'; the parameters are adapter.0.down.weight, "
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        after_one_step({"name": "rise", "only": ["adapter.0.*", "adapter.7.*"]})
    with pytest.raises(ValueError, match=r"rule\.exempt: no parameter matches 'head\.\*'; the par"):
        after_one_step({"name": "rise", "exempt": ["head.*"]}, host={"head_rule": "fo"})
    with pytest.raises(ValueError, match=r"rule\.exempt and rule\.only leave no parameter to sha"):
        after_one_step({"name": "rise", "exempt": ["*"]})

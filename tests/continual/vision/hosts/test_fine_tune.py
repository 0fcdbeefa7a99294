"""Fine-tuning on domains: all weights train, one head, the same first task for every rule."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from riselab.continual.host import silent
from riselab.continual.runs import perform, read_config
from riselab.continual.vision.models import ViTSettings, load_backbone

MLP = ViTSettings("mlp", pretrained=False)


def settings(**changes: Any) -> dict[str, Any]:
    budget = {"optimizer": "adamw", "lr": 3e-3, "epochs": 1, "weight_decay": 0.0, "clip": 1.0}
    return {
        "domain": "vision",
        "stream": {"name": "turned-digits", "train_per_class": 20, "test_per_class": 10},
        "model": {"name": "mlp", "pretrained": False, "width": 32, "base_epochs": 10},
        "host": {"name": "fine-tune"},
        "rule": {"name": "fo"},
        "head": budget,
        "adapter": budget,
        "loop": {"device": "cpu"},
    } | changes


def learned(plain: dict[str, Any], folder: Path, report: Any = silent) -> dict[str, Any]:
    return perform(read_config(plain), folder, report)


def test_the_small_network_is_64_128_128_and_its_seed_decides() -> None:
    network = load_backbone(MLP, 8, 3)
    assert [tuple(p.shape) for p in network.parameters()][::2] == [(128, 64), (128, 128)]
    images = torch.rand(2, 1, 8, 8).expand(-1, 3, -1, -1)
    reference = images[:, 0].flatten(1)
    for layer in network.layers:
        reference = (reference @ layer.weight.T + layer.bias).clamp(min=0)
    assert torch.allclose(network(images), reference, atol=1e-6)
    assert torch.equal(load_backbone(MLP, 8, 3)(images), network(images))
    assert not torch.equal(load_backbone(MLP, 8, 4)(images), network(images))


def test_a_record_has_all_tasks_before_and_the_average_at_the_end(tmp_path: Path) -> None:
    found = learned(settings(), tmp_path)
    matrix = found["scores"]["accuracy"]["matrix"]
    assert [len(row) for row in matrix] == [2, 3, 4, 4]
    assert len(found["before"]["accuracy"]) == 4
    assert found["metrics"]["avg"] == pytest.approx(sum(matrix[-1]) / 4)
    assert found["trainable"] == {"network": 64 * 32 + 32 + 32 * 32 + 32, "head": 32 * 10 + 10}


def test_every_rule_starts_from_the_same_first_task(tmp_path: Path) -> None:
    rules = [{"name": "fo"}, {"name": "rise", "chunk": 64}, {"name": "zo"}]
    runs = [learned(settings(rule=rule), tmp_path / rule["name"]) for rule in rules]
    first = {tuple(run["scores"]["accuracy"]["matrix"][0]) for run in runs}
    assert len(first) == 1
    assert len({run["metrics"]["avg"] for run in runs}) == 3
    assert [loss["task"] for loss in runs[0]["losses"]] == [1, 2, 3]  # one epoch each, no first


def test_without_a_base_the_first_session_trains_too(tmp_path: Path) -> None:
    model = {"name": "mlp", "pretrained": False, "width": 32}
    found = learned(settings(model=model), tmp_path)
    assert [loss["task"] for loss in found["losses"]] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "addition",
    [
        {"name": "ewc", "weight": 1e4, "samples": 40},
        {"name": "lwf"},
        {"name": "replay", "size": 40},
    ],
    ids=lambda addition: addition["name"],
)
def test_additions_compose_and_change_what_is_learned(addition: dict, tmp_path: Path) -> None:
    plain = learned(settings(), tmp_path / "plain")
    found = learned(settings(additions=[addition]), tmp_path / "with")
    assert found["losses"] != plain["losses"] or found["scores"] != plain["scores"]


def test_gpm_looks_at_the_network_and_keeps_old_outputs(tmp_path: Path) -> None:
    budget = {"optimizer": "sgd", "lr": 0.03, "epochs": 1, "weight_decay": 0.0}
    changes = {"adapter": budget, "additions": [{"name": "gpm"}]}
    assert learned(settings(**changes), tmp_path)["metrics"]["forgetting"] is not None


def test_a_run_that_died_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    plain = settings(additions=[{"name": "ewc", "samples": 20}])
    plain["loop"] = {"device": "cpu", "checkpoint_seconds": 0}
    whole = learned(plain, tmp_path / "whole")
    calls = itertools.count(1)

    def dies(news: dict[str, Any]) -> None:
        if next(calls) == 25:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        learned(plain, tmp_path / "part", dies)
    again = learned(plain, tmp_path / "part")
    assert {**again, "seconds": 0} == {**whole, "seconds": 0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"host": {"name": "learnable-classifier"}}, "adds new classes in every session"),
        ({"stream": {"name": "digits"}}, "stream.kind must be 'domains', got 'classes'"),
        ({"host": {"name": "adapter-classifier"}}, "'mlp' has no blocks"),
        ({"additions": [{"name": "all-classes"}]}, "its loss knows no classes to leave out"),
        ({"model": {"name": "mlp"}}, "pretrained must be false and heads and patch 0 with name"),
    ],
)
def test_what_does_not_compose_is_refused_with_the_reason(changes: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_config(settings(**changes))


def test_a_vit_trains_as_a_whole(tmp_path: Path) -> None:
    model = {
        "name": "vit_tiny_patch16_224", "pretrained": False, "width": 16, "depth": 1, "heads": 2,
        "patch": 4,
    }  # fmt: skip
    stream = {"name": "turned-digits", "turns": [0, 90], "train_per_class": 5, "test_per_class": 2}
    found = learned(settings(model=model, stream=stream), tmp_path)
    assert found["trainable"]["network"] > 1000
    assert len(found["scores"]["accuracy"]["matrix"]) == 2

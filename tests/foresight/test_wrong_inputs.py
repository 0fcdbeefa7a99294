"""What ``diagnose`` and its commands cannot use is named, and nothing is changed or left behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader

from foresight.test_sessions import file  # noqa: F401
from foresight.test_trainer_inputs import HOW, batches, examples, trainer
from risegrad import ScaledFO
from risegrad.curvature import Measurement, diagnose
from risegrad.integrations.forgetting_meter import ForgettingMeter
from riselab.cli import main


def pair(shift: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(12, 4, generator=generator)
    return inputs, torch.randint(3, (12,), generator=generator) + shift


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rise": 0.5}, r"rise must be a risegrad\.Rise.*, got 0\.5 \(float\)"),
        ({"rise": ScaledFO()}, r"rise must be a risegrad\.Rise.*, got ScaledFO.*\(ScaledFO\)"),
        ({"memory": "file"}, r"memory must be a Memory, .*, got 'file' \(str\)"),
        ({"measurement": {}}, r"measurement must be a Measurement, .*, got \{\} \(dict\)"),
        ({"measurement": Measurement}, r"measurement must be .*\(a class, not an object\)"),
        (
            {"batch_loss": nn.CrossEntropyLoss()},
            r"batch_loss must be a BatchLoss, .*, got CrossEntropyLoss\(\)",
        ),
    ],
)
def test_options_of_another_kind(options: dict[str, Any], message: str) -> None:
    model = nn.Linear(4, 3)
    before = model.weight.detach().clone()
    with pytest.raises(TypeError, match=message):
        diagnose(model, pair(), pair(), **{"measurement": HOW} | options)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


@pytest.mark.parametrize("given", [0.3, "0.3", None])
def test_dampings_are_a_list(given: Any) -> None:
    with pytest.raises(TypeError, match=r"dampings must be a list of numbers, .*, got "):
        Measurement(dampings=given)


def test_labels_that_the_model_does_not_have(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    message = r"{} labels must be from 0 to 2, as the model has 3 outputs; got "
    with pytest.raises(ValueError, match=message.format("historical")):
        diagnose(model, pair(3), pair(), measurement=HOW)
    with pytest.raises(ValueError, match=message.format("incoming")):
        diagnose(model, pair(), pair(-3), measurement=HOW)
    with pytest.raises(ValueError, match=message.format("'old'")):
        ForgettingMeter(model, {"old": [pair(3)]})
    made = trainer(tmp_path)
    wrong = batches([one | {"labels": one["labels"] + 3} for one in examples(8, 5)])
    with pytest.raises(ValueError, match=r"historical batches must have labels .*out of bounds"):
        diagnose(made.model, wrong, batches(examples(8, 6)), measurement=HOW)


def test_ignored_labels_are_none_of_them() -> None:
    inputs, target = pair()
    target[0] = -100
    assert ForgettingMeter(nn.Linear(4, 3), {"old": [(inputs, target)]}).start.finite


class Penalized(transformers.Trainer):
    def compute_loss(self, *given: Any, **more: Any) -> Any:
        return super().compute_loss(*given, **more)


def test_a_loss_of_the_trainers_class(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    own = Penalized(made.model, made.args, train_dataset=examples(8, 1))
    with pytest.raises(ValueError, match=r"its model's own loss, got Penalized\.compute_loss"):
        diagnose(own, examples(8, 2), measurement=HOW)
    made.compute_loss = max  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"got a compute_loss that was put in its place"):
        diagnose(made, examples(8, 2), measurement=HOW)


def test_a_trainer_of_transformers_own(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    args = transformers.Seq2SeqTrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    other = transformers.Seq2SeqTrainer(made.model, args, train_dataset=examples(8, 1))
    assert diagnose(other, examples(8, 2), measurement=HOW).rules


def test_evaluation_sets_by_name(tmp_path: Path) -> None:
    alone, several = {"a": examples(8, 2)}, {"a": examples(8, 2), "b": examples(8, 3)}
    found = diagnose(trainer(tmp_path, eval_dataset=alone), None, measurement=HOW)
    expected = diagnose(trainer(tmp_path), None, measurement=HOW)
    assert found.to_dict() == expected.to_dict()
    made = trainer(tmp_path, eval_dataset=several)
    with pytest.raises(ValueError, match=r"historical must be one data set, .* has 2: a, b; give"):
        diagnose(made, None, measurement=HOW)
    assert diagnose(made, several["a"], measurement=HOW).to_dict() == expected.to_dict()


def test_a_trainer_makes_its_own_batches(tmp_path: Path) -> None:
    made, data = trainer(tmp_path), examples(8, 2)
    for name, given, what in (
        ("historical", batches(data), "a list of batches"),
        ("historical", DataLoader(data), "a DataLoader"),
        ("historical", {"a": data}, "a dict"),
    ):
        message = rf"{name} must be a data set of single examples .*, got {what}; with batches"
        with pytest.raises(TypeError, match=message):
            diagnose(made, given, measurement=HOW)
    with pytest.raises(TypeError, match=r"incoming must be a data set .* got a list of batches"):
        diagnose(made, data, batches(data), measurement=HOW)


@pytest.mark.parametrize("command", ["diagnose", "local"])
def test_a_task_that_is_not_there_leaves_no_folder(
    file: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    assert main([command, file, "--task", "9", "--out", str(tmp_path / "out")]) != 0
    assert "task must be at most 2, got 9" in capsys.readouterr().err
    assert not [*(tmp_path / "out").rglob("*")]

"""What ``diagnose`` and its commands cannot use is named, and nothing is changed or left behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foresight.test_sessions import file  # noqa: F401
from foresight.test_transformers_models import HOW, batches, network
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
        ({"model": 3}, r"model must be a torch module \(of a Trainer: trainer\.model\), got 3"),
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
        diagnose(
            **{"model": model, "measurement": HOW} | options, historical=pair(), incoming=pair()
        )
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


@pytest.mark.parametrize("given", [0.3, "0.3", None])
def test_dampings_are_a_list(given: Any) -> None:
    with pytest.raises(TypeError, match=r"dampings must be a list of numbers, .*, got "):
        Measurement(dampings=given)


def test_labels_that_the_model_does_not_have() -> None:
    model = nn.Linear(4, 3)
    message = r"{} labels must be from 0 to 2, as the model has 3 outputs; got "
    with pytest.raises(ValueError, match=message.format("historical")):
        diagnose(model, pair(3), pair(), measurement=HOW)
    with pytest.raises(ValueError, match=message.format("incoming")):
        diagnose(model, pair(), pair(-3), measurement=HOW)
    with pytest.raises(ValueError, match=message.format("'old'")):
        ForgettingMeter(model, {"old": [pair(3)]})
    with pytest.raises(ValueError, match=r"historical batches must have labels .*out of bounds"):
        diagnose(network(False), batches(5, shift=3), batches(6), measurement=HOW)


def test_ignored_labels_are_none_of_them() -> None:
    inputs, target = pair()
    target[0] = -100
    assert ForgettingMeter(nn.Linear(4, 3), {"old": [(inputs, target)]}).start.finite


@pytest.mark.parametrize("command", ["diagnose", "local"])
def test_a_task_that_is_not_there_leaves_no_folder(
    file: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    assert main([command, file, "--task", "9", "--out", str(tmp_path / "out")]) != 0
    assert "task must be at most 2, got 9" in capsys.readouterr().err
    assert not [*(tmp_path / "out").rglob("*")]

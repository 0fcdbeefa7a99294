"""Lightning: the one line in ``configure_optimizers``, and the callback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from integrations.by_hand import assert_same, by_hand, extras, parameters
from integrations.small import (
    ACCUMULATE,
    CLIP,
    MICRO,
    RATE,
    STEPS,
    data,
    distance_to_targets,
    loss,
    net,
)
from risegrad.core.attachment import attach
from risegrad.core.shapers import Rise

lightning = pytest.importorskip("lightning.pytorch")

from risegrad.integrations.lightning import RiseCallback  # noqa: E402

SHAPER = Rise(q=4, seed=3)
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers and loggers


class Module(lightning.LightningModule):
    def __init__(self, on: Any = None) -> None:
        super().__init__()
        self.net = net()
        self.on = on

    def training_step(self, batch: Any, number: int) -> Tensor:
        return distance_to_targets(self.net, *batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=RATE)
        if self.on is not None:
            self.handle = attach(optimizer, SHAPER, self.net.named_parameters(), self.on)
        return optimizer


class ByItself(Module):
    """Manual optimization: the module steps and clips."""

    def __init__(self, on: Any = None) -> None:
        super().__init__(on)
        self.automatic_optimization = False

    def training_step(self, batch: Any, number: int) -> None:
        self.manual_backward(distance_to_targets(self.net, *batch) / ACCUMULATE)
        if (number + 1) % ACCUMULATE == 0:
            optimizer = self.optimizers()
            self.clip_gradients(optimizer, CLIP, "norm")
            optimizer.step()
            optimizer.zero_grad()


def fit(module: Module, folder: Path, resume: str | None = None, **changes: Any) -> Any:
    settings: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "accumulate_grad_batches": ACCUMULATE,
        "gradient_clip_val": CLIP,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    trainer = lightning.Trainer(**settings | changes)
    trainer.fit(module, DataLoader(TensorDataset(*data()), batch_size=MICRO), ckpt_path=resume)
    return trainer


def expected(on: Any, shaper: Rise | None = SHAPER) -> dict[str, Tensor]:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    return by_hand(model, optimizer, loss, STEPS, ACCUMULATE, CLIP, shaper, on)


@pytest.mark.parametrize("on", ["gradient", "update"])
def test_the_one_line(tmp_path: Path, on: Any) -> None:
    # The loop by hand clips, then shapes; Lightning clips inside the closure that its optimizer
    # step is given, so agreement here shows that the shaping waits for that.
    module = Module(on)
    fit(module, tmp_path)
    assert module.handle.steps == STEPS, "once per step, not per micro-batch"
    torch.testing.assert_close(parameters(module.net), expected(on))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(parameters(module.net), expected(on, shaper=None))


@pytest.mark.parametrize("on", ["gradient", "update"])
def test_the_callback(tmp_path: Path, on: Any) -> None:
    module, callback = Module(), RiseCallback(SHAPER, on=on)
    fit(module, tmp_path, callbacks=[callback])
    assert callback.handle is not None
    assert callback.handle.steps == STEPS
    assert callback.handle.layout.names[0] == "net.0.weight"
    reference = net()
    optimizer = torch.optim.AdamW(reference.parameters(), lr=RATE)
    named = nn.ModuleDict({"net": reference})
    result = by_hand(
        named, optimizer, lambda m, n: loss(reference, n), STEPS, ACCUMULATE, CLIP, SHAPER, on
    )
    torch.testing.assert_close(parameters(module), result)


@pytest.mark.parametrize("on", ["gradient", "update"])
def test_manual_optimization(tmp_path: Path, on: Any) -> None:
    module = ByItself(on)
    fit(module, tmp_path, accumulate_grad_batches=1, gradient_clip_val=None)
    assert module.handle.steps == STEPS
    torch.testing.assert_close(parameters(module.net), expected(on))


@pytest.mark.parametrize("how", ["one line", "callback"])
def test_resumes_bit_for_bit(tmp_path: Path, how: str) -> None:
    def train(**changes: Any) -> tuple[dict[str, Tensor], int]:
        callback = RiseCallback(SHAPER)
        module = Module(None if how == "callback" else "gradient")
        extra = [callback] if how == "callback" else []
        fit(module, tmp_path, callbacks=[*extra, *changes.pop("keep", [])], **changes)
        handle = callback.handle if how == "callback" else module.handle
        assert handle is not None
        return parameters(module), handle.steps

    keep = lightning.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    whole, steps = train(max_epochs=3, keep=[keep], enable_checkpointing=True)
    resumed, again = train(max_epochs=3, resume=str(tmp_path / "epoch=0.ckpt"))
    assert steps == again == 3 * STEPS
    assert_same(whole, resumed)


def test_fitting_again_starts_anew(tmp_path: Path) -> None:
    # Lightning makes a new optimizer for every fit.
    callback = RiseCallback(SHAPER)
    fit(Module(), tmp_path, callbacks=[callback])
    first = callback.handle
    fit(Module(), tmp_path, callbacks=[callback])
    assert callback.handle is not first
    assert callback.handle is not None
    assert callback.handle.steps == STEPS


def test_two_optimizers_need_a_choice(tmp_path: Path) -> None:
    class Two(ByItself):
        def configure_optimizers(self) -> Any:
            return [
                torch.optim.SGD(part.parameters(), lr=RATE) for part in (self.net[0], self.net[2])
            ]

    with pytest.raises(ValueError, match="needs one optimizer, the module has 2: call"):
        fit(
            Two(),
            tmp_path,
            callbacks=[RiseCallback(SHAPER)],
            accumulate_grad_batches=1,
            gradient_clip_val=None,
        )


def test_says_what_to_install() -> None:
    code = "import sys; sys.modules['lightning'] = None; import risegrad.integrations.lightning"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: risegrad.integrations.lightning needs lightning" in done.stderr
    assert 'pip install "risegrad[lightning]"' in done.stderr
    assert "lightning" in extras()

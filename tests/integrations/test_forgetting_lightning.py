"""Lightning with a meter: scores, loggers, records, budgets, resuming."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from integrations.old_and_new import NEW, OLD, batches, knowing, percent
from riselab.records.record import read_record

pl = pytest.importorskip("lightning.pytorch")
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from risegrad.integrations.forgetting_meter import Budget  # noqa: E402
from risegrad.integrations.lightning import ForgettingCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


class Digits(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = knowing()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader() -> DataLoader[Any]:
    images, labels = (torch.cat(part) for part in zip(*batches(NEW, False)[:12], strict=True))
    return DataLoader(TensorDataset(images, labels), batch_size=48)


def fitted(folder: Path, callback: ForgettingCallback, epochs: int = 3, **more: Any) -> Digits:
    module = more.pop("module", None) or Digits()
    options = {"enable_checkpointing": False, "logger": CSVLogger(folder, "log", "here")}
    path = more.pop("ckpt_path", None)
    trainer = pl.Trainer(
        default_root_dir=folder, max_epochs=epochs, accelerator="cpu", enable_progress_bar=False,
        enable_model_summary=False, **{**options, **more},
    )  # fmt: skip
    trainer.fit(module, loader(), ckpt_path=path)
    return module


def kept() -> dict[str, Any]:
    images, labels = (torch.cat(part) for part in zip(*batches(OLD, True), strict=True))
    return {"0-4": TensorDataset(images, labels)}


def test_scores_loggers_and_record(tmp_path: Path) -> None:
    callback = ForgettingCallback(kept(), new={"5-9": batches(NEW, True)}, every=10)
    module = fitted(tmp_path, callback, callbacks=[callback])
    meter = callback.meter
    assert meter is not None
    assert [reading.step for reading in meter.readings] == [0, 10, 20, 30, 36]
    assert meter.last.scores["0-4"].percent == pytest.approx(percent(module, OLD))
    with (tmp_path / "log" / "here" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kept_0-4_loss"]]
    assert [int(row["step"]) for row in rows] == [0, 10, 20, 30, 36]
    record = read_record(tmp_path / "log" / "here" / "record.json")
    assert record.result.metrics["plasticity"] == pytest.approx(percent(module, NEW))
    assert record.config["lr"] == 0.1


def test_accumulated_steps_are_one(tmp_path: Path) -> None:
    callback = ForgettingCallback(kept(), every=2)
    fitted(tmp_path, callback, 1, callbacks=[callback], accumulate_grad_batches=3)
    assert callback.meter is not None
    assert [reading.step for reading in callback.meter.readings] == [0, 2, 4]


def test_every_epoch_and_a_budget(tmp_path: Path) -> None:
    callback = ForgettingCallback(kept(), every="epoch", budget=Budget(0.05, "back"))
    module = fitted(tmp_path, callback, callbacks=[callback])
    assert callback.meter is not None
    assert callback.meter.last.stop
    start, over, back = callback.meter.readings
    assert over.rise > 0.05
    assert back.scores == start.scores
    assert percent(module, OLD) == pytest.approx(percent(knowing(), OLD)), "back at the start"


@pytest.mark.parametrize("then", ["stop", "back"])
def test_a_budget_ends_the_run_and_leaves_a_checkpoint(tmp_path: Path, then: Any) -> None:
    """In the middle of an epoch; what is saved is the model as the run left it."""
    callback = ForgettingCallback(kept(), every=2, budget=Budget(0.2, then))
    saver = pl.callbacks.ModelCheckpoint(tmp_path / "saved", "{step}")
    module = fitted(tmp_path, callback, callbacks=[callback, saver], enable_checkpointing=True)
    meter = callback.meter
    assert meter is not None
    assert meter.last.stop
    assert meter.step % 12 != 0, "within an epoch of 12 steps"
    over = meter.last if then == "stop" else meter.readings[-2]
    assert over.rise > 0.2 >= meter.readings[-3].rise
    (path,) = (tmp_path / "saved").glob("*.ckpt")
    saved = torch.load(path, weights_only=False)
    assert saved["global_step"] == meter.step
    assert all(torch.equal(saved["state_dict"][n], t) for n, t in module.state_dict().items())
    left = Digits()
    left.load_state_dict(saved["state_dict"])
    assert percent(left, OLD) == pytest.approx(meter.last.scores["0-4"].percent)


def test_a_run_that_diverges_is_stopped(tmp_path: Path) -> None:
    class Diverging(Digits):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e30)

    callback = ForgettingCallback(kept(), every=5, budget=Budget(0.05, "back"))
    module = fitted(tmp_path, callback, callbacks=[callback], module=Diverging())
    assert callback.meter is not None
    assert callback.meter.step == 5
    assert all(bool(tensor.isfinite().all()) for tensor in module.parameters())
    assert read_record(tmp_path / "log" / "here" / "record.json").config["steps"] == 5


def test_a_resumed_run_counts_from_its_first_scores(tmp_path: Path) -> None:
    first = ForgettingCallback(kept(), every=12)
    saver = pl.callbacks.ModelCheckpoint(tmp_path / "saved", "epoch-{epoch}", save_top_k=-1)
    fitted(tmp_path, first, callbacks=[first, saver], enable_checkpointing=True)
    again = ForgettingCallback(kept(), every=12)
    path = next((tmp_path / "saved").glob("*epoch=0*"))
    fitted(tmp_path, again, callbacks=[again], ckpt_path=str(path))
    assert first.meter is not None
    assert again.meter is not None
    assert again.meter.start.scores == first.meter.start.scores
    wanted = pytest.approx(first.meter.last.rises["0-4"], rel=1e-5)
    assert again.meter.last.rises["0-4"] == wanted

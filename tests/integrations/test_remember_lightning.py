"""Lightning with a memory: made when training begins, carried by the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

import risegrad
from integrations.by_hand import assert_same, by_hand, parameters
from integrations.small import ACCUMULATE, CLIP, RATE, STEPS, data, loss, net
from integrations.test_lightning import ByItself, Module, fit
from risegrad.core.attachment import shaping
from risegrad.memory.informed import Informed
from riselab.records.record import read_record

lightning = pytest.importorskip("lightning.pytorch")
from risegrad.integrations.lightning import ForgettingCallback, RememberCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers and loggers


class Callable(Module):
    """A module that can be called, as most can."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x)
        return found


class Plain(Callable):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.net.parameters(), lr=RATE)


def old() -> list[tuple[Tensor, Tensor]]:
    x, y = data()
    return [(-x[:8], y[:8]), (-x[8:], y[8:])]


@pytest.mark.parametrize(("kind", "on"), [(Callable, "update"), (Plain, "gradient")])
def test_as_by_hand(tmp_path: Path, kind: type[Module], on: Any) -> None:
    module, callback = kind(), RememberCallback(old(), damping=0.1, examples=16, of="features")
    fit(module, tmp_path, callbacks=[callback])
    assert callback.handle is not None
    assert (callback.handle.steps, callback.handle.on) == (STEPS, on)
    twin = kind()
    memory = risegrad.remember(twin, old(), examples=16, of="features")
    assert callback.memory == memory
    optimizer: Any = twin.configure_optimizers()
    shaper = Informed(memory, 0.1)
    wanted = by_hand(
        twin, optimizer, lambda m, n: loss(twin.net, n), STEPS, ACCUMULATE, CLIP, shaper, on
    )
    torch.testing.assert_close(parameters(module), wanted)


@pytest.mark.parametrize("q", [None, 4])
def test_resumes_bit_for_bit_with_the_first_memory(tmp_path: Path, q: int | None) -> None:
    def train(**changes: Any) -> Any:
        module, callback = Callable(), RememberCallback(old(), q=q, examples=16, of="features")
        fit(module, tmp_path, callbacks=[callback, *changes.pop("keep", [])], **changes)
        return parameters(module), callback

    keep = lightning.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    whole, first = train(max_epochs=3, keep=[keep], enable_checkpointing=True)
    resumed, second = train(max_epochs=3, resume=str(tmp_path / "epoch=0.ckpt"))
    assert first.memory == second.memory
    assert second.handle.steps == 3 * STEPS
    assert_same(whole, resumed)


def test_a_dataset_and_the_next_task(tmp_path: Path) -> None:
    callback = RememberCallback(TensorDataset(*data()), then=old(), examples=16, of="features")
    fit(Callable(), tmp_path, callbacks=[callback])
    assert callback.memory is not None
    assert callback.memory["net.0"].examples == 32
    assert callback.handle is not None
    assert callback.handle.shaper.memory["net.0"].examples == 16  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-true", torch.bfloat16), ("64-true", torch.float64)]
)
@pytest.mark.parametrize("keep", [old(), TensorDataset(*data())], ids=["batches", "dataset"])
def test_what_is_kept_has_the_precision_of_training(
    tmp_path: Path, keep: Any, precision: str, dtype: torch.dtype
) -> None:
    module, callback = Callable(), RememberCallback(keep, then=keep, examples=16, of="features")
    classes = [(x, torch.zeros(len(x)).long()) for x, _ in old()]
    meter = ForgettingCallback({"old": classes}, every=2)
    fit(module, tmp_path, callbacks=[callback, meter], precision=precision)
    assert {p.dtype for p in module.parameters()} == {dtype}
    assert callback.handle is not None
    assert callback.handle.steps == STEPS
    assert callback.memory is not None
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert callback.memory["net.0"].inputs.like.dtype == wide


def test_what_is_no_batch_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="batches must be a list or a loader of batches, got Tens"):
        fit(Callable(), tmp_path, callbacks=[RememberCallback(data()[0])])


def test_two_optimizers_need_a_choice(tmp_path: Path) -> None:
    class Two(ByItself):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.net(x)
            return found

        def configure_optimizers(self) -> Any:
            return [
                torch.optim.SGD(part.parameters(), lr=RATE) for part in (self.net[0], self.net[2])
            ]

    options = {"accumulate_grad_batches": 1, "gradient_clip_val": None}
    with pytest.raises(ValueError, match="RememberCallback needs one optimizer, the module has 2"):
        fit(
            Two(),
            tmp_path,
            callbacks=[RememberCallback(old(), examples=16, of="features")],
            **options,
        )


def test_a_ready_memory_needs_no_examples(tmp_path: Path) -> None:
    memory = risegrad.remember(torch.nn.ModuleDict({"net": net()}), old(), examples=16,
                               predict=lambda model, batch: model["net"](batch[0]))  # fmt: skip
    callback = RememberCallback(memory=memory)
    fit(Callable(), tmp_path, callbacks=[callback])
    assert callback.memory is memory


def test_detached_when_fitting_ends_and_its_last_checkpoint_is_saved(tmp_path: Path) -> None:
    module, callback = Callable(), RememberCallback(old(), examples=16, of="features")
    saver = lightning.callbacks.ModelCheckpoint(tmp_path, "last")
    fit(module, tmp_path, callbacks=[callback, saver], enable_checkpointing=True)
    assert shaping(module) == []
    saved = torch.load(tmp_path / "last.ckpt", weights_only=False)["optimizer_states"][0]
    (entry,) = saved["param_groups"][0]["risegrad"].values()
    assert entry["step"] == STEPS
    meter = ForgettingCallback({"old": [(x, torch.zeros(len(x)).long()) for x, _ in old()]})
    fit(module, tmp_path / "plain", callbacks=[meter], logger=False)
    assert read_record(tmp_path / "plain" / "record.json").row.label == "plain training"

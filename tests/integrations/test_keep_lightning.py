"""Lightning with ``KeepCallback``: as by hand, in the precision of training, over a resume."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import risegrad
from integrations.by_hand import assert_same, by_hand, parameters
from integrations.small import ACCUMULATE, CLIP, RATE, STEPS, data, loss
from integrations.test_lightning import ByItself, Module, fit
from risegrad.core.attachment import shaping

lightning = pytest.importorskip("lightning.pytorch")
from risegrad.integrations.lightning import KeepCallback  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's advice about workers and loggers
NAMES = ("drift", "strength", "c")
HOW: dict[str, Any] = {"examples": 16, "of": "features"}


class Callable(Module):
    """A module that can be called, as most can."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x)
        return found


def old() -> list[tuple[Tensor, Tensor]]:
    x, y = data()
    return [(-x[:8], y[:8]), (-x[8:], y[8:])]


def test_as_by_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, callback = Callable(), KeepCallback(old(), **HOW)
    fit(module, tmp_path, callbacks=[callback])
    keeper = callback.keeper
    assert keeper is not None
    assert keeper.steps == STEPS
    assert keeper.kept is not None
    assert keeper.kept.seen == 16
    assert shaping(module) == []
    twin = Callable()
    optimizer: Any = twin.configure_optimizers()
    risegrad.keep(twin, optimizer, old(), **HOW)
    wanted = by_hand(twin, optimizer, lambda m, n: loss(twin.net, n), STEPS, ACCUMULATE, CLIP)
    torch.testing.assert_close(parameters(module), wanted)
    assert f"After {STEPS} steps the answers have moved by " in capsys.readouterr().out


def test_the_loggers_get_it(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path)
    callback = KeepCallback(old(), **HOW)
    fit(Callable(), tmp_path, callbacks=[callback], logger=logger, log_every_n_steps=2)
    text = (Path(logger.log_dir) / "metrics.csv").read_text(encoding="utf-8")
    lines = list(csv.DictReader(text.splitlines()))
    assert [line["step"] for line in lines] == ["2", "4"]
    assert all(float(line[f"keep/{name}"]) > 0 for line in lines for name in NAMES)


def test_resumes_bit_for_bit_with_what_it_kept(tmp_path: Path) -> None:
    def train(**changes: Any) -> Any:
        module, callback = Callable(), KeepCallback(old(), budget=0.1, **HOW)
        fit(module, tmp_path, callbacks=[callback, *changes.pop("more", [])], **changes)
        return parameters(module), callback.keeper

    saver = lightning.callbacks.ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1)
    whole, first = train(max_epochs=3, more=[saver], enable_checkpointing=True)
    resumed, second = train(max_epochs=3, resume=str(tmp_path / "epoch=0.ckpt"))
    assert (second.steps, second.strength) == (3 * STEPS, first.strength)
    assert first.memory == second.memory
    assert_same(whole, resumed)


def test_a_run_that_did_not_keep_is_not_resumed(tmp_path: Path) -> None:
    saver = lightning.callbacks.ModelCheckpoint(tmp_path, "plain")
    fit(Callable(), tmp_path, callbacks=[saver], enable_checkpointing=True)
    with pytest.raises(ValueError, match="is of a run without KeepCallback"):
        fit(
            Callable(),
            tmp_path,
            callbacks=[KeepCallback(old(), **HOW)],
            resume=str(tmp_path / "plain.ckpt"),
            max_epochs=2,
        )


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("bf16-true", torch.bfloat16), ("64-true", torch.float64), ("bf16-mixed", torch.bfloat16)],
)
def test_the_pull_has_the_precision_of_training(
    tmp_path: Path, precision: str, dtype: torch.dtype
) -> None:
    module, callback = Callable(), KeepCallback(old(), **HOW)
    seen: set[torch.dtype] = set()
    first: Any = module.net[0]
    first.register_forward_hook(
        lambda _, __, out: None if first.training else seen.add(out.dtype)  # a pull, or a look
    )
    fit(module, tmp_path, callbacks=[callback], precision=precision)
    assert seen == {dtype}
    assert callback.keeper is not None
    assert callback.keeper.steps == STEPS


def test_one_task_after_the_other(tmp_path: Path) -> None:
    module, callback = Callable(), KeepCallback(old(), **HOW)
    for _ in range(2):
        fit(module, tmp_path, callbacks=[callback])
    assert callback.keeper is not None
    assert callback.keeper.kept is not None
    assert (callback.keeper.steps, callback.keeper.kept.seen) == (2 * STEPS, 32)


def test_two_optimizers_need_a_choice(tmp_path: Path) -> None:
    class Two(ByItself):
        def configure_optimizers(self) -> Any:
            parts: list[nn.Module] = [self.net[0], self.net[2]]
            return [torch.optim.SGD(part.parameters(), lr=RATE) for part in parts]

    options = {"accumulate_grad_batches": 1, "gradient_clip_val": None}
    with pytest.raises(ValueError, match="KeepCallback needs one optimizer, the module has 2: cal"):
        fit(Two(), tmp_path, callbacks=[KeepCallback(old(), **HOW)], **options)


def test_what_is_no_batch_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="batches must be a list or a loader of batches, got Tens"):
        fit(Callable(), tmp_path, callbacks=[KeepCallback(data()[0])])

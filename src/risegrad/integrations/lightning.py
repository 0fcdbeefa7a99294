"""RISE and memories in Lightning: ``Trainer(..., callbacks=[RiseCallback(Rise(q=4))])``."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from risegrad.core.attachment import Attachment, On, attach
from risegrad.core.shapers import Shaper
from risegrad.core.torch_optimizers import unwrapped
from risegrad.curvature.memory.informed import Informed
from risegrad.curvature.memory.memory import Memory
from risegrad.curvature.memory.memory_files import packed, unpacked
from risegrad.integrations.memory_in_training import MemoryInTraining

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        'risegrad.integrations.lightning needs lightning: pip install "risegrad[lightning]"'
    ) from error


class RiseCallback(Callback):
    """Attaches a shaper to the optimizer that ``configure_optimizers`` returns.

    Training starts after Lightning has loaded the checkpoint it resumes from, so a resumed count of
    steps is found where it was saved, in the optimizer's state. ``handle`` is the attachment, from
    then on.
    """

    def __init__(self, shaper: Shaper, on: On = "gradient") -> None:
        self.shaper = shaper
        self.on = on
        self.handle: Attachment | None = None
        self._optimizer: Optimizer | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Attach the shaper to the trainer's only optimizer."""
        optimizer = _only_optimizer(self, trainer)
        if optimizer is not self._optimizer:
            self.handle = attach(optimizer, self.shaper, pl_module.named_parameters(), self.on)
            self._optimizer = optimizer


class RememberCallback(MemoryInTraining, Callback):
    """Remembers ``keep`` when training begins and shapes every step by it.

    ``RememberCallback(keep, damping=0.3, memory=None, q=None, then=None, **how)``: see
    ``MemoryInTraining``. The module is called as ``module(inputs)`` with what a batch holds first;
    ``predict=`` reads any other form. The memory lies in the callback's part of each checkpoint, so
    a resumed run has the one it began with.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Remember what must be kept, and attach to the only optimizer."""
        self._remember(pl_module, trainer.train_dataloader)
        self._attach(pl_module, _only_optimizer(self, trainer))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add what was learned to the memory, if that was asked for."""
        self._add(pl_module, trainer.train_dataloader)

    def state_dict(self) -> dict[str, Any]:
        """The memory that shapes, so that a resumed run has the same."""
        used = None if self.handle is None else self.handle.shaper
        return {"memory": packed(used.memory)} if isinstance(used, Informed) else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the memory of the run that is resumed."""
        if self.keep is not None:  # a ready memory stays: the optimizer's state tells whether it is
            held = state_dict.get("memory")
            self.memory = self.memory if held is None else Memory(**unpacked(held))


def _only_optimizer(callback: Callback, trainer: Trainer) -> Optimizer:
    if len(trainer.optimizers) != 1:
        raise ValueError(
            f"{type(callback).__name__} needs one optimizer, the module has "
            f"{len(trainer.optimizers)}: call risegrad.attach in configure_optimizers for those "
            "that should be shaped"
        )
    return unwrapped(trainer.optimizers[0])
